"""Untrusted tar archives, read in order from a stream, with a bound on everything that a header declares.

``tarfile`` reads long names, pax headers and sparse maps whole, of whatever size, calls itself for the header after
each, searches pax headers in quadratic time (before Python 3.11.10 and 3.12.6), and takes a damaged header for the end
of the archive. Only its parser of single blocks, ``TarInfo.frombuf``, is used here.
"""

import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from typing import IO, Any, NoReturn

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.text import excerpt

BLOCK = tarfile.BLOCKSIZE
MAX_EXTENSIONS = 2**20
"""Bytes of the headers before one member's own, which hold its long name and pax fields."""
MAX_MEMBERS = 2**20
"""Members of an archive; each takes some 100 bytes of memory, because no path may come twice."""
_FREE_MEMBERS, _BYTES_PER_MEMBER = 2**16, 512
"""Members that are allowed in any case, and bytes of the packed archive for each further one."""
_MAX_PADDING = 2**26
"""Zeros after the end: writers fill their last record, which is 10 KiB by default."""
_LONGEST_SIZE = 18
"""Digits of a size in a pax header."""
_READ_BYTES = 2**16
_NAMES, _LINKS = tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
_FIELDS = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENSIONS = (_NAMES, _LINKS, *_FIELDS, tarfile.XGLTYPE)
_KINDS = {
    **dict.fromkeys((tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE), "file"),
    tarfile.DIRTYPE: "folder",
    **dict.fromkeys((tarfile.SYMTYPE, tarfile.LNKTYPE), "a link"),
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    **dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE), "a device or a pipe"),
}
_FETCH_AGAIN = "Fetch the archive again."
_UNUSABLE = "Do not use this archive."


class TarMember(io.RawIOBase):
    """A member of an archive, and the stream of its bytes until the next member is asked for.

    ``path`` is unchecked; ``kind`` is ``file``, ``folder``, or another word for messages; ``end`` is the offset in the
    unpacked archive where the member ends, ``left`` the bytes that were not read yet.
    """

    def __init__(self, reader: "TarReader", info: tarfile.TarInfo, start: int) -> None:
        self.path, self.size, self.left, self.end = info.name, info.size, info.size, start + info.size
        self.kind = _KINDS.get(info.type, "what is none")
        self._reader = reader

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._reader.take(min(len(buffer), self.left))
        buffer[: len(data)] = data
        self.left -= len(data)
        return len(data)


