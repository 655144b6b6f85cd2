"""Sparse tensors are read as the dense ones that torch and scipy make of them; other forms are named, never left out."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.hub.imports import import_zoo
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.state_dicts import StateCandidate, find_state_dicts
from ckptzoo.hub.untrusted.torch_files import read_pickle, read_torch
from ckptzoo.hub.untrusted.values import InertError, Numbers
from tests.support.effort import examples

scipy_sparse = pytest.importorskip("scipy.sparse")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse BSR|Sparse BSC|Sparse CSR|Sparse CSC|The PyTorch API of nested"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": lambda x: x.to_sparse(),
    "hybrid": lambda x: x.to_sparse(1),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 3)),
    "bsc": lambda x: x.to_sparse_bsc((2, 3)),
}


def torch_file(content: Any, path: Path) -> StateCandidate:
    torch.save(content, path)
    root = read_torch(path.read_bytes(), location="a.pt", limits=Limits(), strict=False)
    (state,) = find_state_dicts(root, location="a.pt", limits=Limits())
    return state


def pickled(content: Any, protocol: int = 4) -> StateCandidate:
    root = read_pickle(pickle.dumps(content, protocol), location="a.pkl", limits=Limits())
    (state,) = find_state_dicts(root, location="a.pkl", limits=Limits())
    return state


def read(tensor: Any) -> np.ndarray[Any, Any]:
    return tensor.read() if isinstance(tensor, Numbers) else tensor


@settings(max_examples=examples(20), deadline=None)
@given(
    layout=st.sampled_from(list(LAYOUTS)),
    kind=st.sampled_from(["float32", "float64", "float16", "bfloat16", "int64"]),
    seed=st.integers(0, 2**32 - 1),
    density=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_sparse_tensors_are_their_dense_ones(
    tmp_path_factory: pytest.TempPathFactory, layout: str, kind: str, seed: int, density: float
) -> None:
    draw = torch.Generator().manual_seed(seed)
    dense = torch.randn((4, 6), generator=draw) * (torch.rand((4, 6), generator=draw) < density)
    dense = (8 * dense).to(getattr(torch, kind))
    content = {"fc.weight": LAYOUTS[layout](dense), "fc.bias": torch.ones(4)}
    state = torch_file(content, tmp_path_factory.mktemp("sparse") / "a.pt")
    assert list(state.tensors) == list(content) and state.tensors["fc.weight"].shape == (4, 6)
    assert read(state.tensors["fc.weight"]).astype(np.float64).tolist() == dense.double().tolist()


@settings(max_examples=examples(20), deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    count=st.integers(0, 12),
    dense=st.integers(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_duplicates_are_summed(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], count: int, dense: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    indices = torch.from_numpy(np.stack([draw.integers(0, length, count) for length in shape]))
    values = torch.from_numpy(draw.integers(-9, 9, (count, *[3] * dense)).astype(np.float32))
    tensor = torch.sparse_coo_tensor(indices, values, (*shape, *[3] * dense))
    state = torch_file({"fc.weight": tensor}, tmp_path_factory.mktemp("coo") / "a.pt")
    assert np.array_equal(read(state.tensors["fc.weight"]), tensor.to_dense().numpy())


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix", "coo_matrix", "csr_array", "csc_array", "coo_array"])
@pytest.mark.sampled(2)
def test_matrices_of_scipy_are_their_dense_ones(kind: str, protocol: int) -> None:
    matrix = getattr(scipy_sparse, kind)(
        (np.array([1.0, 2.0, 4.0]), (np.array([0, 2, 2]), np.array([1, 0, 0]))), shape=(3, 2)
    )
    state = pickled({"w": matrix, "b": np.ones(3)}, protocol)
    assert list(state.tensors) == ["w", "b"] and np.array_equal(read(state.tensors["w"]), matrix.toarray())


class Wrapped(torch.Tensor):
    """A wrapper subclass, as DTensor and those of torchao are."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapped":
        made = torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*[item.inner if isinstance(item, Wrapped) else item for item in args], **(kwargs or {}))


class Unknown:
    """A container of numbers that nobody knows, as arrays of other libraries are."""

    def __init__(self) -> None:
        self.data = np.arange(4.0)


