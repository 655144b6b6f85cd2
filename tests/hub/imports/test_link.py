"""A zoo that refers to files reads, streams and derives what an import of them holds; a file that changed is named."""

import copy
import json
import os
import re
import shutil
import signal
import stat
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from torch.utils.data import DataLoader

import ckptzoo
from ckptzoo.derive import landscape, predict
from ckptzoo.errors import ZooError
from ckptzoo.format.digests import reference_summary
from ckptzoo.format.header import numpy_dtype
from ckptzoo.format.references import encode
from ckptzoo.hub.imports import import_zoo, link_zoo
from tests.support.container_files import gguf_file
from tests.support.effort import examples
from tests.support.published_zoos import network

State = dict[str, np.ndarray]
DTYPES = ("float32", "float64", "float16", "int64", "int8", "uint8", "bool")
SHAPES = ((), (1,), (3,), (2, 3), (0,), (4, 0, 2), (5, 2, 2), (300, 70), (700, 200))


def state(draw: np.random.Generator, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> State:
    kinds = {name: (numpy_dtype(dtype), shape) for name, (dtype, shape) in tensors.items()}
    return {name: np.asarray(draw.standard_normal(shape) * 9).astype(dtype) for name, (dtype, shape) in kinds.items()}


def fill(folder: Path, seed: int) -> dict[str, State]:
    """Files of one architecture in nested folders, with headers of several kinds."""
    draw = np.random.default_rng(seed)
    names = [f"{word}{at}.weight" for at, word in enumerate(draw.choice(["conv", "fc", "norm"], draw.integers(1, 7)))]
    tensors = {name: (str(draw.choice(DTYPES)), SHAPES[draw.integers(len(SHAPES))]) for name in names}
    tensors["last.bias"] = ("float32", (3,))
    tied = "head.weight" if draw.integers(2) else ""
    made: dict[str, State] = {}
    for number in range(draw.integers(1, 9)):
        path = folder / ("" if draw.integers(2) else f"run-{draw.integers(3)}/in") / f"net{number:02d}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = state(draw, tensors)
        if tied:
            content |= {"embed.weight": (table := draw.standard_normal((4, 3)).astype(np.float32)), tied: table}
        metadata = [None, {"format": "pt"}, {"lr": str(number)}][draw.integers(3)]
        save_file(content, path, metadata)
        made[str(path.relative_to(folder))] = content
    return made


def tree_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and ".ckptzoo-pull" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@settings(max_examples=examples(60, 3))
@given(seed=st.integers(0, 2**32))
def test_what_is_read_is_in_the_files_and_a_copy_is_what_import_writes(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    root = tmp_path_factory.mktemp("link")
    made = fill(root / "nets", seed)
    # both zoos have one name, which is in their documents
    link_zoo(root / "nets", root / "a/zoo", license="MIT")
    import_zoo(root / "nets", root / "b/zoo", license="MIT")
    zoo, held = ckptzoo.open(root / "a/zoo"), ckptzoo.open(root / "b/zoo")
    assert zoo.arch == held.arch and zoo.ids == held.ids and len(zoo) == len(made)
    for column in (name for name in zoo.metadata.column_names if name != "finite"):
        assert zoo.column(column).equals(held.column(column)), column
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, len(zoo), 5)
    for name in zoo.arch.names:
        assert zoo[name][:].tobytes() == held[name][:].tobytes()
        assert zoo[name][rows].tobytes() == held[name][rows].tobytes()
        for checkpoint, extra in zip(zoo, zoo.metadata["extra"].to_pylist(), strict=True):
            path = next(path for path in made if f'"{path}"' in extra)
            with safe_open(root / "nets" / path, "np") as file:
                assert checkpoint[name].tobytes() == file.get_tensor(name).tobytes()
    for shuffle in (False, True, "global"):
        one, other = (each.stream(batch_size=2, shuffle=shuffle, seed=seed, remainder="keep") for each in (zoo, held))
        for batch, expected in zip(one, other, strict=True):
            assert batch.ids == expected.ids
            assert all(batch[name].tobytes() == expected[name].tobytes() for name in zoo.arch.names)
    ckptzoo.materialize(root / "a/zoo", root / "c/zoo")
    assert tree_of(root / "c/zoo") == tree_of(root / "b/zoo")
    assert ckptzoo.materialize(root / "a/zoo", root / "c/zoo").parts == ()
    assert ckptzoo.verify(root / "a/zoo") == [] == ckptzoo.verify(root / "c/zoo")
    checked = ckptzoo.open(root / "a/zoo")
    assert checked.column("finite").equals(held.column("finite"))
    summary = reference_summary(checked.contents)
    assert summary is not None and summary.files == len(made) and not summary.unchecked
    shutil.rmtree(root)


def as_torch(content: State) -> Any:
    return {name: torch.from_numpy(np.array(array)) for name, array in content.items()}


def torch_file(folder: Path, number: int, content: State) -> None:
    optimiser = {"state": {0: {"exp_avg": torch.zeros(300, 64)}}, "param_groups": []}
    torch.save({"state_dict": as_torch(content), "epoch": number, "optimizer": optimiser}, folder / f"{number}.pt")


def legacy_file(folder: Path, number: int, content: State) -> None:
    torch.save(as_torch(content), folder / f"{number}.pt", _use_new_zipfile_serialization=False)


def shared_storage(folder: Path, number: int, content: State) -> None:
    """Tensors are views of one storage, of which a part is of no tensor."""
    flat = torch.from_numpy(np.concatenate([np.ones(7, np.float32), *map(np.ravel, content.values())]))
    state, at = {}, 7
    for name, array in content.items():
        state[name] = flat[at : at + array.size].reshape(array.shape)
        at += array.size
    torch.save(state, folder / f"{number}.pt")


def npz(folder: Path, number: int, content: State) -> None:
    np.savez(folder / f"{number}.npz", **content)  # pyright: ignore[reportArgumentType]


def gguf(folder: Path, number: int, content: State) -> None:
    (folder / f"{number}.gguf").write_bytes(gguf_file(content))


def shards(folder: Path, number: int, content: State) -> None:
    (folder / f"run{number}").mkdir()
    for at, names in enumerate((list(content)[:2], list(content)[2:]), start=1):
        path = folder / f"run{number}/model-{at:05d}-of-00002.safetensors"
        save_file({name: content[name] for name in names}, path)


def tar(folder: Path, number: int, content: State) -> None:
    """Members of two forms in an archive beside others."""
    (folder / "more").mkdir()
    torch_file(folder / "more", number, content)
    npz(folder / "more", number + 50, content)
    with tarfile.open(folder / f"{number}.tar", "w") as archive:
        archive.add(folder / "more", "in")
    shutil.rmtree(folder / "more")


def test_files_of_every_form_are_read_as_import_reads_them(tmp_path: Path) -> None:
    for at, form in enumerate((torch_file, legacy_file, shared_storage, npz, gguf, shards, tar)):
        folder = tmp_path / "nets" / form.__name__
        folder.mkdir(parents=True)
        for number in range(2):
            form(folder, 10 * at + number, network(10 * at + number, width=40))
    link_zoo(tmp_path / "nets", tmp_path / "a/zoo", license="MIT")
    import_zoo(tmp_path / "nets", tmp_path / "b/zoo", license="MIT")
    zoo, held = ckptzoo.open(tmp_path / "a/zoo"), ckptzoo.open(tmp_path / "b/zoo")
    assert zoo.ids == held.ids and len(zoo) == 16
    for name in zoo.arch.names:
        assert zoo[name][:].tobytes() == held[name][:].tobytes()
    for checkpoint, text in zip(zoo, zoo.metadata["extra"].to_pylist(), strict=True):
        path = tmp_path / "nets" / json.loads(text)["file"]
        if path.suffix == ".pt" and path.is_file():
            loaded = torch.load(path, weights_only=True)
            loaded = loaded.get("state_dict", loaded)
            assert all(checkpoint[name].tobytes() == loaded[name].numpy().tobytes() for name in zoo.arch.names)
    ckptzoo.materialize(tmp_path / "a/zoo", tmp_path / "c/zoo")
    assert tree_of(tmp_path / "c/zoo") == tree_of(tmp_path / "b/zoo") and ckptzoo.verify(tmp_path / "a/zoo") == []
    # what says where tensors are is compared, be it at the end of the file
    for path in (path for path in (tmp_path / "nets").rglob("*") if path.suffix in (".pt", ".npz")):
        if path.parent.name != "legacy_file":
            in_place(path, -30, b"?!")
            with pytest.raises(ZooError, match=rf"{path.name}: sha256 of the header"):
                [zoo[at][zoo.arch.names[0]] for at in range(len(zoo)) if path.name in zoo.metadata["extra"][at].as_py()]


def test_a_tar_archive_is_a_source_beside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    for number in range(2):
        save_file(network(number), tmp_path / f"nets/n{number}.safetensors")
    with tarfile.open(tmp_path / "nets.tar", "w") as archive:
        archive.add(tmp_path / "nets", "nets")
    assert link_zoo(tmp_path / "nets.tar", tmp_path / "zoo", license="MIT").added == 2
    save_file(network(2), tmp_path / "nets/n2.safetensors")
    # a folder and an archive of it are one source, in two places
    assert link_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT").added in (1, 3)
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert zoo["0.weight"][:].shape[1:] == (5, 4) and ckptzoo.verify(tmp_path / "zoo") == []


def column_major(folder: Path) -> None:
    np.savez(folder / "odd.npz", **{name: np.asfortranarray(array) for name, array in network(0).items()})  # pyright: ignore


def packed_arrays(folder: Path) -> None:
    np.savez_compressed(folder / "odd.npz", **network(0))  # pyright: ignore[reportArgumentType]


def transposed(folder: Path) -> None:
    state = as_torch(network(0))
    state["2.weight"] = state["2.weight"].T.contiguous().T
    torch.save(state, folder / "odd.pt")


def big_endian(folder: Path) -> None:
    np.savez(folder / "odd.npz", **{name: array.astype(">f4") for name, array in network(0).items()})  # pyright: ignore


def sparse(folder: Path) -> None:
    torch.save({name: torch.from_numpy(array).to_sparse() for name, array in network(0).items()}, folder / "odd.pt")


def pruned(folder: Path) -> None:
    state = as_torch(network(0))
    weight = state.pop("0.weight")
    torch.save({"0.weight_orig": weight, "0.weight_mask": (weight > 0).float(), **state}, folder / "odd.pt")


def packed_tar(folder: Path) -> None:
    save_file(network(0), folder / "odd.safetensors")
    with tarfile.open(folder / "odd.tar.gz", "w:gz") as archive:
        archive.add(folder / "odd.safetensors", "odd.safetensors")
    (folder / "odd.safetensors").unlink()


ODD = (column_major, packed_arrays, transposed, big_endian, sparse, pruned, packed_tar)


def test_what_lies_otherwise_in_its_file_is_named_with_import(tmp_path: Path) -> None:
    for make in ODD:
        (tmp_path / "nets" / make.__name__).mkdir(parents=True)
        make(tmp_path / "nets" / make.__name__)
    save_file(network(1), tmp_path / "nets/whole.safetensors")
    done = link_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT", skip_bad=True)
    expected = r"expected (numbers as they lie in the file|those of the file), got.*ckptzoo import"
    assert done.added == 1 and all(re.search(expected, item["problem"]) for item in done.skipped)
    assert sorted(item["file"].partition("/")[0] for item in done.skipped) == sorted(make.__name__ for make in ODD)
    assert import_zoo(tmp_path / "nets", tmp_path / "held", license="MIT").added == len(ODD) + 1
    assert not list(tmp_path.glob("zoo-masks"))


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A zoo of four networks in two folders."""
    for number in range(4):
        (tmp_path / f"nets/run{number % 2}").mkdir(parents=True, exist_ok=True)
        save_file(network(number), tmp_path / f"nets/run{number % 2}/step{number}.safetensors")
    link_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    return tmp_path / "zoo"


def in_place(path: Path, at: int, data: bytes) -> None:
    """Change bytes of a file, and nothing that the system says of it."""
    before = path.stat()
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, data, at % before.st_size)
    os.close(descriptor)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def renamed(path: Path) -> None:
    path.rename(path.with_suffix(".old"))


def folder_elsewhere(path: Path) -> None:
    """The file's folder becomes a link to one outside, which has the very file."""
    path.parent.rename(path.parents[2] / "elsewhere")
    path.parent.symlink_to(path.parents[2] / "elsewhere")


def linked_file(path: Path) -> None:
    renamed(path)
    path.symlink_to(path.with_suffix(".old"))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES: dict[str, Callable[[Path], None]] = {
    "touched": lambda path: os.utime(path),
    "shorter": lambda path: os.truncate(path, 300),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 1),
    "header": lambda path: in_place(path, 12, b"?"),
    "gone": Path.unlink,
    "moved": renamed,
    "link": linked_file,
    "linked folder": folder_elsewhere,
    "pipe": pipe,
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.sampled(2)
def test_a_file_that_changed_is_named_and_the_others_are_read(linked: Path, how: str) -> None:
    zoo = ckptzoo.open(linked)
    name = zoo.arch.names[0]
    held = zoo[name][:]
    CHANGES[how](linked.parent / "nets/run1/step1.safetensors")
    for again in (zoo, ckptzoo.open(linked)):
        with pytest.raises(ZooError, match=r"run1/step1\.safetensors.*expected"):
            again[name][:]
        rows = [at for at, text in enumerate(again.metadata["extra"].to_pylist()) if "run0" in text]
        assert again[name][rows].tobytes() == held[rows].tobytes()
    assert any("step1.safetensors" in problem.location for problem in ckptzoo.verify(linked))
    with pytest.raises(ZooError, match="step1"):
        ckptzoo.materialize(linked, linked.parent / "copy")
    assert not list((linked.parent / "copy").glob("parts/*"))


@pytest.mark.parametrize("way", ["verify", "materialize", "layers", "where"])
def test_a_byte_that_changed_is_found_once_its_block_has_a_digest(linked: Path, way: str) -> None:
    path = linked.parent / "nets/run1/step3.safetensors"
    in_place(path, -1, b"?")  # before anything was read: the first reading trusts the source
    assert ckptzoo.verify(linked) == []
    options: dict[str, Any] = {"layers": {"layers": "2"}, "where": {"where": "step == 3"}}.get(way, {})
    in_place(path, -1, b"!")
    if way == "verify":
        (problem,) = ckptzoo.verify(linked)
        assert problem.location == str(path) and "sha256 of block 0" in problem.what
        return
    with pytest.raises(ZooError, match=r"step3\.safetensors: sha256 of block 0"):
        ckptzoo.materialize(linked, linked.parent / "copy", **options)
    in_place(path, -1, b"?")
    assert len(ckptzoo.open(ckptzoo.materialize(linked, linked.parent / "copy", **options).folder))


def test_references_are_followed_only_where_this_user_linked_them(linked: Path) -> None:
    name = ckptzoo.open(linked).arch.names[0]
    held = ckptzoo.open(linked)[name][:]
    moved = shutil.copytree(linked, linked.parent / "copy")
    assert len(ckptzoo.open(moved).metadata) == 4
    with pytest.raises(ZooError, match="expected one that was linked on this machine, got none"):
        ckptzoo.open(moved)[name][:]
    assert ckptzoo.open(moved, follow=linked.parent / "nets")[name][:].tobytes() == held.tobytes()
    assert ckptzoo.open(moved, follow={"nets": linked.parent / "nets"}).refresh()[name][:].tobytes() == held.tobytes()
    with pytest.raises(ZooError, match="none"):
        ckptzoo.open(moved, follow={"other": linked.parent / "nets"})[name][:]
    # a folder that is linked again is recorded again, and nothing is added
    assert (link_zoo(linked.parent / "nets", moved, license="MIT").added, len(ckptzoo.open(moved))) == (0, 4)
    assert ckptzoo.open(moved)[name][:].tobytes() == held.tobytes()
    # another zoo in the same folder is not the one that was linked
    shutil.rmtree(linked)
    link_zoo(linked.parent / "nets", linked.parent / "b/other", license="MIT")
    shutil.copytree(linked.parent / "b/other", linked)
    with pytest.raises(ZooError, match="none"):
        ckptzoo.open(linked)[name][:]


def test_a_folder_that_is_gone_is_named(linked: Path) -> None:
    zoo = ckptzoo.open(linked)
    shutil.rmtree(linked.parent / "nets")
    with pytest.raises(ZooError, match=r"expected the file that was linked, got no folder '.*/nets'"):
        zoo[zoo.arch.names[0]][:]


def test_no_path_of_this_machine_is_in_the_zoo(linked: Path) -> None:
    ckptzoo.verify(linked)
    for path in (path for path in linked.rglob("*") if path.is_file()):
        assert str(linked.parent).encode() not in path.read_bytes()
    recorded = list((Path(os.environ["XDG_DATA_HOME"]) / "ckptzoo/linked").glob("*.json"))
    assert recorded and all(stat.S_ISREG(path.stat().st_mode) for path in recorded)


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "run0/../../secret", "run0//step0", "./run0"])
def test_a_path_out_of_the_folder_is_refused_when_the_zoo_is_read(linked: Path, path: str, monkeypatch: Any) -> None:
    def crafted(rows: Any) -> bytes:
        return encode([[item._replace(path=path) for item in references] for references in rows])

    monkeypatch.setattr("ckptzoo.format.writer.encode", crafted)
    link_zoo(linked.parent / "nets", linked.parent / "bad", license="MIT")
    zoo = ckptzoo.open(linked.parent / "bad")
    with pytest.raises(ZooError, match="path: expected one inside the folder of a source"):
        zoo[zoo.arch.names[0]][:]


