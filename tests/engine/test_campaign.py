"""How runs are stacked, resumed, halved and waited for, with a model of the engine that can be made to fail."""

import gc
import json
import os
import struct
import threading
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from fake_engine import CONFIGS, FakeStack, alone, curves
from heatbath.engine import campaign
from heatbath.engine.executors import local
from heatbath.engine.jobs import Ended
from heatbath.engine.options import Options
from heatbath.engine.run import complete, load, run
from heatbath.runs.checkpoints import Saver, Shelf
from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.store import Store, Update
from heatbath.system.locks import Owner
from measured import an_epoch


@pytest.mark.parametrize("stack", [1, 2, 4, None])
def test_numbers_do_not_depend_on_the_stack(gpu, tmp_path, stack):
    assert curves(run(CONFIGS, tmp_path, "cuda", stack=stack)) == alone(CONFIGS)


def test_runs_are_split_evenly_into_stacks_of_one_kind(gpu, tmp_path):
    other = sweep(RunConfig(epochs=4, batch_size=100), seed=range(3))
    run([*CONFIGS, *other], tmp_path, "cuda", stack=4)
    assert gpu.sizes == [3, 3, 3]


def test_runs_that_stand_at_different_epochs_are_stacked_apart(gpu, tmp_path):
    for k, epoch in ((0, 2), (1, 2), (2, 4)):
        gpu.stop_at = (CONFIGS[k].run, epoch)
        with pytest.raises(KeyboardInterrupt):
            run([CONFIGS[k]], tmp_path, "cuda")
    gpu.sizes.clear()
    assert curves(run(CONFIGS, tmp_path, "cuda")) == alone(CONFIGS)
    run(CONFIGS, tmp_path / "again", "cuda")


def test_resumed_together_each_run_still_names_its_own_checkpoint(gpu, tmp_path):
    pair, files = CONFIGS[:2], []
    for config in pair:
        gpu.stop_at = (config.run, 2)
        with pytest.raises(KeyboardInterrupt):
            run([config], tmp_path, "cuda")
    shelf = {run: found.file.name for run, found in Shelf(tmp_path / "checkpoints").find(c.run for c in pair).items()}

    def look(_):
        with Store(tmp_path, read_only=True) as store:
            files.append({config.run: store.traces(config.run).checkpoint for config in pair})

    gpu.sizes.clear()
    run(pair, tmp_path, "cuda", progress=look)
    assert gpu.sizes == [2]
    assert len(set(shelf.values())) == 2
    assert shelf in files
    assert all(found == shelf or not {*found.values()} & {*shelf.values()} for found in files)


def test_checkpoints_now_and_then_lose_no_numbers(gpu, tmp_path):
    expected = alone(CONFIGS)
    gpu.stop_at = (CONFIGS[2].run, 3)
    with pytest.raises(KeyboardInterrupt):
        run(CONFIGS, tmp_path, "cuda", checkpoint_seconds=1000.0)
    assert {len(record.epochs) for record in load(tmp_path)} == {0}, "recorded with a checkpoint only"
    assert curves(run(CONFIGS, tmp_path, "cuda", checkpoint_seconds=1000.0)) == expected


def test_a_diverged_run_leaves_its_neighbours_alone(gpu, tmp_path):
    hot = CONFIGS[0].with_(lr=1000.0)
    asked = [CONFIGS[0], hot, *CONFIGS[1:]]
    for place, options in (("a", {}), ("b", {"checkpoint_seconds": 1000.0})):
        records = run(asked, tmp_path / place, "cuda", **options)
        assert curves(records[:1] + records[2:]) == alone(CONFIGS)
        assert records[1].status == "diverged"
        assert [epoch.train_loss for epoch in records[1].epochs] == [e.train_loss for e in alone([hot])[hot.run][:2]]
    gpu.trained.clear()
    assert run(asked, tmp_path / "a", "cuda")[1].status == "diverged"
    assert gpu.trained == []


