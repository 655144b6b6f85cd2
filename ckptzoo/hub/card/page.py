"""The page itself: head, table at the top, how to load it, and a section for each thing that is known.

How the checkpoints were trained, as their rows say.

Whose the checkpoints are: licences, contributors, how to cite them.

The metadata that is filled, column by column.

The pictures that a card names: as the page shows them, and as the zoo holds them.
"""

import json
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from ckptzoo.errors import Problem, SpecError
from ckptzoo.format.files import Files
from ckptzoo.hub.card import contents
from ckptzoo.hub.card.contents import between, counts, figure
from ckptzoo.hub.card.markdown import code, fenced, folded, listed, table
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.card import MAX_PICTURE_BYTES, Card, is_png
from ckptzoo.schema.metadata import COLUMNS
from ckptzoo.schema.readme import MARK, METADATA, config_of, front_matter, plain
from ckptzoo.text import counted

MAX_GROUPS, MAX_SETTINGS, MAX_VALUE = 12, 30, 60
_KEYS = ("recipe", "recipe_digest", "dataset", "builder")
_SAID = ("architecture", "dataset")
"""Entries of ``extra`` that the card says elsewhere."""


def training(rows: pa.Table) -> str:
    """A line for each recipe and data set, and the settings that all checkpoints of a recipe share; may be empty.

    Parameters
    ----------
    rows : of the checkpoints.
    """
    keys = rows.select([*_KEYS]).append_column("row", pa.array(range(len(rows)), pa.int64()))
    found = keys.group_by([*_KEYS]).aggregate([("row", "list")]).to_pylist()
    groups = [(item, rows.take(pa.array(sorted(item["row_list"])))) for item in found]
    groups = [(item, own) for item, own in groups if any(item[key] for key in _KEYS)]
    if not groups:
        return ""
    groups.sort(key=lambda group: (-len(group[1]), *(str(group[0][key] or "") for key in _KEYS)))
    header = ("recipe", "data set", "checkpoints", "epochs", "steps", "precision", "device", "program")
    text = [table(header, [_line(item, own) for item, own in groups[:MAX_GROUPS]], right=(2, 3, 4))]
    if len(groups) > MAX_GROUPS:
        text.append(f"And {len(groups) - MAX_GROUPS:,} more.")
    for item, own in groups[:4]:
        if shared := _settings(own):
            name = f" of {code(item['recipe'])}" if item["recipe"] else ""
            text.append(f"Settings{name}: {', '.join(shared)}.")
    return "\n\n".join(text)


def _line(item: dict[str, Any], own: pa.Table) -> Sequence[str]:
    return (
        code(item["recipe"]) if item["recipe"] else "",
        code(item["dataset"]) if item["dataset"] else "",
        f"{len(own):,}",
        _value_range(own["epoch"]),
        _value_range(own["step"]),
        listed(list(counts(own["precision"])), most=3),
        listed(list(counts(own["device"])), most=3),
        code(item["builder"]) if item["builder"] else "",
    )


def _value_range(column: pa.ChunkedArray) -> str:
    found = [value for value in column.unique().to_pylist() if value is not None and math.isfinite(value)]
    if not found:
        return ""
    least, most = (int(end) if end == int(end) else end for end in (min(found), max(found)))
    return between(least, most)


def _settings(own: pa.Table) -> list[str]:
    """The entries of ``extra`` that are the same in all of these rows, in the order of their names."""
    first, *others = map(_entries, own["extra"].unique().to_pylist())
    same = [name for name, shown in sorted(first.items()) if all(other.get(name) == shown for other in others)]
    pairs = [f"{name} = {first[name]}" for name in same if name not in _SAID]
    shown = [code(pair) for pair in pairs if len(pair) <= MAX_VALUE]
    more = [f"{len(shown) - MAX_SETTINGS:,} more"] if len(shown) > MAX_SETTINGS else []
    return [*shown[:MAX_SETTINGS], *more]


def _entries(text: str | None) -> dict[str, str]:
    """The entries of a JSON object in anybody's text, each as JSON; none where it is no object."""
    try:
        found = json.loads(text or "")
        pairs = found.items() if isinstance(found, dict) else ()
        return {name: json.dumps(value) for name, value in pairs if value is not None}
    except (ValueError, RecursionError):
        return {}


MAX_CONTRIBUTORS = 40


