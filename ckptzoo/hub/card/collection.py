"""README.md of a collection: what its zoos hold, in a line each, and how to load them."""

from collections.abc import Mapping
from urllib.parse import quote

import pyarrow as pa

from ckptzoo.errors import SpecError
from ckptzoo.format.files import Files
from ckptzoo.hub.card.contents import counts, mean_of
from ckptzoo.hub.card.markdown import code, fenced, listed, table
from ckptzoo.hub.card.page import citation, contributors, folder_name, markdown
from ckptzoo.hub.card.pictures import pictures_section
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML, MAX_CARD_BYTES, Card
from ckptzoo.schema.readme import COLLECTION_MARK, METADATA, collection_front_matter, plain, quoted
from ckptzoo.text import counted

MAX_ZOOS = 500
"""Zoos that have a line."""
_MAX_NAMES = 3
_REVISION = len("sha256:") + 12
"""Characters of a revision that are shown."""


def collection_readme(zoos: Mapping[str, Zoo], card: Card) -> str:
    """Return the README.md of a collection, from metadata and the zoos' cards; no weights are read.

    ``zoos`` are all of its zoos, whole, by the names of their folders; the name of ``card`` is the title where it has
    none. The text is the same for the same zoos and card. Text of zoos is shown as code, with its length bounded.
    """
    rows = pa.concat_tables([zoo.metadata for zoo in zoos.values()])
    licences = {folder: licences_of(zoo) for folder, zoo in zoos.items()}
    head = collection_front_matter(
        card,
        architectures=[zoo.arch.name for zoo in zoos.values()],
        datasets=counts(rows["dataset"]),
        licenses=dict.fromkeys(name for names in licences.values() for name in names),
        zoos=len(zoos),
        checkpoints=len(rows),
        members=sum(_members(zoo) for zoo in zoos.values()),
    )
    blocks = [
        COLLECTION_MARK,
        f"# {plain(card.title or card.name)}",
        plain(card.summary),
        f"A collection of {counted(len(zoos), 'zoo')} with **{counted(len(rows), 'checkpoint')}** in all.",
        _loading(zoos, card),
    ]
    sections = [
        ("Zoos", _zoos(zoos, licences)),
        ("Pictures", pictures_section(card)),
        ("How they were trained", markdown(card.training)),
        ("Notes", markdown(card.notes)),
        ("Licence", _licence(card, licences)),
        ("Contributors", contributors(card, rows)),
        ("Citation", citation(card)),
    ]
    for title, text in sections:
        blocks += [f"## {title}", text] if text else []
    return head + "\n\n".join(block for block in blocks if block) + "\n"


def card_or_default(files: Files, name: str) -> Card:
    """Return the card of a collection, which needs none; ``name`` is used where there is no card.

    Raises ``SpecError`` where there is a card, and it is not valid.
    """
    if files.size(CARD_TOML) is None:
        return Card(name)
    return Card.from_bytes(files.read(CARD_TOML, max_bytes=MAX_CARD_BYTES), location=f"{files.name}/{CARD_TOML}")


def licences_of(zoo: Zoo) -> tuple[str, ...]:
    """Return the licences that a zoo's card and its rows name, each once; a card that cannot be read names none."""
    try:
        own = card_or_default(zoo.contents.files, zoo.name).license.strip()
    except SpecError:
        own = ""
    known = {name.lower(): name for name in (*counts(zoo.column("license")), *([own] if own else []))}
    return tuple(sorted(known.values(), key=lambda name: (name != own, name)))


def _members(zoo: Zoo) -> int:
    return len(zoo.column("member").unique())


def _loading(zoos: Mapping[str, Zoo], card: Card) -> str:
    """Return a program that reads weights of one zoo, and one that reads the rows of all."""
    address = card.repository or f"path/to/{folder_name(card.name)}"
    first, zoo = next(iter(zoos.items()))
    tensor = zoo.arch.tensors[0]
    lines = [
        "import ckptzoo",
        "",
        f'collection = ckptzoo.open_collection("{address}")',
        "rows = collection.metadata  # a row for each checkpoint, with the zoo's folder",
        f"zoo = collection.zoos[{quoted(first)}]  # opened now, at the revision below",
        f"weights = zoo[{quoted(tensor.name)}]  # lazy: indexing reads",
    ]
    metadata_lines = [
        "from datasets import load_dataset",
        "",
        f'rows = load_dataset("{address}", "{METADATA}", split="train")  # the same rows',
    ]
    note = "`collection.where(...)` selects by a condition on the rows and opens only the zoos that it needs."
    return "\n\n".join([fenced("\n".join(lines), "python"), note, fenced("\n".join(metadata_lines), "python")])


def _zoos(zoos: Mapping[str, Zoo], licences: Mapping[str, tuple[str, ...]]) -> str:
    header = ("zoo", "architecture", "checkpoints", "members", "trained on", "on average", "licence", "revision")
    lines = [_line(folder, zoo, licences[folder]) for folder, zoo in list(zoos.items())[:MAX_ZOOS]]
    blocks = [table(header, lines, right=(2, 3))]
    if len(zoos) > MAX_ZOOS:
        blocks.append(f"And {len(zoos) - MAX_ZOOS:,} more.")
    return "\n\n".join(blocks)


def _line(folder: str, zoo: Zoo, licences: tuple[str, ...]) -> tuple[str, ...]:
    name = code(folder)
    if zoo.contents.files.size(layout.README) is not None:
        # with the dot it is a relative link whatever the folder is called, "javascript:" too
        name = f"[{name}](./{quote(folder, safe='')}/{layout.README})"
    return (
        name,
        f"{code(zoo.arch.name)}, {zoo.arch.parameters:,} parameters",
        f"{len(zoo):,}",
        f"{_members(zoo):,}",
        listed(list(counts(zoo.column("dataset"))), limit=_MAX_NAMES),
        " ".join(mean_of(zoo) or ()).removesuffix(" on average"),
        listed(licences, limit=_MAX_NAMES) or "none stated",
        code(zoo.revision[:_REVISION]),
    )


def _licence(card: Card, licences: Mapping[str, tuple[str, ...]]) -> str:
    """Return a checkpoint's licence; that of the collection holds for zoos that state none."""
    text = "Each checkpoint has the licence that its row names, else that of its zoo; the table shows them."
    without = [folder for folder, names in licences.items() if not names]
    if without and (own := card.license.strip()):
        return f"{text} {listed(without, limit=10)}, where none is stated: {code(own)}."
    return f"{text} None is stated for {listed(without, limit=10)}, so that nobody may use them." if without else text