def test_a_stack_in_which_all_diverge_ends(gpu, tmp_path):
    hot = sweep(RunConfig(epochs=40, lr=2000.0), seed=range(3))
    records = run(hot, tmp_path, "cuda")
    assert [record.status for record in records] == ["diverged"] * 3
    assert len(gpu.trained) == 3 * 3
    assert os.listdir(tmp_path / "checkpoints") == []


def test_a_neighbour_that_diverged_is_not_resumed(gpu, tmp_path):
    hot = CONFIGS[0].with_(lr=1000.0)
    gpu.stop_at = (CONFIGS[2].run, 4)
    with pytest.raises(KeyboardInterrupt):
        run([hot, *CONFIGS], tmp_path, "cuda")
    gpu.sizes.clear()
    records = run([hot, *CONFIGS], tmp_path, "cuda")
    assert gpu.sizes == [6]
    assert records[0].status == "diverged"
    assert curves(records[1:]) == alone(CONFIGS)


def test_out_of_memory_halves_the_stack(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "largest", 2)
    said = []
    records = run(CONFIGS, tmp_path, "cuda", progress=lambda p: said.append(p.message))
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
    records = run(CONFIGS, tmp_path, "cuda")
    assert len(gpu.trained) == len(set(gpu.trained)) == 6 * 4
    monkeypatch.undo()
    assert curves(records) == alone(CONFIGS)


def test_a_single_run_that_does_not_fit_is_a_plain_error(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "largest", 0)
    with pytest.raises(MemoryError, match="a single run does not fit into the GPU's memory"):
        run(CONFIGS, tmp_path, "cuda")
    assert {record.status for record in load(tmp_path)} == {"pending"}


@pytest.mark.parametrize("damaged", ["last", "both"])
def test_damaged_checkpoints_are_told_and_not_used(gpu, tmp_path, damaged):
    expected = alone(CONFIGS)
    gpu.stop_at = (CONFIGS[3].run, 4)
    with pytest.raises(KeyboardInterrupt):
        run(CONFIGS, tmp_path, "cuda")
    files = sorted((tmp_path / "checkpoints").iterdir())
    assert len(files) == 2
    last = next(iter(Shelf(tmp_path / "checkpoints").find([CONFIGS[0].run]).values())).file
    for file in files if damaged == "both" else [last]:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        file.write_bytes(content)
    gpu.trained.clear()
    said = []
    records = run(CONFIGS, tmp_path, "cuda", progress=lambda p: said.append(p.message or ""))
    assert curves(records) == expected
    assert min(epoch for _, epoch in gpu.trained) == (1 if damaged == "both" else 3)
    assert any(f"{last.name} is damaged and not used" in message for message in said)
    where = "start over" if damaged == "both" else "go on after epoch 2"
    assert any(f"6 runs without a checkpoint of the last epoch {where}" in message for message in said)
    assert os.listdir(tmp_path / "checkpoints") == [], "and removed in the end"


@pytest.mark.parametrize("renamed", [True, False])
def test_a_checkpoint_that_is_none_is_put_out_of_the_way(gpu, tmp_path, monkeypatch, renamed):
    """Its checksum is right, its content is not ours; one that cannot be renamed is not tried again and again."""
    if not renamed:
        monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    gpu.stop_at = (CONFIGS[3].run, 2)
    with pytest.raises(KeyboardInterrupt):
        run(CONFIGS, tmp_path, "cuda")
    (file,) = (tmp_path / "checkpoints").iterdir()
    header = json.dumps({"epoch": 3, "runs": [config.run for config in CONFIGS]}).encode()
    rest = struct.pack("<I", len(header)) + header + b"anything"
    file.with_name("99-fedcba9876543210.1.0.checkpoint").write_bytes(b"HEATBAT1" + sha256(rest).digest() + rest)
    said = []
    records = run(CONFIGS, tmp_path, "cuda", progress=lambda p: said.append(p.message))
    assert curves(records) == alone(CONFIGS)
    assert "a checkpoint cannot be read and is not used" in said
    assert os.listdir(tmp_path / "checkpoints") == []


