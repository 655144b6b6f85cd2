"""Writes docs/catalogue.md behind its marker again: a table of the catalogue's sets, and a section for each of them."""

from collections.abc import Iterator
from pathlib import Path

from ckptzoo.schema import PublishedSet
from ckptzoo.schema.catalogue import catalogue

PAGE = Path(__file__).with_name("catalogue.md")
MARKER = "<!-- Written by `python docs/catalogue.py`. -->\n"


def described() -> str:
    """The table, and the sections."""
    rows = (
        f"| [{entry.name}](#{entry.name}) | {entry.count(entry.checkpoints)} | {entry.size} | {entry.license} "
        f"| {_markdown(entry.what)} |"
        for entry in catalogue()
    )
    table = ["| set | checkpoints | size | licence | what |", "|---|---|---|---|---|", *rows, ""]
    return "\n".join([*table, *(line for entry in catalogue() for line in _section(entry))])


def written(page: str) -> str:
    """The page with its part behind the marker written again."""
    return page.partition(MARKER)[0] + MARKER + "\n" + described()


def _section(entry: PublishedSet) -> Iterator[str]:
    yield from (f"## {entry.name}\n", f"{_markdown(entry.what)}\n")
    numbers = {
        "networks": entry.count(entry.networks),
        "checkpoints": entry.count(entry.checkpoints),
        "size": entry.size,
    }
    facts = {
        "architectures": _markdown(entry.architectures),
        **numbers,
        "licence": entry.license,
        "form": _markdown(entry.form),
        "addresses": ", ".join(f"<{it}>" if it.startswith("https:") else f"`{it}`" for it in entry.addresses),
        "papers": "; ".join(f"[{_markdown(paper.title)}]({paper.address})" for paper in entry.papers),
        "notes": _markdown(entry.notes),
        "tried": entry.tried,
        "tests read": _markdown(entry.tested),
    }
    # what was not tried says so itself
    yield from (
        f"- {text}" if text.startswith("not tried") else f"- {title}: {text}" for title, text in facts.items() if text
    )
    yield ""
    if entry.before:
        yield f"{' '.join(map(_markdown, entry.before))}\n"
    if entry.commands:
        yield "\n".join(["```sh", *entry.commands, "```\n"])


def _markdown(text: str) -> str:
    """A text whose characters are not taken for markup; what is between backquotes stays code."""
    parts = text.split("`")
    plain = (part.replace("<", "&lt;").replace("*", "\\*").replace("|", "\\|") for part in parts[::2])
    return "".join(
        f"{words}`{code}`" if code is not None else words
        for words, code in zip(plain, [*parts[1::2], None], strict=True)
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
