"""Epochs as bytes: the one form in which the database and the checkpoints keep them.

An epoch is its rate and its metrics as float64 in little-endian order, followed by a digest over them, the run's name,
the epoch's number and the names of the metrics. So a bit that has flipped is noticed, and costs one epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, repeat
from struct import Struct

from heatbath.runs.records import Epoch, Origin

_DIGEST = 8  # bytes


def pack(run: str, epochs: Sequence[Epoch], first: int = 0) -> list[bytes]:
    """Return one string of bytes for each epoch; ``first`` epochs came before these."""
    names = tuple(epochs[0].metrics) if epochs else ()
    form, context = Struct(f"<{1 + len(names)}d"), json.dumps([run, *names]).encode()
    packed = []
    for number, epoch in enumerate(epochs, start=first + 1):
        if tuple(epoch.metrics) != names:
            words = f"{', '.join(epoch.metrics)}, not {', '.join(names)}"
            raise ValueError(f"run {run}: epoch {number} has the metrics {words}")
        numbers = form.pack(epoch.rate, *epoch.metrics.values())
        packed.append(numbers + _digest(context, number, numbers))
    return packed


def unpack(
    run: str, names: Sequence[str], packed: Iterable[bytes], origins: Iterable[tuple[int, Origin]]
) -> list[Epoch]:
    """Return the epochs of `pack` from the first one on, up to the first one that is damaged.

    ``origins`` says how many epochs in a row were made where; epochs beyond have an empty origin.
    """
    form, context = Struct(f"<{1 + len(names)}d{_DIGEST}s"), json.dumps([run, *names]).encode()
    made = each_origin(origins)
    epochs = []
    for number, content in enumerate(packed, start=1):
        if not isinstance(content, bytes) or len(content) != form.size:  # a flipped bit may make a text of it
            break
        rate, *metrics, digest = form.unpack(content)
        if digest != _digest(context, number, content[:-_DIGEST]):
            break
        epochs.append(Epoch(rate, dict(zip(names, metrics, strict=True)), next(made, {})))
    return epochs


@lru_cache(maxsize=64)
def read_origins(text: str) -> list[tuple[int, Origin]]:
    """Return the origins of a run from their JSON. Runs of one campaign share the dictionaries."""
    parsed = json.loads(text)
    origins = [(count, origin) for count, origin in parsed]
    sound = all(isinstance(count, int) and count >= 0 and isinstance(origin, dict) for count, origin in origins)
    if not sound or not isinstance(parsed, list):
        raise ValueError("its origins are not counts of epochs with words")
    return origins


def each_origin(origins: Iterable[tuple[int, Origin]]) -> chain[Origin]:
    """Return the origin of each epoch, one after the other."""
    return chain.from_iterable(repeat(origin, count) for count, origin in origins)


def _digest(context: bytes, number: int, numbers: bytes) -> bytes:
    return blake2b(b"%b%d:%b" % (context, number, numbers), digest_size=_DIGEST).digest()
