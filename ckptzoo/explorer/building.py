"""Make the page of a zoo: read what it shows, and write it as one file."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console

from ckptzoo.arguments import checked
from ckptzoo.console import say
from ckptzoo.errors import Problem, SpecError, UnknownNameError, ZooError
from ckptzoo.explorer import columns
from ckptzoo.explorer.columns import numbers, sampled
from ckptzoo.explorer.document import LayerFigure, PageFacts, html_page
from ckptzoo.explorer.payload import Payload, encode
from ckptzoo.explorer.weights import BASIS, MISSING, LayerWeights, PrincipalScores, count_values, edges_of, scores
from ckptzoo.format.durable import check_replaceable, write_file
from ckptzoo.format.table import filled_with
from ckptzoo.loader.flags import usable_rows
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import CARD_TOML, MAX_CARD_BYTES, Card
from ckptzoo.schema.documents import JsonFields
from ckptzoo.schema.explorer import START
from ckptzoo.text import Progress, counted, counter, size

MAX_ROWS = 200_000
"""Members of a page; of more a sample is taken."""
MAX_LAYERS = 8
"""Layers whose principal components are shown, where none are named."""
_MAX_PLACES = 400_000
"""Members times layers whose components are shown, where none are named: 8 bytes each in two gauges."""
_MAX_DETAILED = 20_000
"""Members up to which a page has columns that are drawn nowhere."""
MAX_FIGURES = 64
"""Layers whose marginals are drawn, where none are named."""
_MAX_TRAJECTORIES = 256
"""Members whose trajectories are drawn; of more a sample is taken."""
_MIN_STEPS = 2
"""The smallest number of measured steps of a member that are a trajectory."""


@dataclass(frozen=True)
class Page(JsonFields):
    """A page that was written.

    Parameters
    ----------
    path
        The file.
    nbytes
        Size of the file.
    members
        Number of members that the page shows.
    total
        Number of members of the zoo.
    left_out
        Members shown whose weights are not: diverged or not finite.
    layers
        Layers whose principal components it has.
    variants
        The gauges that it shows.
    revision
        Revision of the zoo.
    """

    path: Path
    nbytes: int
    members: int
    total: int
    left_out: int
    layers: tuple[str, ...]
    variants: tuple[str, ...]
    revision: str

    def print(self, console: Console | None = None) -> None:
        """Print it.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        of_total = f" of {self.total:,}, a sample" if self.members < self.total else ""
        without = f"; {self.left_out:,} without places among the weights" if self.left_out else ""
        shown = f"{counted(self.members, 'member')}{of_total}{without}, {', '.join(self.variants) or 'no weights'}"
        say(console or Console(), f"{self.path}: {size(self.nbytes)}, {shown}")


@checked
def page(
    zoo: Zoo,
    output: str | Path,
    *,
    layers: Sequence[str] = (),
    where: str | None = None,
    max_rows: int = MAX_ROWS,
    progress: Progress | None = None,
) -> Page:
    """Write a page with which to look at a zoo in a browser, without any network.

    It shows each member's last step: histograms that are linked with one another, the principal components of the
    weights of layers, as trained and in a gauge, marginals of the weights, trajectories, and a table. What is selected
    there can be copied as ``zoo.where(...)``.

    Parameters
    ----------
    zoo
        What ``ckptzoo.open`` gives.
    output
        The file; one that is there is replaced.
    layers
        Those whose weights are shown; by default up to 8 for the components, evenly spaced through the network, and
        up to 64 for the marginals.
    where
        A condition as ``Zoo.where`` takes it, as text; the page names it in what is copied.
    max_rows
        Members of the page. Of more a sample is taken, by a digest of their ids; histograms are of all of them.
    progress
        Called with the layers, in each gauge, that were read, and with how many there are.

    Returns
    -------
    Page
        What was written.

    Raises
    ------
    UnknownNameError
        No such layer.
    ZooError
        The output is a folder, or the page would be too large.
    MissingExtraError
        scipy is not installed.

    Notes
    -----
    The same revision gives the same bytes. Of a zoo on another machine only the columns and layers that are shown are
    fetched. Memory a few blocks of 64 MiB, and the smaller of the Gram matrices of a layer. Tested in
    ``tests/explorer``.
    """
    target = Path(output)
    if target.is_dir():
        step = f"Name a file in it, such as {target / 'page.html'}."
        raise ZooError(Problem(str(target), "output", "a file", "a folder", step))
    check_replaceable(target)
    if target.is_file() and not _is_page(target):
        step = "Name another file, or remove this one."
        raise ZooError(Problem(str(target), "output", "an older page, or nothing there yet", "another file", step))
    if max_rows < 1:
        raise ZooError(Problem(zoo.name, "max_rows", "1 or more", str(max_rows), "Correct it."))
    chosen = zoo if where is None else zoo.where(where)
    last = chosen.last_steps()
    rows = columns.sampled(last.column("id"), max_rows)
    variant = _variant(zoo)
    content = _Content(chosen, last, rows, variant, _code(where, several=len(last) < len(chosen)))
    content.add_rows()
    figures = content.add_weights(layers, progress)
    content.add_trajectories()
    data = encode(content.payload, location=zoo.name)
    text = html_page(content.facts(), figures, data, _card(zoo))
    write_file(target.absolute(), text.encode())
    return Page(
        target,
        len(text.encode()),
        len(rows),
        len(last),
        content.left_out,
        tuple(layer["name"] for layer in content.payload.header["layers"]),
        content.variants,
        zoo.revision,
    )


