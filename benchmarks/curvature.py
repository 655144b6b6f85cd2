"""The full Gauss-Newton matrix of an OptuNet: ours, for any architecture and for OptuNet alone, beside laplace-torch.

Everyone is given the same weights and the same images; the largest difference from ours is printed, as a fraction of
the largest entry. laplace-torch (pip install laplace-torch) takes part with its default backend, curvlinops, and with
BackPACK, where they can be imported. Its default backend takes about a minute for the default of 2,000 images: choose
the other for all 60,000 of MNIST (--images 60000 --backends backpack).
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

import ckptzoo
from benchmarks.layers_report import machine
from builders import data, sources
from builders.posterior import curvature
from builders.recipe import Recipe
from builders.state import Tensors
from builders.train import available_cores
from ckptzoo import archs

ROOT = Path(__file__).resolve().parent.parent
ZOO = ROOT / "cards" / "mnist-optunet"
BACKENDS = {"curvlinops": "CurvlinopsGGN", "backpack": "BackPackGGN"}
"""Of laplace-torch: its default first."""
BATCH = 256
"""Images a batch of laplace-torch's; 64 to 256 are equally fast for curvlinops, and BackPACK is faster with more."""
OURS = "ours"
Compute = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Row:
    """One contender.

    Parameters
    ----------
    name
        for the table.
    images
        how many it took.
    seconds
        that it took for them.
    difference
        the largest from ours, as a fraction of the largest entry; None for ours.
    """

    name: str
    images: int
    seconds: float
    difference: float | None

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds


def any_architecture(weights: Tensors, inputs: curvature.TrainingInputs, workers: ThreadPoolExecutor) -> torch.Tensor:
    """What ours computes for an architecture without a path of its own: backward passes and products."""

    def block(part: torch.Tensor) -> torch.Tensor:
        rows_of = curvature.row_function("optunet", "cross-entropy", weights)
        total = torch.zeros(392, 392, dtype=torch.float64)
        for batch in part.split(BATCH):
            rows = rows_of(inputs.network_inputs(batch)).double()
            total.addmm_(rows.T, rows)
        return total

    return torch.stack(list(workers.map(block, inputs.raw.split(16 * BATCH)))).sum(0)


def by_laplace_torch(backend: str, weights: Tensors, images: torch.Tensor, labels: torch.Tensor) -> Compute | None:
    """What fits laplace-torch's full Laplace with this backend; None where it cannot be imported."""
    try:
        laplace = import_module("laplace")
        kind = getattr(import_module("laplace.curvature"), backend)
    except (ImportError, AttributeError):
        return None
    model = archs.get("optunet")().eval()
    model.load_state_dict(weights)

    def compute() -> torch.Tensor:
        fitted = laplace.Laplace(
            model, "classification", subset_of_weights="all", hessian_structure="full", backend=kind
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # BackPACK's hooks, about modules without parameters
            fitted.fit(DataLoader(TensorDataset(images, labels), batch_size=BATCH))
        return fitted.H.double()

    return compute


def contenders(
    weights: Tensors,
    inputs: curvature.TrainingInputs,
    labels: torch.Tensor,
    backends: list[str],
    workers: ThreadPoolExecutor,
) -> Iterator[tuple[str, Compute]]:
    """Name and computation, ours first."""
    yield f"{OURS}, OptuNet", lambda: curvature.gauss_newton("optunet", "cross-entropy", weights, inputs, workers)
    yield f"{OURS}, any architecture", lambda: any_architecture(weights, inputs, workers)
    images = inputs.network_inputs(inputs.raw)
    for backend in backends:
        compute = by_laplace_torch(BACKENDS[backend], weights, images, labels)
        if compute is not None:
            yield f"laplace-torch, {backend}", compute


def measure(
    weights: Tensors, inputs: curvature.TrainingInputs, labels: torch.Tensor, backends: list[str], repeats: int
) -> list[Row]:
    """Each in turn, with as many threads as there are cores; the least of a few repeats of ours, one of the others."""
    rows: list[Row] = []
    reference: torch.Tensor | None = None
    cores = available_cores()
    torch.set_num_threads(cores)
    with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as workers:
        for name, compute in contenders(weights, inputs, labels, backends, workers):
            seconds: list[float] = []
            matrix = torch.empty(0)
            for _ in range(repeats if name.startswith(OURS) else 1):
                began = time.perf_counter()
                matrix = compute()
                seconds.append(time.perf_counter() - began)
            if reference is None:
                reference, difference = matrix, None
            else:
                difference = float((matrix - reference).abs().max() / reference.abs().max())
            rows.append(Row(name, len(labels), min(seconds), difference))
    return rows


def show(console: Console, rows: list[Row], facts: dict[str, Any]) -> None:
    """The table."""
    console.print(f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, torch {torch.__version__}")
    table = Table(title=f"full Gauss-Newton matrix of an OptuNet, {rows[0].images:,} images", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("seconds", "images a second", "times slower", "largest difference"):
        table.add_column(column, justify="right")
    for row in rows:
        difference = "" if row.difference is None else f"{row.difference:.0e}"
        slower = f"{row.seconds / rows[0].seconds:,.1f}"
        table.add_row(row.name, f"{row.seconds:,.2f}", f"{row.rate:,.0f}", slower, difference)
    console.print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000, help="how many training images (2000)")
    parser.add_argument("--member", type=int, default=0, help="row of cards/mnist-optunet (0)")
    parser.add_argument("--recipe", help="default: mnist-optunet where a data folder is named, else digits-optunet")
    parser.add_argument("--data", type=Path, help=f"folder of the data set (default: ${data.FOLDER_VARIABLE})")
    parser.add_argument("--backends", nargs="*", choices=list(BACKENDS), default=list(BACKENDS), help="default: all")
    parser.add_argument("--repeats", type=int, default=3, help="of ours (3)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "curvature.json", help="where figures go")
    chosen = parser.parse_args()
    if min(chosen.images, chosen.repeats) < 1 or chosen.member < 0:
        parser.error("--images and --repeats: expected more than 0; --member: expected 0 or more.")
    return chosen


def main() -> None:
    """Measure, print the table, write the figures."""
    chosen = arguments()
    console = Console()
    named = chosen.data or os.environ.get(data.FOLDER_VARIABLE)
    recipe = Recipe.load(chosen.recipe or ("mnist-optunet" if named else "digits-optunet"))
    source = sources.load(recipe, chosen.data)
    zoo = ckptzoo.open(ZOO)
    weights = {name: torch.tensor(zoo[name][chosen.member]) for name in curvature.parameter_names("optunet")}
    raw, labels = (torch.from_numpy(array[: chosen.images]) for array in source.half("train"))
    feed = sources.data_source(recipe, source, "cpu")
    rows = measure(weights, curvature.TrainingInputs(raw, feed.network_inputs), labels, chosen.backends, chosen.repeats)
    facts = machine(ROOT)
    show(console, rows, facts)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": facts, "recipe": recipe.name, "results": [asdict(row) for row in rows]}
    chosen.json.write_text(json.dumps(content, indent=1) + "\n")
    console.print(f"Figures: {chosen.json}")


if __name__ == "__main__":
    main()
