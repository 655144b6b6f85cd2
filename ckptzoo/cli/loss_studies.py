"""The commands of ``ckptzoo study`` that join networks by lines or score means of them: they need labelled inputs."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.completion import complete_gauges, complete_variants, complete_zoos
from ckptzoo.cli.options import (
    Data,
    LabelledFile,
    Module,
    StudyOptions,
    ZooAddress,
    expand_dataclasses,
    opened,
)

if TYPE_CHECKING:
    from ckptzoo.derive.labelled import Labelled
    from ckptzoo.loader.zoo import Zoo


@dataclass(frozen=True)
class LabelledOptions:
    """The labelled inputs on which networks are scored, and how they are evaluated."""

    set: Annotated[
        str | None,
        typer.Option(
            "--set", metavar="SET", help="Labelled inputs.  [default: the test set of the networks' data set]"
        ),
    ] = None
    data: Data = None
    inputs: LabelledFile = None
    module: Module = None
    statistics: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Training images for the statistics of BatchNorm of each network; 0 takes those stored.",
        ),
    ] = 10_000

    def labelled(self, zoo: "Zoo") -> "Labelled":
        """Return the labelled inputs of a zoo, or those in the user's own file."""
        from ckptzoo.derive.labelled import Labelled, read_inputs
        from ckptzoo.hub.contributions.inputs import labelled_of

        if self.inputs is None:
            return labelled_of(zoo, self.set, data=self.data, statistics=self.statistics)
        if self.data is not None:
            raise typer.BadParameter("--data is for sets that are known by name; leave it out, or --inputs.")
        read, targets = read_inputs(self.inputs)
        if targets is None:
            raise typer.BadParameter(f"{self.inputs}: expected an array targets beside inputs, got none.")
        return Labelled(self.set or self.inputs.stem, read, targets)

    def network(self, zoo: "Zoo") -> Any:
        """Return the user's own network; None where none is named."""
        if self.module is None:
            return None
        from ckptzoo.hub.contributions.evaluation import own_network

        return own_network(zoo.arch, self.module)


@expand_dataclasses
def barriers(
    zoos: Annotated[
        list[str],
        typer.Argument(
            metavar="ZOO...",
            help="Folders, or addresses, of one zoo or more.",
            show_default=False,
            autocompletion=complete_zoos,
        ),
    ],
    pairs: Annotated[int, typer.Option(metavar="N", min=1, help="Pairs of members of each zoo.")] = 16,
    points: Annotated[int, typer.Option(metavar="N", min=3, help="Points of a line, with its ends.")] = 11,
    gauges: Annotated[
        list[str] | None,
        typer.Option(
            "--gauge",
            metavar="NAME",
            help="Also bring pairs into this gauge and align them there; repeatable.  [default: unit-norm, min-mass]",
            autocompletion=complete_gauges,
        ),
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="NAME",
            help="Also join members as a stored variant has them; repeatable.",
            autocompletion=complete_variants,
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option(metavar="N", min=1, help="Samples drawn from each Gaussian; their predictions are averaged.")
    ] = 16,
    simplex: Annotated[int, typer.Option(metavar="K", min=0, help="Also score points between K members at once.")] = 0,
    least: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="For OptuNets: try all 28,800 permutations halfway between N pairs."),
    ] = 0,
    activations: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Also align by activations on the first N inputs; 0 does not."),
    ] = 0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of pairs, draws and points.")] = 0,
    *,
    scored: LabelledOptions,
    shown: StudyOptions,
) -> None:
    """How high are the barriers between members, as trained and aligned?

    Losses on the lines between pairs of members, or of Gaussians, as in arXiv 2310.10171; several zoos together are
    also drawn against their width.
    """
    from ckptzoo.symmetry import gauge_named

    chosen = [shown.opened(zoo) for zoo in zoos]
    options: dict[str, Any] = {
        "pairs": pairs,
        "points": points,
        "draws": draws,
        "simplex": simplex,
        "least": least,
        "seed": seed,
    }
    options |= {"recorded": activations, "variants": variants or ()}
    if gauges is not None:
        options["gauges"] = [gauge_named(name, "barriers") for name in gauges]
    question = [(zoo, scored.labelled(zoo)) for zoo in chosen]
    shown.answer("barriers", question, module=scored.network(chosen[0]), **options, said="evaluating lines")