def test_more_is_added_and_kinds_of_zoos_stay_apart(linked: Path) -> None:
    nets = linked.parent / "nets"
    save_file(network(9), nets / "run1/step9.safetensors")
    assert link_zoo(nets, linked, license="MIT").added == 1
    (linked.parent / "more").mkdir()
    save_file(network(10), linked.parent / "more/net.safetensors")
    assert link_zoo(linked.parent / "more/net.safetensors", linked, license="MIT").added == 1
    zoo = ckptzoo.open(linked)
    assert len(zoo) == 6 and zoo["0.weight"][:].shape == (6, 5, 4)
    import_zoo(nets, linked.parent / "held", license="MIT")
    with pytest.raises(ZooError, match="ckptzoo import SOURCE"):
        link_zoo(nets, linked.parent / "held", license="MIT")
    with pytest.raises(ZooError, match="ckptzoo link SOURCE"):
        import_zoo(nets, linked, license="MIT")
    with pytest.raises(ZooError, match="ckptzoo link SOURCE"):
        ckptzoo.append(linked)
    with pytest.raises(ZooError, match="ckptzoo materialize"):
        ckptzoo.push(linked, "lab/zoo")
    with pytest.raises(ZooError, match="ckptzoo materialize"):
        ckptzoo.pull(linked, linked.parent / "pulled")
    with pytest.raises(ZooError, match="ckptzoo materialize"):
        ckptzoo.merge_parts(linked, linked.parent / "merged")
    with pytest.raises(ZooError, match="complete as it is"):
        ckptzoo.materialize(linked.parent / "held", linked.parent / "again")


