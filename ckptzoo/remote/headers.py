"""Headers and directories of files on other machines, by one or two requests: for ``RemoteReferences.each``."""

import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any, NamedTuple, NoReturn, cast

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.header import header_length
from ckptzoo.remote.referenced import COPY, RecordedFile
from ckptzoo.schema.architecture import MAX_TENSORS
from ckptzoo.text import excerpt

MAX_HEADER = 32 * 2**20
"""Bytes of a safetensors header, as ``ckptzoo.hub.untrusted.Limits`` has it."""
MAX_MEMBERS = 4 * MAX_TENSORS + 1000
"""Members of a torch file, as ``ckptzoo.hub.untrusted`` has it."""
# APPNOTE.TXT of PKWARE, sections 4.3.7, 4.3.9 and 4.4.4
_LOCAL, _ENTRY = 30, b"PK\x01\x02"
"""Bytes of a member's own header without its name, and the first bytes of its entry in the directory."""
_HAS_DESCRIPTOR, _ENCRYPTED = 0x8, 0x2041
"""Flags of a member: checksum and sizes stand behind its bytes; bits 0, 6 and 13, which mean that it is encrypted."""
_DESCRIPTORS = (16, 24)
"""Bytes of checksum and sizes behind a member: of 32 and of 64 bits each."""
_ALIGNMENT = 64
"""torch.save pads a member's header so that its bytes begin at a multiple of this."""


class TorchOutline(NamedTuple):
    """A file of ``torch.save``: the pickle, which nobody has run or parsed, and where the storages are.

    ``members`` has the first byte in the file and the number of bytes of each member, by its name in the archive
    without the folder that holds all: ``data/0``.
    """

    pickle: bytes
    members: Mapping[str, tuple[int, int]]


def safetensors_header(file: RecordedFile, stream: IO[bytes]) -> bytes:
    """Return the header of a safetensors file, without the eight bytes of its length.

    One request, or two for headers of more than 64 KiB. Raises IntegrityError: it is longer than the limit or the file.
    """
    length = header_length(stream.read(8), file_size=file.size, location=file.address)
    if length > MAX_HEADER:
        got = f"{length} bytes"
        raise IntegrityError(Problem(file.address, "header length", f"at most {MAX_HEADER} bytes", got, COPY))
    return stream.read(length)


def torch_outline(file: RecordedFile, stream: IO[bytes]) -> TorchOutline:
    """Return the pickle of a file of ``torch.save``, and where its members are.

    Two requests, for the beginning and for the end, or one for a file of at most 64 KiB; more where the pickle or the
    directory is larger. A member's own header is not read: where its bytes begin follows from where the next member
    does, and is taken only if torch could have put them there.

    Raises IntegrityError: it is no such file, or its members are packed, encrypted, too many, or lie otherwise.
    """
    try:
        with zipfile.ZipFile(cast(IO[bytes], _Directory(file, stream))) as archive:
            infos = archive.infolist()
            pickles = [info for info in infos if info.filename.endswith("/data.pkl")]
            if len(pickles) != 1:
                _refuse(file, "one data.pkl, as in a file of torch.save", f"{len(pickles)}")
            pickle, folder = pickles[0], pickles[0].filename.removesuffix("data.pkl")
            # by its size in the directory zipfile reads, whatever the member's own header says
            content = archive.read(pickle) if pickle.file_size == pickle.compress_size else b""
            members = _members(file, infos, folder, archive.start_dir)
    except (
        zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, zlib.error,
    ) as error:  # fmt: skip
        _refuse(file, "a file of torch.save", excerpt(f"{type(error).__name__}: {error}"))
    if len(content) != pickle.file_size:
        _refuse(file, "a pickle that is not packed", "a packed one")
    return TorchOutline(content, members)


def _members(file: RecordedFile, infos: list[zipfile.ZipInfo], folder: str, stop: int) -> dict[str, tuple[int, int]]:
    """Return where the bytes of members are; ``stop`` is the first byte of the directory."""
    members = dict[str, tuple[int, int]]()
    in_order = sorted(infos, key=lambda info: info.header_offset)
    for info, following in zip(in_order, [*(other.header_offset for other in in_order[1:]), stop], strict=True):
        name = info.filename.removeprefix(folder)
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            _refuse(file, "members that are not packed", excerpt(info.filename))
        if info.flag_bits & _ENCRYPTED or name in members or name == info.filename:
            _refuse(file, "members of one folder, each once, not encrypted", excerpt(info.filename))
        least = info.header_offset + _LOCAL + len(info.orig_filename.encode())
        behind = _DESCRIPTORS if info.flag_bits & _HAS_DESCRIPTOR else (0,)
        starts = [following - count - info.file_size for count in behind]
        fitting = [at for at in starts if at % _ALIGNMENT == 0 and least <= at < least + 3 * _ALIGNMENT]
        if not fitting:
            _refuse(file, f"members at multiples of {_ALIGNMENT}", f"{excerpt(info.filename)} elsewhere")
        members[name] = fitting[0], info.file_size
    return members


def _refuse(file: RecordedFile, expected: str, got: str) -> NoReturn:
    raise IntegrityError(Problem(file.address, "archive", expected, got, COPY))


class _Directory:
    """A file for zipfile, which reads the directory whole: too many entries are refused before they are parsed."""

    def __init__(self, file: RecordedFile, stream: IO[bytes]) -> None:
        self._file, self._stream = file, stream
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1) -> Any:
        data = self._stream.read(size)
        if data.count(_ENTRY) > MAX_MEMBERS:
            _refuse(self._file, f"at most {MAX_MEMBERS} members", "more")
        return data
