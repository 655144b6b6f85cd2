"""The document of a page: its sentences, the marginals as pictures, the data, and the script that shows the rest."""

import base64
import html
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from ckptzoo.errors import ZooError
from ckptzoo.explorer.bundle import bundle
from ckptzoo.explorer.columns import numbers, variant_column
from ckptzoo.explorer.weights import ValueCounts
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.card import Card
from ckptzoo.schema.explorer import head
from ckptzoo.text import counted, printable, shortened

_HEIGHT = 100
"""The height of a picture of marginals, in its own units; its bins are one wide."""
_MAX_LISTED = 4
"""Distinct texts of a column that are named."""
_SHORT = len("sha256:") + 12
"""Characters of a revision that tell it from others at a glance."""
_MAX_TEXT = 300
"""Characters of a text of others that are shown."""

_DRAWN = {
    "selection": "Selection",
    "measures": "Accuracy, checks and ties",
    "categories": "Contributors and recipes",
    "components": "Principal components, and the chosen member",
    "trajectories": "Training",
    "members": "Members",
}
"""Sections that the script fills."""


@dataclass(frozen=True, eq=False)
class LayerFigure:
    """The marginals of a layer's weights: counts by gauge, in bins with the edges (B + 1,), and the parameters of one
    member.
    """

    name: str
    parameters: int
    edges: NDArray[np.float64]
    counts: dict[str, ValueCounts]


@dataclass(frozen=True, eq=False)
class PageFacts:
    """The facts about the zoo that the page states in words.

    ``zoo`` has the checkpoints that the page is of, ``last`` each member's last step, ``code`` the expression for
    ``last`` in a program. ``shown`` counts the members that the page has, ``usable`` those whose weights are shown, by
    gauge; ``variant`` is the gauge beside raw.
    """

    zoo: Zoo
    last: Zoo
    shown: int
    code: str
    variant: str | None
    variants: tuple[str, ...]
    usable: dict[str, int]


def html_page(facts: PageFacts, figures: list[LayerFigure], data: bytes, card: Card | None) -> str:
    """Return the whole page, one file, from the payload ``data`` and the card that a person wrote.

    Its policy admits the script and the style of the bundle and nothing else, so that whatever a zoo's rows and card
    say does not run. Attributes ``style`` would be refused.
    """
    own = bundle()
    title = card.title if card is not None and card.title else facts.zoo.name
    summary = f"<p>{shown(card.summary, limit=2000)}</p>" if card is not None and card.summary else ""
    marginals = f'{_marginals_text(facts, figures)}<div class="figures">{"".join(map(_figure, figures))}</div>'
    sections = "\n".join(
        [
            *(_section(name, heading) for name, heading in _DRAWN.items()),
            _section("marginals", "Marginals of the weights", marginals),
            _section("checks", "Checks", f'<dl class="facts">{_pairs(_checks(facts))}</dl>'),
            _section("cost", "Cost", f'<dl class="facts">{_pairs(_cost(facts.last))}</dl>'),
        ]
    )
    # the data come last: what stands before them is painted while they are read
    # a script of a type that is none of a script's is data, which nothing runs (HTML Standard, section 4.12.1);
    # a title holds text alone, where <bdi> would be shown as it is
    # base64 has no <, so that the data cannot end their script; main takes the focus of the skip link by its tabindex
    # (HTML Standard, sections 4.12.1.3 and 6.6.3)
    start = head(own.script_hash, own.style_hash)
    return f"""{start}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{shown(title).removeprefix("<bdi>").removesuffix("</bdi>")}</title>
<style>{own.style}</style>
</head>
<body>
<a class="skip" href="#views">Skip to the views</a>
<header>
<h1>{shown(title)}</h1>
{summary}
{_sampled(facts)}
<dl class="facts">{_pairs(_facts(facts, card))}</dl>
</header>
<main id="views" tabindex="-1">
<noscript><p class="notice">The views below need JavaScript; nothing is fetched.</p></noscript>
{sections}
</main>
<script type="application/octet-stream" id="payload">{base64.b64encode(data).decode()}</script>
<script>{own.script}</script>
</body>
</html>
"""


def _section(name: str, heading: str, content: str = "") -> str:
    title = f"{name}-title"
    return f'<section id="{name}" aria-labelledby="{title}"><h2 id="{title}">{heading}</h2>{content}</section>'


