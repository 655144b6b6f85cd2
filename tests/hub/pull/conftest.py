"""Zoos to pull: a small one with variants, and one large enough to be interrupted."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive
from tests.support.hosted import Hosted, hosted, push
from tests.support.hub_zoos import files_of, zoo_of

REPO = "lab/zoo"
Publish = Callable[..., Hosted]
WIDE = ckptzoo.Architecture(
    "wide", (ckptzoo.Tensor("big.weight", (256, 1024)), ckptzoo.Tensor("other.weight", (64, 1024)))
)
"""4 checkpoints are a block of the first tensor, and 16 one of the second."""


@pytest.fixture(scope="session")
def derived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve OptuNets in three parts, in two gauges: one with weights, one with group elements alone."""
    path = zoo_of(tmp_path_factory.mktemp("derived") / "zoo", (5, 4, 3))
    derive(path, gauge="canonical", certify="none")
    derive(path, gauge="first-weight", store="element", certify="none")
    ckptzoo.compact(path)
    return path


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-four checkpoints of 1.25 MiB in two parts."""
    path = tmp_path_factory.mktemp("wide") / "zoo"
    rng = np.random.default_rng(3)
    writer = ckptzoo.create(path, arch=WIDE)
    for part in range(2):
        weights = {item.name: rng.standard_normal((12, *item.shape), np.float32) for item in WIDE.tensors}
        writer.add(weights, [{"id": f"{part}-{row}", "test_accuracy": row / 12} for row in range(12)])
        writer.commit()
    return path


@pytest.fixture
def publish(tmp_path: Path) -> Iterator[Callable[..., Hosted]]:
    """``publish(zoo, plan=...)``: a server that holds the zoo as ``lab/zoo``; the plan's faults come from then on."""
    with contextlib.ExitStack() as servers:

        def start(path: Path, **options: object) -> Hosted:
            server = servers.enter_context(hosted(tmp_path / "served", **options))  # pyright: ignore[reportArgumentType]
            server.api().create_repo(REPO, repo_type="dataset")
            push(server, files_of(path))
            return server

        yield start


def verified(path: Path) -> ckptzoo.Zoo:
    """Open a zoo, after checking that nothing is wrong in it."""
    assert [str(problem) for problem in ckptzoo.verify(path)] == []
    return ckptzoo.open(path)
