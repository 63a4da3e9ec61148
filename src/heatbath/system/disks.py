"""The disk below a folder: whether other machines write to it too, and whether its locks reach them."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mountinfo")  # what is mounted here; a system without such a file has local disks alone
ADVICE = "give --store on a local disk, and join the stores later with 'heatbath runs merge'"
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3|smbfs|lustre|gpfs|beegfs|wekafs|panfs|afs|coda|ceph|pvfs2|orangefs|gfs2|ocfs2|davfs|9p|virtiofs"
    r"|vboxsf|vmhgfs|prl_fs|fuse(\..*)?"
)
_OWN_LOCKS = re.compile(r"davfs|vboxsf|fuse\.(sshfs|s3fs|rclone|gcsfuse|goofys|mount-s3)")
# A mount of FUSE keeps pages that another machine has replaced, and SQLite would write them back. Not these: the first
# is told by its server, the others belong to one machine.
_CURRENT_FUSE = re.compile(r"fuse\.(ceph-fuse|gocryptfs|encfs|cryfs|mergerfs|bindfs|unionfs|fuse-overlayfs)")
_OWN_LOCK_OPTIONS = re.compile(r"nolock|local_lock=(all|flock|posix)|localflock|nobrl")


class Disk(NamedTuple):
    """A file system as it is mounted; its kind, such as ``"ext4"``, is empty where the system does not say."""

    kind: str = ""
    options: tuple[str, ...] = ()

    @property
    def is_network(self) -> bool:
        """Whether processes on other machines may write to it. Memory is not shared with them, so SQLite has no WAL."""
        return _NETWORK.fullmatch(self.kind) is not None


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
            found, longest = Disk(kinds[0], tuple(",".join((fields[5], *kinds[2:])).split(","))), len(point)
    return found


def check_locks(folder: Path, named: Path) -> None:
    """Refuse a network disk whose locks or writes other machines do not see, or that has no locks.

    ``named`` is the caller's name of the folder.
    Nothing is left behind, and the folder need not be there yet.
    """
    disk = find_disk(folder)
    if not disk.is_network:
        return
    own = [disk.kind] if _OWN_LOCKS.fullmatch(disk.kind) else [*filter(_OWN_LOCK_OPTIONS.fullmatch, disk.options)]
    why = f"whose locks other machines do not see ({own[0]})" if own else ""
    if not why and disk.kind.startswith("fuse") and not _CURRENT_FUSE.fullmatch(disk.kind):
        why = "that may show a machine what another has replaced"
    there = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
    with tempfile.TemporaryFile(dir=there) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as claims do
            fcntl.flock(file, fcntl.LOCK_UN)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as SQLite does
        except OSError as error:
            why = why or f"that gives no locks ({error.strerror})"
    if why:
        raise OSError(f"{named} is on a network disk ({disk.kind}) {why}: {ADVICE}")