def licence(card: Card, rows: pa.Table) -> str:
    """The zoo's licence, and those that contributed checkpoints have instead."""
    own = card.license.strip()
    text = f"{code(own)}." if own else "No licence is stated."
    others = {name: number for name, number in counts(rows["license"]).items() if name.lower() != own.lower()}
    if not others:
        return text
    lines = [(code(name), f"{number:,}") for name, number in list(others.items())[:MAX_CONTRIBUTORS]]
    more = len(others) - len(lines)
    said = "Checkpoints whose rows name another licence have that one:"
    if not own:
        text, said = "No licence is stated for the whole zoo.", "Checkpoints whose rows name one have that one:"
    blocks = [f"{text} {said}".strip(), table(("licence", "checkpoints"), lines, right=(1,))]
    return "\n\n".join([*blocks, *([f"And {more:,} more."] if more else [])])


def contributors(card: Card, rows: pa.Table) -> str:
    """Who made the zoo and who brought checkpoints, with their licences and sources; may be empty."""
    text = [f"Made by {', '.join(map(plain, card.authors))}."] if card.authors else []
    names, found = rows["contributor"].to_pylist(), counts(rows["contributor"])
    lines: list[tuple[str, ...]] = []
    for name, number in list(found.items())[:MAX_CONTRIBUTORS]:
        own = rows.filter(pa.array([held == name for held in names]))
        said = (listed(list(counts(own[column])), most=3) for column in ("license", "source"))
        lines.append((code(name), f"{number:,}", *said))
    if lines:
        text.append(table(("contributor", "checkpoints", "licence", "source"), lines, right=(1,)))
    if len(found) > len(lines):
        text.append(f"And {len(found) - len(lines):,} more.")
    return "\n\n".join(text)


def citation(card: Card) -> str:
    """BibTeX, or nothing."""
    return fenced(card.citation.strip(), "bibtex") if card.citation.strip() else ""


_FEW = 3


def columns(rows: pa.Table) -> str:
    """A line for every column with a value in it: how many have one, which values, and what it means."""
    lines = [
        (code(column.name), _filled(rows[column.name]), _values(rows[column.name], column.type), column.doc)
        for column in COLUMNS
        if rows[column.name].null_count < len(rows)
    ]
    text = table(("column", "filled", "values", "meaning"), lines, right=(1,))
    return folded(f"{counted(len(lines), 'column')} of each checkpoint's row", text)


def _filled(column: pa.ChunkedArray) -> str:
    known = len(column) - column.null_count
    return "all" if known == len(column) else f"{known:,}"


def _values(column: pa.ChunkedArray, kind: str) -> str:
    found = column.drop_null()
    if kind == "string":
        distinct = counts(found) if len(found.unique()) <= _FEW else {}
        return ", ".join(code(text, most=40) for text in distinct) or f"{len(found.unique()):,} different"
    if kind == "bool":
        true = int(found.to_numpy().sum())
        return "true" if true == len(found) else "false" if not true else f"true for {true:,}"
    if kind == "timestamp":
        moments = found.unique().to_pylist()
        return " to ".join(dict.fromkeys((_day(min(moments)), _day(max(moments)))))
    return _range(found)


def _range(found: pa.ChunkedArray) -> str:
    values = [value for value in found.unique().to_pylist() if math.isfinite(value)]
    odd = sum(not math.isfinite(value) for value in found.to_pylist())
    text = [_plain(values)] if values else []
    return ", ".join([*text, *([f"{odd:,} not finite"] if odd else [])])


def _plain(values: list[float]) -> str:
    """A range; figures up to a million are written in full where they are whole."""
    ends = [int(end) if end == int(end) and abs(end) < 1e6 else end for end in (min(values), max(values))]
    return between(*ends) if ends[0] != ends[1] else figure(ends[0])


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"


def pictures(card: Card) -> str:
    """Every picture with its caption below it; empty where there is none."""
    shown = ((plain(picture.caption), picture.path) for picture in card.pictures)
    return "\n\n".join(f"![{caption}]({path})\n\n*{caption}*" for caption, path in shown)


def read_pictures(files: Files, card: Card) -> tuple[dict[str, bytes], list[Problem]]:
    """The pictures that a zoo holds, by their paths, and what is wrong with the others."""
    sizes = {picture.path: files.size(picture.path) for picture in card.pictures}
    fitting = [path for path, size in sizes.items() if size is not None and 0 < size <= MAX_PICTURE_BYTES]
    read = dict(zip(fitting, files.read_many(fitting, max_bytes=MAX_PICTURE_BYTES), strict=True))
    held = {path: data for path, data in read.items() if is_png(data)}
    step = "Put one there, or leave it out of the card."
    problems: list[Problem] = []
    for path, size in sizes.items():
        if path not in held:
            got = "none" if size is None else "something else" if path in read else f"{size:,} bytes"
            expected = f"a whole PNG of at most {MAX_PICTURE_BYTES:,} bytes"
            problems.append(Problem(f"{files.name}/{path}", "picture", expected, got, step))
    return held, problems