def test_files_of_many_kinds_of_headers_are_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets").mkdir()
    for number in range(8):
        # names of files are in headers of torch.save, and move what is behind them
        save_file(network(number), tmp_path / "nets" / f"n{number}.safetensors", {"words": "x" * number * 8})
        legacy_file(tmp_path / "nets", number, network(number + 20))
    monkeypatch.setattr("ckptzoo.hub.imports.link.MAX_LAYOUTS", 300)
    monkeypatch.setattr("ckptzoo.hub.imports.link._FILES", 4)
    link_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert len(zoo.contents.raw.parts) > 1 and len(zoo["0.weight"][:]) == 16 and ckptzoo.verify(tmp_path / "zoo") == []


def test_a_copy_without_retracted_checkpoints_goes_on(linked: Path) -> None:
    first = ckptzoo.open(linked).ids[0]
    ckptzoo.retract(linked, [first], reason="Trained on the test set.")
    with pytest.warns(UserWarning, match="retracted"):
        done = ckptzoo.materialize(linked, linked.parent / "copy")
    assert done.checkpoints == 3 and ckptzoo.verify(linked.parent / "copy") == []
    save_file(network(9), linked.parent / "nets/run1/step9.safetensors")
    # what was retracted is there, and is not added again
    assert link_zoo(linked.parent / "nets", linked, license="MIT").added == 1
    with pytest.warns(UserWarning, match="retracted"):
        done = ckptzoo.materialize(linked, linked.parent / "copy")
    assert (done.checkpoints, done.there, len(done.parts)) == (4, 1, 1)


