"""Range requests to ``ckptzoo serve``, beside a plain static file server of the same library, in one run.

A zoo is pushed to the server, and its largest shard lies in the folder of the other. Many connections at once, each
kept open, ask for pieces of it at random places, one after the other; servers take turns. Everything runs on this
machine, the client too, so that figures are for comparison: what the client takes, both bear.
"""

import argparse
import asyncio
import http.client
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from rich.console import Console
from rich.table import Table

import ckptzoo
from benchmarks.figures import Figure, figure, turns, write
from ckptzoo.hub.push import push
from ckptzoo.schema.architecture import Architecture, Tensor

ROOT = Path(__file__).resolve().parent.parent
ZOO = "lab/zoo"
SERVE = "import sys; from ckptzoo.cli.serve import serve; serve(sys.argv[1:])"


@dataclass
class Target:
    """A server and what was measured of it.

    Parameters
    ----------
    name, address, process
        the server.
    path
        of the file that is read.
    rates, p50, p99
        for each repeat requests a second, and seconds of a request.
    cpu
        processor seconds of the server for a request, in each repeat.
    resident
        bytes of the process behind each repeat.
    """

    name: str
    address: str
    process: subprocess.Popen[str]
    path: str
    rates: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The figures."""
        return {name: getattr(self, name) for name in ("name", "rates", "p50", "p99", "cpu", "resident")}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=200, help="at once (200)")
    parser.add_argument("--seconds", type=float, default=5, help="of each repeat (5)")
    parser.add_argument("--repeats", type=int, default=5, help="of each server (5)")
    parser.add_argument("--piece", type=int, default=2**16, help="bytes of a request (65536)")
    parser.add_argument("--megabytes", type=int, default=256, help="of the file (256)")
    parser.add_argument(
        "--beside", type=Path, metavar="CHECKOUT", help="another checkout, whose server is measured too"
    )
    parser.add_argument("--folder", type=Path, help="where to make the scratch folder (default: zoos/)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "server.json", help="where figures go")
    return parser.parse_args()


def main() -> None:
    """Start the servers, measure them in turns, print a table, write the JSON."""
    chosen = arguments()
    scratch = chosen.folder or ROOT / "zoos"
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-server-", dir=scratch))
    try:
        with servers(folder, chosen.megabytes * 2**20, chosen.beside) as (targets, size):
            for turn, number in enumerate(turns(range(len(targets)), chosen.repeats)):
                measure(targets[number], size, chosen, seed=turn // len(targets))
            show(targets, chosen)
            settings = {name: getattr(chosen, name) for name in ("connections", "seconds", "piece", "megabytes")}
            content = {"settings": settings, "servers": [target.to_json() for target in targets]}
            write(chosen.json, list(figures(targets)), content)
    finally:
        shutil.rmtree(folder)


@contextmanager
def servers(folder: Path, nbytes: int, beside: Path | None) -> Iterator[tuple[list[Target], int]]:
    """The servers with the same file, and its size.

    Parameters
    ----------
    beside
        Another checkout of this project, whose server is a third one.
    """
    arch = Architecture("wide", (Tensor("weight", (2**18,)),))
    with ckptzoo.create(folder / "zoo", arch=arch) as writer:
        for number in range(max(1, nbytes // arch.nbytes)):
            weights = np.random.default_rng(number).random((1, 2**18), np.float32)
            writer.add({"weight": weights}, [{"id": f"net-{number}"}])
    shard = max((folder / "zoo").rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    static = folder / "static"
    static.mkdir()
    shutil.copy(shard, static / "shard.bin")
    path = f"/datasets/{ZOO}/resolve/main/{shard.relative_to(folder / 'zoo')}"
    checkouts = {"ckptzoo serve": ROOT} | ({} if beside is None else {f"ckptzoo serve of {beside.name}": beside})
    plain = [sys.executable, "-m", "benchmarks.remote_static", str(static)]
    with ExitStack() as stack:
        targets: list[Target] = []
        for number, (name, checkout) in enumerate(checkouts.items()):
            command = [sys.executable, "-c", SERVE, "--root", str(folder / f"hub-{number}"), "--port", "0"]
            hub, said = stack.enter_context(started(command, checkout))
            token = token_of(folder / f"hub-{number}", checkout)
            address = said.split()[-1]
            push(folder / "zoo", ZOO, endpoint=address, token=token)
            targets.append(Target(name, address, hub, place_of(address, path)))
        other, port = stack.enter_context(started(plain))
        targets.append(Target("static files", f"http://127.0.0.1:{int(port)}", other, "/shard.bin"))
        yield targets, shard.stat().st_size


def token_of(root: Path, checkout: Path) -> str:
    """A token that may write, made by the checkout's own command."""
    command = [sys.executable, "-c", SERVE, "token", "--root", str(root), "--user", "lab", "--write"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=checkout).stdout.strip()


