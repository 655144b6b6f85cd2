"""Weights as one vector."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from array_api_compat import array_namespace

from ckptzoo.learning.forms.stacked_tensors import check_encoded, converted, number_of, one_dtype, restored
from ckptzoo.schema.architecture import Architecture


class FlatForm:
    """All tensors flattened, one after the other in the architecture's order.

    Parameters
    ----------
    architecture
        of the checkpoints.

    Examples
    --------
    >>> import numpy as np
    >>> from ckptzoo import archs
    >>> form = FlatForm(archs.architecture("mlp-2-1"))
    >>> form.encode({"fc1.weight": np.array([[[1.0, 2.0]]]), "fc1.bias": np.array([[3.0]])})
    array([[1., 2., 3.]])
    """

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        sizes = [tensor.size for tensor in architecture.tensors]
        self._ends = list(accumulate(sizes))
        self.size = self._ends[-1]
        """Elements P of one checkpoint."""

    def encode(self, tensors: Mapping[str, Any]) -> Any:
        """Stacked tensors ``{name: (B, *shape)}`` as (B, P), in the dtype of the floating ones.

        Parameters
        ----------
        tensors
            every tensor of the architecture by name, (B, *shape), numpy or torch.

        Raises
        ------
        ZooError
            A tensor is missing, unknown or of another shape; several floating dtypes; or an integer that is not exact
            in the floating one.
        """
        B, dtype = number_of(tensors, self._architecture), one_dtype(tensors, self._architecture)
        parts = [converted(tensors[item.name], dtype).reshape(B, item.size) for item in self._architecture.tensors]
        return array_namespace(*parts).concat(parts, axis=1)

    def decode(self, encoded: Any) -> dict[str, Any]:
        """(B, P) as tensors ``{name: (B, *shape)}``: views where no dtype changes; floats in the dtype of ``encoded``.

        Parameters
        ----------
        encoded
            what ``encode`` returned, or a network's output of that shape.

        Raises
        ------
        ZooError
            The shape is another one.
        """
        check_encoded(encoded, (self.size,), "vectors", self._architecture)
        return {
            tensor.name: restored(
                encoded[:, end - tensor.size : end].reshape(len(encoded), *tensor.shape), tensor.dtype
            )
            for tensor, end in zip(self._architecture.tensors, self._ends, strict=True)
        }
