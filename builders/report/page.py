"""The page: one HTML file with its pictures, which prints on A4, without scripts and without anything to fetch."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from builders.report.claims import (
    ALMOST_NONE,
    DEVIATIONS,
    DIFFERS,
    IN_PART,
    LEAST_DISTANCE,
    LEAST_PERFORMANCE,
    MUCH,
    OPEN,
    RELATIVE,
    REPRODUCED,
    SCARCE,
    VERDICTS,
    ZERO_BARRIER,
)
from builders.report.parts import PAPERS, ReportPart
from ckptzoo.html import MAX_ROWS
from ckptzoo.text import counted, printable

_MARKS = {REPRODUCED: "●", IN_PART: "◐", DIFFERS: "○", OPEN: "–"}
"""Signs of verdicts, which tell them apart without colours."""
_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c1e21; --quiet: #565b63; --line: #d5d8dd; --soft: #f4f5f7;
  --link: #1b4f9c; --reproduced: #17642c; --part: #7a4c00; --differs: #a3181f; }
@media (prefers-color-scheme: dark) { :root { --back: #16181b; --text: #e7e9ec; --quiet: #a9afb8; --line: #3a3f46;
  --soft: #202327; --link: #8fb8f6; --reproduced: #86d79b; --part: #e8bd6a; --differs: #ff9a9a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 0.6rem 1rem 4rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.3; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 0.5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.1rem; margin: 2rem 0 0.5rem; }
h4 { font-size: 1rem; margin: 1.2rem 0 0.3rem; }
p, ul { margin: 0.5rem 0; }
a { color: var(--link); }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
figure { margin: 1rem 0; }
figcaption, caption { color: var(--quiet); font-size: 0.9rem; text-align: left; padding: 0.3rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 0.9rem 0.25rem 0;
  border-bottom: 1px solid var(--line); }
.number { text-align: right; white-space: nowrap; }
.scroll { overflow-x: auto; margin: 0.7rem 0; }
.figures th, .figures td { overflow-wrap: normal; }
.figures td:first-child { white-space: pre-wrap; }
.verdicts table { width: 100%; }
.verdicts th:nth-child(1) { width: 20%; }
.verdicts th:nth-child(2), .verdicts th:nth-child(3) { width: 33%; }
.verdict { white-space: nowrap; font-weight: 600; }
.reproduced { color: var(--reproduced); } .in-part { color: var(--part); } .differs { color: var(--differs); }
.open { color: var(--quiet); font-weight: 400; }
.missing { background: var(--soft); border-left: 4px solid var(--quiet); padding: 0.5rem 0.8rem; }
pre, code { font: 0.85rem/1.45 ui-monospace, monospace; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 4px; padding: 0.6rem;
  white-space: pre-wrap; }
.digest { font: 0.78rem/1.4 ui-monospace, monospace; }
@media (max-width: 44rem) {
  .verdicts thead { display: none; }
  .verdicts table, .verdicts tbody, .verdicts tr, .verdicts td { display: block; }
  .verdicts tr { border-bottom: 1px solid var(--line); padding: 0.5rem 0; }
  .verdicts td { border: 0; padding: 0.1rem 0; }
  .verdicts td[data-name]:not(:empty)::before { content: attr(data-name) ": "; color: var(--quiet); }
}
@page { size: A4; margin: 16mm 14mm;
  @bottom-center { content: counter(page) " / " counter(pages); font: 8pt sans-serif; } }
@media print {
  :root { color-scheme: light; --back: #fff; --text: #000; --quiet: #444; --line: #bbb; --soft: #f4f5f7;
    --link: #000; --reproduced: #17642c; --part: #7a4c00; --differs: #a3181f; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  table { font-size: 8pt; }
  th, td { padding: 0.1rem 0.5rem 0.1rem 0; }
  pre, code { font-size: 7.5pt; } .digest { font-size: 6.5pt; }
  .scroll { overflow: visible; }
  .paper { break-before: page; }
  h2, h3, h4, caption { break-after: avoid; }
  figure, tr, .missing, pre { break-inside: avoid; }
  thead { display: table-header-group; }
  a { text-decoration: none; }
  img { max-height: 230mm; margin: 0 auto; }
}
"""


@dataclass(frozen=True)
class ReportRow:
    """A row of the table of verdicts: ``where`` in the paper, what it ``says``, ``ours`` and the verdict; ``note`` says
    why it is open.
    """

    where: str
    says: str
    ours: str
    verdict: str
    note: str = ""


