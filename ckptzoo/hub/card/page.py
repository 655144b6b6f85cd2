"""README.md of a zoo: its head, how to load the zoo, and a section for each thing that is known.

Sections about what the zoo holds are in ``contents``, that of its pictures in ``pictures``; here are those about
training, licences, contributors and the columns of the metadata.
"""

import json
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from ckptzoo.format.table import array_of, filled_with, times_of
from ckptzoo.hub.card import contents
from ckptzoo.hub.card.contents import counts, format_number, format_range
from ckptzoo.hub.card.explorer import explorer_section
from ckptzoo.hub.card.independence import independence_section
from ckptzoo.hub.card.markdown import code, fenced, folded, listed, table
from ckptzoo.hub.card.pictures import pictures_section
from ckptzoo.loader.zoo import Zoo
from ckptzoo.remote.address import HubAddress
from ckptzoo.schema import layout
from ckptzoo.schema.card import Card
from ckptzoo.schema.metadata import COLUMNS, parse_extra
from ckptzoo.schema.readme import MARK, METADATA, config_of, front_matter, plain, quoted
from ckptzoo.text import counted

MAX_RECIPES, MAX_SETTINGS = 12, 30
"""Recipes in the table of the training, and settings that are listed for one."""
_SETTINGS_OF = 4
"""Recipes whose settings are listed."""
MAX_SETTING = 60
"""Characters of ``name = value``; longer settings are left out."""
MAX_CONTRIBUTORS = 40
_MAX_LISTED_VALUES = 3
"""Different texts of a column that are listed; of more only the number is shown."""
_MAX_WHOLE = 1e6
"""Whole numbers below this are written in full."""
_MAX_FOLDER_NAME = 80
_RECIPE_COLUMNS = ("recipe", "recipe_digest", "dataset", "builder")
_NO_SETTINGS = (
    "architecture", "dataset", "contributed_as", "evaluation", "exported_from", "file", "file_sha256", "repository",
    "rounded_from", "zoo",
)  # fmt: skip
"""Entries of ``extra`` that the page shows elsewhere, or that say where a checkpoint is from."""
_RESPONSIBLE = {
    "use_cases": "What it is for",
    "limitations": "Limitations",
    "biases": "Biases",
    "social_impact": "Social impact",
    "personal_information": "Personal information",
}
"""Keys of the card, each with the title of its section."""
_LEVELS = 2
"""Objects within ``extra`` whose entries are settings: ``facts.config.lr``."""
_MEASURED = ("energy_joules", "trained_together")
"""Entries of ``extra`` that programs add to the settings of a run."""