def _pairs(facts: list[tuple[str, str]]) -> str:
    return "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in facts)


def _sampled(facts: PageFacts) -> str:
    if facts.shown == len(facts.last):
        return ""
    return (
        f'<p class="notice">This page has a sample: {facts.shown:,} of {len(facts.last):,} members. Grey bars and '
        "totals are of all of them; what is copied selects among all of them, unless it lists ids.</p>"
    )


def _facts(facts: PageFacts, card: Card | None) -> list[tuple[str, str]]:
    zoo, last = facts.zoo, facts.last
    checkpoints = counted(len(zoo), "checkpoint")
    parts = counted(len(zoo.contents.raw.parts), "part")
    gauges = ", ".join(shown(name) for name in zoo.variants) or "none"
    own = card.license.strip() if card is not None else ""
    licences = ([shown(own)] if own else []) + [shown(text) for text in _texts(last, "license") if text != own]
    return [
        ("Zoo", shown(zoo.name)),
        ("Members", f"{len(last):,} ({checkpoints}; each member's last step is shown)"),
        ("In a program", f"<code>{shown(facts.code)}</code>"),
        ("Network", f"{shown(zoo.arch.name)}, {zoo.arch.parameters:,} parameters"),
        ("Gauges", gauges),
        ("Parts", parts),
        ("Licence", ", ".join(licences) or "none stated"),
        ("Revision", _revision(zoo.revision)),
    ]


def _revision(revision: str) -> str:
    """Return the beginning of a revision, which opens to all of it."""
    short = f"<code>{shown(revision[:_SHORT])}</code>"
    if len(revision) <= _SHORT:
        return short
    return f"<details><summary>{short}, in full</summary><code>{shown(revision)}</code></details>"


def _texts(zoo: Zoo, name: str) -> list[str]:
    """Return the most frequent texts of a column."""
    counts = [item for item in zoo.column(name).value_counts().to_pylist() if item["values"] is not None]
    counts.sort(key=lambda item: (-item["counts"], item["values"]))
    return [item["values"] for item in counts[:_MAX_LISTED]]


def _checks(facts: PageFacts) -> list[tuple[str, str]]:
    last, count = facts.last, len(facts.last)
    lines: list[tuple[str, str]] = []
    for name, what in (("diverged", "Diverged"), ("finite", "Not finite")):
        column = last.column(name)
        number = _true(column) if name == "diverged" else len(column) - column.null_count - _true(column)
        unknown = f" ({column.null_count:,} without an answer)" if column.null_count else ""
        lines.append((what, f"{number:,}{unknown}"))
    if facts.variant is None:
        return [*lines, ("Gauge", "none was derived")]
    gauged = variant_column(last, facts.variant, "gauged")
    lines.append(("Gauge", f"{shown(facts.variant)}, {_true(gauged):,} of {counted(count, 'member')}"))
    if gauged.null_count:
        lines.append(("Not derived yet", f"{gauged.null_count:,}"))
    for name, what in (("certificate_random", "random inputs"), ("certificate_real", "inputs of the data set")):
        values, is_null = numbers(variant_column(last, facts.variant, name))
        known = values[~is_null]
        if len(known):
            worst = known.max() if np.isfinite(known).all() else np.inf
            text = f"{len(known):,} checked, largest difference {figure(float(worst))}"
            lines.append((f"Equivalence check on {what}", text))
    for name, what in (
        ("ties", "Members with ties"),
        ("dead", "With dead channels"),
        ("clamped", "With clamped scales"),
    ):
        values, is_null = numbers(variant_column(last, facts.variant, name))
        lines.append((what, f"{int((values[~is_null] > 0).sum()):,}"))
    values, is_null = numbers(variant_column(last, facts.variant, "degenerate"))
    if not is_null.all():
        lines.append(("With degenerate blocks", f"{int((values[~is_null] > 0).sum()):,}"))
    lines.append(("Unresolved", f"{_true(variant_column(last, facts.variant, 'unresolved')):,}"))
    for name, number in facts.usable.items():
        if number < facts.shown:
            lines.append((f"Left out of the weights, {shown(name)}", f"{facts.shown - number:,} of {facts.shown:,}"))
    return lines


