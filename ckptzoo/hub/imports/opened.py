"""``OpenedSource``: the files of a source with those of the archives among them, each with its form."""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate
from typing import IO, Any

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.hub.imports.mapped import MappedStream
from ckptzoo.hub.imports.one_network import Related, may_be_related, related
from ckptzoo.hub.imports.packed import ERRORS, PACKED, PACKED_SUFFIXES, unpacked
from ckptzoo.hub.imports.sources import (
    FolderSource,
    ImportSource,
    SourceFile,
    WholeSource,
    ZipSource,
    archive_kind,
    stem,
    tar_files,
)
from ckptzoo.hub.untrusted import Limits
from ckptzoo.hub.untrusted.formats import HEAD_BYTES, FileForm
from ckptzoo.hub.untrusted.forms import FORMS, form_of
from ckptzoo.hub.untrusted.settings_files import PARSERS
from ckptzoo.text import excerpt

MAX_DEPTH = 2
"""Depth of archives within one another, without the source's own archive."""
_MAX_ZIP = 2**30
"""Bytes of a zip archive that is in another archive: its directory is at its end, so that it is read whole."""
_EXPANSION, _ALWAYS_ALLOWED, _MAX_FILES = 1000, 2**30, 2**20
"""Bounds of all archives of a source: unpacked size as a multiple of the source's size, the bytes that are allowed in
any case, and the number of files.
"""
_PIECE = 2**20
_FIRST_FILES, _FIRST_BYTES = 1000, 256 * 2**20
"""First files, and their bytes, of an archive that is read in order: their names say what the archive holds."""
_JUNK = re.compile(
    r"(^|/)(__MACOSX|\.ipynb_checkpoints|\.git|\.svn|\.hg|__pycache__|@eaDir|\.Trash[^/]*|\.cache/huggingface)/"
    r"|(^|/)(\._|\.#|\.nfs|\.~lock|#[^/]*#$)|(^|/)(\.DS_Store|Thumbs\.db|desktop\.ini)$|~$|(^|/)\.[^/]*\.sw[a-p]$"
)
"""Files that systems, notebooks, editors and version control leave beside others."""
_MARKS = re.compile(r"__|/\.|[~#@]|humbs|desktop")
"""One of these is in every such path that does not begin with a dot."""
JUNK = "left by a system, a notebook or an editor"
_CACHES = ("models--", "datasets--", "spaces--")
_NAMED_ARCHIVES = (".zip", ".tar", ".tgz", ".txz", ".tbz2", ".keras", *PACKED_SUFFIXES)
_NO_ARCHIVES = (".pth.tar", ".pt.tar")
"""Suffixes of files of torch, as the ImageNet example names them; archives are opened when met."""
_TEXTS = (
    ".json", ".jsonl", ".csv", ".tsv", ".txt", ".md", ".rst", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".py", ".ipynb",
    ".html", ".css", ".js", ".sh", ".log", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".mp4", ".gitattributes",
    ".gitignore", ".bib", ".tex",
)  # fmt: skip
"""Files of a hub that are not fetched to see what they are."""


@dataclass(frozen=True)
class OpenedFile(SourceFile):
    """One file of a source, or of an archive in it.

    ``packed_by`` is the form of its packing, empty for none. ``reopen`` opens it again during the pass; None where its
    bytes come once. ``others`` are passed over for it, and may hold the same network in another format.
    """

    form: FileForm = FORMS["unknown"]
    packed_by: str = ""
    reopen: Callable[[], IO[bytes]] | None = field(default=None, repr=False)
    others: tuple["OpenedFile", ...] = ()

    def read(self, limit: int) -> bytes:
        """Return all bytes, unpacked; raise ``ZooError`` for more than ``limit``, or others than were packed."""
        if not self.packed_by:
            return super().read(limit)
        bounds = Limits()
        most, pieces, size = min(limit, max(bounds.always_allowed, bounds.expansion * self.size)), list[bytes](), 0
        with self.open() as stream:
            try:
                while size <= most and (piece := stream.read(_PIECE)):
                    pieces.append(piece)
                    size += len(piece)
            except ERRORS as error:
                # gzip and bz2 report damage by an OSError without a number; one with a number is the system's
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                got = f"{type(error).__name__}: {error}"
                raise IntegrityError(
                    Problem(self.path, self.packed_by, "bytes as they were packed", got[:200], "Fetch it again.")
                ) from None
        if size > most:
            expected = f"at most {most} bytes unpacked of {self.size}"
            raise IntegrityError(Problem(self.path, self.packed_by, expected, "more", "Do not use this file."))
        return b"".join(pieces)


