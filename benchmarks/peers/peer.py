"""What a benchmark asks of a way to store checkpoints."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from benchmarks.layers_weights import Weights

Arrays = Iterator[NDArray[Any]]
Shapes = dict[str, tuple[int, ...]]


class Peer(Protocol):
    """One way to store checkpoints, and the fastest way it documents of reading them."""

    @property
    def label(self) -> str:
        """The column's title."""
        ...

    @property
    def how(self) -> str:
        """One line on how it is read."""
        ...

    @property
    def store(self) -> str:
        """Name of its folder under the scratch folder."""
        ...

    def write(self, folder: Path, weights: Weights) -> Iterator[int]:
        """Write the checkpoints, yielding the number of bytes of weights written since the last time."""
        ...

    def catalogue(self, folder: Path) -> Shapes | None:
        """Open the store and say the stacked shape of every tensor; None where the way knows no such thing."""
        ...

    def open(self, folder: Path, names: Sequence[str]) -> Any:
        """A handle onto the store with these tensors located and nothing of them read; not timed."""
        ...

    def layer(self, handle: Any, name: str) -> Arrays:
        """One tensor of every checkpoint, in pieces of whole checkpoints."""
        ...

    def checkpoint(self, handle: Any, member: int) -> Arrays:
        """Every tensor of one checkpoint."""
        ...
