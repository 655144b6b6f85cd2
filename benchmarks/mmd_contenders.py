"""Ways to the twenty estimates, each measured in a process of its own: seconds and the peak of anonymous memory."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.spatial.distance import cdist, pdist

from ckptzoo.measure import Distances, distance_backends
from ckptzoo.measure.kernels import bandwidths_of

Blocks = Iterator[tuple[np.ndarray, np.ndarray]]


@dataclass
class Spent:
    """What one layer took.

    Parameters
    ----------
    columns
        how many.
    drawing
        seconds to draw the weights.
    distances, kernels
        seconds for each.
    cpu
        processor seconds of both, over all threads.
    peak
        bytes of anonymous memory at most, above what the process had before.
    mmd2
        the estimates.
    """

    columns: int
    drawing: float
    distances: float
    kernels: float
    cpu: float
    peak: int
    mmd2: list[float]


class Contender(Protocol):
    """One way, fed block by block."""

    def __init__(self, m: int, n: int) -> None: ...

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Add some columns."""
        ...

    def mmd2(self) -> np.ndarray:
        """(20,) estimates with the paper's bandwidths."""
        ...


class Scipy:
    """``pdist`` and ``cdist`` in float64, added up over blocks; kernels in numpy."""

    def __init__(self, m: int, n: int) -> None:
        self.m, self.n = m, n
        self.sums: list[list[Any]] = [[0.0] * 3, [0.0] * 3]

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """As in ``Contender``."""
        x, y = x.astype(np.float64), y.astype(np.float64)
        for sums, metric in zip(self.sums, ("cityblock", "sqeuclidean"), strict=True):
            sums[0] += pdist(x, metric)
            sums[1] += pdist(y, metric)
            sums[2] += cdist(x, y, metric)

    def mmd2(self) -> np.ndarray:
        """As in ``Contender``."""
        return estimates(self.m, self.n, self.sums[0], [np.sqrt(item) for item in self.sums[1]])


class InNumpy(Distances):
    """``Distances`` without Numba."""

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """As in ``Contender``."""
        distance_backends.COMPILED = 2**63
        super().add(x, y)


class InTorch:
    """``Distances`` of torch tensors."""

    def __init__(self, m: int, n: int) -> None:
        import torch

        self.from_numpy, self.held = torch.from_numpy, Distances(m, n)

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """As in ``Contender``."""
        self.held.add(self.from_numpy(x), self.from_numpy(y))

    def mmd2(self) -> np.ndarray:
        """As in ``Contender``."""
        return self.held.mmd2()


class Torch:
    """``torch.pdist`` and ``torch.cdist`` in float32, added up over blocks in float64; kernels in torch too."""

    dtype = "float32"

    def __init__(self, m: int, n: int) -> None:
        import torch

        self.torch, self.m, self.n = torch, m, n
        self.sums: list[list[Any]] = [[0.0] * 3, [0.0] * 3]

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """As in ``Contender``."""
        torch = self.torch
        one, two = (torch.from_numpy(rows).to(getattr(torch, self.dtype)) for rows in (x, y))
        for sums, p in zip(self.sums, (1.0, 2.0), strict=True):
            parts = torch.pdist(one, p), torch.pdist(two, p), torch.cdist(one, two, p)
            for at, part in enumerate(parts):
                sums[at] += part.double().pow_(p)

    def mmd2(self) -> np.ndarray:
        """As in ``Contender``."""
        torch, made = self.torch, []
        for power, (xx, yy, xy) in enumerate(self.sums, start=1):
            for b in bandwidths_of(xy[:500, :500].numpy() ** (1 / power)):
                within_x, within_y, across = (torch.exp(item / -(b**power)).sum().item() for item in (xx, yy, xy))
                made.append(estimate(self.m, self.n, within_x, within_y, across))
        return np.array(made)


class TorchDouble(Torch):
    """The same with distances in float64, in which ckptzoo has those of small layers."""

    dtype = "float64"


CONTENDERS: dict[str, type[Contender]] = {
    "ckptzoo": Distances,
    "ckptzoo-numpy": InNumpy,
    "ckptzoo-torch": InTorch,
    "scipy": Scipy,
    "torch": Torch,
    "torch, float64": TorchDouble,
}


def estimates(m: int, n: int, absolute: list[np.ndarray], euclidean: list[np.ndarray]) -> np.ndarray:
    """The twenty estimates from distances within X, within Y and across."""
    made = []
    for (xx, yy, xy), power in ((absolute, 1), (euclidean, 2)):
        for b in bandwidths_of(xy[:500, :500]):
            made.append(estimate(m, n, *(np.exp(-((item / b) ** power)).sum() for item in (xx, yy, xy))))
    return np.array(made)


def estimate(m: int, n: int, within_x: float, within_y: float, across: float) -> float:
    """The unbiased estimate from sums of kernels, of each pair once."""
    return 2 * within_x / m / (m - 1) + 2 * within_y / n / (n - 1) - 2 * across / m / n


def blocks(m: int, n: int, columns: int, width: int, seed: int) -> Blocks:
    """Weights of two normal samples whose variances differ, a block of columns after the other."""
    rng = np.random.default_rng(seed)
    for start in range(0, columns, width):
        size = min(width, columns - start)
        x, y = (rng.standard_normal((rows, size), dtype=np.float32) for rows in (m, n))
        yield x, y * np.float32(1.1)


class Watch:
    """The peak of RssAnon while it is open, above what it was."""

    def __enter__(self) -> "Watch":
        self.before = self.peak = anonymous()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._done.wait(0.005):
            self.peak = max(self.peak, anonymous())

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def anonymous() -> int:
    """Bytes of anonymous memory of this process (Linux; elsewhere 0)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("RssAnon"))


def layer(contender: str, m: int, n: int, columns: int, width: int, seed: int) -> Spent:
    """Measure one layer."""
    drawing = distances = cpu = 0.0
    with Watch() as watch:
        held = CONTENDERS[contender](m, n)
        source = blocks(m, n, columns, width, seed)
        while True:
            began = time.perf_counter()
            block = next(source, None)
            drawing += time.perf_counter() - began
            if block is None:
                break
            began, busy = time.perf_counter(), time.process_time()
            held.add(*block)
            distances += time.perf_counter() - began
            cpu += time.process_time() - busy
        began, busy = time.perf_counter(), time.process_time()
        found = held.mmd2()
        kernels = time.perf_counter() - began
        cpu += time.process_time() - busy
    return Spent(columns, drawing, distances, kernels, cpu, watch.peak - watch.before, found.tolist())


def main() -> None:
    """``contender m n width columns...``: print what each layer took as JSON, after a block of one to warm up."""
    contender, *numbers = sys.argv[1:]
    m, n, width, *columns = map(int, numbers)
    layer(contender, m, n, min(width, max(columns)), width, 0)
    print(json.dumps([asdict(layer(contender, m, n, size, width, seed)) for seed, size in enumerate(columns)]))


if __name__ == "__main__":
    main()
