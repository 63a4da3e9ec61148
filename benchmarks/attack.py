"""Attacks a store and everything around it, and counts what is noticed: `python benchmarks/attack.py --rounds 3000`.

Bits are flipped in a database, in exports, in checkpoints and in results of calculations; pages of a database are
torn, and what `heatbath runs repair` saves of it is compared with what was there. Nothing may change silently, and
nothing may end in another error than one line. The counts stand in docs/guarantees.md; the tests run a few hundred.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from heatbath.paper.calculations import copy_results, damaged_results
from heatbath.runs import export
from heatbath.runs.checkpoints import Saver, read_checkpoint
from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.records import METRICS, Epoch, Record
from heatbath.runs.repair import repair
from heatbath.runs.store import Store, Update
from heatbath.system.locks import Owner

ORIGIN = {"heatbath": "0.1.0", "torch": "2.13.0", "python": "3.12", "device": "CPU (attacked)", "precision": "fp32"}
CONFIGS = sweep(RunConfig(epochs=6), lr=(0.005, 0.02), seed=range(20))


def make_epochs(config: RunConfig, count: int) -> list[Epoch]:
    """Numbers that a run might have given."""
    rng = random.Random(config.run)
    return [Epoch(config.lr, {name: rng.random() for name in METRICS[:4]}, ORIGIN) for _ in range(count)]


def make_store(folder: Path) -> list[Record]:
    """A store with finished, diverged, stopped and untouched runs; what it holds."""
    with Store(folder) as store:
        store.add(CONFIGS)
        owner = Owner(store.owners)
        store.claim([config.run for config in CONFIGS[:36]], owner)
        for k, config in enumerate(CONFIGS[:36]):
            count, status = (6, "finished") if k < 30 else (k % 6, "diverged" if k % 2 else "running")
            store.save(owner, [Update(config.run, 0, make_epochs(config, count), status, 1.5 + k, ORIGIN)])
        store.release(owner)
        owner.close()
        return store.records()


def flip(content: bytes, rng: random.Random) -> bytes:
    """One bit is another."""
    damaged = bytearray(content)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def count_flips(file: Path, read: Callable[[], Any], rounds: int, rng: random.Random) -> Counter[str]:
    """Flip single bits of a file, each in a sound copy, and count what becomes of what is read.

    The file is sound again at the end.
    """
    sound, expected = file.read_bytes(), read()
    counts: Counter[str] = Counter(silent=0, crashed=0)
    for _ in range(rounds):
        file.write_bytes(flip(sound, rng))
        try:
            counts["without effect" if read() == expected else "silent"] += 1
        except (OSError, ValueError):
            counts["refused"] += 1
        except Exception:
            counts["crashed"] += 1
    file.write_bytes(sound)
    return counts


def attack_database(folder: Path, rounds: int, rng: random.Random) -> Counter[str]:
    """Single bits of the database."""
    make_store(folder)

    def read() -> Any:
        with Store(folder, read_only=True) as store:
            return [(record, record.origins, record.verified) for record in store.records()]

    return count_flips(folder / Store.FILE, read, rounds, rng)


def attack_export(folder: Path, rounds: int, rng: random.Random, name: str = "runs.jsonl") -> Counter[str]:
    """Single bits of an exported file."""
    export.write_lines(make_store(folder), folder / name)

    def read() -> Any:
        return [(record, record.origins, record.verified) for record in export.read_lines(folder / name)]

    return count_flips(folder / name, read, rounds, rng)


def attack_checkpoint(folder: Path, rounds: int, rng: random.Random) -> Counter[str]:
    """Single bits of a checkpoint."""
    runs = [config.run for config in CONFIGS[:3]]
    states = [{"weight": torch.arange(200.0) + k, "epoch": torch.tensor(4)} for k in range(3)]
    curves = [make_epochs(config, 4) for config in CONFIGS[:3]]
    file = Saver(folder, "1-0123456789abcdef.1").save(4, runs, states, curves)

    def read() -> Any:
        found = read_checkpoint(file)
        return {run: (each.epochs, each.state["weight"].tolist()) for run, each in found.items()}

    return count_flips(file, read, rounds, rng)


def attack_calculation(folder: Path, rounds: int, rng: random.Random) -> Counter[str]:
    """Single bits of the result of a calculation."""
    (folder / "old" / "calculations").mkdir(parents=True)
    content = {"settings": {"seed": 1, "steps": 150}, "result": {"x": [rng.random() for _ in range(50)]}}
    (folder / "old" / "calculations" / "0123.json").write_text(json.dumps(content))
    copy_results(folder / "old", folder / "new")
    file = folder / "new" / "calculations" / "0123.json"

    def read() -> Any:
        if damaged_results(folder / "new"):
            raise ValueError("told")
        kept = json.loads(file.read_bytes())
        return kept["settings"], kept["result"]

    return count_flips(file, read, rounds, rng)


def attack_pages(folder: Path, rounds: int, rng: random.Random) -> Counter[str]:
    """Tear a page of the database, repair the store, and count the runs that are whole, mended, lost and wrong."""
    before = {record.run: record for record in make_store(folder / "sound")}
    content = (folder / "sound" / Store.FILE).read_bytes()
    counts: Counter[str] = Counter(wrong=0)
    for k in range(rounds):
        place = folder / str(k)
        place.mkdir()
        damaged, page = bytearray(content), rng.randrange(len(content) // 4096)
        damaged[page * 4096 : (page + 1) * 4096] = rng.randbytes(4096)
        (place / Store.FILE).write_bytes(damaged)
        repair(place)
        with Store(place, read_only=True) as store:
            records = {record.run: record for record in store.records()}
        for run, record in before.items():
            after = records.get(run)
            if after is None:
                counts["lost"] += 1
            elif after == record:
                counts["whole"] += 1
            else:
                right = after.config == record.config and after.epochs == record.epochs[: len(after.epochs)]
                counts["mended" if right and after.status in (record.status, "pending") else "wrong"] += 1
        shutil.rmtree(place)
    return counts


ATTACKS: dict[str, tuple[Callable[[Path, int, random.Random], Counter[str]], float]] = {
    "flipped bits in a database": (attack_database, 1.0),
    "flipped bits in an export": (attack_export, 1.0),
    "flipped bits in a checkpoint": (attack_checkpoint, 0.3),
    "flipped bits in a calculation": (attack_calculation, 0.3),
    "torn pages of a database, runs after a repair": (attack_pages, 0.05),
}


def run_attacks(rounds: int, seed: int = 0) -> dict[str, Counter[str]]:
    """All attacks, with so many flips in a database; what they counted."""
    found = {}
    for name, (attack, share) in ATTACKS.items():
        with tempfile.TemporaryDirectory(prefix="heatbath-attack-") as folder:
            found[name] = attack(Path(folder), max(1, round(share * rounds)), random.Random(seed))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3000, help="flips in the database; the other attacks follow")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start = time.monotonic()
    for title, counts in run_attacks(arguments.rounds, arguments.seed).items():
        told = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
        print(f"{title}: {sum(counts.values())}: {told}", flush=True)
    print(f"{time.monotonic() - start:.0f} s")
