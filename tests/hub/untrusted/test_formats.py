"""Untrusted safetensors files, which are parsed in the program itself."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted import Limits, read, read_all
from tests.support.checkpoint_files import written
from tests.support.effort import ALL

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def flat(header: object, data: bytes = bytes(8), *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def test_every_dtype_and_shape_bit_for_bit(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    names = [
        "float64",
        "float32",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint64",
        "uint32",
        "uint16",
        "uint8",
        "bool",
    ]
    arrays: dict[str, Any] = {
        name: np.frombuffer(draw.bytes(48), np.uint8).copy().view(name if name != "bool" else np.uint8)
        for name in names
    }
    arrays["bool"] = arrays["bool"] % 2 == 1
    arrays |= {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3)), "Ünïcode name/0": np.ones((2, 1, 3))}
    path = tmp_path / "a.safetensors"
    save_file(arrays, path, metadata={"epoch": "3", "format": "np", "note": "a\nb"})
    (found,) = read(path)
    assert set(found.tensors) == set(arrays) and found.source == "a.safetensors"
    for name, array in arrays.items():
        made = found.tensors[name]
        assert (made.dtype, made.shape, made.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert made.flags.writeable
    assert found.facts == {"epoch": "3", "format": "np"} and found.left_out == ("note: a text of 3 characters",)
    save_torch({"w": torch.arange(5).to(torch.bfloat16)}, path)
    assert read(path)[0].tensors["w"].dtype == ml_dtypes.bfloat16


def test_names_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    header = {"z": {**F32, "data_offsets": [8, 16]}, "a b": F32, "m": {**F32, "data_offsets": [16, 24]}}
    data = np.arange(6, dtype=np.float32).tobytes()
    (found,) = read(written(tmp_path, {"a.safetensors": flat(header, data)})[0])
    assert list(found.tensors) == ["z", "a b", "m"]
    assert [array[0] for array in found.tensors.values()] == [2, 0, 4]


def test_hostile_headers_are_refused_by_name(tmp_path: Path) -> None:
    huge = {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}
    cases = {
        "length": (flat({"w": F32}, length=2**31), "header length"),
        "longest": (flat({"w": F32}, length=2**31 - 1), "header length"),
        "cut": (flat({"w": F32})[:20], "header length"),
        "deep": (flat(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "RecursionError"),
        "digits": (flat(b'{"w":' + b"9" * 10_000 + b"}"), "JSON"),
        "infinite": (flat(b'{"w": Infinity}'), "a finite JSON number"),
        "twice": (flat(b'{"w": 1, "w": 2}'), "'w' twice"),
        "utf8": (flat(b'{"\xff": 1}'), "UnicodeDecodeError"),
        "shape": (flat({"w": huge}), "from its shape"),
        "negative": (flat({"w": {**F32, "shape": [-2]}}), "integers from 0"),
        "float": (flat({"w": {**F32, "shape": [2.0]}}), "integers from 0"),
        "true": (flat({"w": {**F32, "shape": [True, 2]}}), "integers from 0"),
        "overlap": (flat({"w": F32, "v": {**F32, "data_offsets": [4, 12]}}, bytes(12)), "an overlap"),
        "same": (flat({"w": F32, "v": F32}), "an overlap"),
        "hole": (flat({"w": {**F32, "data_offsets": [8, 16]}}, bytes(16)), "a hole"),
        "odd hole": (flat({"w w": {**F32, "data_offsets": [8, 16]}}, bytes(16)), "offset of 'w w'"),
        "behind": (flat({"w": F32}, bytes(9)), "the end of the file"),
        "before": (flat({"w": F32}, bytes(7)), "the end of the file"),
        "order": (flat({"w": {**F32, "data_offsets": [8, 0]}}), "from its shape"),
        "fields": (flat({"w": {**F32, "code": "x"}}), "the fields dtype, shape, data_offsets"),
        "float8": (flat({"w": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}), "F8_E4M3"),
        "complex": (flat({"w": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}), "C64"),
        "metadata": (flat({"__metadata__": {"a": 1}, "w": F32}), "an object of strings"),
        "list": (flat({"__metadata__": [], "w": F32}), "an object of strings"),
        "control": (flat({"a\u0000b": F32}), "printable"),
        "escape": (flat({"\u001b[31mred": F32}), "printable"),
        "surrogate": (flat(b'{"\\ud800": ' + json.dumps(F32).encode() + b"}"), "surrogates not allowed"),
        "long": (flat({"n" * 600: F32}), "600 characters"),
        "nothing": (flat({}, b""), "no tensors"),
        "stand-in": (flat({"a b": F32, "name.0": {**F32, "data_offsets": [8, 16]}}, bytes(16)), "dotted words"),
    }  # fmt: skip
    files = {f"{name}.safetensors": data for name, (data, _) in cases.items()}
    for made, (_, words) in zip(read_all(written(tmp_path / "files", files)), cases.values(), strict=True):
        assert isinstance(made.error, IntegrityError) and words in str(made.error), (made.path.name, str(made.error))
        assert str(made.error).replace("\n", "").isprintable()


def test_limits_hold_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({f"w{at}": np.zeros(100, np.float32) for at in range(20)}, path)
    for limits, words in (
        (Limits(header_bytes=100), "header length"),
        (Limits(tensor_bytes=7999), "at most 7999 bytes"),
        (Limits(tensors=19), "at most 19 names"),
        (Limits(file_bytes=100), "size"),
    ):
        with pytest.raises(IntegrityError, match=words):
            read(path, limits=limits)
    assert len(read(path, limits=Limits(tensor_bytes=8000, tensors=20))[0].tensors) == 20


def test_very_many_names(tmp_path: Path) -> None:
    count = 100_000 if ALL else 10_000
    path = tmp_path / "many.safetensors"
    save_file({f"w{at}": np.full(1, at, np.float32) for at in range(count)}, path)
    (found,) = read(path)
    assert len(found.tensors) == count and found.tensors["w7777"][0] == 7777