UNREAD: dict[str, tuple[Callable[[], Any], str]] = {
    "meta": (lambda: torch.empty(3, device="meta"), "a meta tensor"),
    "uninitialised": (lambda: nn.UninitializedParameter(), "an uninitialised parameter"),
    "buffer": (lambda: nn.UninitializedBuffer(), "an uninitialised buffer"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "a tensor subclass",
    ),
    "wrapped": (lambda: Wrapped(torch.ones(3)), "a tensor subclass .*Wrapped"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "a quantized tensor"),
    "complex": (lambda: torch.ones(3, dtype=torch.complex64), "ComplexFloatStorage"),
    "masked": (lambda: np.ma.masked_array([1.0, 2.0], [0, 1]), "a masked array"),
    "scipy": (lambda: scipy_sparse.dok_matrix(np.eye(3)), "scipy.sparse"),
    "unknown": (Unknown, "an object of .*Unknown"),
}
BESIDE: dict[str, Callable[[Any], Any]] = {
    "flat": lambda value: {"fc.bias": torch.ones(3), "fc.weight": value},
    "layers": lambda value: {"a": {"w": torch.ones(3), "b": value}, "c": {"w": torch.ones(3)}},
    "wrapped": lambda value: {"epoch": 3, "model": {"fc.bias": torch.ones(3), "fc.weight": value}},
    "list": lambda value: [(torch.ones(2, 3), value), (), (torch.ones(3, 3), torch.ones(3))],
    "several": lambda value: [{"fc.weight": torch.ones(3)}, {"fc.weight": torch.ones(3), "fc.bias": value}],
}


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("form", UNREAD)
@pytest.mark.sampled(2)
def test_a_tensor_that_is_not_read_is_named_with_its_form(tmp_path: Path, form: str, beside: str) -> None:
    make, words = UNREAD[form]
    if (form, beside) == ("unknown", "list"):
        words = "expected a state dict"  # in a list without names it may be anything
    torch.save(BESIDE[beside](make()), tmp_path / "a.pt")
    with pytest.raises((IntegrityError, InertError), match=words):
        root = read_torch((tmp_path / "a.pt").read_bytes(), location="a.pt", limits=Limits(), strict=False)
        find_state_dicts(root, location="a.pt", limits=Limits())


@pytest.mark.parametrize(
    ("indices", "values", "size", "words"),
    [
        ([[0, 5]], [1.0, 1.0], (4,), "indices from 0 to 3"),
        ([[0, -1]], [1.0, 1.0], (4,), "indices from 0 to 3"),
        ([[0, 1]], [1.0], (4,), "shapes"),
        ([[0, 1], [0, 1]], [1.0, 1.0], (4,), "shapes"),
    ],
)
def test_indices_that_lie_are_refused(tmp_path: Path, indices: Any, values: Any, size: Any, words: str) -> None:
    class Lie:
        def __reduce__(self) -> Any:
            parts = (torch.tensor(indices), torch.tensor(values), torch.Size(size))
            return torch._utils._rebuild_sparse_tensor, (torch.sparse_coo, parts)

    state = torch_file({"fc.weight": Lie(), "fc.bias": torch.ones(3)}, tmp_path / "a.pt")
    with pytest.raises(InertError, match=words):
        read(state.tensors["fc.weight"])


@pytest.mark.parametrize("shapes", [[(2**30, 2**30)], [(2**11, 2**12)] * 20, [(2**62, 2)]])
def test_what_sparse_tensors_become_is_bounded_before_it_is_made(tmp_path: Path, shapes: list[tuple[int, int]]) -> None:
    """One number each, of which dense tensors would take up to exabytes."""

    class Lie:
        def __init__(self, shape: tuple[int, int]) -> None:
            self.shape = shape

        def __reduce__(self) -> Any:
            parts = (torch.zeros((2, 1), dtype=torch.int64), torch.ones(1), torch.Size(self.shape))
            return torch._utils._rebuild_sparse_tensor, (torch.sparse_coo, parts)

    torch.save({f"{at}.weight": Lie(shape) for at, shape in enumerate(shapes)}, tmp_path / "a.pt")
    with pytest.raises(ZooError, match=r"bytes|a shape"):
        import_zoo(tmp_path / "a.pt", tmp_path / "zoo", license="MIT")
