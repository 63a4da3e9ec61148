import fcntl
import os

import pytest

from heatbath.system import disks
from heatbath.system.disks import Disk, check_locks, find_disk
from heatbath.system.locks import Owner, is_alive, tidy
from network_disk import no_flock, pretend, write_table

NETWORK = ["nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "afs", "9p", "fuse", "fuse.sshfs", "fuse.juicefs"]


@pytest.mark.parametrize("kind", NETWORK)
def test_network_disks_are_known(tmp_path, monkeypatch, kind):
    home = tmp_path / "my home"
    monkeypatch.setattr(disks, "MOUNTS", write_table(tmp_path / "mounts", home, kind))
    assert find_disk(home / "runs") == Disk(kind, ("rw", "relatime", "rw", "vers=4.2"))
    assert find_disk(home / "runs").is_network
    assert find_disk(tmp_path / "my home 2").kind == "ext4"
    assert not find_disk(tmp_path).is_network
    (tmp_path / "link").symlink_to(home)
    assert find_disk(tmp_path / "link" / "runs").is_network


def test_the_disks_of_this_machine(tmp_path, monkeypatch):
    assert find_disk(tmp_path).kind
    assert find_disk(disks.MOUNTS).kind == "proc"
    monkeypatch.setattr(disks, "MOUNTS", tmp_path / "none")  # as on macOS
    assert find_disk(tmp_path) == Disk()
    (tmp_path / "none").write_text("nonsense\n\n - \n")
    assert find_disk(tmp_path) == Disk()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk"])
def test_local_disks_are_not_asked_for_locks(tmp_path, monkeypatch, kind):
    pretend(monkeypatch, write_table(tmp_path / "mounts", tmp_path, kind), no_flock)
    check_locks(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        ("nfs", "rw,nolock,vers=3", "nolock"),
        ("nfs", "rw,local_lock=all", "local_lock=all"),
        ("lustre", "rw,localflock", "localflock"),
        ("cifs", "rw,nobrl", "nobrl"),
        ("fuse.sshfs", "rw", "fuse.sshfs"),
    ],
)
def test_locks_of_one_machine_alone_are_refused(tmp_path, monkeypatch, kind, options, why):
    pretend(monkeypatch, write_table(tmp_path / "mounts", tmp_path, kind, options))
    with pytest.raises(OSError, match=rf"^runs is on a network disk \({kind}\) whose .* see \({why}\): give --st"):
        check_locks(tmp_path / "runs", "runs")


@pytest.mark.parametrize("kind", ["fuse", "fuse.glusterfs", "fuse.juicefs"])
def test_a_disk_that_keeps_old_pages_is_refused(tmp_path, monkeypatch, kind):
    pretend(monkeypatch, write_table(tmp_path / "mounts", tmp_path, kind))
    with pytest.raises(OSError, match=rf"^runs is on a network disk \({kind}\) that may show .*: give --store"):
        check_locks(tmp_path / "runs", "runs")


@pytest.mark.parametrize("kind", ["fuse.ceph-fuse", "fuse.gocryptfs"])
def test_a_disk_of_fuse_that_shows_what_is_there_is_taken(tmp_path, monkeypatch, kind):
    pretend(monkeypatch, write_table(tmp_path / "mounts", tmp_path, kind))
    check_locks(tmp_path / "runs", "runs")


def test_a_disk_whose_locks_fail_is_refused_and_nothing_left(tmp_path, monkeypatch):
    table = write_table(tmp_path / "mounts", tmp_path, options="rw,local_lock=none")
    pretend(monkeypatch, table)
    check_locks(tmp_path / "a" / "runs", tmp_path)
    words = r"is on a network disk \(nfs4\) that gives no locks \(No locks available\): give --store on a local disk"
    monkeypatch.setattr(fcntl, "lockf", no_flock)
    with pytest.raises(OSError, match=words):
        check_locks(tmp_path / "a" / "runs", tmp_path)
    monkeypatch.setattr(fcntl, "flock", no_flock)
    with pytest.raises(OSError, match=words):
        check_locks(tmp_path / "a" / "runs", tmp_path)
    assert os.listdir(tmp_path) == ["mounts"]


def test_owners_are_known_and_tidied_away_with_the_locks_of_nfs(tmp_path, monkeypatch):
    home = tmp_path / "home"
    pretend(monkeypatch, write_table(tmp_path / "mounts", home))
    owner = Owner(home)
    (home / "16-0123456789abcdef.lock").touch()
    assert is_alive(home, owner.name)
    tidy(home)
    assert os.listdir(home) == [f"{owner.name}.lock"]
    owner.close()
    assert not is_alive(home, owner.name)
