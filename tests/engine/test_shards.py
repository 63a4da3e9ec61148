"""Parts of a set of runs."""

import pytest

from heatbath.engine.shards import take_shard
from heatbath.runs.configs import RunConfig, sweep

CONFIGS = sweep(RunConfig(), lr=(0.1, 0.2), seed=range(10))


@pytest.mark.parametrize("n", [1, 3, 7, 20])
def test_parts_never_overlap_and_make_up_the_whole(n):
    parts = [take_shard(CONFIGS, f"{k}/{n}") for k in range(1, n + 1)]
    assert sorted(config.run for part in parts for config in part) == sorted(config.run for config in CONFIGS)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_part_does_not_depend_on_the_order_of_the_runs():
    one, other = take_shard(CONFIGS, "2/3"), take_shard(CONFIGS[::-1], "2/3")
    assert {config.run for config in one} == {config.run for config in other}


@pytest.mark.parametrize(("first", "step"), [(0, 1), (1, 1), (1, 10)])
def test_a_slurm_array_says_which_part(first, step):
    def task(number):
        names = {"ID": first + step * number, "MIN": first, "COUNT": 4, "STEP": step}
        return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in names.items()}

    assert [take_shard(CONFIGS, "auto", task(k)) for k in range(4)] == [
        take_shard(CONFIGS, f"{k}/4") for k in range(1, 5)
    ]


@pytest.mark.parametrize("shard", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3"])
def test_what_is_no_part_is_refused(shard):
    with pytest.raises(ValueError, match="shard must be K/N"):
        take_shard(CONFIGS, shard)


def test_auto_needs_an_array_and_a_part_must_have_runs():
    with pytest.raises(ValueError, match="not a task of a Slurm array"):
        take_shard(CONFIGS, "auto", {})
    with pytest.raises(ValueError, match="SLURM_ARRAY_TASK_COUNT is not set"):
        take_shard(CONFIGS, "auto", {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_MIN": "1"})
    uneven = {"ID": "7", "MIN": "1", "COUNT": "3"}  # of --array=1,3,7
    with pytest.raises(ValueError, match="evenly spaced"):
        take_shard(CONFIGS, "auto", {f"SLURM_ARRAY_TASK_{name}": value for name, value in uneven.items()})
    again = [("1", "1", "of one task"), ("3", "2", "that begins at 3")]  # --array=1 and --array=3,4 of an earlier array
    for first, count, words in again:
        part = {"ID": first, "MIN": first, "COUNT": count}
        with pytest.raises(ValueError, match=rf"a Slurm array {words} may be a part of another: give K/N$"):
            take_shard(CONFIGS, "auto", {f"SLURM_ARRAY_TASK_{name}": value for name, value in part.items()})
    with pytest.raises(ValueError, match="SLURM_ARRAY_TASK_ID is no number"):
        take_shard(CONFIGS, "auto", {"SLURM_ARRAY_TASK_ID": "x"})
    with pytest.raises(ValueError, match="only 20 runs"):
        take_shard(CONFIGS, "21/30")