def test_what_does_not_lie_flat_is_named_with_the_next_step(linked: Path) -> None:
    nets = linked.parent / "nets"
    half = {name: array.astype(np.float16) for name, array in network(5).items()}
    save_file(half, nets / "half.safetensors")
    with pytest.raises(ZooError, match=r"half\.safetensors: tensor '0.bias'.*ckptzoo import"):
        link_zoo(nets, linked, license="MIT")
    done = link_zoo(nets, linked, license="MIT", skip_bad=True)
    assert (done.added, len(done.skipped)) == (0, 1) and len(ckptzoo.open(linked)) == 4
    (linked.parent / "secret").mkdir()
    save_file(network(6), linked.parent / "secret/net.safetensors")
    (nets / "out.safetensors").symlink_to(linked.parent / "secret/net.safetensors")
    (nets / "in.safetensors").symlink_to(nets / "run0/step0.safetensors")
    done = link_zoo(nets, linked.parent / "b/zoo", license="MIT", skip_bad=True, exclude=["half.safetensors"])
    assert done.added == 5 and "a link to" in done.skipped[0]["problem"]
    zoo = ckptzoo.open(linked.parent / "b/zoo")
    (linked.parent / "nets/in.safetensors").unlink()  # its file is read where it is
    assert zoo["0.weight"][:].shape == (5, 5, 4)


