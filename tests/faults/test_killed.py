"""kill -9 at any moment, of the client, the server, and both; the same call is repeated until it is done."""

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.bench import Bench
from tests.faults.counts import COUNTS
from tests.faults.operations import OPERATIONS, Case
from tests.faults.processes import Client, Server
from tests.support.effort import ALL

SEEDS = range(10) if ALL else range(1)
KILLS = 3 if ALL else 2
KILLED = [(name, both) for both in (False, True) for name in ("push", "grow", "contribute", "merge")]
"""What writes, and whether the client is killed with the server; by default each in one way."""
END = 60.0


def client(case: Case, bench: Bench, *, hurried: bool = True) -> Client:
    """The case's call in a process of its own; all tries share a cache."""
    return Client(case.call(), cache=bench.folder / case.repo, temporary=bench.place(), hurried=hurried)


def reached(case: Case, count: int, running: Client) -> None:
    """Wait until the server has answered so many requests of a case, or the client has ended."""
    until = time.monotonic() + END
    while len(case.server.request_log.entries) - case.since < count and running.is_alive:
        assert time.monotonic() < until
        time.sleep(0.001)


def uploads(case: Case) -> Counter[str]:
    """Files that the server has acknowledged, by their sha256."""
    mine = case.server.request_log.entries[case.since :]
    whole = [
        item.path for item in mine if item.operation in ("upload", "join") and item.status == 200 and item.finished
    ]
    return Counter(path.split("/")[2] for path in whole)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["pull", "cut", "push", "grow", "contribute", "merge"])
@pytest.mark.sampled(6)
def test_a_client_that_is_killed_is_carried_on_by_the_same_call(bench: Bench, tiny: Path, name: str, seed: int) -> None:
    rng = random.Random(f"{name}{seed}")
    case = OPERATIONS[name](bench, tiny)
    reach = 0
    for _ in range(KILLS):
        running = client(case, bench)
        reach += rng.randint(1, 9)
        reached(case, reach, running)
        time.sleep(rng.uniform(0.0, 0.01))
        COUNTS.kills[f"client during {name}"] += running.kill()
        case.failed()
    assert client(case, bench).result(END) == "done"
    assert max(uploads(case).values(), default=1) == 1
    case.done()


@pytest.fixture
def apart(tmp_path: Path) -> Bench:
    """A server in a process of its own."""
    return Bench(Server(tmp_path / "served"), tmp_path)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "both"), KILLED if ALL else [("push", True), ("grow", False), ("contribute", True), ("merge", False)]
)
@pytest.mark.sampled(4)
def test_a_server_that_is_killed_keeps_what_it_acknowledged(
    apart: Bench, tiny: Path, name: str, both: bool, seed: int
) -> None:
    rng = random.Random(f"{name}{seed}{both}")
    server: Server = apart.server  # pyright: ignore[reportAssignmentType]
    case = OPERATIONS[name](apart, tiny)
    reach = 0
    for _ in range(KILLS):
        running = client(case, apart)
        reach += rng.randint(1, 12)
        reached(case, reach, running)
        time.sleep(rng.uniform(0.0, 0.01))
        server.kill()
        if both:
            COUNTS.kills[f"client and server during {name}"] += 1 + running.kill()
        else:
            COUNTS.kills[f"server during {name}"] += 1
            told = running.result(END)
            assert told == "done" or ("expected" in told and "got" in told), told
        server.start()
        acknowledged = {
            item.oid for item in server.request_log.acknowledged if item.repository == f"datasets/{case.repo}"
        }
        for commit in acknowledged:
            assert server.api().repo_info(case.repo, repo_type="dataset", revision=commit).sha == commit
        if name != "push" or acknowledged:
            case.failed()
    assert client(case, apart).result(END) == "done"
    assert max(uploads(case).values(), default=1) == 1
    case.done()
    server.kill()


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", range(5, 20) if ALL else (8,))
def test_a_server_that_comes_back_within_seconds_costs_nothing_but_time(apart: Bench, tiny: Path, count: int) -> None:
    """With the default policies, the same call goes on."""
    server: Server = apart.server  # pyright: ignore[reportAssignmentType]
    case = OPERATIONS["push"](apart, tiny)
    running = client(case, apart, hurried=False)
    reached(case, count, running)
    server.kill()
    COUNTS.kills["server during push"] += 1
    time.sleep(0.5)
    server.start()
    assert running.result(END) == "done"
    case.on_their_way = 5  # which the library sends at once
    case.done()
    server.kill()
