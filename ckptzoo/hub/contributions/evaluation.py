"""How networks are evaluated: which test set they are shown, and how its pixels are scaled.

What networks score on a test set: forward passes with torch, one checkpoint after another.

The accuracy that rows state, held against one that is measured here.
"""

import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.errors import MissingExtraError, Problem, SpecError, SymmetryError, ZooError
from ckptzoo.hub import test_sets
from ckptzoo.hub.contributions.report import Check, check_result
from ckptzoo.hub.contributions.row_checks import extra_of
from ckptzoo.hub.contributions.target_zoo import Weights, batches
from ckptzoo.hub.test_sets import HeldOut
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure import predictions
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import trace
from ckptzoo.text import Progress, counted

if TYPE_CHECKING:
    from torch import nn

KEY = "evaluation"
"""Under which a row's ``extra`` says how its figures were measured."""
_CHANNELS = 16


@dataclass(frozen=True)
class Evaluation:
    """Inputs are ``(pixel / 255 - mean) / std``.

    Parameters
    ----------
    dataset : the data set whose test images are shown, such as ``mnist``.
    mean, std : one number for all channels or one a channel.
    """

    dataset: str
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def to_json(self) -> dict[str, Any]:
        """As it stands in a row's ``extra``."""
        return {"dataset": self.dataset, "mean": list(self.mean), "std": list(self.std)}

    def __str__(self) -> str:
        return f"{self.dataset}, mean {_shown(self.mean)}, std {_shown(self.std)}"


def evaluation_of(extra: Mapping[str, Any], dataset: str | None) -> Evaluation | None:
    """What a row says of its evaluation: what ``contribute`` wrote, or the numbers of a builder's recipe.

    Strangers wrote it: what makes no sense is as good as nothing.
    """
    told = extra.get(KEY, extra)
    if not isinstance(told, Mapping):
        return None
    told = cast(Mapping[str, Any], told)
    name = told.get("dataset", dataset)
    mean, std = numbers(told.get("mean")), numbers(told.get("std"))
    if not isinstance(name, str) or not mean or not std or min(std) <= 0 or len({1, len(mean), len(std)}) > 2:
        return None
    return Evaluation(name, mean, std)


def evaluations(zoo: Zoo) -> list[Evaluation | None]:
    """The evaluation of each checkpoint by its own row; None where it says nothing."""
    rows = zoo.metadata.select(["dataset", "extra"]).to_pylist()
    return [evaluation_of(extra_of(row["extra"]) or {}, row["dataset"]) for row in rows]


def of_recipe(zoo: Zoo, recipe: str) -> Evaluation | None:
    """How a zoo's checkpoints of a recipe are evaluated, if all that say so agree."""
    rows = zoo.contents.raw.rows.select(["recipe", "dataset", "extra"]).to_pylist()
    told = {(row["dataset"], row["extra"]) for row in rows if row["recipe"] == recipe}
    found = {evaluation_of(extra_of(extra) or {}, dataset) for dataset, extra in told} - {None}
    return found.pop() if len(found) == 1 else None


def numbers(value: object) -> tuple[float, ...] | None:
    """Finite numbers, one or several; None where it is anything else."""
    listed = list(cast(Sequence[object], value)) if isinstance(value, list | tuple) else [value]
    if not 1 <= len(listed) <= _CHANNELS:
        return None
    if not all(isinstance(item, int | float) and not isinstance(item, bool) for item in listed):
        return None
    made = tuple(float(cast(float, item)) for item in listed)
    return made if all(math.isfinite(item) for item in made) else None


def _shown(values: tuple[float, ...]) -> str:
    return json.dumps(values if len(values) > 1 else sum(values))


COLUMNS = ("test_loss", "test_accuracy", "test_nll", "test_brier", "test_ece")
"""What is measured of a classifier."""
_BATCH_BYTES = 8 * 2**20
"""Inputs that go through a network at a time, in bytes."""
_STEP = "Name a file of your own with --module FILE.py:NAME; NAME() makes the network."