def test_interruptions_do_not_fill_the_disk(gpu, tmp_path):
    """What a later checkpoint has made superfluous goes when a run is claimed again, and what was half written."""
    base = CONFIGS[0].with_(epochs=12)
    configs = [base.with_(seed=seed) for seed in range(3)]
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("best.checkpoint", "d.partial", "x.refused"):
        (folder / name).write_text("not ours")
    with pytest.raises(OSError, match=r"best\.checkpoint is not heatbath's"):
        run(configs, tmp_path, "cuda")
    for name in os.listdir(folder):
        (folder / name).rename(tmp_path / name)
    for epoch in range(2, 12):
        gpu.stop_at = (configs[1].run, epoch)
        with pytest.raises(KeyboardInterrupt):
            run(configs, tmp_path, "cuda")
        (folder / f"99-0123456789abcdef.{epoch}.0.partial").touch()
        for name in ("best.checkpoint", "d.partial", "x.refused"):  # they came later
            (folder / name).write_text("not ours")
        assert len(list(folder.glob("[0-9]*.checkpoint"))) <= 3
        assert len(list(folder.glob("[0-9]*.partial"))) == 1
    assert curves(run(configs, tmp_path, "cuda")) == alone(configs)
    assert sorted(os.listdir(folder)) == ["best.checkpoint", "d.partial", "x.refused"]


def test_a_checkpoint_ahead_of_the_store_loses_nothing(gpu, tmp_path, monkeypatch):
    """The process ends between the checkpoint and the transaction."""
    save, calls = Store.save, []

    def failing(self, owner, updates):
        calls.append(1)
        if len(calls) in (2, 3):  # the campaign tries once more
            raise RuntimeError("pulled the plug")
        save(self, owner, updates)

    monkeypatch.setattr(Store, "save", failing)
    with pytest.raises(RuntimeError, match="pulled the plug"):
        run(CONFIGS, tmp_path, "cuda")
    assert {len(record.epochs) for record in load(tmp_path)} == {1}
    gpu.trained.clear()
    records = run(CONFIGS, tmp_path, "cuda")
    assert min(epoch for _, epoch in gpu.trained) == 3
    assert curves(records) == alone(CONFIGS)


def test_a_store_that_has_the_curves_but_no_checkpoint_starts_over(engine, tmp_path):
    with Store(tmp_path) as store:
        store.add(CONFIGS[:1])
        owner = Owner(store.owners)
        store.claim([CONFIGS[0].run], owner)
        store.save(owner, [Update(CONFIGS[0].run, 0, [an_epoch(1.0, 2.0, 0.3, 4.0, 0.5)] * 2)])
        owner.close()
    said = []
    records = run(CONFIGS[:1], tmp_path, "cpu", progress=lambda p: said.append(p.message or ""))
    assert any("1 run without a checkpoint of the last epoch start over" in message for message in said)
    assert curves(records) == alone(CONFIGS[:1])


def test_runs_of_another_process_are_waited_for(engine, tmp_path, monkeypatch):
    """They are neither trained twice nor given up."""
    monkeypatch.setattr(campaign, "_POLL", 0.01)
    busy = CONFIGS[1]
    expected = alone(CONFIGS[:3])
    waiting, seen = threading.Event(), []

    def progress(p):
        seen.append(p)
        if "another process is training 1 run; waiting" in (p.message or ""):
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
    records = run(CONFIGS[:3], tmp_path, "cpu", progress=progress)
    thread.join()
    owner.close()
    assert curves(records) == expected
    assert busy.run not in {run for run, _ in engine.trained}
    assert (seen[-1].runs_done, seen[-1].runs_total) == (3, 3)


