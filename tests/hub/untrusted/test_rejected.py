"""Hostile and unsuitable files: each is refused by name, nothing runs, and the process that reads ends."""

import hashlib
import io
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted import Limits, read, read_all
from tests.support.checkpoint_files import (  # fmt: skip
    LEGACY,
    archive,
    call,
    named,
    number,
    saved,
    state,
    storage,
    tensor,
    text,
    torch_zip,
    written,
)

PLAIN = "expected tensors and plain containers, got "
BAD = "Do not load this file"
SMALL = Limits(file_bytes=64 * 2**20, tensor_bytes=32 * 2**20, memory_bytes=2**30, seconds=120)


class Net(nn.Module):
    """A module that is saved whole."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)


def assert_refused(folder: Path, cases: dict[str, tuple[bytes, str]], limits: Limits = SMALL) -> None:
    """Every file is refused with the words that are expected, and none leaves a trace."""
    paths = written(folder, {name: data for name, (data, _) in cases.items()})
    before = sorted(folder.parent.rglob("*"))
    start = time.monotonic()
    for made in read_all(paths, limits=limits):
        expected = cases[made.path.name][1]
        assert isinstance(made.error, IntegrityError), (made.path.name, made.states)
        assert expected in str(made.error) and str(made.path) in str(made.error), (expected, str(made.error))
        assert str(made.error).isprintable()
    assert time.monotonic() - start < 60
    assert sorted(folder.parent.rglob("*")) == before


def code(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that would run something on loading: (the pickle, the name that is refused)."""
    touch = text(f"touch {folder.parent}/ran")
    sources = f"open('{folder.parent}/ran', 'w')"
    calls = {
        "system": call("posix.system", touch),
        "os": call("os.system", touch),
        "nt": call("nt.system", touch),
        "popen": call("subprocess.Popen", touch),
        "output": call("subprocess.check_output", touch),
        "eval": call("builtins.eval", text(sources)),
        "exec": call("builtins.exec", text(sources)),
        "exec2": call("__builtin__.exec", text(sources)),
        "open": call("builtins.open", text(f"{folder.parent}/ran"), text("w")),
        "import": call("builtins.__import__", text("this")),
        "getattr": call("builtins.getattr", named("os.path"), text("join")),
        "runpy": call("runpy.run_path", text("/etc/passwd")),
        "importlib": call("importlib.import_module", text("this")),
        "socket": call("socket.create_connection", text("192.0.2.1")),
        "shutil": call("shutil.rmtree", text(str(folder.parent))),
        "hub": call("torch.hub.load", text("a/b"), text("c")),
        "jit": call("torch.jit.load", text("a.pt")),
        "load": call("torch.load", text("a.pt")),
        "set_default": call("torch.set_default_dtype", named("torch.float64")),
        "rebuild": call("numpy.core.multiarray._reconstruct", named("numpy.ndarray"), number(0)),
        "loader": call("numpy.load", text("a.npy")),
        "partial": call("functools.partial", named("os.system"), touch),
        "getter": call("operator.attrgetter", text("system")),
        "namespace": call("argparse.Namespace"),
        "path": call("pathlib.PosixPath", text("/tmp")),
        "main": call("__main__.Model"),
        "lambda": call("torch.nn.modules.linear.Linear"),
        "unknown": call("not_installed.at.all"),
    }
    names = {"exec2": "builtins.exec"}
    made = {}
    for key, body in calls.items():
        name = names.get(key) or body[1:].split(b"\n", 2)[0].decode() + "." + body.split(b"\n", 2)[1].decode()
        made[f"{key}.pt"] = (torch_zip(state(("w", tensor()), ("x", body))), PLAIN + name)
        made[f"{key}.th"] = (LEGACY + state(("x", body)), PLAIN + name)
    stacked = b"\x80\x04\x8c\x05posix\x8c\x06system\x93" + touch + b"\x85R."
    later = b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x940h\x00h\x01\x93" + touch + b"\x85R."
    made["stack.pt"] = (torch_zip(stacked), PLAIN + "posix.system")
    made["later.pt"] = (torch_zip(later), PLAIN + "posix.system")
    made["inst.pt"] = (torch_zip(b"\x80\x02(" + touch + b"iposix\nsystem\n."), PLAIN + "posix.system")
    made["object.pt"] = (torch_zip(b"\x80\x02(cposix\nsystem\n" + touch + b"o."), PLAIN + "posix.system")
    made["unused.pt"] = (torch_zip(b"\x80\x02cposix\nsystem\n0" + state(("w", tensor()))[2:]), PLAIN + "posix.system")
    made["extension.pt"] = (torch_zip(b"\x80\x02\x82\x05)R."), "unregistered extension code 5")
    made["new.pt"] = (torch_zip(b"\x80\x02cos\nsystem\n)\x81."), PLAIN + "os.system")
    made["build.pt"] = (torch_zip(b"\x80\x02c__main__\nNet\n)\x81}b."), PLAIN + "__main__.Net")
    made["preface.th"] = (LEGACY[:-4] + b"\x80\x02cposix\nsystem\n." + state(("w", tensor())), PLAIN + "posix.system")
    return made


