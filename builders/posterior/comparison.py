"""``posteriors``: draws of every method, their gauges and outputs, and the tables of arXiv 2310.08287 beside ours."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import ckptzoo
from builders import posterior, predicting
from builders.build import write_page
from builders.posterior.build import build
from builders.posterior.modes import find_modes
from builders.recipe import Recipe
from ckptzoo.cli.options import bar
from ckptzoo.derive import derive
from ckptzoo.schema import layout
from ckptzoo.studies.posteriors import REMOVALS, Posteriors, posteriors
from ckptzoo.symmetry import gauge_named

METHODS = tuple(name for name in posterior.names() if name != "hmc")
"""The methods that are compared; Hamiltonian Monte Carlo is not, because a transition of it goes hundreds of times
through the whole training set.
"""


def compare(
    recipe: Recipe | str | Path,
    members: str | Path,
    to: str | Path,
    *,
    methods: Sequence[str] | None = None,
    modes: int = 10,
    draws: int = 10,
    one_mode_draws: int = 100,
    replicates: int = 3,
    ensemble: int = 100,
    folder: str | Path | None = None,
    device: str = "cpu",
    console: Console | None = None,
) -> Posteriors:
    """Build draws of every method, derive their gauges, store their outputs, and compare them with members. Every step
    skips existing results, so that the same call continues after a stop.

    The zoo ``members`` is copied beside ``to``, the zoo of draws, under its own name; pictures and tables go to the
    folder ``<to>-pictures``. ``methods`` are by default those of the study, all but Hamiltonian Monte Carlo. ``modes``,
    ``draws``, ``ensemble`` and ``replicates`` are as in ``ckptzoo.studies.posteriors.posteriors``; as many replicates
    of ``modes`` modes are built. ``one_mode_draws`` are taken of each of the first ``replicates`` modes; where a method
    has fewer, all of them.

    Raises ZooError as in each of the steps.
    """
    recipe, console = Recipe.of(recipe), console or Console()
    root = Path(to).absolute()
    models = [posterior.get(method).load(recipe) for method in (METHODS if methods is None else methods)]
    ckptzoo.open(members)  # a folder that is no zoo would be copied, and its draws made, before anybody noticed
    for model in models:
        if model.starts == "member":
            find_modes(model, modes * replicates, members)  # for the same reason
    target = _copied(Path(members).absolute(), root.parent / Path(members).absolute().name, root)
    for model in models:
        start = target if model.starts == "member" else None
        most = model.max_draws or one_mode_draws
        # many draws of few modes for what one mode covers, then few draws of many
        for mode_count, draw_count in ((replicates, min(one_mode_draws, most)), (modes * replicates, min(draws, most))):
            built = build(
                model.name,
                recipe,
                root,
                modes=mode_count,
                draws=draw_count,
                start=start,
                folder=folder,
                device=device,
                console=console,
            )
            console.print(built.line(), highlight=False, soft_wrap=True)
    sets = predicting.input_sets(recipe, folder, normalisations=predicting.NORMALISATIONS)
    for zoo in (target, root):
        for gauge in REMOVALS.values():
            if gauge != layout.RAW:
                with bar(f"{zoo.name}: {gauge}") as progress:
                    derive(zoo, gauge=gauge_named(gauge), progress=progress)
        predicting.predict(zoo, sets, console)
        write_page(zoo)
    with bar("comparing") as progress:
        result = posteriors(
            ckptzoo.open(target),
            ckptzoo.open(root),
            modes=modes,
            draws=draws,
            ensemble=ensemble,
            replicates=replicates,
            progress=progress,
        )
    result.print(console)
    for path in result.plot(root.with_name(f"{root.name}-pictures")):
        console.print(str(path), highlight=False, soft_wrap=True)
    return result


def _copied(members: Path, target: Path, draws: Path) -> Path:
    """Return a copy of the members' zoo to which gauges and outputs are added; the zoo itself where it is there."""
    if target.exists():
        return target
    draws.parent.mkdir(parents=True, exist_ok=True)
    # in the same file system, so that a whole copy gets its name at once
    with tempfile.TemporaryDirectory(dir=draws.parent, prefix=".copy-") as scratch:
        shutil.copytree(members, Path(scratch) / "zoo")
        (Path(scratch) / "zoo").rename(target)
    return target
