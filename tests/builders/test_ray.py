"""``work --on ray``: a cluster of two nodes on this machine, whose workers, nodes and driver are killed."""

import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import ckptzoo
from builders import ray_work
from builders.__main__ import run
from builders.build import build
from builders.checkpointing import WORK_FOLDER
from builders.recipe import Recipe
from builders.shared import BuildStatus, merge, plan, status
from ckptzoo.errors import MissingExtraError, ZooError
from tests.builders.test_shared import assert_same
from tests.support.effort import ALL

pytest.importorskip("ray", reason="the extra ray is not installed")

TOY = Recipe.load("toy").shortened(2)
QUIET = Console(file=io.StringIO())
COMMAND = """
import sys
from builders.__main__ import run
sys.exit(run(sys.argv[1:]))
"""


class TwoNodes:
    """A cluster of a head and another node, each with one core; nodes can be killed and replaced."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        settings = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
        self._settings = settings
        self._cluster: Any = Cluster(initialize_head=True, head_node_args={**settings, "include_dashboard": False})
        self.address: str = self._cluster.address
        self._node = self._cluster.add_node(**settings)

    def replace_node(self) -> None:
        """Kill the other node with its workers, and start a new one."""
        self._cluster.remove_node(self._node, allow_graceful=False)
        self._node = self._cluster.add_node(**self._settings)

    def workers(self) -> list[int]:
        """The processes that train, on both nodes."""
        raylets = {node.all_processes["raylet"][0].process.pid for node in self._cluster.list_all_nodes()}
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                name = (path / "cmdline").read_bytes()
                fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:  # it has ended
                continue
            if name.startswith(b"ray::train_unit") and int(fields[1]) in raylets and fields[0] != b"Z":
                found.append(int(path.name))
        return found

    def close(self) -> None:
        """End all its processes."""
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    cluster = TwoNodes()
    yield cluster
    cluster.close()


def on(nodes: TwoNodes, path: Path, recipe: Recipe = TOY, **options: Any) -> Any:
    return ray_work.work(recipe, path, address=nodes.address, console=QUIET, **options)


def the_status(path: Path) -> BuildStatus:
    (found,) = status(path)
    return found


def test_the_bits_of_a_build(nodes: TwoNodes, tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    build(TOY, tmp_path / "whole", members=8, unit_size=2, keep_steps=(1,), console=QUIET)
    plan(TOY, path, members=8, unit_size=2, keep_steps=(1,))
    assert on(nodes, path, share=(0, 4)).units == 1
    done = on(nodes, path)
    assert (done.units, done.members, done.left, done.failed) == (3, 6, 0, ())
    assert {unit.state for unit in the_status(path).units} == {"finished"}
    names = {item.name.partition(".")[2] for item in (path / WORK_FOLDER / TOY.prefix).iterdir()}
    assert names == {"", "json", "kept.safetensors"}  # no claim, no state
    merge(TOY, path)
    assert_same(path, ckptzoo.open(tmp_path / "whole"))
