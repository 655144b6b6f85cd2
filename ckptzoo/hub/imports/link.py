"""``link_zoo``: checkpoints of this machine become a zoo that refers to their files, which stay where they are."""

import hashlib
import itertools
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, SpecError, ZooError
from ckptzoo.format import durable
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_contents
from ckptzoo.format.references import MAX_LAYOUTS, FileLayout, Reference, References, RemoteFile, TensorPlace, inode_of
from ckptzoo.format.sources import (
    Servers,
    forget,
    remember,
    remember_files,
    remember_moved,
    remember_servers,
    remembered,
    remembered_servers,
)
from ckptzoo.format.writer import ReferenceWriter, create_referring
from ckptzoo.hub.contributions.evaluation import Factory
from ckptzoo.hub.imports.adapters import Options
from ckptzoo.hub.imports.adapters.adapter import Picked
from ckptzoo.hub.imports.choice import AUTO
from ckptzoo.hub.imports.facts import Row
from ckptzoo.hub.imports.linked_before import LinkedBefore
from ckptzoo.hub.imports.mapped import MappedFile, address_of, mapped_file, open_mapped
from ckptzoo.hub.imports.outlines import outline
from ckptzoo.hub.imports.remote_links import LinkedFiles, open_linked, place_of, state_of, states_of
from ckptzoo.hub.imports.remote_maps import READ_STORAGE, RemoteMap
from ckptzoo.hub.imports.report import ImportResult
from ckptzoo.hub.imports.run import Importer, bring, report_path
from ckptzoo.hub.imports.same_architecture import Saved, Tensors
from ckptzoo.hub.imports.source_lists import open_places, resolved
from ckptzoo.hub.imports.sources import ImportSource
from ckptzoo.hub.imports.target import Declaration, NewCheckpoint, OpenZoo, TargetZoos, commit_zoo
from ckptzoo.hub.untrusted import Limits
from ckptzoo.remote.referenced import RemoteReferences
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import Card
from ckptzoo.schema.documents import canonical
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.text import Progress

_FILES = 24
"""Files that are mapped together: each keeps two descriptors open."""
_KEPT = 64
"""Kinds of headers that are kept."""
_SHOWN = 3
"""Files that a note names."""


@checked
def link_zoo(
    source: str | Path | Sequence[str | Path],
    to: str | Path,
    *,
    adapter: str = AUTO,
    names: Mapping[str, str] | str | None = None,
    arch: str | None = None,
    module: str | Factory | Sequence[str | Factory] | None = None,
    input_shape: Sequence[int] | None = None,
    split_by: str | None = None,
    skip_bad: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    license: str | None = None,
    dataset: str | None = None,
    scaling: tuple[Sequence[float], Sequence[float]] | None = None,
    options: Options | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
) -> ImportResult:
    """Make a zoo of checkpoints whose weights stay in their files, which it refers to.

    Parameters
    ----------
    source
        a folder or a file on this machine; or on others ``hf://org/model@revision`` or ``hf://datasets/org/name``, at
        the commit that the revision is now, ``hf://org/model@step*`` for all branches and tags that fit,
        ``https://host/path/file``, ``https://host/path/`` for a page that lists files, ``s3://bucket/path/file`` of a
        public bucket; a text file (``.txt``) of such addresses, one on a line; or several of these.
    to
        the zoo's folder: new, or of a zoo that was made so; what it has is not looked at again.
    adapter, names, arch, module, input_shape, split_by, skip_bad, include, exclude
        as for ``import_zoo``, which gives checkpoints the same names and facts.
    license, dataset, scaling, options, endpoint, token, progress
        as for ``import_zoo``.

    Raises
    ------
    ZooError
        As ``import_zoo``; also where a tensor does not lie in its file as a zoo has it, because it is packed, in
        another precision or order, or computed from others, and where files may be copies of linked ones that are gone,
        and nothing tells. The message names the file.

    Notes
    -----
    Headers are read, and no weights, so that whether these are finite is not known until ``ckptzoo.verify`` has read
    them. That the zoo may follow its references to ``source`` is recorded for this user, outside of the zoo. A file
    that changes later is an error that names it. A folder that was moved, renamed or copied is known by the times of
    its files, or by digests of their weights where these were recorded. On other machines a server that is named here
    may have any address and speak http; every other one that is asked, by a redirect, has to be public and to speak
    https. Addresses with a password, a signature or a token are refused. Members of archives, and files of
    ``torch.save`` before 1.6, are not linked there.

    Examples
    --------
    >>> done = ckptzoo.link_zoo("net.safetensors", "zoos/linked", arch="optunet", license="CC-BY-4.0")
    >>> done.added, ckptzoo.open("zoos/linked")["fc.weight"].shape
    (1, (1, 10, 10))
    """
    given = [source] if isinstance(source, str | Path) else list(source)
    with ExitStack() as stack:
        results = [
            bring(
                opened,
                to,
                target=target,
                importer=_Linker,
                adapter=adapter,
                names=names,
                arch=arch,
                module=module,
                input_shape=input_shape,
                split_by=split_by,
                skip_bad=skip_bad,
                include=include,
                exclude=exclude,
                license=license,
                dataset=dataset,
                scaling=scaling,
                options=options,
                progress=progress,
            )
            for opened, target in _opened(stack, given, str(to), endpoint, token)
        ]
    result = ImportResult.joined(results)
    if skip_bad and len(results) > 1:
        durable.write_file(report_path(Path(to).absolute()), canonical(result.to_json()))
    return result


