"""The head of a zoo's README.md, which hubs and ``datasets`` read, and the README.md of a new zoo."""

import re
from collections.abc import Iterable, Mapping, Sequence

from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import CARD_TOML, MAX_TAG, Card
from ckptzoo.schema.layout import COLLECTION_ROWS, DERIVED, PARTS, RETRACTED
from ckptzoo.schema.layout import METADATA as METADATA_FILE
from ckptzoo.schema.metadata import COLUMNS, RETRACTED_COLUMNS, VARIANT_COLUMNS, Column

MARK = f"<!-- Made by `ckptzoo card` from {CARD_TOML} and the zoo. Change {CARD_TOML}, then run it again. -->"
"""The first line behind the head."""
COLLECTION_MARK = MARK.replace("the zoo", "the zoos of the collection")
METADATA = "metadata"
"""Name under which ``load_dataset`` finds the rows of the checkpoints; those of a variant have the variant's."""
MAX_DATASETS = MAX_ARCHITECTURES = 20
"""Names that become tags."""

LICENSES = frozenset((
    "afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bigcode-openrail-m", "bigscience-bloom-rail-1.0",
    "bigscience-openrail-m", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "bsl-1.0", "c-uda",
    "cc", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0",
    "cc-by-nd-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0",
    "cdla-sharing-1.0", "creativeml-openrail-m", "ecl-2.0", "epl-1.0", "epl-2.0", "etalab-2.0", "eupl-1.1",
    "gfdl", "gpl", "gpl-2.0", "gpl-3.0", "isc", "lgpl", "lgpl-2.1", "lgpl-3.0", "lgpl-lr", "lppl-1.3c", "mit",
    "mpl-2.0", "ms-pl", "ncsa", "odbl", "odc-by", "ofl-1.1", "openrail", "openrail++", "osl-3.0", "pddl",
    "postgresql", "unknown", "unlicense", "wtfpl", "zlib",
))  # fmt: skip
"""Identifiers that the Hugging Face hub knows; others are ``other`` there, with a name."""

_TYPES = {"timestamp": "timestamp[us, tz=UTC]"}
"""Names in ``datasets`` of our types, where they differ."""
_SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
)
"""The hub's size categories by the number of rows that each ends below."""


def front_matter(
    card: Card,
    arch: Architecture,
    *,
    datasets: Iterable[str] = (),
    licenses: Iterable[str] = (),
    checkpoints: int | None = None,
    members: int | None = None,
    variants: Sequence[str] = (),
    retracted: bool = False,
) -> str:
    """The YAML between two lines ``---``.

    Returns plain YAML on any input: every string is quoted on one line. ``arch:`` and ``dataset:`` tags make a zoo
    findable; those of data sets whose names are long or not printable are left out, and all beyond 20. The features of
    every configuration are declared, because files of older parts may lack the last columns, and ``datasets`` infers
    them from the first file. Tested in ``tests/hub/card/test_loads.py``. Data sets and licenses are the rows', besides
    the card's. ``checkpoints`` and ``members`` are None where they are not yet known; ``retracted`` says whether there
    are tombstones.
    """
    tables: list[tuple[str, str, Sequence[Column]]] = [(METADATA, f"{PARTS}/*/{METADATA_FILE}", COLUMNS)]
    tables += [(config_of(name), f"{DERIVED}/{name}/*/{METADATA_FILE}", VARIANT_COLUMNS) for name in variants]
    if retracted:
        tables.append((RETRACTED, f"{DERIVED}/{RETRACTED}/*/{METADATA_FILE}", RETRACTED_COLUMNS))
    facts = {"checkpoints": checkpoints, "members": members, "parameters": arch.parameters}
    lines = [*_head(card, [arch.name], datasets, licenses, facts), "configs:"]
    for name, files, _ in tables:
        lines += [f"- config_name: {quoted(name)}", f"  data_files: {quoted(files)}"]
        # what ``load_dataset`` takes where no configuration is named
        lines += ["  default: true"] if name == METADATA else []
    lines.append("dataset_info:")
    for name, _, columns in tables:
        lines += [f"- config_name: {quoted(name)}", "  features:", *map(_feature, columns)]
    return "\n".join([*lines, "---"]) + "\n"


