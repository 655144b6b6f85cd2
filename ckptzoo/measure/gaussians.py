"""Distances and divergences of Gaussians with independent weights, and their signal-to-noise ratios."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, ZooError

Values = NDArray[np.float64]


@checked
def wasserstein(mean: ArrayLike, std: ArrayLike, other_mean: ArrayLike, other_std: ArrayLike) -> Values:
    r"""The 2-Wasserstein distance of Gaussians with diagonal covariances.

    .. math:: W_2^2 = \| \mu - \mu' \|^2 + \| \sigma - \sigma' \|^2

    (Dowson and Landau, J. Multivariate Analysis 12, 1982, for covariances that commute; arXiv 2310.10171 aligns by it.)

    Parameters
    ----------
    mean, std
        (..., D), deviations above 0.
    other_mean, other_std
        (..., D), broadcast against the first.

    Returns
    -------
    Values
        (...) float64.

    Raises
    ------
    ZooError
        A deviation is not above 0, or not finite.

    Examples
    --------
    >>> float(wasserstein([0.0, 0.0], [1.0, 1.0], [3.0, 0.0], [5.0, 1.0]))
    5.0
    """
    first, second = _checked(mean, std), _checked(other_mean, other_std)
    _check_shapes(*first, *second)
    return np.sqrt(sum(np.square(one - other).sum(axis=-1) for one, other in zip(first, second, strict=True)))


@checked
def divergence(mean: ArrayLike, std: ArrayLike, other_mean: ArrayLike, other_std: ArrayLike) -> Values:
    r"""The Kullback-Leibler divergence of Gaussians with diagonal covariances, in nats.

    .. math:: KL(q \| q') = \sum_d \log \frac{\sigma'_d}{\sigma_d}
              + \frac{\sigma_d^2 + (\mu_d - \mu'_d)^2}{2 \sigma_d'^2} - \frac{1}{2}

    Errors are those of ``wasserstein``.

    Parameters
    ----------
    mean
        of the first Gaussians, along the last axis.
    std
        their standard deviations.
    other_mean
        of the second Gaussians.
    other_std
        their standard deviations.

    Examples
    --------
    >>> round(float(divergence([0.0], [1.0], [3.0], [2.0])), 6)
    1.443147
    """
    (mu, sigma), (other_mu, other_sigma) = _checked(mean, std), _checked(other_mean, other_std)
    _check_shapes(mu, sigma, other_mu, other_sigma)
    ratio = np.square(sigma) + np.square(mu - other_mu)
    return (np.log(other_sigma / sigma) + ratio / (2 * np.square(other_sigma)) - 0.5).sum(axis=-1)


@checked
def signal_to_noise(mean: ArrayLike, std: ArrayLike) -> Values:
    r"""The ratios :math:`|\mu| / \sigma`, elementwise; by the smallest weights are pruned (Blundell et al. 2015).

    Errors are those of ``wasserstein``.

    Parameters
    ----------
    mean
        of the Gaussians.
    std
        their standard deviations.

    Examples
    --------
    >>> signal_to_noise([1.0, -3.0], [2.0, 2.0]).tolist()
    [0.5, 1.5]
    """
    mu, sigma = _checked(mean, std)
    _check_shapes(mu, sigma)
    return np.abs(mu) / sigma


def joined(weights: Mapping[str, ArrayLike]) -> tuple[Values, Values]:
    """Means and deviations of stacked networks of a Gaussian architecture, in the order of the tensors.

    ``weights`` maps tensor names to (K, *shape); a tensor ``<name>_std`` holds the deviations of the tensor ``<name>``.
    Returns two arrays (K, D) float64. Raises ``ZooError`` if a tensor has no deviations.

    Examples
    --------
    >>> mean, std = joined({"fc.weight": [[1.0, 2.0]], "fc.weight_std": [[0.1, 0.2]]})
    >>> mean.tolist(), std.tolist()
    ([[1.0, 2.0]], [[0.1, 0.2]])
    """
    names = [name for name in weights if not name.endswith(_STD)]
    if lacking := [name for name in names if name + _STD not in weights]:
        step = "Leave buffers out, and take a network of a gaussian- architecture."
        raise ZooError(
            Problem("weights", f"deviations of {lacking[0]!r}", f"a tensor {lacking[0] + _STD!r}", "none", step)
        )
    arrays = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    flat = {name: array.reshape(len(array), -1) for name, array in arrays.items()}
    return (
        np.concatenate([flat[name] for name in names], axis=1),
        np.concatenate([flat[name + _STD] for name in names], axis=1),
    )


_STD = "_std"
"""The suffix of the names of deviations, as in ``ckptzoo.archs.gaussian``."""


def _checked(mean: ArrayLike, std: ArrayLike) -> tuple[Values, Values]:
    mu, sigma = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    # a comparison with NaN is false
    if not ((sigma > 0) & np.isfinite(sigma)).all():
        got = repr(float(sigma[~((sigma > 0) & np.isfinite(sigma))].flat[0]))
        raise ZooError(Problem("Gaussian", "deviations", "finite numbers above 0", got, "Leave out what is not one."))
    return mu, sigma


def _check_shapes(*arrays: Values) -> None:
    """Refuse arrays that cannot be broadcast together."""
    try:
        np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        got = " and ".join(dict.fromkeys(str(array.shape) for array in arrays))
        step = "Pass as many means as deviations."
        raise ZooError(Problem("Gaussian", "shapes", "means and deviations of one shape", got, step)) from None
