"""A zoo that refers to files on other machines reads what an import of them holds, asks for nothing else, and follows
no reference of others without being told to."""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

import ckptzoo
from ckptzoo.cli import app
from ckptzoo.errors import AbsentError, IntegrityError, RemoteError, ZooError
from ckptzoo.format.digests import reference_summary
from ckptzoo.format.sources import remembered_servers
from ckptzoo.hub.audits import audit
from ckptzoo.hub.imports import import_zoo, link_zoo
from ckptzoo.hub.imports.remote_maps import RemoteMap
from ckptzoo.remote.referenced import RangeFile, RecordedFile, RemoteReferences
from tests.hub.audits.test_audit import walk
from tests.hub.imports.test_link import fill, gguf, npz, packed_arrays, state, tree_of
from tests.remote.test_referenced import Tagged
from tests.support.container_files import gguf_file
from tests.support.effort import examples
from tests.support.hosted import Hosted, hosted, push
from tests.support.hub_clients import isolate_clients
from tests.support.published_zoos import network
from tests.support.serving import Fault, Served, running


class Listing(Tagged):
    """A web server that lists folders, as many do, beside links that lead elsewhere."""

    def answer(self, path: str) -> None:
        if not path.endswith("/"):
            return super().answer(path)
        inside = {name[len(path) :] for name in self.served.files if name.startswith(path)}
        names = sorted({f"{name.partition('/')[0]}/" if "/" in name else name for name in inside})
        links = ["../", "/", "?C=M;O=A", "http://[x", "https://elsewhere.example/x.safetensors", *names]
        page = "".join(f'<a href="{link}">{link}</a>\n' for link in links)
        self.plain(200 if inside else 404, page.encode(), Content_Type="text/html")


@contextlib.contextmanager
def serving(folder: Path, **kinds: Any) -> Iterator[Served]:
    """Serve a folder's files below /nets/."""
    files = {f"/nets/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with running(Served(files), Listing, **kinds) as served:
        yield served


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    """Four networks of two runs, and what is no network."""
    for run in range(2):
        for step in range(2):
            path = tmp_path / f"nets/run{run}/step{step}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(network(10 * run + step, width=200), path)
    (tmp_path / "nets/run0/notes.txt").write_text("seed 3")
    return tmp_path / "nets"


@pytest.fixture
def web(nets: Path) -> Iterator[Served]:
    with serving(nets) as served:
        yield served


def link(served: Served, zoo: Path, **options: Any) -> ckptzoo.Zoo:
    link_zoo(f"{served.url}/nets/", zoo, license="MIT", **options)
    return ckptzoo.open(zoo)


def save_torch(path: Path, content: dict[str, np.ndarray], epoch: int) -> None:
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in content.items()}
    torch.save({"state_dict": tensors, "epoch": torch.tensor(epoch), "optimizer": {"m": torch.ones(300)}}, path)


