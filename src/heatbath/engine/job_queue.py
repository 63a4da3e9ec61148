"""Which stack comes next: runs that may share one and stand after the same epoch, claimed when they are handed out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from heatbath.engine import planning
from heatbath.engine.jobs import Job
from heatbath.engine.progress import Tally, count_runs
from heatbath.runs.checkpoints import SavedAt, Shelf
from heatbath.runs.configs import RunConfig
from heatbath.runs.store import Store
from heatbath.system.locks import Owner, is_alive


class JobQueue:
    """Hands out jobs, of runs that are claimed in a store for an owner.

    Args:
        store: where the runs are.
        owner: of those that are claimed.
        tally: is told which runs have lost a part of their epochs, and why.
        stack_size: how many runs of a kind make one stack, of at most ``largest``.
        largest: None leaves it to ``stack_size``.
        slots: how many stacks there should be at least, so that none of as many devices is idle.
    """

    def __init__(
        self,
        store: Store,
        owner: Owner,
        tally: Tally,
        stack_size: Callable[[Sequence[RunConfig]], int],
        largest: int | None = None,
        slots: int = 1,
    ) -> None:
        self._store, self._owner, self._tally = store, owner, tally
        self._stack_size, self._largest, self._slots = stack_size, largest, slots
        self.shelf, self._reported_damage = Shelf(store.checkpoints), 0
        self._halved: dict[tuple[Any, ...], int] = {}
        self._stacks: deque[list[RunConfig]] = deque()
        self._claimed: deque[tuple[list[RunConfig], dict[str, int], dict[str, SavedAt]]] = deque()
        self.handed_out, self.ahead = 0, 1  # how many jobs there were; how many stacks are claimed at once

    def __len__(self) -> int:
        return len(self._stacks) + len(self._claimed)

    def fill(self, configs: Sequence[RunConfig]) -> None:
        """Put runs, and nothing else, into the queue, in stacks of equal size; of several devices, large ones first."""
        self.shelf.prune(self.is_alive)
        self.shelf.remove_partial(self.is_alive)
        found = self.shelf.find(config.run for config in configs)
        groups: dict[tuple[Any, ...], list[RunConfig]] = {}
        for config in configs:
            groups.setdefault((planning.stack_key(config), _epoch(config, found)), []).append(config)
        self._stacks.clear()
        self._claimed.clear()  # they stay ours
        most = -(-len(configs) // self._slots)  # of which each device has one
        for (key, _), members in groups.items():
            size = min(self._stack_size(members), most)
            size = max(1, min(size, self._largest or size, self._halved.get(key, size)))
            stacks = -(-len(members) // size)
            bounds = [len(members) * k // stacks for k in range(stacks + 1)]
            self._stacks.extend(members[a:b] for a, b in pairwise(bounds))
        if self._slots > 1:
            self._stacks = deque(sorted(self._stacks, key=_size, reverse=True))

    def put_back(self, job: Job, *, damaged: bool = False) -> None:
        """Queue the runs of a job again; if a checkpoint of it is damaged and still there, without them."""
        if damaged and all(file is not None and file.exists() for file in job.sources):
            self.shelf.refuse(job.sources)
        self._stacks.append(list(job.configs))

    def halve(self, job: Job) -> int:
        """Queue the runs of a job that was too large in stacks of half its size, and all like it; return that size."""
        half = (len(job.configs) + 1) // 2
        self._halved[planning.stack_key(job.configs[0])] = half
        waiting = [*(members for members, *_ in self._claimed), *self._stacks]
        self.fill([*job.configs, *(config for members in waiting for config in members)])
        return half

    def next(self) -> Job | None:
        """Claim the runs of the next stack that has any to be claimed; return None when the queue is empty."""
        while self._stacks or self._claimed:
            if not self._claimed:
                self._claim()
                continue
            asked, recorded, found = self._claimed.popleft()
            stages: dict[int, list[RunConfig]] = {}
            for config in asked:
                stages.setdefault(_epoch(config, found), []).append(config)
            (epoch, chosen), *others = stages.items()
            self._stacks.extendleft(members for _, members in others)
            self._explain_losses(chosen, epoch, recorded)
            sources = tuple(found[config.run].file if epoch else None for config in chosen)
            self.handed_out += 1
            return Job(f"{self._owner.name}.{self.handed_out}", tuple(chosen), sources)
        return None

    def _claim(self) -> None:
        """Claim some stacks in one transaction; what others are at is left out."""
        asked = [self._stacks.popleft() for _ in range(min(self.ahead, len(self._stacks)))]
        recorded = self._store.claim([config.run for members in asked for config in members], self._owner)
        if not recorded:
            return
        # Looked up after the claim: from now on nobody else moves them.
        found = self.shelf.find(recorded)
        for members in asked:
            ours = [config for config in members if config.run in recorded]
            if ours:
                self._claimed.append((ours, recorded, found))

    def outline(self) -> dict[str, list[int]]:
        """Return, for each network, the sizes of its stacks."""
        sizes: dict[str, list[int]] = {}
        for members in self._stacks:
            sizes.setdefault(members[0].model, []).append(len(members))
        return sizes

    def is_alive(self, owner: str) -> bool:
        """Return whether the process that wrote a checkpoint still runs."""
        return is_alive(self._store.owners, owner)

    def _explain_losses(self, configs: Sequence[RunConfig], epoch: int, recorded: Mapping[str, int]) -> None:
        new, self._reported_damage = self.shelf.damaged[self._reported_damage :], len(self.shelf.damaged)
        for file in new:
            self._tally.say(f"the checkpoint {file.name} is damaged and not used")
        back = sum(recorded[config.run] > epoch for config in configs)
        if back:
            where = f"go on after epoch {epoch}" if epoch else "start over"
            self._tally.say(
                f"{count_runs(back)} without a checkpoint of the last epoch {where}; the numbers will be the same"
            )


def _size(members: Sequence[RunConfig]) -> float:
    """About how long a stack takes."""
    first = members[0]
    return len(members) * first.epochs * first.training_images * first.cost.weights


def _epoch(config: RunConfig, found: Mapping[str, SavedAt]) -> int:
    """After which epoch a run stands; a file that says it is over did not come from here, and is not used."""
    epoch = found[config.run].epoch if config.run in found else 0
    return epoch if epoch < config.epochs else 0