def test_progress_counts_to_the_end(gpu, tmp_path):
    hot = CONFIGS[0].with_(lr=1000.0)
    gpu.stop_at = (CONFIGS[3].run, 3)
    with pytest.raises(KeyboardInterrupt):
        run(CONFIGS, tmp_path, "cuda")
    seen = []
    run([*CONFIGS, hot], tmp_path, "cuda", progress=seen.append)
    first, last = seen[0], seen[-1]
    assert (first.runs_total, first.runs_done, first.epochs_total, first.epochs_done) == (7, 0, 6 * 2 + 4, 0)
    assert (last.runs_total, last.runs_done) == (7, 7)
    assert last.epochs_done == last.epochs_total == 6 * 2 + 2
    assert [p.epochs_done for p in seen] == sorted(p.epochs_done for p in seen)
    accuracies = {p.test_accuracy for p in seen if p.epochs_done and p.message is None}
    assert all(0 < accuracy <= 1 for accuracy in accuracies)
    assert first.test_accuracy is None


@pytest.mark.parametrize(("epochs", "side_by_side"), [(10, False), (100_000, True)])
def test_workers_are_started_when_there_is_enough_to_do(engine, tmp_path, monkeypatch, epochs, side_by_side):
    class StartedError(Exception):
        pass

    def start(self, next_task, count):
        raise StartedError(count)
        yield

    monkeypatch.setattr(local.Workers, "train", start)
    monkeypatch.setattr(FakeStack, "train_epoch", lambda self: (_ for _ in ()).throw(InterruptedError))
    configs = sweep(RunConfig(epochs=epochs), seed=range(3))
    with pytest.raises(StartedError if side_by_side else InterruptedError):
        run(configs, tmp_path, "cpu")


def test_what_workers_were_writing_goes_with_them(engine, tmp_path, monkeypatch):
    """They are killed, and cannot tidy up; what another process is writing stays."""
    folder = tmp_path / "checkpoints"

    def interrupted(self, next_task, count):
        for name in (next_task().name, "another-owner.0"):
            Saver(folder, name)
            (folder / f"{name}.0.partial").touch()
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(local.Workers, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(CONFIGS[:2], tmp_path, "cpu", workers=2, stack=1)
    assert os.listdir(folder) == ["another-owner.0.0.partial"]


class Unlucky(local.Local):
    """Loses eight workers; the fifth of them after an epoch, if it is let do one."""

    works = True

    def train(self, next_job, places):
        for k in range(8):
            job = next_job()
            if k == 4 and self.works:
                outcomes = self._trainer.work(job)
                yield job, next(outcomes)
                outcomes.close()
            yield job, Ended("lost", "the node is gone")
        yield from super().train(next_job, places)


def test_lost_workers_do_not_end_a_run_that_goes_on(engine, tmp_path):
    assert curves(complete(CONFIGS[:1], tmp_path, Options(device="cpu"), executor=Unlucky)) == alone(CONFIGS[:1])


def test_a_run_that_loses_one_worker_after_another_ends_the_call(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(Unlucky, "works", False)
    with pytest.raises(
        OSError, match=r"^run \S+ lost 5 workers before its next epoch, the last one so: the node is gone$"
    ):
        complete(CONFIGS[:1], tmp_path, Options(device="cpu"), executor=Unlucky)
    assert [record.status for record in load(tmp_path)] == ["pending"]


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_there_is_not_searched_for_garbage_meanwhile(engine, tmp_path, frozen):
    """With many runs that would take a fifth of the driver's time. What the caller froze stays frozen."""
    seen = []
    try:
        if frozen:
            gc.freeze()
        before = gc.get_freeze_count()
        run(CONFIGS[:1], tmp_path, "cpu", progress=lambda _: seen.append(gc.get_freeze_count()))
        assert max(seen) > 0
        assert (gc.get_freeze_count() > 0) == (before > 0) == frozen
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("method", ["prepare", "places"])
def test_an_executor_is_closed_whatever_stops_the_call(engine, tmp_path, monkeypatch, method):
    """A cluster of its own would stay."""
    closed = []

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(local.Local, method, stop)
    monkeypatch.setattr(local.Local, "close", lambda _: closed.append(True))
    with pytest.raises(KeyboardInterrupt, match="0 of 1 runs are done"):
        run(CONFIGS[:1], tmp_path, "cpu")
    assert len(closed) == 1
