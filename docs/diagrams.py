"""Draws the diagrams of docs/concepts.md again: ``python docs/diagrams.py`` writes docs/pictures/<name>.svg.

They stand on a white panel of their own, so that they are legible in light and in dark pages.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).with_name("pictures")
INK, FAINT, PANEL = "#1f2933", "#52606d", "#ffffff"
FILLS = ("#eef2ff", "#dbe4ff", "#bac8ff", "#91a7ff", "#748ffc")
"""From the outermost box to the innermost."""
WARM = "#ffe8cc"


def rectangle(x: float, y: float, width: float, height: float, fill: str, dashed: bool = False) -> str:
    """A box."""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" '
        f'stroke="{FAINT}" stroke-width="1"{dashes}/>'
    )


def text(x: float, y: float, words: str, size: int = 13, *, bold: bool = False, middle: bool = False) -> str:
    """A line of text."""
    anchor = ' text-anchor="middle"' if middle else ""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{INK}"{weight}{anchor}>{escape(words)}</text>'


def line(
    x1: float, y1: float, x2: float, y2: float, width: float = 1.2, colour: str = FAINT, arrow: bool = False
) -> str:
    """A line, with a head where it is an arrow."""
    head = ' marker-end="url(#head)"' if arrow else ""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="{width:g}" '
        f'stroke-linecap="round"{head}/>'
    )


def circle(x: float, y: float, radius: float, fill: str) -> str:
    """A disc with a border."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}" stroke="{INK}" stroke-width="1.2"/>'


def svg(width: int, height: int, title: str, pieces: Sequence[str]) -> str:
    """The whole picture."""
    head = (
        '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 L10 5 L0 10 z" fill="{FAINT}"/></marker>'
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(title)}</title>",
        f"<defs>{head}</defs>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{PANEL}"/>',
        '<g font-family="Helvetica, Arial, sans-serif">',
        *pieces,
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def zoo() -> str:
    """What a zoo consists of, from the folder to a block of bytes."""
    pieces = [
        rectangle(15, 15, 730, 430, FILLS[0]),
        text(30, 38, "zoo", 15, bold=True),
        text(74, 38, "a folder: many checkpoints of one architecture"),
        rectangle(30, 50, 700, 32, WARM),
        text(42, 71, "documents: zoo.json, architecture.json, symmetry.json", 12),
    ]
    # the tree of raw weights, with a part opened
    pieces += [
        rectangle(30, 95, 480, 335, FILLS[1]),
        text(42, 117, "tree", 14, bold=True),
        text(86, 117, "parts/: the weights as trained"),
        rectangle(42, 130, 456, 246, FILLS[2]),
        text(54, 152, "part", 14, bold=True),
        text(98, 152, "000001-3f9a.../: appears whole, never changes"),
        rectangle(54, 165, 200, 50, WARM),
        text(64, 185, "metadata.parquet", 12, bold=True),
        text(64, 203, "a row for each checkpoint", 12),
        rectangle(266, 165, 220, 50, WARM),
        text(276, 185, "index.parquet", 12, bold=True),
        text(276, 203, "where each block is, its sha256", 12),
        rectangle(54, 228, 432, 136, FILLS[3]),
        text(66, 249, "shard", 14, bold=True),
        text(122, 249, "raw-00.safetensors: tensors of shape (K, *shape)"),
    ]
    for row, (tensor, shape) in enumerate([("conv1.weight", "(K, 2, 1, 4, 4)"), ("fc.weight", "(K, 10, 10)")]):
        top = 260 + row * 50
        pieces.append(text(66, top + 18, tensor, 12))
        pieces.append(text(66, top + 34, shape, 11))
        for block in range(4):
            pieces.append(rectangle(178 + block * 76, top + 4, 68, 36, FILLS[4]))
            pieces.append(text(212 + block * 76, top + 27, "block", 12, middle=True, bold=(row, block) == (0, 0)))
    pieces += [
        rectangle(42, 388, 456, 30, FILLS[2]),
        text(54, 408, "part 000002-b07c.../: checkpoints that came later"),
    ]
    # the derived trees
    derived = [
        ("derived/canonical/", ("a variant: the same checkpoints", "in another gauge")),
        ("derived/predictions-mnist--test/", ("outputs on a set of inputs",)),
        ("derived/retracted/", ("which ones were withdrawn",)),
        ("derived/measured/", ("figures that were measured later",)),
    ]
    top = 95.0
    for name, words in derived:
        height = 44 + 18 * len(words)
        pieces += [
            rectangle(522, top, 208, height, FILLS[1]),
            text(532, top + 20, "tree", 13, bold=True),
            text(532, top + 38, name, 12),
        ]
        pieces += [text(532, top + 55 + 16 * number, part, 11) for number, part in enumerate(words)]
        top += height + 10
    return svg(760, 460, "A zoo is made of trees, a tree of parts, a part of shards, a shard of blocks", pieces)


