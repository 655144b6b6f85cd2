"""The benchmark of section 'Measured' runs through, its readers agree, and its JSON has every row; no time is judged."""

import json
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks.checkouts import compare
from benchmarks.layers import PEERS
from benchmarks.layers_measure import consume, measure, operations
from benchmarks.layers_pages import evict, files_of, resident
from benchmarks.layers_weights import Weights, resnet18
from benchmarks.peers.bare import BarePeer
from benchmarks.peers.peer import Arrays
from benchmarks.peers.zoo import Handle, ZooPeer

ROOT = Path(__file__).parents[2]
OF_ZOO = ("ckptzoo", "np.memmap")
READERS = {*OF_ZOO, "safetensors", "torch.load", "zarr", "HDF5"}


@pytest.mark.exhaustive
def test_a_tiny_run_has_every_row_and_cleans_up(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/layers.py", "--members", "3", "--width", "4", "--repeats", "1"]
    command += ["--checkpoints", "12", "--parts", "3"]
    command += ["--folder", str(tmp_path / "scratch"), "--json", str(tmp_path / "out" / "layers.json")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "out" / "layers.json").read_text())

    reads = ("small", "medium", "large", "checkpoint", "every", "open")
    expected = set(product(reads, ("warm", "cold"), READERS)) - {("open", c, "np.memmap") for c in ("warm", "cold")}
    assert {(row["operation"], row["cache"], row["reader"]) for row in found["reads"]} == expected
    assert all(row["min_ms"] <= row["median_ms"] <= row["max_ms"] for row in found["reads"])
    assert set(found["readers"]) == READERS
    assert [(item["checkpoints"], item["parts"]) for item in found["opening"]] == [(12, 1), (12, 3)]
    assert [(item["members"], item["shuffle"]) for item in found["streams"]] == list(product((1, 3), (False, True)))
    assert len(found["targets"]) == 10 + 2 + 1 + 4
    assert {figure["table"] for figure in found["figures"]} == {"reads", "ratios", "opening", "import", "streams"}
    assert found["machine"]["packages"]["numpy"] == np.__version__
    assert not any((tmp_path / "scratch").iterdir())


@pytest.mark.exhaustive
def test_a_tiny_run_over_references_costs_a_request_a_file(tmp_path: Path) -> None:
    if shutil.which("nginx") is None and shutil.which("nginx", path="/usr/sbin") is None:
        pytest.skip("needs nginx")
    figures = tmp_path / "out" / "references.json"
    command = [sys.executable, "-m", "benchmarks.references_remote", "--files", "40", "--repeats", "1", "--rtt", "2"]
    command += ["--folder", str(tmp_path / "scratch"), "--json", str(figures)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    runs = json.loads(figures.read_text())["runs"]
    requests = {way: run["requests"] for way, (run,) in runs.items()}
    # linking also reads the first numbers of the 12 tensors of some files, to compare them
    assert 40 < requests.pop("link") <= 40 + 12 * 20
    assert requests == {"one layer": 40, "plain transfer": 1}
    (layer,) = runs["one layer"]
    assert layer["wanted"] <= layer["received"] <= 1.01 * layer["wanted"]
    assert not any((tmp_path / "scratch").iterdir())


def test_the_declared_network_is_resnet18() -> None:
    arch = resnet18()
    kinds = [tensor.kind for tensor in arch.tensors]
    assert (kinds.count("parameter"), kinds.count("buffer")) == (62, 60)
    assert arch.parameters == 11_173_962  # the CIFAR form with 10 classes
    sizes = [arch[name].nbytes for name in ("bn1.weight", "layer1.0.conv1.weight", "layer4.1.conv2.weight")]
    assert sizes == [256, 147_456, 9_437_184]


def test_readers_share_no_files() -> None:
    stores = [peer.store for peer in PEERS]
    assert len(set(stores)) == len(stores)


@pytest.mark.exhaustive
def test_readers_that_differ_are_refused(tmp_path: Path) -> None:
    class Wrong(ZooPeer):
        def layer(self, handle: Handle, name: str) -> Arrays:
            return (np.roll(view, 1) + 1 for view in ZooPeer.layer(self, handle, name))

    weights = Weights(resnet18(width=1), 2, seed=0)
    for peer in (ZooPeer(), BarePeer()):
        (tmp_path / peer.store).mkdir()
        assert sum(peer.write(tmp_path / peer.store, weights)) == weights.nbytes
    layer = operations(weights.arch, weights.members)[0]
    samples = list(measure(layer, [ZooPeer(), BarePeer()], tmp_path, repeats=2))
    assert {key: len(seconds) for key, seconds in samples[-1].seconds.items()} == {
        (cache, reader): count for (cache, count), reader in product((("cold", 2), ("warm", 6)), OF_ZOO)
    }
    with pytest.raises(ValueError, match="expected"):
        list(measure(layer, [ZooPeer(), Wrong()], tmp_path, repeats=1))


def test_consume_sees_every_bit() -> None:
    data = np.arange(64, dtype=np.int64).reshape(4, 16)
    whole = consume([data])
    assert whole == consume(iter(data)) and whole[1] == data.nbytes
    for row, bit in ((0, 0), (2, 40), (3, 63)):
        changed = data.view(np.uint64).copy()
        changed[row, 5] ^= np.uint64(1) << np.uint64(bit)
        assert consume([changed]) != whole


def test_resident_pages_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(3 * 4096 + 1))
    (tmp_path / "empty").touch()
    evict(files_of(tmp_path))
    (tmp_path / "a").read_bytes()
    assert resident(files_of(tmp_path)) == 1.0
    assert resident([tmp_path / "empty"]) == 0.0


@pytest.mark.exhaustive
def test_two_checkouts_take_turns(tmp_path: Path) -> None:
    tasks, other = ["canonicalize 500 linear 12-8-12"], tmp_path / "before"
    other.mkdir()
    (other / "ckptzoo").symlink_to(ROOT / "ckptzoo")  # one whose benchmarks do not have what ours have
    (timed,) = compare(ROOT / "benchmarks/matrices.py", tasks, other, repeats=2)
    assert [len(values) for values in (*timed.wall, *timed.processor)] == [2, 2, 2, 2]
    assert min(timed.ratios) > 0
    with pytest.raises(RuntimeError, match="unknown task"):
        compare(ROOT / "benchmarks/matrices.py", ["unknown task"], ROOT, repeats=1)