Factory = Callable[[], "nn.Module"]


class Evaluator:
    """Measures checkpoints of one architecture on one test set.

    Parameters
    ----------
    arch : the tensors that a checkpoint has.
    factory : makes the network, freshly initialised.
    heldout : the test set.
    evaluation : how its pixels are scaled.

    Raises
    ------
    SpecError
        The network has other tensors than the architecture.
    ZooError
        It does not take the images, or its outputs are no scores of the labels.
    """

    def __init__(self, arch: Architecture, factory: Factory, heldout: HeldOut, evaluation: Evaluation) -> None:
        torch = _torch()
        self._arch, self._heldout, self._evaluation = arch, heldout, evaluation
        self._torch, self._module = torch, factory().eval()
        self._check_names()
        shape = heldout.images.shape[1:]
        channels = {len(evaluation.mean), len(evaluation.std), 1} - {1}
        if channels - {shape[0]}:
            got = f"{max(channels)} for images of {shape[0]}"
            raise ZooError(f"evaluation: mean and std: expected one number or one a channel, got {got}. Correct them.")
        wanted = arch.input_shape
        fits = wanted is not None and np.prod(wanted) == np.prod(shape)
        self._shape = tuple(wanted) if wanted is not None and fits else shape
        self._step = max(1, _BATCH_BYTES // (4 * int(np.prod(shape))))

    def columns(self, weights: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        """Every measured column of K checkpoints, ``{column: (K,)}``.

        Parameters
        ----------
        weights : stacked tensors (K, *shape) of the architecture's names; half precision is computed in float32.

        Notes
        -----
        K times N forward passes, in evaluation mode and float32; memory of 8 MiB of inputs. Figures of checkpoints
        whose outputs are not finite are not numbers.
        """
        count = len(next(iter(weights.values())))
        made: dict[str, list[float]] = {name: [] for name in COLUMNS}
        for row in range(count):
            logs = self._log_probabilities({name: array[row] for name, array in weights.items()})
            labels = self._heldout.labels
            with np.errstate(invalid="ignore", over="ignore"):
                nll = float(predictions.nll(logs, labels))
                found = {
                    "test_loss": nll,
                    "test_accuracy": float(predictions.accuracy(logs, labels)),
                    "test_nll": nll,
                    "test_brier": float(predictions.brier(logs, labels)),
                    "test_ece": float(predictions.ece(logs, labels)),
                }
            for name, value in found.items():
                made[name].append(value)
        return {name: np.array(values) for name, values in made.items()}

    def _log_probabilities(self, weights: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """(N, C) for one checkpoint."""
        torch = self._torch
        state: dict[str, Any] = {}
        for tensor in self._arch.tensors:
            array = weights[tensor.name]
            floating = array.dtype.kind not in "iub"
            held = torch.from_numpy(np.array(array, np.float32 if floating else None))
            for name in (tensor.name, *tensor.aliases):
                state[name] = held
        outputs: list[NDArray[np.float64]] = []
        with torch.inference_mode():
            for at in range(0, len(self._heldout), self._step):
                seen = torch.from_numpy(self._seen(self._heldout.images[at : at + self._step]))
                found = self._forward(state, seen)
                outputs.append(torch.log_softmax(found.double(), -1).numpy())
        return np.concatenate(outputs)

    def _seen(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """What the network sees of raw pixels, rounded once."""
        mean, std = (np.array(values).reshape(-1, 1, 1) for values in (self._evaluation.mean, self._evaluation.std))
        return ((images / 255 - mean) / std).astype(np.float32).reshape(-1, *self._shape)

    def _forward(self, state: dict[str, Any], seen: Any) -> Any:
        try:
            found = self._torch.func.functional_call(self._module, state, (seen,), tie_weights=False)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            got = f"{type(error).__name__}: {error}"[:300]
            where = f"{self._arch.name}: inputs {tuple(seen.shape)}"
            raise ZooError(f"{where}: expected a network that takes them, got {got}. {_STEP}") from error
        least = int(self._heldout.labels.max()) + 1
        if not isinstance(found, self._torch.Tensor) or found.ndim != 2 or found.shape[1] < least:
            got = tuple(found.shape) if isinstance(found, self._torch.Tensor) else type(found).__name__
            raise ZooError(f"{self._arch.name}: outputs: expected (N, {least}) scores of labels, got {got}. {_STEP}")
        return found

    def _check_names(self) -> None:
        own = {name: tuple(value.shape) for name, value in self._module.state_dict().items()}
        held = {name: item.shape for item in self._arch.tensors for name in (item.name, *item.aliases)}
        problems: list[Problem] = []
        for name in sorted({*own, *held}):
            if own.get(name) != held.get(name):
                expected, got = (str(side.get(name, "no such tensor")) for side in (held, own))
                problems.append(Problem(f"module for {self._arch.name}", f"tensor {name!r}", expected, got, _STEP))
        if problems:
            raise SpecError(problems)


def factory_of(arch: Architecture, module: str | Factory | None) -> Factory | None:
    """What makes the network: one's own module, or that of ``ckptzoo.archs``; None where neither is known.

    Parameters
    ----------
    module : ``FILE.py:NAME``, a file of one's own and what in it makes the network when called without arguments; or
        that function itself. The file is executed.

    Raises
    ------
    ZooError
        There is no such file or name, or the file fails.
    """
    if callable(module):
        return module
    if module is not None:
        return _loaded(module)
    if not archs.known(arch.forward):
        return None
    _torch()
    return archs.get(arch.forward)


def traced(arch: Architecture, factory: Factory) -> Symmetry | None:
    """The table of symmetries of a network of one's own, verified on its outputs; None where none can be had.

    Needs the shape of an input in the architecture, and a network that has the architecture's tensors.
    """
    torch = _torch()
    if arch.input_shape is None:
        return None
    try:
        found = trace(factory().eval(), torch.zeros(2, *arch.input_shape))
        found.symmetry.check(arch)
    except (SymmetryError, SpecError):
        return None
    own, held = ({item.name: item.shape for item in one.tensors} for one in (found.architecture, arch))
    return found.symmetry if own == held else None


def _loaded(text: str) -> Factory:
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py") or not Path(path).is_file():
        raise ZooError(f"{text}: module: expected FILE.py:NAME, got no such file. {_STEP}")
    spec = importlib.util.spec_from_file_location(f"ckptzoo_user_{Path(path).stem}", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(made)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise ZooError(f"{path}: module: expected a file that can be executed, got {got}. Correct it.") from error
    found: Any = getattr(made, name, None)
    if not callable(found):
        raise ZooError(f"{path}: {name}: expected a class or function, got {type(found).__name__}. {_STEP}")
    return cast(Factory, found)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error
    return torch


STATED = 1e-3
"""A measured accuracy that a row states may differ by so much from one measured here, as machines round."""
CLAIMED = 5e-3
"""One that is claimed may differ by so much, as people round."""

Figures = dict[str, float]


@dataclass
class EvaluatorPool:
    """Measures checkpoints where their data set and their forward function are at hand.

    Parameters
    ----------
    arch : of the checkpoints.
    module : ``FILE.py:NAME`` of one's own, or a factory; None for that of ``ckptzoo.archs``.
    data : where test sets lie; None for the folder of ``CKPTZOO_DATA``.
    """

    arch: Architecture
    module: str | Factory | None = None
    data: str | Path | None = None
    _judges: dict[Evaluation, Evaluator | None] = field(default_factory=dict)
    _sets: dict[str, HeldOut | None] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def measured(self, weights: Weights, evaluation: Evaluation | None) -> list[Figures | None]:
        """Figures of K checkpoints; None where they cannot be measured, ``reasons`` says why."""
        count = len(next(iter(weights.values())))
        judge = self._judge(evaluation)
        if judge is None:
            return [None] * count
        found = judge.columns(weights)
        return [{name: float(found[name][row]) for name in COLUMNS} for row in range(count)]

    def _judge(self, evaluation: Evaluation | None) -> Evaluator | None:
        if evaluation is None:
            self._note("no row or card says which test set and which scaling of its pixels")
            return None
        if evaluation not in self._judges:
            self._judges[evaluation] = self._made(evaluation)
        return self._judges[evaluation]

    def _made(self, evaluation: Evaluation) -> Evaluator | None:
        if evaluation.dataset not in self._sets:
            self._sets[evaluation.dataset] = test_sets.find(evaluation.dataset, self.data)
        images = self._sets[evaluation.dataset]
        if images is None:
            variable = test_sets.FOLDER_VARIABLE
            self._note(f"no test set of {evaluation.dataset} at hand (--data FOLDER or {variable} names where it is)")
            return None
        factory = factory_of(self.arch, self.module)
        if factory is None:
            self._note(f"ckptzoo.archs has no forward function for {self.arch.name} (--module FILE.py:NAME gives one)")
            return None
        return Evaluator(self.arch, factory, images, evaluation)

    def digest(self, evaluation: Evaluation) -> str | None:
        """The digest of a test set that was used."""
        found = self._sets.get(evaluation.dataset)
        return None if found is None else found.digest

    @property
    def used(self) -> str:
        """On what was measured, for people."""
        told = [str(evaluation) for evaluation, judge in self._judges.items() if judge is not None]
        return "; ".join(told[:3]) + (f" and {len(told) - 3:,} others" if len(told) > 3 else "")

    def _note(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


def measure(
    zoo: Zoo, bench: EvaluatorPool, evaluations: list[Evaluation | None], progress: Progress | None = None
) -> dict[str, Figures]:
    """Figures of a zoo's checkpoints by id, of those that can be measured."""
    made: dict[str, Figures] = {}
    at = 0
    for ids, weights in batches(zoo):
        for row, name in enumerate(ids):
            (found,) = bench.measured({key: array[row : row + 1] for key, array in weights.items()}, evaluations[at])
            at += 1
            if found is not None:
                made[name] = found
            if progress is not None:
                progress(at, len(zoo))
    return made


def accuracy(zoo: Zoo, measured: Mapping[str, Figures], bench: EvaluatorPool) -> Check:
    """Stated and claimed accuracies agree with those that were measured.

    A stated one (``test_accuracy``) may differ by 0.001, which is 10 of 10,000 images; a claimed one by 0.005.
    """
    wrong: list[str] = []
    for row in zoo.metadata.select(["id", "test_accuracy", "claimed_test_accuracy"]).to_pylist():
        if (found := measured.get(row["id"])) is None:
            continue
        mine = found["test_accuracy"]
        for column, most in (("test_accuracy", STATED), ("claimed_test_accuracy", CLAIMED)):
            said = row[column]
            if said is not None and not abs(said - mine) <= most and not (said != said and mine != mine):
                wrong.append(f"{row['id']}: {column} {said:.4f}, measured {mine:.4f}")
    if not measured and not wrong:
        return Check("accuracy", "not done", "; ".join(bench.reasons) or "nothing to measure")
    values = np.array([found["test_accuracy"] for found in measured.values()])
    finite = values[~np.isnan(values)]
    spread = f", {finite.min():.2%} to {finite.max():.2%}" if len(finite) else ""
    left = len(zoo) - len(measured)
    told = f"; {counted(left, 'other')} not measured: {'; '.join(bench.reasons)}" if left else ""
    return check_result(
        "accuracy", wrong, f"measured of {counted(len(measured), 'checkpoint')}{spread}, on {bench.used}{told}"
    )
