"""The commands of ``ckptzoo study`` that join networks by lines or score means of them: they need labelled inputs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.completion import complete_gauges, complete_variants, complete_zoos
from ckptzoo.cli.options import (
    AsJson,
    Data,
    LabelledFile,
    Module,
    Output,
    Where,
    ZooAddress,
    bar,
    opened,
    print_study,
)

if TYPE_CHECKING:
    from ckptzoo.derive.labelled import Labelled
    from ckptzoo.loader.zoo import Zoo
    from ckptzoo.studies.shared.result import StudyResult

Set = Annotated[
    str | None,
    typer.Option("--set", metavar="SET", help="Labelled inputs.  [default: the test set of the networks' data set]"),
]
Statistics = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="Training images for the statistics of BatchNorm of each network; 0 takes those stored.",
    ),
]


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
    set: Set = None,
    data: Data = None,
    inputs: LabelledFile = None,
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
    draws: Annotated[int, typer.Option(metavar="N", min=1, help="Of a Gaussian, for a prediction.")] = 16,
    simplex: Annotated[int, typer.Option(metavar="K", min=0, help="Also score points between K members at once.")] = 0,
    least: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Of OptuNets: for N pairs try all 28,800 permutations halfway."),
    ] = 0,
    activations: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Also align by what channels hold on the first N inputs; 0 for not."),
    ] = 0,
    module: Module = None,
    statistics: Statistics = 10_000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of pairs, draws and points.")] = 0,
    output: Output = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """How high are the barriers between members, as trained and aligned?

    Losses on the lines between pairs of members, or of Gaussians, as in arXiv 2310.10171; several zoos together are
    also drawn against their width.
    """
    from ckptzoo.studies.barriers import barriers as compute
    from ckptzoo.symmetry import gauge_named

    chosen = [opened(zoo, where) for zoo in zoos]
    labelled = [_labelled(zoo, set, data, statistics, inputs) for zoo in chosen]
    question = partial(
        compute,
        list(zip(chosen, labelled, strict=True)),
        pairs=pairs,
        points=points,
        gauges=("unit-norm", "min-mass") if gauges is None else [gauge_named(name, "barriers") for name in gauges],
        variants=variants or (),
        draws=draws,
        simplex=simplex,
        least=least,
        recorded=activations,
        module=_network(chosen[0], module),
        seed=seed,
    )
    _answer(question, "evaluating lines", output, as_json)


def transpositions(
    zoo: ZooAddress,
    set: Set = None,
    data: Data = None,
    inputs: LabelledFile = None,
    barriers: Annotated[bool, typer.Option(help="Measure barriers, which needs labelled inputs.")] = True,
    points: Annotated[int, typer.Option(metavar="N", min=2, help="Points of a line, with its ends.")] = 11,
    module: Module = None,
    statistics: Statistics = 10_000,
    output: Output = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Are planted permutations of hidden neurons still there after training?

    Of a zoo that python -m builders planted trained: the transpositions that alignment finds between members and their
    references, distances and barriers, against the number that was planted, as in arXiv 2401.00611.
    """
    from ckptzoo.studies.transpositions import transpositions as compute

    chosen = opened(zoo, where)
    labelled = _labelled(chosen, set, data, statistics, inputs) if barriers else None
    question = partial(compute, chosen, labelled, points=points, module=_network(chosen, module))
    _answer(question, "aligning pairs", output, as_json)