def _true(column: Any) -> int:
    # Arrow's sum of no values is null
    return int(pc.call_function("sum", [column.cast("int64")]).as_py() or 0)


def _cost(last: Zoo) -> list[tuple[str, str]]:
    seconds, is_null = numbers(last.column("wall_seconds"))
    known = seconds[~is_null & np.isfinite(seconds)]
    lines = [("Training time", f"{duration(float(known.sum()))} in all" if len(known) else "not told")]
    if len(known):
        lines.append(("Of a member", f"{duration(float(known.mean()))} on average"))
    if len(known) < len(last):
        lines.append(("Without a time", f"{len(last) - len(known):,}"))
    joules = _energy(last)
    lines.append(("Energy", "not measured" if joules is None else f"{joules / 1000:,.4g} kJ"))
    for name, what in (("device", "Devices"), ("precision", "Precision"), ("builder", "Made by")):
        if texts := _texts(last, name):
            lines.append((what, ", ".join(map(shown, texts))))
    return lines


def _energy(last: Zoo) -> float | None:
    """Return the joules that the rows contain; None where they contain none."""
    if last.column("extra").null_count == len(last):
        return None
    try:
        joules, is_null = numbers(last.column("extra.energy_joules"))
    except (ZooError, ValueError):  # no row has it, or it is no number in some
        return None
    known = joules[~is_null & np.isfinite(joules)]
    return float(known.sum()) if len(known) and known.sum() > 0 else None


def _marginals_text(facts: PageFacts, figures: list[LayerFigure]) -> str:
    if not figures:
        return "<p>No member has weights that can be shown.</p>"
    named = [
        f'<span class="key {"raw" if name == layout.RAW else "gauge"}">{shown(name)}</span>' for name in facts.variants
    ]
    return (
        f"<p>All weights of each layer, every member's last step: {' and '.join(named)}. Areas are the same; the "
        "outermost weights are outside the pictures and counted.</p>"
    )


def _figure(item: LayerFigure) -> str:
    """Return a layer's marginals as a picture, with its figures in words below it."""
    bins = len(item.edges) - 1
    totals = {name: max(1, int(counts.counts.sum())) for name, counts in item.counts.items()}
    peak = max((counts.counts.max(initial=0) / totals[name] for name, counts in item.counts.items()), default=0) or 1
    paths, words = "", list[str]()
    for name, counts in item.counts.items():
        heights = np.rint(_HEIGHT * counts.counts / totals[name] / peak).astype(int)
        kind = "raw" if name == layout.RAW else "gauge"
        paths += f'<path class="{kind}" d="{_outline(heights)}"/>'
        outside = f", {counts.beyond:,} outside" if counts.beyond else ""
        not_finite = f", {counts.not_finite:,} not finite" if counts.not_finite else ""
        words.append(f"{shown(name)}: {int(counts.counts.sum()):,}{outside}{not_finite}")
    low, high = figure(item.edges[0]), figure(item.edges[-1])
    name = shown(item.name)
    return (
        f'<figure><svg viewBox="0 0 {bins} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{paths}</svg>'
        f'<div class="ends"><span>{low}</span><span>{high}</span></div>'
        f"<figcaption><b>{name}</b>, {counted(item.parameters, 'weight')} a member. Counted: {'; '.join(words)}."
        "</figcaption></figure>"
    )


def _outline(heights: NDArray[np.int64]) -> str:
    """Return the path around bars that stand side by side, closed along the bottom."""
    steps, level, run = [f"M0 {_HEIGHT}"], 0, 0
    for height in heights.tolist():
        if height != level:
            steps.append(f"{f'h{run}' if run else ''}v{level - height}")
            level, run = height, 0
        run += 1
    steps.append(f"h{run}V{_HEIGHT}z")
    return "".join(steps)


def shown(text: object, *, limit: int = _MAX_TEXT) -> str:
    """Return untrusted text as HTML: marks of direction and control characters are written out, markup is text.

    >>> shown("<b>\\u202e")
    '<bdi>&lt;b&gt;\\\\u202e</bdi>'
    """
    # bdi: text from right to left changes no order around it (HTML Standard, 4.5.24)
    return f"<bdi>{html.escape(printable(shortened(str(text), limit)))}</bdi>"


def figure(value: float) -> str:
    """Format a number with four digits."""
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format seconds for people."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:,.3g} h"
