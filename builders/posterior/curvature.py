r"""The generalised Gauss-Newton matrix of a trained network's loss over its training set, and its last layer's factors.

With outputs :math:`f(x_n)` of K numbers, :math:`J_n` their (K, P) Jacobian with respect to the parameters and
:math:`H_n` the (K, K) Hessian of example n's loss with respect to the outputs,

.. math:: G = \sum_n J_n^\top H_n J_n

(Schraudolph, "Fast curvature matrix-vector products for second-order gradient descent", Neural Computation 2002),
which for the losses here is the Fisher information of the likelihood that the loss stands for, up to the
factor of ``builders.losses.Likelihood``. With :math:`H_n = S_n S_n^\top`, G is :math:`A^\top A` for A the rows
:math:`S_n^\top J_n` of all examples, one below the other: K backward passes an example, no second derivatives.

A linear last layer with inputs :math:`a_n` has the Jacobian :math:`I \otimes a_n^\top`, and its G is
:math:`\sum_n H_n \otimes a_n a_n^\top`. Where that is too large, it is replaced by the Kronecker product
:math:`\frac{1}{N} \sum_n H_n \otimes \sum_n a_n a_n^\top` (Martens and Grosse, "Optimizing neural networks with
Kronecker-factored approximate curvature", ICML 2015, section 3).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

import torch

from builders import losses
from builders.state import Tensors
from ckptzoo import archs
from ckptzoo.derive import optunet_curvature
from ckptzoo.derive.last_layer import NetworkWithInputs, last_linear
from ckptzoo.derive.optunet_curvature import OptuNetCurvature
from ckptzoo.errors import Problem, ZooError

MAX_DENSE_BYTES = 2**28
"""Bytes of the largest G that is computed in full: of 5,792 parameters. LAPACK's dsyevd takes three times that."""
_BLOCK = 4096
"""Examples whose sum one thread computes; sums of blocks are added in their order."""
_ROW_BYTES = 2**22
"""Rows of A that are computed at a time, so that they are still in the processor's cache when they are used. More for a
large G, all of which is read and written each time.
"""
_OPTUNET = "optunet"
"""The architecture that has a faster method of its own, for all inputs that it takes."""
_FEATURE_EXAMPLES = 256
"""Examples of which the last layer's inputs are computed at a time."""


@dataclass(frozen=True, eq=False)
class TrainingInputs:
    """The examples that a curvature is summed over.

    ``raw`` is (N, ...), as the source holds them, on the CPU; ``network_inputs`` maps some of them to the network's
    inputs, as ``builders.data_source.Feed.network_inputs`` does.
    """

    raw: torch.Tensor
    network_inputs: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.clone

    def batches(self, block: int, size: int, device: torch.device) -> Iterator[torch.Tensor]:
        """Yield the inputs of a block of ``_BLOCK`` examples, at most ``size`` at a time."""
        for batch in self.raw[block : block + _BLOCK].split(size):
            yield self.network_inputs(batch.to(device))


@dataclass(frozen=True, eq=False)
class LastLayer:
    """Kronecker factors of the G of a network's last, linear layer.

    ``inputs`` (F + 1, F + 1) float64 is the sum of :math:`a a^T`, with a constant 1 appended to a for the bias;
    ``outputs`` (K, K) float64 is the sum of :math:`H_n`; ``count`` is N, and ``layer`` the layer's name.
    """

    layer: str
    has_bias: bool
    inputs: torch.Tensor
    outputs: torch.Tensor
    count: int

    @property
    def names(self) -> tuple[str, ...]:
        """The layer's tensors, in the order of ``flatten``."""
        return (f"{self.layer}.weight", f"{self.layer}.bias")[: 1 + self.has_bias]


def parameter_names(architecture: str) -> tuple[str, ...]:
    """Return the tensors that are parameters, in the order in which G has them."""
    return tuple(tensor.name for tensor in archs.architecture(architecture).tensors if tensor.kind == "parameter")


