"""Distances in blocks of columns: against exact fractions, within the bounds that are stated."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import ZooError
from ckptzoo.measure import Distances, distance_backends, distances, panels
from ckptzoo.measure.distance_backends import CHUNK
from tests.support.effort import FEW_EXAMPLES, examples

U32, U64 = 2.0**-24, 2.0**-53


@pytest.fixture(params=["numpy", "numba"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways, whatever the number of differences."""
    monkeypatch.setattr(distance_backends, "COMPILED", 0 if request.param == "numba" else 2**63)
    return request.param


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba, whatever the number of differences."""
    monkeypatch.setattr(distance_backends, "COMPILED", 0)


def pairs_of(found: Distances, norm: str) -> np.ndarray:
    """(N, N) distances, infinite on and below the diagonal."""
    made = np.full((found.m + found.n,) * 2, np.inf)
    for panel in found._panels:
        made[panel.start : panel.stop, panel.start :] = np.asarray(getattr(panel, norm))
    return made


def exactly(rows: np.ndarray) -> Iterator[tuple[int, int, Fraction, Fraction]]:
    """Every pair with its exact sums of absolute and of squared differences."""
    exact = [[Fraction(float(value)) for value in row] for row in rows]
    for i in range(len(rows)):
        for j in range(i + 1, len(rows)):
            gaps = [a - b for a, b in zip(exact[i], exact[j], strict=True)]
            yield i, j, sum(map(abs, gaps), Fraction()), sum((gap * gap for gap in gaps), Fraction())


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    m=st.integers(2, 5),
    n=st.integers(2, 4),
    widths=st.lists(st.sampled_from([1, 3, 40, 256, 300]), min_size=1, max_size=3),
    dtype=st.sampled_from(["f2", "f4", "f8"]),
    offset=st.sampled_from([0.0, 1.0, 1000.0]),
    way=st.sampled_from(["numpy", "numba", "torch"]),
)
@settings(max_examples=examples(60, FEW_EXAMPLES), deadline=None)
def test_both_norms_are_within_their_bounds(
    seed: int, m: int, n: int, widths: list[int], dtype: str, offset: float, way: str
) -> None:
    rng = np.random.default_rng(seed)
    blocks = [(offset + rng.normal(size=(m + n, width)) * 10 ** rng.uniform(-3, 2)).astype(dtype) for width in widths]
    for block in blocks:
        block[-1] = block[0]
        block[1] = block[0] + (block[1] - block[0]) * np.array(1e-3, dtype)
    found, array = Distances(m, n), torch.from_numpy if way == "torch" else np.asarray
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distance_backends, "COMPILED", 0 if way == "numba" else 2**63)
        for block in blocks:
            found.add(array(block[:m]), array(block[m:]))
    centred = [block.astype(np.float64) - block.astype(np.float64).mean(0) for block in blocks]
    ones = sum(np.abs(block).sum(1) for block in centred)
    twos = [np.sqrt(np.square(block).sum(1)) for block in centred]
    manhattan, squares = pairs_of(found, "manhattan"), pairs_of(found, "squares")
    assert np.isinf(manhattan[np.tril_indices(m + n)]).all() and np.isinf(squares[np.tril_indices(m + n)]).all()
    unit = U64 if dtype == "f8" or max(widths) <= CHUNK else U32
    for i, j, absolute, squared in exactly(np.concatenate(blocks, axis=1)):
        assert abs(Fraction(manhattan[i, j]) - absolute) <= 2 * CHUNK * unit * (ones[i] + ones[j])
        relative = (max(widths) + len(widths) + 8) * U64 + (CHUNK * U32 if way == "numba" and unit == U32 else 0)
        assert abs(Fraction(squares[i, j]) - squared) <= relative * sum((norm[i] + norm[j]) ** 2 for norm in twos)


@pytest.mark.parametrize(
    ("width", "dtype"), [(1, "f4"), (255, "f8"), (256, "f4"), (257, "f4"), (5000, "f4"), (700, "f8")]
)
def test_pieces_tiles_and_panels_change_rounding_alone(
    width: int, dtype: str, either: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(width)
    x, y = rng.normal(size=(21, width)).astype(dtype), rng.normal(size=(13, width)).astype(dtype)
    whole, cut = Distances(21, 13), Distances(21, 13)
    whole.add(x, y)
    monkeypatch.setattr(panels, "ROWS", 5)
    monkeypatch.setattr(distance_backends, "TILE", 32 * 256 * 8)
    monkeypatch.setattr(distances, "SPAN", 34 * 256)
    cut = Distances(21, 13)
    cut.add(x, y)
    rounded = dtype == "f4" and width > CHUNK
    for norm, single in (("manhattan", rounded), ("squares", rounded and either == "numba")):
        most = 1e-6 if single else 1e-13
        np.testing.assert_allclose(pairs_of(cut, norm), pairs_of(whole, norm), rtol=most)
    rows = np.concatenate([x, y]).astype(np.float64)
    expected = np.abs(rows[:, None] - rows[None]).sum(-1)
    upper = np.triu_indices(34, 1)
    np.testing.assert_allclose(pairs_of(whole, "manhattan")[upper], expected[upper], rtol=1e-6)


@pytest.mark.usefixtures("either")
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(150, 3000)).astype("f4"), rng.normal(size=(40, 3000)).astype("f4")
    made: list[Distances] = []
    for count in (1, 2, 5):
        monkeypatch.setattr("ckptzoo.measure.panels.cores", lambda count=count: count)
        made.append(Distances(150, 40))
        made[-1].add(x, y)
    for other in made[1:]:
        for norm in ("manhattan", "squares"):
            np.testing.assert_array_equal(pairs_of(other, norm), pairs_of(made[0], norm))
        np.testing.assert_array_equal(other.mmd2(), made[0].mmd2())


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("ckptzoo.measure.panels.cores", lambda: 3)
    monkeypatch.setattr(distance_backends, "_larger", broken)
    with pytest.raises(MemoryError, match="no room"):
        Distances(150, 40).add(np.zeros((150, 3000), "f4"), np.zeros((40, 3000), "f4"))


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("m, n", [(2, 3), (150, 140)])
def test_mean_squares_are_those_of_all_pairs(m: int, n: int) -> None:
    rng = np.random.default_rng(m)
    x, y = rng.normal(size=(m, 5)), 3 * rng.normal(size=(n, 5)) + 2
    distances = Distances(m, n)
    distances.add(x, y)
    expected = 2 * x.var(0, ddof=1).sum(), 2 * y.var(0, ddof=1).sum(), ((x[:, None] - y) ** 2).sum(-1).mean()
    np.testing.assert_allclose(distances.mean_squares(), expected, rtol=1e-12)


@pytest.mark.usefixtures("either")
def test_included_distances_are_those_of_both_blocks() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 30)), rng.normal(size=(4, 30))
    whole, left, right = Distances(6, 4), Distances(6, 4), Distances(6, 4)
    whole.add(x, y)
    left.add(x[:, :11], y[:, :11])
    right.add(x[:, 11:].reshape(6, 1, 19), y[:, 11:].reshape(4, 1, 19))
    right.include(Distances(6, 4))
    right.include(left)
    assert right.columns == 30
    np.testing.assert_allclose(right.mmd2(), whole.mmd2(), atol=1e-13)
    empty = Distances(6, 4)
    empty.include(whole)
    np.testing.assert_array_equal(empty.mmd2(), whole.mmd2())
    with pytest.raises(ZooError, match="expected 6 and 4, got 5 and 4"):
        whole.include(Distances(5, 4))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [100, 700])
def test_torch_is_as_numpy(dtype: torch.dtype, width: int) -> None:
    rng = np.random.default_rng(3)
    x, y = (torch.tensor(rng.normal(size=(rows, width)) + 2, requires_grad=True).to(dtype) for rows in (140, 7))
    theirs, ours = Distances(140, 7), Distances(140, 7)
    theirs.add(x, y)
    ours.add(*(array.detach().to(torch.promote_types(dtype, torch.float32)).numpy() for array in (x, y)))
    assert isinstance(theirs._panels[0].manhattan, torch.Tensor)
    most = 1e-12 if dtype == torch.float64 or width == 100 else 1e-6
    np.testing.assert_allclose(pairs_of(theirs, "manhattan"), pairs_of(ours, "manhattan"), rtol=most)
    np.testing.assert_allclose(pairs_of(theirs, "squares"), pairs_of(ours, "squares"), rtol=1e-12)
    for rule in ("paper", "fixed"):
        np.testing.assert_allclose(theirs.mmd2(rule), ours.mmd2(rule), atol=most)
        nulls = [made.null(rule, permutations=5) for made in (theirs, ours)]
        np.testing.assert_allclose(*nulls, atol=most)
    with pytest.raises(ZooError, match="on the device of those before"):
        theirs.add(np.zeros((140, 2)), np.zeros((7, 2)))
    x.detach()[3, width - 1] = torch.nan
    with pytest.raises(ZooError, match="row 3 of X that is not"):
        theirs.add(x, y)


def test_torch_and_numpy_together_come_to_numpy() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(4, 30)).astype("f4"), rng.normal(size=(3, 30)).astype("f4")
    mixed, plain = Distances(4, 3), Distances(4, 3)
    mixed.add(torch.tensor(x), y)
    mixed.add(x, torch.tensor(y).bfloat16())
    plain.add(x, y)
    plain.add(x, torch.tensor(y).bfloat16().float().numpy())
    np.testing.assert_array_equal(mixed.mmd2(), plain.mmd2())


@pytest.mark.usefixtures("either")
def test_rows_that_are_not_finite_are_named() -> None:
    x, y = np.zeros((12, 2000), "f4"), np.zeros((3, 2000), "f4")
    x[2:12, 1999], y[1, 4] = np.nan, np.inf
    with pytest.raises(ZooError, match="row 1 of Y that is not"):
        Distances(12, 3).add(x[:, :1024], y[:, :1024])
    with pytest.raises(ZooError, match=r"rows 2, 3, 4, 5, 6, 7, 8, 9, \.\.\. of X that are not"):
        Distances(12, 3).add(x[:, 1024:], y[:, 1024:])
    for huge in (1.7e308, 1e160):
        with pytest.raises(ZooError, match="elements whose squares overflow"):
            Distances(3, 3).add(np.array([[-huge], [huge], [0]]), np.array([[huge], [huge], [0]]))


@pytest.mark.parametrize("array", [np.asarray, torch.from_numpy])
def test_large_numbers_are_not_rounded_to_float32(array: Any) -> None:
    rng = np.random.default_rng(5)
    x, y = ((rng.normal(size=(rows, 600)) * 1e37).astype("f4") for rows in (4, 3))
    found = Distances(4, 3)
    found.add(array(x), array(y))
    rows = np.concatenate([x, y]).astype(np.float64)
    upper = np.triu_indices(7, 1)
    expected = np.abs(rows[:, None] - rows[None]).sum(-1)[upper]
    np.testing.assert_allclose(pairs_of(found, "manhattan")[upper], expected, rtol=1e-12)
    assert np.isfinite(found.mmd2()).all()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("m", "n", "width"),
    [(2, 2, 1), (2, 3, 129), (15, 16, 257), (16, 16, 300), (17, 2, 128), (3, 131, 270), (129, 14, 130)],
)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32])
@pytest.mark.sampled(2)
def test_compiled_distances_are_those_of_all_pairs(m: int, n: int, width: int, dtype: Any) -> None:
    rng = np.random.default_rng(m * width)
    rows = (rng.normal(size=(m + n, width)) * 50 + rng.normal(size=width) * 10).astype(dtype)
    rows[-1] = rows[0]
    found = Distances(m, n)
    found.add(rows[:m], rows[m:])
    wide = rows.astype(np.float64)
    gaps = np.abs(wide[:, None] - wide)
    upper = np.triu_indices(m + n, 1)
    single = width > CHUNK and np.dtype(dtype).itemsize <= 4 and dtype != np.int32
    for norm, expected in (("manhattan", gaps.sum(-1)), ("squares", (gaps * gaps).sum(-1))):
        np.testing.assert_allclose(pairs_of(found, norm)[upper], expected[upper], rtol=2e-6 if single else 1e-12)
        assert pairs_of(found, norm)[0, -1] == 0, "equal rows"


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_strides_change_no_bit_of_compiled_distances(dtype: str) -> None:
    rows = np.random.default_rng(6).normal(size=(9, 600)).astype(dtype)
    spaced = np.zeros((18, 1200), dtype)[::2, ::2]
    spaced[:] = rows
    made: list[Distances] = []
    for held in (rows, np.asfortranarray(rows), spaced, rows[::-1, ::-1].copy()[::-1, ::-1], rows.reshape(9, 20, 30)):
        made.append(Distances(5, 4))
        made[-1].add(held[:5], held[5:])
    for other in made[1:]:
        for norm in ("manhattan", "squares"):
            np.testing.assert_array_equal(pairs_of(other, norm), pairs_of(made[0], norm))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_compiled_distances_scale_with_powers_of_two(dtype: str) -> None:
    rows = np.random.default_rng(7).normal(size=(9, 600)).astype(dtype)
    made: list[Distances] = []
    for scale in (1.0, 2.0**-100, 2.0**120):  # float32 ends at 2^128, and squares of these are beyond it
        made.append(Distances(5, 4))
        made[-1].add(*(np.split((rows * scale).astype(dtype), [5])))
        np.testing.assert_array_equal(pairs_of(made[-1], "manhattan"), pairs_of(made[0], "manhattan") * scale)
        np.testing.assert_array_equal(pairs_of(made[-1], "squares"), pairs_of(made[0], "squares") * scale**2)
    zeros = Distances(5, 4)
    zeros.add(*np.split(0 * rows, [5]))
    assert (zeros.mean_squares() == 0).all()


def test_numba_does_large_blocks_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptzoo.measure import distances_compiled

    calls: list[type] = []
    add = distances_compiled.add_distances

    def counted(panels: Any, x: Any, y: Any, dtype: type, limit: float) -> bool:
        calls.append(dtype)
        return add(panels, x, y, dtype, limit)

    monkeypatch.setattr(distances_compiled, "add_distances", counted)
    monkeypatch.setattr(distance_backends, "COMPILED", 28 * 300)
    rows = np.random.default_rng(8).normal(size=(8, 300)).astype("f4")
    Distances(5, 3).add(rows[:5, 1:], rows[5:, 1:])
    assert calls == [], "one column short of what pays"
    Distances(5, 3).add(rows[:5], rows[5:])
    Distances(5, 3).add(rows[:5].astype(np.float64), rows[5:])
    assert calls == [np.float32, np.float64]
    Distances(5, 3).add(torch.tensor(rows[:5]), torch.tensor(rows[5:]))
    monkeypatch.setattr(distance_backends, "find_spec", lambda _: None)
    Distances(5, 3).add(rows[:5], rows[5:])
    assert len(calls) == 2, "torch stays in torch, and numpy does all where Numba is not installed"


def test_what_does_not_fit_is_refused() -> None:
    for m, n in ((1, 5), (5, 1), (0, 2)):
        with pytest.raises(ZooError, match=f"expected 2 or more of X and of Y, got {m} and {n}"):
            Distances(m, n)
    found = Distances(3, 2)
    with pytest.raises(ZooError, match="columns: expected at least one"):
        found.mmd2()
    with pytest.raises(ZooError, match="expected 3 and 2 rows, got shapes"):
        found.add(np.zeros((2, 4)), np.zeros((3, 4)))
    with pytest.raises(ZooError, match="expected the same columns"):
        found.add(np.zeros((3, 4)), np.zeros((2, 5)))
    found.add(np.zeros((3, 0)), np.zeros((2, 0)))
    with pytest.raises(ZooError, match="columns: expected at least one"):
        found.null(permutations=3)
    found.add(np.zeros(3), np.ones(2))
    with pytest.raises(ZooError, match="permutations: expected 1 or more, got 0"):
        found.null(permutations=0)
