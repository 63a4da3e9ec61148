"""The disk below a folder: whether other machines write to it too, and whether its locks reach them."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")  # what is mounted here; a system without such a file has local disks alone
ADVICE = "give --store on a local disk, and join the stores later with 'heatbath runs merge'"
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3|smbfs|lustre|gpfs|beegfs|wekafs|panfs|afs|coda|ceph|pvfs2|orangefs|gfs2|ocfs2|davfs|9p|virtiofs"
    r"|vboxsf|vmhgfs|prl_fs|fuse(\..*)?"
)
_OWN_LOCKS = re.compile(r"davfs|vboxsf|fuse\.(sshfs|s3fs|rclone|gcsfuse|goofys|mount-s3)")
_OWN_LOCK_OPTIONS = re.compile(r"nolock|local_lock=(all|flock|posix)|localflock|nobrl")


@dataclass(frozen=True)
class Disk:
    """A file system as it is mounted.

    Attributes:
        kind: such as ``"ext4"`` or ``"nfs4"``; empty where the system does not say.
        options: it is mounted with.
    """

    kind: str = ""
    options: tuple[str, ...] = ()

    @property
    def is_network(self) -> bool:
        """Whether processes on other machines may write to it. Memory is not shared with them, so SQLite has no WAL."""
        return _NETWORK.fullmatch(self.kind) is not None

    @property
    def own_locks(self) -> str:
        """Why a lock is seen on this machine alone; empty where it is seen by all."""
        if _OWN_LOCKS.fullmatch(self.kind):
            return self.kind
        return next((option for option in self.options if _OWN_LOCK_OPTIONS.fullmatch(option)), "")


def find_disk(path: Path) -> Disk:
    """Return the disk of a folder that may not be there yet."""
    place = os.path.realpath(path)
    found, longest = Disk(), -1
    try:
        lines = os.fsdecode(MOUNTS.read_bytes()).splitlines()
    except OSError:
        return found
    for line in lines:
        mount, _, source = line.partition(" - ")
        fields, kinds = mount.split(), source.split()
        if len(fields) < 6 or len(kinds) < 2:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])  # a space is \040
        if os.path.commonpath((place, point)) == point and len(point) >= longest:  # the last one covers the others
            options = ",".join((fields[5], *kinds[2:])).split(",")
            found, longest = Disk(kinds[0], tuple(options)), len(point)
    return found


def check_locks(folder: Path, named: Path) -> None:
    """Refuse a network disk whose locks other machines do not see, or that has none. Nothing is left behind.

    Args:
        folder: which need not be there yet.
        named: the folder as the caller knows it, for the message.

    Raises:
        OSError: in one line that says what to do.
    """
    disk = find_disk(folder)
    if not disk.is_network:
        return
    if disk.own_locks:
        why = f"whose locks other machines do not see ({disk.own_locks})"
        raise OSError(f"{named} is on a network disk ({disk.kind}) {why}: {ADVICE}")
    there = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
    with tempfile.TemporaryFile(dir=there) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as claims do
            fcntl.flock(file, fcntl.LOCK_UN)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as SQLite does
        except OSError as error:
            why = f"that gives no locks ({error.strerror})"
            raise OSError(f"{named} is on a network disk ({disk.kind}) {why}: {ADVICE}") from None
