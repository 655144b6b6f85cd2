"""Hostile files in the forms that imports read end in an error that names them, within bounded time and memory."""

import gzip
import io
import pickle  # noqa: TID251 - files that people have
import random
import resource
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import msgpack
import numpy as np
import pytest

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.imports import import_zoo
from ckptzoo.hub.imports.opened import OpenedSource
from ckptzoo.hub.imports.sources import open_path
from ckptzoo.hub.untrusted.formats import HEAD_BYTES
from ckptzoo.hub.untrusted.forms import form_of, read_form
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.process import ReadingProcess
from ckptzoo.hub.untrusted.protocol import Job
from tests.support.checkpoint_files import call, text, written
from tests.support.container_files import (
    FORMS,
    PACKERS,
    gguf_file,
    hdf5_file,
    joblib_file,
    tar_file,
    torch_file,
    zip_file,
)
from tests.support.effort import examples
from tests.support.published_zoos import network

LIMITS = Limits(tensor_bytes=2**26, memory_bytes=2**30, seconds=60)


def answers(files: dict[str, bytes]) -> Iterator[tuple[str, Any]]:
    """What the reading process says about each file."""
    with ReadingProcess(LIMITS) as process:
        for name, data in files.items():
            try:
                form = read_form(data[:HEAD_BYTES], name, location=name)
            except IntegrityError as error:
                yield name, error
                continue
            (answer,), _ = process.read([Job(name, form.name, len(data), strict=False)], [data])
            yield name, answer


def check_refused(cases: dict[str, tuple[bytes, str]]) -> None:
    for name, answer in answers({name: data for name, (data, _) in cases.items()}):
        words = cases[name][1]
        assert isinstance(answer, IntegrityError), (name, answer)
        assert name in str(answer) and words in str(answer), (name, str(answer)[:500])
        assert str(answer).isprintable() and len(str(answer)) < 2000


def array(shape: object, dtype: object = "float32", data: object = bytes(16), code: int = 1) -> bytes:
    """A mapping with one array of Flax, as its parts say."""
    return b"\x81\xa1w" + msgpack.packb(msgpack.ExtType(code, msgpack.packb((shape, dtype, data))))


def test_gguf_that_lies_is_cut_or_is_quantised() -> None:
    sound = gguf_file(network(0))
    names = list(network(0))
    cases = {
        "quantised": (gguf_file(network(0), kinds={names[0]: 2}), "quantised numbers (type 2)"),
        "version": (sound.replace(b"GGUF\x03", b"GGUF\x09", 1), "version of GGUF"),
        "tensors": (sound[:8] + b"\xff" * 8 + sound[16:], "at most"),
        "pairs": (sound[:16] + b"\xff" * 8 + sound[24:], "at most"),
        "long text": (sound[:24] + b"\xff" * 7 + b"\x00" + sound[32:], "header"),
        "alignment": (sound.replace(b"alignment\x04\0\0\0\x20\0\0\0", b"alignment\x04\0\0\0\0\0\0\0"), "alignment"),
        "huge": (
            sound.replace(b"0.weight\x02\0\0\0\x04\0\0\0\0\0\0\0", b"0.weight\x02\0\0\0" + b"\xff" * 8),
            "a size that",
        ),
        "cut": (sound[:-40], "within the file"),
    }
    check_refused(cases)
    # no beginning of a file is read as one, and nothing but an error comes of a changed byte
    draw = random.Random(0)
    changed = {f"cut {at}": sound[:at] for at in draw.sample(range(4, len(sound) - 32), examples(60, 8))}
    for number in range(examples(300, 12)):
        at = draw.randrange(4, 400)
        changed[f"byte {number}"] = sound[:at] + bytes([draw.randrange(256)]) + sound[at + 1 :]
    for name, answer in answers(changed):
        assert isinstance(answer, IntegrityError if name.startswith("cut") else IntegrityError | list), name