class OpenedSource(ImportSource):
    """The files of a source, and those in its archives under the archive's path without its suffix.

    ``include`` and ``exclude`` are patterns of the shell (``*.pt``, ``seed0``, ``runs/*/best.pt``) that a path, its
    last part or one of its folders fits; an empty ``include`` takes every file.

    By path, ``forms`` has the files that were met, in order; ``passed_over`` those that no adapter sees, and why;
    ``reasons`` why files are passed over that hold the network of another one, known before a pass meets them;
    ``facts`` files that say something about checkpoints, and where rows have it. ``opened`` are the files that were
    read, ``broken`` the archives that cannot be read to their end, and why.
    """

    def __init__(self, source: ImportSource, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        super().__init__(source.address, source.name, source.nbytes)
        self.name, self.in_order, self.is_local = source.name, source.in_order, source.is_local
        self.repository = source.repository
        self._source, self._include, self._exclude = source, tuple(include), tuple(exclude)
        # of a folder of a hub's cache that is the source itself
        self._within = f"{source.name}/" if source.name.startswith(_CACHES) else ""
        self.forms = dict[str, FileForm]()
        self.opened = set[str]()
        self.passed_over = dict[str, str]()
        self.broken = source.broken  # one list: archives are opened here, or are sources themselves
        self._nested_bytes = self._nested_files = 0
        self._related: Related | None = None
        self._first_files: list[SourceFile] | None = None
        self.reasons, self._parts = dict[str, str](), dict[str, str]()
        self.facts = dict[str, str]()

    def repository_of(self, path: str) -> str:
        """Return the address of the repository that holds a file; empty where none does."""
        return self._source.repository_of(path)

    def files(self) -> Iterator[OpenedFile]:
        """Iterate over all files that are not passed over."""
        self._nested_bytes = self._nested_files = 0
        self.passed_over.update(dict.fromkeys(self._source.dangling, "a link that leads to no file"))
        compared = self._relate().compared
        self.broken.clear()
        for file in self._source.files():
            self.position = self._source.position
            if file.path in compared:
                yield from self._with_others(file, compared[file.path])
            else:
                yield from self._files(file, file.path, 0)
        self.position = self._source.position

    def _relate(self) -> Related:
        """Find which files hold one network; files in archives are reported when these are opened."""
        if self._related is None:
            sizes = {path: size for path, size in self._sizes().items() if self._is_wanted(path)}
            self._related = self._note_related(sizes, can_compare=isinstance(self._source, FolderSource))
        return self._related

    def _sizes(self) -> Mapping[str, int]:
        """Return the files by name; for an archive read in order only where its first names say that it matters."""
        if isinstance(self._source, FolderSource):
            return self._source.sizes
        if not self._source.in_order:
            return {file.path: file.size for file in self._source.files()}
        if not any(may_be_related(file.path) for file in self._first()):
            return {}
        return {file.path: file.size for file in self._beginning(None, None)}

    def _beginning(self, count: int | None, nbytes: int | None) -> Iterator[SourceFile]:
        """Yield the first files of the source, as far as it can be read; the pass that reads them reports errors."""
        size = 0
        with suppress(ZooError):
            for at, file in enumerate(self._source.files(), start=1):
                yield file
                size += file.size
                if (count is not None and at >= count) or (nbytes is not None and size > nbytes):
                    break
        self.broken.clear()

    def _note_related(self, sizes: dict[str, int], *, can_compare: bool) -> Related:
        relations = related(sizes, can_compare=can_compare)
        self.reasons |= relations.reasons
        self._parts |= relations.parts
        return relations

    def _with_others(self, file: SourceFile, paths: Sequence[str]) -> Iterator[OpenedFile]:
        """Yield a file with those that are passed over for it, opened too."""
        for item in self._files(file, file.path, 0):
            assert isinstance(self._source, FolderSource)  # others are not compared
            opened = map(self._source.file, paths)
            files = (one for other in opened for one in self._files(other, other.path, 0, is_compared=True))
            # what was opened to look at it is closed by now
            yield replace(item, others=tuple(replace(one, open=one.reopen) for one in files if one.reopen is not None))

    def _is_wanted(self, path: str, *, is_chosen: bool = False) -> bool:
        is_chosen = is_chosen or not self._include or _fits(path, self._include)
        return is_chosen and not _is_junk(path) and not _fits(path, self._exclude)

    def may_hold(self, suffixes: tuple[str, ...]) -> bool:
        """Tell by names alone whether there are files with one of the suffixes, or archives, which may hold some.

        Only the names of the first files are used where an archive is read in order.
        """
        if self._source.in_order:
            return any(file.path.lower().endswith(suffixes) for file in self._first())
        return any(
            name.endswith(suffixes) or (name.endswith(_NAMED_ARCHIVES) and not name.endswith(_NO_ARCHIVES))
            for name in map(str.lower, self._sizes())
        )

    def _first(self) -> list[SourceFile]:
        if self._first_files is None:
            self._first_files = list(self._beginning(_FIRST_FILES, _FIRST_BYTES))
        return self._first_files

    def first_paths(self) -> list[str]:
        """Return the first paths, with those of files in archives that have the name of one; others are not opened."""
        paths, size = list[str](), 0
        files: list[SourceFile] = []
        for file in self._source.files():
            name = file.path.lower()
            is_archive = name.endswith(_NAMED_ARCHIVES) and not name.endswith(_NO_ARCHIVES) and self._source.is_local
            paths += [item.path for item in self._files(file, file.path, 0)] if is_archive else [file.path]
            files.append(file)
            size += file.size
            if len(paths) >= _FIRST_FILES or size > _FIRST_BYTES:
                break
        self.broken.clear()
        self._first_files = files
        return [path for path in paths if not _is_junk(path)]

    def _files(
        self, file: SourceFile, path: str, depth: int, *, is_chosen: bool = False, is_compared: bool = False
    ) -> Iterator[OpenedFile]:
        """Yield a file, or those in it where it is an archive; all of them where ``--include`` chooses the archive."""
        lower = path.lower()
        is_chosen = is_chosen or not self._include or _fits(path, self._include)
        if _is_junk(path):
            self.passed_over[path] = JUNK
        elif _fits(path, self._exclude):
            self.passed_over[path] = "left out by --exclude"
        # files of settings say something about the checkpoints beside them
        elif not is_chosen and not lower.endswith((*_NAMED_ARCHIVES, *PARSERS)):
            self.passed_over[path] = "left out by --include"
        elif not _is_text(path):
            shown, step = ascii(path), "Rename it; or leave it out with --exclude or --skip-bad."
            problem = Problem(f"{self.address}: {shown}", "name", "one in UTF-8, as a zoo keeps it", "another", step)
            self.broken.append((shown, ZooError(problem)))
        elif path in self.reasons and not is_compared:
            self.passed_over[path] = self.reasons[path]
        elif not self._source.is_local and lower.endswith(_TEXTS):
            form = FORMS["json" if lower.endswith(".json") else "table" if lower.endswith((".csv", ".tsv")) else "text"]
            yield self._opened(path, file.size, file.open, form, reopen=file.open)
        else:
            try:
                stream = _buffered(file.open())
                # peek() reads once at most, and returns what is in the buffer, be it less or more than was asked for
                head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
            except ZooError as error:  # of a member of an archive
                self.broken.append((path, error))
                return
            except OSError as error:
                got = error.strerror or type(error).__name__
                problem = Problem(f"{self.address}: {path}", "file", "one that can be read", got, "Leave it out.")
                self.broken.append((path, ZooError(problem)))
                return
            with stream:
                form = form_of(head, self._within + path)
                if form.is_read and path in self._parts:
                    form = FORMS[self._parts[path]]
                is_plain = form.read is not None and is_chosen  # most files, checkpoint.pth.tar among them
                if not is_plain and (form.is_container or lower.endswith(_NAMED_ARCHIVES)):
                    yield from self._of_container(file, path, stream, head, form, depth, is_chosen)
                else:
                    reopen = file.open if self._source.is_reopened and not depth else None
                    yield self._opened(path, file.size, lambda: stream, form, reopen=reopen)

    def _opened(
        self,
        path: str,
        size: int,
        opener: Callable[[], IO[bytes]],
        form: FileForm,
        *,
        packed_by: str = "",
        reopen: Callable[[], IO[bytes]] | None = None,
    ) -> OpenedFile:
        self.forms[path] = form
        again = None if reopen is None else partial(self._open, path, reopen)
        return OpenedFile(path, size, partial(self._open, path, opener), form=form, packed_by=packed_by, reopen=again)

    def _of_container(
        self,
        file: SourceFile,
        path: str,
        stream: io.BufferedReader,
        head: bytes,
        form: FileForm,
        depth: int,
        is_chosen: bool,
    ) -> Iterator[OpenedFile]:
        """Yield the files of an archive, or the one that is packed."""
        counted, is_packed = _Counted(stream), form.name in PACKED
        inner = io.BufferedReader(counted)
        try:
            content = unpacked(inner, form.name) if is_packed else inner
            inner_head = _peeked(content) if is_packed else b""
            kind = archive_kind(head, path, lambda _: inner_head)
            if not kind:
                ending = next((end for end in PACKED_SUFFIXES if is_packed and path.lower().endswith(end)), "")
                name = path[: len(path) - len(ending)]
                if not is_chosen and not _fits(name, self._include):
                    self.passed_over[path] = "left out by --include"
                elif is_packed:
                    inner_form = form_of(inner_head, name)
                    yield self._opened(name, file.size, lambda: content, inner_form, packed_by=form.name)
                else:
                    yield self._opened(path, file.size, lambda: stream, form)
                return
            if depth >= MAX_DEPTH:
                self.passed_over[path] = (
                    f"an archive within {MAX_DEPTH} others. Unpack the outer ones, and import that."
                )
                return
            self.forms[path] = FORMS[kind]
            self.opened.add(path)
            prefix = f"{path.rpartition('/')[0]}/{stem(path.rpartition('/')[2])}".lstrip("/")
            archive = self._zip(file, path, stream) if kind == "zip" else None
            files = tar_files(content, lambda: counted.count, f"{self.address}: {path}")
            for item in files if archive is None else archive.files():
                if archive is not None and not archive.position:
                    inside = {f"{prefix}/{name}": size for name, size in archive.sizes.items()}
                    wanted = {name: size for name, size in inside.items() if self._is_wanted(name, is_chosen=is_chosen)}
                    self._note_related(wanted, can_compare=False)
                self._count(item, path)
                if isinstance(stream, MappedStream) and not is_packed and item.start is not None:
                    item = replace(item, open=partial(stream.member, item.start, item.size, item.path))
                yield from self._files(item, f"{prefix}/{item.path}", depth + 1, is_chosen=is_chosen)
        except ZooError as error:
            self.broken.append((path, error))

    def _zip(self, file: SourceFile, path: str, stream: io.BufferedReader) -> ZipSource:
        """Return a zip archive, whose directory is at its end: in memory where the archive is in another."""
        location = f"{self.address}: {path}"
        if stream.seekable():
            blob = WholeSource(location, path, file.size, lambda: stream)
        else:
            if file.size > _MAX_ZIP:
                expected, step = f"at most {_MAX_ZIP} bytes of a zip archive within another", "Unpack the outer one."
                raise IntegrityError(Problem(location, "size", expected, f"{file.size} bytes", step))
            data = stream.read(file.size)
            blob = WholeSource(location, path, len(data), lambda: io.BytesIO(data))
        return ZipSource(blob)

    def _count(self, file: SourceFile, path: str) -> None:
        """Bound what all archives hold together, whatever each of them says about itself."""
        self._nested_files += 1
        self._nested_bytes += file.size
        most = max(_ALWAYS_ALLOWED, _EXPANSION * self._source.nbytes)
        if self._nested_bytes > most or self._nested_files > _MAX_FILES:
            expected = f"at most {most} bytes and {_MAX_FILES} files in the archives of a source"
            got = f"{self._nested_bytes} bytes, {self._nested_files} files"
            location = f"{self.address}: {excerpt(path)}"
            raise IntegrityError(Problem(location, "archive", expected, got, "Do not use this archive."))

    def _open(self, path: str, opened: Callable[[], IO[bytes]]) -> IO[bytes]:
        self.opened.add(path)
        return opened()


class _Counted(io.RawIOBase):
    """A stream that knows how many of its bytes were used."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.count = stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


def _is_text(path: str) -> bool:
    """Tell whether a path is text: bytes of names that are not UTF-8 come as halves of surrogates (PEP 383)."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_junk(path: str) -> bool:
    """Tells what systems, notebooks, editors and version control leave; most paths have none of its marks."""
    return (path[0] == "." or _MARKS.search(path) is not None) and _JUNK.search(path) is not None


def _buffered(stream: IO[bytes]) -> io.BufferedReader:
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)  # pyright: ignore


def _peeked(stream: IO[bytes]) -> bytes:
    """Return the first bytes of a packed stream; none where they cannot be unpacked, which reading it reports."""
    try:
        return stream.peek(HEAD_BYTES)[:HEAD_BYTES]  # pyright: ignore[reportAttributeAccessIssue]
    except ERRORS:
        return b""


def _fits(path: str, patterns: Sequence[str]) -> bool:
    """Tells whether a path, its folders or a part of it fit one of the patterns."""
    if not patterns:
        return False
    parts = path.split("/")
    whole = accumulate(parts, lambda before, part: f"{before}/{part}")
    # fnmatch() would follow the system's rule for upper and lower case
    return any(fnmatchcase(text, pattern.rstrip("/")) for text in {*parts, *whole} for pattern in patterns)
