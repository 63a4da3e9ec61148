"""Models, losses and data as other people write them, for tests of tasks."""

import math

import torch
from torch import nn
from torch.nn import functional

import heatbath as hb


class Block(nn.Module):
    """The basic block of a ResNet, as torchvision has it."""

    def __init__(self, inside, out, stride, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.bn1 = norm(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = norm(out)
        self.downsample = None
        if stride != 1 or inside != out:
            self.downsample = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), norm(out))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, norm=nn.BatchNorm2d, widths=(8, 16), classes=4):
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = norm(widths[0])
        pairs = zip((widths[0], *widths), widths, strict=False)
        self.layers = nn.Sequential(*(Block(a, b, 1 + (k > 0), norm) for k, (a, b) in enumerate(pairs)))
        self.fc = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.layers(functional.relu(self.bn1(self.conv1(x)), inplace=True))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class Encoder(nn.Module):
    """torch's own transformer, with dropout in its attention, on tokens."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class TiedLanguageModel(nn.Module):
    """Next tokens, with functional dropout, a buffer, and the head tied to the embedding."""

    def __init__(self, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.norm = nn.LayerNorm(16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.dropout = dropout
        self.register_buffer("decay", torch.tensor(0.5))

    def forward(self, tokens):
        x = self.embedding(tokens)
        past = torch.cumsum(x, 1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        x = functional.dropout(torch.tanh(self.mix(x + self.decay * past)), self.dropout, self.training)
        return self.head(self.norm(x))


class Frozen(nn.Module):
    """A fixed first layer, dropout of channels, and a named tuple of logits."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 6, 3).requires_grad_(False)
        self.norm = nn.GroupNorm(2, 6)
        self.drop = nn.Dropout2d(0.3)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return Output(self.head(self.drop(self.norm(self.features(x))).relu().mean((2, 3))))


class Output:
    def __init__(self, logits):
        self.logits = logits


def hugging_face():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 11}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False))


def regression():
    return nn.Sequential(nn.Linear(5, 16), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(16, 1))


def resnet():
    return ResNet()


def group_resnet():
    return ResNet(norm=lambda width: nn.GroupNorm(2, width))


def encoder():
    return Encoder()


def language_model():
    return TiedLanguageModel()


def frozen():
    return Frozen()


def perceptron():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16), nn.ReLU(), nn.Linear(16, 4))


def images(count, seed=0):
    """Images of four classes that a model can tell apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    pattern = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(9))
    return pattern[labels] + torch.randn(count, 3, 8, 8, generator=generator), labels


def tokens(count, seed=0):
    """Rows of tokens, each the next but one of the one before, with noise; the label of a row is its first token."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(0, 11, (count, 1), generator=generator)
    return (start + 2 * torch.arange(9)) % 11, (start[:, 0] % 4)


def next_tokens(count, seed=0):
    rows, _ = tokens(count, seed)
    return rows[:, :-1], rows[:, 1:]


def flip(inputs, generator):
    turned = torch.rand(len(inputs), generator=generator, device=inputs.device) < 0.5
    return torch.where(turned[:, None, None, None], inputs.flip(-1), inputs)


def mean_margin(outputs, targets):
    return outputs.gather(1, targets[:, None])[:, 0] - outputs.mean(1)


def own_loss(outputs, targets):
    return functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def line(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator)
    return x, (x @ torch.arange(5.0))[:, None] / math.sqrt(30) + 0.1 * torch.randn(count, 1, generator=generator)


def make_task(name):
    """Return one of the tasks by the name of its model."""
    if name in ("resnet", "group_resnet", "frozen", "perceptron"):
        options = {"metrics": ("accuracy", mean_margin), "augment": flip if name != "frozen" else None}
        return hb.Task(globals()[name], images(90), images(40, 1), **options)
    if name == "encoder":
        return hb.Task(encoder, tokens(90), tokens(40, 1), loss=own_loss, metrics=("accuracy", "top5_accuracy"))
    if name in ("language_model", "hugging_face"):
        return hb.Task(globals()[name], next_tokens(90), next_tokens(40, 1), metrics=("accuracy", "perplexity"))
    return hb.Task(regression, line(90), line(40, 1), loss="mse", metrics=("rmse", "mae"))


NAMES = ("resnet", "group_resnet", "frozen", "perceptron", "encoder", "language_model", "hugging_face", "regression")
