"""``ckptzoo study``, the questions that are put to a whole zoo, and ``ckptzoo mmd``, which compares two."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.completion import (
    complete_condition,
    complete_folders,
    complete_others,
    complete_variants,
    complete_zoos,
)
from ckptzoo.cli.loss_studies import barriers, compact, landscape, pairs, steps, transpositions
from ckptzoo.cli.options import (
    AsJson,
    ResultOptions,
    StudyOptions,
    VariantName,
    Where,
    ZooAddress,
    bar,
    check_writable,
    expand_dataclasses,
    opened,
    print_result,
)
from ckptzoo.cli.ray_shares import On, work_on_ray

if TYPE_CHECKING:
    from ckptzoo.loader.zoo import Zoo

Studied = Annotated[
    str,
    typer.Option("--variant", metavar="NAME", help="The derived variant to study.", autocompletion=complete_variants),
]
_FORMULATIONS = ("pinned", "eval_chain", "volume")
"""The values of ``ckptzoo.symmetry.min_mass``, which is not imported for the shell's completion."""

study = typer.Typer(name="study", help="Put a question to a zoo.", rich_markup_mode=None)


@study.command()
@expand_dataclasses
def symmetries(zoo: ZooAddress, variant: Studied = "canonical", *, shown: StudyOptions) -> None:
    """How much of a zoo is symmetry?

    Counts of the symmetries, how well the gauge is defined, and how far raw checkpoints are from it.
    """
    shown.answer("symmetries", shown.opened(zoo), variant, said="reading weights", nbytes=True)


class OrderKey(StrEnum):
    """The key by which neurons are ordered."""

    gauge = "gauge"
    largest_weight = "largest-weight"


@study.command()
@expand_dataclasses
def permutations(
    zoo: ZooAddress,
    variant: Studied = "canonical",
    key: Annotated[
        OrderKey,
        typer.Option(
            help="Order neurons by what the gauge sorts by, or by their largest incoming weight as trained, as in "
            "arXiv 2310.08287, which needs no variant."
        ),
    ] = OrderKey.gauge,
    *,
    shown: StudyOptions,
) -> None:
    """How does the order of the neurons move during training?

    Follows members from kept step to kept step; build them with --keep-steps.
    """
    shown.answer("permutations", shown.opened(zoo), variant, key=key.value, said="following members")


@study.command()
@expand_dataclasses
def mass(
    zoo: ZooAddress,
    formulation: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What may be rescaled before BatchNorm: nothing (pinned), filters against gains (eval_chain), or "
            "filters of a layer against each other (volume).",
            autocompletion=lambda incomplete: [name for name in _FORMULATIONS if name.startswith(incomplete)],
        ),
    ] = "pinned",
    convex: Annotated[
        int, typer.Option(metavar="N", min=0, help="Solve N networks by cvxpy too, and compare the optima.")
    ] = 0,
    *,
    shown: StudyOptions,
) -> None:
    """How much lighter could the same networks be?

    Masses (sums of squared weights) as trained and at the certified minimum over scales.
    """
    shown.answer("mass", shown.opened(zoo), formulation=formulation, convex=convex, said="minimising masses")


@study.command()
@expand_dataclasses
def marginals(zoo: ZooAddress, variant: Studied = "canonical", *, shown: StudyOptions) -> None:
    """How are the weights of each layer distributed, with and without symmetries?

    Densities, Kolmogorov-Smirnov tests within and across orbits of the permutations, and principal components.
    """
    shown.answer("marginals", shown.opened(zoo), variant, said="reading weights", nbytes=True)


@study.command()
@expand_dataclasses
def modes(zoo: ZooAddress, variant: Studied = "canonical", *, shown: StudyOptions) -> None:
    """How many modes does the posterior have?

    What symmetries alone make of one mode, and what mean shift finds, over its bandwidth.
    """
    shown.answer("modes", shown.opened(zoo), variant, said="shifting means")


