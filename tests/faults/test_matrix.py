"""The matrix: what users do, times what can go wrong.

A fault that passes costs no more than time; one that stays ends in an error that says what to do, within bounds, and
leaves what the same call can carry on. The judge is the server's ledger and the bytes of the zoo on this machine.
By default every kind of fault is met once, in one of both ways, by a reader or a writer, which take turns. With
``CKPTZOO_TESTS=all`` every cell is tried in both, every request of every operation meets every fault in turn, and more
seeds are tried.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ckptzoo.errors import ZooError
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.remote.retry import RetryPolicy
from tests.faults.bench import Bench, says_what_to_do, settled
from tests.faults.conftest import defaults
from tests.faults.counts import COUNTS
from tests.faults.operations import OPERATIONS, Case
from tests.support.effort import ALL
from tests.support.server_layers import FAULT_KINDS, FaultPlan, InjectedFault

NEVER = {
    "whole": {"push", "grow"},
    "short": {"push"},
    "wrong": {"push"},
    "stale": {"push"},
    "trickle": set[str](),
    "lost": {"open", "stream", "pull", "cut"},
    "conflict": {"open", "stream", "pull", "cut", "merge"},
}
"""What cannot happen: a push to a new repository reads no file, to one that is there none in ranges; readers write
nothing; a merge is no commit."""
CELLS = [(name, kind) for name in OPERATIONS for kind in FAULT_KINDS if name not in NEVER.get(kind, ())]
READERS = ("open", "stream", "pull", "cut")
WRITERS = ("push", "grow", "contribute", "merge")


def cells(turn: int) -> list[tuple[str, str]]:
    """Every cell in full; by default one for each second kind, from the one of this number on, of readers and writers."""
    if ALL:
        return CELLS
    chosen = list[tuple[str, str]]()
    for row, kind in enumerate(list(FAULT_KINDS)[turn::2]):
        names = (READERS, WRITERS)[(row + turn) % 2]
        able = [name for name in names if (name, kind) in CELLS] or [name for name, one in CELLS if one == kind]
        chosen.append((able[row % len(able)], kind))
    return chosen


BORNE = {"stale", "trickle"}
"""What costs nothing but time however long it lasts: no one here goes by an ETag, and a trickle is no silence."""
BOUND = 60.0
"""Seconds that no operation may exceed, whatever befalls it. Time is short here; see the fixture ``hurried``."""
SEEDS = range(12) if ALL else range(1)
pytestmark = pytest.mark.usefixtures("hurried")


def tried(
    bench: Bench,
    case: Case,
    plan: FaultPlan,
    key: tuple[str, str],
    policies: Sequence[RetryPolicy | HubRetryPolicy] = (),
) -> Exception | None:
    """Run a case under a plan, and judge what is there; returns the error, which is one that says what to do.

    The policies are the defaults while faults last; the call that carries on has time again.
    """
    injected: list[InjectedFault] = []
    found: Exception | None = None
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch, bench.misbehaving(plan, injected):
        for policy in policies:
            defaults(patch, policy)
        try:
            case.act()
        except ZooError as error:
            found = error
    took = time.monotonic() - began
    settled()
    COUNTS.runs[*key, "done" if found is None else type(found).__name__] += 1
    COUNTS.faults[key] += len(injected)
    COUNTS.requests.update((item.kind, item.operation) for item in injected)
    COUNTS.slowest[key[0]] = max(COUNTS.slowest.get(key[0], 0.0), took)
    assert took < BOUND
    if found is None:
        case.done()
    else:
        says_what_to_do(found, bench.server)
        case.failed()
        case.act()  # the same call, now that the network is well
        case.done()
    return found


def passing(kind: str, name: str) -> bool:
    """Whether a single fault has to cost nothing but time; a contributor who lost a race is told to try again."""
    return (name, kind) != ("contribute", "conflict")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "kind"), cells(0))
def test_faults_that_pass_cost_nothing_but_time(bench: Bench, tiny: Path, name: str, kind: str, seed: int) -> None:
    rate = (0.25, 0.1, 0.5)[seed % 3]
    limit = 1 if kind == "wrong" else 4  # bytes that come wrong twice running are taken for what is there
    plan = FaultPlan(seed=seed + len(name + kind), rate=rate, kinds=(kind,), limit=limit, wait=0.05)
    found = tried(bench, OPERATIONS[name](bench, tiny), plan, (name, kind))
    if passing(kind, name):
        assert found is None, found


@pytest.mark.parametrize(("name", "kind"), cells(1))
def test_faults_that_stay_end_in_an_error_that_says_what_to_do(bench: Bench, tiny: Path, name: str, kind: str) -> None:
    # a connection that is reset halfway brings bytes, and a second more for every 20,000 of them by default
    pace = {} if kind in BORNE else {"min_bytes_per_second": 10.0**6}
    # what has to end in an error ends soon; what is borne may take its time on a busy machine
    deadline = 10.0 if kind in BORNE else 0.4
    policies = (
        RetryPolicy(deadline=deadline, connection_deadline=deadline, first_pause=0.02, **pace),
        HubRetryPolicy(max_attempts=3, first_pause=0.01, read_timeout=2.0),
    )
    plan = FaultPlan(rate=1.0, kinds=(kind,), wait=0.02)
    found = tried(bench, OPERATIONS[name](bench, tiny), plan, (name, kind), policies)
    assert (found is None) == (kind in BORNE), found


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_every_request_meets_every_fault(bench: Bench, tiny: Path, name: str, kind: str) -> None:
    number, asked = 0, 1
    while number < asked:
        plan = FaultPlan(at=(number,), kinds=(kind,), wait=0.05)
        found = tried(bench, OPERATIONS[name](bench, tiny), plan, (name, kind))
        if passing(kind, name):
            assert found is None, (number, found)
        number, asked = number + 1, bench.asked if number == 0 else asked
