"""One rank of two trainings under `torch.distributed.run`: Lightning's, then the Trainer's. The argument is a folder.

Each rank writes the readings and the weights of both. Both samplers deal the samples in their order: Lightning's one by
one, Accelerate's a batch at a time.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


def in_lightning(folder):
    import lightning.pytorch as pl
    from hosts import BATCH_SIZE, Samples, weights
    from test_lightning import QUIET, Module
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    from heatbath import CSVLog
    from heatbath.integrations.lightning import ThermometerCallback

    module, callback = Module(), ThermometerCallback(interval=1, callback=CSVLog(folder / "lightning.csv"))
    settings = {**QUIET, "devices": 2, "strategy": "ddp", "use_distributed_sampler": False, "default_root_dir": folder}
    sampler = DistributedSampler(Samples(), num_replicas=2, rank=int(os.environ["RANK"]), shuffle=False)
    loader = DataLoader(Samples(), batch_size=BATCH_SIZE, sampler=sampler)
    pl.Trainer(**settings, max_epochs=1, callbacks=[callback]).fit(module, loader)
    return {"history": callback.history, "weights": weights(module).tolist()}


def in_transformers(folder):
    from hosts import weights
    from test_transformers import train

    from heatbath.integrations.transformers import ThermometerCallback

    callback = ThermometerCallback(interval=1)
    trainer = train(folder / "trainer", callback, num_train_epochs=1, ddp_backend="gloo")
    return {"history": callback.history, "weights": weights(trainer.model).tolist()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("error", category=RuntimeWarning)
    place = Path(sys.argv[1])
    found = {"lightning": in_lightning(place), "transformers": in_transformers(place)}
    (place / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # see tests/ranks.py: gloo's threads may abort a process that ends in order