def fits(architecture: str) -> bool:
    """Return whether the whole G of an architecture is small enough to be computed."""
    return 8 * archs.architecture(architecture).parameters ** 2 <= MAX_DENSE_BYTES


def flatten(weights: Tensors, names: tuple[str, ...]) -> torch.Tensor:
    """Concatenate these tensors of one network to (P,) float64 on the CPU."""
    return torch.cat([weights[name].cpu().double().reshape(-1) for name in names])


def unflatten(vector: torch.Tensor, weights: Tensors, names: tuple[str, ...]) -> Tensors:
    """Invert ``flatten``: return a vector (P,) in the shapes, dtype and device of these tensors."""
    pieces = vector.split([weights[name].numel() for name in names])
    return {name: piece.view_as(weights[name]).to(weights[name]) for name, piece in zip(names, pieces, strict=True)}


def gauss_newton(
    architecture: str, loss: str, weights: Tensors, inputs: TrainingInputs, workers: Executor | None = None
) -> torch.Tensor:
    """Compute G of the summed loss over all inputs, (P, P) float64, positive semidefinite, in the order of
    ``flatten(weights, parameter_names(architecture))``.

    ``weights`` ``{name: shape}`` is the state dict of one network, whose dtype is that of the backward passes; its
    buffers are constants, and its inputs are not augmented, as in evaluation. ``workers`` are threads that share the
    examples, each single-threaded within; by default the calling one computes all.

    Products are in float64, so that a direction which changes no output gets an eigenvalue of the square of the
    rounding of the backward passes alone. The bits are the same for any number of workers, if torch is single-threaded
    within each. ``benchmarks/curvature.py`` measures it beside laplace-torch.

    Raises ZooError: it would take more than ``MAX_DENSE_BYTES``; use ``last_layer``.

    >>> weights = {"fc1.weight": torch.tensor([[2.0, 1.0]]), "fc1.bias": torch.tensor([0.0])}
    >>> inputs = TrainingInputs(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    >>> gauss_newton("mlp-2-1", "squared-error", weights, inputs).round(decimals=3).tolist()
    [[2.0, 0.0, 2.0], [0.0, 18.0, 6.0], [2.0, 6.0, 4.0]]
    """
    if not fits(architecture):
        size = archs.architecture(architecture).parameters
        got = f"{8 * size**2} of {size} parameters"
        step = "Use the curvature of the last layer."
        raise ZooError(Problem(architecture, "bytes of the whole curvature", f"at most {MAX_DENSE_BYTES}", got, step))
    device, batch = _device(weights), _batch(architecture, loss, weights, inputs)

    def block_sum(start: int) -> tuple[torch.Tensor, ...]:
        gram = _gram(architecture, loss, weights)
        total: tuple[torch.Tensor, ...] = ()
        for some in inputs.batches(start, batch, device):
            total = _added(total, (gram(some),))
        return total

    return _sum_of_blocks(block_sum, inputs, workers)[0]


def last_layer(
    architecture: str, loss: str, weights: Tensors, inputs: TrainingInputs, workers: Executor | None = None
) -> LastLayer:
    """Compute Kronecker factors of the last layer's G, of any network whose outputs are those of a ``torch.nn.Linear``.
    Arguments and rounding are as in ``gauss_newton``; BatchNorm uses its running statistics.

    Raises ZooError: no linear layer gives the network's outputs, or it is used more than once.

    >>> weights = {"fc1.weight": torch.tensor([[2.0, 1.0]]), "fc1.bias": torch.tensor([0.0])}
    >>> factors = last_layer("mlp-2-1", "squared-error", weights, TrainingInputs(torch.tensor([[1.0, 3.0]])))
    >>> factors.inputs.tolist()
    [[1.0, 3.0, 1.0], [3.0, 9.0, 3.0], [1.0, 3.0, 1.0]]
    """
    two = inputs.network_inputs(inputs.raw[:2].to(_device(weights)))
    layer = last_linear(_module(architecture), weights, two, location=architecture)
    has_bias, device = f"{layer}.bias" in weights, _device(weights)
    root = losses.get(loss).hessian_root

    def block_sums(start: int) -> tuple[torch.Tensor, ...]:
        network = NetworkWithInputs(_module(architecture), layer)
        totals: tuple[torch.Tensor, ...] = ()
        for batch in inputs.batches(start, _FEATURE_EXAMPLES, device):
            outputs, (features,) = network(weights, batch)
            features = features.double()
            if has_bias:
                features = torch.cat([features, features.new_ones(len(features), 1)], 1)
            # H = S S^T, so that the sum of H over a batch is one product of the stacked rows of S^T
            rows = root(outputs).transpose(1, 2).flatten(0, 1)
            totals = _added(totals, (features.T @ features, rows.T @ rows))
        return totals

    products, hessians = _sum_of_blocks(block_sums, inputs, workers)
    return LastLayer(layer, has_bias, products, hessians, len(inputs.raw))