def _is_page(path: Path) -> bool:
    """Return whether a file is one for browsers, or is empty."""
    # letters of a doctype may be of either case (HTML Standard, section 13.1.1)
    beginning = START.strip().encode()
    with path.open("rb") as file:
        return file.read(len(beginning)).lower() in (beginning, b"")


def _variant(zoo: Zoo) -> str | None:
    """Return the gauge that is shown beside raw: canonical, or the first that was derived."""
    return "canonical" if "canonical" in zoo.gauges else next(iter(zoo.gauges), None)


def _code(where: str | None, *, several: bool) -> str:
    """Return the members of a page as a program selects them, where ``zoo`` is the zoo."""
    # in ASCII: marks of direction and letters that look like others would make the condition read as another one
    text = "zoo" if where is None else f"zoo.where({where!a})"
    return f"{text}.last_steps()" if several else text


def _card(zoo: Zoo) -> Card | None:
    """Return the card that a person wrote for a zoo; None where there is none that can be read."""
    files = zoo.contents.files
    if files.size(CARD_TOML) is None:
        return None
    try:
        return Card.from_bytes(files.read(CARD_TOML, max_bytes=MAX_CARD_BYTES), location=f"{files.name}/{CARD_TOML}")
    except SpecError as error:
        warnings.warn(f"{error} The page says nothing of the card.", UserWarning, stacklevel=3)
        return None


def floats_by_layer(arch: Architecture) -> dict[str, list[str]]:
    """Map each layer to its floating-point parameters; layers without any are left out."""
    parameters = [tensor for tensor in arch.tensors if tensor.kind == "parameter" and tensor.size]
    named = {tensor.name for tensor in parameters if "float" in tensor.dtype}
    by_layer = {layer: [name for name in tensors if name in named] for layer, tensors in arch.layers.items()}
    return {layer: tensors for layer, tensors in by_layer.items() if tensors}