def test_code_in_pickles_is_named_and_not_run(tmp_path: Path) -> None:
    cases = code(tmp_path / "files")
    assert_refused(tmp_path / "files", cases)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(IntegrityError, match=BAD):
        read(tmp_path / "files" / "system.pt")


def test_what_was_saved_whole_is_named_with_the_way_out(tmp_path: Path) -> None:
    whole, scalar = saved(Net()), saved({"w": torch.ones(2), "best": np.float64(0.5)})
    script = archive(dict.fromkeys(("m/data.pkl", "m/constants.pkl", "m/code/__torch__.py"), b"x"))
    quantized, rows, layout = (
        torch_zip(state(("w", call(f"torch.{name}", number(1)))))
        for name in ("_utils._rebuild_qtensor", "_utils._rebuild_sparse_csr_tensor", "serialization._get_layout")
    )
    step = "save model.state_dict()"
    cases = {
        "whole.pt": (whole, f"{PLAIN}{__name__}.Net"),
        "whole.th": (saved(Net(), zipped=False), "Net"),
        "step.pt": (whole, step),
        "scalar.pt": (scalar, "multiarray.scalar"),
        "numbers.pt": (scalar, "float(x)"),
        "array.pt": (saved({"w": np.ones(3)}), "_reconstruct"),
        "quantized.pt": (quantized, "a quantized tensor"),
        "sparse.pt": (saved({"w": torch.eye(3).to_sparse()}), "a sparse tensor"),
        "layout.pt": (layout, "a sparse tensor"),
        "rows.pt": (rows, "a sparse tensor"),
        "meta.pt": (saved({"w": torch.ones(3, device="meta")}), "a meta tensor"),
        "complex.pt": (saved({"w": torch.ones(3, dtype=torch.complex64)}), "ComplexFloatStorage"),
        "complex.th": (saved({"w": torch.ones(3, dtype=torch.complex64)}, zipped=False), "ComplexFloatStorage"),
        "float8.pt": (saved({"w": torch.ones(3).to(torch.float8_e4m3fn)}), "float8_e4m3fn"),
        "script.pt": (script, "a TorchScript program"),
        "number.pt": (saved(3), "expected a state dict: names and tensors, got a int"),
        "vector.pt": (saved(torch.ones(3)), "expected a state dict: names and tensors, got a tensor of shape (3,)"),
        "empty_dict.pt": (saved({}), "got 0 entries"),
        "optimizer.pt": (saved({"optimizer": {"state": {}, "param_groups": []}}), "optimizer"),
        "tuple.pt": (saved({("a", 1): torch.ones(2)}), "expected a printable text, got a tuple"),
    }
    assert_refused(tmp_path / "files", cases)


