"""Archives made of random hostile headers end in their files or in an error that names them, within bounded memory."""

import gzip
import io
import json
import lzma
import random
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.imports.sources import open_path
from tests.support.effort import ALL, examples

READ = """
import json, resource, sys, time
from pathlib import Path
from ckptzoo.errors import IntegrityError
from ckptzoo.hub.imports.sources import open_path

def kilobytes(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])

limit = (kilobytes("VmSize:") + 256 * 1024) * 1024
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
base, found = kilobytes("VmRSS:"), {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    began = time.monotonic()
    try:
        outcome = [len(file.read(file.size)) for file in open_path(path).files() if file.size < 2**20]
    except IntegrityError as error:
        outcome = str(error)
    except BaseException as error:
        outcome = {"wrong": repr(error)[:300]}
    found[path.name] = outcome, kilobytes("VmHWM:") - base, time.monotonic() - began
print(json.dumps(found))
"""
PACKERS: dict[str, Callable[..., object]] = {
    ".tar": open,
    ".tgz": partial(gzip.open, compresslevel=1),
    ".tar.xz": partial(lzma.open, preset=0),
}


def read(folder: Path) -> dict[str, tuple[object, int, float]]:
    """What came of each archive: sizes of its files, or a message; kilobytes taken so far above the base; seconds."""
    done = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found: dict[str, tuple[object, int, float]]) -> None:
    for name, (outcome, kilobytes, seconds) in found.items():
        assert not isinstance(outcome, dict), (name, outcome)
        if isinstance(outcome, str):
            assert name in outcome and len(outcome) < 1000 and outcome.isprintable(), (name, outcome)
        assert kilobytes < 100_000 and seconds < 20, (name, kilobytes, seconds)


def header(kind: bytes, size: int | bytes, name: str = "a.pt") -> bytes:
    """A block with a true checksum, whatever the size is."""
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = size if isinstance(size, bytes) else tarfile.itn(size, 12, tarfile.GNU_FORMAT)  # type: ignore[attr-defined]
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block)


def record(keyword: bytes, value: bytes) -> bytes:
    length = len(keyword) + len(value) + 3
    while len(str(length)) + len(keyword) + len(value) + 3 != length:
        length = len(str(length)) + len(keyword) + len(value) + 3
    return b"%d %s=%s\n" % (length, keyword, value)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


FIELDS = {
    b"path": (b"b.pt", b"", b"../b", b"p" * 9000, b"\xff\xfe", b"b\0c"),
    b"size": (b"-5", b"0", b"7", b"1e3", b"9" * 30, b"9" * 5000, b"\xb2", b"1_0", b" 3", b""),
    b"mtime": (b"nan", b"soon", b"1.5"),
    b"hdrcharset": (b"BINARY", b"nonsense", b""),
    b"GNU.sparse.map": (b"0,1", b"0,", b"x" * 1000, b"0,1," * 20_000 + b"0,1"),
    b"GNU.sparse.size": (b"-1", b"99999999999"),
    b"GNU.sparse.major": (b"1",),
    b"GNU.sparse.minor": (b"0",),
    b"SCHILY.xattr.user": (b"v", b"v" * 100_000),
}


def pax(draw: random.Random) -> bytes:
    """Content of a pax header."""
    match draw.randrange(8):
        case 0:
            return bytes(draw.choice((0, 1, 511, 10**6, 2 * 10**6)))
        case 1:
            return draw.choice((b"1", b"9", b"0")) * draw.choice((10, 3000, 100_000, 10**6))
        case 2:
            return draw.choice(
                (b"0 a=b\n", b"-1 a=b\n", b"5 a=\n", b"4 =\n", b"999 a=b\n", b"6 a-b\n", b"00000006 a=b\n")
            )
        case 3:
            return b"".join(record(b"k%d" % number, b"") for number in range(draw.choice((10, 50_000))))
        case _:
            chosen = [draw.choice(list(FIELDS)) for _ in range(draw.randrange(1, 6))]
            return b"".join(record(keyword, draw.choice(FIELDS[keyword])) for keyword in chosen)