class _Content:
    """The data that is gathered for a page.

    ``zoo`` has the checkpoints that the page is of, ``last`` each member's last step, and ``rows`` the positions in
    ``last`` of the members that the page has; ``code`` is the expression for ``last`` in a program.
    """

    def __init__(self, zoo: Zoo, last: Zoo, rows: NDArray[np.int64], variant: str | None, code: str) -> None:
        self.zoo, self.last, self.rows, self.variant = zoo, last, rows, variant
        self.shown = last if len(rows) == len(last) else last.take(rows)
        header: dict[str, Any] = {
            "version": 1,
            "name": zoo.name,
            "revision": zoo.revision,
            "code": code,
            "rows": len(rows),
            "total": len(last),
            "layers": [],
            "trajectories": None,
        }
        self.payload = Payload(header, {})
        self.usable: dict[str, NDArray[np.int64]] = {
            name: self._usable(name) for name in dict.fromkeys([layout.RAW, variant]) if name in zoo.variants
        }

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(self.usable)

    @property
    def left_out(self) -> int:
        """Members shown whose weights have no position in any gauge."""
        return len(self.rows) - max(map(len, self.usable.values()), default=0)

    def add_rows(self) -> None:
        """Add ids, histograms, bars, and the other columns that the table and the details show."""
        header, data = self.payload.header, self.payload.columns
        ids = self.shown.column("id").to_pylist()
        text = "".join(ids)
        data["id_bytes"] = np.frombuffer(text.encode(), np.uint8)
        # a browser's strings count UTF-16: two for a character beyond the first 65,536
        data["id_lengths"] = np.array([len(id) + sum(map(_is_astral, id)) for id in ids], "<i4")
        measures = columns.measures(self.last, self.variant, self.rows)
        header["measures"] = []
        for measure in measures:
            # columns of the metadata are copied as conditions, which have to select exactly the members shown
            data[measure.name] = measure.values.astype("<f4" if measure.kind.of_variant else "<f8")
            if measure.is_null.any():
                data[f"{measure.name}:null"] = measure.is_null.astype(np.uint8)
            described = {"name": measure.name, "title": measure.kind.title, "scale": measure.kind.scale}
            is_column = not measure.kind.of_variant
            header["measures"].append(
                {
                    **described,
                    "is_column": is_column,
                    "doc": columns.document(measure.name),
                    **measure.histogram.to_json(),
                }
            )
        header["categories"] = []
        names = [name for name in columns.BARS if (column := self.last.column(name)).null_count < len(column)]
        for name in names:
            if (category := columns.category(self.last, name, self.rows)) is not None:
                self._add_category(category, columns.document(name), is_column=True)
        for category in columns.splits(self.last, self.rows):
            self._add_category(category, "The part of the split.", is_column=False)
        self._add_details([measure.name for measure in measures] + names)

    def _add_category(self, category: columns.Category, doc: str, *, is_column: bool) -> None:
        self.payload.columns[category.name] = category.codes
        item = {"name": category.name, "texts": list(category.texts), "counts": list(category.counts)}
        self.payload.header["categories"].append(
            {**item, "missing": category.missing, "doc": doc, "is_column": is_column}
        )

    def _add_details(self, drawn: Sequence[str]) -> None:
        """Add columns that are not drawn: those that are the same for all, and others unless the zoo is large."""
        header, data = self.payload.header, self.payload.columns
        header["constants"], header["details"] = {}, []
        for name in columns.detail_names(self.last, drawn):
            column = self.last.column(name)
            if pa.types.is_string(column.type):
                category = columns.category(self.last, name, self.rows)
                if category is None:
                    continue
                is_constant = len(category.texts) == 1 and not category.missing
                values: Any = category.texts[0] if is_constant else category.codes
                texts = list(category.texts)
            else:
                values, texts = columns.constant_or_values(column, self.rows), None
            if not isinstance(values, np.ndarray):
                header["constants"][name] = values
            elif len(self.rows) <= _MAX_DETAILED and not self._is_drawn(column, drawn):
                data[name] = values
                header["details"].append({"name": name, "texts": texts, "doc": columns.document(name)})

    def _is_drawn(self, column: pa.ChunkedArray, drawn: Sequence[str]) -> bool:
        """Return whether another column that is drawn has the same values, as test_nll and test_loss of classifiers
        have.
        """
        names = [name for name in drawn if name.startswith("test_")]
        return any(self.last.column(name).equals(column) for name in names)

    def add_weights(self, layers: Sequence[str], progress: Progress | None) -> list[LayerFigure]:
        """Add principal components and marginals."""
        by_layer = floats_by_layer(self.zoo.arch)
        for name in layers:
            if name not in by_layer:
                raise UnknownNameError(self.zoo.name, "layer", name, list(by_layer))
        counts = {name: len(rows) for name, rows in self.usable.items()}
        if not any(counts.values()):
            return []
        most = max(1, min(MAX_LAYERS, _MAX_PLACES // max(1, len(self.rows))))
        matrices = [name for name, own in by_layer.items() if any(len(self.zoo.arch[item].shape) > 1 for item in own)]
        placed = list(layers) or _evenly(matrices or list(by_layer), most)
        drawn = list(layers) or list(dict.fromkeys([*placed, *_evenly(list(by_layer), MAX_FIGURES)]))
        drawn.sort(key=list(by_layer).index)
        advance = counter(len(drawn) * len(self.usable), progress)
        return [self._add_layer(layer, by_layer[layer], layer in placed, advance) for layer in drawn]

    def _add_layer(
        self, layer: str, tensors: Sequence[str], is_placed: bool, advance: Callable[[], None]
    ) -> LayerFigure:
        header, data = self.payload.header, self.payload.columns
        weights = {
            name: LayerWeights(self.shown.take(rows), tensors, name) for name, rows in self.usable.items() if len(rows)
        }
        edges = edges_of(list(weights.values()))
        counts: dict[str, Any] = {}
        panels: list[dict[str, Any]] = []
        for name, own in weights.items():
            advance()
            if not is_placed or len(own.zoo) < 2:
                counts[name] = count_values(own, edges)
                continue
            rows = self.usable[name]
            basis = columns.sampled(own.zoo.column("id"), BASIS)
            found, counts[name] = scores(own, basis, edges)
            number = len(header["layers"])
            for axis in (0, 1):
                data[f"{name}:{number}:{'xy'[axis]}"] = _placed(found, rows, axis, len(self.rows))
            panels.append(
                {
                    "variant": name,
                    "column": f"{name}:{number}",
                    "steps": list(found.steps),
                    "ratios": list(found.ratios),
                    "members": found.members,
                    "left_out": len(self.rows) - found.members,
                    "basis": found.basis,
                }
            )
        parameters = sum(self.zoo.arch[name].size for name in tensors)
        if panels:
            header["layers"].append({"name": layer, "parameters": parameters, "panels": panels})
        return LayerFigure(layer, parameters, edges, counts)

    def add_trajectories(self) -> None:
        """Add test accuracies of members with several steps."""
        drawn = trajectories(self.zoo, self.shown) if len(self.zoo) > len(self.last) else None
        if drawn is not None:
            self.payload.header["trajectories"] = {"members": len(drawn.rows), "total": drawn.total}
            self.payload.columns["trajectory_rows"] = drawn.rows.astype("<i4")
            self.payload.columns["trajectory_steps"] = drawn.steps.astype("<f8")
            self.payload.columns["trajectory_values"] = drawn.values.astype("<f4").ravel()

    def facts(self) -> PageFacts:
        """Return the facts about the zoo that the page states in words."""
        zoo, last = self.zoo, self.last
        return PageFacts(
            zoo=zoo,
            last=last,
            shown=len(self.rows),
            code=self.payload.header["code"],
            variant=self.variant,
            variants=self.variants,
            usable={name: len(rows) for name, rows in self.usable.items()},
        )

    def _usable(self, variant: str) -> NDArray[np.int64]:
        """Return positions among the members shown of those whose weights can be shown in a gauge."""
        kept = usable_rows(self.shown)
        if variant != layout.RAW:
            kept &= filled_with(columns.variant_column(self.shown, variant, "gauged"), False)
        return np.flatnonzero(kept)


def _placed(scores_of_layer: PrincipalScores, rows: NDArray[np.int64], axis: int, count: int) -> NDArray[np.int16]:
    """Return a column of scores for every member of the page."""
    placed = np.full(count, MISSING, "<i2")
    placed[rows] = scores_of_layer.positions[:, axis]
    return placed


def _is_astral(letter: str) -> bool:
    return ord(letter) > 0xFFFF


def _evenly(names: Sequence[str], limit: int) -> list[str]:
    """Return at most ``limit`` of the names, evenly spaced, the first and the last among them."""
    if len(names) <= limit:
        return list(names)
    if limit == 1:
        return [names[-1]]
    return [names[round(index * (len(names) - 1) / (limit - 1))] for index in range(limit)]


@dataclass(frozen=True, eq=False)
class MemberTrajectories:
    """Accuracies of some members at their steps.

    ``rows`` (M,) are the positions of the members' last steps among those of the page; ``steps`` (S,) int64 rise;
    ``values`` (M, S) float64 are NaN where a member has no such checkpoint or nothing was measured. ``total`` counts
    the members of the page with several steps.
    """

    rows: NDArray[np.int64]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    total: int


def trajectories(zoo: Zoo, shown: Zoo) -> MemberTrajectories | None:
    """Return the trajectories of a zoo with every checkpoint, for the last steps ``shown`` of the members of the page;
    None where no member has ``_MIN_STEPS`` measured steps.
    """
    accuracies, _ = numbers(zoo.column("test_accuracy"))
    step, without_step = numbers(zoo.column("step"))
    members = np.array(zoo.column("member").to_pylist(), dtype=object)
    is_known = np.isfinite(accuracies) & ~without_step
    counts: dict[str, int] = {}
    for member in members[is_known]:
        counts[member] = counts.get(member, 0) + 1
    own = shown.column("member").to_pylist()
    moving = np.array([counts.get(member, 0) >= _MIN_STEPS for member in own], bool)
    positions = np.flatnonzero(moving)
    if not len(positions):
        return None
    rows = positions[sampled(shown.column("id").filter(pa.array(moving)), _MAX_TRAJECTORIES)]
    number = {own[row]: index for index, row in enumerate(rows)}
    owners = np.array([number.get(member, -1) for member in members])
    is_drawn = is_known & (owners >= 0)
    steps, column = np.unique(step[is_drawn].astype(np.int64), return_inverse=True)
    values = np.full((len(rows), len(steps)), np.nan)
    values[owners[is_drawn], column] = accuracies[is_drawn]
    return MemberTrajectories(rows, steps, values, len(positions))
