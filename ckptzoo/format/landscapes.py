"""Figures of the loss around the checkpoints of a zoo: written, read, and compared with its parts.

A file is a sealed table, ``landscape/<16 digits of its seal>.parquet``. Earlier readers leave the folder alone.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import numpy as np
import pyarrow as pa

from ckptzoo.errors import IntegrityError, Problem, UnknownNameError, ZooError
from ckptzoo.format import durable
from ckptzoo.format.files import Files, Folder, excess
from ckptzoo.format.reader import read_contents
from ckptzoo.format.table import check_count, check_seal, encode, open_table, read_table, schema_of
from ckptzoo.format.tree import Tree, places_of
from ckptzoo.schema import layout
from ckptzoo.schema.documents import REFETCH, Document, Identity, digest_of
from ckptzoo.schema.metadata import LANDSCAPE_COLUMNS

KIND = "landscape"
FIGURES = tuple(column.name for column in LANDSCAPE_COLUMNS[2:])
"""The columns of figures."""
MAX_FILES, MAX_ROWS, MAX_BYTES = 4_096, 65_536, 2**24
"""Files of a zoo, and rows and bytes of a file."""
MAX_TOTAL = 2**28
"""Bytes of all files of a zoo."""
_SCHEMA = schema_of(LANDSCAPE_COLUMNS)
_TEXTS, _NUMBERS = ("zoo", "set", "inputs", "targets", "loss"), ("examples", "probes", "steps", "seed")
_FIELDS = {"format", "version", "kind", "tolerance", "seal", *_TEXTS, *_NUMBERS}
_STEP = "Remove those that say the same as others."


@dataclass(frozen=True, eq=False)
class LandscapeFile:
    """Figures of some checkpoints. ``file`` is its path in the zoo, ``data`` are its bytes, ``facts`` those of the
    footer, and ``rows`` the table of ``LANDSCAPE_COLUMNS``.
    """

    file: str
    data: bytes
    facts: Document
    rows: pa.Table

    @property
    def set(self) -> str:
        """The set of inputs on which the loss was measured."""
        return self.facts["set"]


def read_landscapes(files: Files, identity: Identity) -> tuple[LandscapeFile, ...]:
    """Every file of a zoo, by name; raises ``IntegrityError`` where one is damaged, or that of another zoo."""
    names = layout.landscape_files(files.listed(layout.LANDSCAPE))
    if problem := _excess(files, names):
        raise IntegrityError(problem)
    documents = files.read_many(list(names), max_bytes=MAX_BYTES)
    return tuple(_checked(files, name, data, identity) for name, data in zip(names, documents, strict=True))


def landscape_sets(files: Files, identity: Identity) -> tuple[str, ...]:
    """The sets of inputs on which figures were measured, in order."""
    return tuple(sorted({one.set for one in read_landscapes(files, identity)}))


def figures_of(files: Files, identity: Identity, ids: pa.ChunkedArray, name: str | None) -> pa.Table:
    """A table of ``id`` and ``FIGURES`` with a row for each of some ids, null where nothing was measured.

    ``name`` is the set of inputs, None for the only one. Raises ``UnknownNameError`` if there is none of the name, and
    ``ZooError`` if there is none at all, or several and no name.
    """
    every = read_landscapes(files, identity)
    sets = sorted({one.set for one in every})
    if name is None and len(sets) != 1:
        location, what = f"{files.name}/{layout.LANDSCAPE}", "sets of inputs"
        if sets:
            step = f"Name one of them: {', '.join(sets)}."
        else:
            step = f"Run ckptzoo landscape {quote(str(files.here or 'FOLDER'))}, which measures and stores them."
        raise ZooError(Problem(location, what, "one", f"{len(sets)}", step))
    if name is not None and name not in sets:
        raise UnknownNameError(files.name, "set of landscape figures", name, sets)
    chosen = [one.rows for one in every if name is None or one.set == name]
    rows = pa.concat_tables(chosen).combine_chunks()
    places = places_of(ids, rows["id"])
    taken = pa.array(places, mask=places < 0)
    return pa.table({"id": ids, **{figure: rows[figure].take(taken) for figure in FIGURES}})


def _excess(files: Files, names: Collection[str]) -> Problem | None:
    return excess(files, layout.LANDSCAPE, names, ("files", MAX_FILES, MAX_TOTAL), _STEP)


def _checked(files: Files, name: str, data: bytes, identity: Identity) -> LandscapeFile:
    location = f"{files.name}/{name}"
    check_seal(data, location=location)
    file, facts = open_table(data, location=location)
    wrong = _wrong(facts)
    if wrong is None:
        expected = (digest_of(identity.to_json()), layout.landscape_file(facts["seal"]))
        for what, right, got in zip(("digest of the zoo", "name"), expected, (facts["zoo"], name), strict=True):
            if got != right:
                wrong = what, right, got
    if wrong is not None:
        what, right, got = wrong
        raise IntegrityError(Problem(location, what, right, str(got)[:160], REFETCH))
    check_count(file, MAX_ROWS, location=location)
    return LandscapeFile(name, data, facts, read_table(data, file, _SCHEMA, location=location))


def _wrong(facts: Document) -> tuple[str, str, object] | None:
    """Return the first wrong fact of a footer: its name, what is expected, and what is there."""
    if (found := (facts.get("format"), facts.get("kind"))) != (layout.FORMAT, KIND):
        return "format and kind", f"{layout.FORMAT!r}, {KIND!r}", found
    if facts.get("version") != layout.VERSION:
        return "format version", str(layout.VERSION), facts.get("version")
    if set(facts) != _FIELDS:
        return "fields", ", ".join(sorted(_FIELDS)), sorted(facts)
    for name in (*_TEXTS, "seal"):
        if not isinstance(facts[name], str):
            return name, "a text", facts[name]
    for name in _NUMBERS:
        if not isinstance(facts[name], int) or isinstance(facts[name], bool) or not 0 <= facts[name] < 2**63:
            return name, "an integer from 0", facts[name]
    if not isinstance(facts["tolerance"], float):
        return "tolerance", "a number", facts["tolerance"]
    return None if layout.SET_NAME.fullmatch(facts["set"]) else ("set", "<data set>/<split>", facts["set"])


def add_landscape(path: str | Path, rows: pa.Table, facts: Document) -> str:
    """Write figures of checkpoints into a zoo; returns the path of the file in it.

    ``rows`` is a table of ``LANDSCAPE_COLUMNS``; ``facts`` are those of the footer besides format, version, kind and
    zoo. Equal rows and facts give the same file, at equal versions of pyarrow. Raises ``ZooError`` if the zoo has too
    many files.
    """
    files = Folder(path)
    with durable.locked(files.here):
        contents = read_contents(files)
        common = {"format": layout.FORMAT, "version": layout.VERSION, "kind": KIND}
        whole = {**common, "zoo": digest_of(contents.identity.to_json()), **facts}
        data = encode([rows.cast(_SCHEMA)], whole, sealed=True)
        read = open_table(data, location=files.name)[1]
        name = layout.landscape_file(read["seal"])
        known = [other for other in layout.landscape_files(files.listed(layout.LANDSCAPE)) if other != name]
        nbytes = sum(files.size(other) or 0 for other in known) + len(data)
        if len(known) >= MAX_FILES or nbytes > MAX_TOTAL:
            got = f"{len(known) + 1:,}, of {nbytes:,} bytes"
            expected, location = f"at most {MAX_FILES:,}, of {MAX_TOTAL:,} bytes", f"{files.name}/{layout.LANDSCAPE}"
            raise ZooError(Problem(location, "files", expected, got, _STEP))
        target = files.here / name
        target.parent.mkdir(exist_ok=True)
        durable.write_file(target, data)
        durable.sync(files.here)
    return name


def landscape_problems(files: Files, identity: Identity, raw: Tree) -> Iterator[Problem]:
    """Yield the problems of a zoo's files of figures, of which ``raw`` are the checkpoints."""
    names = layout.landscape_files(files.listed(layout.LANDSCAPE))
    if excess := _excess(files, names):
        yield excess
        return
    units = np.repeat(np.arange(len(raw.parts)), [part.rows for part in raw.parts])
    digests = [part.digest for part in raw.parts]
    seen: set[tuple[str, str]] = set()
    for name in names:
        try:
            one = _checked(files, name, files.read(name, max_bytes=MAX_BYTES), identity)
        except IntegrityError as error:
            yield from error.problems
            continue
        location, ids = f"{files.name}/{name}", one.rows["id"].to_pylist()
        places = places_of(one.rows["id"], raw.rows["id"])
        stated = one.rows["unit"].to_pylist()
        other = [at for at, place in enumerate(places) if place < 0 or digests[units[place]] != stated[at]]
        if other:
            got = f"{len(other)} others, such as {ids[other[0]]!r:.160}"
            yield Problem(location, "ids", "checkpoints of this zoo with the part that has them", got, REFETCH)
        own = {(one.set, checkpoint) for checkpoint in ids}
        if len(own) < len(ids) or own & seen:
            yield Problem(location, "ids", f"each id once on {one.set}", "some twice", _STEP)
        seen |= own
