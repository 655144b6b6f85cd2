"""Splits as papers publish them: tables, lists of each part, or an order of rows that is cut into parts."""

import csv
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, SpecError, UnknownNameError, ZooError
from ckptzoo.format.splits import write_split
from ckptzoo.hub.imports.tables import bytes_of, text_of
from ckptzoo.hub.untrusted.settings_files import parse_json
from ckptzoo.loader.filters import Filters
from ckptzoo.loader.selection import Selection
from ckptzoo.loader.zoo import open as open_zoo
from ckptzoo.schema.split import ID, MEMBER, ListSplit

_PATH = "path"
"""The checkpoint's file in the source that it was imported from, which ``extra.file`` keeps."""
_COLUMNS = {"id": ID, "member": MEMBER, "path": _PATH, "file": _PATH}
_STEP = "Correct the list."


class _Entry(NamedTuple):
    """A name in a list, and where it stands there."""

    name: str
    place: str


_Lists = dict[str, list[_Entry]]


@checked
def import_split(
    path: str | Path,
    name: str,
    lists: str | Path | Mapping[str, str | Path],
    *,
    allow_shared_members: bool = False,
) -> ListSplit:
    """Write a split of a zoo from published lists.

    Parameters
    ----------
    path
        the zoo's folder.
    name
        of the split: small letters, digits and hyphens.
    lists
        one file for all parts, or the file of each; also packed by gzip. One file is a CSV table with the columns
        ``split`` and ``id``, ``member`` or ``path``, or a JSON object with the list of each part, or with an object
        that has a list ``path``, as DWSNets has. The file of a part is a JSON list, or has a name on each line. Names
        without such a column are ids, members or paths, whichever the zoo knows. A path is that in the source from
        which the zoo was imported; folders before it are left out.
    allow_shared_members
        as ``write_split`` takes it.

    Raises
    ------
    ZooError
        A file is no such list, names something twice or something that the zoo lacks, or puts checkpoints of one
        member into several parts.

    Examples
    --------
    From a table with the columns ``split`` and ``id``:

    >>> split = ckptzoo.import_split("zoos/few", "published", "published-split.csv")
    >>> {part: len(ids) for part, ids in split.lists.items()}
    {'train': 12, 'test': 4}
    """
    if isinstance(lists, Mapping):
        column, parts = None, {part: _part_file(Path(file)) for part, file in lists.items()}
    else:
        file = Path(lists)
        data = bytes_of(file)
        column, parts = _json_parts(file) if _is_json(data) else _table(file)
    _refuse_repeated(parts)
    by, names_by_part = _resolved(Path(path), column, parts)
    return write_split(path, name, names_by_part, by=by, allow_shared_members=allow_shared_members)


@checked
def import_order(
    path: str | Path,
    name: str,
    order: str | Path,
    fractions: Mapping[str, float],
    *,
    where: Filters | None = None,
    header: bool = False,
    allow_shared_members: bool = False,
) -> ListSplit:
    """Write a split of a zoo that cuts a published order of its checkpoints, such as that of NFN.

    Parameters
    ----------
    path
        the zoo's folder.
    name
        of the split: small letters, digits and hyphens.
    order
        a file with the number of a checkpoint, from 0, on each line; also packed by gzip. Checkpoints are numbered in
        the zoo's order, which is that of the matrix it was imported from.
    fractions
        of the checkpoints that each part has, in order; together 1.
    where
        a condition, as ``Zoo.where`` takes it, on the checkpoints that are cut; the others are in no part.
    header
        whether the first line is a header, as pandas writes ``0`` above the only column of a table.
    allow_shared_members
        as ``write_split`` takes it.

    Raises
    ------
    ZooError
        It is no order of exactly the zoo's checkpoints, or puts checkpoints of one member into several parts.

    Notes
    -----
    Parts end at ``int(sum * n)`` of the n checkpoints that are cut.

    Examples
    --------
    >>> from pathlib import Path
    >>> written = Path("order.txt").write_text("\\n".join(map(str, reversed(range(16)))))
    >>> split = import_order("zoos/few", "order", "order.txt", {"train": 0.75, "test": 0.25})
    >>> {part: len(ids) for part, ids in split.lists.items()}
    {'train': 12, 'test': 4}
    """
    zoo = open_zoo(path)
    ids = zoo.contents.ids.to_pylist()
    numbers = _numbers(Path(order), len(ids), header=header)
    chosen = set((zoo if where is None else zoo.where(where)).ids)
    cut = [ids[number] for number in numbers if ids[number] in chosen]
    if (total := math.fsum(fractions.values())) > 1 + 1e-9 or min(fractions.values(), default=0) <= 0:
        got = f"{', '.join(map(str, fractions.values()))}, together {total:.12g}"
        raise SpecError(Problem(name, "fractions", "numbers above 0, together 1", got, "Correct them."))
    sums = [math.fsum(itertools.islice(fractions.values(), count)) for count in range(1, len(fractions) + 1)]
    # 0.7 + 0.15 + 0.15 comes only near to 1
    stops = [len(cut) if abs(fraction - 1) < 1e-9 else int(fraction * len(cut)) for fraction in sums]
    parts = {part: cut[start:stop] for part, start, stop in zip(fractions, [0, *stops], stops, strict=False)}
    return write_split(path, name, parts, allow_shared_members=allow_shared_members)


