"""Every kind of fault, as a client sees it, and that the same seed gives the same faults."""

import http.client
import time
from pathlib import Path

import pytest

from ckptzoo.errors import UnknownNameError, ZooError
from tests.support.hosted import ZOO, Answer, Hosted, ask, commit_body, hosted, push
from tests.support.server_layers import FAULT_KINDS, FaultPlan

DATA = bytes(range(256)) * 40
COMMIT = f"/api/datasets/{ZOO}/commit/main"
LINES = commit_body(
    {"key": "header", "value": {"summary": "x"}}, {"key": "file", "value": {"path": "b.txt", "content": "b"}}
)


class Case:
    """A server with one file whose next requests meet a fault."""

    def __init__(self, server: Hosted) -> None:
        self.server = server
        server.api().create_repo(ZOO, repo_type="dataset")
        self.oid = push(server, {"a.safetensors": DATA})

    def plan(self, kind: str, operation: str, **options: object) -> None:
        self.server.faults.plan = FaultPlan(kinds=(kind,), operations=(operation,), rate=1.0, wait=0.3, **options)

    def blob(self, **headers: str) -> Answer:
        """The file's bytes, from its signed address."""
        found = ask(self.server, "GET", f"/datasets/{ZOO}/resolve/main/a.safetensors")
        return ask(self.server, "GET", found.headers["location"], role=None, **headers)

    def commit(self) -> Answer:
        return ask(self.server, "POST", COMMIT, LINES)

    def head(self) -> str:
        self.server.faults.plan = FaultPlan()
        return ask(self.server, "GET", f"/api/datasets/{ZOO}").json()["sha"]


@pytest.fixture
def case(server: Hosted) -> Case:
    return Case(server)


def test_without_a_plan_nothing_happens(case: Case) -> None:
    assert case.blob().body == DATA and case.server.faults.injected == []


def test_short(case: Case) -> None:
    case.plan("short", "blob")
    assert case.blob().body == DATA[: len(DATA) // 2]
    found = case.blob(Range="bytes=10-29")
    assert (found.status, found.body, found.headers["content-range"]) == (206, DATA[10:20], f"bytes 10-29/{len(DATA)}")


def test_whole(case: Case) -> None:
    case.plan("whole", "blob")
    found = case.blob(Range="bytes=10-29")
    assert (found.status, found.body) == (200, DATA) and "content-range" not in found.headers
    assert case.blob().status == 200 and len(case.server.faults.injected) == 1


def test_wrong(case: Case) -> None:
    case.plan("wrong", "blob")
    body = case.blob().body
    assert len(body) == len(DATA) and sum(a != b for a, b in zip(body, DATA, strict=True)) == 1


def test_stale(case: Case) -> None:
    etag = case.blob().headers["etag"]
    case.plan("stale", "blob")
    found = case.blob()
    assert found.body == DATA and found.headers["etag"] != etag


def test_expired(case: Case) -> None:
    case.plan("expired", "blob", limit=1)
    assert case.blob().status == 403 and case.blob().status == 200


def test_limited(case: Case) -> None:
    case.plan("limited", "blob")
    case.server.faults.plan = FaultPlan(kinds=("limited",), rate=1.0, wait=7)
    found = ask(case.server, "GET", "/api/datasets")
    assert (found.status, found.headers["ratelimit"]) == (429, '"resolvers";r=0;t=7')


def test_broken(case: Case) -> None:
    case.plan("broken", "commit")
    assert [case.commit().status for _ in range(4)] == [500, 502, 503, 504]
    assert case.head() == case.oid


def test_reset_in_the_middle(case: Case) -> None:
    case.plan("reset", "blob")
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        case.blob()


def test_reset_of_an_answer_without_a_body(case: Case) -> None:
    case.plan("reset", "resolve")
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        case.blob()


def test_lost(case: Case) -> None:
    case.plan("lost", "commit")
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        case.commit()
    assert case.head() != case.oid and len(case.server.request_log.acknowledged) == 1


def test_stall(case: Case) -> None:
    case.plan("stall", "commit")
    start = time.monotonic()
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        case.commit()
    assert time.monotonic() - start >= 0.3 and case.head() == case.oid


def test_trickle(case: Case) -> None:
    case.plan("trickle", "blob")
    start = time.monotonic()
    assert case.blob().body == DATA and time.monotonic() - start >= 0.25


def test_conflict(case: Case) -> None:
    case.plan("conflict", "commit")
    assert case.commit().status == 412 and case.head() == case.oid


def test_every_kind_has_its_test() -> None:
    tests = {name.removeprefix("test_").split("_")[0] for name in globals() if name.startswith("test_")}
    assert set(FAULT_KINDS) <= tests


def statuses(root: Path, plan: FaultPlan) -> tuple[list[int], list[tuple[int, str, str]]]:
    with hosted(root, plan=plan) as server:
        found = [ask(server, "GET", "/api/datasets").status for _ in range(40)]
        return found, [(fault.number, fault.kind, fault.operation) for fault in server.faults.injected]


def test_the_seed_decides(tmp_path: Path) -> None:
    plans = [FaultPlan(seed=seed, rate=0.3, kinds=("broken", "limited")) for seed in (1, 1, 2)]
    first, again, other = (statuses(tmp_path / str(at), plan) for at, plan in enumerate(plans))
    assert first == again != other
    assert {kind for _, kind, _ in first[1]} == {"broken", "limited"} and 4 <= len(first[1]) <= 20
    assert [at for at, status in enumerate(first[0]) if status != 200] == [at for at, _, _ in first[1]]


def test_the_numbers_may_be_given(tmp_path: Path) -> None:
    found, injected = statuses(tmp_path, FaultPlan(at=(0, 3), kinds=("broken",), operations=("info",)))
    assert [at for at, status in enumerate(found) if status != 200] == [0, 3] == [number for number, _, _ in injected]


def test_plans_name_what_there_is() -> None:
    for wrong in ({"kinds": ("resets",)}, {"operations": ("blobs",)}):
        with pytest.raises(UnknownNameError):
            FaultPlan(**wrong)
    with pytest.raises(ZooError, match="expected"):
        FaultPlan(rate=2)


def test_the_client_gets_through(tmp_path: Path) -> None:
    """The client library tries again by itself what the protocol lets it try again."""
    plan = FaultPlan(at=(0,), kinds=("broken",), operations=("tree",))
    with hosted(tmp_path, plan=plan) as server:
        server.api().create_repo(ZOO, repo_type="dataset")
        names = [entry.path for entry in server.api().list_repo_tree(ZOO, repo_type="dataset")]
        assert names == [".gitattributes"] and len(server.faults.injected) == 1
