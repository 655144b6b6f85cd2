r"""Laplace's approximation from a curvature: the prior precision of the greatest marginal likelihood, and draws.

Around the weights :math:`\theta_*` that minimise the negative logarithm of likelihood times prior,
:math:`N(0, \tau^{-1} I)`, Laplace takes the posterior for

.. math:: N(\theta_*, (G + \tau I)^{-1})

with the generalised Gauss-Newton matrix G of the negative log-likelihood instead of its Hessian (MacKay, "A practical
Bayesian framework for backpropagation networks", Neural Computation 1992; Daxberger et al., "Laplace Redux", NeurIPS
2021, section 2). One eigendecomposition of G serves every :math:`\tau`.
"""

import math
from dataclasses import dataclass

import torch

from builders.posterior.curvature import LastLayer
from ckptzoo.errors import Problem, ZooError, require

_TOLERANCE = 1e-12
"""The accuracy to which the logarithm of the best prior precision is determined."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    r"""Eigenvalues and eigenvectors of a curvature: :math:`(L \otimes R)\,\mathrm{diag}(\lambda)\,(L \otimes R)^T`.

    A full matrix has the (1, 1) identity for L.

    ``values`` (m, n) float64 are at least 0; ``left`` (m, m) and ``right`` (n, n) float64 are orthogonal. With
    ``has_bias`` a vector of weights holds the last column of (m, n) behind all others; else it is in row-major order.
    """

    values: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor
    has_bias: bool = False

    def __len__(self) -> int:
        """Return P, the number of weights."""
        return self.values.numel()

    def inverse_root(self, precision: float, vector: torch.Tensor) -> torch.Tensor:
        r"""Return :math:`(G + \tau I)^{-1/2} v`, the symmetric root, for a vector (P,) float64."""
        rows, columns = self.values.shape
        if self.has_bias:
            # the factors of a last layer take the bias as one more input
            matrix = torch.cat([vector[:-rows].view(rows, -1), vector[-rows:, None]], 1)
        else:
            matrix = vector.view(rows, columns)
        coordinates = self.left.T @ matrix @ self.right / (self.values + precision).sqrt()
        matrix = self.left @ coordinates @ self.right.T
        return torch.cat([matrix[:, :-1].reshape(-1), matrix[:, -1]]) if self.has_bias else matrix.reshape(-1)


def decompose(curvature: torch.Tensor | LastLayer, scale: float = 1.0) -> Spectrum:
    """Return the spectrum of a curvature of the summed loss, as that of the negative log-likelihood; computed on the
    CPU.

    ``curvature`` comes from ``builders.posterior.curvature``: a matrix, or the factors of ``last_layer``, which stand
    for their product divided by N. ``scale`` is that of ``builders.losses.Likelihood``.

    Takes 0.1 s for 392 weights, and grows with the cube of P; for a last layer with F inputs and K outputs with the
    cubes of F + 1 and K. Eigenvalues that rounding made negative are set to 0.

    Raises ZooError: the curvature is not finite, as that of a network that diverged.
    """
    if isinstance(curvature, LastLayer):
        (outer, left), (inner, right) = map(_eigen, (curvature.outputs, curvature.inputs))
        return Spectrum(scale / curvature.count * torch.outer(outer, inner), left, right, curvature.has_bias)
    values, vectors = _eigen(curvature)
    return Spectrum(scale * values[None], values.new_ones(1, 1), vectors)


def log_marginal_likelihood(
    spectrum: Spectrum, precision: float, *, log_likelihood: float, square_norm: float
) -> float:
    r"""Return the logarithm of the marginal likelihood of the data, in Laplace's approximation, for a prior precision.

    .. math:: \log p(D | \theta_*) - \frac{\tau}{2} |\theta_*|^2 + \frac{P}{2} \log \tau
        - \frac{1}{2} \sum_i \log(\lambda_i + \tau)

    (MacKay, "Bayesian interpolation", Neural Computation 1992); exact for a linear model with normal noise.

    ``precision`` is :math:`\tau`; ``log_likelihood`` is :math:`\log p(D | \theta_*)` of all training data, from
    ``builders.losses.Likelihood.log``; ``square_norm`` is :math:`|\theta_*|^2` of the P weights that have the
    posterior.

    Raises ZooError: the precision is not a finite number above 0.
    """
    tau = check_precision(precision)
    log_prior = len(spectrum) * math.log(tau) - tau * square_norm
    return log_likelihood + (log_prior - float((spectrum.values + tau).log().sum())) / 2


def best_precision(spectrum: Spectrum, square_norm: float) -> float:
    r"""Return the prior precision at which ``log_marginal_likelihood`` is greatest.

    There :math:`\tau |\theta_*|^2 = \sum_i \lambda_i / (\lambda_i + \tau)`, the number of well-determined weights
    (MacKay, "Bayesian interpolation"). The left side rises and the right one falls with :math:`\tau`, so that there is
    one such precision. The weights are taken as they are: it is not that of weights trained again with that prior.

    Raises ZooError: there is no greatest: the curvature or the weights are 0, or not finite.
    """
    most = float(spectrum.values.max())
    if not (0 < most < math.inf and 0 < square_norm < math.inf):
        got = f"a largest eigenvalue of {most} and a square norm of {square_norm}"
        step = "Use a network that was trained, or name a prior precision."
        raise ZooError(Problem("laplace", "best prior precision", "both finite and above 0", got, step))

    def excess(log_precision: float) -> float:
        tau = math.exp(log_precision)
        return float((spectrum.values / (spectrum.values + tau)).sum()) - tau * square_norm

    # at the lower end the largest eigenvalue alone gives 1/2 or more, and the square norm at most that; at the upper
    # end the sum is below P
    low, high = min(most, 0.5 / square_norm) / 2, 2 * len(spectrum) / square_norm
    optimize = require("scipy.optimize", "build", package="scipy")
    # in logarithms: precisions of networks span many orders of magnitude
    return math.exp(optimize.brentq(excess, math.log(low), math.log(high), xtol=_TOLERANCE))


def draw(spectrum: Spectrum, mean: torch.Tensor, precision: float, normals: torch.Tensor) -> torch.Tensor:
    r"""Return a draw (P,) float64 from :math:`N(\theta_*, (G + \tau I)^{-1})`: :math:`\theta_* + (G + \tau I)^{-1/2}
    z`.

    The root is the symmetric one, which G determines: no choice of eigenvectors matters, and the draw of a network
    whose neurons are permuted is the draw permuted, if z is.

    ``mean`` is :math:`\theta_*`, (P,) float64, ``precision`` is :math:`\tau`, and ``normals`` (P,) float64 is z,
    standard normal, such as ``builders.rng.normals`` of one member.

    Raises ZooError: the precision is not a finite number above 0.
    """
    return mean + spectrum.inverse_root(check_precision(precision), normals)


def check_precision(value: float) -> float:
    """Return a prior precision; raises ZooError if it is not a finite number above 0."""
    if not 0 < value < math.inf:
        step = "Name another, or leave it to the marginal likelihood."
        raise ZooError(Problem("laplace", "prior precision", "a finite number above 0", str(value), step))
    return value


def _eigen(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if not matrix.isfinite().all():
        step = "Use a network that did not diverge."
        raise ZooError(Problem("laplace", "curvature", "finite numbers", "others", step))
    values, vectors = torch.linalg.eigh(matrix.cpu())
    # G is positive semidefinite, and rounding leaves small negative eigenvalues
    return values.clamp_min(0), vectors
