"""Writes the tables of docs/guide/forms.md again, from the registry of forms and that of adapters."""

import re
from collections.abc import Iterable
from pathlib import Path

from ckptzoo.hub.imports import ADAPTERS
from ckptzoo.hub.untrusted.formats import CONTAINERS, NOT_READ, NOT_READ_BY_PATH, UNKNOWN
from ckptzoo.hub.untrusted.forms import READ

PAGE = Path(__file__).with_name("guide") / "forms.md"


def tables() -> dict[str, str]:
    """Each table by the name in its marker."""
    published = [adapter for adapter in ADAPTERS.values() if adapter.name != "files"]
    others = [form for form in (*NOT_READ_BY_PATH, *NOT_READ) if form.step and not form.is_text]
    return {
        "read": _table(
            ("form", "recognised by", "becomes", "facts", "needs"),
            ((form.words, form.recognised_by, form.becomes, form.facts, form.package) for form in READ),
        ),
        "containers": _table(
            ("form", "recognised by"), ((form.words, form.recognised_by) for form in CONTAINERS if form != UNKNOWN)
        ),
        "published": _table(
            ("`--as`", "recognised by", "becomes"),
            (
                (f"`{item.name}`", _sentence(item.recognises.__doc__), _sentence(type(item).__doc__))
                for item in published
            ),
        ),
        "not-read": _table(
            ("what it is", "recognised by", "what to do"),
            ((form.words, form.recognised_by, _step(form.step)) for form in others),
        ),
    }


def written(page: str) -> str:
    """The page with the tables between its markers written again."""
    for name, table in tables().items():
        start, end = f"<!-- {name}: written by `python docs/forms.py` -->\n", f"<!-- end of {name} -->"
        page = re.sub(
            re.escape(start) + ".*?" + re.escape(end),
            lambda _, t=f"{start}\n{table}\n\n{end}": t,
            page,
            flags=re.DOTALL,
        )
    return page


def _step(text: str) -> str:
    """What to do, with what is typed as code."""
    words, colon, typed = text.partition(": ")
    return f"{words}: `{typed.removesuffix('.')}`" if colon else words


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _sentence(text: str | None) -> str:
    """The first sentence of a docstring, as Markdown."""
    words = " ".join((text or "").split("\n\n")[0].split()).replace("``", "`")
    words = words.removeprefix("Whether ").removeprefix("there is ").removeprefix("there are ")
    return words[:1].upper() + words[1:]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
