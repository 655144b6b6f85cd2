"""Packed columns: time and memory of packing, and values of any positions in arrays of bounded size."""

import random
import sys
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from ckptzoo.format import packed
from ckptzoo.format.packed import PACKED_ROWS, Packer
from tests.support.effort import examples


def test_the_work_for_small_pieces_is_linear() -> None:
    """A zoo of thousands of parts has as many pieces of a row or two: each is looked at once."""

    def calls(count: int) -> int:
        pieces = [pa.array([f"m-{at}"] * (1 + at % 2)) for at in range(count)]
        packer, events = Packer(pa.string()), 0

        def seen(*_: object) -> None:
            nonlocal events
            events += 1

        sys.setprofile(seen)
        try:
            for piece in pieces:
                packer.add([piece])
        finally:
            sys.setprofile(None)
        assert packer.nbytes == sum(piece.nbytes for piece in pieces)
        assert packer.packed().array().equals(pa.chunked_array(pieces))
        return events

    assert calls(2_000) < 2.2 * calls(1_000)


@pytest.mark.parametrize("longest", [2, 2**10])
def test_a_common_beginning_is_cut_off_in_little_memory(longest: int) -> None:
    beginning = "é" * 150
    texts = pa.array([beginning + "x" * (at % longest if at % 997 == 0 else 1) for at in range(-1, PACKED_ROWS + 1)])
    texts = texts.slice(1, PACKED_ROWS + 1)  # a slice of another array
    packer = Packer(pa.string())
    tracemalloc.start()
    packer.add([texts])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    column = packer.packed()
    assert peak < texts.nbytes / 2 and column.nbytes < texts.nbytes / 2
    assert column.array().equals(pa.chunked_array([texts]))


@pytest.mark.parametrize("seed", range(examples(200)))
def test_values_of_any_positions_come_in_arrays_of_bounded_size(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = random.Random(seed)
    for name, least, most in (("PACKED_ROWS", 2, 9), ("RUN_ROWS", 9, 20), ("_CUT_BYTES", 1, 99)):
        monkeypatch.setattr(packed, name, draw.randrange(least, most))
    monkeypatch.setattr(packed, "_ARRAY_BYTES", limit := draw.randrange(1, 200))
    packer, values = Packer(pa.string()), list[str | None]()
    for _ in range(draw.randrange(5)):
        few = [draw.choice(["", "é", "x" * draw.randrange(60), None]) for _ in range(3)]
        begun = draw.choice(["", "part-é-"])
        kinds = (
            lambda few=few: draw.choice(few),
            lambda begun=begun: begun + "y" * draw.randrange(30),
            lambda: None,
        )
        kind = draw.choice(kinds)
        piece = pa.array([kind() for _ in range(draw.randrange(40))], pa.string())
        values += piece.to_pylist()
        packer.add([piece.dictionary_encode() if draw.random() < 0.5 else piece])
    column = packer.packed()
    rows = [draw.randrange(len(values)) for _ in range(draw.randrange(80))] if values else []
    found = column.take(np.array(rows, np.int64))
    assert found.type == pa.string() and found.to_pylist() == [values[row] for row in rows]
    for chunk in found.chunks:
        assert len(chunk) <= 1 or sum(len(text.encode()) for text in chunk.to_pylist() if text) <= limit
    assert column.array().to_pylist() == values
