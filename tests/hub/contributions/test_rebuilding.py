"""Contributed members that a review trains again, in a process that can do little else."""

import contextlib
import dataclasses
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from builders.build import build
from builders.recipe import Recipe
from ckptzoo.hub.contributions import rebuilding as confined
from ckptzoo.hub.contributions.contribute import contribute
from ckptzoo.hub.contributions.rebuilding import ConfinedRebuild, check_of, refuse_outside
from ckptzoo.hub.contributions.review import Review, review
from ckptzoo.hub.push import push
from ckptzoo.loader import rebuilding
from tests.support.builds import QUIET
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import downloaded
from tests.support.untrusted_files import card_of

TOY = Recipe.load("toy").shortened(1)


@pytest.fixture(autouse=True)
def declared() -> None:
    if not any(item.group == rebuilding.GROUP for item in metadata.distribution("ckptzoo").entry_points):
        pytest.fail("the installed distribution declares no trainer: install it again (pip install -e .)")


def reviewed(server: Hosted, zoo: Path, folder: Path, **options: object) -> Review:
    """The review of a pull request with the members of a zoo."""
    made = contribute([zoo], to=ZOO, card=card_of(folder), endpoint=server.url, token=server.tokens["contribute"])
    assert made.number is not None, made
    return review(ZOO, made.number, endpoint=server.url, token=server.tokens["write"], **options)  # type: ignore[arg-type]


@pytest.mark.exhaustive
def test_members_are_trained_again_and_marked(server: Hosted, tmp_path: Path) -> None:
    build(TOY, tmp_path / "zoo", members=2, console=QUIET)
    push(tmp_path / "zoo", ZOO, endpoint=server.url, token=server.tokens["write"])
    build(TOY, tmp_path / "more", members=2, first_seed=50, console=QUIET)
    found = reviewed(server, tmp_path / "more", tmp_path, rebuild=1, merge=True)
    checks = {check.name: check for check in found.checks}
    assert checks["rebuilt"].outcome == "passed", checks["rebuilt"]
    assert "1 of 1 member (drawn from 2" in checks["rebuilt"].detail
    assert found.merged is not None
    down = downloaded(server, tmp_path)
    (mark,) = ckptzoo.open(down).reproduced
    assert len(mark.ids) == 1 and mark.ids[0].startswith("stranger/toy-") and ckptzoo.verify(down) == []
    assert (
        "**Trained again**" in (down / "README.md").read_text()
        or "## Trained again" in (down / "README.md").read_text()
    )
    # the weights of another training under the row of one
    build(TOY, tmp_path / "wrong", members=1, first_seed=60, console=QUIET)
    opened = ckptzoo.open(tmp_path / "wrong")
    rows = [{**row, "seed": 61} for row in opened.metadata.to_pylist()]
    weights = {name: np.array(opened[name][:]) for name in opened.arch.names}
    ckptzoo.create(tmp_path / "lie", arch=opened.arch, card=ckptzoo.Card("lie"), symmetry=opened.symmetry)
    with ckptzoo.append(tmp_path / "lie") as writer:
        writer.add(weights, [{key: value for key, value in row.items() if key != "finite"} for row in rows])
    check = check_of(ckptzoo.open(tmp_path / "lie").rebuild(3))
    assert check.outcome == "failed" and "weights of" in check.detail


@pytest.mark.exhaustive
def test_the_process_is_bounded_and_says_what_it_could_not_do(tmp_path: Path) -> None:
    build(TOY, tmp_path / "toy", members=1, console=QUIET)
    check, rebuilt = ConfinedRebuild(1, None, max_bytes=2**10).carry_out(tmp_path / "toy")
    assert check.outcome == "not done" and "memory" in check.detail
    opened = ckptzoo.open(tmp_path / "toy")
    (row,) = opened.metadata.to_pylist()
    slow = dataclasses.replace(TOY, name="slow", epochs=10**6)
    extra = {**json.loads(row["extra"]), **slow.facts()}
    row |= {"recipe": "slow", "recipe_digest": slow.digest, "step": slow.steps, "extra": json.dumps(extra)}
    ckptzoo.create(tmp_path / "slow", arch=opened.arch, card=ckptzoo.Card("slow"))
    with ckptzoo.append(tmp_path / "slow") as writer:
        weights = {name: np.array(opened[name][:]) for name in opened.arch.names}
        writer.add(weights, [{key: value for key, value in row.items() if key != "finite"}])
    check, rebuilt = ConfinedRebuild(1, None, max_seconds=1).carry_out(tmp_path / "slow")
    assert check.outcome == "not done" and "time of training" in check.detail and rebuilt is not None


@pytest.mark.parametrize(
    ("name", "reach"),
    [
        ("socket.connect", lambda: socket.create_connection(("127.0.0.1", 9))),
        ("subprocess.Popen", lambda: subprocess.run(["true"])),
        ("socket.getaddrinfo", lambda: socket.getaddrinfo("localhost", 80)),
        ("socket.__new__", lambda: socket.socket().close()),
        ("socket.gethostbyaddr", lambda: socket.gethostbyaddr("127.0.0.1")),
        ("socket.getnameinfo", lambda: socket.getnameinfo(("127.0.0.1", 9), socket.NI_NUMERICHOST)),
        ("socket.sendmsg", lambda: _send_message()),
    ],
)
def test_its_hook_refuses_connections_and_programs(name: str, reach: Callable[[], object]) -> None:
    """In this process, whose hooks cannot be taken away: the hook is called with what Python would tell it."""
    told: list[tuple[str, tuple[object, ...]]] = []
    listening = [True]
    sys.addaudithook(lambda event, arguments: told.append((event, arguments)) if listening[0] else None)
    with contextlib.suppress(OSError):
        reach()
    listening[0] = False
    with pytest.raises(PermissionError, match="is refused in the process"):
        for event, arguments in told:
            if event == name:
                refuse_outside(event, arguments)


def _send_message() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.sendmsg([b""], [], 0, ("127.0.0.1", 9))


def test_a_process_that_gives_no_answer_says_why_and_stops_the_merge(
    server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(TOY, tmp_path / "zoo", members=1, console=QUIET)
    push(tmp_path / "zoo", ZOO, endpoint=server.url, token=server.tokens["write"])
    build(TOY, tmp_path / "more", members=1, first_seed=50, console=QUIET)
    monkeypatch.setattr(confined, "_ANSWER_BYTES", 100)
    monkeypatch.setattr(confined, "_CODE", "print('x' * 200)")
    found = reviewed(server, tmp_path / "more", tmp_path, rebuild=1, merge=True)
    (check,) = [check for check in found.checks if check.name == "rebuilt"]
    assert check.outcome == "not done" and "an answer of more than" in check.detail
    assert found.passed and found.merged is None and "not merged: the check 'rebuilt'" in found.notes[0]


@pytest.mark.exhaustive
def test_a_zoo_that_is_not_there_is_no_crash(tmp_path: Path) -> None:
    check, rebuilt = ConfinedRebuild(1, None).carry_out(tmp_path / "nothing")
    assert check.outcome == "not done" and rebuilt is None
