"""Checkpoints of stacks: written to another name, synced, renamed, checksummed, with the previous one kept.

A file is 8 bytes of magic, the SHA-256 of all that follows, the length of a JSON header, the header (epoch, runs, and
of each run the names of its metrics and its origins), and what torch saved: tensors and nothing else, which
``weights_only`` reads without executing anything. A stack has two such files and overwrites the older one, so that
there is a whole one at any moment. A run's state is where a file has it, whichever stack that was.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickle
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

from heatbath.runs.records import METRICS, NOT_A_RECORD, Epoch, join_origins, pack, read_origins, unpack
from heatbath.system.locks import OWNER
from heatbath.system.tensor_files import check_tensor_file
from heatbath.system.whole_files import whole_file

if TYPE_CHECKING:
    from torch import Tensor

ReplicaState: TypeAlias = "dict[str, Tensor]"
_Identity: TypeAlias = tuple[str, int, int]

_MAGIC, _OLD_MAGIC = b"HEATBAT2", b"HEATBAT1"  # the second of heatbath 0.1.0
_START = len(_MAGIC) + 32
_NAME = re.compile(rf"{OWNER}\.\d+\.[01]\.(checkpoint|partial|refused)")  # the owner, its job, one of two files
_SUFFIX = ".checkpoint"
REFUSED = ".refused"
"""The suffix of a file that has been put out of the way, because it is not what a checkpoint is."""
_NOT_OURS = (RuntimeError, ArithmeticError, *NOT_A_RECORD, EOFError, pickle.UnpicklingError)


class DamagedCheckpointError(OSError):
    """The file is not what was written."""


class SavedAt(NamedTuple):
    """Where the state of a run is, and after how many epochs it was saved."""

    file: Path
    epoch: int


class Restored(NamedTuple):
    """A run as a checkpoint has it: what the engine goes on from, and what was measured up to there."""

    state: ReplicaState
    epochs: tuple[Epoch, ...]


class Saver:
    """Writes the checkpoints of one stack, of a name used by no other, into a folder that is made if need be."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._slots = [folder / f"{name}.{slot}{_SUFFIX}" for slot in (0, 1)]

    def save(
        self, epoch: int, runs: Sequence[str], states: Sequence[ReplicaState], curves: Sequence[Sequence[Epoch]]
    ) -> Path:
        """Write the states of some runs after ``epoch`` epochs and what was measured until then; return the file.

        If it cannot be written, the previous one is as it was.
        """
        import torch

        packed = [bytearray(b"".join(pack(run, curve))) for run, curve in zip(runs, curves, strict=True)]
        content = {"states": list(states), "curves": [torch.frombuffer(each, dtype=torch.uint8) for each in packed]}
        metrics = [list(curve[0].metrics) for curve in curves]
        origins = [join_origins((epoch.origin for epoch in curve), {}) for curve in curves]
        header = json.dumps({"epoch": epoch, "runs": list(runs), "metrics": metrics, "origins": origins}).encode()
        saved = io.BytesIO()  # torch would turn an error of the disk, or an interrupt, into one of its own
        torch.save(content, saved)
        start = struct.pack("<I", len(header)) + header
        digest = hashlib.sha256(start)
        digest.update(saved.getbuffer())
        target = self._slots[0]
        with whole_file(target, target.with_suffix(".partial")) as file:
            file.write(_MAGIC + digest.digest() + start)
            file.write(saved.getbuffer())
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._slots.reverse()
        return target

    def remove(self) -> None:
        """Remove what is left of the stack's checkpoints."""
        for slot in self._slots:
            remove(slot)
            remove(slot.with_suffix(".partial"))


