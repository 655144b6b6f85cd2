"""Whatever a network does to a pull, no wrong byte comes into the zoo."""

from pathlib import Path

import pytest

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.pull import pull
from tests.hub.pull.conftest import REPO, Publish, verified
from tests.support.effort import ALL
from tests.support.hub_zoos import files_of
from tests.support.server_layers import FaultPlan

KINDS = ("short", "whole", "wrong", "stale", "expired", "limited", "broken", "reset", "trickle")


EVERY = [*((kind, None) for kind in KINDS), *((kind, ["other"]) for kind in ("wrong", "short", "reset"))]


@pytest.mark.parametrize(
    ("kind", "layers"),
    # by default tests/faults/test_matrix.py samples the others, operations "pull" and "cut"
    EVERY if ALL else [("reset", None), ("wrong", ["other"])],
)
def test_no_fault_of_the_network_comes_into_the_zoo(
    wide: Path, publish: Publish, tmp_path: Path, kind: str, layers: list[str] | None
) -> None:
    at = (0,) if kind == "wrong" else (0, 1)  # a block that is wrong twice is refused
    plan = FaultPlan(at=at, kinds=(kind,), operations=("blob",), wait=0.3)
    server = publish(wide, plan=plan)
    pull(REPO, tmp_path / "got", endpoint=server.url, layers=layers)
    assert [item.kind for item in server.faults.injected] == [kind for _ in at]
    verified(tmp_path / "got")
    if layers is None:
        assert files_of(tmp_path / "got") == files_of(wide)


@pytest.mark.parametrize("layers", [None, ["other"]])
def test_a_server_that_is_always_wrong_brings_nothing_into_the_zoo(
    wide: Path, publish: Publish, tmp_path: Path, layers: list[str] | None
) -> None:
    plan = FaultPlan(rate=1.0, kinds=("wrong",), operations=("blob",))
    server = publish(wide, plan=plan)
    with pytest.raises(IntegrityError, match="sha256"):
        pull(REPO, tmp_path / "got", endpoint=server.url, layers=layers)
    assert not list((tmp_path / "got").glob("parts/*"))
    assert verified(tmp_path / "got").ids == []