def place_of(address: str, path: str) -> str:
    """Where a server sends whoever asks for a large file, as clients remember it; the path itself where it does not."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request("HEAD", path)
    location = connection.getresponse().headers.get("Location")
    connection.close()
    if location is None:
        return path
    found = urlsplit(location)
    return f"{found.path}?{found.query}" if found.query else found.path


@contextmanager
def started(command: list[str], folder: Path = ROOT) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process in a folder, and the first line that it prints."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def measure(target: Target, size: int, chosen: argparse.Namespace, *, seed: int) -> None:
    """One repeat."""
    before = processor_seconds(target.process.pid)
    seconds, taken = asyncio.run(requests(target, size, chosen, seed))
    target.cpu.append((processor_seconds(target.process.pid) - before) / len(taken))
    target.rates.append(len(taken) / seconds)
    target.p50.append(statistics.median(taken))
    target.p99.append(statistics.quantiles(taken, n=100)[98])
    status = Path(f"/proc/{target.process.pid}/status").read_text()
    target.resident.append(int(status.partition("VmRSS:")[2].split()[0]) * 1024)


def processor_seconds(pid: int) -> float:
    """What a process has used of the processors so far, in user and kernel mode."""
    # fields 14 and 15 of proc(5), behind the name in parentheses; in ticks
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def requests(target: Target, size: int, chosen: argparse.Namespace, seed: int) -> tuple[float, list[float]]:
    """All connections for some seconds: how long it took, and the seconds of every request."""
    taken: list[float] = []
    began = time.perf_counter()
    readers = (
        connection(target, size, chosen.piece, began + chosen.seconds, random.Random(f"{seed} {number}"), taken)
        for number in range(chosen.connections)
    )
    await asyncio.gather(*readers)
    return time.perf_counter() - began, taken


async def connection(
    target: Target, size: int, piece: int, until: float, places: random.Random, taken: list[float]
) -> None:
    """Requests one after the other on one connection.

    Raises
    ------
    ValueError
        The server answers otherwise than with the bytes that were asked for.
    """
    address = urlsplit(target.address)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        while time.perf_counter() < until:
            start = places.randrange(max(1, size - piece))
            asked = f"GET {target.path} HTTP/1.1\r\nHost: {address.netloc}\r\n"
            asked += f"Range: bytes={start}-{start + piece - 1}\r\n\r\n"
            began = time.perf_counter()
            writer.write(asked.encode())
            status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            length = int(headers.get("content-length", 0))
            await reader.readexactly(length)
            if " 206 " not in f"{status} " or length != min(piece, size - start):
                raise ValueError(f"{target.name}: expected status 206 and {piece} bytes, got {status} and {length}.")
            taken.append(time.perf_counter() - began)
    finally:
        writer.close()


def figures(targets: list[Target]) -> Iterator[Figure]:
    """Requests a second, seconds of a request, processor seconds of the server for one, and memory."""
    for item in targets:
        yield figure("requests", item.name, "requests a second", item.rates, "requests")
        yield figure("requests", item.name, "half of them within", item.p50, "s")
        yield figure("requests", item.name, "99 % within", item.p99, "s")
        yield figure("requests", item.name, "processor time of the server for one", item.cpu, "s")
        yield figure("requests", item.name, "resident memory", [float(nbytes) for nbytes in item.resident], "bytes")


def show(targets: list[Target], chosen: argparse.Namespace) -> None:
    """The table: medians of the repeats, with the lowest and the highest rate."""
    table = Table(box=None, pad_edge=False)
    names = ("server", "requests/s", "lowest", "highest", "p50 ms", "p99 ms", "cpu us", "MB at first", "MB at last")
    for column in names:
        table.add_column(column, justify="left" if column == "server" else "right")
    for item in targets:
        rates = (statistics.median(item.rates), min(item.rates), max(item.rates))
        times = (1e3 * statistics.median(item.p50), 1e3 * statistics.median(item.p99))
        cpu = 1e6 * statistics.median(item.cpu)
        memory = (item.resident[0] / 1e6, item.resident[-1] / 1e6)
        table.add_row(item.name, *(f"{value:,.0f}" for value in (*rates, *times, cpu, *memory)))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"{chosen.connections} connections, {chosen.piece:,} bytes a request, {chosen.seconds:g} s a repeat")
    console.print(table)


if __name__ == "__main__":
    main()
