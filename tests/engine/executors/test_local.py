"""Training in this process and in workers, some of which die or lack memory, with a model of the engine."""

import os
import threading

import pytest
import torch

from fake_engine import CONFIGS, WORKER, FakeStack, alone, curves
from heatbath.engine.executors import local
from heatbath.engine.jobs import Ended, Job
from heatbath.engine.options import Options
from heatbath.engine.run import load, run
from heatbath.system import machine


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "CUDNN_STATUS_ALLOC_FAILED",
        "FIND was unable to find an engine to execute this computation",
        "capture failed",
        "other",
    ],
)
def test_a_lack_of_memory_by_any_name(gpu, tmp_path, monkeypatch, text):
    train_epoch = FakeStack.train_epoch

    def crowded(self):
        if len(self.configs) > 3:
            try:
                raise torch.OutOfMemoryError("no room") if text == "capture failed" else KeyError
            except (torch.OutOfMemoryError, KeyError):
                raise RuntimeError(text)  # noqa: B904 - as the end of a capture does
        return train_epoch(self)

    monkeypatch.setattr(FakeStack, "train_epoch", crowded)
    if text == "other":
        with pytest.raises(RuntimeError, match="other"):
            run(CONFIGS, tmp_path, "cuda")
    else:
        run(CONFIGS, tmp_path, "cuda")
        assert gpu.sizes == [6, 3, 3]


def test_a_run_that_does_not_fit_into_the_machine_is_a_plain_error(engine, tmp_path, monkeypatch):
    def crowded(self):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1000000000000 bytes.")

    monkeypatch.setattr(FakeStack, "train_epoch", crowded)
    with pytest.raises(MemoryError, match="a run does not fit into this machine's memory"):
        run(CONFIGS, tmp_path, "cpu")


def test_the_number_of_threads_is_the_networks_and_is_put_back(engine, tmp_path):
    before = torch.get_num_threads()
    run(CONFIGS[:2], tmp_path, "cpu")
    assert engine.threads == {3}
    assert torch.get_num_threads() == before


def test_workers_give_the_same_numbers_even_if_one_dies(engine, tmp_path, monkeypatch):
    expected = alone(CONFIGS)
    monkeypatch.setattr(local, "WORKER", WORKER)
    (tmp_path / "once").touch()
    monkeypatch.setenv("HEATBATH_TEST_ONCE", str(tmp_path / "once"))
    said = []
    progress = lambda p: said.append(p.message or "")  # noqa: E731
    records = run(CONFIGS, tmp_path / "store", "cpu", workers=2, progress=progress)
    assert curves(records) == expected
    assert not (tmp_path / "once").exists()
    assert any("a worker is lost (signal 9" in message for message in said)
    assert engine.trained == [], "all in workers"
    assert os.listdir(tmp_path / "store" / "checkpoints") == []


def test_workers_do_not_import_from_the_current_folder(engine, tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "WORKER", WORKER)
    assert curves(run(CONFIGS, tmp_path / "store", "cpu", workers=2)) == alone(CONFIGS)


def test_when_all_workers_die_the_error_says_what_to_do(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "WORKER", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(OSError, match=r"all worker processes have died \(signal 9, often a lack of memory\)"):
        run(CONFIGS, tmp_path, "cpu", workers=2)
    assert {record.status for record in load(tmp_path)} == {"pending"}


def test_workers_that_died_earlier_do_not_stop_later_work(monkeypatch, tmp_path):
    """A second call for fewer workers than have died still starts one, instead of waiting for nobody."""

    class Answering:
        def __init__(self, settings, environment):
            self.line, self._theirs = local.Pipe()
            threading.Thread(target=self._answer, daemon=True).start()

        def _answer(self):
            while True:
                self._theirs.recv()
                self._theirs.send(Ended())

        def close(self, patience=0.0):
            return 0

    monkeypatch.setattr(local, "_Worker", Answering)
    workers = local.Workers(Options(device="cpu"), tmp_path)
    workers._dead = 3
    jobs = [Job("one", (CONFIGS[0],), (None,)), Job("two", (CONFIGS[1],), (None,))]
    found = [one for one in workers.train(lambda: jobs.pop(0) if jobs else None, 2) if one is not None]
    assert [(job.name, outcome) for job, outcome in found] == [("one", Ended()), ("two", Ended())]


@pytest.fixture
def two_gpus(gpu, monkeypatch):
    """Workers that take themselves for ones of a GPU each."""
    monkeypatch.setattr(machine, "visible_gpus", lambda: ["3", "GPU-abc"])
    monkeypatch.setattr(local, "WORKER", WORKER)
    monkeypatch.setenv("HEATBATH_TEST_GPUS", "yes")
    return gpu


def gpus_of(records):
    return [record.origin["device"] for record in records]


def test_all_gpus_are_used_by_a_process_each(two_gpus, tmp_path):
    said = []
    records = run(CONFIGS, tmp_path, "cuda", progress=lambda p: said.append(p.message))
    assert curves(records) == alone(CONFIGS)
    assert sorted(gpus_of(records)) == ["GPU 3"] * 3 + ["GPU GPU-abc"] * 3
    assert "trains 6 runs of mlp in 2 stacks of up to 3 on 2 GPUs" in said
    assert two_gpus.trained == [], "none in this process"


def test_one_gpu_of_several_is_used_by_this_process(two_gpus, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "choose_device", lambda device: device)
    run(CONFIGS, tmp_path, "cuda:1")
    assert two_gpus.sizes == [6]


def test_a_gpu_whose_worker_dies_is_left_out(two_gpus, tmp_path, monkeypatch):
    (tmp_path / "once").touch()
    monkeypatch.setenv("HEATBATH_TEST_ONCE", str(tmp_path / "once"))
    said = []
    records = run(CONFIGS, tmp_path / "store", "cuda", stack=1, progress=lambda p: said.append(p.message or ""))
    assert curves(records) == alone(CONFIGS)
    assert any("a worker is lost (signal 9" in message for message in said)
