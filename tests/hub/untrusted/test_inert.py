"""The reader of pickles: it reads what torch reads, bit for bit, and runs nothing."""

import copyreg
import io
import pickle
import pickletools
import subprocess
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted import Limits
from ckptzoo.hub.untrusted.inert import Unpickler
from ckptzoo.hub.untrusted.rules import check_globals, is_allowed
from ckptzoo.hub.untrusted.torch_files import read_pickle, read_torch
from ckptzoo.hub.untrusted.values import Inert, InertError, Mapping, Numbers
from tests.hub.untrusted.test_rejected import code
from tests.support.checkpoint_files import call, named, number, saved, state, storage, tensor, text
from tests.support.effort import examples

ROOT = Path(__file__).parents[3]
DTYPES = st.sampled_from(
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
     torch.uint8, torch.bool]
)  # fmt: skip


def of_torch(data: bytes, *, strict: bool = True) -> Any:
    return read_torch(data, location="x.pt", limits=Limits(), strict=strict)


def of_pickle(value: object, protocol: int = 4) -> Any:
    return read_pickle(pickle.dumps(value, protocol), location="x.pkl", limits=Limits())


def bits(value: torch.Tensor) -> bytes:
    copied = torch.empty(value.numel(), dtype=value.dtype)
    copied.view(value.shape).copy_(value.detach())
    return copied.view(torch.uint8).numpy().tobytes() if copied.numel() else b""


def assert_same(found: Any, expected: Any) -> None:
    """Plain values are equal, and tensors have the same numbers, bit for bit."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, Numbers) and found.shape == tuple(expected.shape)
        assert found.dtype == str(expected.dtype).removeprefix("torch.")
        assert found.read().tobytes() == bits(expected)
    elif isinstance(expected, dict):
        assert isinstance(found, dict) and list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list | tuple) and not isinstance(expected, torch.Size):
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, two in zip(found, expected, strict=True):
            assert_same(one, two)
    else:
        assert repr(found) == repr(tuple(expected) if isinstance(expected, torch.Size) else expected)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A view, with any strides, of a storage that is larger; some negated, as conjugates make them."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = draw(st.lists(st.integers(0, 5), min_size=len(shape), max_size=len(shape)))
    base = torch.arange(80).to(draw(DTYPES)).as_strided(shape, strides, draw(st.integers(0, 7)))
    if base.dtype in (torch.float32, torch.float64) and draw(st.booleans()):
        return torch._neg_view(base)
    return nn.Parameter(base) if base.dtype.is_floating_point and draw(st.booleans()) else base


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | tensors() | st.sets(st.integers()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner, max_size=3).map(OrderedDict),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=examples(100), deadline=None)
@given(VALUES, st.booleans())
def test_files_read_as_torch_reads_them(value: Any, zipped: bool) -> None:
    data = saved(value, zipped=zipped)
    assert_same(of_torch(data), torch.load(io.BytesIO(data), weights_only=True))


@settings(max_examples=examples(50), deadline=None)
@given(
    st.sampled_from(["f8", "f4", "f2", "i8", "u4", "i2", "u1", "?", ">f4", ">i8", "bfloat16"]),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from("CF"),
    st.integers(0, 5),
)
def test_arrays_of_numpy_in_pickles_of_every_protocol(kind: str, shape: list[int], order: Any, protocol: int) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16) if kind == "bfloat16" else np.dtype(kind)
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype, order=order)
    found = of_pickle({"a": array, "b": array.T, "n": np.float32(0.1), "k": np.int64(3)}, protocol)
    assert found["n"] == float(np.float32(0.1)) and found["k"] == 3 and type(found["n"]) is float
    for key, expected in (("a", array), ("b", array.T)):
        made = found[key].read()
        assert made.dtype == dtype.newbyteorder("=") and made.shape == expected.shape
        assert made.tobytes() == expected.astype(dtype.newbyteorder("="), order="C").tobytes()
    assert found["a"].dtype == dtype.name


class Settings:
    """An object as users save them."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = 3