def readme(zoo: Zoo, card: Card, folder: str = "") -> str:
    """The README.md of a zoo.

    Parameters
    ----------
    zoo
        a whole zoo, as ``ckptzoo.open`` gives it.
    card
        what a person wrote about it.
    folder
        of the zoo in the repository that the card names, where that is a collection's.

    Returns
    -------
    str
        The same text for the same zoo and card; no time and no path is in it. What comes from rows is shown as code,
        with its length bounded, and cannot act as Markdown, HTML or YAML.

    Notes
    -----
    Reads metadata and indices, and the weights of zoos that have at most 16 MiB of them, to test whether members are
    independent. Tested in ``tests/hub/card/test_page.py``.
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
        contents.overview(zoo, card),
        _loading(zoo, card, folder),
    ]
    for title, text in _sections(zoo, card, rows):
        blocks += [f"## {title}", text] if text else []
    return head + "\n\n".join(block for block in blocks if block) + "\n"


def _sections(zoo: Zoo, card: Card, rows: pa.Table) -> list[tuple[str, str]]:
    """Return title and text of each section, without those that have no text."""
    trained = "\n\n".join(filter(None, (markdown(card.training), training(rows))))
    return [
        ("Pictures", pictures_section(card)),
        ("Explorer", explorer_section(zoo.contents.files)),
        ("How good they are", contents.accuracy(zoo)),
        ("How they were trained", trained),
        ("Independence", independence_section(zoo)),
        ("Trained again", reproduced(zoo)),
        ("Draws", contents.draws(rows)),
        ("Notes", markdown(card.notes)),
        *((title, markdown(getattr(card, key))) for key, title in _RESPONSIBLE.items()),
        ("Variants", contents.variants(zoo) if zoo.gauges else ""),
        ("Predictions", contents.predictions(zoo) if zoo.predicted else ""),
        ("Tensors", contents.tensors(zoo.arch)),
        ("Metadata", columns(rows) if len(rows) else ""),
        ("Licence", licence(card, rows)),
        ("Contributors", contributors(card, rows)),
        ("Citation", citation(card)),
    ]


def _loading(zoo: Zoo, card: Card, folder: str) -> str:
    """Return a program that reads weights, and one that reads the metadata."""
    repository = card.repository or f"path/to/{folder_name(card.name)}"
    address = str(HubAddress(repository, folder=folder)) if folder else repository
    complete = [name for name in zoo.gauges if len(zoo.contents.derived(name).rows) >= len(zoo)]
    first = zoo.arch.tensors[0]
    gauge = "canonical" if "canonical" in complete else next(iter(complete), None)
    key = f'"{first.name}"' + (f', "{gauge}"' if gauge else "")
    shape = f"({', '.join(map(str, (len(zoo), *first.shape)))}{'' if first.shape else ','})"
    # readers follow references to other machines where they say so
    refers = zoo.contents.identity.references and bool(zoo.contents.references.is_remote.all())
    lines = [
        "import ckptzoo",
        "",
        f"zoo = ckptzoo.open({quoted(address)}{', follow=True' if refers else ''})",
        f"weights = zoo[{key}]  # lazy, {shape}: indexing reads",
    ]
    without_raw = len(zoo) > 0 and zoo.ids[0] in contents.ids_without_raw_weights(zoo)
    if zoo.arch.forward is not None and len(zoo) and (gauge or not without_raw):
        variant = f', variant="{gauge}"' if without_raw else ""
        lines.append(f"model = zoo.checkpoint(zoo.ids[0]{variant}).model()  # a torch module")
    # a repository has the configurations of its own README.md alone
    rows = f'"{METADATA}"' if not folder else f"data_files={quoted(f'{folder}/{layout.PARTS}/*/{layout.METADATA}')}"
    metadata_lines = [
        "from datasets import load_dataset",
        "",
        f'rows = load_dataset("{repository}", {rows}, split="train")  # a row for each checkpoint',
    ]
    others = ", ".join(f'`"{config_of(name)}"`' for name in zoo.gauges) if not folder else ""
    notes = [f'In place of `"{METADATA}"`: {others}, for what was measured of a variant.'] if others else []
    if len(zoo.retracted) and not folder:
        notes.append(
            f'`"{METADATA}"` has the rows of retracted checkpoints too; `"{layout.RETRACTED}"` says which and why.'
        )
    programs = [fenced("\n".join(program), "python") for program in (lines, metadata_lines)]
    return "\n\n".join(filter(None, (*programs, " ".join(notes))))


def folder_name(name: str) -> str:
    """Return the zoo's name as far as it can be in a path and in quotation marks."""
    letters = (letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in name)
    return "".join(letters)[:_MAX_FOLDER_NAME]