def check_pictures(files: Files, card: Card) -> dict[str, bytes]:
    """The pictures that a zoo holds, by their paths.

    Raises
    ------
    SpecError
        One is missing, too large, or no PNG; every such one is named.
    """
    held, problems = read_pictures(files, card)
    if problems:
        raise SpecError(problems)
    return held


def readme(zoo: Zoo, card: Card) -> str:
    """The README.md of a zoo.

    Parameters
    ----------
    zoo : a whole zoo, as ``ckptzoo.open`` gives it.
    card : what a person says about it.

    Returns
    -------
    str
        The same text for the same zoo and card; no time and no place is in it. What comes from rows is shown as code,
        with its length bounded, and cannot act as Markdown, HTML or YAML.

    Notes
    -----
    Reads metadata and indices; no weights. ``tests/hub/card/test_page.py`` holds what must not change.
    """
    rows = zoo.metadata
    head = front_matter(
        card,
        zoo.arch,
        datasets=counts(rows["dataset"]),
        licenses=counts(rows["license"]),
        checkpoints=len(zoo),
        members=len(rows["member"].unique()),
        variants=zoo.gauges,
        retracted=len(zoo.retracted) > 0,
    )
    blocks = [
        MARK,
        f"# {plain(card.title or card.name)}",
        plain(card.summary),
        contents.origin(zoo),
        contents.glance(zoo, card),
        _loading(zoo, card),
    ]
    for title, text in _sections(zoo, card, rows):
        blocks += [f"## {title}", text] if text else []
    return head + "\n\n".join(block for block in blocks if block) + "\n"


def _sections(zoo: Zoo, card: Card, rows: pa.Table) -> list[tuple[str, str]]:
    trained = "\n\n".join(filter(None, (_markdown(card.training), training(rows))))
    return [
        ("Pictures", pictures(card)),
        ("How good they are", contents.accuracy(zoo)),
        ("How they were trained", trained),
        ("Notes", _markdown(card.notes)),
        ("Variants", contents.variants(zoo) if zoo.gauges else ""),
        ("Predictions", contents.predictions(zoo) if zoo.predicted else ""),
        ("Tensors", contents.tensors(zoo.arch)),
        ("Metadata", columns(rows) if len(rows) else ""),
        ("Licence", licence(card, rows)),
        ("Contributors", contributors(card, rows)),
        ("Citation", citation(card)),
    ]


def _loading(zoo: Zoo, card: Card) -> str:
    """Three lines for the weights, and one for the metadata."""
    place = card.repository or f"path/to/{_folder(card.name)}"
    full = [name for name in zoo.gauges if len(zoo.contents.derived(name).rows) >= len(zoo)]
    first = zoo.arch.tensors[0]
    gauge = "canonical" if "canonical" in full else next(iter(full), None)
    key = f'"{first.name}"' + (f', "{gauge}"' if gauge else "")
    shape = f"({', '.join(map(str, (len(zoo), *first.shape)))}{'' if first.shape else ','})"
    lines = [
        "import ckptzoo",
        "",
        f'zoo = ckptzoo.open("{place}")',
        f"weights = zoo[{key}]  # lazy, {shape}: indexing reads",
    ]
    lacking = len(zoo) > 0 and zoo.ids[0] in contents.bare(zoo)
    if zoo.arch.forward is not None and len(zoo) and (gauge or not lacking):
        which = f', variant="{gauge}"' if lacking else ""
        lines.append(f"model = zoo.checkpoint(zoo.ids[0]{which}).model()  # a torch module")
    rows = [
        "from datasets import load_dataset",
        "",
        f'rows = load_dataset("{place}", "{METADATA}", split="train")  # a row for each checkpoint',
    ]
    others = ", ".join(f'`"{config_of(name)}"`' for name in zoo.gauges)
    notes = [f'In place of `"{METADATA}"`: {others}, for what was measured of a variant.'] if others else []
    if len(zoo.retracted):
        notes.append(
            f'`"{METADATA}"` has the rows of retracted checkpoints too; `"{layout.RETRACTED}"` says which and why.'
        )
    note = " ".join(notes)
    return "\n\n".join(filter(None, (fenced("\n".join(lines), "python"), fenced("\n".join(rows), "python"), note)))


def _folder(name: str) -> str:
    """The zoo's name as far as it can stand in a path and in quotation marks."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in name)[
        :80
    ]


def _markdown(text: str) -> str:
    """What a person wrote in Markdown, with plain line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()
