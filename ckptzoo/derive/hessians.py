r"""Hessians of the mean cross-entropy of stacked networks: as matrices, or as their products with vectors. Needs torch.

A product :math:`H v` is the derivative of the inner product of the gradient with v (Pearlmutter, "Fast exact
multiplication by the Hessian", Neural Computation 1994), for all members of a stack and several vectors at once. All is
in float64. At a kink of a ReLU or a max-pool derivatives are those that torch takes.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ckptzoo.derive.forward import STACK, STACK_BYTES, Forward, Weights
from ckptzoo.derive.optunet_curvature import BATCH, OptuNetCurvature
from ckptzoo.errors import Problem, ZooError
from ckptzoo.schema.architecture import Architecture

Values = NDArray[np.float64]
Tensors = Mapping[str, torch.Tensor]

_DIRECTIONS = 16
"""Vectors that a stack is multiplied with at once, at most."""
_BYTES = 32 * 2**20
"""Bytes of activations of a stack and its vectors at once, unless one input has more."""
_LEAST_BATCH = 16
"""Inputs at once, before fewer vectors are taken together."""
_IGNORED = -100
"""The label of inputs that fill up the last batch; it is that of ``torch.nn.functional.cross_entropy``."""


class Hessians:
    """Hessians of stacks of networks on labelled inputs; threads may share one.

    ``inputs`` are (N, *input_shape) float32 and ``labels`` (N,) integers from 0. ``names`` are the tensors with respect
    to which losses are differentiated, in the order of the ``size`` rows of a matrix: floating-point parameters;
    buffers are constants, as in evaluation. Raises ``ZooError`` if the network does not take such inputs, has no such
    parameters, or labels are not classes of it.
    """

    def __init__(
        self,
        arch: Architecture,
        inputs: NDArray[np.float32],
        labels: NDArray[Any],
        *,
        module: torch.nn.Module | None = None,
        device: str = "cpu",
    ) -> None:
        self._forward = Forward(arch, module, device=device)
        classes = self._forward.features(inputs.shape[1:])
        whole = labels.shape == (len(inputs),) and labels.dtype.kind in "iu" and len(labels) > 0
        if not whole or int(labels.min()) < 0 or int(labels.max()) >= classes:
            got = f"{labels.dtype} {labels.shape}" + (f" from {labels.min()} to {labels.max()}" if whole else "")
            step = "Pass a label for every input, counted from 0."
            raise ZooError(Problem(arch.name, "labels", f"{len(inputs)} integers from 0 to {classes - 1}", got, step))
        kept = [t for t in arch.tensors if t.kind == "parameter" and t.size and "float" in t.dtype]
        if not kept:
            step = "Declare the tensors that training moves as parameters."
            raise ZooError(Problem(arch.name, "parameters", "floating-point ones", "none", step))
        self.names, self._sizes = tuple(t.name for t in kept), [t.size for t in kept]
        self.size, self._examples, self._one_by_one = sum(self._sizes), len(inputs), False
        self._shapes, self._aliases = {t.name: t.shape for t in kept}, {t.name: t.aliases for t in arch.tensors}
        own = module is None and arch.forward == "optunet" and inputs.shape[1:] == (1, 28, 28)
        self._has_own = own and device == "cpu"
        self.stack_size = max(1, min(STACK, STACK_BYTES // arch.nbytes))
        at_once = _BYTES // (self.stack_size * self._activation_bytes(inputs.shape[1:]))
        self.directions = max(1, min(_DIRECTIONS, at_once // _LEAST_BATCH))
        batch = max(1, at_once // self.directions)
        self._batches = self._forward.batches(inputs.astype(np.float64), batch)
        filled = np.full(len(self._batches) * len(self._batches[0]), _IGNORED, np.int64)
        filled[: len(labels)] = labels
        self._labels = torch.from_numpy(filled).to(self._batches[0].device).split(len(self._batches[0]))

    def losses(self, weights: Weights) -> Values:
        """Return the (K,) mean losses of K networks, in nats."""
        total = np.zeros(len(next(iter(weights.values()))))
        found = self._forward.outputs(weights, self._batches, stacked=True)
        for outputs, labels in zip(found, self._labels, strict=True):
            repeated = labels.expand(len(outputs), -1)
            losses = functional.cross_entropy(outputs.mT, repeated, ignore_index=_IGNORED, reduction="none")
            total += losses.sum(1).cpu().numpy()
        return total / self._examples

    def matrices(self, weights: Weights) -> tuple[Values, Values]:
        """Return the (K,) mean losses of K networks and their Hessians (K, size, size), symmetric."""
        count = len(next(iter(weights.values())))
        if self._has_own:
            each = [self._of_optunet({name: weights[name][at] for name in self.names}) for at in range(count)]
            return np.array([loss for loss, _ in each]), np.stack([matrix for _, matrix in each])
        columns = np.empty((count, self.size, self.size))
        for start in range(0, self.size, self.directions):
            # as many in the last ones, so that all products have one size
            first = max(0, min(start, self.size - self.directions))
            vectors = np.eye(min(self.directions, self.size), self.size, k=first)
            rows = slice(first, first + len(vectors))
            columns[:, rows] = self.products(weights, np.broadcast_to(vectors, (count, *vectors.shape)))
        return self.losses(weights), (columns + columns.transpose(0, 2, 1)) / 2

    def products(self, weights: Weights, vectors: Values) -> Values:
        """Return the Hessians of K networks times vectors (K, D, size), of the same shape."""
        state, constants = self._forward.tensors(weights, torch.float64)
        directions = self._parts(torch.tensor(vectors, device=self._batches[0].device))
        total = torch.zeros(vectors.shape, dtype=torch.float64)
        for batch, labels in zip(self._batches, self._labels, strict=True):
            multiply = partial(self._products_of_one, constants=constants, batch=batch, labels=labels)
            total += self._each(multiply, state, directions).cpu()
        return (total / self._examples).numpy()

    def _parts(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Cut vectors (..., size) into tensors by name."""
        pieces = flat.split(self._sizes, -1)
        return {
            name: piece.reshape(*piece.shape[:-1], *self._shapes[name])
            for name, piece in zip(self.names, pieces, strict=True)
        }

    def _outputs(self, member: Tensors, constants: Tensors, batch: torch.Tensor) -> torch.Tensor:
        return self._forward.call(self._forward.module(), {**member, **constants}, batch)

    def _products_of_one(
        self, member: Tensors, directions: Tensors, constants: Tensors, batch: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Return (D, size) products for one network and a batch, of the summed loss."""

        def loss(parameters: Tensors) -> torch.Tensor:
            tied = {alias: value for name, value in parameters.items() for alias in self._aliases[name]}
            outputs = self._outputs({**member, **parameters, **tied}, constants, batch)
            return functional.cross_entropy(outputs, labels, ignore_index=_IGNORED, reduction="sum")

        # not unpacked: by its type it may have a third element
        pulled = torch.func.vjp(torch.func.grad(loss), {name: member[name] for name in self.names})
        (found,) = torch.func.vmap(pulled[1])(directions)
        return torch.cat([found[name].flatten(1) for name in self.names], 1)

    def _each(self, function: Any, *stacked: Tensors) -> torch.Tensor:
        """Return the results of all members of a stack, at once or one after the other where vmap cannot."""
        # a thread's module is made now: initial weights are random, which vmap refuses
        self._forward.module()
        if not self._one_by_one:
            try:
                return torch.func.vmap(function)(*stacked)
            # as in ``Forward``: vmap has no rule for an operation; what is wrong with the module is raised by the loop
            except Exception:
                found = self._in_turn(function, *stacked)
                self._one_by_one = True
                return found
        return self._in_turn(function, *stacked)

    @staticmethod
    def _in_turn(function: Any, *stacked: Tensors) -> torch.Tensor:
        count = len(next(iter(stacked[0].values())))
        return torch.stack(
            [function(*({n: v[at] for n, v in each.items()} for each in stacked)) for at in range(count)]
        )

    def _of_optunet(self, weights: Weights) -> tuple[float, Values]:
        """Return mean loss and Hessian of one OptuNet."""
        member = {name: torch.from_numpy(np.array(array, np.float64)) for name, array in weights.items()}
        curvature = OptuNetCurvature(member, _output_hessian)
        inputs, labels = (torch.cat(list(each))[: self._examples] for each in (self._batches, self._labels))
        loss, total = 0.0, torch.zeros(self.size, self.size, dtype=torch.float64)
        for batch, some in zip(inputs.split(BATCH), labels.split(BATCH), strict=True):
            matrix, outputs = curvature.hessian(batch, partial(_output_gradient, labels=some))
            loss += float(functional.cross_entropy(outputs, some, reduction="sum"))
            total += matrix
        return loss / self._examples, (total / self._examples).numpy()

    def _activation_bytes(self, shape: Sequence[int]) -> int:
        """Return the bytes that a product needs for an input and a member: four times what a gradient saves."""
        elements = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal elements
            elements += tensor.numel() if len(tensor.shape) and tensor.shape[0] == 2 else 0
            return tensor

        module = self._forward.module()
        # two inputs tell what has an axis of inputs from weights
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            module(torch.empty(2, *shape, device="meta"))
        return 4 * 8 * max(1, elements // 2, math.prod(shape))


def _output_hessian(outputs: torch.Tensor) -> torch.Tensor:
    """Return the Hessians (B, K, K) of the cross-entropy with respect to outputs (B, K)."""
    likelihoods = torch.softmax(outputs, -1)
    return torch.diag_embed(likelihoods) - likelihoods[:, :, None] * likelihoods[:, None]


def _output_gradient(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the gradients (B, K) of the cross-entropy with respect to outputs (B, K)."""
    return torch.softmax(outputs, -1) - functional.one_hot(labels, outputs.shape[1])
