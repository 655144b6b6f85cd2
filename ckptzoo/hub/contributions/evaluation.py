"""The evaluation of networks, and their figures on a test set.

``Evaluation`` names a test set and the scaling of its pixels; a ``CheckpointEvaluator`` measures checkpoints of one
architecture with it or with labelled inputs of one's own, one after another, with torch; an ``EvaluatorPool``
keeps those that a contribution needs.
"""

import copy
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs, image_sets
from ckptzoo.derive.labelled import Labelled
from ckptzoo.derive.predictions import digest_of_inputs
from ckptzoo.errors import Problem, SpecError, SymmetryError, ZooError, require
from ckptzoo.hub.contributions.matching import COUNTER, State
from ckptzoo.hub.contributions.target_zoo import Weights, batches
from ckptzoo.image_sets import ImageSet
from ckptzoo.image_sets.evaluation import Evaluation, evaluation_of
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure import predictions
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import trace
from ckptzoo.text import Progress, excerpt

if TYPE_CHECKING:
    from torch import nn

COLUMNS = ("test_loss", "test_accuracy", "test_nll", "test_brier", "test_ece")
"""Columns that are measured of a classifier."""
_BATCH_BYTES = 8 * 2**20
"""Bytes of inputs that go through a network at a time."""
_STEP = "Name a file of your own with --module FILE.py:NAME; NAME() makes the network."

Factory = Callable[[], "nn.Module"]
Figures = dict[str, float]
"""Measured columns of one checkpoint."""


def evaluations(zoo: Zoo) -> list[Evaluation | None]:
    """Return the evaluation of each checkpoint by its own row; None where it says nothing."""
    rows = zoo.metadata.select(["dataset", "extra"]).to_pylist()
    return [evaluation_of(parse_extra(row["extra"]) or {}, row["dataset"]) for row in rows]


def evaluation_of_recipe(zoo: Zoo, recipe: str) -> Evaluation | None:
    """Return the evaluation of a zoo's checkpoints of a recipe, if all rows that name one agree; else None."""
    rows = zoo.contents.raw.rows.select(["recipe", "dataset", "extra"]).to_pylist()
    stated = {(row["dataset"], row["extra"]) for row in rows if row["recipe"] == recipe}
    evaluations_found = {evaluation_of(parse_extra(extra) or {}, dataset) for dataset, extra in stated} - {None}
    return evaluations_found.pop() if len(evaluations_found) == 1 else None


