"""One canonical form for all disguises, twins that are found and alignment that undoes disguises, or a word of it.

On tables of layers in a row of any kinds, and on blocks of published families. A word of it: ``report.unresolved``,
which ``dedupe`` counts as uncertain, ``ties`` of an alignment, and errors that name the group.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import ckptzoo
from ckptzoo.derive import declare, dedupe
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.layout import GaugeName
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, align, apply, canonicalize, fold, trace
from tests.support.effort import examples
from tests.support.families import FAMILIES
from tests.support.rows_of_kinds import KINDS, row_of, weights_of

Weights = Mapping[str, np.ndarray]
GAUGES: tuple[GaugeName | None, ...] = (None, "canonical", "unit-norm", "min-mass")
PAIRS = list(itertools.product(KINDS, repeat=2))
FEW = [("attention", "scaled gates"), ("sign", "rotary"), ("linear", "nonzero"), ("orthogonal", "gates")]


def disguise(table: Symmetry, K: int, seed: int, *, resized: bool = True, signed: bool = True) -> GroupElement:
    made = GroupElement.random(table, K, np.random.default_rng(seed), spread=0.4)
    scales = {name: scale if resized else np.sign(scale) for name, scale in made.scales.items()}
    return GroupElement(
        made.perms, scales if signed else {name: np.abs(it) for name, it in scales.items()}, made.matrices
    )


def distance(first: Weights, second: Weights) -> np.ndarray:
    """(K,) relative."""
    squares = [
        sum(np.square(value).reshape(len(value), -1).sum(axis=1) for value in some)
        for some in ([first[name] - second[name] for name in first], first.values())
    ]
    return np.sqrt(squares[0] / squares[1])


def check_forms(table: Symmetry, weights: Weights) -> None:
    """Two disguises have one canonical form, which stays as it is, but where something is unresolved."""
    K = len(next(iter(weights.values())))
    first, second = (canonicalize(apply(disguise(table, K, seed), weights, table), table) for seed in (1, 2))
    known = ~(first.report.unresolved | second.report.unresolved)
    assert (distance(first.weights, second.weights)[known] < 1e-8).all()
    again = canonicalize(first.weights, table)
    assert (distance(first.weights, again.weights)[known] < 1e-8).all()


def check_alignment(table: Symmetry, weights: Weights) -> None:
    """Disguises are undone in every gauge, but where there are ties, or the gauge is refused."""
    K = len(next(iter(weights.values())))
    pinned = any(action.role == "variance" or action.signs for action in table.actions)
    for gauge in GAUGES:
        element = disguise(
            table,
            K,
            3,
            # channels in front of a normalisation keep their scales in the least mass
            resized=gauge is not None and not (gauge == "min-mass" and pinned),
            signed=table.has_matrices or gauge == "canonical",
        )
        try:
            found = align(apply(element, weights, table), weights, table, gauge=gauge)
        except SymmetryError as error:
            assert "on one axis, got one on two" in str(error) or "units read blocks of matrices" in str(error)
            continue
        sizes = np.sqrt(sum(np.square(value).reshape(K, -1).sum(axis=1) for value in found.reference.values()))
        assert ((found.distance < 1e-6 * sizes) | (found.ties > 0)).all(), gauge


def check_twins(table: Symmetry, weights: Weights, path: Path) -> None:
    """Disguised copies are found, or counted as uncertain."""
    K = len(next(iter(weights.values())))
    copies = apply(disguise(table, K, 4), weights, table)
    both = {name: np.concatenate([value, copies[name]]) for name, value in weights.items()}
    arch = Architecture("twins", tuple(Tensor(name, value.shape[1:]) for name, value in both.items()))
    kept = {name: value.astype(np.float32) if value.dtype == np.float64 else value for name, value in both.items()}
    with ckptzoo.create(path, arch=arch, card=ckptzoo.Card("twins", "Networks and disguises.")) as writer:
        writer.add(kept, [{"id": f"n{number}"} for number in range(2 * K)])
    declare(path, table)
    found = dedupe(ckptzoo.open(path))
    groups = sorted(map(sorted, found.groups))
    assert groups == [[f"n{number}", f"n{number + K}"] for number in range(K)] or found.uncertain
    assert not found.skipped


@pytest.mark.parametrize(
    "kinds",
    [*FEW, *(pytest.param(pair, marks=pytest.mark.exhaustive) for pair in PAIRS if pair not in FEW)],
    ids=" then ".join,
)
def test_two_kinds_in_a_row(kinds: tuple[str, ...], tmp_path: Path) -> None:
    table, shapes = row_of(kinds, PAIRS.index(kinds))
    weights = weights_of(table, shapes, 2, 0)
    check_forms(table, weights)
    check_alignment(table, weights)
    if kinds == FEW[0] or examples(1000) == 1000:
        check_twins(table, weights, tmp_path / "zoo")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 60))])
def test_three_kinds_in_a_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table, shapes = row_of(rng.choice(KINDS, 3).tolist(), seed)
    weights = weights_of(table, shapes, 2, seed)
    check_forms(table, weights)
    check_alignment(table, weights)


@pytest.mark.parametrize(
    "name",
    [name if name == "ResNet" else pytest.param(name, marks=pytest.mark.exhaustive) for name in FAMILIES],
)
def test_blocks_of_published_families(name: str, tmp_path: Path) -> None:
    make, example = FAMILIES[name]
    torch.manual_seed(0)
    module = make()
    traced = trace(module, example())
    rng = np.random.default_rng(0)
    state = {key: module.state_dict()[key].double().numpy() for key in traced.architecture.names}
    noise = {key: 0.3 * rng.standard_normal((2, *value.shape)) for key, value in state.items()}
    stacked = {
        key: value + np.abs(noise[key]) if "running_var" in key else value + noise[key] for key, value in state.items()
    }
    weights = fold(stacked, traced.symmetry)
    check_forms(traced.symmetry, weights)
    check_alignment(traced.symmetry, weights)
    check_twins(traced.symmetry, weights, tmp_path / "zoo")
