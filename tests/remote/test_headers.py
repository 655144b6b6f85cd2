"""Outlines of files of ``torch.save`` on other machines: right for whole files, refused for others."""

import io
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.remote.headers import TorchOutline, torch_outline
from ckptzoo.remote.referenced import RecordedFile
from ckptzoo.remote.retry import RetryPolicy
from tests.remote.test_referenced import opened, serving
from tests.support.effort import examples

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")


def saved(content: Any) -> bytes:
    made = io.BytesIO()
    torch.save(content, made)
    return made.getvalue()


def outline_of(data: bytes) -> TorchOutline:
    return torch_outline(RecordedFile("https://host/x.pt", len(data)), io.BytesIO(data))


def state(seed: int) -> Any:
    """Tensors of odd sizes, views, shared and empty ones, and other things beside them."""
    rng = random.Random(seed)
    shared = torch.arange(rng.randrange(1, 300), dtype=torch.float16)
    tensors = {f"layer.{at}": torch.randn(rng.randrange(500), rng.choice([0, 1, 3])) for at in range(rng.randrange(40))}
    return {"state": {**tensors, "tied": shared, "view": shared[1:]}, "epoch": seed, "note": "ü" * rng.randrange(200)}


def test_members_are_where_zipfile_finds_them() -> None:
    for seed in range(examples(60)):
        data = saved(state(seed))
        outline = outline_of(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            folder = archive.namelist()[0].partition("/")[0]
            assert {f"{folder}/{name}" for name in outline.members} == set(archive.namelist())
            for name, (start, size) in outline.members.items():
                assert data[start : start + size] == archive.read(f"{folder}/{name}")
            assert outline.pickle == archive.read(f"{folder}/data.pkl")


def test_flipped_bits_are_refused_or_change_no_place() -> None:
    data = saved(state(3))
    right = outline_of(data)
    directory = data.index(b"PK\x01\x02")
    for seed in range(examples(3000, 150)):
        rng, damaged = random.Random(seed), bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(directory, len(data)) if rng.random() < 0.8 else rng.randrange(len(data))
            damaged[at] ^= 1 << rng.randrange(8)
        try:
            found = outline_of(bytes(damaged))
        except IntegrityError as error:
            assert str(error).startswith("https://host/x.pt: archive: expected ")
        else:
            assert found.pickle == right.pickle
            common = found.members.keys() & right.members.keys()
            assert {name: found.members[name] for name in common} == {name: right.members[name] for name in common}


def test_cut_and_other_files_are_refused(tmp_path: Path) -> None:
    data = saved(state(1))
    rng = random.Random(1)
    repacked, packed, arrays = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as archive,
        zipfile.ZipFile(repacked, "w") as other,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as third,
        zipfile.ZipFile(arrays, "w") as fourth,
    ):
        for name in archive.namelist():
            other.writestr(name, archive.read(name))
            third.writestr(name, archive.read(name))
        fourth.writestr("a.npy", b"x" * 1000)
    legacy = io.BytesIO()
    torch.save({"x": torch.ones(3)}, legacy, _use_new_zipfile_serialization=False)
    cuts = [data[: rng.randrange(len(data))] for _ in range(5)]
    for other_file in (repacked, packed, arrays, legacy, io.BytesIO(), io.BytesIO(b"PK"), *map(io.BytesIO, cuts)):
        with pytest.raises(IntegrityError, match="Copy the file with ckptzoo import"):
            outline_of(other_file.getvalue())


def test_directories_without_end_are_refused_before_they_are_parsed() -> None:
    entry = b"PK\x01\x02" + bytes(42)
    count = 500_000
    end = b"PK\x05\x06" + bytes(4) + b"\x01\0\x01\0" + (len(entry) * count).to_bytes(4, "little") + bytes(6)
    with pytest.raises(IntegrityError, match=r"at most [0-9]+ members, got more"):
        outline_of(entry * count + end)


def test_two_requests_a_file(quick: RetryPolicy) -> None:
    files = {f"/{seed}.pt": saved({"a": torch.randn(200, 200), "b": state(seed)}) for seed in range(20)}
    with serving(files) as served, opened(served, quick) as references:
        found = list(references.each([f"{served.url}{name}" for name in files], torch_outline))
        assert not [item for item in found if isinstance(item, ZooError)]
        for (_, outline), data in zip([item for item in found if type(item) is tuple], files.values(), strict=True):
            assert outline == outline_of(data)
        assert len(served.seen) <= 2 * len(files) and served.sent <= 2 * 65536 * len(files)