class TarReader:
    """The members of an archive, in its order. ``stream`` is unpacked; ``location`` is for messages."""

    def __init__(self, stream: IO[bytes], location: str) -> None:
        self._stream, self._location, self._position = stream, location, 0
        self._fields: dict[bytes, bytes] = {}

    def __iter__(self) -> Iterator[TarMember]:
        """Iterate over all members, folders and links included.

        Raises ``IntegrityError`` where the archive is damaged, cut off, or declares more than a header may.
        """
        while (member := self._next()) is not None:
            yield member
            self._skip(member.left + -member.size % BLOCK)

    def take(self, count: int) -> bytes:
        """Return the next bytes; raise ``IntegrityError`` where there are fewer, or they cannot be unpacked."""
        data = self._read(count)
        if len(data) < count:
            self._refuse("a whole tar archive", f"its end at byte {self._position}", _FETCH_AGAIN)
        return data

    def _read(self, count: int) -> bytes:
        try:
            data = self._stream.read(count)
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            # a disk or a network that fails has a number
            if isinstance(error, OSError) and error.errno is not None:
                raise
            self._refuse("a whole tar archive", f"{type(error).__name__}: {error}", _FETCH_AGAIN)
        self._position += len(data)
        return data

    def _next(self) -> TarMember | None:
        """Return the next member; None after the last."""
        headers: dict[bytes, bytes] = {}
        fields, total = dict(self._fields), 0
        while (info := self._header()) is not None and info.type in _EXTENSIONS:
            total += BLOCK + info.size
            if info.size < 0 or total > MAX_EXTENSIONS:
                expected = f"0 to {MAX_EXTENSIONS} bytes of long names and pax fields of a member"
                self._refuse(expected, f"{min(total, info.size) if info.size < 0 else total}", _UNUSABLE)
            data = self.take(info.size + -info.size % BLOCK)[: info.size]
            if info.type == tarfile.XGLTYPE:
                self._fields.update(self._records(data))
                fields = self._fields | fields
                continue
            # readers differ in which of two they take
            kind = _FIELDS[0] if info.type in _FIELDS else info.type
            if kind in headers:
                self._refuse("one long name, link and pax header of a member", "two of a kind", _UNUSABLE)
            headers[kind] = data
            if kind in _FIELDS:
                fields |= self._records(data)
        if info is None:
            if headers:
                self._refuse("a member behind its long name or pax header", "the end of the archive", _FETCH_AGAIN)
            return None
        return self._member(info, headers.get(_NAMES), fields)

    def _member(self, info: tarfile.TarInfo, long_name: bytes | None, fields: dict[bytes, bytes]) -> TarMember:
        if long_name is not None:
            info.name = _text(long_name.partition(b"\0")[0])
        if path := fields.get(b"path"):
            if long_name is not None:
                self._refuse("one name of a member", "one in a long name and one in a pax header", _UNUSABLE)
            info.name = _text(path)
        if digits := fields.get(b"size"):
            if not digits.isdigit() or len(digits) > _LONGEST_SIZE:
                self._refuse("a size of some digits in a pax header", excerpt(_text(digits), 40), _UNUSABLE)
            info.size = int(digits)
        member = TarMember(self, info, self._position)
        # whether bytes of what is no file follow its header is read in different ways
        if info.size < 0 or (info.size and member.kind in ("folder", "a link")):
            self._refuse("0 bytes or more of a file, none of others", f"{info.size} ({member.kind})", _UNUSABLE)
        return member

    def _header(self) -> tarfile.TarInfo | None:
        """Return the next header; None at the mark of the end."""
        block = self.take(BLOCK)
        # POSIX ends an archive with two such blocks; some writers have one
        if block.count(0) == BLOCK:
            self._check_end()
            return None
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            self._refuse("a whole tar archive", f"{error} at byte {self._position - BLOCK}", _FETCH_AGAIN)

    def _check_end(self) -> None:
        """Read on, so that checksums of a packed archive are compared: nothing but zeros may follow the end."""
        end = self._position
        while data := self._read(_READ_BYTES):
            if data.count(0) != len(data):
                self._refuse("nothing behind its end", "more data, as of a second archive", "Repack it as one archive.")
            if self._position - end > _MAX_PADDING:
                self._refuse(f"at most {_MAX_PADDING} zeros behind its end", "more", _UNUSABLE)

    def _records(self, data: bytes) -> dict[bytes, bytes]:
        """Read path and size in a pax header of records ``<length> <keyword>=<value>``; the last of each counts."""
        kept: dict[bytes, bytes] = {}
        at = 0
        while at < len(data) and data[at]:
            # the length of a record counts itself; within MAX_EXTENSIONS it has at most seven digits
            space = data.find(b" ", at, at + 8)
            digits = data[at : max(at, space)]
            end = at + int(digits) if digits.isdigit() else 0
            keyword, equals, value = data[space + 1 : end - 1].partition(b"=")
            if not space < end - 1 < len(data) or data[end - 1 : end] != b"\n" or not equals:
                self._refuse("pax headers of records with their lengths", f"{data[at : at + 20]!r}", _UNUSABLE)
            if keyword.startswith(b"GNU.sparse."):
                self._refuse("files with all their bytes", "a sparse one", "Repack it without --sparse.")
            if keyword in (b"path", b"size"):
                kept[keyword] = value
            at = end
        return kept

    def _skip(self, count: int) -> None:
        while count:
            count -= len(self.take(min(count, _READ_BYTES)))

    def _refuse(self, expected: str, got: str, step: str) -> NoReturn:
        raise IntegrityError(Problem(self._location, "archive", expected, excerpt(got), step))


class ArchivePaths:
    """The paths of an archive's members: none twice, and a bound on their number; ``location`` is for messages."""

    def __init__(self, location: str) -> None:
        self._location, self._seen = location, set[bytes]()

    def add(self, path: str, packed: int) -> None:
        """Add a path, after ``packed`` bytes of the archive; raise ``IntegrityError`` for a second one or too many."""
        most = min(MAX_MEMBERS, _FREE_MEMBERS + packed // _BYTES_PER_MEMBER)
        if len(self._seen) >= most:
            expected, got = f"at most {most} members in its first {packed} bytes", "more"
            raise IntegrityError(Problem(self._location, "archive", expected, got, "Import it in several archives."))
        # of a long path a digest is kept
        digest = blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).digest()
        if digest in self._seen:
            got = f"{excerpt(path)!r} twice"
            raise IntegrityError(Problem(self._location, "member", "every path once", got, "Repack it."))
        self._seen.add(digest)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