def markdown(text: str) -> str:
    """Return a person's Markdown with plain line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _by_recipe(rows: pa.Table) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """Yield the values that ``_RECIPE_COLUMNS`` have together, with the rows that have them."""
    if not len(rows):
        return
    # group_by of pyarrow would import pandas
    encoded = [rows[name].combine_chunks().dictionary_encode().indices for name in _RECIPE_COLUMNS]
    numbers = np.stack([filled_with(indices, -1) for indices in encoded])
    _, groups = np.unique(numbers, axis=1, return_inverse=True)
    for number in range(int(groups.max()) + 1):
        own_rows = rows.take(array_of(np.flatnonzero(groups.ravel() == number)))
        yield {name: own_rows[name][0].as_py() for name in _RECIPE_COLUMNS}, own_rows


def training(rows: pa.Table) -> str:
    """Return a line for each recipe and data set, and settings that all checkpoints of a recipe share, if any."""
    recipes = [(key, own_rows) for key, own_rows in _by_recipe(rows) if any(key.values())]
    if not recipes:
        return ""
    recipes.sort(key=lambda recipe: (-len(recipe[1]), *(str(recipe[0][column] or "") for column in _RECIPE_COLUMNS)))
    text = [_recipe_table([_recipe_line(key, own_rows) for key, own_rows in recipes[:MAX_RECIPES]])]
    if len(recipes) > MAX_RECIPES:
        text.append(f"And {len(recipes) - MAX_RECIPES:,} more.")
    for key, own_rows in recipes[:_SETTINGS_OF]:
        shared, differing = _settings(own_rows)
        name = f" of {code(key['recipe'])}" if key["recipe"] else ""
        sentences = [f"Settings{name}: {', '.join(shared)}."] if shared else []
        sentences += [f"Differing between checkpoints{'' if shared else name}: {', '.join(differing)}."] * bool(
            differing
        )
        text += [" ".join(sentences)] if sentences else []
    return "\n\n".join(text)


def reproduced(zoo: Zoo) -> str:
    """Return who trained which checkpoints again, the newest first; nothing where nobody did."""
    marks = zoo.reproduced
    if not marks:
        return ""
    marked = {name for mark in marks for name in mark.ids}.intersection(zoo.ids)
    text = f"{len(marked):,} of {counted(len(zoo), 'checkpoint')} were trained again from their rows, bit for bit."
    newest = list(reversed(marks))[:MAX_CONTRIBUTORS]
    lines = [
        (code(mark.by), f"{mark.created:%Y-%m-%d}", f"{len(mark.ids):,}", code(", ".join(mark.on.values())))
        for mark in newest
    ]
    shown = table(("by", "date", "checkpoints", "on"), lines, right=(2,))
    more = [f"And {len(marks) - len(newest):,} more."] if len(marks) > len(newest) else []
    return "\n\n".join([text, shown, *more])


def _recipe_table(lines: Sequence[Sequence[str]]) -> str:
    """Return the table of recipes, without the columns in which no recipe has a value."""
    header = ("recipe", "data set", "checkpoints", "epochs", "steps", "precision", "device", "program")
    kept = [number for number in range(len(header)) if any(line[number] for line in lines)]
    right = [place for place, number in enumerate(kept) if number in (2, 3, 4)]
    return table([header[number] for number in kept], [[line[n] for n in kept] for line in lines], right=right)


def _recipe_line(key: dict[str, Any], rows: pa.Table) -> Sequence[str]:
    return (
        code(key["recipe"]) if key["recipe"] else "",
        code(key["dataset"]) if key["dataset"] else "",
        f"{len(rows):,}",
        _value_range(rows["epoch"]),
        "" if contents.steps_are_epochs(rows) else _value_range(rows["step"]),
        listed(list(counts(rows["precision"])), limit=3),
        listed(list(counts(rows["device"])), limit=3),
        code(key["builder"]) if key["builder"] else "",
    )


def _value_range(column: pa.ChunkedArray) -> str:
    values = [value for value in column.unique().to_pylist() if value is not None and math.isfinite(value)]
    if not values:
        return ""
    low, high = (int(end) if end == int(end) else end for end in (min(values), max(values)))
    known = len(column) - column.null_count
    return format_range(low, high) + (f" ({known:,} of {len(column):,})" if known < len(column) else "")


def _settings(rows: pa.Table) -> tuple[list[str], list[str]]:
    """Return entries of ``extra`` that all of these rows share, and those that differ, in the order of their names."""
    entries = [_entries(text) for text in rows["extra"].unique().to_pylist()]
    names = sorted({name for item in entries for name in item})
    # an epoch in the facts of a file is the column's
    columns_with_values = {column.name for column in COLUMNS if rows[column.name].null_count < len(rows)}
    values_of = {name: list(dict.fromkeys(item.get(name) for item in entries)) for name in names}
    settings = [f"{name} = {values[0]}" for name, values in values_of.items() if len(values) == 1]
    shared = [code(setting) for setting in settings if len(setting) <= MAX_SETTING]
    differing = [
        f"{code(name)} {said}"
        for name, values in values_of.items()
        if name not in _MEASURED and name.rpartition(".")[2] not in columns_with_values and (said := _differing(values))
    ]
    return _first(shared), _first(differing)


def _first(items: list[str]) -> list[str]:
    more = [f"{len(items) - MAX_SETTINGS:,} more"] if len(items) > MAX_SETTINGS else []
    return [*items[:MAX_SETTINGS], *more]


def _differing(values: Sequence[str | None]) -> str:
    """List several values of an entry, as JSON or None where a row lacks it; none for one value, objects and lists."""
    parsed = [json.loads(value) for value in values if value is not None]
    if len(values) < 2 or any(isinstance(value, dict | list) for value in parsed):
        return ""
    if len(parsed) <= _MAX_LISTED_VALUES:
        said = ", ".join(code(text) for text in sorted(map(json.dumps, parsed)))
    elif all(isinstance(value, int | float) and not isinstance(value, bool) for value in parsed):
        finite = [value for value in parsed if math.isfinite(value)]
        said = format_range(min(finite), max(finite)) if finite else "not finite"
    else:
        said = f"{len(parsed):,} values"
    return f"({said}{', or none' if None in values else ''})"


def _entries(text: str | None) -> dict[str, str]:
    """Return the settings in untrusted text, each as JSON, with the keys of nested objects; none for other texts."""
    entries = {name: entry for name, entry in (parse_extra(text) or {}).items() if name not in _NO_SETTINGS}
    for _ in range(_LEVELS):
        flat: dict[str, Any] = {}
        for name, entry in entries.items():
            flat |= (
                {f"{name}.{key}": value for key, value in entry.items()} if isinstance(entry, dict) else {name: entry}
            )
        entries = flat
    return {name: json.dumps(entry) for name, entry in entries.items() if entry is not None}


def licence(card: Card, rows: pa.Table) -> str:
    """Return the zoo's licence, and those that contributed checkpoints have instead."""
    own = card.license.strip()
    text = f"{code(own)}." if own else "No licence is stated."
    others = {name: number for name, number in counts(rows["license"]).items() if name.lower() != own.lower()}
    if not others:
        return text
    lines = [(code(name), f"{number:,}") for name, number in list(others.items())[:MAX_CONTRIBUTORS]]
    more = len(others) - len(lines)
    lead = "Checkpoints whose rows name another licence have that one:"
    if not own:
        text, lead = "No licence is stated for the whole zoo.", "Checkpoints whose rows name one have that one:"
    blocks = [f"{text} {lead}".strip(), table(("licence", "checkpoints"), lines, right=(1,))]
    return "\n\n".join([*blocks, *([f"And {more:,} more."] if more else [])])