@pytest.mark.parametrize("protocol", range(6))
def test_objects_keep_their_attributes(protocol: int) -> None:
    found = of_pickle(
        {"settings": Settings(lr=0.1, inner=Settings(name="x")), "default": defaultdict(list, a=[1])}, protocol
    )
    made = found["settings"]
    assert isinstance(made, Inert) and made.name == f"{__name__}.Settings"
    assert made.attributes["lr"] == 0.1 and made.attributes["inner"].attributes == {"name": "x"}
    assert found["default"] == {"a": [1]} and isinstance(found["default"], Mapping)
    if protocol >= 2:
        assert of_pickle(Slotted(), protocol).attributes == {"a": 3}


def test_a_module_saved_whole_holds_its_tensors() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    for data in (saved(net), saved(net, zipped=False)):
        made = of_torch(data, strict=False)
        linear = made.attributes["_modules"]["0"].attributes["_parameters"]
        assert_same(linear, dict(net[0].named_parameters()))
    # pickled as it is, every tensor is a file of torch.save of its own
    made = of_pickle(net)
    assert_same(made.attributes["_modules"]["1"].attributes["_buffers"], dict(net[1].named_buffers()))


RUN = """
import sys
sys.path[:0] = [{root!r}]
from pathlib import Path
from ckptzoo.hub.untrusted import Limits
from ckptzoo.hub.untrusted.torch_files import read_torch, read_pickle
from ckptzoo.errors import IntegrityError
events, watching = [], False
def watch(event, arguments):
    if watching:
        events.append((event, [str(one)[:80] for one in arguments]))
sys.addaudithook(watch)
files = [(path, path.read_bytes()) for path in map(Path, sys.argv[1:])]
def read(path, data):
    try:
        read_torch(data, location=path.name, limits=Limits(), strict=False)
    except IntegrityError:
        pass
    try:
        read_pickle(data, location=path.name, limits=Limits())
    except IntegrityError:
        pass
# what Python and libraries import when they are first used is none of the files' doing
read(*files[0])
"".encode("cp437")
"".encode("unicode_escape")
modules = set(sys.modules)
watching = True
for path, data in files:
    read(path, data)
watching = False
print([one for one in events if one[0] not in ("object.__getattr__", "sys._getframe")], sorted(set(sys.modules) - modules))
"""


def test_pickles_that_would_run_code_run_none(tmp_path: Path) -> None:
    """Python reports every import, opened file, socket, process and compiled code: there is none."""
    (tmp_path / "files").mkdir()
    bodies = {"sound.pt": saved({"w": torch.ones(2)})}
    for name, (data, _) in code(tmp_path / "files").items():
        bodies[name] = data
    touch = text(f"touch {tmp_path}/ran")
    for name, body in {
        "plain.pkl": b"cos\nsystem\n(" + touch + b"tR.",
        "nested.pkl": b"\x80\x04" + call("torch.storage._load_from_bytes", _bytes(saved(_Runs()))) + b".",
        "reduced.pkl": b"\x80\x02" + call("functools.partial", named("os.system"), touch) + b")R.",
        "setstate.pkl": b"\x80\x02c__main__\nA\n)\x81}(" + text("__class__") + named("os.system") + b"ub.",
        "jax.pkl": b"\x80\x02"
        + call("jax._src.array._reconstruct_array", named("os.system"), b"(" + touch + b"t", b"N")
        + b".",
        "tensor.pkl": b"\x80\x02"
        + call("torch._tensor._rebuild_from_type_v2", named("os.system"), b"N", b"(" + touch + b"t")
        + b".",
        "reconstructor.pkl": call("copyreg._reconstructor", named("os.system"), named("builtins.object"), b"N") + b".",
        "dtype.pkl": b"\x80\x02" + call("numpy.dtype", text("__import__('os')")) + b".",
    }.items():
        bodies[name] = body
    paths = []
    for name, data in bodies.items():
        paths.append(str(tmp_path / "files" / name))
        Path(paths[-1]).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(root=str(ROOT)), *paths],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "[] []"
    assert not (tmp_path / "ran").exists()


def _bytes(data: bytes) -> bytes:
    return b"B" + len(data).to_bytes(4, "little") + data


class _Runs:
    def __reduce__(self) -> Any:
        import os

        return os.system, ("true",)


