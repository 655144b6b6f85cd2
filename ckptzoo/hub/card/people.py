"""Whose the checkpoints are: licences, contributors, how to cite them."""

import pyarrow as pa

from ckptzoo.hub.card.figures import counts
from ckptzoo.hub.card.markdown import code, fenced, listed, table
from ckptzoo.spec.card import Card
from ckptzoo.spec.readme import plain

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
