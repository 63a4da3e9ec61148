"""Jobs as they are handed out."""

import pytest

from fake_engine import CONFIGS
from heatbath.engine.job_queue import JobQueue
from heatbath.engine.progress import Tally
from heatbath.runs.store import Store
from heatbath.system.locks import Owner

SMALL = [config.with_(batch_size=100) for config in CONFIGS[:2]]


@pytest.fixture
def make_queue(tmp_path):
    """A queue of two kinds of runs, two of one and six of the other, of which up to 100 make a stack."""
    store = Store(tmp_path)
    store.add([*SMALL, *CONFIGS])
    owner = Owner(store.owners)

    def make(slots, largest=None):
        queue = JobQueue(store, owner, Tally(CONFIGS, {}), lambda _: 100, largest, slots)
        queue.fill([*SMALL, *CONFIGS])
        return queue

    yield make
    owner.close()
    store.close()


@pytest.mark.parametrize(
    ("slots", "sizes"),
    [(1, [2, 6]), (2, [3, 3, 2]), (4, [2, 2, 2, 2]), (8, [1] * 8)],
)
def test_there_is_a_stack_for_each_device_and_the_largest_comes_first(make_queue, slots, sizes):
    queue = make_queue(slots)
    jobs = [queue.next() for _ in range(len(queue))]
    assert [len(job.configs) for job in jobs] == sizes
    assert {config.run for job in jobs for config in job.configs} == {config.run for config in [*SMALL, *CONFIGS]}
    assert len({job.name for job in jobs}) == len(jobs)
    assert queue.next() is None


def test_a_stack_that_does_not_fit_is_halved_with_all_like_it(make_queue):
    queue = make_queue(1)
    assert len(queue.next().configs) == 2
    assert queue.halve(queue.next()) == 3
    assert [len(queue.next().configs) for _ in range(2)] == [3, 3]


def test_many_stacks_are_claimed_in_one_transaction(make_queue, monkeypatch):
    claim, claims = Store.claim, []
    monkeypatch.setattr(Store, "claim", lambda self, runs, owner: claims.append(len(runs)) or claim(self, runs, owner))
    queue = make_queue(8)
    queue.ahead = 3
    jobs = [queue.next() for _ in range(4)]
    assert claims == [3, 3]
    assert len(queue) == 4
    assert len({config.run for job in jobs for config in job.configs}) == 4
    queue.put_back(jobs[0])
    rest = []
    while (job := queue.next()) is not None:
        rest.append(job)
    assert len(rest) == 5
    assert claims == [3, 3, 3]


def test_what_is_claimed_ahead_is_halved_too(make_queue):
    queue = make_queue(1, largest=3)
    queue.ahead = 3
    assert len(queue.next().configs) == 2
    assert queue.halve(queue.next()) == 2
    assert [len(queue.next().configs) for _ in range(3)] == [2, 2, 2]
    assert queue.next() is None


def test_work_that_is_lost_comes_back_in_stacks_of_the_same_size(make_queue):
    queue = make_queue(1)
    small, large = queue.next(), queue.next()
    for job in (large, small):
        queue.put_back(job)
    assert [queue.next().configs for _ in range(2)] == [large.configs, small.configs]
    assert queue.next() is None