def row_function(architecture: str, loss: str, weights: Tensors) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from inputs (B, ...) to the rows (B R, P) of A; each thread needs its own."""
    module, names, root = _module(architecture), parameter_names(architecture), losses.get(loss).hessian_root
    constants = {name: tensor for name, tensor in weights.items() if name not in names}

    def rows_of_example(example: torch.Tensor) -> torch.Tensor:
        def outputs(parameters: Tensors) -> torch.Tensor:
            return torch.func.functional_call(module, {**parameters, **constants}, (example[None],))[0]

        # not unpacked: by its type it may have a third element
        pulled = torch.func.vjp(outputs, {name: weights[name] for name in names})
        values, pull_back = pulled[0], pulled[1]
        (gradients,) = torch.func.vmap(pull_back)(root(values).T.to(values.dtype))
        return torch.cat([gradients[name].flatten(1) for name in names], 1)

    return lambda inputs: torch.func.vmap(rows_of_example)(inputs).flatten(0, 1)


def _gram(architecture: str, loss: str, weights: Tensors) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from inputs (B, ...) to G, (P, P) float64; each thread needs its own."""
    if architecture == _OPTUNET:
        root = losses.get(loss).hessian_root

        def output_hessian(outputs: torch.Tensor) -> torch.Tensor:
            roots = root(outputs)
            return roots @ roots.transpose(1, 2)

        return OptuNetCurvature(weights, output_hessian).gauss_newton
    rows_of = row_function(architecture, loss, weights)

    def gram(inputs: torch.Tensor) -> torch.Tensor:
        rows = rows_of(inputs).double()
        return rows.T @ rows

    return gram


def _batch(architecture: str, loss: str, weights: Tensors, inputs: TrainingInputs) -> int:
    """Return how many examples G is computed from at a time, whatever the threads, so that no bit depends on them."""
    if architecture == _OPTUNET:
        return optunet_curvature.BATCH
    example = next(inputs.batches(0, 1, _device(weights)))
    rows = row_function(architecture, loss, weights)(example)
    return max(1, max(_ROW_BYTES, 2 * rows.shape[1] ** 2) // rows.nbytes)


def _sum_of_blocks(
    block_sums: Callable[[int], tuple[torch.Tensor, ...]], inputs: TrainingInputs, workers: Executor | None
) -> tuple[torch.Tensor, ...]:
    """Return sums over all examples, from those of each block, added in the order of the blocks."""
    starts = range(0, len(inputs.raw), _BLOCK)
    totals: tuple[torch.Tensor, ...] = ()
    for sums in workers.map(block_sums, starts) if workers else map(block_sums, starts):
        totals = _added(totals, sums)
    return totals


def _added(totals: tuple[torch.Tensor, ...], terms: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Add the terms to the totals in place; return the terms where there are no totals yet."""
    return tuple(total.add_(term) for total, term in zip(totals, terms, strict=True)) if totals else terms


def _module(architecture: str) -> torch.nn.Module:
    """Return the network in evaluation mode, without weights of its own."""
    with torch.device("meta"):
        return archs.get(architecture)().eval()


def _device(weights: Tensors) -> torch.device:
    return next(iter(weights.values())).device