def _numbers(file: Path, count: int, *, header: bool) -> list[int]:
    """Return the numbers of an order of ``count`` checkpoints."""
    lines = [(line, text) for line, text in enumerate(map(str.strip, _text(file)), start=1) if text]
    first = {}
    numbers: list[int] = []
    for line, text in lines[1 if header else 0 :]:
        # isdigit() holds for digits of all scripts and for superscripts, of which int() refuses the latter
        if not text.isascii() or not text.isdigit():
            step = "The first line may be a header: say so with header=True (--header)." if line == 1 else _STEP
            raise ZooError(Problem(str(file), f"line {line}", "the number of a checkpoint", repr(text)[:80], step))
        number = int(text)
        if number in first:
            step = _STEP
            if first[number] == 1:
                step = "The first line may be a header, as pandas writes it: say so with header=True (--header)."
            got = f"{number} twice, in lines {first[number]} and {line}"
            raise ZooError(Problem(str(file), f"line {line}", "each checkpoint once", got, step))
        first[number] = line
        numbers.append(number)
    if len(numbers) != count or max(numbers, default=-1) != count - 1:
        expected, got = f"{count:,}, one for each checkpoint of the zoo", f"{len(numbers):,}"
        if len(numbers) == count:
            got = f"numbers up to {max(numbers)}"
        step = "An order fits only the zoo that was imported from all its rows: list ids for another one."
        raise ZooError(Problem(str(file), "numbers", expected, got, step))
    return numbers


def _text(file: Path) -> Any:
    return text_of(bytes_of(file), str(file))


def _is_json(data: bytes) -> bool:
    return data.lstrip()[:1] in (b"{", b"[")


def _json(file: Path) -> Any:
    return parse_json(bytes_of(file), str(file))