def layers() -> str:
    """The packages, from programs to declarations; each imports only what is below it."""
    rows = [
        (("cli", "one command, one call"),),
        (("hub", "push, pull, contribute"), ("studies", "one question a module"), ("server", "a hub from a folder")),
        (("derive", "variants, predictions"), ("learning", "weights as training data")),
        (("image_sets", "pixels and labels"),),
        (("loader", "zoos, streams, tensors"),),
        (("remote", "network and cache"),),
        (("format", "bytes and arrays"), ("symmetry", "gauges, tables"), ("measure", "arrays alone")),
        (("archs", "known networks"),),
        (("schema", "what a zoo is"),),
        (("errors, text, console", "what all of them use"),),
    ]
    left, width, height, gap = 20, 620, 44, 8
    pieces: list[str] = []
    for number, row in enumerate(rows):
        top = 20 + number * (height + gap)
        each = (width - gap * (len(row) - 1)) / len(row)
        for column, (name, words) in enumerate(row):
            x = left + column * (each + gap)
            pieces.append(rectangle(x, top, each, height, FILLS[min(number // 3, 3)]))
            pieces.append(text(x + each / 2, top + 19, name, 14, bold=True, middle=True))
            pieces.append(text(x + each / 2, top + 36, words, 12, middle=True))
    bottom = 20 + len(rows) * (height + gap) - gap
    pieces.append(line(668, 24, 668, bottom - 4, arrow=True))
    pieces.append(
        f'<text x="690" y="{bottom / 2:g}" font-size="13" fill="{INK}" text-anchor="middle" '
        f'transform="rotate(90 690 {bottom / 2:g})">imports go down only</text>'
    )
    return svg(720, bottom + 20, "The packages in layers: each imports only what is below it", pieces)


def _network(x: float, y: float, neurons: Sequence[tuple[str, float, float]]) -> list[str]:
    """A network with two inputs, some hidden neurons (colour, width of lines in and out) and an output."""
    pieces: list[str] = []
    for number, (_, inward, outward) in enumerate(neurons):
        height = y + number * 44
        pieces += [line(x, y + 22 + side * 44, x + 60, height, inward, INK) for side in (0, 1)]
        pieces.append(line(x + 60, height, x + 120, y + 44, outward, INK))
    pieces += [circle(x, y + 22 + side * 44, 7, PANEL) for side in (0, 1)]
    pieces += [circle(x + 60, y + number * 44, 11, fill) for number, (fill, _, _) in enumerate(neurons)]
    return [*pieces, circle(x + 120, y + 44, 7, PANEL)]


def gauges() -> str:
    """Three networks that compute one function, and the one of them that a gauge picks."""
    red, green, blue = "#ff8787", "#8ce99a", "#74c0fc"
    made = [
        ("as trained", ((green, 3.4, 1.0), (red, 1.4, 3.0), (blue, 2.2, 2.2))),
        ("neurons exchanged", ((red, 1.4, 3.0), (blue, 2.2, 2.2), (green, 3.4, 1.0))),
        ("neurons rescaled", ((green, 1.2, 2.9), (red, 2.9, 1.4), (blue, 3.4, 1.4))),
    ]
    pieces: list[str] = []
    for number, (words, neurons) in enumerate(made):
        x = 40 + number * 190
        pieces += _network(x, 50, neurons)
        pieces.append(text(x + 60, 178, words, 13, middle=True))
    pieces.append(rectangle(15, 14, 575, 180, "none", dashed=True))
    pieces.append(text(302, 222, "one orbit: other weights, the same outputs for every input", 13, middle=True))
    pieces.append(line(597, 94, 640, 94, 1.6, arrow=True))
    pieces.append(text(618, 82, "gauge", 12, middle=True))
    pieces += _network(668, 50, ((blue, 2.2, 2.2), (red, 2.2, 1.9), (green, 2.2, 1.5)))
    pieces.append(text(728, 178, "canonical", 13, bold=True, middle=True))
    pieces.append(text(728, 204, "every neuron's incoming weights", 11, middle=True))
    pieces.append(text(728, 219, "of norm 1, neurons in order", 11, middle=True))
    return svg(830, 240, "A gauge picks one of the many weights that permutations and scalings make equal", pieces)


def symmetry() -> str:
    """How weights and a table go through the engines of ``ckptzoo.symmetry``, and what these ask."""
    top = (("a torch module", "tracing/"), ("a table", "groups and actions"), ("a known network", "archs"))
    engines = (
        ("elements", "element, action"),
        ("counts", "counts, orbits"),
        ("gauges", "matrices, scales, ties"),
        ("alignment", "alignment/"),
        ("least mass", "mass/"),
    )
    kinds = ("permutation", "scale", "linear", "orthogonal", "complex")
    pieces: list[str] = []
    for number, (name, words) in enumerate(top):
        x = 20 + 250 * number
        pieces += [rectangle(x, 16, 180, 46, WARM if number == 1 else FILLS[0])]
        pieces += [text(x + 90, 36, name, 14, bold=True, middle=True), text(x + 90, 53, words, 12, middle=True)]
    pieces += [line(202, 39, 266, 39, arrow=True), line(518, 39, 454, 39, arrow=True)]
    pieces += [line(360, 64, 360, 98, arrow=True), text(372, 86, "with stacked weights (K, *shape)", 12)]
    for number, (name, words) in enumerate(engines):
        x = 20 + 138 * number
        pieces += [rectangle(x, 102, 128, 46, FILLS[1])]
        pieces += [text(x + 64, 122, name, 14, bold=True, middle=True), text(x + 64, 139, words, 11, middle=True)]
        pieces += [line(x + 64, 150, x + 64, 196, arrow=True)] if number < 4 else []
    pieces += [text(230, 178, "ask each group's kinds", 11)]
    pieces += [rectangle(20, 200, 680, 76, FILLS[2]), text(360, 220, "kinds/", 14, bold=True, middle=True)]
    for number, name in enumerate(kinds):
        x = 32 + 134 * number
        pieces += [rectangle(x, 230, 122, 34, PANEL), text(x + 61, 252, name, 13, middle=True)]
    return svg(720, 292, "The engines of ckptzoo.symmetry go through a table's groups and ask their kinds", pieces)


DIAGRAMS = {"zoo": zoo, "layers": layers, "gauges": gauges, "symmetry": symmetry}

if __name__ == "__main__":
    for name, draw in DIAGRAMS.items():
        (FOLDER / f"{name}.svg").write_text(draw())
