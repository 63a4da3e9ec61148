import os
import pickle
import struct
from hashlib import sha256

import pytest
import torch

from heatbath.runs import checkpoints
from heatbath.runs.checkpoints import DamagedCheckpointError, Saver, Shelf, read_checkpoint
from heatbath.system import whole_files
from measured import an_epoch


def state(seed, epoch):
    generator = torch.Generator().manual_seed(seed * 1000 + epoch)
    return {"weight": torch.randn(5, 7, generator=generator), "epoch": torch.tensor(epoch)}


def curve(seed, epoch, validated=True):
    extra = (0.5 + seed / 10, 0.1 / (seed + 1)) if validated else ()
    return [an_epoch(0.1 * seed, 1 / (number + 3), 0.2, seed + number / 3, 0.7, *extra) for number in range(epoch)]


def name(job, process=77):
    """Of a stack's checkpoints: whose it is, and which."""
    return f"{process}-0123456789abcdef.{job}"


def save(saver, epoch, seeds, validated=True):
    states, curves = [state(seed, epoch) for seed in seeds], [curve(seed, epoch, validated) for seed in seeds]
    return saver.save(epoch, [f"run{seed}" for seed in seeds], states, curves)


@pytest.mark.parametrize("validated", [True, False])
def test_what_is_read_is_what_was_written(tmp_path, validated):
    file = save(Saver(tmp_path, name(1)), 4, [1, 2, 3], validated)
    content = read_checkpoint(file)
    assert list(content) == ["run1", "run2", "run3"]
    for seed, restored in zip([1, 2, 3], content.values(), strict=True):
        assert torch.equal(restored.state["weight"], state(seed, 4)["weight"])
        assert int(restored.state["epoch"]) == 4
        assert list(restored.epochs) == curve(seed, 4, validated)
    assert not list(tmp_path.glob("*.partial"))


def test_the_previous_one_is_kept_and_the_latest_found(tmp_path):
    saver = Saver(tmp_path, name(1))
    files = [save(saver, epoch, [1, 2]) for epoch in (1, 2, 3)]
    assert files[0] == files[2] != files[1]
    found = Shelf(tmp_path).find(["run1", "run2", "run9"])
    assert {run: (each.file, each.epoch) for run, each in found.items()} == dict.fromkeys(
        ["run1", "run2"], (files[2], 3)
    )
    saver.remove()
    assert list(tmp_path.iterdir()) == []


def test_each_flipped_bit_and_each_truncation_is_detected(tmp_path):
    saver = Saver(tmp_path, name(1))
    before, last = save(saver, 1, [1]), save(saver, 2, [1])
    sound = last.read_bytes()
    damages = [sound[:at] + bytes([sound[at] ^ (1 << at % 8)]) + sound[at + 1 :] for at in range(0, len(sound), 7)]
    damages += [sound[:length] for length in range(0, len(sound), 101)] + [sound + b"\0"]
    for damaged in damages:
        last.write_bytes(damaged)
        with pytest.raises(DamagedCheckpointError):
            read_checkpoint(last)
    shelf = Shelf(tmp_path)
    assert shelf.find(["run1"])["run1"].file == before
    assert shelf.find(["run1"])["run1"].epoch == 1
    assert shelf.damaged == [last]
    last.write_bytes(sound)
    os.utime(last, (1, 1))  # another time than the damaged file's, however coarse the clock
    assert shelf.find(["run1"])["run1"].epoch == 2


def test_states_are_found_whichever_stack_they_were_in(tmp_path):
    whole, half = Saver(tmp_path, name(2)), Saver(tmp_path, name(3))
    save(whole, 3, [1, 2, 3])
    save(whole, 4, [1, 2, 3])
    later = save(half, 5, [2])
    shelf = Shelf(tmp_path)
    found = shelf.find(["run1", "run2", "run3"])
    assert [found[f"run{k}"].epoch for k in (1, 2, 3)] == [4, 5, 4]
    assert found["run2"].file == later
    assert torch.equal(shelf.read(found["run3"].file, "run3").state["weight"], state(3, 4)["weight"])
    assert torch.equal(shelf.read(later, "run2").state["weight"], state(2, 5)["weight"])
    with pytest.raises(DamagedCheckpointError, match="has no run run3"):
        shelf.read(later, "run3")


