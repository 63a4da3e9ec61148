"""Batches in containers of any kind: tensors, and tuples, lists, mappings and data classes of such, nested at will."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

Data = Any  # a tensor, or a tuple, list or mapping of such, nested at will; samples lie along the first dimension


def count_samples(inputs: Data, targets: Data) -> int:
    """Return the number of samples; raise if a part is no tensor or the lengths disagree."""
    lengths: dict[str, int] = {}
    for name, data in (("inputs", inputs), ("targets", targets)):
        for part, x in enumerate(leaves(data)):
            if not isinstance(x, Tensor) or x.ndim == 0:
                raise TypeError(
                    f"{name} must be a tensor with the samples along its first dimension, or a tuple, list or dict of "
                    f"such, got {type(x).__name__}{' without dimensions' if isinstance(x, Tensor) else ''}"
                )
            lengths[f"{name}[{part}]" if isinstance(data, (tuple, list, Mapping)) else name] = len(x)
    if len(set(lengths.values())) != 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items()) or "there are no tensors"
        raise ValueError(f"inputs and targets must have the same number of samples: {found}")
    samples = next(iter(lengths.values()))
    if samples < 2:
        raise ValueError(f"a variance needs at least 2 samples, got {samples}: pass more data")
    return samples


def take(data: Data, index: Tensor, device: torch.device) -> Data:
    """Return the samples at ``index`` on ``device``."""
    return map_leaves(data, lambda x: x.detach()[index.to(x.device)].to(device))


def repeat(data: Data, samples: int, times: int) -> Data:
    """Return the samples given several times, also where each has several rows of its own."""
    return map_leaves(data, lambda x: torch.cat([x] * times) if x.ndim and len(x) % samples == 0 else x)


def leaves(data: Data) -> Iterator[Any]:
    """Yield what is in the containers."""
    if is_dataclass(data) and not isinstance(data, type | Mapping):  # of Transformers some are both
        data = [getattr(data, field.name) for field in fields(data)]
    if isinstance(data, (tuple, list, Mapping)):
        for part in data.values() if isinstance(data, Mapping) else data:
            yield from leaves(part)
    else:
        yield data


def map_leaves(data: Data, function: Callable[[Any], Any]) -> Data:
    """Return the data with a function of each leaf, in containers of the same types."""
    if is_dataclass(data) and not isinstance(data, type | Mapping):
        return replace(data, **{x.name: map_leaves(getattr(data, x.name), function) for x in fields(data) if x.init})
    if isinstance(data, Mapping):
        mapped = cast("dict[Any, Any]", copy.copy(data))
        for key, part in data.items():
            mapped[key] = map_leaves(part, function)
        return mapped
    if isinstance(data, (tuple, list)):
        parts = [map_leaves(part, function) for part in data]
        return data._make(parts) if hasattr(data, "_make") else type(data)(parts)
    return function(data)


def collect(loader: Iterable[Any], batches: int | None) -> tuple[Data, Data]:
    """Return inputs and targets of the first batches of a loader, put together; all batches if None.

    A pair is inputs and targets. A mapping is both: the model takes its entries as keyword arguments, and the loss the
    outputs and the mapping. Anything else raises TypeError or ValueError.
    """
    if isinstance(loader, Tensor | Mapping | str) or not isinstance(loader, Iterable):
        raise TypeError(f"give inputs and targets, or a loader of batches, got {type(loader).__name__} alone")
    found = list(itertools.islice(loader, batches))
    if not found:
        raise ValueError("the loader has no batches")
    if all(isinstance(batch, Mapping) for batch in found):
        whole = _put_together(found)
        return whole, whole
    if not all(isinstance(batch, tuple | list) and len(batch) == 2 for batch in found):
        kinds = ", ".join(sorted({type(batch).__name__ for batch in found}))
        raise TypeError(f"the loader must give pairs (inputs, targets) or mappings, got {kinds}")
    inputs, targets = _put_together([tuple(batch) for batch in found])
    return inputs, targets


def _put_together(batches: list[Any]) -> Any:
    columns = zip(*(list(leaves(batch)) for batch in batches), strict=True)
    joined: list[Any] = []
    for column in columns:
        if not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in column):
            raise TypeError(f"the batches of a loader must hold tensors of samples, got {type(column[0]).__name__}")
        if len({leaf.shape[1:] for leaf in column}) > 1:
            shapes = " and ".join(map(str, sorted({tuple(leaf.shape) for leaf in column})[:2]))
            raise ValueError(f"batches of shapes {shapes} do not fit together: pad their samples to one shape")
        joined.append(torch.cat(column))
    parts = iter(joined)
    return map_leaves(batches[0], lambda _: next(parts))
