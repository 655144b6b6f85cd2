"""The parts of the report: which zoos and inputs each takes, the study that it asks, and what the papers say there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import ckptzoo
from builders.report import claims
from builders.report.claims import PaperClaim
from ckptzoo.derive.labelled import Labelled
from ckptzoo.studies.barriers import barriers
from ckptzoo.studies.collapse import collapse
from ckptzoo.studies.compact import compact
from ckptzoo.studies.marginals import marginals
from ckptzoo.studies.mass import mass
from ckptzoo.studies.permutations import permutations
from ckptzoo.studies.posteriors import REMOVALS, posteriors
from ckptzoo.studies.shared.result import StudyResult
from ckptzoo.studies.toy import toy
from ckptzoo.studies.transpositions import transpositions
from ckptzoo.text import Progress

PAPERS = {
    "2310.08287": "arXiv 2310.08287",
    "2310.10171": "arXiv 2310.10171",
    "2401.00611": "arXiv 2401.00611 (Xiao, Liu and Bamler)",
}
"""The papers by their number, in the order of the report."""


class Inputs(Protocol):
    """Zoos and images as a study takes them; ``sets`` are those of the part."""

    @property
    def sets(self) -> tuple[str, ...]: ...

    def zoo(self, name: str, variants: Sequence[str] = (), sets: Sequence[str] = ()) -> ckptzoo.Zoo:
        """Return a zoo that has these variants and predictions on these sets."""
        ...

    def every(self, pattern: str) -> list[ckptzoo.Zoo]:
        """Return all zoos whose folders' names match a pattern."""
        ...

    def labelled(self, zoo: ckptzoo.Zoo) -> Labelled:
        """Return the labelled test images of a zoo's data set."""
        ...


@dataclass(frozen=True)
class ReportPart:
    """A part of the report.

    Parameters
    ----------
    paper
        its number, a key of ``PAPERS``.
    names
        what ``--only`` calls it; the first makes it known among all parts of the paper.
    title
        its heading.
    claims
        rows of the table of verdicts.
    zoos
        names of the folders of zoos, or patterns of them.
    sets
        inputs on which stored outputs, or labels, are needed.
    study
        what is computed; None where there is no study.
    commands
        what does the same in a shell.
    makes
        what makes zoos that are missing.
    section
        of docs/studies.md.
    causes
        what is known of why figures differ.
    fallback
        taken for the last of ``sets`` where that is not there; empty where nothing can be.
    """

    paper: str
    names: tuple[str, ...]
    title: str
    claims: Sequence[PaperClaim]
    zoos: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    study: Callable[[Inputs, Progress], StudyResult] | None = None
    commands: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    section: str = ""
    causes: tuple[str, ...] = ()
    fallback: str = ""

    @property
    def key(self) -> str:
        """Its name among all parts, such as ``2310.08287-figure-4-left``."""
        return f"{self.paper}-{self.names[0]}"

    def with_fallback(self) -> "ReportPart":
        """The same part with its fallback for the last of its sets, in its commands too."""
        last = self.sets[-1]
        commands = tuple(command.replace(last, self.fallback) for command in self.commands)
        return replace(self, sets=(*self.sets[:-1], self.fallback), fallback="", commands=commands)

    def is_named(self, name: str) -> bool:
        """Whether ``--only`` with this name chooses it: its paper, one of its names, or the beginning of one."""
        return name in (self.paper, self.key) or any(own == name or own.startswith(f"{name}-") for own in self.names)


def _posteriors(target: str, options: Mapping[str, int]) -> Callable[[Inputs, Progress], StudyResult]:
    removed = tuple(variant for variant in REMOVALS.values() if variant != "raw")

    def study(inputs: Inputs, progress: Progress) -> StudyResult:
        own, *others = inputs.sets
        members, draws = (inputs.zoo(name, removed, inputs.sets) for name in (target, f"{target}-posteriors"))
        return posteriors(members, draws, own, ood=others, progress=progress, **options)

    return study