def test_shapes_that_lie_are_refused_before_they_take_memory(tmp_path: Path) -> None:
    far = (10**6, 10**6)
    outside = "expected numbers inside its storage"
    one = storage(numel=1)
    large = "expected at most 33554432 bytes"
    views = [(f"w{at}", tensor((1000, 1000), (0, 1), at, storage(numel=2000))) for at in range(1000)]
    four = bytes(4)
    cases = {
        "stride0.pt": (torch_zip(state(("w", tensor(far, (0, 0), place=one))), s0=four), large),
        "stride0.th": (
            LEGACY + state(("w", tensor(far, (0, 0), place=storage(numel=1, legacy=True)))) + b"\x80\x02].",
            large,
        ),
        "views.pt": (torch_zip(state(*views), s0=bytes(8000)), large),
        "outside.pt": (torch_zip(state(("w", tensor((5,))))), outside),
        "offset.pt": (torch_zip(state(("w", tensor((1,), (1,), 4)))), outside),
        "stride.pt": (torch_zip(state(("w", tensor((2,), (10**9,))))), outside),
        "negative.pt": (torch_zip(state(("w", tensor((2,), (1,), -1)))), "integers from 0"),
        "stride-.pt": (torch_zip(state(("w", tensor((2,), (-1,), 3)))), "integers from 0"),
        "ranks.pt": (torch_zip(state(("w", tensor((2, 2), (1,))))), "as many strides"),
        "huge.pt": (torch_zip(state(("w", tensor((2**70,), (0,), place=one))), s0=four), "integers from 0"),
        "dims.pt": (torch_zip(state(("w", tensor((1,) * 40, (0,) * 40, place=one))), s0=four), "as many strides"),
        "storage.pt": (torch_zip(state(("w", tensor(place=storage(numel=2**40))))), large),
        "storage.th": (
            LEGACY + state(("w", tensor(place=storage(numel=2**20, legacy=True)))) + b"\x80\x02].",
            "behind the pickles",
        ),
        "short.pt": (torch_zip(state(("w", tensor())), s0=bytes(8)), "expected 16 bytes in the archive, got 8 bytes"),
        "long.pt": (torch_zip(state(("w", tensor())), s0=bytes(80)), "expected 16 bytes in the archive, got 80 bytes"),
        "absent.pt": (torch_zip(state(("w", tensor(place=storage("7"))))), "got no such member"),
        "above.pt": (torch_zip(state(("w", tensor(place=storage("../data.pkl"))))), "got no such member"),
        "twice.pt": (
            torch_zip(state(("w", tensor()), ("v", tensor(place=storage(numel=8, kind="HalfStorage"))))),
            "got two",
        ),
        "type.pt": (torch_zip(state(("w", tensor(place=storage(kind="QInt8Storage"))))), "QInt8Storage"),
        "module.th": (LEGACY + b"\x80\x02(" + text("other") + b"NNNtQ.", "expected a storage of tensors"),
        "set.pt": (
            torch_zip(state(("w", tensor() + b"(" + storage() + number(0) + b"(Kdt(K\x01ttb"))),
            "built a second time",
        ),
        "list.pt": (
            torch_zip(state(("w", named("torch._utils._rebuild_tensor_v2") + b"]R"))),
            "argument list must be a tuple",
        ),
        "alloc.pt": (
            torch_zip(state(("w", call("torch.storage.UntypedStorage", number(2**60))))),
            "a torch.storage.UntypedStorage",
        ),
        "bytes.pt": (torch_zip(state(("w", call("builtins.bytearray", number(2**50))))), "expected bytes, got"),
    }
    assert_refused(tmp_path / "files", cases)


def test_pickles_that_only_grow_when_they_are_followed(tmp_path: Path) -> None:
    laughs = b"\x80\x02](K\x01K\x02eq\x00" + b"".join(
        b"](" + b"h" + bytes([at]) + (b"h" + bytes([at])) * 9 + b"eq" + bytes([at + 1]) for at in range(60)
    )
    tuples = b"\x80\x02K\x01\x85q\x00" + b"".join(
        b"h" + bytes([at]) + b"h" + bytes([at]) + b"\x86q" + bytes([at + 1]) for at in range(200)
    )
    wide = (
        b"\x80\x02}q\x00("
        + text("a")
        + b"K\x01uq\x00"
        + b"".join(
            b"}(" + b"".join(text(name) + b"h" + bytes([at]) for name in "abcdefgh") + b"uq" + bytes([at + 1])
            for at in range(60)
        )
    )
    full, broad = (
        b"\x80\x02}("
        + text("x")
        + tensor()
        + b"uq\x00"
        + b"".join(
            b"}(" + b"".join(text(name) + b"h" + bytes([at]) for name in "abcdefgh") + b"uq" + bytes([at + 1])
            for at in range(levels)
        )
        for levels in (60, 5)
    )
    cyclic = b"\x80\x02}q\x00(" + text("a") + b"h\x00" + text("b") + b"h\x00u."
    deep, deeper = b"\x80\x02" + b"](" * 100_000 + b"e" * 100_000 + b".", b"\x80\x02)" + b"\x85" * 200_000 + b"."
    giant = b"\x80\x02}" + text("w") + b"\x8b\xff\xff\xff\x7f" + bytes(1000) + b"s."
    decimal = b"\x80\x02}" + text("w") + b"L" + b"9" * 100_000 + b"L\ns."
    cases = {
        "laughs.pt": (torch_zip(laughs + b"."), "a state dict"),
        "tuples.pt": (torch_zip(tuples + b"."), "a state dict"),
        "wide.pt": (torch_zip(wide + b"."), "a state dict"),
        "full.pt": (torch_zip(full + b"."), "a state dict"),
        "broad.pt": (torch_zip(broad + b"."), "expected at most"),
        "cyclic.pt": (torch_zip(cyclic), "a state dict"),
        "sized.pt": (torch_zip(b"\x80\x02}" + text("w") + named("torch._utils._rebuild_tensor_v2") + b"(" + storage() + b"K\x00"
                     + tuples[2:] + b"h\xc8NNtRs."), "integers from 0"),
        "deep.pt": (torch_zip(deep), "expected"),
        "deeper.pt": (torch_zip(deeper), "expected"),
        "giant.pt": (torch_zip(giant), "whole pickle"),
        "decimal.pt": (torch_zip(decimal), "expected"),
        "memo.pt": (torch_zip(b"\x80\x02}r\xff\xff\xff\xffj\x00\x00\x00\x01."), "memory: expected at most"),
        "mark.pt": (torch_zip(b"\x80\x02}u."), "whole pickle"),
        "stop.pt": (torch_zip(b"\x80\x02."), "expected"),
        "nothing.pt": (torch_zip(b""), "whole pickle"),
        "endless.pt": (torch_zip(b"\x80\x02" + b"(" * 10_000), "whole pickle"),
        "set.pt": (torch_zip(b"\x80\x02}}K\x01s."), "expected"),
    }  # fmt: skip
    assert_refused(tmp_path / "files", cases)