@study.command()
@expand_dataclasses
def predict_accuracy(
    zoo: ZooAddress,
    variant: Studied = "canonical",
    target: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column to predict; claimed_test_accuracy for imported zoos.")
    ] = "test_accuracy",
    splits: Annotated[int, typer.Option(metavar="N", min=1, help="Random splits.")] = 5,
    copies: Annotated[
        int, typer.Option(metavar="N", min=0, help="Permuted copies of each training network, in one of the rows.")
    ] = 4,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of splits, permutations and trees.")] = 0,
    *,
    shown: StudyOptions,
) -> None:
    """How well do weights alone tell a network's accuracy?

    Ridge regression and trees on statistics of the weights and on the weights, as trained and in a gauge, split by
    member; and what a split of checkpoints would claim.
    """
    options: dict[str, Any] = {"target": target, "splits": splits, "copies": copies, "seed": seed}
    shown.answer("predict_accuracy", shown.opened(zoo), variant, **options, said="fitting regressors")


@study.command()
@expand_dataclasses
def toy(zoo: ZooAddress, *, shown: StudyOptions) -> None:
    """What do symmetries do to the posterior of a perceptron with two neurons?

    The density of its two last weights: as trained, at equal incoming norms, and in order.
    """
    shown.answer("toy", shown.opened(zoo), said="reading weights")


@study.command()
@expand_dataclasses
def ensembles(
    zoo: ZooAddress,
    set: Annotated[
        str | None,
        typer.Option(
            "--set",
            metavar="SET",
            help="The predictions to score; by default the first whole set with labels.",
        ),
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            "--ood",
            metavar="SET",
            help="A set of other inputs, to be distinguished from these; more than one is possible. By default all "
            "without labels.",
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            "--reference", metavar="NAME=ACCURACY", help="An accuracy from elsewhere, 0 to 1, to be shown too."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the order that makes ensembles.")] = 0,
    *,
    shown: StudyOptions,
) -> None:
    """How good are ensembles, and from which size on do they gain no more?

    Single members and averages of 2, 4, 8, ... of them, from stored predictions; ckptzoo predict makes these.
    """
    options: dict[str, Any] = {"ood": ood, "references": dict(map(_reference, reference or ())), "seed": seed}
    shown.answer("ensembles", shown.opened(zoo), set, **options, said="reading predictions", nbytes=True)


@study.command()
@expand_dataclasses
def posteriors(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A zoo of independently trained members.",
            show_default=False,
            autocompletion=complete_zoos,
        ),
    ],
    samples: Annotated[
        str,
        typer.Argument(
            metavar="SAMPLES",
            help="A zoo of draws that name their method.",
            show_default=False,
            autocompletion=complete_zoos,
        ),
    ],
    set: Annotated[
        str | None,
        typer.Option("--set", metavar="NAME", help="The predictions to score.  [default: the first with labels]"),
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Predictions on other inputs, to be distinguished; repeat for more of them."),
    ] = None,
    modes: Annotated[int, typer.Option(min=2, help="How many modes stand for several.")] = 10,
    draws: Annotated[int, typer.Option(min=1, help="Draws of each of several modes.")] = 10,
    ensemble: Annotated[int, typer.Option(min=2, help="Members of an ensemble.")] = 100,
    replicates: Annotated[int, typer.Option(min=1, help="The greatest number of replicates of each figure.")] = 3,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the choice of members for ensembles.")] = 0,
    *,
    shown: ResultOptions,
) -> None:
    """Compare approximate posteriors with independently trained members.

    For each method, around one mode and around several: the distance in weights to the target, as trained and with
    symmetries removed, and accuracy, likelihood, calibration, detection and mutual information of its predictions,
    beside the figures of arXiv 2310.08287 where it has some.
    """
    options: dict[str, Any] = {
        "ood": ood,
        "modes": modes,
        "draws": draws,
        "ensemble": ensemble,
        "replicates": replicates,
        "seed": seed,
    }
    shown.answer("posteriors", opened(target), opened(samples), set, **options, said="comparing")


@study.command()
@expand_dataclasses
def collapse(
    zoo: ZooAddress,
    set: Annotated[
        str | None,
        typer.Option(
            "--set",
            metavar="SET",
            help="Predictions on the networks' own inputs; by default the first whole set with labels.",
        ),
    ] = None,
    ood: Annotated[
        str | None,
        typer.Option(
            "--ood", metavar="SET", help="Predictions on other inputs; by default the first whole set without labels."
        ),
    ] = None,
    permutations: Annotated[
        int, typer.Option(metavar="N", min=0, help="The number of random exchanges of members, for p-values.")
    ] = 1000,
    resamples: Annotated[
        int, typer.Option(metavar="N", min=0, help="The number of resamples of members, for intervals.")
    ] = 1000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of exchanges and resamples.")] = 0,
    *,
    shown: StudyOptions,
) -> None:
    """Do pairs of members that differ in distribution differ out of it, too?

    The mutual information of every pair, from stored predictions; ckptzoo predict makes these.
    """
    options: dict[str, Any] = {"permutations": permutations, "resamples": resamples, "seed": seed}
    shown.answer("collapse", shown.opened(zoo), set, ood, **options, said="comparing members")