def killed(run: Callable[[], object], seconds: float) -> bool:
    """Run something in a copy of this process that is killed after so long; returns whether it was still at work."""
    child = os.fork()
    if not child:
        try:
            run()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_kills_of_link_and_materialize_lose_and_double_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(24):
        save_file(network(number), tmp_path / f"net{number:02d}.safetensors")
    source, draw = tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}-nets")), np.random.default_rng(0)
    tmp_path.mkdir()
    # a part for every few files
    monkeypatch.setattr("ckptzoo.hub.imports.target.PART_BYTES", 1000)
    monkeypatch.setattr("ckptzoo.hub.imports.link._FILES", 3)
    start = time.monotonic()
    link_zoo(source, tmp_path / "whole/zoo", license="MIT")
    ckptzoo.materialize(tmp_path / "whole/zoo", tmp_path / "whole/copy")
    most, whole = (time.monotonic() - start) / 2, ckptzoo.open(tmp_path / "whole/copy")
    assert len(whole.contents.raw.parts) >= 4
    for number in range(examples(25, 1)):
        zoo, held = tmp_path / f"{number}/zoo", tmp_path / f"{number}/copy"
        (tmp_path / str(number)).mkdir()
        for delay in draw.uniform(0, most, 3).tolist():
            killed(lambda zoo=zoo: link_zoo(source, zoo, license="MIT"), delay)
        link_zoo(source, zoo, license="MIT")
        for delay in draw.uniform(0, most, 3).tolist():
            killed(lambda zoo=zoo, held=held: ckptzoo.materialize(zoo, held), delay)
        ckptzoo.materialize(zoo, held)
        for made in (ckptzoo.open(zoo), ckptzoo.open(held)):
            assert made.ids == whole.ids
            assert all(made[name][:].tobytes() == whole[name][:].tobytes() for name in whole.arch.names)
        assert ckptzoo.verify(zoo) == [] == ckptzoo.verify(held)
        assert not list(zoo.parent.glob(".ckptzoo-tmp-*"))