def collection_front_matter(
    card: Card,
    *,
    architectures: Iterable[str],
    datasets: Iterable[str],
    licenses: Iterable[str],
    zoos: int,
    checkpoints: int,
    members: int,
) -> str:
    """As ``front_matter`` for a collection: a search finds it by the architectures and data sets of its zoos.

    ``architectures``, ``datasets`` and ``licenses`` come from the zoos and their rows, besides the card's; ``zoos``,
    ``checkpoints`` and ``members`` are counts.
    """
    facts = {"zoos": zoos, "checkpoints": checkpoints, "members": members}
    lines = [*_head(card, architectures, datasets, licenses, facts), "configs:"]
    lines += [
        f"- config_name: {quoted(METADATA)}",
        f"  data_files: {quoted(COLLECTION_ROWS)}",
        "  default: true",
        "---",
    ]
    return "\n".join(lines) + "\n"


def _head(
    card: Card,
    architectures: Iterable[str],
    datasets: Iterable[str],
    licenses: Iterable[str],
    facts: Mapping[str, int | None],
) -> list[str]:
    """The lines of licences, title, tags and numbers."""
    # rows may name any number of data sets, and the head of a page is short
    named = [name for name in dict.fromkeys((card.dataset, *datasets)) if _taggable(name)][:MAX_DATASETS]
    kinds = [f"arch:{name}"[:MAX_TAG] for name in list(dict.fromkeys(architectures))[:MAX_ARCHITECTURES]]
    tags = ("ckptzoo", *kinds, *(f"dataset:{name}" for name in named), *card.tags)
    lines = ["---", *license_lines(card.license, licenses), f"pretty_name: {quoted(card.title or card.name)}", "tags:"]
    lines += [f"- {quoted(tag)}" for tag in dict.fromkeys(tags)]
    if (checkpoints := facts["checkpoints"]) is not None:
        lines += ["size_categories:", f"- {_size(checkpoints)}"]
    return [*lines, "ckptzoo:", *(f"  {name}: {number}" for name, number in facts.items() if number is not None)]


def first_readme(card: Card, arch: Architecture) -> str:
    """The README.md of a zoo that holds nothing yet."""
    return (
        front_matter(card, arch)
        + f"{MARK}\n\n# {plain(card.title or card.name)}\n\n"
        + (f"{plain(card.summary)}\n\n" if card.summary.strip() else "")
        + f"A ckptzoo of networks with {arch.parameters:,} parameters. `ckptzoo card` writes here what it holds.\n"
    )


def config_of(variant: str) -> str:
    """The name under which ``load_dataset`` finds the rows of a variant, apart from those of the other tables."""
    return variant if variant not in (METADATA, RETRACTED) else f"variant_{variant}"


def quoted(text: str) -> str:
    """A double-quoted string of YAML on one line; what is not printable is written as an escape."""
    return '"' + "".join(map(_yaml, text)) + '"'


def plain(text: str) -> str:
    """Text in Markdown, on one line, in which nothing is a mark."""
    # some sites take $ for the beginning of a formula, and & begins an entity of HTML
    return re.sub(r"([\\`*_\[\]<>#|&~!$])", r"\\\1", " ".join("".join(map(_shown, text)).split()))


def _yaml(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    # YAML has no escape for half of a surrogate pair
    return "\ufffd" if "\ud800" <= character <= "\udfff" else f"\\U{ord(character):08x}"


def _shown(character: str) -> str:
    return character if character.isprintable() else " "


def _taggable(name: str) -> bool:
    return name.isprintable() and 0 < len(name) <= MAX_TAG - len("dataset:")


def license_lines(own: str, others: Iterable[str]) -> list[str]:
    """The entries for one or several licences; the hub takes its own identifiers alone."""
    names = [name.strip().lower() for name in dict.fromkeys((own, *others))]
    known = list(dict.fromkeys(name if name in LICENSES else "other" for name in names if name))
    lines = [f"license: {quoted(known[0])}"] if len(known) == 1 else ["license:", *(f"- {quoted(n)}" for n in known)]
    if not known:
        return []
    if names[0] and names[0] not in LICENSES:
        slug = re.sub(r"[^a-z0-9.+-]+", "-", names[0])[:MAX_TAG].strip("-")
        lines.append(f"license_name: {quoted(slug or 'other')}")
    return lines


def _size(number: int) -> str:
    """The hub's size category for a number of rows."""
    return next((category for end, category in _SIZES if number < end), "10M<n<100M")


def _feature(column: Column) -> str:
    return f"  - {{name: {quoted(column.name)}, dtype: {quoted(_TYPES.get(column.type, column.type))}}}"
