"""The page itself: head, table at the top, how to load it, and a section for each thing that is known."""

import pyarrow as pa

from ckptzoo.hub.card import accuracy, columns, holds, people, training
from ckptzoo.hub.card.figures import counts
from ckptzoo.hub.card.markdown import fenced
from ckptzoo.hub.card.pictures import pictures
from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec import layout
from ckptzoo.spec.card import Card
from ckptzoo.spec.readme import MARK, METADATA, config_of, front_matter, plain


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
    Reads metadata and indices; no weights. ``tests/hub/test_card_page.py`` holds what must not change.
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
        holds.origin(zoo),
        holds.glance(zoo, card),
        _loading(zoo, card),
    ]
    for title, text in _sections(zoo, card, rows):
        blocks += [f"## {title}", text] if text else []
    return head + "\n\n".join(block for block in blocks if block) + "\n"


def _sections(zoo: Zoo, card: Card, rows: pa.Table) -> list[tuple[str, str]]:
    trained = "\n\n".join(filter(None, (_markdown(card.training), training.training(rows))))
    return [
        ("Pictures", pictures(card)),
        ("How good they are", accuracy.accuracy(zoo)),
        ("How they were trained", trained),
        ("Notes", _markdown(card.notes)),
        ("Variants", holds.variants(zoo) if zoo.gauges else ""),
        ("Predictions", holds.predictions(zoo) if zoo.predicted else ""),
        ("Tensors", holds.tensors(zoo.arch)),
        ("Metadata", columns.columns(rows) if len(rows) else ""),
        ("Licence", people.licence(card, rows)),
        ("Contributors", people.contributors(card, rows)),
        ("Citation", people.citation(card)),
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
    lacking = len(zoo) > 0 and zoo.ids[0] in holds.bare(zoo)
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