@dataclass(frozen=True)
class StudiedZoo:
    """A zoo or a set of images that a part was made from: its name, its digest and what is in it."""

    kind: str
    name: str
    digest: str
    content: str


@dataclass(frozen=True)
class PartResult:
    """A part as it was made: rows of the table of verdicts; what the study prints, texts and tables; pictures in
    base64; sources and seed. ``reason`` says why it could not be made.
    """

    rows: Sequence[ReportRow]
    blocks: Sequence[str | Mapping[str, Any]] = ()
    pictures: Sequence[str] = ()
    sources: Sequence[StudiedZoo] = field(default_factory=tuple)
    seed: int | None = None
    reason: str = ""


def page(made: Sequence[tuple[ReportPart, PartResult]], facts: Mapping[str, str]) -> str:
    """Return the page of these parts; ``facts`` are versions and the digest of the code."""
    papers = {paper: [item for item in made if item[0].paper == paper] for paper in PAPERS}
    present = {paper: parts for paper, parts in papers.items() if parts}
    lines = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>What is reproduced of three papers</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>",
        *_head(made),
        *(line for paper, parts in present.items() for line in _verdicts(paper, parts)),
        *(line for paper, parts in present.items() for line in _paper(paper, parts)),
        *_provenance(facts),
        "</main>\n</body>\n</html>",
    ]
    return "\n".join(lines) + "\n"


def _head(made: Sequence[tuple[ReportPart, PartResult]]) -> Iterator[str]:
    counts = Counter(row.verdict for _, kept in made for row in kept.rows)
    said = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in VERDICTS)
    yield "<h1>What is reproduced of three papers</h1>"
    yield f"<p><strong>{counted(counts.total(), 'row')}: {said}.</strong></p>"
    yield (
        "<p>Each row has what a paper prints in a table, a figure or a sentence, what was found here, and a verdict, "
        "which is computed. A number agrees with a published one where they differ by at most "
        f"{RELATIVE:.0%} of it, by {LEAST_PERFORMANCE:g} (percent, or hundredths of a nat; {LEAST_DISTANCE:g} for "
        f"distances, in 100 MMD²), or by {DEVIATIONS} standard deviations over replicates where there are several. "
        "Orders of neurons: transpositions between kept steps, as a share of those between random orders, are scarce "
        f"up to {SCARCE:.0%}, almost none up to {ALMOST_NONE:.0%} and much from {MUCH:.0%}. Barriers up to "
        f"{ZERO_BARRIER:g} nats are called zero. A row is open where the paper has no number, or there is nothing to "
        "compare with; the reason stands there.</p>"
    )


def _verdicts(paper: str, parts: Sequence[tuple[ReportPart, PartResult]]) -> Iterator[str]:
    yield f'<section class="verdicts">\n<h2>{_text(PAPERS[paper])}: verdicts</h2>\n<table>'
    yield (
        '<thead><tr><th scope="col">where</th><th scope="col">the paper</th><th scope="col">here</th>'
        '<th scope="col">verdict</th></tr></thead>\n<tbody>'
    )
    for part, kept in parts:
        for row in kept.rows:
            ours = row.ours or row.note or ("not made" if kept.reason else "")
            if row.ours and row.note:
                ours = f"{row.ours} ({row.note})"
            yield (
                f'<tr><td><a href="#{part.key}">{_text(row.where)}</a></td><td data-name="paper">{_text(row.says)}</td>'
                f'<td data-name="here">{_text(ours)}</td><td class="verdict {row.verdict.replace(" ", "-")}">'
                f"{_MARKS[row.verdict]} {row.verdict}</td></tr>"
            )
    yield "</tbody>\n</table>\n</section>"


def _paper(paper: str, parts: Sequence[tuple[ReportPart, PartResult]]) -> Iterator[str]:
    yield f'<h2 class="paper">{_text(PAPERS[paper])}</h2>'
    for part, kept in parts:
        yield f'<section id="{part.key}">\n<h3>{_text(part.title)}</h3>'
        yield from _rows_of(kept)
        if kept.reason:
            yield f'<p class="missing">Not made. {_text(kept.reason)}</p>'
        elif part.study is None:
            notes = dict.fromkeys(row.note for row in kept.rows if row.note)
            yield f'<p class="missing">Not made: {_text("; ".join(notes))}.</p>'
        for number, picture in enumerate(kept.pictures, 1):
            of = f" ({number} of {len(kept.pictures)})" if len(kept.pictures) > 1 else ""
            caption = f"{_text(part.title)}, as measured here{of}."
            image = f'<img alt="{caption}" src="data:image/png;base64,{picture}">'
            yield f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
        yield from _blocks(kept.blocks)
        if part.causes:
            causes = "".join(f"<li>{_text(cause)}</li>" for cause in part.causes)
            yield f"<h4>What is known of differences</h4>\n<ul>{causes}</ul>"
        if part.section:
            yield f"<p>More in <code>docs/studies.md</code>, section <code>#{_text(part.section)}</code>.</p>"
        yield from _made_by(part, kept)
        yield "</section>"


