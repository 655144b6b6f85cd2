r"""The logarithm of a posterior's density over all weights of a network, in JAX, whose samplers take its gradient.

.. math:: \log p(\theta) = -\frac1T \sum_n \ell(f_\theta(x_n), y_n) - \frac{|\theta|^2}{2 \sigma^2}

up to a constant: the loss of each example as ``builders.losses`` has it, over a temperature T of the likelihood alone,
and a normal prior with the standard deviation :math:`\sigma` for every weight and bias. At T = 1 the cross-entropies
are negative log-likelihoods; the squared error is one for noise of variance T / 2.

The network is evaluated in the precision of the recipe, with examples along the last axis. Sums over examples and over
weights are in float64.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from builders.recipe import CROSS_ENTROPY, FLOAT32, FLOAT64, Recipe
from ckptzoo.errors import Problem

_ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {"relu": jax.nn.relu, "tanh": jnp.tanh}


def _cross_entropy(outputs: Any, targets: Any) -> Any:
    chosen = jnp.arange(len(outputs))[:, None] == targets
    # logsumexp subtracts the largest output, so that no exponential overflows
    return jax.nn.logsumexp(outputs, axis=0) - jnp.where(chosen, outputs, 0).sum(0)


def _binary_cross_entropy(outputs: Any, targets: Any) -> Any:
    # log(1 + e^z), computed without the exponential's overflow
    return jax.nn.softplus(outputs[0]) - targets * outputs[0]


def _squared_error(outputs: Any, targets: Any) -> Any:
    return jnp.square(outputs[0] - targets)


_LOSSES = {
    CROSS_ENTROPY: _cross_entropy,
    "binary-cross-entropy": _binary_cross_entropy,
    "squared-error": _squared_error,
}
"""The loss of each example, (N,), as a function of outputs (K, N) and targets (N,)."""


def refusals(method: str, recipe: Recipe) -> Iterator[Problem]:
    """Yield why there is no density for a recipe, where there is none."""
    location = f"method {method!r} for {recipe.name!r}"
    if _outputs(recipe.architecture) is None:
        expected, step = "mlp-... or optunet", "Choose another method, or write its forward function in JAX."
        yield Problem(location, "architecture", expected, recipe.architecture, step)
    for key, known in (("loss", tuple(_LOSSES)), ("precision", (FLOAT32, FLOAT64))):
        if getattr(recipe, key) not in known:
            yield Problem(location, key, " or ".join(known), getattr(recipe, key), "Choose another method or recipe.")


def log_density(recipe: Recipe, prior: float, temperature: float, inputs: Any, targets: Any) -> Callable[[Any], Any]:
    """Return the function from (P,) float64, the weights of the architecture's tensors one after another, to the
    logarithm of the density there, a float64 scalar, within ``jax.enable_x64``.

    ``prior`` is the standard deviation of every weight, ``temperature`` is T; ``inputs`` and ``targets`` are JAX arrays
    of the results of ``examples_last``.

    A gradient for ``mlp-196-16-10`` on 1,000 examples takes 0.15 ms of one core, and 30 ms for ``optunet``. Tested
    against torch in ``tests/builders/posterior/test_log_density.py``.
    """
    outputs, loss = _outputs(recipe.architecture), _LOSSES[recipe.loss]
    assert outputs is not None
    dtype = _dtype(recipe)

    def density(position: Any) -> Any:
        # products of float32 numbers are rounded to fewer digits on some devices unless it is asked for all of them
        with jax.default_matmul_precision("highest"):
            losses = loss(outputs(_tensors(recipe, position.astype(dtype)), inputs), targets)
        return -losses.astype(jnp.float64).sum() / temperature - jnp.square(position / prior).sum() / 2

    return density


def examples_last(recipe: Recipe, inputs: NDArray[Any], targets: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return training examples, inputs (N, ...) as the network sees them and targets (N,), as the density takes them.

    The inputs become (D, N) for perceptrons, D the size of an example, or (28, 28, N) for OptuNet; the targets (N,) are
    int32 for labels, and all else is in the precision of the recipe.
    """
    last = np.moveaxis(inputs.reshape(len(inputs), -1) if _is_mlp(recipe.architecture) else inputs[:, 0], 0, -1)
    dtype = _dtype(recipe)
    kind = np.int32 if recipe.loss == CROSS_ENTROPY else dtype
    return np.ascontiguousarray(last, dtype=dtype), targets.astype(kind)


def _tensors(recipe: Recipe, position: Any) -> dict[str, Any]:
    ends = np.cumsum([tensor.size for tensor in recipe.arch.tensors]).tolist()
    parts = jnp.split(position, ends[:-1])
    return {tensor.name: part.reshape(tensor.shape) for tensor, part in zip(recipe.arch.tensors, parts, strict=True)}


def _dtype(recipe: Recipe) -> type[np.floating[Any]]:
    return np.float64 if recipe.precision == FLOAT64 else np.float32


def _is_mlp(architecture: str) -> bool:
    return architecture.startswith("mlp-")


def _outputs(architecture: str) -> Callable[[dict[str, Any], Any], Any] | None:
    """Return the forward function, from tensors and inputs to outputs (K, N); None where there is none."""
    if _is_mlp(architecture):
        name = architecture.split("-")[1]
        return _mlp(_ACTIVATIONS.get(name, jax.nn.relu))
    return _optunet if architecture == "optunet" else None


def _mlp(activation: Callable[[Any], Any]) -> Callable[[dict[str, Any], Any], Any]:
    def outputs(weights: dict[str, Any], inputs: Any) -> Any:
        hidden, count = inputs, len(weights) // 2
        for number in range(1, count + 1):
            hidden = weights[f"fc{number}.weight"] @ hidden + weights[f"fc{number}.bias"][:, None]
            hidden = activation(hidden) if number < count else hidden
        return hidden

    return outputs


def _optunet(weights: dict[str, Any], images: Any) -> Any:
    """Return OptuNet's outputs; each convolution is a product with patches (pixels, places x images)."""
    count = images.shape[-1]
    before = weights["conv1.weight"].reshape(2, 16) @ _patches(images[None], 4, 24)[0]
    # the last of the 25 places are in no window of the max-pool
    maps = jax.nn.relu(before.reshape(2, 8, 3, 8, 3, count).max((2, 4)))
    kernels = weights["conv2.weight"].reshape(2, 5, 25)
    hidden = jnp.einsum("gok,gkp->gop", kernels, _patches(maps, 5, 4)).reshape(10, 16, count)
    return weights["fc.weight"] @ jax.nn.relu(hidden).mean(1) + weights["fc.bias"][:, None]


def _patches(maps: Any, kernel: int, places: int) -> Any:
    """Return (C, kernel**2, places**2 * N), the first ``places`` x ``places`` patches of maps (C, H, W, N)."""
    shifts = [maps[:, i : i + places, j : j + places] for i in range(kernel) for j in range(kernel)]
    return jnp.stack(shifts, 1).reshape(len(maps), kernel**2, -1)
