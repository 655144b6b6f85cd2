"""The survey of a pickle agrees with what torch then loads, and costs what the pickle is long."""

import io
import time
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.pickle_scan import is_allowed, scan_pickle
from tests.support.checkpoint_files import named, saved, state, storage, tensor
from tests.support.effort import examples

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A view, with any strides, of a storage that is larger."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = draw(st.lists(st.integers(0, 5), min_size=len(shape), max_size=len(shape)))
    offset = draw(st.integers(0, 7))
    base = torch.arange(80).to(draw(DTYPES))
    return base.as_strided(shape, strides, offset)


@settings(max_examples=examples(60), deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=5), tensors(), min_size=1, max_size=4))
def test_sizes_declared_are_the_sizes_loaded(content: dict[str, torch.Tensor]) -> None:
    data = saved(content)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        pickled = archive.read("archive/data.pkl")
        found = scan_pickle(io.BytesIO(pickled), location="x", limits=Limits())
        for key, declared in found.storages.items():
            assert archive.getinfo(f"archive/data/{key}").file_size == declared.nbytes
    loaded = torch.load(io.BytesIO(data), weights_only=True)
    views = {
        (one.untyped_storage().data_ptr(), one.dtype, one.storage_offset(), tuple(one.shape), one.stride())
        for one in loaded.values()
    }
    expected = sum(int(np.prod(shape)) * dtype.itemsize for _, dtype, _, shape, _ in views)
    assert sum(found.views.values()) == expected
    assert not found.forbidden and not found.unknown_operations


def test_what_is_allowed_is_what_torch_allows_too() -> None:
    ours = {
        name
        for name in torch._weights_only_unpickler._get_allowed_globals()  # pyright: ignore
        if is_allowed(name)
    }
    assert {
        "torch._utils._rebuild_tensor_v2",
        "collections.OrderedDict",
        "torch.FloatStorage",
        "torch.bfloat16",
    } <= ours
    for name in ("torch._utils._rebuild_qtensor", "posix.system", "torch.FloatTensor", "torch.load", "torch.complex64"):
        assert not is_allowed(name)


def test_time_follows_the_pickle_and_not_what_it_makes() -> None:
    laughs = b"\x80\x02)q\x00" + b"".join(
        b"h" + bytes([at]) + b"h" + bytes([at]) + b"\x86q" + bytes([at + 1]) for at in range(250)
    )
    start = time.monotonic()
    scan_pickle(io.BytesIO(laughs + b"."), location="x", limits=Limits())
    assert time.monotonic() - start < 1


def test_the_first_pickle_ends_where_the_next_begins() -> None:
    first = state(("w", tensor(place=storage(legacy=True))))
    stream = io.BytesIO(first + b"rest")
    scan_pickle(stream, location="x", limits=Limits())
    assert stream.read() == b"rest"


def test_many_strange_names_are_counted() -> None:
    body = b"\x80\x02" + b"".join(named(f"package.Class{at}") for at in range(9)) + b"."
    with pytest.raises(IntegrityError, match=r"package\.Class0, package\.Class1.*and 4 more"):
        scan_pickle(io.BytesIO(body), location="x", limits=Limits())


def test_a_pickle_that_is_too_long_is_refused() -> None:
    with pytest.raises(IntegrityError, match="more than 100 bytes"):
        scan_pickle(io.BytesIO(b"\x80\x02" + b"N" * 1000 + b"."), location="x", limits=Limits(pickle_bytes=100))
