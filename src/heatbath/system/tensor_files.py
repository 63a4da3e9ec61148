"""Files of tensors from strangers: looked through before torch reads them, which would believe what they claim."""

from __future__ import annotations

import pickletools
import re
import zipfile
from itertools import chain
from typing import IO

_TENSORS = re.compile(r"collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)|torch \w+Storage")
_OBJECTS = ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4")


def check_tensor_file(file: IO[bytes]) -> None:
    """Refuse what is not a file of ``torch.save`` that holds tensors, lists, dictionaries, texts and numbers.

    ``weights_only`` executes nothing, but allocates what is asked for: an archive of a kilobyte may unpack to
    gigabytes, and so may a call of ``bytearray``, which torch admits.
    """
    size = file.seek(0, 2)
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise ValueError("it is compressed, as torch never does")
            if sum(entry.file_size for entry in entries) > size:
                raise ValueError("it claims more bytes than it has")
            pickles = [archive.read(entry) for entry in entries if entry.filename.endswith(".pkl")]
    except zipfile.BadZipFile:
        raise ValueError("it is not an archive of torch") from None
    for operation, argument, _ in chain.from_iterable(map(pickletools.genops, pickles)):
        if operation.name == "GLOBAL" and not _TENSORS.fullmatch(str(argument)):
            raise ValueError(f"it names {str(argument)!r}, which is not part of a tensor")
        if operation.name in _OBJECTS:
            raise ValueError("it makes objects that are not tensors")
    file.seek(0)
