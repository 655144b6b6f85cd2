"""What does this zoo look like? Accuracies, marginals of the weights per layer, and two output weights together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.table import Table

from ckptzoo.errors import ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec import layout
from ckptzoo.studies.overview.inventory import Inventory, inventory, sound
from ckptzoo.studies.overview.pair import Pair, pair_of
from ckptzoo.studies.overview.trajectories import Trajectories, trajectories_of
from ckptzoo.studies.reading.batches import Progress, weight_names
from ckptzoo.studies.reading.histograms import Histogram, histograms
from ckptzoo.studies.reading.sample import evenly
from ckptzoo.studies.shown.drawn import need_matplotlib, write
from ckptzoo.studies.shown.spread import Spread

MAX_PANELS = 24


@dataclass(frozen=True, eq=False)
class Overview:
    """What a zoo looks like.

    Parameters
    ----------
    inventory : what it holds.
    variants : those that are shown: ``raw``, and the derived one where there is one.
    shown : checkpoints whose weights are shown: each member's last step, finite and not diverged.
    accuracies : known test accuracies of each member's last step, those apart that diverged or are not finite.
    diverged : of the latter; NaN where none was measured.
    marginals : of the weight tensors, in the architecture's order.
    left_out : weight tensors beyond ``MAX_PANELS``, which are evenly spaced through the network.
    pair : two output weights; None where no tensor has an output neuron with two incoming weights.
    trajectories : accuracies along the training; None where no member has several steps.
    """

    inventory: Inventory
    variants: tuple[str, ...]
    shown: int
    accuracies: NDArray[np.float64]
    diverged: NDArray[np.float64]
    marginals: tuple[Histogram, ...]
    left_out: tuple[str, ...]
    pair: Pair | None
    trajectories: Trajectories | None

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, without the densities and the points."""
        spread = Spread.of(self.accuracies)
        pair = self.pair
        return {
            "inventory": self.inventory.to_json(),
            "variants": list(self.variants),
            "shown": self.shown,
            "test_accuracy": None if spread is None else spread.to_json(),
            "diverged": len(self.diverged),
            "marginals": [
                {"tensor": item.tensor, "shape": list(item.shape), "mean": item.mean, "sd": item.sd}
                for item in self.marginals
            ],
            "left_out": list(self.left_out),
            "pair": None
            if pair is None
            else {
                "names": list(pair.names),
                "points": len(pair.points[layout.RAW]),
                "above_diagonal": {name: pair.above(name) for name in self.variants},
                "correlation": {name: pair.correlation(name) for name in self.variants},
            },
            "trajectories": None if self.trajectories is None else self.trajectories.to_json(),
        }

    def print(self, console: Console | None = None) -> None:
        """Print the inventory and a table of the marginals on a rich console, by default the standard output."""
        console = console or Console()
        self.inventory.print(console)
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("tensor", overflow="fold")
        table.add_column("shape")
        for variant in self.variants:
            table.add_column(f"{variant}: mean", justify="right", no_wrap=True)
            table.add_column("sd", justify="right", no_wrap=True)
        for item in self.marginals:
            figures = [f"{value:.4g}" for name in self.variants for value in (item.mean[name], item.sd[name])]
            table.add_row(item.tensor, " x ".join(map(str, item.shape)), *figures)
        lines: list[Any] = ["", table]
        if self.pair is not None:
            shares = ", ".join(f"{self.pair.above(name):.1%} {name}" for name in self.variants)
            lines.append(f"\n{self.pair.names[1]} is larger than {self.pair.names[0]}: {shares}")
        console.print(Group(*lines), markup=False, highlight=False)

    def plot(self, folder: str | Path) -> list[Path]:
        """Write ``accuracy.png``, ``marginals.png``, ``scatter.png``, ``trajectories.png`` and ``summary.json``.

        A picture for which the zoo has nothing to show is left out. Equal overviews give equal bytes at equal
        versions of matplotlib.

        Parameters
        ----------
        folder : made where it is missing; files of these names are replaced.

        Raises
        ------
        MissingExtraError
            matplotlib is not installed.
        """
        need_matplotlib()
        from ckptzoo.studies.overview import pictures

        name, shown = self.inventory.name, self.shown
        figures: dict[str, Any] = {}
        if len(self.accuracies):
            figures["accuracy.png"] = pictures.accuracy(name, self.accuracies, self.diverged)
        if self.marginals:
            figures["marginals.png"] = pictures.marginals(name, shown, self.marginals, left_out=len(self.left_out))
        if self.pair is not None:
            figures["scatter.png"] = pictures.scatter(name, shown, self.pair)
        if self.trajectories is not None:
            figures["trajectories.png"] = pictures.trajectories(name, self.trajectories)
        return write(folder, figures, "summary.json", self.to_json())


def overview(zoo: Zoo, variant: str | None = None, *, seed: int = 0, progress: Progress | None = None) -> Overview:
    """Look at a zoo or at a selection of one.

    Symmetry removal changes what the weights look like and not what the networks compute: the cloud of two
    incoming weights of one neuron is symmetric about the diagonal as trained (exchanging two hidden neurons maps
    a network onto an equally likely one) and no longer so in a gauge. After arXiv 2310.08287, figure 1.

    Parameters
    ----------
    zoo : what ``ckptzoo.open`` gives, or a selection of it.
    variant : shown beside ``raw``; by default the first one that was derived, if any.
    seed : draws the points of the scatter where there are more than ``MAX_POINTS`` checkpoints.
    progress : called as weights are read.

    Raises
    ------
    UnknownNameError
        No such variant.
    ZooError
        No checkpoint is finite and did not diverge, or the variant lacks some of them.

    Notes
    -----
    Reads the shown tensors once in every variant, in memory of a few batches of 16 MB.
    """
    held = inventory(zoo)
    last = zoo.last_steps()
    apart = ~sound(last.metadata)
    good = last.take(~apart)
    if not len(good):
        raise ZooError(
            f"{zoo.name}: checkpoints: expected at least one that is finite and did not diverge, got none of "
            f"{len(last)}. Select others."
        )
    derived = [name for name in zoo.variants if name != layout.RAW][:1] if variant is None else [variant]
    names = tuple(dict.fromkeys([layout.RAW, *derived]))
    tensors = weight_names(zoo.arch)
    chosen = [tensors[at] for at in evenly(len(tensors), MAX_PANELS)]
    accuracy = last.metadata["test_accuracy"].to_numpy().astype(np.float64)
    return Overview(
        inventory=held,
        variants=names,
        shown=len(good),
        accuracies=accuracy[np.isfinite(accuracy) & ~apart],
        diverged=accuracy[apart],
        marginals=histograms(good, chosen, names, progress),
        left_out=tuple(name for name in tensors if name not in chosen),
        pair=pair_of(good, names, seed=seed),
        trajectories=trajectories_of(zoo.metadata),
    )
