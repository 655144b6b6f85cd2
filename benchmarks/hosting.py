"""What a hub asks of its server besides transfers: pages, decisions, garbage collection and backups, under load.

A server is filled with zoos, each with a card, and with blobs, half of which a removed repository leaves behind. Then,
one after the other: pages are asked for on kept connections, ``may`` decides, ``gc`` removes the garbage and ``backup``
copies the database, both while a client uploads and commits. Everything runs on this machine.
"""

import argparse
import hashlib
import http.client
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, figure, write
from ckptzoo.server.access import CONTRIBUTE, ROLES, WRITE, AccessTarget, Subject, TokenLimits, may
from ckptzoo.server.service import Service, database_of
from ckptzoo.server.store import repositories
from ckptzoo.server.store.accounts import subject_of
from ckptzoo.server.store.backup import DATABASE, back_up
from ckptzoo.server.store.commits import MAIN, History
from ckptzoo.server.store.garbage import Collected, collect
from ckptzoo.server.store.git_objects import File, Trees
from ckptzoo.server.store.tokens import make_token

ROOT = Path(__file__).resolve().parent.parent
SERVE = "import sys; from ckptzoo.cli.serve import serve; serve(sys.argv[1:])"
CARD = ROOT / "cards/mnist-optunet/README.md"
PER_REPOSITORY = 1000
"""Blobs of one folder."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoos", type=int, default=1000, help="repositories with a card (1000)")
    parser.add_argument("--blobs", type=int, default=100_000, help="files, half of them garbage (100000)")
    parser.add_argument("--requests", type=int, default=300, help="of each page (300)")
    parser.add_argument("--folder", type=Path, help="where to make the scratch folder (default: zoos/)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "hosting.json", help="where figures go")
    return parser.parse_args()


def main() -> None:
    """Fill a server, measure, print a table, write the JSON."""
    chosen = arguments()
    scratch = chosen.folder or ROOT / "zoos"
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-hosting-", dir=scratch))
    try:
        token = fill(folder / "hub", chosen.zoos, chosen.blobs)
        figures: dict[str, Any] = {"settings": {name: getattr(chosen, name) for name in ("zoos", "blobs", "requests")}}
        with served(folder / "hub") as address:
            figures["pages"] = {name: times(address, path, chosen.requests) for name, path in PAGES.items()}
            figures["may"] = decisions(folder / "hub")
            with Uploading(address, token) as alone:
                time.sleep(3)
            with Uploading(address, token) as beside_backup:
                figures["backup"] = measured_backup(folder)
                time.sleep(1)
            with Uploading(address, token) as beside_gc:
                figures["gc"] = measured_collection(folder / "hub")
        figures["uploads"] = {
            "alone": alone.summary(),
            "beside a backup": beside_backup.summary(),
            "beside gc": beside_gc.summary(),
        }
        show(figures)
        write(chosen.json, list(figures_of(figures)), figures)
    finally:
        shutil.rmtree(folder)


def figures_of(figures: dict[str, Any]) -> Iterator[Figure]:
    """Pages, decisions, and what upkeep takes and leaves to uploads."""
    for name, times in figures["pages"].items():
        row = f"{name} ({figures['settings']['zoos']:,} zoos)" if name == "listing" else name
        for key, column in (("first", "the first time"), ("p50", "median"), ("p95", "95 % within")):
            yield figure("pages", row, column, [times[key] / 1e3], "s")
    for name, microseconds in figures["may"].items():
        yield figure("upkeep", f"one decision about a role, {name}", "time", [microseconds / 1e6], "s")
    saved, collected = figures["backup"], figures["gc"]
    yield figure(
        "upkeep", f"backup of the database, {saved['database bytes'] / 1e6:.0f} MB", "time", [saved["database"]], "s"
    )
    yield figure("upkeep", f"backup with {saved['blobs']:,} linked files", "time", [saved["all"]], "s")
    yield figure("upkeep", f"collecting {collected['files']:,} files", "time", [collected["seconds"]], "s")
    for name, found in figures["uploads"].items():
        yield figure("upkeep", f"the longest request of an upload, {name}", "time", [found["max"] / 1e3], "s")


PAGES = {
    "listing": "/",
    "listing, search": "/?q=net-7&arch=optunet",
    "namespace": "/lab1",
    "card": "/datasets/lab0/net-0",
    "files": "/datasets/lab0/net-0/tree/main",
    "sign-in": "/-/sign-in",
}


def fill(root: Path, zoos: int, blobs: int) -> str:
    """Make zoos with cards, and repositories of many small files, half of which are removed; returns a token."""
    service = Service(root)
    card = CARD.read_text()
    for number in range(zoos):
        owner, name = f"lab{number % 20}", f"net-{number}"
        text = card.replace("OptuNets on MNIST", f"OptuNets on MNIST, run {number}", 1)
        store(service, f"{owner}/{name}", {"README.md": text.encode()})
    for number in range(0, blobs, PER_REPOSITORY):
        files = {f"{at:04}.txt": f"{number + at}".encode() for at in range(min(PER_REPOSITORY, blobs - number))}
        store(service, f"many/{number}", files)
    with service.database.writing() as connection:
        for number in range(0, blobs, 2 * PER_REPOSITORY):
            found = repositories.find(connection, "dataset", f"many/{number}")
            assert found is not None
            repositories.remove(connection, found)
        token = make_token(connection, "lab0", "write")
    service.close()
    return token


def store(service: Service, name: str, files: dict[str, bytes]) -> None:
    """One repository with one commit; without flushing each blob to the disk, as a real commit does."""
    for data in files.values():
        path = service.blobs.path(hashlib.sha256(data).hexdigest())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with service.database.writing() as connection:
        repository = repositories.create(connection, "dataset", name, private=False, author="lab0")
        trees, history = Trees(connection, repository.id), History(connection, repository.id)
        stored = {path: File.small(data) for path, data in files.items()}
        for file in stored.values():
            trees.add_file(file)
        head = history.resolve(MAIN)
        tree = trees.changed(head.tree, {path: file.oid for path, file in stored.items()})
        history.point(MAIN, history.add(tree, (head.oid,), author="lab0", title="Add files", message=""))


@contextmanager
def served(root: Path) -> Iterator[str]:
    """The address of ``ckptzoo serve`` in a process of its own."""
    command = [sys.executable, "-c", SERVE, "--root", str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def times(address: str, path: str, count: int) -> dict[str, float]:
    """Milliseconds of the first request of a page, and of the others on the same connection."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    taken = [milliseconds(lambda: page(connection, path)) for _ in range(count + 1)]
    connection.close()
    return {"first": taken[0], "p50": statistics.median(taken[1:]), "p95": percentile(taken[1:], 95)}


