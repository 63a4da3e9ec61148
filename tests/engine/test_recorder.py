"""What is ready is recorded in one transaction, and checkpoints stay until it is."""

import pytest

from fake_engine import CONFIGS
from heatbath.engine.campaign import Recorder
from heatbath.engine.jobs import Job, Measured
from heatbath.runs.records import Epoch
from heatbath.runs.store import Store
from heatbath.system.locks import Owner

JOBS = [Job(f"1-{0:016x}.{k}", (config,), (None,)) for k, config in enumerate(CONFIGS[:3])]


class CountingStore(Store):
    """Counts its transactions of records, and fails if told to."""

    saves, fails = 0, False

    def save(self, owner, updates):
        self.saves += 1
        if self.fails:
            raise OSError("no space left")
        super().save(owner, updates)


@pytest.fixture
def store(tmp_path):
    with CountingStore(tmp_path) as store:
        store.add(CONFIGS)
        yield store


@pytest.fixture
def recorder(store):
    owner = Owner(store.owners)
    store.claim([config.run for config in CONFIGS], owner)
    yield Recorder(store, owner)
    owner.close()


def measured(first, durable, checkpoint=None):
    numbers = dict.fromkeys(("train_loss", "train_accuracy", "test_loss", "test_accuracy"), 0.5)
    return Measured(first, ((Epoch(0.1, numbers),),), durable=durable, checkpoint=checkpoint)


def test_what_is_ready_goes_into_one_transaction(store, recorder):
    for epoch in range(4):
        for job in JOBS:
            recorder.record(job, measured(epoch, durable=epoch in (1, 3)))
    assert store.saves == 0
    recorder.flush()
    recorder.flush()
    assert store.saves == 1
    assert [record.status for record in store.records([job.configs[0].run for job in JOBS])] == ["finished"] * 3


def test_what_no_checkpoint_has_is_not_recorded(store, recorder):
    recorder.record(JOBS[0], measured(0, durable=True))
    recorder.record(JOBS[0], measured(1, durable=False))
    recorder.record(JOBS[1], measured(0, durable=False))
    recorder.drop(JOBS[0])
    recorder.flush()
    lengths = {record.run: len(record.epochs) for record in store.records()}
    assert [lengths[config.run] for config in CONFIGS[:2]] == [1, 0]


def test_checkpoints_stay_until_all_is_recorded(store, recorder):
    file = store.checkpoints / f"{JOBS[0].name}.0.checkpoint"
    file.parent.mkdir(parents=True)
    file.touch()
    for epoch in range(4):
        recorder.record(JOBS[0], measured(epoch, durable=epoch >= 2, checkpoint=file.name if epoch == 2 else None))
    recorder.end(JOBS[0])
    assert file.exists()
    store.fails = True
    for _ in range(2):  # a campaign that fails tries once more
        with pytest.raises(OSError, match="no space left"):
            recorder.flush()
        assert file.exists()
    store.fails = False
    recorder.flush()
    assert not file.exists()