@study.command()
@expand_dataclasses
def independence(
    zoo: ZooAddress,
    pairs: Annotated[int, typer.Option(metavar="N", min=1, help="The greatest number of pairs.")] = 4096,
    disjoint: Annotated[
        bool,
        typer.Option(
            "--disjoint/--all-pairs",
            help="Compare each member with one other, so that p-values can be judged together, or with every one.",
        ),
    ] = True,
    permutations: Annotated[int, typer.Option(metavar="N", min=99, help="Random permutations for a p-value.")] = 999,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of pairs and permutations.")] = 0,
    *,
    shown: StudyOptions,
) -> None:
    """Did members start from independent random weights?

    An exact permutation test from weights alone, as in arXiv 2502.12292: pairs of members, or of modes of draws, and
    the first against the last checkpoint of each.
    """
    options: dict[str, Any] = {"pairs": pairs, "disjoint": disjoint, "permutations": permutations, "seed": seed}
    shown.answer("independence", shown.opened(zoo), **options, said="testing pairs")


@study.command()
@expand_dataclasses
def novelty(
    generated: Annotated[
        str,
        typer.Argument(
            metavar="GENERATED",
            help="A zoo of generated checkpoints.",
            show_default=False,
            autocompletion=complete_zoos,
        ),
    ],
    zoo: Annotated[
        str,
        typer.Argument(
            metavar="ZOO",
            help="The zoo that they may be copies of, as a rule what the generator was trained on.",
            show_default=False,
            autocompletion=complete_zoos,
        ),
    ],
    members: Annotated[
        int, typer.Option(metavar="N", min=8, help="Members whose distances to others are measured.")
    ] = 512,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the noise of copies.")] = 0,
    *,
    shown: ResultOptions,
) -> None:
    """Are generated checkpoints new, or copies of members?

    Distances to the nearest members modulo the symmetries of the network, beside those between independent members and
    those of copies with noise, with p-values, as generators of weights often replicate what they were trained on
    (arXiv 2506.07998).
    """
    shown.answer("novelty", opened(generated), opened(zoo), members=members, seed=seed, said="comparing")


@study.command()
@expand_dataclasses
def reference(
    zoo: Annotated[
        str,
        typer.Argument(
            metavar="ZOO", help="Draws of the chains of a reference.", show_default=False, autocompletion=complete_zoos
        ),
    ],
    samples: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SAMPLES...",
            help="Zoos of draws that name their method, or of independent members.",
            show_default=False,
            autocompletion=complete_zoos,
        ),
    ] = None,
    set: Annotated[
        str | None,
        typer.Option("--set", metavar="NAME", help="The predictions to compare.  [default: the first with labels]"),
    ] = None,
    modes: Annotated[int, typer.Option(min=2, help="How many modes stand for several.")] = 10,
    draws: Annotated[int, typer.Option(min=1, help="Draws of each of several modes.")] = 10,
    replicates: Annotated[int, typer.Option(min=1, help="The greatest number of replicates of each figure.")] = 3,
    shuffles: Annotated[
        int, typer.Option(metavar="N", min=0, help="Random orders of the draws, whose R-hat is shown beside.")
    ] = 9,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of orders, and of halves of the chains.")] = 0,
    *,
    shown: ResultOptions,
) -> None:
    """Have the chains of a reference posterior converged, and how near do other methods come to it?

    R-hat and effective sample sizes of logits and of sums of weights that no symmetry changes. Then, for each method,
    the agreement and total variation of its predictions, as in arXiv 2104.14421, and the discrepancy of its weights.
    """
    options: dict[str, Any] = {"modes": modes, "draws": draws, "replicates": replicates}
    options |= {"shuffles": shuffles, "seed": seed}
    others = [opened(name) for name in samples or ()]
    shown.answer("reference", opened(zoo), others, set, **options, said="comparing")


# in the order of ckptzoo study --help
for _command in (barriers, transpositions, steps, compact, pairs, landscape):
    study.command()(_command)