@pytest.mark.exhaustive
def test_what_is_made_of_a_zoo_is_what_is_made_of_a_copy(tmp_path: Path) -> None:
    source = ckptzoo.open("cards/mnist-optunet")[:5]
    (tmp_path / "nets").mkdir()
    for checkpoint in source:
        save_file(
            {name: np.array(checkpoint[name]) for name in checkpoint}, tmp_path / f"nets/{checkpoint.id}.safetensors"
        )
    for bring, folder in ((link_zoo, "a"), (import_zoo, "b")):
        bring(tmp_path / "nets", tmp_path / folder / "zoo", license="MIT", arch="optunet")
        ckptzoo.derive.derive(tmp_path / folder / "zoo", gauge="first-weight")
        inputs = np.random.default_rng(0).standard_normal((3, 1, 28, 28)).astype(np.float32)
        ckptzoo.derive.predict(tmp_path / folder / "zoo", inputs, set="noise/few")
        ckptzoo.make_split(tmp_path / folder / "zoo", "main", {"train": 0.5, "test": 0.5})
    zoo, held = ckptzoo.open(tmp_path / "a/zoo"), ckptzoo.open(tmp_path / "b/zoo")
    assert zoo.variants == held.variants and zoo.split("main", "train").ids == held.split("main", "train").ids
    for name in zoo.arch.names:
        assert zoo[name, "first-weight"][:].tobytes() == held[name, "first-weight"][:].tobytes()
    assert zoo.predictions("noise/few").logits[:].tobytes() == held.predictions("noise/few").logits[:].tobytes()
    one, other = (each.variant_metadata("first-weight").drop_columns(["unit"]) for each in (zoo, held))
    assert one.equals(other)
    again = copy.deepcopy(zoo.where("finite").take([4, 1]))
    assert again["fc.weight"][:].tobytes() == held["fc.weight"][[4, 1]].tobytes()
    assert again[0].state_dict()["fc.weight"].numpy().tobytes() == held["fc.weight"][4].tobytes()
    loader = DataLoader(zoo.to_torch("fc", batch_size=2), batch_size=None, num_workers=1)
    assert b"".join(batch["fc.weight"].numpy().tobytes() for batch in loader) == held["fc.weight"][:].tobytes()
    ckptzoo.materialize(tmp_path / "a/zoo", tmp_path / "c/zoo", where="seed is None or seed >= 0")
    part = ckptzoo.open(tmp_path / "c/zoo")
    assert part["fc.weight", "first-weight"][:].tobytes() == held["fc.weight", "first-weight"][:].tobytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
