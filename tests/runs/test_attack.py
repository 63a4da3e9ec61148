"""A few hundred rounds of benchmarks/attack.py: nothing changes without a word, nothing ends but in one line."""

import importlib.util
import random
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("attack", Path(__file__).parents[2] / "benchmarks" / "attack.py")
attack = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(attack)

FLIPS = {"database": 150, "export": 150, "checkpoint": 60, "calculation": 60}


@pytest.mark.parametrize("what", FLIPS)
def test_no_flipped_bit_changes_anything_without_a_word(tmp_path, what):
    counts = getattr(attack, f"attack_{what}")(tmp_path, FLIPS[what], random.Random(7))
    assert counts["silent"] == counts["crashed"] == 0, counts
    assert counts["refused"] > FLIPS[what] // 5
    assert sum(counts.values()) == FLIPS[what]


def test_a_flipped_bit_in_a_packed_export_is_noticed(tmp_path):
    counts = attack.attack_export(tmp_path, 60, random.Random(8), "runs.jsonl.gz")
    assert counts["silent"] == counts["crashed"] == 0, counts


def test_torn_pages_cost_little_and_make_nothing_up(tmp_path):
    counts = attack.attack_pages(tmp_path, 8, random.Random(9))
    assert counts["wrong"] == 0, counts
    assert counts["whole"] > 0.6 * sum(counts.values())
