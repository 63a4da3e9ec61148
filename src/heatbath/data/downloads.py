"""Where data files are kept, and how they get there: from mirrors, resumed if broken off, verified at the end."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from heatbath.data.formats import DataError

Progress = Callable[[str, int, int], None]

_CHUNK = 2**18


@dataclass(frozen=True)
class RemoteFile:
    """A file on the network: the same bytes at every address, the best first."""

    urls: tuple[str, ...]
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """The file's name, the last part of its first address."""
        return self.urls[0].rpartition("/")[2]


def data_roots(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the folders to look for data in: ``data_dir``, then ``HEATBATH_DATA``, then the user's cache."""
    named = [data_dir, os.environ.get("HEATBATH_DATA") or None]
    return list(dict.fromkeys([*(Path(folder).expanduser() for folder in named if folder is not None), cache_dir()]))


def cache_dir() -> Path:
    """Return the folder for downloads: ``$XDG_CACHE_HOME/heatbath``, or ``~/.cache/heatbath``."""
    home = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "heatbath"


def download(remote: RemoteFile, folder: Path, *, progress: Progress | None = None, timeout: float = 30.0) -> Path:
    """Fetch a file into ``folder`` and return its path; a file that is there already is kept.

    Each mirror is asked in turn, twice over. What a broken transfer has left (``NAME.part``) is continued, from any
    mirror, as the whole is verified before it gets its name. A second process that asks for the same file waits for
    the first. A mirror is given up after ``timeout`` seconds without an answer; ``progress`` is called with the file's
    name, the bytes that are here and the bytes in all.
    """
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    failures: list[str] = []
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists():
            return target
        with _locked(part) as file:
            if target.exists():  # made by another process while we waited
                return target
            for url in (*remote.urls, *remote.urls):
                try:
                    _transfer(url, remote, file, progress, timeout)
                except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
                    failures.append(f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}")
                    if isinstance(error, urllib.error.HTTPError):
                        error.close()
                    continue
                file.seek(0)
                if hashlib.file_digest(file, "sha256").hexdigest() == remote.sha256:  # type: ignore[arg-type]
                    os.fsync(file.fileno())
                    os.replace(part, target)
                    return target
                failures.append(f"{url}: wrong content")
                file.truncate(0)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}") from None
    if made:
        with contextlib.suppress(OSError):  # something is in it that can be continued
            folder.rmdir()
    reasons = "; ".join(dict.fromkeys(failures))
    raise DataError(f"cannot download {remote.name} ({reasons}); get it from {remote.urls[0]} and put it in {folder}")


def _transfer(url: str, remote: RemoteFile, file: IO[bytes], progress: Progress | None, timeout: float) -> None:
    """Append to ``file`` what it lacks of the remote one."""
    done = file.seek(0, os.SEEK_END)
    if done >= remote.size:  # whole, to be verified; or longer than the original, so of no use
        if done == remote.size:
            return
        done = file.truncate(0)
    headers = {"User-Agent": "heatbath", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
        continued = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {done}-")
        if not continued:  # a server without ranges sends the whole
            done = file.truncate(0)
        file.seek(done)
        while chunk := _receive(response, min(_CHUNK, remote.size + 1 - done)):
            file.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(remote.name, min(done, remote.size), remote.size)
    file.flush()
    if done < remote.size:
        raise ConnectionError(f"ended after {done:,} of {remote.size:,} bytes")


def _receive(response: IO[bytes], size: int) -> bytes:
    try:
        return response.read(size)
    except OSError as error:  # told apart from a full disk
        raise ConnectionError(str(error)) from error


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    """Open the partial file for reading and appending, alone."""
    while True:
        if part.is_symlink() or (part.exists() and not part.is_file()):
            raise OSError(f"{part} is a link or no file; remove it")
        file = part.open("a+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        if _is_named(file, part):
            break
        file.close()  # renamed or removed while we waited for the lock
    with file:
        try:
            yield file
        finally:
            if _is_named(file, part) and part.stat().st_size == 0:  # nothing in it to be continued
                part.unlink()


def _is_named(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
