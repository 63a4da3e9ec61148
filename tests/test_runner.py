"""The runner with a model of the engine that is quick and can be made to fail; the real one is in test_kills."""

import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from heatbath import campaigns, executors, machines, resources, runner
from heatbath.checkpoints import Shelf
from heatbath.configs import RunConfig, sweep
from heatbath.owners import Owner
from heatbath.records import Epoch
from heatbath.store import Store, Update

CONFIGS = sweep(RunConfig(epochs=4), lr=(0.1, 0.3), seed=range(3))


class FakeStack:
    """Each replica is one number that walks; a rate of 1000 or more diverges in the third epoch."""

    largest = 10**9
    trained: ClassVar = []  # (run, epoch), in order
    sizes: ClassVar = []
    stop_at = None  # (run, epoch) at which Ctrl-C is pressed
    threads: ClassVar = set()

    def __init__(self, configs, dataset, *, device, states=None, data_dir=None):
        assert len({resources.stack_key(config) for config in configs}) == 1
        if len(configs) > self.largest:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.configs, self.precision = configs, "fp32"
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
            loss = math.nan if config.lr >= 1000 and self.epoch == 2 else float(self.x[k])
            epochs.append(Epoch(config.lr, loss, 0.5, float(self.x[k]) ** 2, 1 / (1 + self.epoch + config.seed)))
            self.trained.append((config.run, self.epoch + 1))
        self.epoch += 1
        return epochs

    def states(self):
        return [{"x": x.clone(), "epoch": torch.tensor(self.epoch)} for x in self.x]


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(executors, "Stack", FakeStack)
    monkeypatch.setattr(executors, "load_dataset", lambda *_, **__: None)
    for name in ("trained", "sizes"):
        monkeypatch.setattr(FakeStack, name, [])
    monkeypatch.setattr(FakeStack, "threads", set())
    monkeypatch.setattr(resources, "plan_stacks", lambda configs, device, free_bytes=None: 1, raising=False)
    monkeypatch.setattr(resources, "cpu_workers", lambda model, cores: (2, 3), raising=False)
    return FakeStack


@pytest.fixture
def gpu(engine, monkeypatch):
    """The path of a GPU, on the CPU."""
    monkeypatch.setattr(runner, "choose_device", lambda _: "cuda")
    monkeypatch.setattr(machines, "describe_device", lambda _: "a GPU")
    monkeypatch.setattr(executors, "_memory", lambda _: (12_300_000_000, 130_000_000_000))
    monkeypatch.setattr(resources, "plan_stacks", lambda configs, device, free_bytes=None: 100, raising=False)
    return engine


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


def test_records_come_in_the_order_of_the_configs(engine, tmp_path):
    expected = alone(CONFIGS)
    asked = [CONFIGS[3], CONFIGS[0], CONFIGS[3], CONFIGS[5]]
    records = runner.run(asked, tmp_path, "cpu")
    assert [record.config for record in records] == asked
    assert all(record.epochs == expected[record.run] for record in records)
    assert all(record.status == "finished" and record.precision == "fp32" for record in records)
    assert len(engine.trained) == 3 * 4, "a repeated one is trained once"
    assert {record.run for record in runner.load(tmp_path)} == {config.run for config in asked}
    assert records[0].versions["torch"] == torch.__version__


def test_what_is_finished_is_not_repeated(engine, tmp_path):
    first = runner.run(CONFIGS[:4], tmp_path, "cpu")
    engine.trained.clear()
    assert runner.run(CONFIGS[:4], tmp_path, "cpu") == first
    assert engine.trained == []
    runner.run(CONFIGS, tmp_path, "cpu")
    assert {run for run, _ in engine.trained} == {config.run for config in CONFIGS[4:]}
    assert os.listdir(tmp_path / "checkpoints") == os.listdir(tmp_path / "owners") == []


