"""Ways to read checkpoints from afar: ours, those that people have, and the limit, a bare ranged transfer."""

import json
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
import zarr
from numpy.typing import NDArray
from safetensors import safe_open
from zarr.core.sync import sync
from zarr.storage import FsspecStore

import ckptzoo
from benchmarks.layers_weights import LAYERS
from benchmarks.remote_material import FILES, MANY, STORE, ZOO, Material, Piece, identity

Arrays = Iterator[NDArray[Any]]
WORKERS = 8
"""Requests at a time, for those who leave that to their caller; ckptzoo and snapshot_download have as many."""
HEAD = 64 * 1024
"""Bytes that are taken for the header of a safetensors file, which is 14 kB here."""


@dataclass(frozen=True)
class Place:
    """Where everything is: the hub's port and the static server's, both of the relay, and a folder for caches."""

    material: Material
    hub: int
    static: int
    caches: Path

    @property
    def url(self) -> str:
        """The hub's address."""
        return f"http://127.0.0.1:{self.hub}"


class Contender(Protocol):
    """One way to read; its caches are empty when it opens."""

    @property
    def label(self) -> str:
        """The column's title."""
        ...

    @property
    def how(self) -> str:
        """One line on how it reads."""
        ...

    def open(self, place: Place) -> Any:
        """Find out what there is, up to where nothing of a layer has been asked for."""
        ...

    def layer(self, handle: Any, name: str) -> Arrays:
        """One tensor of every checkpoint, in any number of pieces."""
        ...

    def checkpoint(self, handle: Any, member: int) -> Arrays:
        """Every tensor of one checkpoint."""
        ...

    def close(self, handle: Any) -> None:
        """Let go of connections and of what was cached."""
        ...


