"""Means and standard deviations of a zoo's weights, computed in one pass, and the standardisation by them."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import digest_of
from ckptzoo.symmetry.arrays import is_float
from ckptzoo.symmetry.counts import orbits
from ckptzoo.text import brief_repr

Per = Literal["tensor", "orbit", "position", "sane"]
PER = ("tensor", "orbit", "position", "sane")
"""The elements that share one mean and one standard deviation."""
_FORMAT = "ckptzoo-statistics-1"


@dataclass(frozen=True, eq=False)
class Statistics:
    """The mean and the standard deviation of every weight, shared as ``per`` says.

    Parameters
    ----------
    per
        see ``statistics``.
    mean, deviation
        of the tensors of floats, name to float64 of the tensor's shape in one checkpoint, or () where the whole tensor
        shares them. A deviation that is zero is given as 1, so that such weights become 0.
    constant
        of those tensors that have them, name to the number of positions whose deviation is zero.
    count
        checkpoints.
    digest
        of the zoo's name and revision, the variant and the checkpoints' ids, in order.

    Examples
    --------
    >>> import numpy as np
    >>> found = Statistics("tensor", {"w": np.array(1.0)}, {"w": np.array(2.0)}, {}, 4, "sha256:00")
    >>> found.apply({"w": np.array([[1.0, 5.0]])})["w"].tolist()
    [[0.0, 2.0]]
    """

    per: Per
    mean: Mapping[str, NDArray[np.float64]]
    deviation: Mapping[str, NDArray[np.float64]]
    constant: Mapping[str, int]
    count: int
    digest: str

    __repr__ = brief_repr

    def __str__(self) -> str:
        constant = ", ".join(f"{name} ({count:,})" for name, count in self.constant.items())
        said = f"; zero deviation: {constant}" if constant else ""
        return f"statistics per {self.per} of {self.count:,} checkpoints{said}"

    @property
    def commutes(self) -> bool:
        """Whether permutations of channels may act before or after standardisation with the same bits."""
        return self.per != "position"

    def apply(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """``(x - mean) / deviation`` of stacked tensors (K, *shape), numpy or torch; integers stay as they are.

        New arrays of the tensors' dtype, in which the operations take place.

        Parameters
        ----------
        tensors
            by name, those that there are statistics of.

        Raises
        ------
        ZooError
            A tensor of floats has no statistics, or another shape.
        """
        return {
            name: (array - self._near(self.mean, name, array)) / self._near(self.deviation, name, array)
            if is_float(array)
            else array
            for name, array in tensors.items()
        }

    def invert(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """``x * deviation + mean``: what ``apply`` was given, to rounding.

        Parameters
        ----------
        tensors
            by name, as ``apply`` returned them.
        """
        return {
            name: array * self._near(self.deviation, name, array) + self._near(self.mean, name, array)
            if is_float(array)
            else array
            for name, array in tensors.items()
        }

    def near(self, name: str, array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """A tensor's mean and deviation as ``apply`` takes them from and divides an array (K, *shape) of its dtype.

        Parameters
        ----------
        name
            the tensor's.
        array
            of its values.
        """
        return self._near(self.mean, name, array), self._near(self.deviation, name, array)

    def _near(self, values: Mapping[str, NDArray[np.float64]], name: str, array: Any) -> Any:
        """Values in the framework, dtype and place of a tensor."""
        if name not in values:
            step = "Compute them of a zoo of this architecture."
            raise ZooError(Problem("statistics", f"tensor {name!r}", ", ".join(values) or "none", "it", step))
        found = values[name]
        if found.shape not in ((), tuple(array.shape[1:])):
            got, step = str(tuple(array.shape)), "Compute them of a zoo of this architecture."
            raise ZooError(Problem("statistics", f"tensor {name!r}", f"(K, *{found.shape})", got, step))
        if isinstance(array, np.ndarray):
            return found.astype(array.dtype)
        return array_namespace(array).asarray(found, dtype=array.dtype, device=device(array))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file: ``<tensor>.mean`` and ``<tensor>.deviation``, and the rest in its header.

        Parameters
        ----------
        path
            of the file; one that is there is replaced.
        """
        kinds = {"mean": self.mean, "deviation": self.deviation}
        arrays = {f"{name}.{kind}": np.asarray(held[name]) for kind, held in kinds.items() for name in held}
        facts = {"per": self.per, "constant": dict(self.constant), "count": self.count, "digest": self.digest}
        # sorted keys: the same statistics give the same bytes
        Path(path).write_bytes(save(arrays, {"format": _FORMAT, "statistics": json.dumps(facts, sort_keys=True)}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Statistics":
        """Read what ``save`` wrote.

        Parameters
        ----------
        path
            of the file.

        Raises
        ------
        ZooError
            It is another file.
        """
        try:
            with safe_open(path, "numpy") as file:
                header = file.metadata() or {}
                if header.get("format") != _FORMAT:
                    raise KeyError(f"format {header.get('format')!r}")
                facts = json.loads(header["statistics"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            held: dict[str, dict[str, NDArray[np.float64]]] = {"mean": {}, "deviation": {}}
            for name, array in arrays.items():
                tensor, _, kind = name.rpartition(".")
                held[kind][tensor] = array
            return cls(
                facts["per"], held["mean"], held["deviation"], facts["constant"], facts["count"], facts["digest"]
            )
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            got, step = f"{type(error).__name__} {error}", "Write them with Statistics.save."
            raise ZooError(Problem(str(path), "file", "statistics of weights", got, step)) from error


@checked
def statistics(zoo: Zoo, *, per: Per = "tensor", variant: str = layout.RAW) -> Statistics:
    r"""Means and standard deviations of a zoo's weights: of the checkpoints that a network is trained on.

    Parameters
    ----------
    zoo
        a zoo or a selection; for training the split to train on, so that nothing of the others enters.
    per
        ``"tensor"``, one mean and deviation a tensor; ``"orbit"``, one for all positions that the table's permutations
        exchange, so that standardisation commutes with them exactly; ``"position"``, one for every weight, as DWSNets
        have them (Navon et al., arXiv 2301.12780; https://github.com/AvivNavon/DWSNets,
        experiments/mnist/compute_statistics.py), which is not the same for permuted copies; or ``"sane"``, one for a
        layer's weight and bias together: the mean of the checkpoints' means and the root of the mean of their variances
        :math:`\frac{1}{n-1} \sum_i (w_i - \bar w)^2` (Schuerholt et al., arXiv 2406.09997;
        https://github.com/HSG-AIML/SANE, ``DatasetTokens.standardize_data_checkpoints``). There running means and
        variances are standardised twice; here once, each as a layer of its own.
    variant
        the gauge.

    Returns
    -------
    Statistics
        Statistics. Deviations are those of a population (divided by n), but for ``"sane"``; zero ones count as 1 and
        are listed in ``constant``.

    Raises
    ------
    ZooError
        There are no checkpoints, weights are not finite, or the zoo has no table of symmetries for ``"orbit"``.
    UnknownNameError
        No such ``per``, or no such variant.

    Notes
    -----
    One pass in float64; memory a batch of 64 MiB, its float64 copy, and two float64 copies of a checkpoint. Moments
    of batches are joined by the formulas of Chan, Golub and LeVeque (1983). Equal to numpy's within 1e-12: tests in
    tests/learning/test_statistics.py.
    """
    if per not in PER:
        raise UnknownNameError("statistics", "per", per, PER)
    if not len(zoo):
        raise ZooError(Problem(zoo.name, "statistics", "one checkpoint or more", "none", "Select others."))
    if per == "orbit" and zoo.symmetry is None:
        step = "Declare one, ckptzoo.derive.declare(zoo, table), or take per='tensor'."
        raise ZooError(Problem(zoo.name, "statistics per orbit", "a zoo with a table of symmetries", "none", step))
    moments: dict[str, _Moments] = {}
    layers = _sane_layers(zoo.arch) if per == "sane" else {}
    for batch in zoo.batches(variant=variant):
        values = {name: np.asarray(array, np.float64) for name, array in batch.tensors.items() if is_float(array)}
        if per == "sane":
            values = _of_layers(values, layers)
        for name, array in values.items():
            moments.setdefault(name, _Moments(array.shape[1:])).add(array)
    for name, found in moments.items():
        if not (np.isfinite(found.mean).all() and np.isfinite(found.squares).all()):
            step = "Leave checkpoints that diverged out, for example zoo.where('finite == True')."
            raise ZooError(Problem(zoo.name, f"statistics of {name!r}", "finite weights", "others", step))
    mean: dict[str, NDArray[np.float64]] = {}
    deviation: dict[str, NDArray[np.float64]] = {}
    constant: dict[str, int] = {}
    for tensor in zoo.arch.tensors:
        name = layers.get(tensor.name, tensor.name)
        if name not in moments:
            continue
        found = moments[name]
        if per == "sane":
            # of every checkpoint its mean and its variance
            mean[tensor.name], spread = found.mean[..., 0], np.sqrt(found.mean[..., 1])
        else:
            labels = orbits(zoo.symmetry, tensor.name, tensor.shape) if per == "orbit" and zoo.symmetry else None
            mean[tensor.name], spread = found.shared(per, labels)
        if zero := int((spread == 0).sum()):
            constant[tensor.name] = zero if spread.shape else int(np.prod(tensor.shape))
        # divided by 1, what never varies becomes 0
        deviation[tensor.name] = np.where(spread == 0, 1.0, spread)
    digest = digest_of([zoo.name, zoo.revision, variant, zoo.ids])
    return Statistics(per, mean, deviation, constant, len(zoo), digest)


class _Moments:
    """The mean and the sum of squared differences from it, by position."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count, self.origin = 0, np.zeros(shape)
        self.shift, self.squares = np.zeros(shape), np.zeros(shape)

    @property
    def mean(self) -> NDArray[np.float64]:
        return self.origin + self.shift

    def add(self, values: NDArray[np.float64]) -> None:
        """Count a batch (B, *shape)."""
        with np.errstate(invalid="ignore", over="ignore"):  # infinities are named at the end
            if not self.count:
                # what never changes then has differences of exactly 0
                self.origin = values[0]
            values = values - self.origin
            B, mean = len(values), values.mean(axis=0)
            # sums of squares are about each batch's own mean and then joined (Chan, Golub and LeVeque, 1983)
            squares = np.square(values - mean).sum(axis=0)
            shift, total = mean - self.shift, self.count + B
            self.shift = self.shift + shift * (B / total)
            self.squares = self.squares + squares + np.square(shift) * (self.count * B / total)
        self.count = total

    def shared(self, per: Per, labels: NDArray[np.int64] | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mean and the deviation, of the tensor's shape or (), shared by all positions or those of one label."""
        if per == "position" or not self.mean.size:
            return self.mean, np.sqrt(self.squares / self.count)
        flat = np.zeros(self.mean.size, np.int64) if labels is None else labels.ravel()
        sizes = np.bincount(flat)
        means = np.bincount(flat, self.mean.ravel()) / sizes
        # the variance over positions is that within them plus that of their means
        within = np.bincount(flat, self.squares.ravel())
        between = np.bincount(flat, np.square(self.mean.ravel() - means[flat]))
        deviations = np.sqrt((within / self.count + between) / sizes)
        # what is the same everywhere is exactly so, whatever the mean is rounded to
        ends = np.full((2, len(sizes)), self.mean.ravel()[np.unique(flat, return_index=True)[1]])
        np.minimum.at(ends[0], flat, self.mean.ravel())
        np.maximum.at(ends[1], flat, self.mean.ravel())
        fixed = (within == 0) & (ends[0] == ends[1])
        deviations[fixed], means[fixed] = 0, ends[0][fixed]
        if labels is None:
            return means.reshape(()), deviations.reshape(())
        return means[flat].reshape(labels.shape), deviations[flat].reshape(labels.shape)


def _sane_layers(arch: Architecture) -> dict[str, str]:
    """Map biases to the weights of their layers, with which they are counted."""
    found: dict[str, str] = {}
    for tensor in arch.tensors:
        layer, _, last = tensor.name.rpartition(".")
        if last == "bias" and (weight := f"{layer}.weight".lstrip(".")) in arch:
            found[tensor.name] = weight
    return found


def _of_layers(values: dict[str, NDArray[np.float64]], biases: dict[str, str]) -> dict[str, NDArray[np.float64]]:
    """The mean and the unbiased variance (B, 2) of every checkpoint's layers, by the names of their weights."""
    joined: dict[str, list[NDArray[np.float64]]] = {}
    for name, array in values.items():
        joined.setdefault(biases.get(name, name), []).append(array.reshape(len(array), -1))
    made: dict[str, NDArray[np.float64]] = {}
    for name, parts in joined.items():
        whole = np.concatenate(parts, axis=1)
        # one number has no unbiased variance
        variance = whole.var(axis=1, ddof=1) if whole.shape[1] > 1 else np.zeros(len(whole))
        made[name] = np.stack([whole.mean(axis=1), variance], axis=1)
    return made
