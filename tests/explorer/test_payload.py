"""The data of a page are its columns, bit for bit, in any types, and damage is noticed."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.explorer import payload as module
from ckptzoo.explorer.payload import TYPES, Payload, decode, encode

COLUMNS = st.dictionaries(
    st.text(max_size=8), st.sampled_from(TYPES).flatmap(lambda name: arrays.arrays(np.dtype(name), st.integers(0, 300)))
)


@given(COLUMNS, st.dictionaries(st.text(max_size=5).filter(lambda name: name != "columns"), st.text(max_size=20)))
def test_decoded_columns_have_the_bits_that_were_written(columns, header):
    data = encode(Payload(header, columns), location="zoo")
    assert data == encode(Payload(header, columns), location="zoo")
    found = decode(data, location="zoo")
    assert found.header == header and list(found.columns) == sorted(columns)
    for name, column in columns.items():
        assert found.columns[name].dtype == column.dtype
        assert found.columns[name].tobytes() == column.tobytes()


def test_columns_lie_at_multiples_of_their_size():
    columns = {"a": np.arange(3, dtype="|u1"), "b": np.linspace(0, 1, 3).astype("<f8"), "c": np.arange(5, dtype="<i2")}
    whole = gzip.decompress(encode(Payload({"name": "x"}, columns), location="zoo"))
    (length,) = struct.unpack_from("<I", whole)
    assert (4 + length) % 8 == 0 and len(whole) % 8 == 0


def test_values_with_common_exponents_are_stored_by_planes_and_repeated_ones_are_not():
    rng = np.random.default_rng(0)
    columns = {"random": rng.uniform(1, 2, 2000), "steps": rng.integers(0, 100, 2000) / 1000}
    whole = gzip.decompress(encode(Payload({}, columns), location="zoo"))
    assert b'"random":{"count":2000,"planes":true' in whole and b'"steps":{"count":2000,"planes":false' in whole


def test_too_much_is_refused_with_the_next_step(monkeypatch):
    monkeypatch.setattr(module, "MAX_PAYLOAD", 1000)
    with pytest.raises(ZooError, match=r"zoo: data of the page: expected at most 1 kB, got .*--layers.*--max-rows"):
        encode(Payload({}, {"a": np.zeros(1000)}), location="zoo")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not gzip",
        gzip.compress(b"\0"),
        gzip.compress(struct.pack("<I", 2) + b"{}"),
        gzip.compress(struct.pack("<I", 4) + b"nul "),
        gzip.compress(
            struct.pack("<I", 72) + b'{"columns":{"a":{"type":"O","start":0,"count":1,"planes":false}}}'.ljust(72)
        ),
        encode(Payload({}, {"a": np.arange(9.0)}), location="zoo")[:-9],
    ],
    ids=range(7),  # gzip notes the time, and workers have to agree on the names of tests
)
def test_other_bytes_are_no_payload(data):
    with pytest.raises(IntegrityError, match="Make it again"):
        decode(data, location="page")
