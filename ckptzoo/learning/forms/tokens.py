"""Weights as sequences of tokens, as SANE cuts them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from ckptzoo.errors import Problem, ZooError
from ckptzoo.learning.forms.stacked_tensors import (
    Constants,
    check_encoded,
    converted,
    number_of,
    one_dtype,
    restored,
)
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.text import brief_repr


class Tokens(NamedTuple):
    """A batch of sequences; mask and positions are those of every checkpoint, and shared by all batches.

    Attributes
    ----------
    tokens
        (B, T, size) weights, padded with zeros.
    mask
        (T, size) bool, where there is a weight.
    positions
        (T, 3) integers: position in the sequence, layer, and channel in the layer; int16, or int32 where one is greater
        than 32767.
    """

    tokens: Any
    mask: Any
    positions: Any

    __repr__ = brief_repr


@dataclass(frozen=True)
class _ChannelRows:
    """Tensors of which every channel has a row: side by side, a weight and perhaps its bias."""

    tensors: tuple[Tensor, ...]
    count: int
    width: int


class TokensForm:
    """A row for each output channel of a layer: its incoming weights, then its bias, cut into tokens of one size.

    Means and variances of normalisations are layers of their own, with rows of one number. What SANE leaves out
    (counters, biases without a weight) comes behind all others as further layers, so that nothing is lost.

    Source: Schuerholt et al. 2024, arXiv 2406.09997; ``tokenize_checkpoint`` in HSG-AIML/SANE@4a9a57a
    ``src/SANE/datasets/dataset_auxiliaries.py``, with ``ignore_bn=False``.

    Parameters
    ----------
    architecture
        of the checkpoints.
    token_size
        weights in a token; None for as many as the longest row has. (SANE's own search, ``tokensize=0``, looks at
        layers with a bias alone.)

    Raises
    ------
    ZooError
        ``token_size`` is no number from 1 on.

    Examples
    --------
    >>> import numpy as np
    >>> from ckptzoo import archs
    >>> form = TokensForm(archs.architecture("mlp-2-1"), 2)
    >>> found = form.encode({"fc1.weight": np.array([[[1.0, 2.0]]]), "fc1.bias": np.array([[3.0]])})
    >>> found.tokens
    array([[[1., 2.],
            [3., 0.]]])
    >>> found.positions.tolist()
    [[0, 0, 0], [1, 0, 0]]
    """

    def __init__(self, architecture: Architecture, token_size: int | None = None) -> None:
        if token_size is not None and (type(token_size) is not int or token_size < 1):
            raise ZooError(
                Problem("tokens", "token_size", "an integer from 1, or None", repr(token_size), "Choose another.")
            )
        self._architecture, self._layers = architecture, _layers(architecture)
        self.token_size = token_size or max(rows.width for rows in self._layers)
        """Weights in a token."""
        lengths = [-(-rows.width // self.token_size) for rows in self._layers]
        masks, positions = [], []
        for layer, (rows, length) in enumerate(zip(self._layers, lengths, strict=True)):
            # the last token of a row may reach beyond it
            mask = np.arange(length * self.token_size) < rows.width
            masks.append(np.tile(mask.reshape(length, -1), (rows.count, 1)))
            channels = np.repeat(np.arange(rows.count), length)
            positions.append(np.stack([np.full_like(channels, layer), channels], axis=1))
        joined = np.concatenate(positions)
        placed = np.concatenate([np.arange(len(joined))[:, None], joined], axis=1)
        placed = placed.astype(np.int16 if placed.max() <= np.iinfo(np.int16).max else np.int32)
        self._lengths, self._count = lengths, len(placed)
        self._constants = Constants(mask=np.concatenate(masks), positions=placed)

    def encode(self, tensors: Mapping[str, Any]) -> Tokens:
        """Stacked tensors ``{name: (B, *shape)}`` as tokens, in the dtype of the floating ones.

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
        xp, parts = array_namespace(*tensors.values()), []
        for rows, length in zip(self._layers, self._lengths, strict=True):
            sides = [
                converted(tensors[one.name], dtype).reshape(B, rows.count, one.size // rows.count)
                for one in rows.tensors
            ]
            if spare := length * self.token_size - rows.width:
                sides.append(xp.zeros((B, rows.count, spare), dtype=dtype, device=device(sides[0])))
            joined = sides[0] if len(sides) == 1 else xp.concat(sides, axis=2)
            parts.append(joined.reshape(B, rows.count * length, self.token_size))
        tokens = xp.concat(parts, axis=1)
        return Tokens(tokens, **self._constants.beside(tokens))

    def decode(self, encoded: Any) -> dict[str, Any]:
        """Tokens as tensors ``{name: (B, *shape)}``; floats in the dtype of the tokens.

        Parameters
        ----------
        encoded
            ``Tokens``, or their tokens (B, T, size) alone.

        Raises
        ------
        ZooError
            The shape is another one.
        """
        tokens = encoded.tokens if isinstance(encoded, Tokens) else encoded
        check_encoded(tokens, (self._count, self.token_size), "tokens", self._architecture)
        found, start = {}, 0
        for rows, length in zip(self._layers, self._lengths, strict=True):
            part = tokens[:, start : start + rows.count * length]
            part = part.reshape(len(tokens), rows.count, length * self.token_size)
            start, at = start + rows.count * length, 0
            for tensor in rows.tensors:
                width = tensor.size // rows.count
                piece = part[:, :, at : at + width].reshape(len(tokens), *tensor.shape)
                found[tensor.name], at = restored(piece, tensor.dtype), at + width
        for tensor in self._architecture.tensors:
            if not tensor.size:
                found[tensor.name] = restored(tokens[:, :0, :0].reshape(len(tokens), *tensor.shape), tensor.dtype)
        return {name: found[name] for name in self._architecture.names}


def _layers(architecture: Architecture) -> list[_ChannelRows]:
    taken: set[str] = set()
    layers: list[_ChannelRows] = []
    for tensor in architecture.tensors:
        weight = "weight" in tensor.name
        if (
            not tensor.shape
            or not tensor.size
            or not (weight or "running_mean" in tensor.name or "running_var" in tensor.name)
        ):
            continue
        members = [tensor]
        # found by their names, as in SANE's code
        other = tensor.name.replace("weight", "bias")
        if weight and other in architecture and architecture[other].shape == tensor.shape[:1]:
            members.append(architecture[other])
        taken |= {one.name for one in members}
        layers.append(_rows(members))
    rest = [tensor for tensor in architecture.tensors if tensor.name not in taken and tensor.size]
    return [*layers, *(_rows([tensor]) for tensor in rest)]


def _rows(members: list[Tensor]) -> _ChannelRows:
    count = members[0].shape[0] if members[0].shape else 1
    return _ChannelRows(tuple(members), count, sum(one.size for one in members) // count)