@dataclass(frozen=True)
class Plain:
    """``http.client``: addresses known, connections made; one request for each run of bytes and connection.

    Parameters
    ----------
    times
        a layer is read so often, as much as one of so many times the checkpoints.
    """

    connections: int = 1
    times: int = 1

    @property
    def label(self) -> str:
        return "plain" if self.connections == 1 else f"plain x{self.connections}"

    @property
    def how(self) -> str:
        return f"http.client, kept connections: {self.connections}, addresses known; unchecked"

    def open(self, place: Place) -> Any:
        material = place.material
        known: dict[tuple[str, str], str] = {}
        made = [HTTPConnection("127.0.0.1", place.hub) for _ in range(self.connections)]
        middle = material.files[len(material.files) // 2]
        for piece in (middle, *(piece for name in material.layers for piece in material.layers[name])):
            if (piece.repo, piece.name) not in known:
                made[0].request("GET", f"/datasets/{piece.repo}/resolve/main/{piece.name}")
                with made[0].getresponse() as answer:
                    answer.read()
                    parts = urlsplit(answer.headers["Location"])
                    known[piece.repo, piece.name] = f"{parts.path}?{parts.query}"
        for connection in made:
            _received(connection, known[middle.repo, middle.name], 0, np.empty(1, np.uint8))
        return material, known, made

    def layer(self, handle: Any, name: str) -> Arrays:
        return self.read(handle, self.times * handle[0].layers[name])

    def checkpoint(self, handle: Any, member: int) -> Arrays:
        return self.read(handle, (handle[0].files[member],))

    def close(self, handle: Any) -> None:
        for connection in handle[2]:
            connection.close()

    def read(self, handle: Any, pieces: Sequence[Piece]) -> Arrays:
        """Runs of bytes, one after the other, each over all connections at once."""
        _, known, made = handle
        for piece in pieces:
            address, data = known[piece.repo, piece.name], np.empty(piece.stop - piece.start, np.uint8)
            step = -(-len(data) // (8 * len(made))) * 8
            shares = [(at, data[at : at + step]) for at in range(0, len(data), step)]
            with ThreadPoolExecutor(len(made)) as pool:
                asked = [
                    pool.submit(_received, connection, address, piece.start + at, share)
                    for connection, (at, share) in zip(made, shares, strict=False)
                ]
                for waited in asked:
                    waited.result()
            yield data


def _received(connection: HTTPConnection, address: str, start: int, into: NDArray[Any]) -> None:
    """Fill an array from a file's byte ``start`` on."""
    connection.request("GET", address, headers={"Range": f"bytes={start}-{start + len(into) - 1}"})
    with connection.getresponse() as answer:
        view, filled = into.data, 0
        while got := answer.readinto(view[filled:]):
            filled += got
    if answer.status != 206 or filled != len(into):
        raise OSError(f"plain: expected 206 with {len(into)} bytes, got {answer.status} with {filled}.")


@dataclass(frozen=True)
class Ours:
    """A zoo, read through its public interface; every block is checked and cached.

    Parameters
    ----------
    repo
        which of the two.
    whole
        a layer comes as one array, else as the runs that ``views()`` gives, in bounded memory.

    Notes
    -----
    Where content is repeated the cache is kept empty: a block that it has under its digest would not be fetched again.
    """

    repo: str = ZOO
    whole: bool = True

    @property
    def label(self) -> str:
        return "ckptzoo" if self.whole else "ckptzoo views"

    @property
    def how(self) -> str:
        read = "np.asarray(zoo[name])" if self.whole else "zoo[name].views()"
        return f"ckptzoo.open({self.repo!r}, endpoint=...); {read}, dict(zoo.checkpoint(id)); checked and cached"

    def open(self, place: Place) -> Any:
        os.environ["CKPTZOO_CACHE_SIZE"] = "0" if self.repo == MANY else "32GiB"
        zoo = ckptzoo.open(self.repo, endpoint=place.url)
        _ = zoo[LAYERS[0]].shape  # reads the index, where opening has not
        return zoo, place

    def layer(self, handle: Any, name: str) -> Arrays:
        tensor = handle[0][name]
        return iter((np.asarray(tensor),)) if self.whole else tensor.views()

    def checkpoint(self, handle: Any, member: int) -> Arrays:
        return iter(dict(handle[0].checkpoint(identity(member, int(self.repo == MANY)))).values())

    def close(self, handle: Any) -> None:
        shutil.rmtree(handle[1].caches / "ckptzoo", ignore_errors=True)


@dataclass(frozen=True)
class HubFiles:
    """HfFileSystem and the header of every safetensors file, with its defaults or as fast as it goes."""

    tuned: bool

    @property
    def label(self) -> str:
        return "hf tuned" if self.tuned else "hf"

    @property
    def how(self) -> str:
        if self.tuned:
            return f"the same with cache_type='none', {HEAD >> 10} KiB for the header, {WORKERS} threads"
        return "HfFileSystem.open(path) of a safetensors file: header, seek, read; its read-ahead of 5 MiB"

    def open(self, place: Place) -> Any:
        from huggingface_hub import HfFileSystem

        system = HfFileSystem(endpoint=place.url, token=False, skip_instance_cache=True)
        found = [str(path) for path in system.ls(f"datasets/{FILES}", detail=False)]
        return system, sorted(path for path in found if path.endswith(".safetensors"))

    def layer(self, handle: Any, name: str) -> Arrays:
        system, paths = handle
        if not self.tuned:
            for path in paths:
                yield from self._tensors(system, path, name)
            return
        with ThreadPoolExecutor(WORKERS) as pool:
            for arrays in pool.map(lambda path: list(self._tensors(system, path, name)), paths):
                yield from arrays

    def checkpoint(self, handle: Any, member: int) -> Arrays:
        system, paths = handle
        return self._tensors(system, paths[member], None)

    def close(self, handle: Any) -> None:
        handle[0].invalidate_cache()

    def _tensors(self, system: Any, path: str, name: str | None) -> Arrays:
        """One tensor of a file, or all, of which the file's data is read at once."""
        with system.open(path, "rb", **({"cache_type": "none"} if self.tuned else {})) as file:
            head = file.read(HEAD if self.tuned else 8)
            (length,) = struct.unpack("<Q", head[:8])
            header = json.loads(head[8 : 8 + length] if self.tuned else file.read(length))
            offsets = [facts["data_offsets"] for key, facts in header.items() if name in (None, key)]
            start, stop = min(offset[0] for offset in offsets), max(offset[1] for offset in offsets)
            file.seek(8 + length + start)
            yield np.frombuffer(file.read(stop - start), np.uint8)


@dataclass(frozen=True)
class Snapshot:
    """snapshot_download of all files, or of the one that is wanted, then safetensors from the disk."""

    label: str = "snapshot"
    how: str = f"snapshot_download(max_workers={WORKERS}), then safe_open(framework='pt').get_tensor(name)"

    def open(self, place: Place) -> Any:
        return place

    def layer(self, handle: Any, name: str) -> Arrays:
        for path in self._downloaded(handle, None):
            with safe_open(path, framework="pt") as file:
                yield file.get_tensor(name).numpy()

    def checkpoint(self, handle: Any, member: int) -> Arrays:
        (path,) = self._downloaded(handle, handle.material.files[member].name)
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield file.get_tensor(name).numpy()

    def close(self, handle: Any) -> None:
        shutil.rmtree(handle.caches / "hf", ignore_errors=True)

    def _downloaded(self, place: Place, pattern: str | None) -> list[Path]:
        from huggingface_hub import snapshot_download

        folder = snapshot_download(
            FILES,
            repo_type="dataset",
            endpoint=place.url,
            token=False,
            cache_dir=place.caches / "hf",
            allow_patterns=pattern,
            max_workers=WORKERS,
        )
        return sorted(Path(folder).glob("*.safetensors"))


@dataclass(frozen=True)
class Zarr:
    """zarr v3 over fsspec's HTTP, from a static server."""

    label: str = "zarr"
    how: str = f"FsspecStore over http, array[:] with 10 chunks at a time; one checkpoint with {WORKERS} threads"

    def open(self, place: Place) -> Any:
        address = f"http://127.0.0.1:{place.static}/{STORE}"
        store = FsspecStore.from_url(address, {"skip_instance_cache": True}, read_only=True)
        return zarr.open_consolidated(store, mode="r")

    def layer(self, handle: Any, name: str) -> Arrays:
        yield handle[name][:]

    def checkpoint(self, handle: Any, member: int) -> Arrays:
        with ThreadPoolExecutor(WORKERS) as pool:
            yield from pool.map(lambda name: handle[name][member : member + 1], list(handle.array_keys()))

    def close(self, handle: Any) -> None:
        async def ended() -> None:
            await (await handle.store.fs.set_session()).close()

        sync(ended())


@contextmanager
def opened(contender: Contender, place: Place) -> Iterator[Any]:
    """A handle for one read, and nothing of it afterwards."""
    handle = contender.open(place)
    try:
        yield handle
    finally:
        contender.close(handle)