def _opened(
    stack: ExitStack, given: Sequence[str | Path], zoo: str, endpoint: str | None, token: str | None
) -> list[tuple[ImportSource, Callable[..., TargetZoos]]]:
    """Open the sources of a link, those on other machines as one, and return each with what makes zoos of it."""
    places = [
        _normal(place) if isinstance(place, str) else place for place in resolved(given, endpoint=endpoint, token=token)
    ]
    remote = [place for place in places if not isinstance(place, str) or "://" in place]
    here = [Path(place) for place in places if isinstance(place, str) and "://" not in place]
    # what tells a file of a source is its path there, and each source has a folder of its own
    opened = list[tuple[ImportSource, Callable[..., TargetZoos]]]()
    opened += [(open_mapped(path), partial(LinkedZoos, path)) for path in here]
    if not remote:
        return opened
    texts = [place for place in remote if isinstance(place, str)]
    named = sorted({_server(text) for text in texts if text.lower().startswith(("http://", "https://"))})
    files = stack.enter_context(RemoteReferences(zoo, servers=named, endpoint=endpoint, token=token))
    ahead = LinkedFiles(files)
    stack.callback(ahead.close)
    named_remote = given if not here else [str(place) for place in remote]
    source = open_places(named_remote, remote, partial(open_linked, ahead=ahead, endpoint=endpoint, token=token))
    servers = Servers(tuple(named), endpoint, is_linked=True)
    return [
        *opened,
        (source, partial(RemoteLinkedZoos, source.address, ahead.expect(source), states_of(source), servers)),
    ]


def _normal(address: str) -> str:
    """Return an address as it is recorded: scheme and host of a server do not depend on case (RFC 3986, 6.2.2.1)."""
    scheme, sign, rest = address.partition("://")
    if scheme.lower() in ("http", "https"):
        server, slash, path = rest.partition("/")
        user, at, host = server.rpartition("@")
        rest = f"{user}{at}{host.lower()}{slash}{path}"
    return f"{scheme.lower()}://{rest}" if sign else address


def _server(address: str) -> str:
    """Return the server of an address: who links a file names it."""
    try:
        parts = urlsplit(address)
    except ValueError:
        public = address.partition("?")[0].rpartition("@")[2]
        step = "Correct the address."
        raise ZooError(Problem(public, "address", "https://host/path/file", "another", step)) from None
    return f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}"


