"""A folder that is taken to be on a network disk, with the locks of NFS or none; also for other processes."""

import errno
import fcntl
import os

from heatbath.system import disks

TABLE = """21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 0:40 / {point} rw,relatime shared:9 - {kind} server:/x {options}
"""
_flock = fcntl.flock


def flock_of_nfs(file, operation):
    """Over NFS a lock is one of `lockf`: only who may write to a file can have it alone."""
    handle = file if isinstance(file, int) else file.fileno()
    may_write = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    there = disks.find_disk(os.readlink(f"/proc/self/fd/{handle}")).is_network
    if there and operation & fcntl.LOCK_EX and not may_write:
        raise OSError(errno.EBADF, "Bad file descriptor")
    return _flock(handle, operation)


def no_flock(*_):
    raise OSError(errno.ENOLCK, "No locks available")


def write_table(file, point, kind="nfs4", options="rw,vers=4.2"):
    """Write what ``/proc/self/mountinfo`` would say."""
    file.write_text(TABLE.format(point=str(point).replace(" ", "\\040"), kind=kind, options=options))
    return file


def pretend(monkeypatch, table, flock=flock_of_nfs):
    """Take the disks for those of a table, in this process."""
    monkeypatch.setattr(disks, "MOUNTS", table)
    monkeypatch.setattr(fcntl, "flock", flock)


PRETEND = """
import fcntl, pathlib, sys
import network_disk
from heatbath.system import disks
disks.MOUNTS, fcntl.flock = pathlib.Path(sys.argv[1]), network_disk.flock_of_nfs
"""