def steps(
    zoo: ZooAddress,
    set: Set = None,
    data: Data = None,
    inputs: LabelledFile = None,
    barriers: Annotated[bool, typer.Option(help="Measure barriers, which needs labelled inputs.")] = True,
    module: Module = None,
    statistics: Statistics = 10_000,
    output: Output = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """How far are the kept steps of training from the last one?

    In transpositions, distances and barriers, as trained and aligned; build members with --keep-steps.
    """
    from ckptzoo.studies.steps import steps as compute

    chosen = opened(zoo, where)
    labelled = _labelled(chosen, set, data, statistics, inputs) if barriers else None
    _answer(partial(compute, chosen, labelled, module=_network(chosen, module)), "comparing steps", output, as_json)


def compact(
    zoo: ZooAddress,
    variational: Annotated[
        str | None,
        typer.Option(metavar="ZOO", help="A zoo of Gaussians over the same networks, the first of which is compared."),
    ] = None,
    set: Set = None,
    data: Data = None,
    inputs: LabelledFile = None,
    draws: Annotated[int, typer.Option(metavar="N", min=1, help="Of each Gaussian, which predict together.")] = 50,
    module: Module = None,
    statistics: Statistics = 10_000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the draws.")] = 0,
    output: Output = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Is the posterior one Gaussian, once its symmetries are removed?

    Gaussians of samples as they are and aligned, as in arXiv 2401.00611: deviations, accuracy of means and draws,
    pruning, merging, and of chains the convergence.
    """
    from ckptzoo.studies.compact import compact as compute

    chosen, other = opened(zoo, where), None if variational is None else opened(variational)
    labelled, network = _labelled(chosen, set, data, statistics, inputs), _network(chosen, module)
    question = partial(compute, chosen, labelled, variational=other, draws=draws, module=network, seed=seed)
    _answer(question, "fitting Gaussians", output, as_json)


def pairs(
    zoo: ZooAddress,
    gauge: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Bring all into this gauge before.", autocompletion=complete_gauges),
    ] = None,
    nearest: Annotated[int, typer.Option(metavar="N", min=1, help="Nearest pairs that are listed and joined.")] = 100,
    barriers: Annotated[bool, typer.Option(help="Measure barriers of the nearest and of as many random pairs.")] = True,
    set: Set = None,
    data: Data = None,
    inputs: LabelledFile = None,
    module: Module = None,
    statistics: Statistics = 10_000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the random pairs.")] = 0,
    output: Output = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """How far apart are all pairs of members modulo permutations, and are the nearest connected?

    Exact, of networks such as OptuNet and perceptrons with one hidden layer.
    """
    from ckptzoo.studies.pairs import pairs as compute
    from ckptzoo.symmetry import gauge_named

    chosen = opened(zoo, where)
    labelled = _labelled(chosen, set, data, statistics, inputs) if barriers else None
    network = _network(chosen, module)
    scaled = None if gauge is None else gauge_named(gauge, "pairs")
    question = partial(compute, chosen, labelled, gauge=scaled, nearest=nearest, module=network, seed=seed)
    _answer(question, "joining pairs", output, as_json)


def _labelled(zoo: "Zoo", set: str | None, data: Path | None, statistics: int, inputs: Path | None) -> "Labelled":
    """The labelled inputs of a zoo, or those in the user's own file."""
    from ckptzoo.derive.labelled import Labelled, read_inputs
    from ckptzoo.hub.contributions.inputs import labelled_of

    if inputs is None:
        return labelled_of(zoo, set, data=data, statistics=statistics)
    if data is not None:
        raise typer.BadParameter("--data is for sets that are known by name; leave it out, or --inputs.")
    read, targets = read_inputs(inputs)
    if targets is None:
        raise typer.BadParameter(f"{inputs}: expected an array targets beside inputs, got none.")
    return Labelled(set or inputs.stem, read, targets)


def _network(zoo: "Zoo", module: str | None) -> Any:
    """The user's own network; None where none is named."""
    if module is None:
        return None
    from ckptzoo.hub.contributions.evaluation import own_network

    return own_network(zoo.arch, module)


def _answer(question: Callable[..., "StudyResult"], said: str, output: Path | None, as_json: bool) -> None:
    """Answer a question while a progress bar says what is done, and print the result."""
    with bar(said) as progress:
        result = question(progress=progress)
    print_study(result, output, as_json)
