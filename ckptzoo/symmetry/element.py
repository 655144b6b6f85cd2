"""Elements of a network's symmetry group, K at a time: identity, random, compose, inverse."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ckptzoo.arguments import Size, checked
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import MATRICES, Fixed, Group, Like, Sym, Wreath
from ckptzoo.symmetry.arrays import as_array, beside, to_numpy
from ckptzoo.symmetry.tables import Arch, table_of
from ckptzoo.text import brief_repr

MOST_CONDITION = 1e12
"""Of an invertible matrix; beyond it float64 leaves fewer than four digits of what it acts on."""
ORTHOGONAL = 1e-9
"""By how much an entry of G G^T may differ from the identity's."""


@dataclass(frozen=True, eq=False)
class GroupElement:
    """K elements of a symmetry group: ``new[i] = scale[i] * old[perm[i]]`` for the channels of each group.

    With matrices, ``new = matrix[b] @ old[perm[block b]]`` for block b of k channels.

    Parameters
    ----------
    perms
        group id to (K, n) integers, each row a permutation; whole blocks alone move where there are matrices.
    scales
        group id to (K, n) float64, for the groups that scale.
    matrices
        group id to (K, blocks, k, k) float64, for the groups with matrices, or (K, n, 2) real and imaginary parts of
        complex numbers.

    Notes
    -----
    All are of numpy, or all of torch on one device.
    """

    perms: Mapping[str, Any]
    scales: Mapping[str, Any]
    matrices: Mapping[str, Any] = field(default_factory=dict)

    __repr__ = brief_repr

    def __len__(self) -> int:
        return len(next(iter(self.perms.values())))

    def __getitem__(self, rows: slice | np.ndarray) -> "GroupElement":
        """The elements of some of the K checkpoints."""
        return GroupElement(
            {name: perm[rows] for name, perm in self.perms.items()},
            {name: scale[rows] for name, scale in self.scales.items()},
            {name: matrix[rows] for name, matrix in self.matrices.items()},
        )

    @classmethod
    @checked
    def identity(cls, symmetry: Arch, K: Size) -> "GroupElement":
        """The K-fold identity.

        Parameters
        ----------
        symmetry
            the table of the network's groups, or whatever names a network, as for ``canonicalize``.
        K
            how many.
        """
        symmetry = table_of(symmetry)
        return cls(
            {group.id: np.tile(np.arange(group.n), (K, 1)) for group in symmetry.groups},
            {group.id: np.ones((K, group.n)) for group in symmetry.groups if group.scaled},
            {group.id: _identity(group, K) for group in symmetry.groups if group.scale in MATRICES},
        )

    @classmethod
    @checked
    def random(cls, symmetry: Arch, K: Size, rng: np.random.Generator, *, spread: float = 1.0) -> "GroupElement":
        """Uniform permutations; scales of sizes ``exp(spread * N(0, 1))`` and of signs by a fair coin, where free.

        Matrices are ``U diag(exp(spread * N(0, 1))) V`` with uniform orthogonal U and V, or uniform orthogonal ones;
        complex numbers have such a modulus and a uniform phase.

        Parameters
        ----------
        symmetry
            the table of the network's groups, or whatever names a network, as for ``canonicalize``.
        K
            how many.
        rng
            what they are drawn with.
        spread
            standard deviation of the logarithms of scales.
        """
        symmetry = table_of(symmetry)
        outers = {
            perm.outer: _shuffles(rng, K, perm.g)
            for perm in (group.perm for group in symmetry.groups)
            if isinstance(perm, Wreath)
        }
        perms: dict[str, np.ndarray] = {}
        scales: dict[str, np.ndarray] = {}
        matrices: dict[str, np.ndarray] = {}
        for group in symmetry.groups:
            if group.scale in MATRICES:
                matrices[group.id] = _random_matrices(group, K, rng, spread)
            if isinstance(group.perm, Like):
                perms[group.id] = perms[group.perm.group].copy()
            else:
                perms[group.id] = _random_perm(group, K, rng, outers)
            if group.resizes:
                scales[group.id] = np.exp(spread * rng.standard_normal((K, group.n)))
            if group.flips:
                scales[group.id] = scales.get(group.id, 1.0) * rng.choice([-1.0, 1.0], (K, group.n))
        return cls(perms, scales, matrices)

    def to(self, like: Any) -> "GroupElement":
        """The same elements in the framework and on the device of an array; they may share their memory with these.

        Parameters
        ----------
        like
            a numpy array or a torch tensor.

        Raises
        ------
        SymmetryError
            The device has no float64, which scales need.
        """
        kinds = (self.perms, self.scales, self.matrices)
        return GroupElement(*({name: beside(item, like) for name, item in kind.items()} for kind in kinds))

    def compose(self, first: "GroupElement") -> "GroupElement":
        """``self`` after ``first``: ``(g h) . theta = g . (h . theta)``.

        Parameters
        ----------
        first
            the elements that act first, as many as these.
        """
        perms = {name: _taken(first.perms[name], perm) for name, perm in self.perms.items()}
        scales = {name: scale * _taken(first.scales[name], self.perms[name]) for name, scale in self.scales.items()}
        matrices = {
            name: matrix_product(matrix, _blocks_taken(first.matrices[name], self.perms[name]))
            for name, matrix in self.matrices.items()
        }
        return GroupElement(perms, scales, matrices)

    def inverse(self) -> "GroupElement":
        """The element that undoes this one: exactly for permutations, to rounding for scales and matrices."""
        perms = {name: array_namespace(perm).argsort(perm, axis=1) for name, perm in self.perms.items()}
        scales = {name: 1 / _taken(scale, perms[name]) for name, scale in self.scales.items()}
        matrices = {name: _blocks_taken(inverse_of(item), perms[name]) for name, item in self.matrices.items()}
        return GroupElement(perms, scales, matrices)

    def check(self, symmetry: Arch) -> None:
        """Refuse what is no element of the table's group.

        Parameters
        ----------
        symmetry
            the table of the network's groups, or whatever names a network, as for ``canonicalize``.

        Raises
        ------
        SymmetryError
            A group is missing or unknown, a row is no permutation or breaks its blocks, groups that share a
            block permutation disagree, or a scale or a matrix is of the wrong kind.
        """
        symmetry = table_of(symmetry)
        scaled = [group.id for group in symmetry.groups if group.scaled]
        for what, found, expected in (
            ("perms", self.perms, [group.id for group in symmetry.groups]),
            ("scales", self.scales, scaled),
            ("matrices", self.matrices, [group.id for group in symmetry.groups if group.scale in MATRICES]),
        ):
            if set(found) != set(expected):
                raise _refused(what, ", ".join(expected) or "none", ", ".join(sorted(found)) or "none")
        perms = {name: to_numpy(perm) for name, perm in self.perms.items()}
        outers: dict[str, np.ndarray] = {}
        for group in symmetry.groups:
            _check_perm(group, perms[group.id], len(self), outers)
            if (perms[group.id] != perms[leader := symmetry.leader(group.id).id]).any():
                raise _refused(f"group {group.id!r}: perm", f"that of {leader!r}, which it is like", "another one")
            if group.scaled:
                _check_scale(group, to_numpy(self.scales[group.id]), len(self))
            if group.scale in MATRICES:
                _check_matrices(group, perms[group.id], to_numpy(self.matrices[group.id]), len(self))

    def to_tensors(self) -> dict[str, Any]:
        """The stacked tensors that a zoo stores: ``<group>.perm`` int32, ``<group>.scale`` and ``.matrix`` float64."""
        perms = {name: (array_namespace(perm), perm) for name, perm in self.perms.items()}
        stored: dict[str, Any] = {f"{name}.perm": xp.astype(perm, xp.int32) for name, (xp, perm) in perms.items()}
        stored |= {f"{name}.scale": scale for name, scale in self.scales.items()}
        return stored | {f"{name}.matrix": matrix for name, matrix in self.matrices.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> "GroupElement":
        """What ``to_tensors`` made, or what a zoo holds of it: numpy, torch, or anything that numpy can read.

        Parameters
        ----------
        tensors
            ``<group>.perm``, ``<group>.scale`` of groups that scale, ``<group>.matrix`` of those with matrices.
        """
        found: dict[str, dict[str, Any]] = {"perm": {}, "scale": {}, "matrix": {}}
        for name, value in tensors.items():
            group, _, kind = name.rpartition(".")
            if kind not in found:
                raise _refused(f"tensor {name!r}", "a name that ends in .perm, .scale or .matrix", repr(name))
            found[kind][group] = as_array(value)
        return cls(found["perm"], found["scale"], found["matrix"])


def block_move(perm: Wreath, outer: np.ndarray) -> np.ndarray:
    """The (K, n) permutation that moves whole blocks by ``outer`` (K, g) and leaves their insides in order."""
    return (outer[:, :, None] * perm.k + np.arange(perm.k)).reshape(len(outer), perm.g * perm.k)


def inverse_of(matrices: Any) -> Any:
    """Inverses of matrices (K, blocks, k, k), or of complex numbers (K, n, 2)."""
    xp = array_namespace(matrices)
    if matrices.ndim == 4:
        return xp.linalg.inv(matrices)
    real, imaginary = matrices[..., 0], matrices[..., 1]
    squares = real * real + imaginary * imaginary
    return xp.stack([real / squares, -imaginary / squares], axis=-1)


def _identity(group: Group, K: int) -> np.ndarray:
    shape = group.matrix_shape
    assert shape is not None
    one = np.eye(shape[-1]) if len(shape) == 3 else np.array([1.0, 0.0])
    return np.broadcast_to(one, (K, *shape)).copy()


def matrix_product(second: Any, first: Any) -> Any:
    """Matrices (K, blocks, k, k) after others, or products of complex numbers (K, n, 2)."""
    xp = array_namespace(second, first)
    if second.ndim == 4:
        return xp.matmul(second, first)
    a, b, c, d = second[..., 0], second[..., 1], first[..., 0], first[..., 1]
    return xp.stack([a * c - b * d, a * d + b * c], axis=-1)


def _blocks_taken(matrices: Any, perm: Any) -> Any:
    """The matrices of every block in the order of the permutation (K, n) of the channels."""
    xp = array_namespace(matrices, perm)
    K, blocks = matrices.shape[:2]
    k = perm.shape[1] // blocks
    order = xp.astype(perm[:, ::k] // k, xp.int64, copy=False)
    flat = xp.reshape(matrices, (K, blocks, -1))
    index = xp.broadcast_to(order[:, :, None], flat.shape)
    return xp.reshape(xp.take_along_axis(flat, index, axis=1), matrices.shape)


def _random_matrices(group: Group, K: int, rng: np.random.Generator, spread: float) -> np.ndarray:
    shape = group.matrix_shape
    assert shape is not None
    if group.scale == "complex":
        phases, sizes = rng.uniform(-np.pi, np.pi, (K, group.n)), np.exp(spread * rng.standard_normal((K, group.n)))
        return np.stack([sizes * np.cos(phases), sizes * np.sin(phases)], axis=-1)
    k = shape[-1]
    if group.scale == "linear":
        sizes = np.exp(spread * rng.standard_normal((K, *shape[:2])))
        return _orthogonal(rng, (K, *shape)) * sizes[..., None, :] @ _orthogonal(rng, (K, *shape))
    if group.scale == "orthogonal":
        return _orthogonal(rng, (K, *shape))
    return keeping_ones(_orthogonal(rng, (K, shape[0], k - 1, k - 1)))


def keeping_ones(inner: np.ndarray) -> np.ndarray:
    """Orthogonal matrices (..., k, k) that keep the vector of ones, from ones (..., k - 1, k - 1) beside it."""
    k = inner.shape[-1] + 1
    basis = np.tril(np.ones((k, k)), -1)  # Helmert's: the first row is constant, the others are orthogonal to it
    basis[np.arange(1, k), np.arange(1, k)] = -np.arange(1.0, k)
    basis[0] = 1
    basis /= np.linalg.norm(basis, axis=1, keepdims=True)
    whole = np.broadcast_to(np.eye(k), (*inner.shape[:-2], k, k)).copy()
    whole[..., 1:, 1:] = inner
    return basis.T @ whole @ basis


def _orthogonal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return uniform_orthogonal(rng.standard_normal(shape))


def uniform_orthogonal(normal: np.ndarray) -> np.ndarray:
    """Uniform orthogonal matrices from Gaussian ones (..., k, k): Q, with the signs of R's diagonal (Stewart 1980)."""
    if not normal.shape[-1]:
        return normal
    q, r = np.linalg.qr(normal)
    return q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]


def _taken(values: Any, perm: Any) -> Any:
    """Every row in the order of its permutation."""
    xp = array_namespace(values, perm)
    return xp.take_along_axis(values, xp.astype(perm, xp.int64, copy=False), axis=1)


def _shuffles(rng: np.random.Generator, K: int, n: int) -> np.ndarray:
    return rng.permuted(np.tile(np.arange(n), (K, 1)), axis=1)


def _random_perm(group: Group, K: int, rng: np.random.Generator, outers: Mapping[str, np.ndarray]) -> np.ndarray:
    perm = group.perm
    if isinstance(perm, Fixed) or (isinstance(perm, Sym) and group.scale in MATRICES):
        return np.tile(np.arange(group.n), (K, 1))
    if isinstance(perm, Wreath):
        if perm.inner == "fixed" or group.scale in MATRICES:
            return block_move(perm, outers[perm.outer])
        inside = _shuffles(rng, K * perm.g, perm.k).reshape(K, perm.g, perm.k)
        return (outers[perm.outer][:, :, None] * perm.k + inside).reshape(K, group.n)
    return _shuffles(rng, K, group.n)


def _check_perm(group: Group, perm: np.ndarray, K: int, outers: dict[str, np.ndarray]) -> None:
    what = f"group {group.id!r}: perm"
    if perm.shape != (K, group.n) or perm.dtype.kind not in "iu":
        raise _refused(what, f"({K}, {group.n}) integers", f"{perm.shape} {perm.dtype}")
    if (np.sort(perm, axis=1) != np.arange(group.n)).any():
        raise _refused(what, f"each of 0 to {group.n - 1} once in every row", "another row")
    if isinstance(group.perm, Fixed) and (perm != np.arange(group.n)).any():
        raise _refused(what, "the identity, as the group is Fixed", "another permutation")
    if isinstance(group.perm, Wreath):
        blocks = (perm // group.perm.k).reshape(K, group.perm.g, group.perm.k)
        outer = blocks[:, :, 0]
        if (blocks != outer[:, :, None]).any():
            raise _refused(what, f"blocks of {group.perm.k} channels that stay together", "a channel across")
        if (outers.setdefault(group.perm.outer, outer) != outer).any():
            raise _refused(what, f"the block permutation {group.perm.outer!r} of the groups before", "another one")
        if group.perm.inner == "fixed" and (perm != block_move(group.perm, outer)).any():
            raise _refused(what, "channels that keep their order within their block", "another order")


def _check_matrices(group: Group, perm: np.ndarray, matrices: np.ndarray, K: int) -> None:
    what, shape = f"group {group.id!r}: matrix", group.matrix_shape
    assert shape is not None
    if matrices.shape != (K, *shape) or matrices.dtype != np.float64:
        raise _refused(what, f"({K}, {', '.join(map(str, shape))}) float64", f"{matrices.shape} {matrices.dtype}")
    if not np.isfinite(matrices).all():
        raise _refused(what, "finite numbers", "another: where a block has no element, its weights are stored alone")
    k = group.n // shape[0]
    if (perm != (perm[:, ::k, None] + np.arange(k)).reshape(perm.shape)).any():
        raise _refused(
            f"group {group.id!r}: perm", "blocks whose channels stay in order, as matrices mix them", "others"
        )
    if group.scale == "complex":
        if not (matrices != 0).any(axis=-1).all():
            raise _refused(what, "complex numbers other than 0", "0")
        return
    if group.scale == "linear":
        condition = float(np.linalg.cond(matrices).max(initial=1.0))
        if not condition <= MOST_CONDITION:
            raise _refused(what, f"an invertible matrix, of condition {MOST_CONDITION:g} at most", f"{condition:.3g}")
        return
    off = float(np.abs(matrices @ matrices.swapaxes(-1, -2) - np.eye(shape[-1])).max(initial=0.0))
    if off > ORTHOGONAL:
        raise _refused(what, "an orthogonal matrix", f"one with |G G^T - 1| of {off:.3g}")
    if group.scale == "orthogonal_mean" and (off := float(np.abs(matrices.sum(axis=-1) - 1).max())) > ORTHOGONAL:
        raise _refused(what, "a matrix that keeps the vector of ones", f"one that changes it by {off:.3g}")


def _check_scale(group: Group, scale: np.ndarray, K: int) -> None:
    what = f"group {group.id!r}: scale"
    if scale.shape != (K, group.n) or scale.dtype != np.float64:
        raise _refused(what, f"({K}, {group.n}) float64", f"{scale.shape} {scale.dtype}")
    if group.scale == "nonzero" and not (np.isfinite(scale) & (scale != 0)).all():
        got = str(scale[~(np.isfinite(scale) & (scale != 0))][0])
        raise _refused(what, "finite numbers other than 0", got)
    if group.scale == "sign" and (np.abs(scale) != 1).any():
        raise _refused(what, "+1 or -1", str(scale[np.abs(scale) != 1][0]))
    if group.scale == "positive" and not ((scale > 0) & (scale < np.inf)).all():
        raise _refused(what, "positive finite numbers", str(scale[~((scale > 0) & (scale < np.inf))][0]))


def _refused(what: str, expected: str, got: str) -> SymmetryError:
    return SymmetryError(
        f"group element: {what}: expected {expected}, got {got}. Make elements with GroupElement or canonicalize."
    )