def loaded(body: bytes) -> Any:
    return Unpickler(io.BytesIO(body), {}, None).load()


@pytest.mark.parametrize(
    "body",
    [
        named("os.system") + b"}(" + text("name") + text("x") + b"ub.",  # a class of an unknown name
        named("os.system") + b"N}(" + text("name") + text("x") + b"u\x86b.",
        named("torch._utils._rebuild_tensor_v2") + b"N}(" + text("__new__") + text("x") + b"u\x86b.",
        named("collections.OrderedDict") + b"N}(" + text("__setstate__") + text("x") + b"u\x86b.",
        named("numpy.dtype") + b"N}(" + text("numpy") + text("x") + b"u\x86b.",
        named("builtins.set") + text("a") + text("b") + b"s.",
        named("os.system") + text("a") + b"a.",
    ],
)
def test_a_pickle_cannot_change_the_classes_that_stand_for_names(body: bytes) -> None:
    before = [dict(vars(kind)) for kind in (Inert, Mapping, Numbers)]
    with pytest.raises((TypeError, AttributeError, InertError)):
        loaded(b"\x80\x02" + body)
    assert [dict(vars(kind)) for kind in (Inert, Mapping, Numbers)] == before
    assert loaded(named("os.system") + b"(tR.").name == "os.system"


def test_extension_codes_of_this_process_are_not_followed() -> None:
    copyreg.add_extension("os", "system", 0x70000001)
    try:
        with pytest.raises(InertError, match="no extension codes of copyreg"):
            loaded(b"\x80\x02\x84\x01\x00\x00\x70.")
    finally:
        copyreg.remove_extension("os", "system", 0x70000001)
    with pytest.raises(ValueError, match="unregistered extension code"):
        loaded(b"\x80\x02\x84\x01\x00\x00\x70.")


def test_files_within_files_are_bounded() -> None:
    inner = torch.ones(2)
    for _ in range(5):
        inner = {"storage": _Nested(saved(inner, zipped=False))}
    with pytest.raises(IntegrityError, match=r"at most 3 files of torch\.save within one another"):
        of_pickle(inner)


class _Nested:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        return torch.storage._load_from_bytes, (self.data,)


def test_every_opcode_is_known_to_the_tests() -> None:
    """A new version of pickle with other ways to look something up needs another look at the reader."""
    looking_up = {"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"}
    assert len(pickletools.opcodes) == 68 and looking_up <= {opcode.name for opcode in pickletools.opcodes}


def test_what_is_allowed_is_what_torch_allows_too() -> None:
    torchs = torch._weights_only_unpickler._get_allowed_globals()  # pyright: ignore
    expected = {"torch._utils._rebuild_tensor_v2", "collections.OrderedDict", "torch.FloatStorage", "torch.bfloat16"}
    assert expected <= {name for name in torchs if is_allowed(name)}
    for name in ("torch._utils._rebuild_qtensor", "posix.system", "torch.FloatTensor", "torch.load", "torch.complex64"):
        assert not is_allowed(name)


def test_strange_names_are_counted() -> None:
    with pytest.raises(IntegrityError, match=r"package\.Class0, package\.Class1.*and 4 more"):
        check_globals([f"package.Class{at}" for at in range(9)], location="x")


def test_the_first_pickle_ends_where_the_next_begins() -> None:
    stream = io.BytesIO(state(("w", tensor(place=storage(legacy=True)))) + b"rest")
    Unpickler(stream, {}, None).load()
    assert stream.read() == b"rest"


def test_calls_with_other_arguments_are_refused() -> None:
    for body in (
        call("torch._utils._rebuild_tensor_v2", number(0)),
        call("torch._utils._rebuild_tensor_v2", *[number(0)] * 6),
        call("numpy.core.multiarray._reconstruct", named("numpy.ndarray")) + number(3) + b"b",
        call("_codecs.encode", text("x"), text("rot13")),
        b"(" + text("storage") + b"NNNNtQ",
        b"(" + text("storage") + named("torch.FloatStorage") + number(0) + text("cpu") + number(1) + b"tQ",
    ):
        with pytest.raises((TypeError, InertError)):
            loaded(b"\x80\x02" + body + b".")