def page(connection: http.client.HTTPConnection, path: str) -> None:
    """One page, whole.

    Raises
    ------
    ValueError
        The answer is not the page.
    """
    connection.request("GET", path, headers={"Accept": "text/html"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200 or b"</html>" not in text:
        raise ValueError(f"{path}: expected a page, got {answer.status}.")


def milliseconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def percentile(values: list[float], percent: int) -> float:
    """As statistics.quantiles has it."""
    return statistics.quantiles(values, n=100)[percent - 1] if len(values) > 1 else values[0]


def decisions(root: Path) -> dict[str, float]:
    """Microseconds of a decision, and of one with what the account may read from the database."""
    namespaces = {f"lab{number}": ROLES[number % 4] for number in range(100)}
    subject = Subject("ada", {**namespaces, "ada": "admin"}, {1: WRITE}, TokenLimits(CONTRIBUTE, "lab1"))
    target = AccessTarget("lab1/zoo", 1, private=True)
    count = 20_000
    pure = milliseconds(lambda: [may(subject, WRITE, target) for _ in range(count)])
    database = database_of(root)
    with database.reading() as connection:
        asked = milliseconds(lambda: [may(subject_of(connection, "lab0"), WRITE, target) for _ in range(count // 10)])
    database.close()
    return {"pure": 1e3 * pure / count, "with the account's roles": 1e4 * asked / count}


class Uploading:
    """A client that uploads a file and commits it, again and again, and notes how long each request takes."""

    def __init__(self, address: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.taken: list[float] = []
        self.problem: Exception | None = None

    def __enter__(self) -> "Uploading":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._connection.close()
        if self.problem is not None:
            raise self.problem

    def summary(self) -> dict[str, float]:
        """Milliseconds of the requests: half and nearly all of them within, and the longest."""
        taken = self.taken
        return {
            "requests": len(taken),
            "p50": statistics.median(taken),
            "p99": percentile(taken, 99),
            "max": max(taken),
        }

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self._upload(f"{time.time_ns()}".encode() * 1000)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.problem = error

    def _upload(self, data: bytes) -> None:
        oid, repository = hashlib.sha256(data).hexdigest(), "datasets/lab0/net-0"
        batch = {"operation": "upload", "objects": [{"oid": oid, "size": len(data)}]}
        answer = self._ask("POST", f"/{repository}.git/info/lfs/objects/batch", json.dumps(batch).encode())
        action = json.loads(answer)["objects"][0].get("actions")
        if action is not None:
            place = urlsplit(action["upload"]["href"])
            self._ask("PUT", f"{place.path}?{place.query}", data)
        file = {"key": "lfsFile", "value": {"path": f"uploads/{oid[:2]}.bin", "algo": "sha256", "oid": oid}}
        lines = ({"key": "header", "value": {"summary": "Add a file"}}, file)
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self._ask("POST", f"/api/{repository}/commit/main", body)

    def _ask(self, method: str, path: str, body: bytes) -> bytes:
        began = time.perf_counter()
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        data = answer.read()
        self.taken.append(1e3 * (time.perf_counter() - began))
        if answer.status != 200:
            raise ValueError(f"{method} {path}: expected 200, got {answer.status}: {data[:200]!r}")
        return data


def measured_backup(folder: Path) -> dict[str, float]:
    """Seconds of the database's copy, by the first call of the progress, and of the whole backup; bytes."""
    began, first = time.perf_counter(), list[float]()

    def progress(done: int, total: int) -> None:
        if not first:
            first.append(time.perf_counter() - began)

    copied = back_up(folder / "hub", folder / "backup", progress)
    nbytes = (folder / "backup" / DATABASE).stat().st_size
    return {"database": first[0], "all": time.perf_counter() - began, "blobs": copied.blobs, "database bytes": nbytes}


def measured_collection(root: Path) -> dict[str, Any]:
    """Seconds, and what was removed."""
    database = database_of(root)
    began = time.perf_counter()
    # what was uploaded a second ago stays, as its commit may be on the way
    found: Collected = collect(root, database, grace=timedelta(seconds=1))
    seconds = time.perf_counter() - began
    database.close()
    return {"seconds": seconds, **vars(found)}


def show(figures: dict[str, Any]) -> None:
    """Two tables and two lines."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    for title, name, columns in (
        (f"page, {figures['settings']['zoos']:,} zoos", "pages", ("first", "p50", "p95")),
        ("requests of an upload", "uploads", ("requests", "p50", "p99", "max")),
    ):
        table = Table(box=None, pad_edge=False)
        table.add_column(title)
        for column in columns:
            table.add_column(column if column == "requests" else f"{column} ms", justify="right")
        for row, values in figures[name].items():
            table.add_row(row, *(f"{values[column]:,.{0 if column == 'requests' else 1}f}" for column in columns))
        console.print(table)
    backup, collected = figures["backup"], figures["gc"]
    console.print("may: " + ", ".join(f"{value:.1f} us {name}" for name, value in figures["may"].items()))
    console.print(
        f"backup: database of {backup['database bytes'] / 1e6:.0f} MB {backup['database']:.2f} s, "
        f"with {backup['blobs']:,} linked blobs {backup['all']:.1f} s"
    )
    console.print(f"gc: {collected['blobs']:,} blobs and {collected['files']:,} files {collected['seconds']:.1f} s")


if __name__ == "__main__":
    main()
