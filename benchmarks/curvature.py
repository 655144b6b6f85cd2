"""Curvature of OptuNets: full Gauss-Newton matrices beside laplace-torch, and Hessians of many members beside a loop.

Everyone is given the same weights and the same images; the largest difference from ours is printed, as a fraction of
the largest entry. laplace-torch (pip install laplace-torch) takes part with its default backend, curvlinops, and with
BackPACK, where they can be imported. Its default backend takes about a minute for the default of 2,000 images: choose
the other for all 60,000 of MNIST (--images 60000 --backends backpack).

Traces and largest eigenvalues of Hessians, exact, are those of ckptzoo.derive.landscape for a stack of members; the
loops take one member after the other and multiply its Hessian by one vector at a time, as PyHessian does: 392 of them
for the same figures, or those that Lanczos' method needs for the eigenvalue alone. They are measured in processor
seconds a member, on one core.
"""

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

import ckptzoo
from benchmarks.figures import Figure, figure, machine, turns, write
from builders import data, sources
from builders.posterior import curvature
from builders.recipe import Recipe
from builders.state import Tensors
from builders.train import available_cores
from ckptzoo import archs
from ckptzoo.derive.hessians import Hessians
from ckptzoo.derive.landscapes import TOLERANCE
from ckptzoo.measure.spectra import lanczos

ROOT = Path(__file__).resolve().parent.parent
ZOO = ROOT / "cards" / "mnist-optunet"
BACKENDS = {"curvlinops": "CurvlinopsGGN", "backpack": "BackPackGGN"}
"""Of laplace-torch: its default first."""
BATCH = 256
"""Images a batch of laplace-torch's; 64 to 256 are equally fast for curvlinops, and BackPACK is faster with more."""
OURS = "ours"
SLOW_SECONDS = 20.0
"""A contender that takes longer runs once."""
Compute = Callable[[], torch.Tensor]