def _tables(
    dataset: str,
    architecture: str,
    zoo: str,
    title: str,
    sets: tuple[str, ...],
    options: Mapping[str, int] | None = None,
    **more: Any,
) -> ReportPart:
    """Return the part of Tables 1 and 2; ``options`` are those of the study, and of its command."""
    options = options or {}
    flags = "".join(f" --{name} {value}" for name, value in options.items())
    both = (zoo, f"{zoo}-posteriors")
    own = title.partition(" ")[0].lower().replace("-", "")
    return ReportPart(
        "2310.08287",
        (f"table-1-{own}", f"table-2-{own}"),
        f"Tables 1 and 2: {title}",
        claims.table_claims(dataset, architecture, title),
        both,
        sets,
        study=_posteriors(zoo, options),
        commands=(
            *(f"ckptzoo derive {name} --gauge {gauge}" for name in both for gauge in ("unit-norm", "first-weight")),
            *(f"ckptzoo predict {name} {' '.join(sets)} --data FOLDER" for name in both),
            f"ckptzoo study posteriors {' '.join(both)} --set {sets[0]} --ood {sets[1]}{flags}",
        ),
        section="approximate-posteriors",
        **more,
    )


_EXCHANGED = (
    "ECE and Brier score cannot be as printed in most rows: a Brier score summed over classes is at least "
    "(1 - accuracy) / 2. They are compared exchanged back."
)
_MMD = (
    "Published distances cannot be 100 MMD² of these kernels: draws of dropout around one mode share all layers but "
    "the last, so that the kernel of two draws is 1 there. How they were scaled, or of how many modes the draws were, "
    "is not known."
)
_NOT_STATED = (
    "The paper states neither the KL weight of its variational networks nor how the pixels of the out-of-distribution "
    "set are normalised; AUPR, FPR95 and OODMI depend on the latter."
)
_REPLICATES = (
    "One replicate has no deviation: between replicates AUPR and FPR95 of single modes vary by many points. "
    "`make posterior-mnist` makes three."
)
_WORDS = (
    PaperClaim(
        "Section 4.3",
        "several modes are better than one in MMD, accuracy and likelihood",
        claims.several_modes_are_better,
    ),
    PaperClaim("Section 4.3", "in ECE one mode is often better", claims.one_mode_is_better_calibrated),
    PaperClaim("Section 4.3", "several modes have higher IDMI and OODMI", claims.several_modes_are_more_diverse),
    PaperClaim(
        "Appendix B.4",
        "after ensembles Laplace has the best MMD, with and without symmetries",
        claims.laplace_is_nearest,
    ),
    PaperClaim("Appendix B.4", "Laplace is inferior to SWAG in performance", claims.laplace_predicts_worse_than_swag),
)


def _with_words(part: ReportPart) -> ReportPart:
    """Add what the paper says in words of its tables."""
    return replace(part, claims=(*part.claims, *_WORDS))


def _collapse(zoo: str) -> Callable[[Inputs, Progress], StudyResult]:
    return lambda inputs, progress: collapse(inputs.zoo(zoo, sets=inputs.sets), *inputs.sets, progress=progress)


def _collapse_commands(zoo: str, sets: tuple[str, str]) -> tuple[str, ...]:
    return (
        f"ckptzoo predict {zoo} {' '.join(sets)} --data FOLDER",
        f"ckptzoo study collapse {zoo} --set {sets[0]} --ood {sets[1]}",
    )


_MNIST, _CIFAR, _TINY = (
    ("mnist/test", "fashion-mnist/test"),
    ("cifar100/test", "svhn/test"),
    ("tinyimagenet/test", "textures/test"),
)
_NO_SVHN = "fashion-mnist-3x32x32/test"
_OTHER_SET = (
    "Where the data folder has no SVHN, Fashion-MNIST stands in its place, amid black margins and in three equal "
    "channels. Figures on it are not compared with the paper's."
)
_WIDTH_8 = "The zoo has ResNet-18s of an eighth of the published width, trained for six epochs: figures are marked so."
_SHORT_CHAINS = (
    "SGHMC has 12 epochs in place of 250, cSGHMC 12 of 200, SWAG 11 of 210, and variational steps one draw in place of "
    "three: builders/recipes/posterior/*-resnet18-8-100.toml."
)
_SPREAD = "in distribution the mutual information of pairs has a very low variance; out of distribution it is higher"