def test_msgpack_that_lies_or_nests(tmp_path: Path) -> None:
    inner = msgpack.ExtType(1, msgpack.packb(([4], "float32", bytes(16))))
    pieces = {"__msgpack_chunked_array__": True, "shape": {"0": 2**40}, "chunks": {"0": inner}}
    check_refused(
        {
            "deep": (b"\x81\xa1a" * 100_000 + b"\xc0", "msgpack"),
            "lists": (b"\x81\xa1a" + b"\x91" * 100_000, "msgpack"),
            "map": (b"\xdf\xff\xff\xff\xff\xa1a", "msgpack"),
            "array of items": (b"\x81\xa1a\xdd\xff\xff\xff\xff", "msgpack"),
            "text": (b"\x81\xa1a\xdb\xff\xff\xff\xffx", "msgpack"),
            "bytes": (b"\x81\xa1a\xc6\xff\xff\xff\xffx", "msgpack"),
            "extension": (b"\x81\xa1a\xc9\xff\xff\xff\xff\x01x", "msgpack"),
            "behind": (array([4]) + b"\xc0", "msgpack"),
            "shape": (array([2**40]), "4398046511104 bytes, got 16"),
            "overflow": (array([2**31, 2**31, 2**31]), "bytes, got 16"),
            "negative": (array([-4]), "a shape of at most 32 axes"),
            "true": (array([True, 4]), "a shape of at most 32 axes"),
            "axes": (array([1] * 65), "a shape of at most 32 axes"),
            "text as shape": (array("4"), "a shape of at most 32 axes"),
            "object": (array([2], "object"), "got object"),
            "no dtype": (array([2], None), "got None"),
            "no bytes": (array([4], data="0" * 16), "one of float64"),
            "unknown code": (array([4], code=9), "an array or a number of Flax"),
            "nested": (array([4], data=msgpack.ExtType(1, array([4]))), "one of float64"),
            "pieces": (msgpack.packb({"w": pieces}), "as many numbers in its pieces"),
            "no pieces": (msgpack.packb({"w": pieces | {"chunks": {}}}), "its pieces"),
            "control": (msgpack.packb({"b": 1, "a\nb": inner}), "a printable text"),
        }
    )