def _rows_of(kept: PartResult) -> Iterator[str]:
    items = [
        f'<li><span class="verdict {row.verdict.replace(" ", "-")}">{_MARKS[row.verdict]} {row.verdict}</span>: '
        f"{_text(row.where)}: {_text(row.says)}</li>"
        for row in kept.rows
        # open rows of a part that could not be made say no more than its reason
        if not kept.reason and row.ours
    ]
    if 0 < len(items) <= 6:
        yield f"<ul>{''.join(items)}</ul>"


def _blocks(blocks: Sequence[str | Mapping[str, Any]]) -> Iterator[str]:
    """Texts as paragraphs, and tables; the last line above a table with a header is its caption, unless it is a
    sentence.
    """
    caption = ""
    for number, block in enumerate(blocks):
        if not isinstance(block, str):
            yield _table(block, caption)
            caption = ""
            continue
        lines = [line for line in block.split("\n") if line.strip()]
        following = blocks[number + 1] if number + 1 < len(blocks) else ""
        # facts, which have no header, stand at the head of what they tell of: the line above belongs to what was before
        if lines and not isinstance(following, str) and following["header"] and not lines[-1].endswith("."):
            caption = lines.pop()
        yield from (f"<p>{_text(line)}</p>" for line in lines)


def _table(grid: Mapping[str, Any], caption: str) -> str:
    numbers = set(grid["numbers"])
    rows = grid["rows"]

    def row(cells: Sequence[str], tag: str) -> str:
        pieces: list[str] = []
        for place, cell in enumerate(cells):
            # a table without a header has names in its first column
            kind = "th" if tag == "th" or (place == 0 and not grid["header"]) else "td"
            scope = ' scope="col"' if tag == "th" else ' scope="row"' if kind == "th" else ""
            aligned = ' class="number"' if place in numbers else ""
            pieces.append(f"<{kind}{scope}{aligned}>{_text(cell)}</{kind}>")
        return f"<tr>{''.join(pieces)}</tr>"

    head = f"<thead>{row(grid['header'], 'th')}</thead>" if grid["header"] else ""
    title = f"<caption>{_text(caption)}</caption>" if caption else ""
    body = "\n".join(row(cells, "td") for cells in rows[:MAX_ROWS])
    left = (
        f"<p>{counted(len(rows) - MAX_ROWS, 'more row')}: the command below prints all.</p>"
        if len(rows) > MAX_ROWS
        else ""
    )
    return f'<div class="scroll figures" tabindex="0"><table>{title}{head}<tbody>\n{body}\n</tbody></table></div>{left}'


def _made_by(part: ReportPart, kept: PartResult) -> Iterator[str]:
    commands = part.commands if not kept.reason else (*part.makes, *part.commands)
    if not commands and not kept.sources:
        return
    yield f"<h4>{'How it would be made' if kept.reason else 'How it was made'}</h4>"
    if commands:
        yield f"<pre>{_text(chr(10).join(commands))}</pre>"
    facts = [
        f"<li>{_text(source.kind)} <strong>{_text(source.name)}</strong>, {_text(source.content)}: "
        f'<span class="digest">{_text(source.digest)}</span></li>'
        for source in kept.sources
    ]
    if kept.seed is not None:
        facts.append(f"<li>seed {kept.seed}</li>")
    if facts:
        yield f"<ul>{''.join(facts)}</ul>"


def _provenance(facts: Mapping[str, str]) -> Iterator[str]:
    yield "<h2>Versions</h2>\n<ul>"
    for name, value in facts.items():
        shown = f'<span class="digest">{_text(value)}</span>' if value.startswith("sha256:") else _text(value)
        yield f"<li>{_text(name)} {shown}</li>"
    yield (
        "</ul>\n<p>Names of zoos in the commands are those of their folders. The same zoos, images, code and versions "
        "give this page byte for byte.</p>"
    )


def _text(text: str) -> str:
    """Text of which nothing is markup; control characters are written out, lines are kept."""
    return "\n".join(escape(printable(line)) for line in text.split("\n"))