def _entries(file: Path, what: str, value: Any) -> list[_Entry]:
    items = [item for item in cast("list[Any]", value) if isinstance(item, str)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(items) < len(cast("list[Any]", value)):
        got = "other items" if isinstance(value, list) else type(value).__name__
        raise ZooError(Problem(str(file), what, "a list of names", got, _STEP))
    return [_Entry(item, f"{file}, {what}, item {number}") for number, item in enumerate(items, start=1)]


def _part_file(file: Path) -> list[_Entry]:
    """Return the names in the file of one part."""
    if _is_json(bytes_of(file)):
        return _entries(file, "the list", _json(file))
    lines = enumerate(map(str.strip, _text(file)), start=1)
    return [_Entry(text, f"{file}, line {line}") for line, text in lines if text]


def _json_parts(file: Path) -> tuple[str | None, _Lists]:
    """Return the kind of the names, where the file says it, and the names of every part."""
    content = _json(file)
    if not isinstance(content, dict):
        step = "Give the file of each part: train=FILE."
        raise ZooError(Problem(str(file), "list", "an object with a list for each part", type(content).__name__, step))
    parts, kinds = _Lists(), set[str | None]()
    for part, value in cast("dict[str, Any]", content).items():
        key = None
        if isinstance(value, dict):
            named = cast("dict[str, Any]", value)
            key = next((key for key in _COLUMNS if key in named), None)
            if key is None:
                got = ", ".join(named)[:160] or "none"
                raise ZooError(Problem(str(file), f"part {part[:80]!r}", f"a list {', '.join(_COLUMNS)}", got, _STEP))
            value = named[key]
        kinds.add(None if key is None else _COLUMNS[key])
        parts[part.strip().lower()] = _entries(file, f"part {part[:80]!r}", value)
    return (kinds.pop() if len(kinds) == 1 else None), parts


def _table(file: Path) -> tuple[str, _Lists]:
    """Return the kind of the names, and the names of every part."""
    # without strict, csv passes over quotes that do not end
    rows = csv.reader(_text(file), strict=True)
    try:
        head = [text.strip().lower() for text in next(rows, [])]
        key = next((name for name in _COLUMNS if name in head), None)
        if key is None or "split" not in head:
            expected, got = "columns split and id, member or path", ", ".join(head)[:160] or "nothing"
            step = "Name the columns; an order of numbers is read with import_order (--order), parts as train=FILE."
            raise ZooError(Problem(str(file), "line 1", expected, got, step))
        at, split = head.index(key), head.index("split")
        parts = _Lists()
        for row in rows:
            if not row:
                continue
            if len(row) != len(head):
                got = str(len(row))
                raise ZooError(Problem(str(file), f"line {rows.line_num}: fields", str(len(head)), got, _STEP))
            if part := row[split].strip().lower():
                parts.setdefault(part, []).append(_Entry(row[at].strip(), f"{file}, line {rows.line_num}"))
    except csv.Error as error:
        raise ZooError(Problem(str(file), "table", "CSV", f"{error}"[:160], _STEP)) from None
    return _COLUMNS[key], parts


def _refuse_repeated(parts: _Lists) -> None:
    seen: dict[str, str] = {}
    for entry in itertools.chain.from_iterable(parts.values()):
        if entry.name in seen:
            got = f"{entry.name[:80]!r} twice; before in {seen[entry.name]}"
            raise ZooError(Problem(entry.place, "names", "each once", got, "Leave one of them out."))
        seen[entry.name] = entry.place


def _resolved(path: Path, column: str | None, parts: _Lists) -> tuple[str, dict[str, list[str]]]:
    """Return whether the lists have ids or members, and these; paths become the ids of their checkpoints."""
    contents = open_zoo(path).contents
    rows = Selection(contents, {}, np.arange(len(contents.raw.rows), dtype=np.int64))
    entries = list(itertools.chain.from_iterable(parts.values()))
    unknown: dict[str, _Entry] = {}
    for kind in (ID, MEMBER, _PATH) if column is None else (column,):
        if kind == _PATH:
            known = _by_path(rows)
            ids = {entry.name: _ids_at(entry.name, known) for entry in entries}
        else:
            names = set(rows.columns([kind])[kind].to_pylist())
            ids = {entry.name: [entry.name] if entry.name in names else [] for entry in entries}
        missing = next((entry for entry in entries if not ids[entry.name]), None)
        if missing is None:
            lists = {part: [id for entry in listed for id in ids[entry.name]] for part, listed in parts.items()}
            return (MEMBER if kind == MEMBER else ID), lists
        unknown[kind] = missing
    kind, entry = next(iter(unknown.items()))
    expected = f"{kind}s of the zoo" if column is not None else "ids, members or paths of the zoo"
    step = "Correct the list, or import these checkpoints first."
    raise ZooError(Problem(entry.place, "name", expected, repr(entry.name)[:120], step))


def _by_path(rows: Selection) -> dict[str, list[str]]:
    """Return the ids of the checkpoints of every file that was imported."""
    try:
        columns = rows.columns(["id", "extra.file"])
    except UnknownNameError:  # none was imported
        return {}
    by_path: dict[str, list[str]] = {}
    for id, file in zip(*(column.to_pylist() for column in columns.columns), strict=True):
        if file is not None:
            by_path.setdefault(file, []).append(id)
    return by_path


def _ids_at(path: str, known: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the ids of a file's checkpoints, by its path with folders of another machine before it."""
    return next((list(known[tail]) for tail in _tails(path) if tail in known), [])


def _tails(path: str) -> Iterator[str]:
    """Yield the path, and the rest of it without its first folders."""
    path = path.removeprefix("./")
    yield path
    while "/" in path:
        path = path.partition("/")[2]
        yield path