def contributors(card: Card, rows: pa.Table) -> str:
    """Name those who made the zoo and who contributed checkpoints, with licences and sources; may be empty."""
    text = [f"Made by {', '.join(map(plain, card.authors))}."] if card.authors else []
    names, numbers = rows["contributor"].to_pylist(), counts(rows["contributor"])
    lines: list[tuple[str, ...]] = []
    for name, number in list(numbers.items())[:MAX_CONTRIBUTORS]:
        own_rows = rows.take(array_of(np.array([at for at, contributor in enumerate(names) if contributor == name])))
        details = (listed(list(counts(own_rows[column])), limit=3) for column in ("license", "source"))
        lines.append((code(name), f"{number:,}", *details))
    if lines:
        text.append(table(("contributor", "checkpoints", "licence", "source"), lines, right=(1,)))
    if len(numbers) > len(lines):
        text.append(f"And {len(numbers) - len(lines):,} more.")
    return "\n\n".join(text)


def citation(card: Card) -> str:
    """Return DOI and BibTeX, or nothing."""
    doi = f"DOI: {code(card.doi)}." if card.doi else ""
    return "\n\n".join(filter(None, (doi, fenced(card.citation.strip(), "bibtex") if card.citation.strip() else "")))


def columns(rows: pa.Table) -> str:
    """Return a line for every column with a value in it: how many rows have one, which values, and what it means."""
    meanings = {"step": "number of the epoch: steps are numbered by epoch"} if contents.steps_are_epochs(rows) else {}
    lines = [
        (
            code(column.name),
            _filled(rows[column.name]),
            _values(rows[column.name], column.type),
            meanings.get(column.name, column.doc),
        )
        for column in COLUMNS
        if rows[column.name].null_count < len(rows)
    ]
    text = table(("column", "filled", "values", "meaning"), lines, right=(1,))
    return folded(f"{counted(len(lines), 'column')} of each checkpoint's row", text)


def _filled(column: pa.ChunkedArray) -> str:
    known = len(column) - column.null_count
    return "all" if known == len(column) else f"{known:,}"


def _values(column: pa.ChunkedArray, kind: str) -> str:
    known = column.drop_null()
    if kind == "string":
        texts = counts(known) if len(known.unique()) <= _MAX_LISTED_VALUES else {}
        return ", ".join(code(text, limit=40) for text in texts) or f"{len(known.unique()):,} different"
    if kind == "bool":
        true = int(filled_with(known, False).sum())
        return "true" if true == len(known) else "false" if not true else f"true for {true:,}"
    if kind == "timestamp":
        moments = times_of(known)
        return " to ".join(dict.fromkeys((_day(min(moments)), _day(max(moments)))))
    return _number_range(known)


def _number_range(known: pa.ChunkedArray) -> str:
    values = [value for value in known.unique().to_pylist() if math.isfinite(value)]
    not_finite = sum(not math.isfinite(value) for value in known.to_pylist())
    text = [_ends(values)] if values else []
    return ", ".join([*text, *([f"{not_finite:,} not finite"] if not_finite else [])])


def _ends(values: list[float]) -> str:
    """Return the least and the largest value; those below a million are written in full where they are whole."""
    ends = [int(end) if end == int(end) and abs(end) < _MAX_WHOLE else end for end in (min(values), max(values))]
    return format_range(*ends) if ends[0] != ends[1] else format_number(ends[0])


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"
