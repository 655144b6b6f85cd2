"""One checkpoint: its row of metadata, its tensors, its state dict, its model."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.errors import MissingExtraError, ZooError
from ckptzoo.schema.architecture import Architecture

Read = Callable[[str, bool], NDArray[Any]]
"""Tensor name and whether a private map is wanted, to the array of one checkpoint."""


class Checkpoint(Mapping[str, Any]):
    """A member's weights at one step; a mapping from tensor names to read-only numpy views.

    Parameters
    ----------
    row : its metadata, ``{column: value}``.
    variant : the gauge its weights are in, ``raw`` as trained.
    """

    def __init__(
        self, arch: Architecture, row: dict[str, Any], variant: str, read: Read, ahead: Callable[[], None]
    ) -> None:
        self.arch, self.row, self.variant, self._read, self._ahead = arch, row, variant, read, ahead
        self.id: str = row["id"]

    def __repr__(self) -> str:
        return f"<checkpoint {self.id} ({self.variant}), {self.arch.name}>"

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._read(name, False)

    def __iter__(self) -> Iterator[str]:
        self._ahead()  # who walks through a checkpoint reads all of it
        return iter(self.arch.names)

    def __len__(self) -> int:
        return len(self.arch.tensors)

    def state_dict(self) -> dict[str, Any]:
        """torch tensors under every name, aliases of tied tensors too.

        They share the file's pages until they are written to, and writing to them never reaches the file or
        another reader.
        """
        torch = import_torch()
        self._ahead()
        made: dict[str, Any] = {}
        for tensor in self.arch.tensors:
            made[tensor.name] = torch.tensor_of(self._read(tensor.name, True))
            for alias in tensor.aliases:
                made[alias] = made[tensor.name]
        return made

    def model(self) -> Any:
        """The network with these weights, as a torch module in evaluation mode.

        Raises
        ------
        ZooError
            The architecture names no forward function in ``ckptzoo.archs``.
        """
        if self.arch.forward is None:
            raise ZooError(
                f"{self.arch.name}: forward function: expected a name in ckptzoo.archs, got none. "
                "Build the model yourself and call model.load_state_dict(checkpoint.state_dict())."
            )
        model = archs.get(self.arch.forward)()
        model.load_state_dict(self.state_dict())
        return model.eval()


def import_torch() -> Any:
    """torch's side of the loader, or an error that names the install command."""
    try:
        from ckptzoo.loader import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "torch") from error
    return torch