def pieces(draw: random.Random) -> Iterator[bytes]:
    """Headers and data of an archive, in pieces, of which some repeat."""
    for number in range(draw.randrange(1, 8)):
        match draw.randrange(16):
            case 0 | 1:
                size = draw.choice((0, 1, 5000, 2 * 10**6, 2 * 10**7))
                yield header(draw.choice((tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)), size)
                yield from (bytes(2**16) for _ in range(-(-size // 2**16)))
            case 2 | 3 | 4:
                data = pax(draw)
                piece = header(draw.choice((b"x", b"g", b"X")), len(data)) + padded(data)
                yield from (piece for _ in range(draw.choice((1, 1, 2, 40, 2000 if len(data) < 4096 else 3))))
            case 5 | 6:
                size = draw.choice(
                    (-1, -512, -(2**60), 2**40, 2**63, 2**80, b"7" * 12, b"\xb2" * 12, b" " * 12, b"8" * 12)
                )
                yield header(draw.choice((b"0", b"L", b"x", b"g", b"S", b"5", b"1")), size)
            case 7:
                # a map that goes on and on, by the byte 482, later 504
                block = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
                block[386:482], block[482] = b"00000000001\0" * 8, 1
                block[148:156] = b" " * 8
                block[148:156] = f"{sum(block):06o}\0 ".encode()
                yield bytes(block)
                more = bytearray(b"00000000001\0" * 42 + b"\1").ljust(512, b"\0")
                yield from (bytes(more) for _ in range(draw.choice((1, 10_000))))
            case 8:
                yield bytes(512 * draw.randrange(1, 4))
            case _:
                data = draw.randbytes(draw.randrange(0, 2000))
                yield header(b"0", len(data), f"{number}.pt") + padded(data)
    if draw.random() < 0.7:
        yield bytes(1024)


@pytest.mark.slow
def test_random_hostile_headers(tmp_path: Path) -> None:
    draw = random.Random(5)
    for number in range(examples(80, 24)):
        suffix = draw.choice(list(PACKERS))
        with PACKERS[suffix](tmp_path / f"{number:04d}{suffix}", "wb") as out:  # type: ignore[attr-defined]
            for piece in pieces(draw):
                out.write(piece)
    found = read(tmp_path)
    check(found)
    # both ends are reached
    assert any(isinstance(outcome, list) and outcome for outcome, _, _ in found.values())
    assert sum(isinstance(outcome, str) for outcome, _, _ in found.values()) > len(found) // 2


def repeated(path: Path, *parts: tuple[bytes, int]) -> None:
    with lzma.open(path, "wb", preset=0) as out:
        for data, count in parts:
            for _ in range(count):
                out.write(data)


@pytest.mark.slow
def test_small_archives_that_would_take_gigabytes(tmp_path: Path) -> None:
    zeros, end = bytes(2**20), (bytes(1024), 1)
    for kind in (b"L", b"x") if ALL else (b"x",):
        repeated(tmp_path / f"{ord(kind)}.tar.xz", (header(kind, 2**27), 1), (zeros, 2**7), (header(b"0", 0), 1), end)
    long = padded(b"n" * 4000)
    repeated(tmp_path / "long.tar.xz", (header(b"L", 4000) + long + header(b"0", 0), 3000), end)
    fields = padded(b"".join(record(b"%d" % number, b"") for number in range(20_000)))
    repeated(tmp_path / "global.tar.xz", *((header(b"g", len(fields)) + fields, 1) for _ in range(30)), end)
    # the window of a stream is what its reader must hold
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 2**30}]
    with lzma.open(tmp_path / "window.tar.xz", "wb", filters=filters) as out:
        out.write(header(b"0", 0) + bytes(1024))
    if ALL:
        with lzma.open(tmp_path / "many.tar.xz", "wb", preset=0) as out:
            for number in range(66_000):
                out.write(header(b"0", 0, f"{number}"))
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        archive.writestr("a.pt", b"a")
    directory_zip(tmp_path / "directory.zip", 70_000, b"")
    directory_zip(tmp_path / "extra.zip", 1000, bytes(60_000))
    found = read(tmp_path)
    check(found)
    assert found.pop("many.zip")[0] == [1]
    assert all(isinstance(outcome, str) for outcome, _, _ in found.values()), found


def directory_zip(path: Path, count: int, extra: bytes) -> None:
    """A zip archive of so many entries in its directory, and nothing else."""
    out = io.BytesIO()
    for number in range(count):
        name = b"%d" % number
        out.write(
            b"PK\1\2" + struct.pack("<6H3L5H2L", 20, 20, 0, 0, 0, 33, 0, 0, 0, len(name), len(extra), 0, 0, 0, 0, 0)
        )
        out.write(name + extra)
    size = out.tell()
    out.write(b"PK\5\6" + struct.pack("<4H2LH", 0, 0, count % 2**16, count % 2**16, size, 0, 0))
    path.write_bytes(out.getvalue())


def test_honest_archives_of_every_writer_are_read(tmp_path: Path) -> None:
    """Long paths as GNU and POSIX write them, fields of every kind, sizes above 8 GiB as numbers, xz streams in a row."""
    paths = ["a.pt", "folder/" + "n" * 200 + ".pt", "f/" * 60 + "x.pt", "gr\u00fc\u00df.pt"]
    forms = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    for form, number in forms.items():
        with tarfile.open(tmp_path / f"{form}.tar", "w", format=number, pax_headers={"comment": "c"}) as archive:
            folder = tarfile.TarInfo("folder")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            for at, path in enumerate(paths):
                info = tarfile.TarInfo(path)
                info.size, info.mtime = 700 + at, 1.5
                if number == tarfile.PAX_FORMAT:
                    info.pax_headers = {"SCHILY.xattr.user": "v" * 1000}
                archive.addfile(info, io.BytesIO(bytes(info.size)))
        plain = (tmp_path / f"{form}.tar").read_bytes()
        half = len(plain) // 2
        streams = lzma.compress(plain[:half]) + bytes(8) + lzma.compress(plain[half:], preset=9)
        (tmp_path / f"{form}.tar.xz").write_bytes(streams)
        (tmp_path / f"{form}.tgz").write_bytes(gzip.compress(plain[:half]) + gzip.compress(plain[half:]))
    for path in sorted(tmp_path.iterdir()):
        assert [(file.path, len(file.read(10**4))) for file in open_path(path).files()] == [
            (name, 700 + at) for at, name in enumerate(paths)
        ], path


def test_what_tarfile_passes_over_without_a_word(tmp_path: Path) -> None:
    """A damaged header in the middle, an end at a member's border, a second archive, padding without end, two names."""
    members = [header(b"0", 3, f"{number}.pt") + padded(b"abc") for number in range(3)]
    damaged, end = bytearray(b"".join(members)), bytes(1024)
    damaged[1024 + 5] ^= 1
    name = record(b"path", b"c.pt")
    two = header(b"L", 5) + padded(b"b.pt\0") + header(b"x", len(name)) + padded(name)
    cases = {
        "damaged.tar": (bytes(damaged) + end, "bad checksum at byte 1024"),
        "cut.tar": (b"".join(members[:2]), "its end at byte 2048"),
        "two.tar": (members[0] + end + members[1] + end, "as of a second archive"),
        "padding.tar.xz": (members[0] + bytes(2**26 + 10**6), "zeros behind its end"),
        "names.tar": (two + members[0] + end, "one name of a member"),
    }
    for file, (data, words) in cases.items():
        (tmp_path / file).write_bytes(lzma.compress(data, preset=0) if file.endswith(".xz") else data)
        with pytest.raises(IntegrityError) as caught:
            for found in open_path(tmp_path / file).files():
                found.read(10)
        assert words in str(caught.value) and file in str(caught.value), caught.value