def hdf5_cases(folder: Path) -> dict[str, tuple[bytes, str]]:
    folder.mkdir(exist_ok=True)
    np.ones(8, "f4").tofile(folder / "secret.bin")
    with h5py.File(folder / "other.h5", "w") as other:
        other["w"] = np.ones(4)

    def cycle(file: Any) -> None:
        inner = file.create_group("a/b")
        inner["up"] = file["a"]

    def deep(file: Any) -> None:
        group = file
        for _ in range(100):
            group = group.create_group("g")
        group["w"] = np.ones(3)

    def virtual(file: Any) -> None:
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "w", (4,))
        file.create_virtual_dataset("w", layout)

    def many(file: Any) -> None:
        for number in range(40):
            file.create_dataset(f"w{number}", (2**20,), "f4", chunks=(2**10,))

    def filtered(file: Any) -> None:
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_chunk((4,))
        made.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, (1, 2))
        h5py.h5d.create(file.id, b"w", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((4,)), made)

    external = [(str(folder / "secret.bin"), 0, 32)]
    good = hdf5_file(lambda file: file.create_dataset("w", data=np.arange(2000.0)))
    made = {
        "cycle": (cycle, "a group inside itself"),
        "deep": (deep, "at most 64 groups within one another"),
        "link out": (lambda file: file.__setitem__("w", h5py.ExternalLink(str(folder / "other.h5"), "w")), "a link to another file"),
        "soft": (lambda file: file.__setitem__("w", h5py.SoftLink("/w")), "a soft link"),
        "virtual": (virtual, "numbers in other files"),
        "external": (lambda file: file.create_dataset("w", (8,), "f4", external=external), "numbers in other files"),
        "unwritten": (lambda file: file.create_dataset("w", (2**50,), "f4", chunks=(2**10,)), "bytes of numbers"),
        "chunk": (lambda file: file.create_dataset("w", (4,), "f4", chunks=(2**28,), maxshape=(None,)), "bytes of numbers"),
        "many": (many, "bytes of numbers"),
        "packed": (lambda file: file.create_dataset("w", data=np.zeros(2**24 + 2**20, "f4"), compression="gzip"), "bytes of numbers"),
        "filter": (filtered, "those of HDF5 itself"),
        "complex": (lambda file: file.create_dataset("w", data=np.ones(3, complex)), "got complex128"),
        "texts": (lambda file: file.create_dataset("w", data=["a", "b"]), "a state dict: names and tensors"),
        "empty": (lambda file: file.create_group("a"), "a state dict: names and tensors"),
    }  # fmt: skip
    cases = {name: (hdf5_file(fill), words) for name, (fill, words) in made.items()}
    return cases | {"cut": (good[: len(good) // 2], "HDF5 file: expected a whole one"), "head": (good[:8], "HDF5 file")}


def test_hdf5_that_lies_leads_out_or_goes_in_circles(tmp_path: Path) -> None:
    check_refused(hdf5_cases(tmp_path / "beside"))


def replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1 and len(old) == len(new)
    return data.replace(old, new)


def test_pickles_of_joblib_that_lie_or_name_code(tmp_path: Path) -> None:
    good = joblib_file({"w": np.ones((77, 3), "f4")})
    ran = tmp_path / "ran"
    touched = call("os.system", text(f"touch {ran}"))
    check_refused(
        {
            "shape": (replaced(good, b"K\x4dK\x03", b"K\x4eK\x03"), "array of shape (78, 3)"),
            "cut": (good[:-30], "array of shape (77, 3)"),
            "code": (b"\x80\x02" + touched + text("NumpyArrayWrapper") + b"\x86.", "a state dict: names and tensors"),
            "deep": (_object_arrays(6), "pickles of joblib within one another"),
            "no state": (b"\x80\x02cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81}b.", "array of joblib"),
            "class": (b"\x80\x02cjoblib.numpy_pickle\nNumpyArrayWrapper\n}b.", "pickle"),
            "bytes": (b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b"NumpyArrayWrapper", ""),
            "memo": (b"\x80\x02cjoblib.numpy_pickle\nNumpyArrayWrapper\nr\xff\xff\xff\xff.", ""),
        }
    )
    assert not ran.exists()


def _object_arrays(depth: int) -> bytes:
    """Arrays of objects, each of which is described in the place of the one before."""
    data = joblib_file(np.array([None, {}], dtype=object))
    start = data.index(b"\x80\x05", 1)
    return data[:start] * depth + data[start:]


def npy(pickled: bytes, shape: str = "(1,)") -> bytes:
    """An array of objects with a pickle of one's own."""
    header = f"{{'descr': '|O', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + pickled


def test_arrays_of_objects_that_lie_or_name_code(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    objects = np.array([None, {}], dtype=object)
    good = pickle.dumps(objects, protocol=2)
    cycle = np.empty(1, dtype=object)
    cycle[0] = cycle
    rows = np.empty((2, 1), dtype=object)
    rows[0, 0] = rows[1, 0] = rows
    plain, arrays = io.BytesIO(), io.BytesIO()
    np.save(plain, np.ones(4))
    for _ in range(3):
        np.save(arrays, np.ones(4))
    check_refused(
        {
            "code.npy": (npy(b"\x80\x02" + call("os.system", text(f"touch {ran}")) + b"."), "a state dict"),
            "code.npz": (zip_file({"a.npy": npy(b"\x80\x02cos\nsystem\n.")}), "a state dict"),
            "count.npy": (npy(replaced(good, b"K\x02\x85", b"K\x03\x85")), "3 objects"),
            "huge.npy": (npy(good.replace(b"K\x02\x85", b"J\xff\xff\xff\x7f\x85")), "2147483647 objects"),
            "cut.npy": (npy(good[:-9]), "a whole pickle of its objects"),
            "empty.npy": (npy(b""), "a whole pickle of its objects"),
            "cycle.npy": (npy(pickle.dumps(cycle)), ""),
            "rows.npy": (npy(pickle.dumps(rows)), ""),
            "record.npy": (npy(b"").replace(b"'|O'", b"[('a','|O')]"), ""),
            "behind.npy": (plain.getvalue() + b"more", "36 in the file"),
            "in the middle.eqx": (arrays.getvalue()[:-20], "bytes from its shape"),
            "settings.eqx": (b"{" * 400 + b"}\n" + arrays.getvalue(), "settings in JSON"),
            "pairs.pkl": (pickle.dumps([("a", [("a", [("a", [("a", [("a", [("a", [("a", [("a", 1)])])])])])])])]), ""),
        }
    )
    assert not ran.exists()


@pytest.mark.parametrize("form", [".h5", ".msgpack", ".joblib"])
def test_damaged_files_are_read_or_refused_by_name(form: str) -> None:
    data, draw = FORMS[form](network(0)), random.Random(0)
    files: dict[str, bytes] = {}
    for number in range(examples(2000, 20)):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 1, 3, 20])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        cut = draw.randrange(len(damaged)) if draw.random() < 0.2 else len(damaged)
        files[f"{number:04d}{form}"] = bytes(damaged[:cut])
    for name, answer in answers(files):
        if isinstance(answer, IntegrityError):
            assert name in str(answer) and str(answer).isprintable() and len(str(answer)) < 2000


def test_packed_files_that_explode_or_break(tmp_path: Path) -> None:
    zeros = bytes(2**20)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join([*(packer.compress(zeros) for _ in range(80)), packer.flush()])
    good = torch_file(network(0))
    asks = bytearray(PACKERS[".xz"](good))
    cases = {
        "a.pt.gz": (bomb, "content"),
        "b.pt.gz": (PACKERS[".gz"](b"\x80\x04") + bomb, "at most 67108864 bytes unpacked"),
        "c.pt.gz": (PACKERS[".gz"](good)[:-4], "bytes as they were packed"),
        "d.pt.bz2": (PACKERS[".bz2"](good)[:-9], "bytes as they were packed"),
        "e.pt.xz": (bytes(asks[:-9]), "bytes as they were packed"),
        "f.pt.z": (PACKERS[".z"](good) + b"x", "bytes as they were packed"),
        "g.pt.gz": (PACKERS[".gz"](PACKERS[".gz"](good)), ""),
        "h.pt.gz": (PACKERS[".gz"](good) + b"not gzip", "bytes as they were packed"),
    }
    folder = tmp_path / "source"
    written(folder, {name: data for name, (data, _) in cases.items()} | {"good.pt": good})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = import_zoo(folder, tmp_path / "zoo", license="MIT", skip_bad=True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KiB
    problems = {item["file"]: item["problem"] for item in done.skipped}
    reasons = {item["file"]: item["reason"] for item in done.passed_over}
    assert done.added == 1
    for name, (_, words) in cases.items():
        said = problems.get(name.rpartition(".")[0]) or reasons.get(name.rpartition(".")[0])
        assert said is not None and words in said, (name, said)


def nested_bomb(depth: int) -> bytes:
    data = zip_file({"a.pt": bytes(2**24)})
    for level in range(depth):
        data = zip_file({f"{level}_{number}.zip": data for number in range(16)})
    return data


def test_archives_within_archives_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptzoo.hub.imports.opened._ALWAYS_ALLOWED", 2**26)
    monkeypatch.setattr("ckptzoo.hub.imports.opened._EXPANSION", 10)
    monkeypatch.setattr("ckptzoo.hub.imports.sources._DIRECTORY_MEMBERS", 2**10)
    good = torch_file(network(0))
    archive = {"deep.zip": nested_bomb(1), "good.pt": good}
    for name, data in {"files.zip": zip_file({f"{at}.pt": b"" for at in range(1100)}), **archive}.items():
        (tmp_path / "source").mkdir(exist_ok=True)
        (tmp_path / "source" / name).write_bytes(data)
    done = import_zoo(tmp_path / "source", tmp_path / "zoo", license="MIT", skip_bad=True)
    said = {item["file"]: item["problem"] for item in done.skipped}
    assert done.added == 1 and any("files in the archives of a source" in problem for problem in said.values())
    assert "a directory of at most 1024 members" in said["files.zip"]


HOSTILE_TAR = tarfile.TarInfo("link.pt")
HOSTILE_TAR.type, HOSTILE_TAR.linkname = tarfile.SYMTYPE, "/etc/passwd"


def linked() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(HOSTILE_TAR)
    return out.getvalue()


@pytest.mark.parametrize("outer", ["folder", ".zip", ".tgz"])
def test_hostile_archives_among_files_are_named_and_the_others_read(tmp_path: Path, outer: str) -> None:
    good = torch_file(network(0))
    encrypted = bytearray(zip_file({"a.pt": good}))
    encrypted[encrypted.rindex(b"PK\x01\x02") + 8] |= 1
    cases = {
        "up.zip": (zip_file({"../a.pt": good}), "a relative path inside the archive"),
        "root.tar": (tar_file({"/etc/a.pt": good}), "a relative path inside the archive"),
        "link.tar": (linked(), "expected a file, got a link"),
        "twice.tar": (tar_file({"a.pt": good}) [:-10240] + tar_file({"a.pt": good}), ""),
        "secret.zip": (bytes(encrypted), "expected unencrypted bytes"),
        "none.zip": (b"PK\x05\x06", "a whole zip archive"),
        "none.tgz": (gzip.compress(b"not a tar archive" * 99), "a whole tar archive"),
        "text.tar": (b"not a tar archive", "a whole tar archive"),
    }  # fmt: skip
    files = {name: data for name, (data, _) in cases.items()} | {"good.pt": good}
    if outer == "folder":
        written(tmp_path / "source", files)
    else:
        archive = zip_file(files) if outer == ".zip" else tar_file(files, "w:gz")
        written(tmp_path, {f"source{outer}": archive})
    source = tmp_path / ("source" if outer == "folder" else f"source{outer}")
    done = import_zoo(source, tmp_path / "zoo", license="MIT", skip_bad=True)
    problems = {item["file"]: item["problem"] for item in done.skipped}
    assert done.added >= 1
    for name, (_, words) in cases.items():
        said = problems.get(name) or problems.get(name.partition(".")[0] + "/a.pt") or ""
        assert (words in said and name.partition(".")[0] in said) or not words, (name, problems)


def test_an_archive_that_holds_itself_ends(tmp_path: Path) -> None:
    # each holds the next one by another name, deeper than archives are opened
    data = torch_file(network(0))
    for level in range(40):
        data = zip_file({f"{level}.zip": data}) if level % 2 else tar_file({f"{level}.tar": data})
    written(tmp_path / "source", {"a.zip": data, "good.pt": torch_file(network(1))})
    done = import_zoo(tmp_path / "source", tmp_path / "zoo", license="MIT")
    assert done.added == 1 and "within 2 others" in done.passed_over[0]["reason"]


def test_folders_with_loops_pipes_and_links_to_nothing(tmp_path: Path) -> None:
    import os

    source = tmp_path / "source"
    written(source, {"good.pt": torch_file(network(0))})
    (source / "loop.pt").symlink_to("loop.pt")
    (source / "gone.h5").symlink_to("nothing")
    (source / "again").symlink_to(source)
    (source / "device.zip").symlink_to("/dev/zero")
    os.mkfifo(source / "pipe.tgz")
    opened = OpenedSource(open_path(source))
    assert [file.path for file in opened.files()] == ["good.pt"]
    assert opened.passed_over == dict.fromkeys(("loop.pt", "gone.h5", "device.zip"), "a link that leads to no file")


@pytest.mark.parametrize("seed", range(4))
def test_any_first_bytes_have_a_form(seed: int) -> None:
    draw = random.Random(seed)
    starts = [
        b"",
        b"PK\x03\x04",
        b"\x80",
        b"\x81",
        b"\xdf",
        b"\x1f\x8b",
        b"x\x9c",
        b"\x93NUMPY",
        b"\x89HDF",
        b"{",
        b"<",
    ]
    for _ in range(examples(20_000, 500)):
        head = draw.choice(starts) + draw.randbytes(draw.randrange(HEAD_BYTES))
        path = "".join(draw.choice("a./_-0\n*é{") for _ in range(draw.randrange(40)))
        assert form_of(head[:HEAD_BYTES], path).words


def test_the_reading_process_takes_no_filters_from_outside() -> None:
    code = (
        "from ckptzoo.hub.untrusted.hdf5_files import read_hdf5; from ckptzoo.hub.untrusted.limits import Limits\n"
        "import os, sys\ntry:\n    read_hdf5(b'\\x89HDF', location='a', limits=Limits())\nexcept Exception: pass\n"
        "print(os.environ['HDF5_PLUGIN_PRELOAD'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "::"