@pytest.mark.exhaustive
def test_a_copy_has_what_was_derived_of_its_checkpoints(tmp_path: Path) -> None:
    """Predictions, figures and splits, whole, of some checkpoints and of some layers; again after a retraction."""
    inputs = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    for seed in range(3):
        draw = np.random.default_rng(seed)
        shapes = {"fc1.weight": (16, 8), "fc1.bias": (16,), "fc2.weight": (3, 16), "fc2.bias": (3,)}
        nets = {step: {name: draw.standard_normal(s).astype("f4") for name, s in shapes.items()} for step in (1, 2)}
        for step, net in nets.items():
            path = tmp_path / f"runs/seed{seed}/step{step}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(net, path)
    link_zoo(tmp_path / "runs", tmp_path / "zoo", arch="mlp-8-16-3", license="MIT")
    predict(tmp_path / "zoo", inputs, set="toy/test")
    landscape(tmp_path / "zoo", inputs, np.arange(6) % 3, set="toy/train", where="step == 2")
    ckptzoo.make_split(tmp_path / "zoo", "halves", {"train": 0.5, "test": 0.5})
    zoo = ckptzoo.open(tmp_path / "zoo")
    chosen = zoo.ids[::-2]
    kinds: list[dict[str, Any]] = [{}, {"where": {"id": chosen * 60}}, {"where": "step == 1"}, {"layers": "fc1"}]
    for number, options in enumerate(kinds):
        for _ in range(2):
            ckptzoo.materialize(tmp_path / "zoo", tmp_path / f"copy{number}", **options)
            assert ckptzoo.verify(tmp_path / f"copy{number}") == []
        if number == 0:
            ckptzoo.retract(tmp_path / "zoo", [chosen[0]], reason="Trained on the test set.")
    for number, options in enumerate(kinds):
        copied = ckptzoo.open(tmp_path / f"copy{number}")
        same = zoo.where({"id": copied.ids})
        assert copied.splits == ("halves",) and len(copied) == len(same)
        expected, got = (each.sorted("id").predictions("toy/test").logits[:] for each in (same, copied))
        assert expected.tobytes() == got.tobytes()
        files = list((tmp_path / f"copy{number}").glob("landscape/*"))
        assert len(files) == (number < 2)
        if files:
            assert copied.sorted("id").landscape().equals(same.sorted("id").landscape())
        readme = (tmp_path / f"copy{number}/README.md").read_text()
        assert "predictions `all`" not in readme and "`ckptzoo pull`" not in readme
        if options:
            assert len(next(line for line in readme.splitlines() if line.startswith("> This is a part"))) < 400
