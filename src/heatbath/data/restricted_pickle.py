"""Arrays from a pickle that nobody vouches for, without running anything that it names.

Unpickling calls what the file tells it to. Here the few NumPy names that an array needs are replaced by records of
their arguments, from which we build the array ourselves; every other name is refused.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any

import numpy as np


class PickleError(ValueError):
    """A pickle is broken, or names what it must not; half a sentence that can follow the file's name and a colon."""


def unpickle_arrays(content: bytes) -> dict[str, Any]:
    """Return a pickled dictionary of integer arrays and plain values, its keys as text.

    Pickles of Python 2 and 3, of any protocol and of NumPy 1 and 2 are read; other objects than arrays and NumPy's
    integers are refused.

    Raises:
        PickleError: the content is anything else.
    """
    try:
        found = _RestrictedUnpickler(BytesIO(content), encoding="bytes").load()
        if not isinstance(found, dict):
            raise TypeError("not a dictionary")
        named = [(_plain(key), _plain(value)) for key, value in found.items()]
        return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in named}
    except PickleError:
        raise
    except (Exception, MemoryError) as error:  # a hostile pickle can fail in any way
        raise PickleError(f"it is not a pickled dictionary of arrays ({type(error).__name__})") from None


class _Recorded:
    """Stands for an object in a pickle: keeps what it would be made of."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Type(_Recorded):
    """``numpy.dtype(name, align, copy)``, with the byte order in its state."""


class _Array(_Recorded):
    """``_reconstruct(...)``, with shape, type and bytes in its state."""


class _Buffer(_Recorded):
    """``_frombuffer(bytes, dtype, shape, order)``, an array in protocol 5."""


class _Scalar(_Recorded):
    """``scalar(dtype, bytes)``, one number."""


class _Text(_Recorded):
    """``_codecs.encode(text, "latin1")``, how Python 3 writes bytes in the old protocols."""


_NAMES: dict[tuple[str, str], type[_Recorded]] = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Recorded,
    ("_codecs", "encode"): _Text,
}
for _core in ("numpy.core", "numpy._core"):  # the second since NumPy 2
    _NAMES[f"{_core}.multiarray", "_reconstruct"] = _Array
    _NAMES[f"{_core}.multiarray", "scalar"] = _Scalar
    _NAMES[f"{_core}.numeric", "_frombuffer"] = _Buffer


# The unpickler in Python rather than C: its memo is a dictionary, where C allocates up to any index a pickle names.
class _RestrictedUnpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise PickleError(f"its pickle names {module}.{name}, which no array needs, so it is refused")
        return _NAMES[module, name]


def _plain(value: Any) -> Any:
    """What a record stands for, and what those in a list do; plain values are as they are."""
    return [_single(item) for item in value] if isinstance(value, list) else _single(value)


def _single(value: Any) -> Any:
    # Nothing nested: a list of twice the same list, a few dozen times over, would outgrow any memory.
    if isinstance(value, list | tuple | dict | set):
        raise TypeError("not arrays and plain values")
    if isinstance(value, _Text):
        text, encoding = value.arguments
        if encoding != "latin1":
            raise ValueError("not bytes")
        return text.encode("latin1")
    if isinstance(value, _Scalar):
        dtype, raw = value.arguments
        return np.frombuffer(_plain(raw), _dtype(dtype))[0]
    if isinstance(value, _Buffer):
        raw, dtype, shape, order = value.arguments
        return np.frombuffer(_plain(raw), _dtype(dtype)).reshape(shape, order=order)
    if isinstance(value, _Array):
        _, shape, dtype, fortran, raw = value.state
        return np.frombuffer(_plain(raw), _dtype(dtype)).reshape(shape, order="F" if fortran else "C")
    return value


def _dtype(recorded: Any) -> np.dtype[Any]:
    """The type of an array: integers only."""
    name, order = recorded.arguments[0], recorded.state[1]
    name, order = (part.decode() if isinstance(part, bytes) else part for part in (name, order))
    if name not in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8") or order not in ("|", "<", ">"):
        raise TypeError("not integers")
    return np.dtype(f"{order}{name}")
