"""Where distances are computed: in numpy, or in torch on the device that holds the weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array, to_device
from numpy.typing import NDArray

from ckptzoo.measure.panels import Panel
from ckptzoo.measure.tiles import CHUNK, add_distances


class Home(Protocol):
    """What distances need of arrays of one kind."""

    def filled(self, shape: tuple[int, int], value: float) -> Any:
        """A new float64 array with this number everywhere."""
        ...

    def block(self, x: Any, y: Any, columns: slice) -> Any:
        """Some columns of X and below them those of Y, as a new float64 array."""
        ...

    def labels(self, array: NDArray[np.float64]) -> Any:
        """An array of numpy brought here."""
        ...

    def host(self, array: Any) -> NDArray[Any]:
        """An array brought to numpy."""
        ...

    def add_distances(self, panels: Sequence[Panel], block: Any, single: bool) -> None:
        """Add the distances in a centred block of float64; absolute ones of float32 where ``single``."""
        ...


@dataclass(frozen=True)
class OnHost:
    """Numpy."""

    def filled(self, shape: tuple[int, int], value: float) -> NDArray[np.float64]:
        """As in ``Home``."""
        return np.full(shape, value)

    def block(self, x: NDArray[Any], y: NDArray[Any], columns: slice) -> NDArray[np.float64]:
        """As in ``Home``."""
        made = np.empty((len(x) + len(y), x[:1, columns].shape[1]))
        made[: len(x)], made[len(x) :] = x[:, columns], y[:, columns]
        return made

    def labels(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """As in ``Home``."""
        return array

    def host(self, array: NDArray[Any]) -> NDArray[Any]:
        """As in ``Home``."""
        return array

    def add_distances(self, panels: Sequence[Panel], block: NDArray[np.float64], single: bool) -> None:
        """As in ``Home``."""
        add_distances(panels, block, single)


@dataclass(frozen=True)
class InTorch:
    """Torch on a device.

    Sums of absolute differences are ``torch.pdist``'s, ``CHUNK`` columns at a time.

    Parameters
    ----------
    framework : the array API namespace of torch.
    device : torch's own.
    """

    framework: Any
    device: Any

    def filled(self, shape: tuple[int, int], value: float) -> Any:
        """As in ``Home``."""
        return self.framework.full(shape, value, dtype=self.framework.float64, device=self.device)

    def block(self, x: Any, y: Any, columns: slice) -> Any:
        """As in ``Home``."""
        xp = self.framework
        return xp.concat([xp.astype(array[:, columns], xp.float64) for array in (x, y)], axis=0)

    def labels(self, array: NDArray[np.float64]) -> Any:
        """As in ``Home``."""
        return self.framework.asarray(array, device=self.device)

    def host(self, array: Any) -> NDArray[Any]:
        """As in ``Home``."""
        return np.asarray(to_device(array, "cpu"))

    def add_distances(self, panels: Sequence[Panel], block: Any, single: bool) -> None:
        """As in ``Home``."""
        xp = self.framework
        rows = xp.astype(block, xp.float32 if single else xp.float64, copy=False)
        count, width = rows.shape
        found = xp.zeros(count * (count - 1) // 2, dtype=xp.float64, device=self.device)
        for start in range(0, width, CHUNK):
            found += xp.pdist(rows[:, start : start + CHUNK], p=1.0)
        for panel in panels:
            shape = panel.manhattan.shape
            upper = tuple(xp.triu_indices(*shape, offset=1, device=self.device))
            panel.manhattan[upper] += found[: len(upper[0])]
            found = found[len(upper[0]) :]
        norms = xp.sum(block * block, axis=1)
        for panel in panels:
            sums = norms[panel.start : panel.stop, None] + norms[panel.start :]
            sums -= 2 * (block[panel.start : panel.stop] @ block[panel.start :].T)
            panel.squares[...] += xp.clip(sums, 0)


def home_of(x: Any, y: Any) -> tuple[Home, Any, Any]:
    """Where to compute the distances of two arrays, and the arrays there.

    Two torch tensors on one device stay there where it has float64; everything else comes to numpy.
    """
    if all(is_torch_array(array) for array in (x, y)) and device(x) == device(y):
        kinds = array_namespace(x).__array_namespace_info__().dtypes(device=device(x), kind="real floating")
        if "float64" in kinds:
            return InTorch(array_namespace(x), device(x)), x.detach(), y.detach()
    return OnHost(), _in_numpy(x), _in_numpy(y)


def _in_numpy(array: Any) -> NDArray[Any]:
    if not is_torch_array(array):
        return np.asarray(array)
    held: Any = array.detach().cpu()
    return (held.float() if held.dtype.itemsize == 2 else held).numpy()
