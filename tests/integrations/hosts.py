"""The same training inside several frameworks: a perceptron, 12 steps on 6 batches that come in the same order.

A host is a function ``train(build, folder, stops)``. ``build(parameters)`` returns the optimizer and a scheduler of
the step, or None. With ``stops`` the training is stopped after an epoch, saved as the framework saves, and resumed with
new objects. It returns the weights at the end.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS, BATCHES, BATCH_SIZE = 2, 6, 8


class Samples(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(BATCHES * BATCH_SIZE, 5, generator=generator)
        self.labels = torch.randint(3, (BATCHES * BATCH_SIZE,), generator=generator)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))

    def forward(self, inputs, labels):
        logits = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def batches():
    return DataLoader(Samples(), batch_size=BATCH_SIZE)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def read_tensorboard(folder, name):
    """Steps and values of a scalar that TensorBoard has in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload().Scalars(name)
    return [event.step for event in events], [event.value for event in events]


def train_plainly(build, folder, stops=False):
    assert not stops, "the oracle never stops"
    model = Perceptron()
    optimizer, scheduler = build(model.parameters())
    for _ in range(EPOCHS):
        for batch in batches():
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
    return weights(model)


def train_in_lightning(build, folder, stops=False):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Perceptron()

        def training_step(self, batch):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            optimizer, scheduler = build(self.parameters())
            if scheduler is None:
                return optimizer
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def trainer(epochs):
        return pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )

    path = None
    if stops:
        path = folder / "lightning.ckpt"
        first = trainer(1)
        first.fit(Module(), batches())
        first.save_checkpoint(path)
    module = Module()
    trainer(EPOCHS).fit(module, batches(), ckpt_path=path)
    return weights(module)


def train_in_transformers(build, folder, stops=False):
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import Trainer

    def trainer(epochs):
        model = Perceptron()
        optimizer, scheduler = build(model.parameters())
        scheduler = scheduler or LambdaLR(optimizer, lambda step: 1.0)  # else the Trainer makes one that decays
        arguments = training_arguments(folder / "trainer", num_train_epochs=epochs, save_strategy="epoch")
        return Trainer(model, arguments, train_dataset=Samples(), optimizers=(optimizer, scheduler))

    if stops:
        trainer(1).train()
    second = trainer(EPOCHS)
    second.train(resume_from_checkpoint=str(folder / "trainer" / f"checkpoint-{BATCHES}") if stops else None)
    return weights(second.model)


def training_arguments(folder, **settings):
    """Of a Trainer on the CPU that takes the samples in their order and says nothing."""
    from transformers.training_args import TrainingArguments

    defaults = {
        "per_device_train_batch_size": BATCH_SIZE,
        "max_grad_norm": 0.0,
        "train_sampling_strategy": "sequential",
        "dataloader_pin_memory": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": [],
    }
    return TrainingArguments(str(folder), **{**defaults, **settings})


def train_in_accelerate(build, folder, stops=False):
    from accelerate import Accelerator

    def prepared():
        accelerator, model = Accelerator(cpu=True), Perceptron()
        optimizer, scheduler = build(model.parameters())
        return accelerator, *accelerator.prepare(model, optimizer, batches(), scheduler)

    def epoch(accelerator, model, optimizer, loader, scheduler):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            if scheduler is not None:
                scheduler.step()

    parts = prepared()
    for number in range(EPOCHS):
        if stops and number == 1:
            parts[0].save_state(folder / "accelerate")
            parts = prepared()
            parts[0].load_state(folder / "accelerate")
        epoch(*parts)
    return weights(parts[1])


def train_in_skorch(build, folder, stops=False):
    import skorch

    class Net(skorch.NeuralNet):
        def get_loss(self, y_pred, y_true, *args, **kwargs):
            return y_pred["loss"]

        def initialize_optimizer(self, triggered_directly=True):
            self.optimizer_, self.scheduler_ = build(self.module_.parameters())
            return self

        def on_batch_end(self, net, X=None, y=None, training=None, **kwargs):
            if self.scheduler_ is not None:
                self.scheduler_.step()

    def net(epochs):
        one = Net(Perceptron, criterion=nn.Identity, max_epochs=epochs, batch_size=BATCH_SIZE, train_split=None)
        return one.set_params(callbacks=None, verbose=0).initialize()

    samples = Samples()
    data = {"inputs": samples.inputs, "labels": samples.labels}
    whole = net(1 if stops else EPOCHS).partial_fit(data)
    if stops:
        files = {"f_params": folder / "weights.pt", "f_optimizer": folder / "optimizer.pt"}
        whole.save_params(**files)
        whole = net(1)
        whole.load_params(**files)  # no scheduler: the optimizer's state has its draws
        whole.partial_fit(data)
    return weights(whole.module_)


HOSTS = {
    "lightning": train_in_lightning,
    "transformers": train_in_transformers,
    "accelerate": train_in_accelerate,
    "skorch": train_in_skorch,
}
