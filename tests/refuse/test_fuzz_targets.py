"""Sound bytes are parsed; changed ones are parsed or refused, and nothing else happens."""

import subprocess
import sys

import numpy as np
import pytest

from tests.support import effort
from tests.support.fuzz_targets import attempt, targets

INTERESTING = (b"\x00", b"\xff", b"-1", b"1e999", b"null", b"[", b"{", b'"', b"\xed\xa0\x80", b"9" * 30, b"../", b"%00")


def changed(seed: bytes, other: bytes, draw: np.random.Generator) -> bytes:
    """A few bits flipped, runs removed, repeated or replaced, pieces of another input put in."""
    data = bytearray(seed)
    for _ in range(int(draw.integers(1, 5))):
        start = int(draw.integers(0, len(data) + 1))
        stop = min(len(data), start + int(draw.integers(0, 2 ** int(draw.integers(1, 8)))))
        match int(draw.integers(0, 6)):
            case 0 if start < len(data):
                data[start] ^= 1 << int(draw.integers(0, 8))
            case 1:
                del data[start:stop]
            case 2:
                data[start:start] = data[start:stop] * int(draw.integers(1, 20))
            case 3:
                data[start:stop] = INTERESTING[int(draw.integers(0, len(INTERESTING)))]
            case 4:
                place = int(draw.integers(0, len(other) + 1))
                data[start:stop] = other[place : place + int(draw.integers(0, 64))]
            case _:
                data[start:stop] = draw.bytes(stop - start)
    return bytes(data)


@pytest.mark.parametrize("name", sorted(targets()))
def test_changed_bytes_are_parsed_or_refused(name: str) -> None:
    target = targets()[name]
    for seed in target.seeds:
        target.parse(seed)
    draw = np.random.default_rng(sum(name.encode()))
    for number in range(30_000 if effort.ALL else 200):
        seed = target.seeds[number % len(target.seeds)]
        data = changed(seed, target.seeds[(number + 1) % len(target.seeds)], draw)
        try:
            attempt(target, data)
        except Exception as error:
            raise AssertionError(f"{name}: {data[:2000]!r}") from error


FLIPS = """
import random, sys
from tests.support.fuzz_targets import attempt, targets

target = targets()[sys.argv[1]]
(seed,) = target.seeds
end = len(seed) - 8  # where a Parquet file says how long its footer is
start = end - int.from_bytes(seed[end : end + 4], "little")
draw = random.Random(1)
for _ in range(int(sys.argv[2])):
    data = bytearray(seed)
    data[draw.randrange(start, end)] ^= 1 << draw.randrange(8)
    attempt(target, bytes(data))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["index", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("rows", "snapshot"))]
)
def test_flipped_bits_of_a_footer_do_not_end_the_process(name: str) -> None:
    """The C++ library throws exceptions for some of them that pyarrow does not catch everywhere."""
    command = [sys.executable, "-c", FLIPS, name, "20000" if effort.ALL else "300"]
    subprocess.run(command, check=True, timeout=300)
