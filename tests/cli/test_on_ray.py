"""Commands whose shares are done by a cluster of Ray on this machine."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.cli.ray_shares import run_share
from ckptzoo.derive import align_zoo, derive
from tests.support.derived_zoos import zoo_of
from tests.support.ports import free_port

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two cores."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster

    settings = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(ROOT))
        made = Cluster(initialize_head=True, head_node_args=settings)
        address = made.address
        assert address is not None
        yield address
        ray.shutdown()
        made.shutdown()


@pytest.mark.exhaustive
def test_shares_are_done_by_tasks_with_the_same_bytes(cli: Any, cluster: str, tmp_path: Path) -> None:
    alone, shared = (zoo_of(tmp_path / name, (3, 1, 2, 4, 1)) for name in ("a", "b"))
    derive(alone)
    on = f"--on=ray://{cluster}"
    ended = cli("derive", shared, on)
    assert ended.code == 0 and "0 checkpoints derived in canonical, 11 were there already" in ended.out, ended
    digests = [
        {part.facts["raw"]: part.digest for part in ckptzoo.open(path).contents.derived("canonical").parts}
        for path in (alone, shared)
    ]
    assert digests[0] == digests[1] and len(digests[0]) == 5
    ids = sorted(ckptzoo.open(shared).ids)
    halves = ["--where", f"id < '{ids[5]}'", "--where-y", f"id >= '{ids[5]}'", "--json"]
    expected = cli("mmd", shared, shared, *halves, "-o", tmp_path / "one")
    found = cli(
        "mmd", shared, shared, *halves, "-o", tmp_path / "two", "--saved", tmp_path / "kept", "--on", f"ray://{cluster}"
    )
    assert found.code == 0 and found.out.replace("/two/", "/one/") == expected.out, found
    assert len(list((tmp_path / "kept").iterdir())) == len(ckptzoo.open(shared).arch.tensors)
    expected = cli("dedupe", shared, "--json")
    found = cli("dedupe", shared, "--json", "--saved", tmp_path / "rows", "--on", f"ray://{cluster}")
    assert found.code == 0 and found.out == expected.out and len(list((tmp_path / "rows").iterdir())) == 2, found


@pytest.mark.exhaustive
def test_shares_are_aligned_with_the_same_reference(cli: Any, cluster: str, tmp_path: Path) -> None:
    alone, shared = (zoo_of(tmp_path / name / "zoo", (3, 1, 2)) for name in ("a", "b"))
    align_zoo(alone, "barycentre", certify="none")
    ended = cli("align", shared, "--to", "barycentre", "--certify", "none", "--on", f"ray://{cluster}")
    assert ended.code == 0 and "0 checkpoints derived in aligned-barycentre, 6 were there already" in ended.out, ended
    one, two = (np.asarray(ckptzoo.open(path)["fc.weight", "aligned-barycentre"]) for path in (alone, shared))
    np.testing.assert_array_equal(one, two)


@pytest.mark.exhaustive
def test_a_share_that_fails_says_why(cli: Any, cluster: str, tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (2,))
    np.save(tmp_path / "inputs.npy", np.zeros((2, 99), np.float32))
    ended = cli("derive", path, "--inputs", tmp_path / "inputs.npy", "--certify", "all", "--on", f"ray://{cluster}")
    assert ended.code != 0 and "a share of ckptzoo derive" in ended.err and "the same command goes on" in ended.err


def test_what_is_no_cluster(cli: Any, tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (2,))
    for value in ("slurm", "ray:", "ray://"):
        ended = cli("derive", path, "--on", value)
        assert ended.code == 2 and "expected ray or ray://HOST:PORT" in ended.err
    ended = cli("mmd", path, path, "--on", "ray")
    assert ended.code == 2 and "--saved" in ended.err


def test_a_node_without_the_folder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path.cwd()
    code, said = run_share(run, ["info", "x"], str(tmp_path / "nowhere"))
    assert code == 1 and "nodes need to share the folders" in said and Path.cwd() == here
    monkeypatch.chdir(tmp_path)
    code, said = run_share(run, ["info", "nothing"], str(tmp_path))
    assert code != 0 and "nothing" in said


@pytest.mark.exhaustive
def test_a_cluster_with_a_token(tmp_path: Path) -> None:
    """``ray start`` asks for the token in the user's folder; ``ray.init`` sends it where it is told to, and we say so."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("5" * 64)
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {**own, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--num-cpus=1",
        f"--port={port}",
        "--block",
    ]
    command += ["--include-dashboard=false", f"--object-store-memory={80 * 2**20}"]
    path = zoo_of(tmp_path / "zoo", (2, 1))
    derive_there = [sys.executable, "-m", "ckptzoo", "derive", str(path), "--on", f"ray://127.0.0.1:{port}"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as head:
        try:
            end = time.monotonic() + 60
            ended = subprocess.run(derive_there, env=environment, capture_output=True, text=True)
            while "refused" in ended.stderr and time.monotonic() < end:
                time.sleep(0.5)
                ended = subprocess.run(derive_there, env=environment, capture_output=True, text=True)
            environment["RAY_AUTH_MODE"] = "token"
            told = subprocess.run(derive_there, env=environment, capture_output=True, text=True)
        finally:
            head.terminate()
    assert ended.returncode == 2 and "Set RAY_AUTH_MODE=token where the cluster has a token" in ended.stderr
    assert told.returncode == 0 and "3 were there already" in told.stdout, told.stderr