class _Linker(Importer):
    """Collects files as an import does, and looks at no more of their weights than it has to."""

    @property
    def limits(self) -> Limits:
        # of files on other machines nothing else is there
        return Limits(compared=READ_STORAGE)

    @property
    def most(self) -> tuple[int, float]:
        return _FILES, math.inf

    def _note_repeated(self, tensors: Any, name: str) -> None:
        """Note nothing: only all of their numbers tell whether two networks are the same."""


class LinkedZoos(TargetZoos):
    """The zoos that a link writes, which refer to the files in ``place``."""

    refers = True

    def __init__(self, place: Path, folder: Path, declaration: Declaration, *, by_order: bool) -> None:
        super().__init__(folder, declaration, by_order=by_order)
        self.place = place
        self._layouts = dict[FileLayout, FileLayout]()
        self._recent = dict[Any, FileLayout]()
        self._used = dict[Path, dict[int, int]]()
        self._names = dict[tuple[Path, str], str]()
        self._held = dict[Path, dict[str, set[str]]]()
        self._known = dict[Path, LinkedBefore]()
        self._real = Path(os.path.realpath(place))

    def labels_here(self) -> Sequence[str]:
        found = dict[str, None]()
        for zoo in self._zoos:
            linked, known = self._linked(zoo), remembered(zoo.path)
            for name in sorted(linked.sources):
                is_elsewhere = name in known and linked.is_at(name, known[name])
                # where the files that were linked can be read, those of equal times are compared with them
                if linked.is_at(name, self._real, by_inode=False) or (
                    not is_elsewhere and linked.may_be_at(name, self._real)
                ):
                    found.update(dict.fromkeys(linked.labels(name)))
        return tuple(found)

    def begin(self, label: str) -> None:
        """Record where sources of this label are that the zoos had, and whose files have moved here.

        Files that have other times and hold what was linked are recorded too; others that changed are noted.
        """
        for zoo in self._zoos:
            linked, known = self._linked(zoo), remembered(zoo.path)
            for name in sorted(name for name in linked.sources if label in linked.labels(name)):
                place = known.get(name, self._real)
                if not linked.is_at(name, place):
                    place = self._real
                if place != self._real and linked.may_be_at(name, self._real):
                    self._note(f"files of {name!r} are in {self._real} too, and are read in {place}")
                is_there, accepted, others = linked.compared(name, place)
                if accepted:
                    remember_files(zoo.path, name, accepted)
                    linked.accepted |= {(name, path): facts for path, facts in accepted.items()}
                    self._note(
                        f"files with other times that hold the weights that were linked: {_some(name, accepted)}"
                    )
                if (is_there or accepted) and known.get(name) != place:
                    self._record(zoo, name)
                if (is_there or accepted or name in known) and others:
                    step = "restore them, or link what is there now into a new zoo"
                    self._note(f"files that changed or went since, and are not read: {_some(name, others)}; {step}")

    def _effective(self, item: NewCheckpoint) -> Saved:
        # numbers of a file that became shorter since it was mapped cannot be looked at
        for file in {id(file): file for file in map(mapped_file, item.saved.tensors.values()) if file}.values():
            file.require_same()
        return super()._effective(item)

    def holds(self, picked: Picked, unit: str) -> bool | None:
        """Whether the zoo's checkpoint of a unit is in this file; where it is in another one, has these numbers."""
        if unit not in self._rows:
            return None
        zoo, id = self._rows[unit]
        files = {file.path: file for file in map(mapped_file, picked.tensors.values()) if file is not None}
        # nothing is read of a file that is the one that was linked
        if (found := self._linked(zoo).holds(id, files, self._real)) is not None:
            return found
        try:
            return super().holds(picked, unit)
        except ZooError:  # that file is not there, or changed
            if self._linked(zoo).is_older(id, files):
                return False
            expected = f"files that can be compared with those that were linked, such as that of {id!r}"
            got = "files of the same names and sizes and other times; the others are gone or changed, without digests"
            self.unclear = Problem(f"{self.place}", "source", expected, got, _UNCLEAR)
            return None

    def _linked(self, zoo: OpenZoo) -> LinkedBefore:
        """Return the references that a zoo had before."""
        if zoo.path not in self._known:
            self._known[zoo.path] = LinkedBefore(zoo.path)
        return self._known[zoo.path]

    def _source_name(self, zoo: OpenZoo, label: str) -> str:
        """Return the name of the place in a zoo, and record that the zoo may follow its references there.

        A folder and an archive of it have one label, and are two places.
        """
        if (name := self._names.get((zoo.path, label))) is None:
            linked, known = self._linked(zoo), remembered(zoo.path)
            names = (label if not number else f"{label}-{number + 1}" for number in itertools.count())
            name = next(name for name in names if _may_lead(linked, known, name, self._real))
            if known.get(name) != self._real:
                self._record(zoo, name)
            self._names[zoo.path, label] = name
        return name

    def _record(self, zoo: OpenZoo, name: str) -> None:
        """Record that a source is here, and say so where it was elsewhere, or another one has its name."""
        linked, before = self._linked(zoo).sources, remembered(zoo.path).get(name)
        remember(zoo.path, {name: self._real})
        if name in linked and before is not None:
            self._note(f"files of {name!r} have moved from {before} to {self._real}, and are read there")
        elif name not in linked and (others := [other for other in sorted(linked) if _plain(other) == _plain(name)]):
            self._note(f"files of {self._real} are {name!r} in the zoo, which has other files as {others[0]!r}")

    def _moves(self, path: Path, to: Path) -> None:
        remember_moved(path, to)

    def _create(self, path: Path, arch: Architecture, card: Card, symmetry: Symmetry | None) -> None:
        forget(path)
        create_referring(path, arch=arch, card=card, symmetry=symmetry)

    def _open_writer(self, zoo: OpenZoo) -> ReferenceWriter:
        return ReferenceWriter(zoo.path)

    def _write_masks(self, masks: Tensors, location: str) -> dict[str, Any]:
        got = "a pruned one, which is computed from a mask"
        raise SpecError(Problem(location, "weights", "those of the file", got, _STEP))

    def _prepared(self, zoo: OpenZoo, tensors: Tensors, row: Row) -> list[Reference]:
        return self._references(zoo, tensors, row)

    def _write(self, zoo: OpenZoo, stacked: Tensors, rows: Sequence[Row]) -> None:
        several = ({name: array[at] for name, array in stacked.items()} for at in range(len(rows)))
        self._write_several(zoo, [self._references(zoo, *item) for item in zip(several, rows, strict=True)], rows)

    def _write_several(self, zoo: OpenZoo, several: Sequence[list[Reference]], rows: Sequence[Row]) -> None:
        writer = self._writer(zoo)
        assert isinstance(writer, ReferenceWriter)
        writer.refer(several, rows)
        used = self._used.setdefault(zoo.path, {})
        if not zoo.nbytes:
            used.clear()
        used.update((id(item.layout), item.layout.nbytes) for references in several for item in references)
        zoo.nbytes += zoo.arch.nbytes * len(rows)
        zoo.added += len(rows)
        if sum(used.values()) >= MAX_LAYOUTS:
            commit_zoo(zoo)

    def _place_of(self, row: Row) -> str:
        """Return where a checkpoint is, for messages."""
        return f"{self.place}: {row['extra'].get('file', row['id'])}"

    def _references(self, zoo: OpenZoo, tensors: Tensors, row: Row) -> list[Reference]:
        """Return where the tensors of a checkpoint are; raise ``SpecError`` for one that lies in no file as it is."""
        places = dict[tuple[int, int], tuple[MappedFile, list[tuple[str, int]]]]()
        arch, empty = zoo.arch, list[str]()
        for tensor in arch.tensors:
            array = tensors[tensor.name]
            if not tensor.nbytes:
                empty.append(tensor.name)
                continue
            file = mapped_file(array)
            if file is None or not array.flags.c_contiguous or not array.dtype.isnative:
                expected, got = "numbers as they lie in the file", "numbers that are packed, reordered or computed"
                raise SpecError(Problem(self._place_of(row), f"tensor {tensor.name!r}", expected, got, _STEP))
            offset = address_of(array) - file.address
            _, own = places.setdefault((id(file), file.member_at(offset)), (file, []))
            own.append((tensor.name, offset))
        if not places:
            raise SpecError(Problem(self._place_of(row), "tensors", "numbers in a file", "none", _STEP))
        first, *_ = places
        places[first][1].extend((name, first[1]) for name in empty)
        source = self._source_name(zoo, row["source"])
        return [self._reference(arch, file, base, own, source) for (_, base), (file, own) in places.items()]

    def _reference(
        self, arch: Architecture, file: MappedFile, base: int, own: list[tuple[str, int]], source: str
    ) -> Reference:
        """Return where these tensors are in a file, given with their first bytes in it."""
        form, _ = file.forms[base]
        start, pieces, names = outline(file, base, [offset for name, offset in own if arch[name].nbytes])
        header = b"".join(file.piece(base + at, base + at + count) for at, count in pieces or [(0, start - base)])
        own_header = header if form == "safetensors" else b""
        key = (form, pieces, own_header, tuple((name, max(0, offset - start)) for name, offset in own))
        if (layout := self._recent.get(key)) is None:
            places = [
                # a tensor without elements is nowhere
                TensorPlace(name, names(offset) if arch[name].nbytes else "", max(0, offset - start))
                for name, offset in own
            ]
            places.sort(key=lambda place: (place.offset, place.tensor))
            layout = FileLayout(form, tuple(places), pieces)
            if len(self._recent) >= _KEPT:
                self._recent.clear()
            layout = self._recent[key] = self._layouts.setdefault(layout, layout)
        digest, status = hashlib.sha256(header).digest(), file.status
        if isinstance(file, RemoteMap):
            remote = RemoteFile(*file.recorded)
            return Reference(source, file.path, base, start, remote.size, 0, 0, digest, layout, remote)
        return Reference(
            source, file.path, base, start, status.st_size, inode_of(status), status.st_mtime_ns, digest, layout
        )


