"""A model of the engine that is quick and can be made to fail, in this process and in workers."""

import math
import os
import signal
from pathlib import Path
from typing import ClassVar

import torch

from heatbath.engine import planning, trainer
from heatbath.engine.executors import local
from heatbath.runs.configs import RunConfig, sweep
from heatbath.system import machine
from measured import an_epoch

CONFIGS = sweep(RunConfig(epochs=4), lr=(0.1, 0.3), seed=range(3))
WORKER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import fake_engine
fake_engine.serve({{line}}, {{life}})
"""


class FakeStack:
    """Each replica is one number that walks; a rate of 1000 or more diverges in the third epoch."""

    largest = 10**9
    trained: ClassVar = []  # (run, epoch), in order
    sizes: ClassVar = []
    stop_at = None  # (run, epoch) at which Ctrl-C is pressed
    threads: ClassVar = set()

    def __init__(self, configs, dataset, *, device, states=None, features=None):
        assert len({planning.stack_key(config) for config in configs}) == 1
        if len(configs) > self.largest:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.configs, self.how = configs, ""
        self.precision = "fp32" if device is None else planning.resolve_precision(configs[0], torch.device(device))
        self.x = [torch.zeros((), dtype=torch.float64) if states is None else s["x"] for s in states or configs]
        self.epoch = 0 if states is None else int(states[0]["epoch"])
        self.sizes.append(len(configs))

    def train_epoch(self):
        self.threads.add(torch.get_num_threads())
        epochs = []
        for k, config in enumerate(self.configs):
            if (config.run, self.epoch + 1) == self.stop_at:
                type(self).stop_at = None
                raise KeyboardInterrupt
            self.x[k] = torch.sin(self.x[k] * 3 + config.seed + self.epoch) + config.lr
            loss = math.nan if config.lr >= 1000 and self.epoch == 2 else abs(float(self.x[k]))
            epochs.append(an_epoch(config.lr, loss, 0.5, float(self.x[k]) ** 2, 1 / (1 + self.epoch + config.seed)))
            self.trained.append((config.run, self.epoch + 1))
        self.epoch += 1
        return epochs

    def states(self):
        return [{"x": x.clone(), "epoch": torch.tensor(self.epoch)} for x in self.x]


def use_fake_stacks(monkeypatch):
    """Put `FakeStack` into the place of the engine, with no data and two workers of three threads."""
    monkeypatch.setattr(trainer, "Stack", FakeStack)
    monkeypatch.setattr(trainer, "load_dataset", lambda *_, **__: None)
    for name in ("trained", "sizes"):
        monkeypatch.setattr(FakeStack, name, [])
    monkeypatch.setattr(FakeStack, "threads", set())
    monkeypatch.setattr(planning, "plan_stacks", lambda configs, device, free_bytes=None: 1)
    monkeypatch.setattr(planning, "cpu_workers", lambda model, cores: (2, 3))
    return FakeStack


def pretend_gpu(monkeypatch):
    """Take the path of a GPU, on the CPU, in stacks of up to 100."""
    monkeypatch.setattr(machine, "choose_device", lambda _: "cuda")
    monkeypatch.setattr(machine, "describe_device", lambda _: "a GPU")
    monkeypatch.setattr(machine, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(machine, "free_gpu_memory", lambda _: 130_000_000_000)
    monkeypatch.setattr(trainer, "_memory", lambda _: (12_300_000_000, 130_000_000_000))
    monkeypatch.setattr(planning, "plan_stacks", lambda configs, device, free_bytes=None: 100)


def curves(records):
    return {record.run: record.epochs for record in records}


def alone(configs):
    """What each run gives when it is trained by itself."""
    found = {}
    for config in configs:
        stack = FakeStack([config], None, device=None)
        found[config.run] = tuple(stack.train_epoch()[0] for _ in range(config.epochs))
    FakeStack.trained.clear()
    FakeStack.sizes.clear()
    FakeStack.threads.clear()
    return found


class WorkerStack(FakeStack):
    """Kills its process in the second epoch of a run of seed 2, once: the file is where that is remembered."""

    def train_epoch(self):
        once = Path(os.environ.get("HEATBATH_TEST_ONCE", "/nonexistent"))
        if self.configs[0].seed == 2 and self.epoch == 1 and once.exists():
            once.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_epoch()


def serve(line, life):
    if "HEATBATH_TEST_GPUS" in os.environ:
        gpu = f"GPU {os.environ['CUDA_VISIBLE_DEVICES']}"
        trainer._memory = lambda _: (1, 2)
        machine.describe_origin = lambda _: {"device": gpu}
    trainer.Stack, trainer.load_dataset = WorkerStack, lambda *_, **__: None
    local.serve(line, life)