PARTS: tuple[ReportPart, ...] = (
    _with_words(
        _tables(
            "mnist",
            "optunet",
            "mnist-optunet",
            "MNIST - OptuNet",
            _MNIST,
            makes=("make posterior-mnist",),
            causes=(_EXCHANGED, _MMD, _NOT_STATED, _REPLICATES),
        )
    ),
    _tables(
        "cifar100",
        "resnet18-100",
        "cifar100-resnet18-w8",
        "CIFAR-100 - ResNet-18",
        _CIFAR,
        # of 32 members, three that modes start from and ten of an ensemble are left out of the target
        {"modes": 3, "ensemble": 10},
        fallback=_NO_SVHN,
        makes=(
            (
                "python -m builders posteriors cifar100-resnet18-w8 --members cards/cifar100-resnet18-w8 --modes 3 "
                "--one-mode-draws 10 --replicates 1 --ensemble 10 --to zoos/cifar100-resnet18-w8-posteriors "
                "--data FOLDER"
            ),
        ),
        causes=(_WIDTH_8, _SHORT_CHAINS, _OTHER_SET),
    ),
    _tables(
        "tinyimagenet",
        "resnet18-200",
        "tinyimagenet-resnet18",
        "TinyImageNet - ResNet-18",
        _TINY,
        makes=("python -m builders build tinyimagenet-resnet18 --members 128 --to zoos/tinyimagenet-resnet18",),
    ),
    ReportPart(
        "2310.08287",
        ("figure-1",),
        "Figure 1: the posterior of two neurons",
        (
            PaperClaim(
                "Figure 1",
                "exchanging both neurons mirrors the density at the diagonal, and ordering keeps one of the halves",
                claims.exchange_mirrors,
            ),
        ),
        ("toy",),
        study=lambda inputs, progress: toy(inputs.zoo("toy"), progress=progress),
        commands=("ckptzoo study toy toy",),
        makes=("python -m builders build toy --members 10000 --to zoos/toy",),
        section="the-posterior-of-two-neurons",
        causes=("The centres of the paper's classes are not published, so that places and shares of modes differ.",),
    ),
    ReportPart(
        "2310.08287",
        ("figure-2",),
        "Figure 2: the least mass",
        (
            PaperClaim("Figure 2, masses as trained", "mostly between 120 and 240", claims.mass_range),
            PaperClaim("Figure 2, excess over the least mass", "peaks near 30 %, reaches 60 %", claims.mass_excess),
            PaperClaim(
                "Figure 2, largest elements",
                "minimisation raises the largest elements of layers with fewer parameters",
                claims.mass_elements,
            ),
        ),
        ("mnist-optunet",),
        study=lambda inputs, progress: mass(inputs.zoo("mnist-optunet"), progress=progress),
        commands=("ckptzoo study mass mnist-optunet",),
        section="the-least-mass",
    ),
    ReportPart(
        "2310.08287",
        ("figure-3",),
        "Figure 3: functional collapse of ResNet-18",
        (
            PaperClaim("Figure 3 and section 5.1", _SPREAD, claims.spread_is_wider_outside),
            PaperClaim(
                "Figure 3 and section 5.1",
                "1,000 ResNet-18 on CIFAR-100 and SVHN: no significant correlation of both",
                claims.correlation_judge(expected=False),
            ),
        ),
        ("cifar100-resnet18-w8",),
        _CIFAR,
        _collapse("cifar100-resnet18-w8"),
        _collapse_commands("cifar100-resnet18-w8", _CIFAR),
        section="functional-collapse",
        causes=(_WIDTH_8, _OTHER_SET),
        fallback=_NO_SVHN,
    ),
    ReportPart(
        "2310.08287",
        ("figure-4-left",),
        "Figure 4, left: the order of neurons on MNIST",
        (
            PaperClaim(
                "Figure 4, left, and section 5.2",
                "changes of the order by the largest weight are scarce, gathered around points of instability",
                claims.changes_are_scarce,
            ),
            PaperClaim("Figure 4, left, and section 5.2", "almost none in the last phase", claims.last_is_still),
        ),
        ("mnist-optunet-trajectories",),
        study=lambda inputs, progress: permutations(
            inputs.zoo("mnist-optunet-trajectories"), key="largest-weight", progress=progress
        ),
        commands=("ckptzoo study permutations mnist-optunet-trajectories --key largest-weight",),
        section="the-order-of-neurons-during-training",
        causes=(
            (
                "Whether the paper takes absolute values of weights is not known; here their signs count, and biases "
                "do not. Scales move this order too, those of the gauge do not."
            ),
        ),
    ),
    ReportPart(
        "2310.08287",
        ("figure-4-right",),
        "Figure 4, right: the order of channels of ResNet-18",
        (
            PaperClaim(
                "Figure 4, right, and section 5.2",
                "much variation while the learning rate is high",
                claims.first_moves_much,
            ),
            PaperClaim(
                "Figure 4, right, and section 5.2", "no sign of permutations in the last part", claims.last_is_still
            ),
        ),
        ("cifar100-resnet18-w8",),
        study=lambda inputs, progress: permutations(
            inputs.zoo("cifar100-resnet18-w8"), key="largest-weight", progress=progress
        ),
        commands=("ckptzoo study permutations cifar100-resnet18-w8 --key largest-weight",),
        section="residual-networks",
        causes=(_WIDTH_8,),
    ),
    ReportPart(
        "2310.08287",
        ("figure-7", "figure-8"),
        "Figures 7 and 8: functional collapse of simpler models",
        (
            PaperClaim("Figures 7 and 8", _SPREAD, claims.spread_is_wider_outside),
            PaperClaim(
                "Section 5.1",
                "no correlation of ResNet-18, in contrast to simpler models: OptuNet",
                claims.correlation_judge(expected=True),
            ),
        ),
        ("mnist-optunet",),
        _MNIST,
        study=_collapse("mnist-optunet"),
        commands=_collapse_commands("mnist-optunet", _MNIST),
        section="functional-collapse",
    ),
    ReportPart(
        "2310.08287",
        ("figure-9",),
        "Figure 9: marginals of a perceptron on the UCI energy data",
        (PaperClaim("Figure 9", "marginals of each tensor", open="the figure's densities are not known as numbers"),),
        ("energy-mlp",),
        study=lambda inputs, progress: marginals(inputs.zoo("energy-mlp", ["canonical"]), progress=progress),
        commands=("ckptzoo derive energy-mlp", "ckptzoo study marginals energy-mlp"),
        makes=("python -m builders build energy-mlp --members 2048 --to zoos/energy-mlp --data FOLDER",),
        section="marginals",
    ),
    ReportPart(
        "2310.08287",
        ("propositions",),
        "Propositions 3 and 4: training is equivariant",
        (
            PaperClaim(
                "Propositions 3 and 4",
                "training from permuted initial weights gives permuted weights",
                open="no study; tests/builders/test_permuted_training.py trains so and compares",
            ),
        ),
    ),
    ReportPart(
        "2310.10171",
        ("barriers-mlp",),
        "Barriers of perceptrons on MNIST",
        (
            PaperClaim("Key result", "aligned variational solutions have no barrier", claims.zero_after_alignment),
            PaperClaim(
                "Section 5.1",
                "wider models have lower barriers, with and without alignment",
                claims.wider_is_lower,
            ),
            PaperClaim(
                "Abstract and section 5",
                "the results hold for different temperatures",
                claims.same_for_all("temperature"),
            ),
            PaperClaim(
                "Abstract and section 5",
                "the results hold for different prior variances",
                claims.same_for_all("prior"),
            ),
        ),
        ("mlp-*", "vi-*-gaussian"),
        ("mnist/test",),
        lambda inputs, progress: barriers(
            [(zoo, inputs.labelled(zoo)) for pattern in ("mlp-*", "vi-*-gaussian") for zoo in inputs.every(pattern)],
            pairs=8,
            draws=4,
            gauges=["min-mass"],
            progress=progress,
        ),
        ("ckptzoo study barriers mlp-* vi-*-gaussian --pairs 8 --draws 4 --gauge min-mass --data FOLDER",),
        (
            "python -m builders build mnist-mlp --architecture mlp-784-64-10 --members 16 --to zoos/mlp-64",
            (
                "python -m builders posterior bnn mnist-mlp --architecture mlp-784-64-10 --epochs 5 "
                "--set draws_per_step=1 --set temperature=1 --modes 8 --draws 1 --to zoos/vi-64-T1"
            ),
        ),
        "loss-barriers",
    ),
    ReportPart(
        "2310.10171",
        ("barriers-resnet",),
        "Barriers on CIFAR-10 and CIFAR-100",
        (
            PaperClaim("Key result", "perceptrons on CIFAR-10: no barrier", open="no zoo of these networks"),
            PaperClaim("Key result", "ResNet-20 on CIFAR-10: nearly none", open="no zoo of variational ResNet-20s"),
            PaperClaim("Section 5.1", "wider ResNet-20: lower after alignment alone", open="no zoo of several widths"),
            PaperClaim(
                "Key result", "CIFAR-100: no solutions without a barrier", open="no zoo of variational solutions"
            ),
        ),
        makes=("python -m builders estimate cifar100-resnet20 --members 16",),
        section="loss-barriers",
    ),
    ReportPart(
        "2401.00611",
        ("figure-2",),
        "Figure 2: planted permutations",
        (
            PaperClaim(
                "Figure 2, left three",
                "the number of transpositions is stable under training",
                claims.number_is_stable,
            ),
            PaperClaim("Figure 2, left three", "it correlates with the barrier", claims.number_goes_with_barrier),
            PaperClaim(
                "Figure 2, right",
                "it changes monotonically along the line between two models",
                claims.number_is_monotone,
            ),
        ),
        ("planted",),
        ("mnist/test",),
        lambda inputs, progress: transpositions(zoo := inputs.zoo("planted"), inputs.labelled(zoo), progress=progress),
        ("ckptzoo study transpositions planted --data FOLDER",),
        (
            (
                "python -m builders planted mnist-mlp --architecture mlp-784-128-10 "
                "--transpositions 0,1,2,4,8,16,32,48,64,96,112,127 --runs 5 --keep-steps 0,10,100,469 --to zoos/planted"
            ),
        ),
        "planted-permutations",
    ),
    ReportPart(
        "2401.00611",
        ("figure-3",),
        "Figure 3: one Gaussian",
        (
            PaperClaim(
                "Figure 3, left",
                "alignment makes the standard deviations of weights smaller",
                claims.alignment_narrows,
            ),
            PaperClaim(
                "Figure 3, right",
                "accuracy against pruning that keeps the weights of lowest sigma",
                claims.pruning_by_sigma,
            ),
            PaperClaim(
                "Summary",
                "q_r approximates the posterior closely, compared with q_d",
                claims.aligned_gaussian_is_closer,
            ),
        ),
        ("hmc",),
        ("mnist-14x14/test",),
        lambda inputs, progress: compact(zoo := inputs.zoo("hmc"), inputs.labelled(zoo), progress=progress),
        ("ckptzoo study compact hmc --data FOLDER",),
        ("python -m builders posterior hmc mnist14-mlp --modes 4 --draws 240 --to zoos/hmc",),
        "one-gaussian",
        causes=(
            (
                "With a prior of standard deviation 1 most weights are hardly determined, so that alignment narrows "
                "little. The curve of the right panel is not known as numbers."
            ),
        ),
    ),
)
"""All parts, in the order of the report."""