@expand_dataclasses
def transpositions(
    zoo: ZooAddress,
    barriers: Annotated[bool, typer.Option(help="Measure barriers, which needs labelled inputs.")] = True,
    points: Annotated[int, typer.Option(metavar="N", min=2, help="Points of a line, with its ends.")] = 11,
    *,
    scored: LabelledOptions,
    shown: StudyOptions,
) -> None:
    """Are planted permutations of hidden neurons still there after training?

    Of a zoo that python -m builders planted trained: the transpositions that alignment finds between members and their
    references, distances and barriers, against the number that was planted, as in arXiv 2401.00611.
    """
    chosen = shown.opened(zoo)
    labelled = scored.labelled(chosen) if barriers else None
    options: dict[str, Any] = {"points": points, "module": scored.network(chosen)}
    shown.answer("transpositions", chosen, labelled, **options, said="aligning pairs")


@expand_dataclasses
def steps(
    zoo: ZooAddress,
    barriers: Annotated[bool, typer.Option(help="Measure barriers, which needs labelled inputs.")] = True,
    *,
    scored: LabelledOptions,
    shown: StudyOptions,
) -> None:
    """How far are the kept steps of training from the last one?

    In transpositions, distances and barriers, as trained and aligned; build members with --keep-steps.
    """
    chosen = shown.opened(zoo)
    labelled = scored.labelled(chosen) if barriers else None
    shown.answer("steps", chosen, labelled, module=scored.network(chosen), said="comparing steps")


@expand_dataclasses
def compact(
    zoo: ZooAddress,
    variational: Annotated[
        str | None,
        typer.Option(metavar="ZOO", help="A zoo of Gaussians over the same networks, the first of which is compared."),
    ] = None,
    draws: Annotated[
        int, typer.Option(metavar="N", min=1, help="Samples drawn from each Gaussian; their predictions are averaged.")
    ] = 50,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the draws.")] = 0,
    *,
    scored: LabelledOptions,
    shown: StudyOptions,
) -> None:
    """Is the posterior one Gaussian, once its symmetries are removed?

    Gaussians of samples as they are and aligned, as in arXiv 2401.00611: deviations, accuracy of means and draws,
    pruning, merging, and of chains the convergence.
    """
    chosen, other = shown.opened(zoo), None if variational is None else opened(variational)
    options: dict[str, Any] = {"variational": other, "draws": draws, "module": scored.network(chosen), "seed": seed}
    shown.answer("compact", chosen, scored.labelled(chosen), **options, said="fitting Gaussians")


@expand_dataclasses
def pairs(
    zoo: ZooAddress,
    gauge: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Bring all into this gauge before.", autocompletion=complete_gauges),
    ] = None,
    nearest: Annotated[int, typer.Option(metavar="N", min=1, help="Nearest pairs that are listed and joined.")] = 100,
    barriers: Annotated[bool, typer.Option(help="Measure barriers of the nearest and of as many random pairs.")] = True,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the random pairs.")] = 0,
    *,
    scored: LabelledOptions,
    shown: StudyOptions,
) -> None:
    """How far apart are all pairs of members modulo permutations, and are the nearest connected?

    Exact, of networks such as OptuNet and perceptrons with one hidden layer.
    """
    from ckptzoo.symmetry import gauge_named

    chosen = shown.opened(zoo)
    labelled = scored.labelled(chosen) if barriers else None
    options: dict[str, Any] = {
        "gauge": None if gauge is None else gauge_named(gauge, "pairs"),
        "nearest": nearest,
        "seed": seed,
    }
    shown.answer("pairs", chosen, labelled, module=scored.network(chosen), **options, said="joining pairs")


@expand_dataclasses
def landscape(
    zoo: ZooAddress,
    pairs: Annotated[int, typer.Option(metavar="N", min=0, help="Pairs of members that are joined.")] = 8,
    curve_steps: Annotated[
        int, typer.Option(metavar="N", min=0, help="Steps of the training of a curve; 0 leaves curves out.")
    ] = 500,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of pairs, inputs and training.")] = 0,
    *,
    scored: LabelledOptions,
    shown: StudyOptions,
) -> None:
    """How sharp are the minima of a zoo, and are they connected?

    Hessians' traces and largest eigenvalues, which ckptzoo landscape stores, and of pairs the likeness of their last
    features and the losses on lines and on curves (arXiv 1802.10026).
    """
    chosen = shown.opened(zoo)
    known = chosen.landscapes
    measured = scored.set if scored.set in known or len(known) != 1 else known[0]
    labelled = None
    if pairs:
        named = scored if scored.set is not None or scored.inputs is not None else replace(scored, set=measured)
        labelled = named.labelled(chosen)
    options: dict[str, Any] = {"set": measured, "pairs": pairs, "curve_steps": curve_steps, "seed": seed}
    options["module"] = scored.network(chosen)
    shown.answer("landscape", chosen, labelled, **options, said="joining pairs")