def _some(source: str, paths: Collection[str]) -> str:
    """Return how many files of a source there are, with the names of the first."""
    shown = ", ".join(sorted(paths)[:_SHOWN])
    return f"{len(paths):,} of {source!r} ({shown}{', ...' if len(paths) > _SHOWN else ''})"


def _plain(name: str) -> str:
    """Return the name of a source without what tells it from others of the same name."""
    return re.sub(r"-\d+$", "", name.rpartition("/")[2])


def _may_lead(linked: LinkedBefore, known: Mapping[str, Path], name: str, place: Path) -> bool:
    """Whether a name may be that of a place: no file of another place that still has its files is lost by that."""
    elsewhere = known.get(name, place) != place
    if name not in linked.sources:
        return not elsewhere
    return linked.is_at(name, place) and not (elsewhere and linked.is_at(name, known[name]))


class RemoteLinkedZoos(LinkedZoos):
    """The zoos that a link of files on other machines writes; ``servers`` are those that the user named.

    ``addresses`` and ``states`` are those of the source's files now, as ``states_of`` returns them.
    """

    def __init__(
        self,
        address: str,
        addresses: frozenset[str],
        states: Mapping[tuple[str, str], tuple[int, str]],
        servers: Servers,
        folder: Path,
        declaration: Declaration,
        *,
        by_order: bool,
    ) -> None:
        super().__init__(Path(folder), folder, declaration, by_order=by_order)
        self._address, self._addresses, self._states, self._servers = address, addresses, states, servers

    def labels_here(self) -> Sequence[str]:
        return ()

    def begin(self, label: str) -> None:
        """Note what has changed at the source since the zoos linked it: they keep what they linked."""
        revisions, files = dict[str, None](), dict[str, None]()
        for zoo in self._zoos:
            contents = read_contents(Folder(zoo.path))
            rows, references = contents.raw.rows.select(["source", "extra"]), contents.references
            labels, extras = rows["source"].to_pylist(), rows["extra"].to_pylist()
            for row, file in zip(references.rows.tolist(), references.remote_files, strict=True):
                if labels[row] != label or not file.address:
                    continue
                place = place_of((parse_extra(extras[row] or "{}") or {}).get("repository", ""), file)
                if self._states.get(place, state_of(file)) != state_of(file):
                    (revisions if place[0] else files)[place[0] or place[1]] = None
        for what, moved in (("revisions that have moved", revisions), ("files that have changed", files)):
            if moved:
                shown = f"{', '.join(list(moved)[:_SHOWN])}{', ...' if len(moved) > _SHOWN else ''}"
                step = "a zoo keeps what it linked: link into a new zoo what is there now"
                self._note(f"{what} since they were linked: {len(moved):,} ({shown}); {step}")

    def end(self, label: str) -> None:
        """Record with which servers the source is read, also of a zoo that had all of it."""
        for zoo in self._zoos:
            references = read_contents(Folder(zoo.path)).references
            if label in references.sources and self._may_be(zoo, label, references):
                remember_servers(zoo.path, label, self._servers)

    def _may_be(self, zoo: OpenZoo, name: str, references: References) -> bool:
        """Whether a name may be that of this source in a zoo.

        References of others that have it, in a zoo that came from elsewhere, are not followed by that.
        """
        if name not in references.sources:
            return name not in remembered(zoo.path)
        own = np.flatnonzero(references.source_of == references.sources.index(name))
        if not references.is_remote[own].all():
            return False
        addresses = {references.remote_files[at].address for at in own.tolist()}
        return name in remembered_servers(zoo.path) or addresses <= self._addresses

    def holds(self, picked: Picked, unit: str) -> bool | None:
        """Whether the zoo's checkpoint of a unit lies in this file: no numbers are fetched to be compared."""
        if unit not in self._rows:
            return None
        zoo, id = self._rows[unit]
        if zoo.path not in self._held:
            contents = read_contents(Folder(zoo.path))
            ids, known = contents.raw.rows["id"].to_pylist(), self._held.setdefault(zoo.path, {})
            for row, file in zip(contents.references.rows.tolist(), contents.references.remote_files, strict=True):
                known.setdefault(ids[row], set()).add(file.address)
        maps = [file for file in map(mapped_file, picked.tensors.values()) if isinstance(file, RemoteMap)]
        return bool(maps) and {file.recorded.address for file in maps} == self._held[zoo.path].get(id)

    def _source_name(self, zoo: OpenZoo, label: str) -> str:
        """Return the name of the source in a zoo, and record with which servers it is read.

        A source on this machine that has its name is another one, and so is one of somebody else.
        """
        if (name := self._names.get((zoo.path, label))) is None:
            references = read_contents(Folder(zoo.path)).references
            names = (label if not number else f"{label}-{number + 1}" for number in itertools.count())
            name = next(name for name in names if self._may_be(zoo, name, references))
            remember_servers(zoo.path, name, self._servers)
            self._names[zoo.path, label] = name
        return name

    def _place_of(self, row: Row) -> str:
        return f"{self._address}: {row['extra'].get('file', row['id'])}"


_UNCLEAR = (
    "Bring back the files that were linked, or copies that keep their times (cp -a, rsync -a); or link this into a new "
    "zoo. Digests, which distinguish copies from other files, are recorded by ckptzoo verify before files are moved."
)
_STEP = "Copy these files with ckptzoo import SOURCE --to ZOO; or leave them out with --exclude or --skip-bad."