def test_without_a_store_nothing_is_left(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    records = runner.run(CONFIGS[:2], device="cpu")
    assert curves(records) == alone(CONFIGS[:2])
    assert list(tmp_path.iterdir()) == []
    assert runner.run([], device="cpu") == []


def test_finished_runs_need_no_torch(engine, tmp_path):
    runner.run(CONFIGS[:2], tmp_path, "cpu")
    program = f"""
import sys
from heatbath.configs import RunConfig
from heatbath.runner import load, run
configs = [record.config for record in load({str(tmp_path)!r})]
assert [record.status for record in run(configs, {str(tmp_path)!r})] == ["finished"] * 2
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("stack", [1, 2, 4, None])
def test_numbers_do_not_depend_on_the_stack(gpu, tmp_path, stack):
    assert curves(runner.run(CONFIGS, tmp_path, "cuda", stack=stack)) == alone(CONFIGS)


def test_runs_are_split_evenly_into_stacks_of_one_kind(gpu, tmp_path):
    other = sweep(RunConfig(epochs=4, batch_size=100), seed=range(3))
    runner.run([*CONFIGS, *other], tmp_path, "cuda", stack=4)
    assert gpu.sizes == [3, 3, 3]


@pytest.mark.parametrize("stop", [(0, 1), (0, 3), (4, 2), (5, 4)])
@pytest.mark.parametrize("stacks", [(1, 1), (None, 1), (1, None), (None, 4), (4, None)], ids=str)
def test_a_stopped_run_goes_on_bit_for_bit_in_another_stack(gpu, tmp_path, stop, stacks):
    expected = alone(CONFIGS)
    gpu.stop_at = (CONFIGS[stop[0]].run, stop[1])
    with pytest.raises(
        KeyboardInterrupt, match=r"stopped: \d of 6 runs are done; the same again .* goes on from there"
    ):
        runner.run(CONFIGS, tmp_path, "cuda", stack=stacks[0])
    before = runner.load(tmp_path)
    assert {record.status for record in before} <= {"pending", "finished"}
    trained = set(gpu.trained)
    gpu.trained.clear()
    after = runner.run(CONFIGS, tmp_path, "cuda", stack=stacks[1])
    assert curves(after) == expected
    again = trained & set(gpu.trained)
    assert again <= {(config.run, stop[1]) for config in CONFIGS}, "nothing but the epoch that was stopped"
    assert os.listdir(tmp_path / "checkpoints") == []


def test_runs_that_stand_at_different_epochs_are_stacked_apart(gpu, tmp_path):
    for k, epoch in ((0, 2), (1, 2), (2, 4)):
        gpu.stop_at = (CONFIGS[k].run, epoch)
        with pytest.raises(KeyboardInterrupt):
            runner.run([CONFIGS[k]], tmp_path, "cuda")
    gpu.sizes.clear()
    assert curves(runner.run(CONFIGS, tmp_path, "cuda")) == alone(CONFIGS)
    runner.run(CONFIGS, tmp_path / "again", "cuda")


def test_checkpoints_now_and_then_lose_no_numbers(gpu, tmp_path):
    expected = alone(CONFIGS)
    gpu.stop_at = (CONFIGS[2].run, 3)
    with pytest.raises(KeyboardInterrupt):
        runner.run(CONFIGS, tmp_path, "cuda", checkpoint_seconds=1000.0)
    assert {len(record.epochs) for record in runner.load(tmp_path)} == {0}, "recorded with a checkpoint only"
    assert curves(runner.run(CONFIGS, tmp_path, "cuda", checkpoint_seconds=1000.0)) == expected


def test_a_diverged_run_leaves_its_neighbours_alone(gpu, tmp_path):
    hot = CONFIGS[0].with_(lr=1000.0)
    asked = [CONFIGS[0], hot, *CONFIGS[1:]]
    for place, options in (("a", {}), ("b", {"checkpoint_seconds": 1000.0})):
        records = runner.run(asked, tmp_path / place, "cuda", **options)
        assert curves(records[:1] + records[2:]) == alone(CONFIGS)
        assert records[1].status == "diverged"
        assert [epoch.train_loss for epoch in records[1].epochs] == [e.train_loss for e in alone([hot])[hot.run][:2]]
    gpu.trained.clear()
    assert runner.run(asked, tmp_path / "a", "cuda")[1].status == "diverged"
    assert gpu.trained == []


def test_a_stack_in_which_all_diverge_ends(gpu, tmp_path):
    hot = sweep(RunConfig(epochs=40, lr=2000.0), seed=range(3))
    records = runner.run(hot, tmp_path, "cuda")
    assert [record.status for record in records] == ["diverged"] * 3
    assert len(gpu.trained) == 3 * 3
    assert os.listdir(tmp_path / "checkpoints") == []


def test_a_neighbour_that_diverged_is_not_resumed(gpu, tmp_path):
    hot = CONFIGS[0].with_(lr=1000.0)
    gpu.stop_at = (CONFIGS[2].run, 4)
    with pytest.raises(KeyboardInterrupt):
        runner.run([hot, *CONFIGS], tmp_path, "cuda")
    gpu.sizes.clear()
    records = runner.run([hot, *CONFIGS], tmp_path, "cuda")
    assert gpu.sizes == [6]
    assert records[0].status == "diverged"
    assert curves(records[1:]) == alone(CONFIGS)


def test_out_of_memory_halves_the_stack(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "largest", 2)
    said = []
    records = runner.run(CONFIGS, tmp_path, "cuda", progress=lambda p: said.append(p.message))
    assert gpu.sizes == [2, 2, 2]
    assert [message for message in said if message and "out of memory" in message] == [
        "out of memory: stacks of 3 from here",
        "out of memory: stacks of 2 from here",
    ]
    assert curves(records) == alone(CONFIGS)
    assert "trains 6 runs of mlp in one stack" in said
    assert "2 runs in a stack: 12.3 GB of 130 GB" in said


def test_out_of_memory_in_mid_training_goes_on_from_the_checkpoint(gpu, tmp_path, monkeypatch):
    train_epoch = FakeStack.train_epoch

    def crowded(self):
        if len(self.configs) > 3 and self.epoch == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train_epoch(self)

    monkeypatch.setattr(FakeStack, "train_epoch", crowded)
    records = runner.run(CONFIGS, tmp_path, "cuda")
    assert len(gpu.trained) == len(set(gpu.trained)) == 6 * 4
    monkeypatch.undo()
    assert curves(records) == alone(CONFIGS)


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "CUDNN_STATUS_ALLOC_FAILED", "capture failed", "other"])
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
            runner.run(CONFIGS, tmp_path, "cuda")
    else:
        runner.run(CONFIGS, tmp_path, "cuda")
        assert gpu.sizes == [6, 3, 3]


def test_a_run_that_does_not_fit_into_the_machine_is_a_plain_error(engine, tmp_path, monkeypatch):
    def crowded(self):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1000000000000 bytes.")

    monkeypatch.setattr(FakeStack, "train_epoch", crowded)
    with pytest.raises(MemoryError, match="a run does not fit into this machine's memory"):
        runner.run(CONFIGS, tmp_path, "cpu")


def test_a_single_run_that_does_not_fit_is_a_plain_error(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "largest", 0)
    with pytest.raises(MemoryError, match="a single run does not fit into the GPU's memory"):
        runner.run(CONFIGS, tmp_path, "cuda")
    assert {record.status for record in runner.load(tmp_path)} == {"pending"}


@pytest.mark.parametrize("damaged", ["last", "both"])
def test_damaged_checkpoints_are_told_and_not_used(gpu, tmp_path, damaged):
    expected = alone(CONFIGS)
    gpu.stop_at = (CONFIGS[3].run, 4)
    with pytest.raises(KeyboardInterrupt):
        runner.run(CONFIGS, tmp_path, "cuda")
    files = sorted((tmp_path / "checkpoints").iterdir())
    assert len(files) == 2
    last = next(iter(Shelf(tmp_path / "checkpoints").find([CONFIGS[0].run]).values())).file
    for file in files if damaged == "both" else [last]:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        file.write_bytes(content)
    gpu.trained.clear()
    said = []
    records = runner.run(CONFIGS, tmp_path, "cuda", progress=lambda p: said.append(p.message or ""))
    assert curves(records) == expected
    assert min(epoch for _, epoch in gpu.trained) == (1 if damaged == "both" else 3)
    assert any(f"{last.name} is damaged and not used" in message for message in said)
    where = "start over" if damaged == "both" else "go on after epoch 2"
    assert any(f"6 runs without a checkpoint of the last epoch {where}" in message for message in said)
    assert os.listdir(tmp_path / "checkpoints") == [], "and removed in the end"


def test_a_checkpoint_that_is_none_is_put_out_of_the_way(gpu, tmp_path):
    """Its checksum is right, its content is not ours."""
    gpu.stop_at = (CONFIGS[3].run, 2)
    with pytest.raises(KeyboardInterrupt):
        runner.run(CONFIGS, tmp_path, "cuda")
    (file,) = (tmp_path / "checkpoints").iterdir()
    header = json.dumps({"epoch": 3, "runs": [config.run for config in CONFIGS]}).encode()
    rest = struct.pack("<I", len(header)) + header + b"anything"
    file.with_name("b.1.0.checkpoint").write_bytes(b"HEATBAT1" + sha256(rest).digest() + rest)
    said = []
    records = runner.run(CONFIGS, tmp_path, "cuda", progress=lambda p: said.append(p.message))
    assert curves(records) == alone(CONFIGS)
    assert "a checkpoint cannot be read and is not used" in said
    assert os.listdir(tmp_path / "checkpoints") == []


def test_a_checkpoint_ahead_of_the_store_loses_nothing(gpu, tmp_path, monkeypatch):
    """The process ends between the checkpoint and the transaction."""
    save, calls = Store.save, []

    def failing(self, owner, updates):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("pulled the plug")
        save(self, owner, updates)

    monkeypatch.setattr(Store, "save", failing)
    with pytest.raises(RuntimeError, match="pulled the plug"):
        runner.run(CONFIGS, tmp_path, "cuda")
    assert {len(record.epochs) for record in runner.load(tmp_path)} == {1}
    gpu.trained.clear()
    records = runner.run(CONFIGS, tmp_path, "cuda")
    assert min(epoch for _, epoch in gpu.trained) == 3
    assert curves(records) == alone(CONFIGS)


def test_a_store_that_has_the_curves_but_no_checkpoint_starts_over(engine, tmp_path):
    with Store(tmp_path) as store:
        store.add(CONFIGS[:1])
        owner = Owner(store.owners)
        store.claim([CONFIGS[0].run], owner)
        store.save(owner, [Update(CONFIGS[0].run, 0, [Epoch(1.0, 2.0, 3.0, 4.0, 5.0)] * 2)])
        owner.close()
    said = []
    records = runner.run(CONFIGS[:1], tmp_path, "cpu", progress=lambda p: said.append(p.message or ""))
    assert any("1 run without a checkpoint of the last epoch start over" in message for message in said)
    assert curves(records) == alone(CONFIGS[:1])


def test_runs_of_another_process_are_waited_for(engine, tmp_path, monkeypatch):
    """They are neither trained twice nor given up."""
    monkeypatch.setattr(campaigns, "_POLL", 0.01)
    busy = CONFIGS[1]
    expected = alone(CONFIGS[:3])
    waiting, said = threading.Event(), []

    def progress(p):
        said.append(p.message or "")
        if "another process is training 1 run; waiting" in said[-1]:
            waiting.set()

    def other():
        with Store(tmp_path) as theirs:
            waiting.wait(60)
            theirs.save(owner, [Update(busy.run, 0, expected[busy.run], "finished")])

    with Store(tmp_path) as store:
        store.add([busy])
        owner = Owner(store.owners)
        store.claim([busy.run], owner)
    thread = threading.Thread(target=other)
    thread.start()
    records = runner.run(CONFIGS[:3], tmp_path, "cpu", progress=progress)
    thread.join()
    owner.close()
    assert curves(records) == expected
    assert busy.run not in {run for run, _ in engine.trained}


def test_progress_counts_to_the_end(gpu, tmp_path):
    hot = CONFIGS[0].with_(lr=1000.0)
    gpu.stop_at = (CONFIGS[3].run, 3)
    with pytest.raises(KeyboardInterrupt):
        runner.run(CONFIGS, tmp_path, "cuda")
    seen = []
    runner.run([*CONFIGS, hot], tmp_path, "cuda", progress=seen.append)
    first, last = seen[0], seen[-1]
    assert (first.runs_total, first.runs_done, first.epochs_total, first.epochs_done) == (7, 0, 6 * 2 + 4, 0)
    assert (last.runs_total, last.runs_done) == (7, 7)
    assert last.epochs_done == last.epochs_total == 6 * 2 + 2
    assert [p.epochs_done for p in seen] == sorted(p.epochs_done for p in seen)
    accuracies = {p.test_accuracy for p in seen if p.epochs_done and p.message is None}
    assert all(0 < accuracy <= 1 for accuracy in accuracies)
    assert first.test_accuracy is None


def test_the_number_of_threads_is_the_networks_and_is_put_back(engine, tmp_path):
    before = torch.get_num_threads()
    runner.run(CONFIGS[:2], tmp_path, "cpu")
    assert engine.threads == {3}
    assert torch.get_num_threads() == before


def test_a_full_disk_is_one_plain_line(gpu, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(executors.Saver, "save", full)
    with pytest.raises(OSError, match=r"^no space left in .*; what was finished is safe; free space and run again$"):
        runner.run(CONFIGS, tmp_path, "cuda")
    monkeypatch.undo()
    assert {record.status for record in runner.load(tmp_path)} == {"pending"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"configs": ["mlp"]}, TypeError, "configs must be RunConfigs, got 'mlp'"),
        ({"device": "gpu"}, ValueError, "device must be auto, cpu"),
        ({"workers": 0}, ValueError, "workers must be a positive integer"),
        ({"stack": True}, ValueError, "stack must be a positive integer"),
        ({"checkpoint_seconds": -1.0}, ValueError, "checkpoint_seconds must not be negative"),
        ({"checkpoint_seconds": math.nan}, ValueError, "checkpoint_seconds must not be negative"),
        ({"checkpoint_seconds": "1"}, TypeError, "checkpoint_seconds must be a number"),
    ],
    ids=["configs", "device", "workers", "stack", "negative", "nan", "text"],
)
def test_wrong_arguments_write_nothing(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        runner.run(**{"configs": CONFIGS, "store": tmp_path / "store", **options})
    assert not (tmp_path / "store").exists()


WORKER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_runner
test_runner.serve({{line}}, {{life}})
"""


class WorkerStack(FakeStack):
    """Kills its process in the second epoch of a run of seed 2, once: the file is where that is remembered."""

    def train_epoch(self):
        once = Path(os.environ.get("HEATBATH_TEST_ONCE", "/nonexistent"))
        if self.configs[0].seed == 2 and self.epoch == 1 and once.exists():
            once.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_epoch()


def serve(line, life):
    executors.Stack, executors.load_dataset = WorkerStack, lambda *_, **__: None
    executors.serve(line, life)


def test_workers_give_the_same_numbers_even_if_one_dies(engine, tmp_path, monkeypatch):
    expected = alone(CONFIGS)
    monkeypatch.setattr(executors, "WORKER", WORKER)
    (tmp_path / "once").touch()
    monkeypatch.setenv("HEATBATH_TEST_ONCE", str(tmp_path / "once"))
    said = []
    progress = lambda p: said.append(p.message or "")  # noqa: E731
    records = runner.run(CONFIGS, tmp_path / "store", "cpu", workers=2, progress=progress)
    assert curves(records) == expected
    assert not (tmp_path / "once").exists()
    assert any("a worker process has died" in message for message in said)
    assert engine.trained == [], "all in workers"
    assert os.listdir(tmp_path / "store" / "checkpoints") == []


def test_when_all_workers_die_the_error_says_what_to_do(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "WORKER", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(OSError, match=r"all worker processes have died \(signal 9, often a lack of memory\)"):
        runner.run(CONFIGS, tmp_path, "cpu", workers=2)
    assert {record.status for record in runner.load(tmp_path)} == {"pending"}


@pytest.mark.parametrize(("epochs", "side_by_side"), [(10, False), (100_000, True)])
def test_workers_are_started_when_there_is_enough_to_do(engine, tmp_path, monkeypatch, epochs, side_by_side):
    class StartedError(Exception):
        pass

    def start(self, next_task, count):
        raise StartedError(count)
        yield

    monkeypatch.setattr(executors.Workers, "train", start)
    monkeypatch.setattr(FakeStack, "train_epoch", lambda self: (_ for _ in ()).throw(InterruptedError))
    configs = sweep(RunConfig(epochs=epochs), seed=range(3))
    with pytest.raises(StartedError if side_by_side else InterruptedError):
        runner.run(configs, tmp_path, "cpu")


def test_workers_that_died_earlier_do_not_stop_later_work(monkeypatch, tmp_path):
    """A second call for fewer workers than have died still starts one, instead of waiting for nobody."""

    class Answering:
        def __init__(self, settings):
            self.line, self._theirs = executors.Pipe()
            threading.Thread(target=self._answer, daemon=True).start()

        def _answer(self):
            while True:
                self._theirs.recv()
                self._theirs.send("done")

        def close(self, patience=0.0):
            return 0

    monkeypatch.setattr(executors, "_Worker", Answering)
    workers = executors.Workers(executors.Settings("cpu", None, tmp_path, 0.0))
    workers._dead = 3
    tasks = [executors.Task("one", (CONFIGS[0],), (None,)), executors.Task("two", (CONFIGS[1],), (None,))]
    found = list(workers.train(lambda: tasks.pop(0) if tasks else None, 2))
    assert [(task.name, outcome) for task, outcome in found] == [("one", "done"), ("two", "done")]


def test_a_single_config_is_no_list_of_them():
    with pytest.raises(TypeError, match="a list of RunConfigs, even of one"):
        runner.run(CONFIGS[0])
