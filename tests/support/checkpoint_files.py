"""Makes checkpoint files, sound and hostile, byte by byte."""

import io
import zipfile
from pathlib import Path

import torch

LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def number(value: int) -> bytes:
    if 0 <= value < 2**31:
        return b"J" + value.to_bytes(4, "little")
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def named(name: str) -> bytes:
    module, _, last = name.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(number(value) for value in values) + b"t"


def storage(key: str = "0", numel: int = 4, kind: str = "FloatStorage", *, legacy: bool = False) -> bytes:
    """A persistent id, as torch.save writes one."""
    tail = b"N" if legacy else b""
    return b"(" + text("storage") + named(f"torch.{kind}") + text(key) + text("cpu") + number(numel) + tail + b"tQ"


def tensor(
    size: tuple[int, ...] = (4,), stride: tuple[int, ...] = (1,), offset: int = 0, place: bytes | None = None
) -> bytes:
    """A call of ``_rebuild_tensor_v2``."""
    hooks = named("collections.OrderedDict") + b")R"
    inside = (place or storage()) + number(offset) + numbers(size) + numbers(stride) + b"\x89" + hooks
    return named("torch._utils._rebuild_tensor_v2") + b"(" + inside + b"tR"


def state(*pairs: tuple[str, bytes]) -> bytes:
    """A pickle of a dict."""
    return b"\x80\x02}" + b"(" + b"".join(text(name) + value for name, value in pairs) + b"u."


def call(name: str, *arguments: bytes) -> bytes:
    """A call that a pickle would make on loading."""
    return named(name) + b"(" + b"".join(arguments) + b"tR"


def archive(members: dict[str, bytes], *, method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return out.getvalue()


def torch_zip(pickled: bytes, *, method: int = zipfile.ZIP_STORED, **storages: bytes) -> bytes:
    members = {"m/data.pkl": pickled, "m/byteorder": b"little"}
    members |= {f"m/data/{key.removeprefix('s')}": data for key, data in ({"s0": bytes(16)} | storages).items()}
    return archive({**members, "m/version": b"3\n"}, method=method)


def saved(content: object, *, zipped: bool = True, protocol: int = 2) -> bytes:
    out = io.BytesIO()
    torch.save(content, out, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    return out.getvalue()


def written(folder: Path, files: dict[str, bytes]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in files]
