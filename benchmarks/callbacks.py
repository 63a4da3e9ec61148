"""What a `ThermometerCallback` costs at its default interval: a small GPT-2 in Lightning and in Transformers' Trainer.

    python benchmarks/callbacks.py [--seconds 20] [--json FILE]

* ``reading``: a step with a reading over a step without one, in the same training; medians, 95 % bootstrap interval.
* ``idle``: a step without a reading over a step of a training without the callback; trainings in turn, likewise.
* ``overall``: ``idle + (reading - 1) / interval``; at most 1.02 is what we hold ourselves to.

A step is timed from its first event to its last, logging included, in CPU time on one thread, so that other programs
matter little. Batches are 16 texts of 64 words; the optimizer is AdamW.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from heatbath.integrations import lightning as in_lightning
from heatbath.integrations import transformers as in_transformers
from heatbath.thermometry.thermometer import Thermometer

WORDS, LENGTH, BATCH_SIZE = 1000, 64, 16
NEVER, ROUNDS = 10**9, 10
Run = Callable[[int | None, int], list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each host, about")
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    versions = {"torch": torch.__version__, **{name: version(name) for name in ("lightning", "transformers")}}
    print(", ".join(f"{name} {number}" for name, number in versions.items()))
    rows = []
    for host, run in {"lightning": run_lightning, "transformers": run_transformers}.items():
        row: dict[str, Any] = {"host": host, **compare(run, arguments.seconds)}
        rows.append(row)
        print(
            f"{host:<13} overall {row['overall']:.4f} [{row['overall_low']:.4f}, {row['overall_high']:.4f}]  "
            f"reading {row['reading']:.2f} [{row['reading_low']:.2f}, {row['reading_high']:.2f}]  "
            f"idle {row['idle']:.4f} [{row['idle_low']:.4f}, {row['idle_high']:.4f}]  step {row['step_ms']:.2f} ms",
            flush=True,
        )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({**versions, "rows": rows}, file, indent=1)


def compare(run: Run, seconds: float) -> dict[str, float]:
    once = float(np.median(run(None, 10)))
    steps = max(10, int(0.4 * seconds / (2 * once)))
    alternating = np.array(run(2, 2 * (steps // 2)))
    readings = alternating[1::2] / alternating[::2]
    length, idles = max(10, int(0.6 * seconds / (2 * ROUNDS * once))), []
    for i in range(ROUNDS):
        order = (None, NEVER) if i % 2 else (NEVER, None)
        took = {interval: float(np.median(run(interval, length))) for interval in order}
        idles.append(took[NEVER] / took[None])
    row = {"step_ms": 1e3 * once, **with_interval("reading", readings), **with_interval("idle", np.array(idles))}
    default = inspect.signature(Thermometer).parameters["interval"].default
    for key in ("", "_low", "_high"):
        row[f"overall{key}"] = row[f"idle{key}"] + (row[f"reading{key}"] - 1.0) / default
    return row


def with_interval(name: str, values: Any) -> dict[str, float]:
    resampled = np.median(np.random.default_rng(1).choice(values, (1000, len(values))), axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return {name: float(np.median(values)), f"{name}_low": float(low), f"{name}_high": float(high)}


def make_model() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 128, "n_layer": 2, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def texts(steps: int) -> torch.Tensor:
    return torch.randint(WORDS, (steps * BATCH_SIZE, LENGTH))


def run_lightning(interval: int | None, steps: int) -> list[float]:
    """Train, and return the seconds of each step."""
    times: list[float] = []

    class Start(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            times.append(-time.process_time())

    class End(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            times[-1] += time.process_time()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch: Any) -> Any:
            return self.model(input_ids=batch[0], labels=batch[0]).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    ours = [] if interval is None else [in_lightning.ThermometerCallback(interval=interval)]
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, callbacks=[Start(), *ours, End()], **quiet)
    trainer.fit(Module(), DataLoader(TensorDataset(texts(steps)), batch_size=BATCH_SIZE))
    return times


def run_transformers(interval: int | None, steps: int) -> list[float]:
    """Train, and return the seconds of each step."""
    times: list[float] = []

    class Start(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.append(-time.process_time())

    class End(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times[-1] += time.process_time()

    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    ours = [] if interval is None else [in_transformers.ThermometerCallback(interval=interval)]
    data: Any = [{"input_ids": text, "labels": text} for text in texts(steps)]
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
        arguments = TrainingArguments(folder, per_device_train_batch_size=BATCH_SIZE, num_train_epochs=1, **settings)
        trainer = Trainer(
            model,
            arguments,
            train_dataset=data,
            optimizers=(optimizer, scheduler),
            callbacks=[Start(), *ours, End()],
        )
        trainer.pop_callback(transformers.PrinterCallback)
        trainer.train()
    return times


if __name__ == "__main__":
    main()