def _reference(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    try:
        return name, float(value)
    except ValueError:
        raise typer.BadParameter(f"--reference: expected NAME=ACCURACY, got {text!r}.") from None


class Kernels(StrEnum):
    """The distances that the bandwidths come from."""

    paper = "paper"
    fixed = "fixed"


def mmd(
    context: typer.Context,
    zoo: Annotated[
        str,
        typer.Argument(
            metavar="ZOO_X", help="The target's folder.", show_default=False, autocompletion=complete_folders
        ),
    ],
    other: Annotated[
        str,
        typer.Argument(
            metavar="ZOO_Y",
            help="The folder of the zoo to compare with it.",
            show_default=False,
            autocompletion=complete_folders,
        ),
    ],
    variant: VariantName = None,
    variant_y: Annotated[
        str | None,
        typer.Option(
            "--variant-y",
            metavar="NAME",
            help="The gauge of the second zoo's weights.  [default: that of the first]",
            autocompletion=complete_others,
        ),
    ] = None,
    where: Where = None,
    where_y: Annotated[
        str | None,
        typer.Option(
            "--where-y", metavar="CONDITION", help="The same for the second zoo.", autocompletion=complete_condition
        ),
    ] = None,
    bandwidths: Annotated[
        Kernels,
        typer.Option(
            help="paper: from distances between both; fixed: within the first, so that several can be compared with it."
        ),
    ] = Kernels.paper,
    permutations: Annotated[
        int, typer.Option(metavar="N", min=0, help="The number of random exchanges of checkpoints, for p-values.")
    ] = 0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the exchanges.")] = 0,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compute in torch there, such as cuda or cpu.  [default: numpy]")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Where mmd.png and mmd.json go.  [default: mmd; nowhere without matplotlib]",
        ),
    ] = None,
    saved_in: Annotated[
        Path | None,
        typer.Option(
            "--saved", metavar="FOLDER", help="Keep the distances of each block of columns there, and use those kept."
        ),
    ] = None,
    share: Annotated[
        str,
        typer.Option(
            metavar="I/N", help="Only measure every N-th block, beginning with the I-th, counted from 0; needs --saved."
        ),
    ] = "",
    on: On = None,
    as_json: AsJson = False,
) -> None:
    """Measure how far apart two sets of checkpoints are.

    The maximum mean discrepancy of every layer, with twenty kernels, and its average over layers, as arXiv 2310.08287
    computes them, in a gauge or as trained. Every draw of a posterior counts, and of a training run the last step.
    """
    from ckptzoo.errors import MissingExtraError, require
    from ckptzoo.studies.discrepancy import mmd as compare

    if (share or on is not None) and saved_in is None:
        raise typer.BadParameter("expected --saved FOLDER, where all who share the work keep what they measured.")
    if share:
        assert saved_in is not None
        _mmd_share(opened(zoo, where), opened(other, where_y), saved_in, share, variant or "raw", variant_y, device)
        return
    if on is not None:
        work_on_ray(context, on)
    drawn = True
    try:
        require("matplotlib", "plot")
    except MissingExtraError:  # before the weights are read; without -o the figures are printed all the same
        if output is not None:
            raise
        drawn = False
    check_writable(output or Path("mmd") if drawn else None)
    first, second = opened(zoo, where), opened(other, where_y)
    with bar("reading weights", nbytes=True) as progress:
        result = compare(
            first,
            second,
            variant or "raw",
            variant_y,
            bandwidths=bandwidths.value,
            permutations=permutations,
            seed=seed,
            device=device,
            saved_in=saved_in,
            progress=progress,
        )
    print_result(result, as_json, result.plot(output or "mmd") if drawn else [])


def _mmd_share(
    first: "Zoo", second: "Zoo", saved_in: Path, share: str, variant: str, variant_y: str | None, device: str | None
) -> None:
    """Measure a share of the blocks, and report how many are there."""
    from ckptzoo.studies.discrepancy import measure_share
    from ckptzoo.text import parse_share

    with bar("reading weights", nbytes=True) as progress:
        done, count = measure_share(
            first, second, saved_in, parse_share(share), variant, variant_y, device=device, progress=progress
        )
    then = "The same command without --share has the result." if done == count else "Others are missing."
    print(f"{saved_in}: {done:,} of {count:,} blocks. {then}")