LOOPED = 1
"""Members that a loop takes, each for seconds: seconds a member are compared."""
Figures = list[tuple[float, float]]
"""Trace and largest eigenvalue of each member; NaN for what is not computed."""


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
        that it took for them, one a repeat.
    difference
        the largest from the first, as a fraction of the largest entry.
    """

    name: str
    images: int
    seconds: list[float]
    difference: float

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)


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
    """All in turns, with as many threads as there are cores; what takes longer than ``SLOW_SECONDS`` runs once."""
    cores = available_cores()
    torch.set_num_threads(cores)
    with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as workers:
        each = dict(contenders(weights, inputs, labels, backends, workers))
        matrices: dict[str, torch.Tensor] = {}
        seconds: dict[str, list[float]] = {name: [] for name in each}
        for name in turns(each, repeats):
            if min(seconds[name], default=0.0) > SLOW_SECONDS:
                continue
            began = time.perf_counter()
            matrices[name] = each[name]()
            seconds[name].append(time.perf_counter() - began)
    first = matrices[next(iter(each))]
    differences = {name: float((matrix - first).abs().max() / first.abs().max()) for name, matrix in matrices.items()}
    return [Row(name, len(labels), seconds[name], differences[name]) for name in each]


def stacked_figures(zoo: ckptzoo.Zoo, members: int, images: torch.Tensor, labels: torch.Tensor) -> Figures:
    """Both figures of the first members, by stacks of whole Hessians."""
    hessians = Hessians(zoo.arch, images.numpy(), labels.numpy())
    found: Figures = []
    for start in range(0, members, hessians.stack_size):
        rows = slice(start, min(start + hessians.stack_size, members))
        _, matrices = hessians.matrices({name: np.asarray(zoo[name][rows]) for name in zoo.arch.names})
        tops = np.linalg.eigvalsh(matrices)[:, -1]
        found += list(zip(np.trace(matrices, axis1=1, axis2=2).tolist(), tops.tolist(), strict=True))
    return found


def looped_figures(
    zoo: ckptzoo.Zoo, members: int, images: torch.Tensor, labels: torch.Tensor, *, whole: bool
) -> Figures:
    """Both figures, or the eigenvalue alone, of the first members, one member and one product at a time."""
    module, found = archs.get("optunet")().double().eval(), list[tuple[float, float]]()
    for member in range(members):
        module.load_state_dict({name: torch.tensor(zoo[name][member]).double() for name in zoo.arch.names})
        parameters = list(module.parameters())
        loss = torch.nn.functional.cross_entropy(module(images.double()), labels.long())
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        gradient = torch.cat([one.reshape(-1) for one in gradients])

        def product(
            vectors: Any, gradient: torch.Tensor = gradient, parameters: list[torch.nn.Parameter] = parameters
        ) -> Any:
            vector = torch.from_numpy(vectors.reshape(-1))
            pieces = torch.autograd.grad(gradient @ vector, parameters, retain_graph=True)
            return torch.cat([piece.reshape(-1) for piece in pieces]).numpy().reshape(vectors.shape)

        if whole:
            matrix = np.stack([product(row) for row in np.eye(len(gradient))])
            found.append((float(np.trace(matrix)), float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[-1])))
        else:
            start = np.random.default_rng(member).standard_normal((1, len(gradient)))
            top = lanczos(product, start, steps=32, tolerance=TOLERANCE).values[0]
            found.append((float("nan"), float(top)))
    return found


def measure_hessians(members: int, images: torch.Tensor, labels: torch.Tensor, repeats: int) -> list[Row]:
    """Processor seconds a member, in turns on one core."""
    zoo = ckptzoo.open(ZOO)
    each: dict[str, tuple[int, Callable[[], Figures]]] = {
        f"{OURS}, whole Hessians": (members, lambda: stacked_figures(zoo, members, images, labels)),
        "a loop, whole Hessians": (LOOPED, lambda: looped_figures(zoo, LOOPED, images, labels, whole=True)),
        "a loop, Lanczos alone": (LOOPED, lambda: looped_figures(zoo, LOOPED, images, labels, whole=False)),
    }
    torch.set_num_threads(1)
    found: dict[str, Figures] = {}
    seconds: dict[str, list[float]] = {name: [] for name in each}
    stacked_figures(zoo, 1, images[:2], labels[:2])  # what torch sets up at first use
    for name in turns(each, repeats):
        count, compute = each[name]
        began = time.process_time()
        found[name] = compute()
        seconds[name].append((time.process_time() - began) / count)
    first = np.array(found[next(iter(each))])
    differences = {name: np.nanmax(np.abs(np.array(f) / first[: len(f)] - 1)) for name, f in found.items()}
    return [Row(name, len(labels), seconds[name], float(differences[name])) for name in each]


def figures(rows: list[Row], hessians: list[Row]) -> Iterator[Figure]:
    """Seconds and images a second."""
    for row in hessians:
        yield figure("hessians", row.name, "a member", row.seconds, "s")
        faster = [taken / hessians[0].median for taken in row.seconds]
        yield figure("hessians", row.name, "times ours", faster, "times")
    for row in rows:
        yield figure("matrix", row.name, "time", row.seconds, "s")
        yield figure("matrix", row.name, "images a second", [row.images / taken for taken in row.seconds], "images")


def show(console: Console, rows: list[Row], facts: dict[str, Any]) -> None:
    """The table."""
    console.print(f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, torch {torch.__version__}")
    table = Table(title=f"full Gauss-Newton matrix of an OptuNet, {rows[0].images:,} images", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("seconds", "images a second", "times slower", "largest difference"):
        table.add_column(column, justify="right")
    for row in rows:
        slower = f"{row.median / rows[0].median:,.1f}"
        table.add_row(
            row.name, f"{row.median:,.2f}", f"{row.images / row.median:,.0f}", slower, f"{row.difference:.0e}"
        )
    console.print(table)


def show_hessians(console: Console, rows: list[Row]) -> None:
    """The table of processor seconds a member."""
    table = Table(title=f"trace and largest eigenvalue, {rows[0].images:,} images", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("processor seconds a member", "times slower", "largest relative difference"):
        table.add_column(column, justify="right")
    for row in rows:
        slower = f"{row.median / rows[0].median:,.1f}"
        table.add_row(row.name, f"{row.median:,.3f}", slower, f"{row.difference:.0e}")
    console.print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000, help="how many training images (2000)")
    parser.add_argument("--member", type=int, default=0, help="row of cards/mnist-optunet (0)")
    parser.add_argument("--recipe", help="default: mnist-optunet where a data folder is named, else digits-optunet")
    parser.add_argument("--data", type=Path, help=f"folder of the data set (default: ${data.FOLDER_VARIABLE})")
    parser.add_argument("--backends", nargs="*", choices=list(BACKENDS), default=list(BACKENDS), help="default: all")
    parser.add_argument("--members", type=int, default=16, help="of the Hessians in stacks (16)")
    parser.add_argument("--repeats", type=int, default=3, help="of each but the slow (3)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "curvature.json", help="where figures go")
    chosen = parser.parse_args()
    if min(chosen.images, chosen.members, chosen.repeats) < 1 or chosen.member < 0:
        parser.error("--images, --members and --repeats: expected more than 0; --member: expected 0 or more.")
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
    hessians = measure_hessians(chosen.members, feed.network_inputs(raw), labels, chosen.repeats)
    facts = machine(ROOT)
    show(console, rows, facts)
    show_hessians(console, hessians)
    content = {"machine": facts, "recipe": recipe.name, "results": [asdict(row) for row in rows]}
    content["hessians"] = [asdict(row) for row in hessians]
    write(chosen.json, list(figures(rows, hessians)), content)
    console.print(f"Figures: {chosen.json}")


if __name__ == "__main__":
    main()