class CheckpointEvaluator:
    """Measures checkpoints of one architecture on one test set.

    ``factory`` makes the network, freshly initialised; ``heldout`` is the test set: images, or inputs as the network
    takes them, for which ``evaluation`` (the scaling of pixels) is None. Raises ``SpecError`` where the network has
    other tensors than the architecture, ``ZooError`` where it does not take the inputs, or its outputs are no scores of
    the labels.
    """

    def __init__(
        self, arch: Architecture, factory: Factory, heldout: ImageSet | Labelled, evaluation: Evaluation | None
    ) -> None:
        torch = require("torch", "torch")
        self._arch, self._evaluation = arch, evaluation
        own = isinstance(heldout, Labelled)
        self._examples = heldout.inputs if own else heldout.images
        self._labels, self._set = (heldout.targets, heldout.set) if own else (heldout.labels, heldout.name)
        # evaluation mode: dropout is off, and BatchNorm uses its running statistics
        self._torch, self._module = torch, factory().eval()
        self._check_names()
        shape = self._examples.shape[1:]
        channels = set() if evaluation is None else {len(evaluation.mean), len(evaluation.std), 1} - {1}
        if channels - {shape[0]}:
            got = f"{max(channels)} for images of {shape[0]}"
            problem = Problem("evaluation", "mean and std", "one number or one a channel", got, "Correct them.")
            raise ZooError(problem)
        input_shape = arch.input_shape
        fits = input_shape is not None and np.prod(input_shape) == np.prod(shape)
        self._shape = tuple(input_shape) if input_shape is not None and fits else shape
        self._batch_size = max(1, _BATCH_BYTES // (4 * int(np.prod(shape))))

    def columns(self, weights: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        """Return every measured column of K checkpoints, ``{column: (K,)}``, from stacked tensors (K, *shape).

        There are K times N forward passes, in evaluation mode and float32 (half precision is converted), on 8 MiB of
        inputs at a time. Figures of checkpoints whose outputs are not finite are NaN.
        """
        count = len(next(iter(weights.values())))
        columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
        for row in range(count):
            log_probabilities = self._log_probabilities({name: array[row] for name, array in weights.items()})
            labels = self._labels
            # a diverged network has infinities and NaN in its outputs
            with np.errstate(invalid="ignore", over="ignore"):
                nll = float(predictions.nll(log_probabilities, labels))
                figures = {
                    "test_loss": nll,
                    "test_accuracy": float(predictions.accuracy(log_probabilities, labels)),
                    "test_nll": nll,
                    "test_brier": float(predictions.brier(log_probabilities, labels)),
                    "test_ece": float(predictions.ece(log_probabilities, labels)),
                }
            for name, value in figures.items():
                columns[name].append(value)
        return {name: np.array(values) for name, values in columns.items()}

    def _log_probabilities(self, weights: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Return log probabilities (N, C) of one checkpoint."""
        torch = self._torch
        state: dict[str, Any] = {}
        for tensor in self._arch.tensors:
            array = weights[tensor.name]
            # bfloat16 has the kind V, because numpy has it from ml_dtypes; from_numpy takes no read-only arrays without
            # a warning
            floating = array.dtype.kind not in "iub"
            tensor_value = torch.from_numpy(np.array(array, np.float32 if floating else None))
            for name in (tensor.name, *tensor.aliases):
                state[name] = tensor_value
        outputs: list[NDArray[np.float64]] = []
        with torch.inference_mode():
            for start in range(0, len(self._examples), self._batch_size):
                inputs = torch.from_numpy(self._network_inputs(self._examples[start : start + self._batch_size]))
                scores = self._forward(state, inputs)
                # in float32 the logarithms of probabilities near 1 are rounded to 0
                outputs.append(torch.log_softmax(scores.double(), -1).numpy())
        return np.concatenate(outputs)

    def _network_inputs(self, examples: NDArray[Any]) -> NDArray[np.float32]:
        """Return the network's inputs for examples: raw pixels are scaled, and rounded once."""
        if self._evaluation is None:
            return np.ascontiguousarray(examples, np.float32).reshape(-1, *self._shape)
        inputs = image_sets.network_inputs(examples, self._evaluation.mean, self._evaluation.std)
        return inputs.reshape(-1, *self._shape)

    def _forward(self, state: dict[str, Any], inputs: Any) -> Any:
        try:
            # tied tensors are in the state under each of their names; torch need not look for them in every call
            scores = self._torch.func.functional_call(self._module, state, (inputs,), tie_weights=False)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ZooError(self._misfit(tuple(inputs.shape), error)) from error
        classes = int(self._labels.max()) + 1
        if not isinstance(scores, self._torch.Tensor) or scores.ndim != 2 or scores.shape[1] < classes:
            got = tuple(scores.shape) if isinstance(scores, self._torch.Tensor) else type(scores).__name__
            expected = f"(N, {classes}) scores of labels"
            raise ZooError(Problem(self._arch.name, "outputs", expected, str(got), _STEP))
        return scores

    def _misfit(self, shape: tuple[int, ...], error: Exception) -> Problem:
        """Describe the sizes of the inputs and of the network, which does not take them, and the likely intention."""
        first = next((tensor for tensor in self._arch.tensors if len(tensor.shape) > 1), self._arch.tensors[0])
        got = f"one whose first weights, {first.name}, are {first.shape}, and which fails: {excerpt(error, 160)}"
        declared, flat = self._arch.input_shape, math.prod(shape[1:])
        step = "Name a file of inputs of the size that the network takes: --inputs FILE.npz."
        if declared is not None and math.prod(declared) == flat:
            step = (
                f"They have the zoo's input_shape, {list(declared)}: of a new zoo correct it in the table [zoo] of "
                "contribution.toml; else NAME() of --module FILE.py:NAME has to make a network that takes them."
            )
        elif declared is None and first.shape[1:] == (flat,):
            step = (
                f"A new zoo says what its networks take: input_shape = [{flat}], if that is it, in the table [zoo] "
                "of contribution.toml. In a zoo that does not, NAME() of --module FILE.py:NAME has to reshape them."
            )
        what = f"inputs {shape} of {excerpt(self._set, 80)}"
        return Problem(self._arch.name, what, "a network that takes them", got.rstrip("."), step)

    def _check_names(self) -> None:
        module_shapes = {name: tuple(value.shape) for name, value in self._module.state_dict().items()}
        zoo_shapes = {name: item.shape for item in self._arch.tensors for name in (item.name, *item.aliases)}
        problems: list[Problem] = []
        for name in sorted({*module_shapes, *zoo_shapes}):
            if module_shapes.get(name) != zoo_shapes.get(name):
                expected, got = (str(side.get(name, "no such tensor")) for side in (zoo_shapes, module_shapes))
                problems.append(Problem(f"module for {self._arch.name}", f"tensor {name!r}", expected, got, _STEP))
        if problems:
            raise SpecError(problems)


def network_factory(arch: Architecture, module: str | Factory | None) -> Factory | None:
    """Return a function that makes the network: the user's own module, or that of ``ckptzoo.archs``; None where neither
    is known.

    ``module`` is ``FILE.py:NAME``, a file, which is executed, and what in it makes the network when called without
    arguments; or that function itself. Raises ``ZooError`` where there is no such file or name, or the file fails.
    """
    if callable(module):
        return module
    if module is not None:
        return _load_factory(module)
    if not archs.known(arch.forward):
        return None
    require("torch", "torch")
    return archs.get(arch.forward)


def no_forward(arch: Architecture) -> str:
    """Return that the network of an architecture is not known, with the option that names it."""
    return f"ckptzoo.archs has no forward function for {arch.name} (--module FILE.py:NAME gives one)"


def lacking_options(arch: Architecture, *, network: bool, inputs: bool) -> str:
    """Return the options of commands that evaluate checkpoints, with placeholders; empty where nothing is lacking.

    ``network`` and ``inputs`` say whether the network was named, and whether inputs were or need not be.
    """
    module = "" if network or archs.known(arch.forward) else " --module FILE.py:NAME"
    return module + ("" if inputs else " --inputs FILE.npz")


def may_take_images(arch: Architecture) -> bool:
    """Return whether inputs may be images, by their shape or that of the first weights; flat ones of 8 by 8 pixels or
    more.
    """
    shape = arch.input_shape or arch.tensors[0].shape[1:]
    if len(shape) == 3:
        return True
    flat = math.prod(shape)
    return len(shape) == 1 and any(flat == channels * math.isqrt(flat // channels) ** 2 >= 64 for channels in (1, 3))


def own_network(arch: Architecture, module: str | Factory | None) -> "nn.Module | None":
    """Return the network that the user names, by ``network_factory``; None where none is named."""
    factory = None if module is None else network_factory(arch, module)
    return None if factory is None else factory()


def output_differences(
    arch: Architecture, module: str | Factory, state: State, proposals: Sequence[Mapping[str, str]]
) -> list[float] | None:
    """Compare the outputs of the zoo's network, given a file's tensors under other names, with those of the file's own
    network.

    ``module`` makes the file's own network, whose tensors have the names in ``state``; ``proposals`` are tables of
    old names and new ones. Each result is the largest difference of outputs on 64 random inputs, as a share of the
    largest output. The result is None where the zoo's forward function or the shape of its inputs is not known, or
    the module has other tensors than the file.
    """
    torch = require("torch", "torch")
    factory, zoo_factory = network_factory(arch, module), network_factory(arch, None)
    if factory is None or zoo_factory is None or arch.input_shape is None:
        return None
    own = factory().eval()
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in state.items() if array.dtype.kind in "fiub"}
    shapes = {name: tuple(value.shape) for name, value in own.state_dict().items() if not name.endswith(COUNTER)}
    if any(name not in tensors or tuple(tensors[name].shape) != shape for name, shape in shapes.items()):
        return None
    inputs = torch.randn(64, *arch.input_shape, generator=torch.Generator().manual_seed(0))

    def outputs(network: Any, values: Mapping[str, Any]) -> Any:
        return torch.func.functional_call(network, dict(values), (inputs,), tie_weights=False).double()

    differences: list[float] = []
    with torch.inference_mode():
        expected = outputs(own, {name: value for name, value in tensors.items() if name in own.state_dict()})
        for names in proposals:
            network = zoo_factory().eval()
            renamed = {names.get(old, old): value for old, value in tensors.items()}
            answers = outputs(network, {name: value for name, value in renamed.items() if name in network.state_dict()})
            same_shape = answers.shape == expected.shape
            difference = float((answers - expected).abs().max() / expected.abs().max()) if same_shape else math.inf
            differences.append(difference)
    return differences


def trace_symmetry(arch: Architecture, factory: Factory) -> tuple[Symmetry | None, str]:
    """Trace the symmetries of the user's network, verified on its outputs; None and why where it cannot be traced.

    Needs the shape of an input in the architecture, and a network that has the architecture's tensors.
    """
    torch = require("torch", "torch")
    if arch.input_shape is None:
        return None, "the shape of an input is not known (input_shape in the table [zoo] of contribution.toml gives it)"
    try:
        traced = trace(factory().eval(), torch.zeros(2, *arch.input_shape))
        traced.symmetry.check(arch)
    except (SymmetryError, SpecError) as error:
        return None, str(error)
    traced_shapes, zoo_shapes = (
        {tensor.name: tensor.shape for tensor in architecture.tensors} for architecture in (traced.architecture, arch)
    )
    if traced_shapes != zoo_shapes:
        return None, "the module has other tensors than the file"
    return traced.symmetry, ""


def _load_factory(text: str) -> Factory:
    path, colon, name = text.rpartition(":")
    if not colon or not name:
        file, step = text.removesuffix(":"), "NAME is the class or function in it that makes the network"
        raise ZooError(Problem(text, "module", "FILE.py:NAME", "no NAME", f"Write --module {file}:NAME; {step}."))
    if not path.endswith(".py") or not Path(path).is_file():
        got = "no such file" if path.endswith(".py") else f"{path!r}, which does not end in .py"
        raise ZooError(Problem(text, "module", "FILE.py:NAME", got, _STEP))
    spec = importlib.util.spec_from_file_location(f"ckptzoo_user_{Path(path).stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if (folder := str(Path(path).resolve().parent)) not in sys.path:
        sys.path.append(folder)  # what lies beside it can be imported, as when it is run
    _called(path, "module", "a file that can be executed", partial(spec.loader.exec_module, module))
    factory: Any = getattr(module, name, None)
    if not isinstance(factory, type) and hasattr(factory, "state_dict"):
        return partial(copy.deepcopy, factory)  # a network and no function that makes one
    if not callable(factory):
        got = type(factory).__name__ if hasattr(module, name) else "nothing of that name"
        raise ZooError(Problem(path, name, "a class or function", got, _STEP))

    def made() -> "nn.Module":
        network = _called(path, f"{name}()", "a torch module", factory)
        if not hasattr(network, "state_dict"):
            raise ZooError(Problem(path, f"{name}()", "a torch module", type(network).__name__, "Return a network."))
        return network

    return made


def _called(location: str, what: str, expected: str, function: Callable[[], Any]) -> Any:
    """Return the result of the user's own code, which may raise anything, and end the process."""
    try:
        return function()
    except ZooError:
        raise
    except (Exception, SystemExit) as error:
        got = f"{type(error).__name__}: {error}"
        raise ZooError(Problem(location, what, expected, got, "Correct it.")) from error


@dataclass
class EvaluatorPool:
    """Measures checkpoints where their data set and their forward function are available.

    ``module`` is the user's own ``FILE.py:NAME`` or a factory, None for that of ``ckptzoo.archs``; ``data`` is the
    folder of test sets, None for that of ``CKPTZOO_DATA``; all checkpoints are measured on ``own``, labelled inputs as
    the networks take them, if given. ``reasons`` says why checkpoints were not measured, ``needs_inputs`` whether it is
    because no row says on which inputs.
    """

    arch: Architecture
    module: str | Factory | None = None
    data: str | Path | None = None
    own: Labelled | None = None
    _evaluators: dict[Evaluation | None, CheckpointEvaluator | None] = field(default_factory=dict)
    _test_sets: dict[str, ImageSet | None] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    needs_inputs: bool = False

    def measure(self, weights: Weights, evaluation: Evaluation | None) -> list[Figures | None]:
        """Return figures of K checkpoints; None where they cannot be measured, and ``reasons`` then says why."""
        count = len(next(iter(weights.values())))
        evaluator = self._evaluator(evaluation)
        if evaluator is None:
            return [None] * count
        columns = evaluator.columns(weights)
        return [{name: float(columns[name][row]) for name in COLUMNS} for row in range(count)]

    def _evaluator(self, evaluation: Evaluation | None) -> CheckpointEvaluator | None:
        used = evaluation if self.own is None else None
        if used is None and self.own is None:
            own, scaling = "--inputs FILE.npz names inputs as the networks take them, with labels", ""
            if may_take_images(self.arch):
                own += "; a table [evaluation] in contribution.toml, with dataset, mean and std, says it"
                scaling = " and which scaling of its pixels"
            self._add_reason(f"no row or card says which test set{scaling} ({own})")
            self._note_missing_network()
            self.needs_inputs = True
            return None
        if used not in self._evaluators:
            self._evaluators[used] = self._make_evaluator(used)
        return self._evaluators[used]

    def _make_evaluator(self, evaluation: Evaluation | None) -> CheckpointEvaluator | None:
        test_set = self.own if evaluation is None else self._test_set(evaluation)
        self._note_missing_network()
        factory = None if test_set is None else network_factory(self.arch, self.module)
        return (
            None
            if test_set is None or factory is None
            else CheckpointEvaluator(self.arch, factory, test_set, evaluation)
        )

    def _note_missing_network(self) -> None:
        if self.module is None and not archs.known(self.arch.forward):
            self._add_reason(no_forward(self.arch))

    @property
    def options(self) -> str:
        """The options of commands that measure the same checkpoints: those that were used, and those that lack."""
        inputs = self.own is not None or self.needs_inputs
        return lacking_options(self.arch, network=False, inputs=not inputs)

    def _test_set(self, evaluation: Evaluation) -> ImageSet | None:
        if evaluation.dataset not in self._test_sets:
            self._test_sets[evaluation.dataset] = image_sets.find(evaluation.dataset, self.data)
        test_set = self._test_sets[evaluation.dataset]
        if test_set is None:
            variable = image_sets.FOLDER_VARIABLE
            names = ("digits", *image_sets.KNOWN)
            is_known = evaluation.dataset.lower().rpartition("/")[2] in names
            known = "" if is_known else f"; ckptzoo knows {', '.join(names)}"
            self._add_reason(
                f"no test set of {evaluation.dataset} available (--data FOLDER or {variable} names where it is{known}; "
                "--inputs FILE.npz names inputs as the networks take them, with labels)"
            )
        return test_set

    def facts(self, evaluation: Evaluation | None) -> dict[str, Any]:
        """Return a row's facts about its evaluation under ``EVALUATION_KEY``; empty where nothing is known."""
        stated = {} if evaluation is None else evaluation.to_json()
        return stated if self.own is None else {**stated, "inputs": self.own.set}

    def digest(self, evaluation: Evaluation | None) -> str | None:
        """Return the digest of a test set that was used."""
        if self.own is not None:
            return digest_of_inputs(self.own.inputs)
        test_set = None if evaluation is None else self._test_sets.get(evaluation.dataset)
        return None if test_set is None else test_set.digest

    @property
    def summary(self) -> str:
        """The evaluations that were used, as a text."""
        used = [evaluation for evaluation, evaluator in self._evaluators.items() if evaluator is not None]
        evaluations = [excerpt(self.own.set, 80) if item is None and self.own else str(item) for item in used]
        return "; ".join(evaluations[:3]) + (f" and {len(evaluations) - 3:,} others" if len(evaluations) > 3 else "")

    def _add_reason(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


def measure_zoo(
    zoo: Zoo, evaluators: EvaluatorPool, evaluations: list[Evaluation | None], progress: Progress | None = None
) -> dict[str, Figures]:
    """Return figures by id of those checkpoints of a zoo that can be measured."""
    figures_by_id: dict[str, Figures] = {}
    done = 0
    for ids, weights in batches(zoo):
        for row, name in enumerate(ids):
            (figures,) = evaluators.measure(
                {key: array[row : row + 1] for key, array in weights.items()}, evaluations[done]
            )
            done += 1
            if figures is not None:
                figures_by_id[name] = figures
            if progress is not None:
                progress(done, len(zoo))
    return figures_by_id
