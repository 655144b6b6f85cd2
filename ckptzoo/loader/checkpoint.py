"""One checkpoint: its row of metadata, its tensors, its state dict, its model."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError, require
from ckptzoo.schema.architecture import Architecture

Read = Callable[[str, bool], NDArray[Any]]
"""A function from a tensor name, and whether a private map is wanted, to the array of one checkpoint."""


class Checkpoint(Mapping[str, Any]):
    """A member's weights at one step; a mapping from tensor names to read-only numpy views.

    Parameters
    ----------
    arch
        its tensors.
    row
        its metadata, ``{column: value}``, or what gives it when it is first asked for.
    variant
        the gauge its weights are in, ``raw`` as trained.
    read
        gives one of its tensors.
    prefetch
        has all its tensors read ahead.
    """

    def __init__(
        self,
        arch: Architecture,
        row: dict[str, Any] | Callable[[], dict[str, Any]],
        variant: str,
        read: Read,
        prefetch: Callable[[], None],
    ) -> None:
        self.arch, self._row, self.variant, self._read, self._prefetch = arch, row, variant, read, prefetch

    @cached_property
    def row(self) -> dict[str, Any]:
        """Its metadata, ``{column: value}``."""
        return self._row() if callable(self._row) else self._row

    @property
    def id(self) -> str:
        """Its id."""
        return self.row["id"]

    def __repr__(self) -> str:
        return f"<checkpoint {self.id} ({self.variant}), {self.arch.name}>"

    def _repr_html_(self) -> str:
        from ckptzoo.loader.notebook import checkpoint_html

        return checkpoint_html(repr(self)[1:-1], self.arch, self.row)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.arch.names)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._read(name, False)

    def __iter__(self) -> Iterator[str]:
        self._prefetch()  # an iteration over a checkpoint usually reads all of it
        return iter(self.arch.names)

    def __len__(self) -> int:
        return len(self.arch.tensors)

    def state_dict(self) -> dict[str, Any]:
        """torch tensors under every name, aliases of tied tensors too.

        They share the file's pages until they are written to, and writing to them never reaches the file or
        another reader.

        Raises
        ------
        MissingExtraError
            torch is not installed.
        """
        torch = import_torch()
        self._prefetch()
        state: dict[str, Any] = {}
        for tensor in self.arch.tensors:
            state[tensor.name] = torch.tensor_of(self._read(tensor.name, True))
            for alias in tensor.aliases:
                state[alias] = state[tensor.name]
        return state

    def model(self) -> Any:
        """The network with these weights, as a torch module in evaluation mode.

        Raises
        ------
        ZooError
            The architecture names no forward function in ``ckptzoo.archs``.
        MissingExtraError
            torch is not installed.
        """
        if self.arch.forward is None:
            step = "Build the model yourself and call model.load_state_dict(checkpoint.state_dict())."
            raise ZooError(Problem(self.arch.name, "forward function", "a name in ckptzoo.archs", "none", step))
        from ckptzoo import archs

        model = archs.get(self.arch.forward)()
        model.load_state_dict(self.state_dict())
        return model.eval()


def import_torch() -> Any:
    """The module ``ckptzoo.loader.torch``, or an error that names the install command."""
    require("torch", "torch")
    return import_module("ckptzoo.loader.torch")
