"""Marks of reproduction of a zoo: written, read, and compared with its parts."""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format import durable
from ckptzoo.format.files import Files, Folder, excess
from ckptzoo.format.reader import read_contents
from ckptzoo.format.tree import Tree
from ckptzoo.schema import layout
from ckptzoo.schema.documents import REFETCH, Identity, digest_of
from ckptzoo.schema.reproduction import MAX_BYTES, Reproduction, decode, encode

MAX_MARKS = 1_000
"""Marks of a zoo: all of them are read together."""
MAX_TOTAL = 64 * 2**20
"""Bytes of all marks of a zoo."""
_STEP = "Remove those that say the same as others."


def read_reproductions(files: Files, identity: Identity) -> tuple[Reproduction, ...]:
    """Every mark of a zoo, the newest last; raises ``IntegrityError`` where one is damaged, or that of another zoo."""
    names = layout.reproduction_files(files.listed(layout.REPRODUCED))
    if problem := _excess(files, names):
        raise IntegrityError(problem)
    documents = files.read_many(list(names), max_bytes=MAX_BYTES)
    read = [_checked(files, name, data, identity) for name, data in zip(names, documents, strict=True)]
    return tuple(sorted(read, key=lambda mark: (mark.created, mark.file)))


def _excess(files: Files, names: Collection[str]) -> Problem | None:
    return excess(files, layout.REPRODUCED, names, ("marks", MAX_MARKS, MAX_TOTAL), _STEP)


def _checked(files: Files, name: str, data: bytes, identity: Identity) -> Reproduction:
    location = f"{files.name}/{name}"
    mark = decode(data, location=location)
    for what, expected, got in (
        ("name", mark.file, name),
        ("digest of the zoo", digest_of(identity.to_json()), mark.zoo),
    ):
        if got != expected:
            step = "It is a mark of another zoo, or under another name: fetch the file again."
            raise IntegrityError(Problem(location, what, expected, got[:160], step))
    return mark


def add_reproduction(path: str | Path, ids: Collection[str], *, by: str, on: Mapping[str, str]) -> Reproduction | None:
    """Mark checkpoints of a zoo as reproduced, now; returns the mark, None where there are no ids.

    ``by`` is who trained them again, and ``on`` what may decide bits there. Raises ``ZooError`` if the zoo has too many
    marks, or lacks one of the ids.
    """
    if not ids:
        return None
    files, wanted = Folder(path), set(ids)
    with durable.locked(files.here):
        contents = read_contents(files)
        if len(known := read_reproductions(files, contents.identity)) >= MAX_MARKS:
            raise ZooError(Problem(files.name, "marks", f"fewer than {MAX_MARKS:,}", f"{len(known):,}", _STEP))
        by_part = {part: tuple(name for name in names if name in wanted) for part, names in _ids_by_part(contents.raw)}
        checkpoints = {part: names for part, names in by_part.items() if names}
        if missing := wanted.difference(*checkpoints.values()):
            step = "Rebuild members of the zoo as it is now."
            raise ZooError(Problem(files.name, "checkpoints", "those of the zoo", repr(min(missing)), step))
        mark = Reproduction(digest_of(contents.identity.to_json()), by, datetime.now(UTC), dict(on), checkpoints)
        nbytes = sum(files.size(other.file) or 0 for other in known) + len(data := encode(mark))
        if nbytes > MAX_TOTAL:
            raise ZooError(Problem(files.name, "bytes of marks", f"at most {MAX_TOTAL:,}", f"{nbytes:,}", _STEP))
        target = files.here / mark.file
        target.parent.mkdir(exist_ok=True)
        durable.write_file(target, data)
        durable.sync(files.here)
    return mark


def reproduction_problems(files: Files, identity: Identity, raw: Tree) -> Iterator[Problem]:
    """Yield the problems of a zoo's marks, of which ``raw`` are the checkpoints."""
    own: dict[str, set[str]] | None = None
    marks = layout.reproduction_files(files.listed(layout.REPRODUCED))
    if excess := _excess(files, marks):
        yield excess
    for name in marks:
        try:
            mark = _checked(files, name, files.read(name, max_bytes=MAX_BYTES), identity)
        except IntegrityError as error:
            yield from error.problems
            continue
        own = {part: set(names) for part, names in _ids_by_part(raw)} if own is None else own
        for part, names in mark.checkpoints.items():
            location = f"{files.name}/{name}"
            if part not in own:
                yield Problem(location, "part", "one of this zoo", part[:160], "Restore the part, or remove the mark.")
            elif unknown := set(names) - own[part]:
                yield Problem(location, f"ids of part {part[:15]}", "those in it", repr(min(unknown))[:160], REFETCH)


def _ids_by_part(raw: Tree) -> Iterator[tuple[str, list[str]]]:
    """Yield the digest of every raw part with its ids."""
    ids, start = raw.rows["id"], 0
    for part in raw.parts:
        yield part.digest, ids.slice(start, part.rows).to_pylist()
        start += part.rows
