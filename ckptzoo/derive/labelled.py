"""Inputs with labels, on which networks are scored."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError


@dataclass(frozen=True, eq=False)
class Labelled:
    """Inputs with labels; ``ckptzoo.hub.contributions.inputs.labelled_of`` reads those of a zoo.

    ``set`` is a name such as ``mnist/test``; ``inputs`` are (N, *input_shape) float32, as the networks take them;
    ``targets`` are (N,) labels from 0; ``statistics`` are (T, *input_shape) training inputs, from which the running
    statistics of BatchNorm are computed for every network that is scored, as between networks they have to be; None
    takes those of the weights.
    """

    set: str
    inputs: NDArray[Any]
    targets: NDArray[Any]
    statistics: NDArray[Any] | None = None


def read_inputs(path: str | Path) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
    """The inputs in a file of numpy, as networks take them, and their labels where it has some.

    ``path`` is a ``.npz`` file with an array ``inputs`` (N, *input_shape) and perhaps ``targets`` (N,), integers from
    0. Raises ``ZooError`` if it is another file, or has other arrays.
    """
    expected = "a .npz file with arrays inputs (N, ...) and targets (N,)"
    step = "Write it with numpy.savez(path, inputs=..., targets=...)."
    try:
        with np.load(path, allow_pickle=False) as file:  # a pickle would run code
            arrays = {name: file[name] for name in file.files} if hasattr(file, "files") else None
    except FileNotFoundError:
        raise ZooError(Problem(str(path), "inputs", expected, "no such file", step)) from None
    # numpy raises ValueError for pickles and unknown formats, EOFError for empty files
    except (ValueError, EOFError, BadZipFile, OSError, TypeError, AttributeError, KeyError):
        arrays = None
    if arrays is None or "inputs" not in arrays:
        got = "another file" if arrays is None else f"arrays {', '.join(map(repr, arrays)) or 'none'}"
        raise ZooError(Problem(str(path), "inputs", expected, got, step))
    inputs, targets = arrays["inputs"], arrays.get("targets")
    if inputs.ndim < 2 or not len(inputs) or inputs.dtype.kind not in "fiub":
        got = f"{inputs.shape} {inputs.dtype}"
        raise ZooError(Problem(str(path), "array 'inputs'", "numbers (N, ...)", got, step))
    if targets is None:
        return inputs, None
    if targets.shape != inputs.shape[:1] or targets.dtype.kind not in "iu" or targets.min() < 0:
        got = f"{targets.shape} {targets.dtype}"
        raise ZooError(Problem(str(path), "array 'targets'", f"({len(inputs)},) integers from 0", got, step))
    return inputs, targets.astype(np.int64)


def read_labelled(path: str | Path) -> Labelled:
    """The inputs in a file of numpy with their labels, under the name of the file.

    ``path`` is as for ``read_inputs``. Raises ``ZooError`` as ``read_inputs``, or if there are no labels.
    """
    inputs, targets = read_inputs(path)
    if targets is None:
        step = "Write it with numpy.savez(path, inputs=..., targets=...)."
        raise ZooError(Problem(str(path), "array 'targets'", "labels beside the inputs", "none", step))
    return Labelled(Path(path).name, np.ascontiguousarray(inputs, np.float32), targets)
