"""Random matrices of known condition, and comparisons of rows up to their signs."""

import numpy as np


def orthogonal(rng: np.random.Generator, k: int) -> np.ndarray:
    """An orthogonal matrix (k, k), uniformly distributed."""
    Q, R = np.linalg.qr(rng.standard_normal((k, k)))
    return Q * np.sign(np.diag(R))


def invertible(rng: np.random.Generator, k: int, condition: float) -> np.ndarray:
    """A matrix (k, k) with singular values from 1 down to 1 / condition, times a size."""
    size = 10 ** rng.uniform(-2, 2)
    return size * (orthogonal(rng, k) * np.geomspace(1, 1 / condition, k)) @ orthogonal(rng, k)


def keeping_ones(rng: np.random.Generator, d: int) -> np.ndarray:
    """An orthogonal matrix (d, d) that keeps the vector of ones."""
    basis = np.linalg.qr(np.column_stack([np.ones(d), rng.standard_normal((d, d - 1))]))[0][:, 1:]
    return np.full((d, d), 1 / d) + basis @ orthogonal(rng, d - 1) @ basis.T


def with_spectrum(rng: np.random.Generator, values: list[float], m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A pair A (k, m), B (k, n) with the singular values of A^T B given, in a random basis."""
    k = len(values)
    left, right = (np.linalg.qr(rng.standard_normal((width, k)))[0].T for width in (m, n))
    H = invertible(rng, k, 10)
    return H @ (np.sqrt(values)[:, None] * left), np.linalg.inv(H).T @ (np.sqrt(values)[:, None] * right)


def with_signs_of(rows: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Rows (..., k, m) with each one's sign as in the reference."""
    return rows * np.where((rows * reference).sum(axis=-1, keepdims=True) < 0, -1, 1)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest distance in a stack over the norm."""
    return float((np.linalg.norm(one - other, axis=(-1, -2)) / np.linalg.norm(other, axis=(-1, -2))).max())