def test_a_file_that_is_rewritten_is_read_again(tmp_path):
    saver, shelf = Saver(tmp_path, name(1)), Shelf(tmp_path)
    first = save(saver, 1, [1])
    assert int(shelf.read(first, "run1").state["epoch"]) == 1
    save(saver, 2, [1])
    assert save(saver, 3, [1]) == first
    assert int(shelf.read(first, "run1").state["epoch"]) == 3


def test_only_files_whose_runs_have_all_ended_are_removed(tmp_path):
    both, one = save(Saver(tmp_path, name(4)), 2, [1, 2]), save(Saver(tmp_path, name(5)), 2, [1])
    Shelf(tmp_path).clean(["run1"])
    assert both.exists()
    assert not one.exists()
    Shelf(tmp_path).clean(["run1", "run2", "run3"])
    assert not both.exists()


def test_no_pickle_is_executed(tmp_path):
    """A file with a sound checksum may still come from anybody."""
    trap = tmp_path / "trap"

    class Evil:
        def __reduce__(self):
            return (open, (str(trap), "w"))

    file = save(Saver(tmp_path, name(1)), 1, [1])
    for payload in (pickle.dumps(Evil(), protocol=2), _torch_saved(tmp_path, {"states": [Evil()], "curves": []})):
        header = b'{"epoch": 1, "runs": ["run1"]}'
        rest = struct.pack("<I", len(header)) + header + payload
        file.write_bytes(checkpoints._MAGIC + sha256(rest).digest() + rest)
        with pytest.raises(DamagedCheckpointError, match="not a checkpoint"):
            read_checkpoint(file)
    assert not trap.exists()


def _torch_saved(folder, content):
    torch.save(content, folder / "saved")
    return (folder / "saved").read_bytes()


@pytest.mark.parametrize("room", [0, 300, 1500])
def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch, room):
    saver = Saver(tmp_path, name(1))
    first = save(saver, 1, [1])
    monkeypatch.setattr(whole_files, "open", _open_with_room(room), raising=False)
    with pytest.raises(OSError, match="No space left") as caught:
        save(saver, 2, [1])
    assert checkpoints.is_disk_full(caught.value)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [first]
    assert Shelf(tmp_path).find(["run1"])["run1"].epoch == 1
    assert save(saver, 2, [1]) != first


NO_SPACE = OSError(28, "No space left on device")


def _open_with_room(room, error=NO_SPACE):
    """A disk that takes no more than ``room`` bytes: the kernel's own word is tested with a real one in test_kills."""

    def opened(*arguments):
        file = open(*arguments)  # noqa: SIM115 - it is closed by what wraps it
        write, left = file.write, [room + checkpoints._START]

        class Limited:
            def __getattr__(self, name):
                return getattr(file, name)

            def __enter__(self):
                return self

            def __exit__(self, *error):
                file.close()

            def write(self, data):
                left[0] -= len(data)
                if left[0] < 0:
                    raise error
                return write(data)

        return Limited()

    return opened


@pytest.mark.parametrize("room", [0, 1500])
def test_an_interrupt_while_writing_stays_one(tmp_path, monkeypatch, room):
    """Whichever part of the file Ctrl-C comes at; the previous checkpoint stays."""
    saver = Saver(tmp_path, name(1))
    before = save(saver, 1, [1]).read_bytes()
    monkeypatch.setattr(whole_files, "open", _open_with_room(room, KeyboardInterrupt()), raising=False)
    with pytest.raises(KeyboardInterrupt):
        save(saver, 2, [1])
    (file,) = tmp_path.iterdir()
    assert file.read_bytes() == before


@pytest.mark.parametrize("change", ["epoch", "bytearray", "legacy"])
def test_a_sound_checksum_does_not_vouch_for_the_content(tmp_path, change):
    """Another epoch in the state than in the header; a call that fills the memory; a form that torch writes no more."""
    file = save(Saver(tmp_path, name(1)), 2, [1])
    content = file.read_bytes()
    length = int.from_bytes(content[40:44], "little")
    if change == "epoch":
        values = {"states": [state(1, 3)], "curves": [torch.zeros(96, dtype=torch.uint8)]}
    else:
        values = {"states": [], "curves": [bytearray(5)]}
    torch.save(values, tmp_path / "saved", _use_new_zipfile_serialization=change != "legacy")
    rest = content[40 : 44 + length] + (tmp_path / "saved").read_bytes()
    file.write_bytes(content[:8] + sha256(rest).digest() + rest)
    with pytest.raises(DamagedCheckpointError, match=r"not a checkpoint of this version|are not after 2 epochs"):
        read_checkpoint(file)