def bomb(name: str, mebibytes: int) -> bytes:
    """An archive with one member of zeros, deflated a thousandfold; the sizes it declares are true."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    made = archive({name: block * mebibytes + packer.flush()})
    at = made.rindex(b"PK\x01\x02")
    return (
        made[: at + 10]
        + b"\x08\x00"
        + made[at + 12 : at + 24]
        + (mebibytes << 20).to_bytes(4, "little")
        + made[at + 28 :]
    )


def declared(data: bytes, size: int) -> bytes:
    """The same archive, with another unpacked size declared for its last member."""
    at = data.rindex(b"PK\x01\x02")
    return data[: at + 24] + size.to_bytes(4, "little") + data[at + 28 :]


def test_archives_that_unpack_to_too_much_or_lead_elsewhere(tmp_path: Path) -> None:
    npy = io.BytesIO()
    np.save(npy, np.ones(4, np.float32))
    good = npy.getvalue()
    pickled = state(("w", tensor()))
    stored = archive({"a.npy": good})
    twice = io.BytesIO()
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(twice, "w") as made:
        made.writestr("a.npy", good)
        made.writestr("a.npy", good)
    at = stored.rindex(b"PK\x01\x02")
    entry, end = stored[at : stored.rindex(b"PK\x05\x06")], stored[stored.rindex(b"PK\x05\x06") :]
    overlap = stored[:at] + entry + entry.replace(b"a.npy", b"b.npy") + end[:8] + b"\x02\x00\x02\x00"
    overlap += (2 * len(entry)).to_bytes(4, "little") + end[16:]
    encrypted = bytearray(stored)
    encrypted[at + 8] |= 1
    comment = stored[:-2] + b"\x04\x00abcd"
    unpacked, size = "expected at most 301989888 bytes unpacked", "times its size unpacked"
    path = "expected a relative path inside the archive"
    cases = {
        "bomb.npz": (bomb("a.npy", 4000), unpacked),
        "bomb.pt": (bomb("m/data.pkl", 4000), unpacked),
        "ratio.npz": (bomb("a.npy", 128), size),
        "declared.npz": (declared(stored, 2**31), "as many bytes as are stored"),
        "lies.npz": (declared(bomb("a.npy", 4000), 1000), "bytes as they were packed"),
        "less.npz": (declared(stored, 10), "expected"),
        "up.npz": (archive({"../a.npy": good}), path),
        "root.npz": (archive({"/a.npy": good}), path),
        "back.npz": (archive({"a\\..\\b.npy": good}), path),
        "drive.npz": (archive({"C:/a.npy": good}), path),
        "dot.npz": (archive({"a/./b.npy": good}), path),
        "newline.npz": (archive({"a\nb.npy": good}), path),
        "up.pt": (archive({"m/data.pkl": pickled, "m/../../data/0": bytes(16)}), path),
        "stray.pt": (archive({"m/data.pkl": pickled, "n/data/0": bytes(16)}), "every member in 'm/'"),
        "two.pt": (archive({"m/data.pkl": pickled, "n/data.pkl": pickled}), "one data.pkl"),
        "twice.npz": (twice.getvalue(), "'a.npy' twice"),
        "overlap.npz": (overlap, "overlapping members"),
        "before.npz": (stored[:35] + bytes(60) + stored, "before the first member"),
        "comment.npz": (comment, "expected no comment"),
        "encrypted.npz": (bytes(encrypted), "encrypted"),
        "method.npz": (archive({"a.npy": good}, method=zipfile.ZIP_LZMA), "stored or deflated"),
        "many.npz": (archive({f"{at}.npy": b"" for at in range(2100)}), "members"),
        "nothing.npz": (archive({}), "got a zip archive"),
        "word.npz": (archive({"word/document.xml": b"x"}), "got a zip archive"),
        "objects.npz": (np_saved(w=np.array([{}, []], dtype=object)), "Python objects"),
        "words.npz": (np_saved(w=np.array(["a", "b"])), "one of float64"),
        "complex.npz": (np_saved(w=np.ones(3, complex)), "complex128"),
        "record.npz": (np_saved(w=np.zeros(3, [("a", "f4")])), "one of float64"),
        "times.npz": (np_saved(w=np.zeros(3, "M8[s]")), "datetime64"),
        "header.npz": (archive({"a.npy": b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535}), "header of numpy.save"),
        "nest.npz": (archive({"a.npy": npy_header("(" * 5000 + ")" * 5000)}), "header of numpy.save"),
        "claim.npz": (archive({"a.npy": npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (10**9,)}")}), "header of numpy.save"),
        "shape.npz": (archive({"a.npy": npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}")}), "from its shape"),
        "minus.npz": (archive({"a.npy": npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}")}), "integers from 0"),
        "code.npz": (archive({"a.npy": npy_header("__import__('os').system('true')")}), "header of numpy.save"),
        "pickle.npz": (archive({"a.npy": b"cposix\nsystem\n."}), "header of numpy.save"),
    }  # fmt: skip
    limits = Limits(tensors=1000, tensor_bytes=32 * 2**20, memory_bytes=2**30, seconds=120)
    assert_refused(tmp_path / "files", cases, limits)


def np_saved(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def npy_header(described: str) -> bytes:
    data = described.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(data).to_bytes(2, "little") + data


def test_other_formats_are_refused_by_name(tmp_path: Path) -> None:
    flat = (2).to_bytes(8, "little") + b"{}"
    cases = {
        "a.h5": (b"\x89HDF\r\n\x1a\n", "a safetensors file, a file of torch.save or an .npz archive, got an HDF5 file"),
        "a.pkl": (b"\x80\x02}.", "got a pickle. Save its tensors with safetensors"),
        "plain": (b"x", "got a text"),
        "h5.pt": (b"\x89HDF\r\n\x1a\n", "got an HDF5 file"),
        "npy.npz": (b"\x93NUMPY\x01\x00", "an array of numpy.save"),
        "ggml.bin": (b"lmgg\x03", "quantised weights"),
        "gzip.pt": (b"\x1f\x8b\x08", "gzip"),
        "tar.pt": (bytes(257) + b"ustar" + bytes(250), "a tar archive"),
        "lfs.pt": (b"version https://git-lfs.github.com/spec/v1\n", "and git lfs pull"),
        "page.pt": (b"<!DOCTYPE html>", "a web page"),
        "program.pt": (b"\x7fELF\x02", "a program"),
        "script.pt": (b"#!/bin/sh\ntouch x", "a program"),
        "pickle.pt": (b"\x80\x04}.", "got a pickle"),
        "flat.pt": (flat, "no tensors"),
        "legacy.npz": (LEGACY + b"\x80\x02}.", "a whole pickle"),
        "zip.safetensors": (archive({"a.pt": b""}), "got a zip archive. Unpack it, and give the files"),
        "empty.pt": (b"", "an empty file"),
        "empty.npz": (b"", "an empty file"),
        "empty.safetensors": (b"", "an empty file"),
        "noise.pt": (hashlib.sha512(b"noise").digest() * 8, "unknown bytes"),
        "zeros.pt": (bytes(4096), "unknown bytes"),
    }  # fmt: skip
    assert_refused(tmp_path / "files", cases)


def test_the_name_of_a_file_says_nothing_about_its_form(tmp_path: Path) -> None:
    forms = {"torch": torch_zip(state(("w", tensor()))), "npz": np_saved(w=np.zeros(4, np.float32))}
    names = ["a.pth.tar", "a", "a.model", "a.npz", "a.pt", "a.weights", "a.1", "a.safetensors"]
    for form, data in forms.items():
        for made in read_all(written(tmp_path / form, dict.fromkeys(names, data))):
            assert [list(found.tensors) for found in made.states] == [["w"]], made.error