def fill_with_torch(folder: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    shapes = [(), (3,), (5, 2, 2), (300, 70), (0, 4), (200, 200)]
    tensors = {f"fc{at}.weight": ("float32", shapes[draw.integers(6)]) for at in range(draw.integers(1, 6))}
    tensors |= {"norm.num_batches_tracked": ("int64", ()), "last.bias": ("float16", (4,))}
    for number in range(draw.integers(1, 5)):
        path = folder / f"seed{number}" / "net.pt"
        path.parent.mkdir(parents=True)
        save_torch(path, state(draw, tensors), number)


def fill_with_arrays(folder: Path, seed: int) -> None:
    """Archives of numpy, or files of ggml, whose tensors are floats."""
    draw = np.random.default_rng(seed)
    shapes = [(), (3,), (5, 2, 2), (300, 70), (0, 4), (200, 200)]
    tensors = {f"fc{at}.weight": ("float32", shapes[draw.integers(6)]) for at in range(draw.integers(1, 6))}
    tensors |= {"last.bias": ("float16", (4,)), "last.weight": ("float32", (4, 700))}
    for number in range(draw.integers(1, 5)):
        path = folder / f"seed{number}" / ("net.npz" if seed % 2 else "net.gguf")
        path.parent.mkdir(parents=True)
        content = state(draw, tensors)
        if seed % 2:
            np.savez(path, **content)  # pyright: ignore[reportArgumentType]
        else:
            path.write_bytes(gguf_file(content))


FILLS = (fill_with_torch, fill, fill_with_arrays)


@settings(max_examples=examples(40, 1))
@given(seed=st.integers(0, 2**32), validator=st.sampled_from(["strong", "weak", "date"]))
def test_what_is_read_is_what_an_import_holds(
    tmp_path_factory: pytest.TempPathFactory, seed: int, validator: str
) -> None:
    root = tmp_path_factory.mktemp("remote")
    with pytest.MonkeyPatch.context() as patched:
        isolate_clients(root, patched)
        FILLS[seed % 3](root / "nets", seed)
        import_zoo(root / "nets", root / "b/zoo", license="MIT")
        held = ckptzoo.open(root / "b/zoo")
        with serving(root / "nets", validator=validator) as served:
            zoo = link(served, root / "a/zoo")
            assert {at for at, seen in enumerate(served.seen) if "Authorization" in seen.headers} == set()
            assert zoo.ids == held.ids and zoo.metadata["step"].equals(held.metadata["step"])
            draw, again = np.random.default_rng(seed), link(served, root / "a/zoo")
            assert again.ids == held.ids and held.arch == zoo.arch
            names = held.arch.names
            before = served.sent
            for name in names:
                assert zoo[name][:].tobytes() == held[name][:].tobytes()
            # what was compared with other tensors has come before
            assert served.sent - before <= sum(held[name][:].nbytes for name in names)
            before = served.sent
            for shuffle in (False, "global"):
                one, other = (
                    each.stream(*names, batch_size=2, shuffle=shuffle, seed=seed, remainder="keep")
                    for each in (zoo, held)
                )
                for batch, expected in zip(one, other, strict=True):
                    assert batch.ids == expected.ids
                    assert all(batch[name].tobytes() == expected[name].tobytes() for name in names)
            rows = draw.integers(0, len(zoo), 5)
            assert all(zoo[name][rows].tobytes() == held[name][rows].tobytes() for name in names)
            assert served.sent == before
            sent: Any = ForkingPickler
            assert sent.loads(sent.dumps(zoo))[names[0]][:].tobytes() == held[names[0]][:].tobytes()
            ckptzoo.materialize(root / "a/zoo", root / "c/zoo")
            assert tree_of(root / "c/zoo") == tree_of(root / "b/zoo")
            assert ckptzoo.verify(root / "a/zoo") == []
            summary = reference_summary(ckptzoo.open(root / "a/zoo").contents)
            assert summary is not None and not summary.unchecked
    shutil.rmtree(root)


def test_linking_asks_for_headers_alone_and_for_each_once(web: Served, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    large = {f"/nets/run{at}.safetensors": save({"fc.weight": draw.random((800, 800), "f4")}) for at in range(20)}
    web.files.clear()
    web.files.update(large)
    zoo = link(web, tmp_path / "zoo")
    assert len(web.seen) == 21 and web.sent < 21 * 65536
    before = web.sent
    link(web, tmp_path / "zoo")
    assert zoo["fc.weight"][:].nbytes == 20 * 800 * 800 * 4
    # the second link asked for the same heads again, to know whether the files are the same
    assert web.sent - before <= 21 * 65536 + 20 * 800 * 800 * 4


@pytest.mark.exhaustive
def test_of_arrays_and_files_of_ggml_what_says_where_tensors_are_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    for number, form in enumerate((npz, npz, gguf, gguf)):
        form(tmp_path / "nets", number, network(number, width=20_000))
    # arrays behind one another, as Equinox writes them, the first one in place of a line of settings
    for number in range(2):
        (tmp_path / "trees").mkdir(exist_ok=True)
        with (tmp_path / f"trees/{number}.eqx").open("wb") as file:
            file.write(b'{"width": 20000}\n')
            for array in network(number, width=20_000).values():
                np.save(file, array)
    for folder in ("nets", "trees"):
        import_zoo(tmp_path / folder, tmp_path / f"held-{folder}", license="MIT")
        held = ckptzoo.open(tmp_path / f"held-{folder}")
        with serving(tmp_path / folder) as served:
            zoo = link(served, tmp_path / f"zoo-{folder}")
            files = [path.stat().st_size for path in (tmp_path / folder).iterdir()]
            assert min(files) > 2**19 and served.sent < 2**17 * len(files)
            before = served.sent
            name = held.arch.names[0]
            assert zoo.ids == held.ids and zoo[name][:].tobytes() == held[name][:].tobytes()
            assert served.sent - before <= held[name][:].nbytes
            assert all(zoo[name][:].tobytes() == held[name][:].tobytes() for name in held.arch.names)
    # what cannot lie as it is in memory is named, and little of it is fetched
    (tmp_path / "odd").mkdir()
    packed_arrays(tmp_path / "odd")
    (tmp_path / "odd/cut.gguf").write_bytes((tmp_path / "nets/2.gguf").read_bytes()[:90])
    with serving(tmp_path / "odd") as served:
        done = link_zoo(f"{served.url}/nets/", tmp_path / "zoo-odd", license="MIT", skip_bad=True)
        problems = {item["file"]: item["problem"] for item in done.skipped}
        assert "'0.weight.npy', which is packed. Copy the file with ckptzoo import" in problems["odd.npz"]
        assert "header: expected" in problems["cut.gguf"]


def test_several_sources_of_here_and_elsewhere_are_linked_by_one_call(
    web: Served, nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for at, folder in enumerate(("a", "b")):
        (tmp_path / folder / "more").mkdir(parents=True)
        for number in range(2):
            save_file(network(30 + 2 * at + number, width=200), tmp_path / folder / f"more/net{number}.safetensors")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/broken.safetensors").write_bytes(b"\xff" * 100)
    sources = [
        str(tmp_path / "a"),
        f"{web.url}/nets/run0/step0.safetensors",
        str(tmp_path / "b/more"),
        f"{web.url}/nets/run1/",
    ]
    to = tmp_path / "zoo"
    (tmp_path / "all.txt").write_text("\n".join([*sources, "odd"]))
    command = ["link", str(tmp_path / "all.txt"), "--to", str(to), "--license", "MIT", "--json", "--skip-bad"]
    assert app.run(command) == 1
    done = json.loads(capsys.readouterr().out)
    assert (done["added"], len(done["skipped"])) == (7, 1) and sum(done["zoos"].values()) == 7
    zoo = ckptzoo.open(to)
    assert len(zoo) == 7 and zoo["0.weight"][:].shape == (7, 200, 4) and ckptzoo.verify(to) == []
    wanted = [network(number, width=200)["0.weight"] for number in (0, 10, 11, 30, 31, 32, 33)]
    assert {array.tobytes() for array in zoo["0.weight"][:]} == {array.tobytes() for array in wanted}
    again = link_zoo(sources, to, license="MIT")
    assert (again.added, again.present) == (0, 7) and len(ckptzoo.open(to)) == 7


def change_content(served: Served, name: str) -> None:
    data = bytearray(served.files[name])
    data[-1] ^= 1
    served.files[name] = bytes(data)


def change_size(served: Served, name: str) -> None:
    served.files[name] += b"x"


def remove(served: Served, name: str) -> None:
    del served.files[name]


@pytest.mark.parametrize("change", [change_content, change_size, remove])
@pytest.mark.parametrize("heeds", [True, False])
@pytest.mark.sampled(4)
def test_a_file_that_changed_is_named_and_nothing_is_stored(
    nets: Path, tmp_path: Path, change: Callable[[Served, str], None], heeds: bool
) -> None:
    with serving(nets, heeds=heeds) as served:
        link(served, tmp_path / "zoo")
        change(served, "/nets/run1/step0.safetensors")
        zoo = ckptzoo.open(tmp_path / "zoo")
        with pytest.raises(ZooError, match=r"/nets/run1/step0\.safetensors: "):
            zoo["0.weight"][:]
        problems = ckptzoo.verify(tmp_path / "zoo")
        assert len(problems) == 1 and problems[0].location.endswith("/nets/run1/step0.safetensors")
        with pytest.raises(ZooError, match=r"run1/step0\.safetensors"):
            ckptzoo.materialize(tmp_path / "zoo", tmp_path / "copy")
        assert not any((tmp_path / "copy/parts").glob("0*")) if (tmp_path / "copy").exists() else True
        # the others are read
        assert zoo.where("member != 'run1'")["0.weight"][:].shape == (2, 200, 4)
        done = ckptzoo.materialize(tmp_path / "zoo", tmp_path / "some", where="member == 'run0'")
        assert done.checkpoints == 2 and ckptzoo.verify(tmp_path / "some") == []


def test_references_of_others_are_followed_only_where_the_user_says_so(web: Served, tmp_path: Path) -> None:
    zoo = link(web, tmp_path / "zoo")
    (servers,) = remembered_servers(tmp_path / "zoo").values()
    assert servers.named == (web.url,) and servers.is_linked
    moved = Path(shutil.copytree(tmp_path / "zoo", tmp_path / "moved"))
    asked = len(web.seen)
    with pytest.raises(ZooError, match="a source that was linked on this machine"):
        ckptzoo.open(moved)["0.weight"][:]
    with pytest.raises(RemoteError, match="expected https, got http"):
        ckptzoo.open(moved, follow=True)["0.weight"][:]
    with pytest.raises(RemoteError, match="expected https, got http"):
        ckptzoo.open(moved, follow="http://127.0.0.1:9")["0.weight"][:]
    assert "linked on this machine" in str(ckptzoo.verify(moved)[0]) and len(web.seen) == asked
    told = ckptzoo.open(moved, follow=web.url)
    assert told["0.weight"][:].tobytes() == zoo["0.weight"][:].tobytes() == told.refresh()["0.weight"][:].tobytes()
    with pytest.raises(ZooError, match=r"expected http://host or https://host"):
        ckptzoo.open(moved, follow=["ftp://x"])["0.weight"][:]
    assert ckptzoo.materialize(moved, tmp_path / "copy", follow=web.url).checkpoints == 4
    # linked here it is followed from then on
    assert link_zoo(f"{web.url}/nets/", moved, license="MIT").present == 4
    assert ckptzoo.open(moved)["0.weight"][:].shape == (4, 200, 4) and ckptzoo.verify(moved) == []


def test_a_source_of_others_is_not_followed_because_another_has_its_name(
    web: Served, nets: Path, tmp_path: Path
) -> None:
    theirs = nets.parent / "theirs"
    save_file(network(70, width=200), nets.parent / "odd.safetensors")
    theirs.mkdir()
    (nets.parent / "odd.safetensors").rename(theirs / "odd.safetensors")
    with serving(theirs) as served:
        link(served, tmp_path / "zoo")
        moved = Path(shutil.copytree(tmp_path / "zoo", tmp_path / "moved"))
        asked = len(served.seen)
        assert link_zoo(f"{web.url}/nets/", moved, license="MIT").added == 4
        assert remembered_servers(moved).keys().isdisjoint({"nets"}) and len(served.seen) == asked
        zoo = ckptzoo.open(moved)
        with pytest.raises(ZooError, match="a source that was linked on this machine"):
            zoo["0.weight"][:]
        mine = zoo.take([at for at, name in enumerate(zoo.ids) if "odd" not in name])
        assert mine["0.weight"][:].shape == (4, 200, 4) and len(served.seen) == asked


def test_a_pull_brings_no_references_of_others_into_a_zoo_whose_sources_are_followed(
    web: Served, nets: Path, tmp_path: Path
) -> None:
    theirs = nets.parent / "theirs"
    theirs.mkdir()
    save_file(network(70, width=200), theirs / "odd.safetensors")
    link(web, tmp_path / "a/zoo")
    with serving(theirs) as served:
        link(served, tmp_path / "b/zoo")
        before, asked = tree_of(tmp_path / "a/zoo/parts"), len(served.seen)
        with pytest.raises(ZooError, match=r"expected one into which nothing was linked.*Pull into another folder"):
            ckptzoo.pull(tmp_path / "b/zoo", tmp_path / "a/zoo")
        assert tree_of(tmp_path / "a/zoo/parts") == before and ckptzoo.verify(tmp_path / "a/zoo") == []
        # a folder in whose place a linked zoo was is that of somebody else now
        shutil.rmtree(tmp_path / "a/zoo")
        ckptzoo.pull(tmp_path / "b/zoo", tmp_path / "a/zoo")
        assert ckptzoo.pull(tmp_path / "b/zoo", tmp_path / "a/zoo").parts == ()
        with pytest.raises(ZooError, match="a source that was linked on this machine"):
            ckptzoo.open(tmp_path / "a/zoo")["0.weight"][:]
        assert len(served.seen) == asked


def test_no_server_and_no_folder_is_not_every_one(web: Served, tmp_path: Path) -> None:
    link(web, tmp_path / "zoo")
    empty: list[Any] = [[], (), "", [""]]
    for follow in empty:
        with pytest.raises(ZooError, match="follow: expected a folder or servers, got none"):
            ckptzoo.open(tmp_path / "zoo", follow=follow)


def test_scheme_and_host_are_recorded_in_lower_case(web: Served, tmp_path: Path) -> None:
    zoo = link(web, tmp_path / "zoo")
    shouted = web.url.replace("http://", "HTTP://")
    link_zoo(f"{shouted}/nets/", tmp_path / "other/zoo", license="MIT")
    other = ckptzoo.open(tmp_path / "other/zoo")
    assert other.contents.references.remote_files == zoo.contents.references.remote_files
    assert link_zoo(f"{shouted}/nets/", tmp_path / "zoo", license="MIT").present == 4


def test_sources_of_a_zoo_that_gets_another_beside_it_are_still_followed(web: Served, tmp_path: Path) -> None:
    link(web, tmp_path / "zoo")
    with running(Served({"/others/one.safetensors": save(network(0, width=50))}), Listing) as served:
        link_zoo(f"{served.url}/others/one.safetensors", tmp_path / "zoo", license="MIT")
        both = [ckptzoo.open(path.parent) for path in (tmp_path / "zoo").glob("*/zoo.json")]
        assert sorted(zoo["0.weight"][:].shape for zoo in both) == [(1, 50, 4), (4, 200, 4)]


def test_a_zoo_that_was_being_moved_when_the_process_was_killed_is_still_followed(
    web: Served, nets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    rename, files = Path.rename, {"/others/one.safetensors": save(network(0, width=50))}
    for step, source in itertools.product((1, 2), (nets, f"{web.url}/nets/")):
        zoo, left = tmp_path / f"{step}{source == nets}/zoo", [step]
        link_zoo(source, zoo, license="MIT")

        def dying(self: Path, to: Path, left: list[int] = left) -> Path:
            moves = ".zoo.several" in f"{self} {to}"
            left[0] -= moves
            if moves and not left[0]:
                raise Killed
            return rename(self, to)

        with running(Served(files), Listing) as served:
            with monkeypatch.context() as patched, pytest.raises(Killed):
                patched.setattr(Path, "rename", dying)
                link_zoo(f"{served.url}/others/one.safetensors", zoo, license="MIT")
            # what is linked next knows nothing of the first sources
            link_zoo(f"{served.url}/others/one.safetensors", zoo, license="MIT")
            both = [ckptzoo.open(path.parent) for path in zoo.glob("*/zoo.json")]
            assert sorted(zoo["0.weight"][:].shape for zoo in both) == [(1, 50, 4), (4, 200, 4)]


def test_an_audit_reads_the_first_numbers_of_a_few_tensors(tmp_path: Path) -> None:
    states = walk(0, 6, (400, 400))
    states[1], states[4] = states[4], states[1]
    states[3]["layers.2.weight"][-1, -1] = np.nan
    files = {f"/nets/run/step{100 * at}.safetensors": save(state) for at, state in enumerate(states)}
    with running(Served(files), Listing) as served:
        link(served, tmp_path / "zoo")
        before, total = served.sent, sum(map(len, files.values()))
        found = [(item.kind, sorted(item.steps)) for item in audit(tmp_path / "zoo").findings]
        assert found == [("order", [100, 400])] and served.sent - before < total / 100
        found = sorted(item.kind for item in audit(tmp_path / "zoo", everything=True).findings)
        assert found == ["nonfinite", "order"] and served.sent - before > 0.99 * total


def test_batches_of_a_stream_are_fetched_ahead(tmp_path: Path) -> None:
    files = {f"/nets/net{at}.safetensors": save(network(at, width=40_000)) for at in range(6)}
    with running(Served(files), Listing) as served:
        zoo = link(served, tmp_path / "zoo")
        before, batches = served.sent, iter(zoo.stream("0.weight", batch_size=1))
        next(batches)
        nbytes, deadline = zoo["0.weight"].nbytes // 6, time.monotonic() + 20
        while served.sent - before < 3 * nbytes and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 3 * nbytes <= served.sent - before < 4 * nbytes
        assert len(list(batches)) == 5 and served.sent - before < 6.5 * nbytes


def test_headers_are_compared_in_batches_of_bounded_bytes(
    web: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo, batches = link(web, tmp_path / "zoo"), list[int]()
    in_order = RemoteReferences.in_order

    def noted(self: RemoteReferences, wanted: Any) -> Any:
        batches.append(len(wanted))
        return in_order(self, wanted)

    monkeypatch.setattr(RemoteReferences, "in_order", noted)
    for limit, expected in ((2**20, [4]), (1, [1, 1, 1, 1])):
        monkeypatch.setattr("ckptzoo.format.referenced_files._PREFETCHED", limit)
        batches.clear()
        assert ckptzoo.open(tmp_path / "zoo")["0.weight"][:].tobytes() == zoo["0.weight"][:].tobytes()
        assert batches[: len(expected)] == expected


def test_of_a_torch_file_no_large_member_beside_its_weights_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets").mkdir()
    path = tmp_path / "nets/net.pt"
    torch.save({name: torch.from_numpy(np.array(array)) for name, array in network(0, width=200).items()}, path)
    reader = torch._C.PyTorchFileReader(str(path))  # pyright: ignore
    records = {name: reader.get_record(name) for name in reader.get_all_records() if "serialization_id" not in name}
    writer = torch._C.PyTorchFileWriter(str(path))  # pyright: ignore
    for name, data in {**records, "extra/notes": bytes(3 * 2**20)}.items():
        if name not in ("version", "byteorder"):
            writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    monkeypatch.setattr("ckptzoo.hub.imports.remote_maps.MAX_READ", 2**20)
    with serving(tmp_path / "nets") as served:
        with pytest.raises(ZooError, match=r"nets/net\.pt: file: expected at most 1048576 bytes beside its weights"):
            link_zoo(f"{served.url}/nets/", tmp_path / "zoo", license="MIT")
        assert served.sent < 2**20


def mapped(nbytes: int) -> RemoteMap:
    files = RemoteReferences("zoo")
    return RemoteMap.made(files, RangeFile(files, RecordedFile("https://host/net.pt", nbytes, '"1"'), b""), "net.pt")


def test_a_map_knows_which_bytes_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    # as a file system may: less than it was given
    monkeypatch.setattr(os, "pwrite", lambda file, data, start: pwrite(file, data[:3], start))
    draw = np.random.default_rng(0)
    for _ in range(6):
        file, content, there = mapped(40), draw.bytes(40), np.zeros(40, bool)
        for _ in range(12):
            start, stop = np.sort(draw.integers(0, 41, 2)).tolist()
            file.put(start, content[start:stop]) if stop - start < 12 else None
            there[start:stop] |= stop - start < 12
            for first in range(40):
                for last in range(first + 1, 41):
                    assert file.has(first, last) == bool(there[first:last].all())
                    if last == first + 1 and there[first]:
                        assert file[first:last] == content[first:last]


def test_a_full_disk_and_too_many_open_files_name_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(number: int) -> Callable[..., int]:
        def fail(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        return fail

    file = mapped(40)
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    monkeypatch.setattr(os, "dup", failing(errno.EMFILE))
    with pytest.raises(ZooError, match=r"https://host/net\.pt: temporary file: .*No space left.*TMPDIR"):
        file.put(0, b"1")
    with pytest.raises(ZooError, match=r"https://host/net\.pt: temporary file: .*Too many open files.*ulimit"):
        mapped(40)


def rewritten(zoo: Path, change: Callable[[list[Any]], None]) -> None:
    """Write the references of a zoo of one part anew, with all digests, as its author could."""
    from ckptzoo.format.files import Folder
    from ckptzoo.format.reader import read_contents
    from ckptzoo.format.references import Reference
    from ckptzoo.format.writer import ReferenceWriter

    contents = read_contents(Folder(zoo))
    found, rows = contents.references, contents.raw.metadata.to_pylist()
    listed = [
        Reference(found.kinds[at][0], found.paths[at], *found.facts[at], found.headers[at], found.layouts[number], file)
        for at, ((_, number), file) in enumerate(zip(found.kinds, found.remote_files, strict=True))
    ]
    change(listed)
    shutil.rmtree(zoo / "parts")
    shutil.rmtree(zoo / "derived", ignore_errors=True)
    (zoo / "parts").mkdir()
    writer = ReferenceWriter(zoo)
    writer.refer([[item] for item in listed], rows)
    writer.commit()


def test_a_layout_that_contradicts_the_header_gives_no_weights(web: Served, tmp_path: Path) -> None:
    link(web, tmp_path / "zoo")

    def shift(listed: list[Any]) -> None:
        layout = listed[0].layout
        moved = tuple(place._replace(offset=place.offset + 4) for place in layout.tensors[:1])
        listed[0] = listed[0]._replace(layout=type(layout)(layout.form, moved + layout.tensors[1:], layout.header))

    rewritten(tmp_path / "zoo", shift)
    name = ckptzoo.open(tmp_path / "zoo").contents.references.layouts[0].tensors[0].tensor
    with pytest.raises(IntegrityError, match=r"step0\.safetensors: header: expected the tensors that were linked"):
        ckptzoo.open(tmp_path / "zoo", follow=web.url)[name][:]

    def other_form(listed: list[Any]) -> None:
        layout = listed[0].layout
        header = hashlib.sha256(b"").digest()
        listed[0] = listed[0]._replace(layout=type(layout)("torch", layout.tensors, ((0, 0),)), header=header)

    rewritten(tmp_path / "zoo", other_form)
    moved = Path(shutil.copytree(tmp_path / "zoo", tmp_path / "moved"))
    with pytest.raises(ZooError, match="expected safetensors, in a zoo of others, got torch"):
        ckptzoo.open(moved, follow=web.url)[name][:]

    def torch_form(listed: list[Any]) -> None:
        listed[0] = listed[0]._replace(layout=type(listed[0].layout)("torch", listed[0].layout.tensors))

    shutil.rmtree(moved)
    shutil.copytree(tmp_path / "zoo", moved)
    rewritten(moved, torch_form)
    with pytest.raises(ZooError, match="expected safetensors, in a zoo of others, got torch"):
        ckptzoo.open(moved, follow=web.url)[name][:]

    def secret(listed: list[Any]) -> None:
        at = listed[0].remote.address.replace("http://", "http://me:hunter2@")
        listed[0] = listed[0]._replace(remote=listed[0].remote._replace(address=at))

    shutil.rmtree(moved)
    shutil.copytree(tmp_path / "zoo", moved)
    rewritten(moved, secret)
    asked = len(web.seen)
    with pytest.raises(ZooError, match="a user or a password") as caught:
        ckptzoo.open(moved, follow=web.url)[name][:]
    assert "hunter2" not in str(caught.value) and len(web.seen) == asked


def test_redirects_lead_to_no_server_that_the_user_did_not_name(nets: Path, tmp_path: Path) -> None:
    class Leading(Listing):
        target = ""

        def answer(self, path: str) -> None:
            if self.target and path.endswith("step1.safetensors"):
                return self.plain(302, b"", Location=f"{self.target}{path}")
            super().answer(path)

    with serving(nets) as inner, serving(nets) as other:
        files = {f"/nets/{path.relative_to(nets)}": path.read_bytes() for path in nets.rglob("*.safetensors")}
        with running(Served(files), Leading, target=inner.url) as front:
            with pytest.raises(RemoteError, match=r"server 127\.0\.0\.1"):
                link_zoo(f"{front.url}/nets/", tmp_path / "zoo", license="MIT")
            assert not inner.seen
            sources = [f"{front.url}/nets/run0/step1.safetensors", f"{inner.url}/nets/run1/step0.safetensors"]
            assert link_zoo(sources, tmp_path / "zoo", license="MIT").added == 2
            assert not other.seen and ckptzoo.open(tmp_path / "zoo")["0.weight"][:].shape == (2, 200, 4)


BAD = {
    "?sig=abc123": "no password, signature or token",
    "#part": "no password, signature or token",
}


def test_addresses_that_no_reference_may_have_are_refused(web: Served, nets: Path, tmp_path: Path) -> None:
    good = f"{web.url}/nets/run0/step0.safetensors"
    for ending, text in BAD.items():
        with pytest.raises(ZooError, match=text) as caught:
            link_zoo(good + ending, tmp_path / "zoo", license="MIT")
        assert "abc123" not in str(caught.value)
    with pytest.raises(ZooError, match="a user or a password") as caught:
        link_zoo(good.replace("http://", "http://me:hunter2@"), tmp_path / "zoo", license="MIT")
    assert "hunter2" not in str(caught.value) and not web.seen
    for wrong in ("http://[x/nets/", "http://[x/net.safetensors?a=1"):
        with pytest.raises(ZooError, match=r"http://\[x/.*: expected https://host/path"):
            link_zoo(wrong, tmp_path / "zoo", license="MIT")
    with pytest.raises(ZooError, match="https://, hf:// or s3://"):
        link_zoo("ftp://host/net.safetensors", tmp_path / "zoo", license="MIT")
    with pytest.raises(AbsentError):
        link_zoo(f"{web.url}/nothing/", tmp_path / "zoo", license="MIT")
    assert not (tmp_path / "zoo").exists()


def test_what_cannot_be_linked_from_afar_is_named_with_the_next_step(nets: Path, tmp_path: Path) -> None:
    np.savez_compressed(nets / "odd.npz", **network(3))  # pyright: ignore[reportArgumentType]
    (nets / "broken.safetensors").write_bytes(b"\xff" * 100)
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in network(0, width=200).items()}
    torch.save(tensors, nets / "old.pt", _use_new_zipfile_serialization=False)
    turned = {**tensors, "0.weight": tensors["0.weight"].T.contiguous().T}
    torch.save(turned, nets / "turned.pt")
    with serving(nets) as served:
        with pytest.raises(ZooError, match="ckptzoo import"):
            link_zoo(f"{served.url}/nets/", tmp_path / "zoo", license="MIT", exclude=["broken*"])
        done = link_zoo(f"{served.url}/nets/", tmp_path / "zoo", license="MIT", skip_bad=True)
        assert done.added == 4
        assert {item["file"] for item in done.skipped} >= {"odd.npz", "old.pt", "turned.pt"}
        assert all("ckptzoo import" in item["problem"] for item in done.skipped if "broken" not in item["file"])
        served.faults.append(Fault("whole", times=9, path="run0/step0"))
        with pytest.raises(RemoteError, match="a range of the file"):
            link_zoo(f"{served.url}/nets/run0/step0.safetensors", tmp_path / "b/zoo", license="MIT")
    with serving(nets, validator="") as served, pytest.raises(RemoteError, match="an ETag or Last-Modified"):
        link_zoo(f"{served.url}/nets/run0/step0.safetensors", tmp_path / "b/zoo", license="MIT")


def killed(run: Callable[[], object], seconds: float) -> None:
    """Run something in a copy of this process that is killed after so long."""
    child = os.fork()
    if not child:
        try:
            run()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_kills_of_link_and_materialize_lose_and_double_nothing(
    web: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files.update({f"/nets/net{at:02d}.safetensors": save(network(at, width=200)) for at in range(16)})
    monkeypatch.setattr("ckptzoo.hub.imports.target.PART_BYTES", 20_000)
    monkeypatch.setattr("ckptzoo.hub.imports.link._FILES", 3)
    start, draw = time.monotonic(), np.random.default_rng(0)
    whole = link(web, tmp_path / "whole/zoo")
    ckptzoo.materialize(tmp_path / "whole/zoo", tmp_path / "whole/copy")
    most = (time.monotonic() - start) / 2
    assert len(whole.contents.raw.parts) >= 4
    for number in range(examples(25, 1)):
        zoo, copy = tmp_path / f"{number}/zoo", tmp_path / f"{number}/copy"
        for delay in draw.uniform(0, most, 3).tolist():
            killed(lambda zoo=zoo: link(web, zoo), delay)
        assert link(web, zoo).ids == whole.ids
        for delay in draw.uniform(0, most, 3).tolist():
            killed(lambda zoo=zoo, copy=copy: ckptzoo.materialize(zoo, copy), delay)
        ckptzoo.materialize(zoo, copy)
        made = ckptzoo.open(copy)
        assert made.ids == whole.ids and ckptzoo.verify(copy) == []
        assert all(made[name][:].tobytes() == whole[name][:].tobytes() for name in whole.arch.names)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hosted]:
    """Five runs of four steps, which are branches; one step has the weights of another."""
    with hosted(tmp_path / "served") as server:
        for run in range(5):
            server.api().create_repo(f"lab/run{run}")
            for step in (10, 20, 30, 40):
                server.api().create_branch(f"lab/run{run}", branch=f"step{step}")
                data = save(network(100 * run + (40 if (run, step) == (3, 20) else step), width=60))
                files = {"model.safetensors": data, "config.json": json.dumps({"hidden": 60}).encode()}
                push(server, files, f"models/lab/run{run}", revision=f"step{step}")
        yield server


@pytest.mark.slow
def test_runs_whose_steps_are_revisions_are_linked_audited_streamed_and_published(hub: Hosted, tmp_path: Path) -> None:
    token: dict[str, Any] = {"endpoint": hub.url, "token": hub.tokens["write"]}
    listed = tmp_path / "runs.txt"
    listed.write_text("".join(f"hf://lab/run{run}@step*\n" for run in range(5)))
    done = link_zoo(listed, tmp_path / "a/zoo", license="MIT", **token)
    import_zoo(listed, tmp_path / "b/zoo", license="MIT", **token)
    zoo, held = ckptzoo.open(tmp_path / "a/zoo"), ckptzoo.open(tmp_path / "b/zoo")
    assert done.added == 20 and zoo.ids == held.ids
    for column in (name for name in zoo.metadata.column_names if name != "finite"):
        assert zoo.column(column).equals(held.column(column)), column
    files = zoo.contents.references.remote_files
    commits = {file.address.partition("@")[2].partition("/")[0] for file in files}
    assert len(commits) >= 19 and all(len(commit) == 40 for commit in commits)
    assert all(file.digest and not file.validator for file in files)
    run = zoo.where("member == 'run2-model' or member == 'run2'").sorted("step")
    assert run.column("step").to_pylist() == [10, 20, 30, 40]
    batches = [batch["0.weight"] for batch in run.stream("0", batch_size=1)]
    expected = [network(200 + step, width=60)["0.weight"] for step in (10, 20, 30, 40)]
    assert np.concatenate(batches).tobytes() == np.stack(expected).tobytes()
    # a branch that moved is another commit; the zoo has the one that was linked
    push(hub, {"model.safetensors": save(network(9, width=60))}, "models/lab/run2", revision="step10")
    done = link_zoo(listed, tmp_path / "a/zoo", license="MIT", **token)
    assert (done.added, done.present) == (0, 20)
    assert re.fullmatch(
        r"revisions that have moved since.*: 1 \(hf://lab/run2@step10 at \S+\); .* a new zoo .*", *done.notes
    )
    shutil.rmtree(tmp_path / "cache")
    again = ckptzoo.open(tmp_path / "a/zoo")
    assert again["0.weight"][:].tobytes() == held["0.weight"][:].tobytes()
    found = audit(tmp_path / "a/zoo")
    assert "run3" in str(found) and "20" in str(found)
    assert ckptzoo.verify(tmp_path / "a/zoo") == []
    ckptzoo.push(tmp_path / "a/zoo", "lab/zoo", **token)
    published = "hf://datasets/lab/zoo"
    with pytest.raises(ZooError, match="follow=True"):
        ckptzoo.open(published, **token)["0.weight"][:]
    followed = ckptzoo.open(published, follow=True, **token)
    assert followed["0.weight"][:].tobytes() == held["0.weight"][:].tobytes()
    ckptzoo.pull("lab/zoo", tmp_path / "pulled", **token)
    with pytest.raises(ZooError, match="follow=True"):
        ckptzoo.open(tmp_path / "pulled", **token)["0.weight"][:]
    with pytest.raises(ZooError, match="Pull it whole"):
        ckptzoo.pull("lab/zoo", tmp_path / "some", where="step == 10", **token)
    assert "follow=True" in (tmp_path / "pulled/README.md").read_text()
    pulled = ckptzoo.open(tmp_path / "pulled", follow=True, **token)
    assert pulled["2.bias"][:].tobytes() == held["2.bias"][:].tobytes()


def test_a_zoo_is_published_where_everybody_can_read_its_files(web: Served, hub: Hosted, tmp_path: Path) -> None:
    link(web, tmp_path / "zoo")
    token: dict[str, Any] = {"endpoint": hub.url, "token": hub.tokens["write"]}
    with pytest.raises(ZooError, match=r"got one that refers to http://127.*ckptzoo materialize"):
        ckptzoo.push(tmp_path / "zoo", "lab/zoo", **token)

    def shout(listed: list[Any]) -> None:
        for at, item in enumerate(listed):
            remote = item.remote._replace(address=item.remote.address.replace("http://", "HTTP://"))
            listed[at] = item._replace(remote=remote)

    rewritten(tmp_path / "zoo", shout)
    with pytest.raises(ZooError, match=r"got one that refers to HTTP://127.*ckptzoo materialize"):
        ckptzoo.push(tmp_path / "zoo", "lab/zoo", **token)
    with pytest.raises(ZooError, match="expected one that fits a branch or a tag"):
        link_zoo("hf://lab/run0@epoch*", tmp_path / "b/zoo", license="MIT", **token)