class Shelf:
    """The checkpoints in a folder; each file is verified once, and again when it has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[Path] = []
        self._known: dict[_Identity, tuple[int, frozenset[str]] | None] = {}
        self._last: tuple[_Identity, dict[str, Restored]] | None = None

    def find(self, runs: Iterable[str]) -> dict[str, SavedAt]:
        """Return the latest sound state of each run that has one. Files that are damaged are added to ``damaged``."""
        wanted = set(runs)
        found: dict[str, SavedAt] = {}
        for file in self._files():
            epoch, held = self._verify(file) or (0, frozenset())
            for run in held & wanted:
                if run not in found or found[run].epoch < epoch:
                    found[run] = SavedAt(file, epoch)
        return found

    def read(self, file: Path, run: str) -> Restored:
        """Return one run of a file; the file last read is remembered."""
        key = _identity(file)
        if key is None:
            raise DamagedCheckpointError(f"{file} is gone")
        if self._last is None or self._last[0] != key:
            self._last = key, read_checkpoint(file)
        if run not in self._last[1]:
            raise DamagedCheckpointError(f"{file} has no run {run}")
        return self._last[1][run]

    def refuse(self, files: Iterable[Path | None]) -> None:
        """Do not find these files any more, unless they change."""
        self._known |= {key: None for file in files if file is not None and (key := _identity(file)) is not None}

    def forget(self) -> None:
        """Free the memory of what was read."""
        self._last = None

    def clean(self, ended: Iterable[str]) -> None:
        """Remove the files whose runs have all ended, and those that are damaged."""
        over = set(ended)
        for file in self._files():
            entry = self._verify(file)
            if entry is None or entry[1] <= over:
                remove(file)
        for file in self.folder.glob(f"*{REFUSED}"):
            remove(file)

    def prune(self, is_alive: Callable[[str], bool]) -> None:
        """Remove what later files have made superfluous, of owners that are gone."""
        entries = {file: entry for file in self._files() if (entry := self._verify(file))}
        known = [run for _, runs in entries.values() for run in runs]
        latest = {each.file for each in self.find(known).values()}
        _remove_orphans(entries.keys() - latest, is_alive)

    def remove_partial(self, is_alive: Callable[[str], bool]) -> None:
        """Remove what owners that are gone have left half written."""
        _remove_orphans(self.folder.glob("*.partial"), is_alive)

    def _files(self) -> list[Path]:
        return sorted(file for file in self.folder.glob(f"*{_SUFFIX}") if is_checkpoint_name(file.name))

    def _verify(self, file: Path) -> tuple[int, frozenset[str]] | None:
        key = _identity(file)
        if key is None:
            return None
        if key not in self._known:
            try:
                with open(file, "rb") as handle:
                    header = _check(handle, file)
                self._known[key] = header["epoch"], frozenset(header["runs"])
            except FileNotFoundError:
                return None
            except DamagedCheckpointError:
                self._known[key] = None
                self.damaged.append(file)
        return self._known[key]


def is_checkpoint_name(name: str) -> bool:
    """Return whether a file of this name may be a checkpoint, a half-written one, or one that was refused."""
    return _NAME.fullmatch(name) is not None


def remove(file: Path) -> None:
    """Remove a file if it is one of ours, by its name and its first bytes; never by way of a link."""
    with suppress(OSError):  # another process was faster, or it is not ours to remove
        if not is_checkpoint_name(file.name) or not stat.S_ISREG(file.lstat().st_mode):
            return
        with open(file, "rb") as handle:
            start = handle.read(len(_MAGIC))
        # Of a process that was killed at once nothing may be there yet; heatbath 0.1.0 wrote the magic at the end.
        if start in (_MAGIC, _OLD_MAGIC, b"") or (file.suffix == ".partial" and not any(start)):
            file.unlink()


def _remove_orphans(files: Iterable[Path], is_alive: Callable[[str], bool]) -> None:
    for file in files:
        if not is_alive(file.name.partition(".")[0]):  # its owner
            remove(file)


def read_checkpoint(file: Path) -> dict[str, Restored]:
    """Return all runs of a checkpoint; of a file that is not what was written nothing is used."""
    import torch

    with open(file, "rb") as handle:
        header = _check(handle, file)
        try:
            saved = io.BytesIO(handle.read())
            check_tensor_file(saved)
            content = torch.load(saved, map_location="cpu", weights_only=True)
            parts = zip(header["runs"], content["states"], _read_curves(header, content["curves"]), strict=True)
            restored = {run: Restored(state, curve) for run, state, curve in parts}
            sound = all(len(each.epochs) == header["epoch"] == int(each.state["epoch"]) for each in restored.values())
        except _NOT_OURS as error:
            words = next(iter(str(error).splitlines()), type(error).__name__)
            raise DamagedCheckpointError(f"{file} is not a checkpoint of this version ({words})") from None
        if not sound:
            raise DamagedCheckpointError(f"{file}: its curves or its states are not after {header['epoch']} epochs")
        return restored


def is_disk_full(error: OSError) -> bool:
    """Return whether there was no room: on the disk, in the quota, or under the limit of a file's size."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _check(handle: IO[bytes], file: Path) -> dict[str, Any]:
    """Verify an open file and return its header, with the file at what torch saved."""
    start = handle.read(_START)
    digest = hashlib.file_digest(handle, "sha256").digest()  # type: ignore[arg-type]
    if start[: len(_MAGIC)] not in (_MAGIC, _OLD_MAGIC) or start[len(_MAGIC) :] != digest:
        raise DamagedCheckpointError(f"{file} is damaged: its checksum does not fit")
    handle.seek(_START)
    try:
        (length,) = struct.unpack("<I", handle.read(4))
        header: dict[str, Any] = json.loads(handle.read(length))
        if not isinstance(header["epoch"], int) or not all(isinstance(run, str) for run in header["runs"]):
            raise ValueError
    except (*NOT_A_RECORD, struct.error):
        raise DamagedCheckpointError(f"{file} is not a checkpoint") from None
    return header


def _identity(file: Path) -> _Identity | None:
    with suppress(FileNotFoundError):
        status = file.stat()
        return str(file), status.st_ino, status.st_mtime_ns
    return None


def _read_curves(header: dict[str, Any], curves: Sequence[Tensor]) -> Iterator[tuple[Epoch, ...]]:
    if "metrics" not in header:  # of heatbath 0.1.0: a row for each epoch, NaN where nothing is held out
        for curve in curves:
            yield tuple(
                Epoch(rate, {name: x for name, x in zip(METRICS, numbers, strict=True) if x == x})
                for rate, *numbers in curve.tolist()
            )
        return
    for run, names, origins, curve in zip(header["runs"], header["metrics"], header["origins"], curves, strict=True):
        packed = bytes(curve.numpy())
        size = len(packed) // header["epoch"]
        pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
        yield tuple(unpack(run, names, pieces, read_origins(json.dumps(origins))))
