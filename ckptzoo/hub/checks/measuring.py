"""What networks score on a test set: forward passes with torch, one checkpoint after another."""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.errors import MissingExtraError, Problem, SpecError, SymmetryError, ZooError
from ckptzoo.hub.checks.evaluation import Evaluation
from ckptzoo.hub.heldout import HeldOut
from ckptzoo.measure import uncertainty
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.symmetry import Symmetry
from ckptzoo.symmetry import trace

if TYPE_CHECKING:
    from torch import nn

COLUMNS = ("test_loss", "test_accuracy", "test_nll", "test_brier", "test_ece")
"""What is measured of a classifier."""
_BATCH_BYTES = 8 * 2**20
"""Inputs that go through a network at a time, in bytes."""
_STEP = "Name a file of your own with --module FILE.py:NAME; NAME() makes the network."

Factory = Callable[[], "nn.Module"]


class Judge:
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
                nll = float(uncertainty.nll(logs, labels))
                found = {
                    "test_loss": nll,
                    "test_accuracy": float(uncertainty.accuracy(logs, labels)),
                    "test_nll": nll,
                    "test_brier": float(uncertainty.brier(logs, labels)),
                    "test_ece": float(uncertainty.ece(logs, labels)),
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
