"""Files on a web server that a zoo refers to: linking them, and one layer of all, beside a plain transfer.

Safetensors files of 0.8 MB (12 tensors of 64 kB) lie behind nginx, and a relay with a delay and a bandwidth stands
before it. Measured are ``link_zoo`` of the folder, one tensor of each checkpoint of that zoo, and a transfer of as many
bytes as that in one request; time, processor time of this process, requests and bytes. The bound of the layer is 1.3
times the transfer and a round trip for each 32 files. The cache is empty each time a zoo is linked, and as linking left
it each time one is read. TLS, slow start and losses are not played.
"""

import argparse
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file

import ckptzoo
from benchmarks.figures import Figure, figure, turns, write
from benchmarks.remote_relay import Link, Relay
from ckptzoo.remote.referenced import WORKERS

ROOT = Path(__file__).resolve().parent.parent
TENSOR = (128, 128)
TENSORS = 12
LAYER = "layers.7.weight"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--rtt", type=float, default=20.0, help="milliseconds of a round trip (20)")
    parser.add_argument("--rate", type=float, default=1000.0, help="Mbit/s each way; 0 for no bound (1000)")
    parser.add_argument("--repeats", type=int, default=5, help="of each, in turns; the median is shown (5)")
    parser.add_argument("--folder", type=Path, help="where to make the scratch folder (default: zoos/)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "references_remote.json")
    return parser.parse_args()


@contextmanager
def nginx(folder: Path, root: Path) -> Iterator[int]:
    """Serve a folder by one worker of nginx; the port that it listens at."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        raise SystemExit("nginx: expected a program of this name, got none. Install nginx.")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{name}_temp_path {folder}/{name};\n" for name in kinds)
    (folder / "nginx.conf").write_text(
        f"{'user root;' if os.geteuid() == 0 else ''} daemon off; pid {folder}/pid; error_log {folder}/errors;\n"
        f"events {{}} http {{ access_log off; sendfile on; tcp_nodelay on; keepalive_requests 100000; {temporary}\n"
        f"server {{ listen 127.0.0.1:{port}; root {root}; autoindex on; }} }}\n"
    )
    process = subprocess.Popen([program, "-c", str(folder / "nginx.conf")])
    try:
        while not (folder / "pid").exists() or not (folder / "pid").read_text().strip():
            if process.poll() is not None:
                raise SystemExit((folder / "errors").read_text())
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Write, serve, measure in turns, print a table, write the JSON, remove everything."""
    chosen = arguments()
    scratch = chosen.folder or ROOT / "zoos"
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=scratch))
    os.environ |= {"CKPTZOO_CACHE": str(folder / "cache"), "XDG_DATA_HOME": str(folder / "data")}
    try:
        root = folder / "www"
        root.mkdir()
        rng = np.random.default_rng(0)
        names = [f"layers.{at}.weight" for at in range(TENSORS)]
        for at in range(chosen.files):
            save_file({name: rng.standard_normal(TENSOR, np.float32) for name in names}, root / f"{at}.safetensors")
        (root / "transfer").write_bytes(rng.bytes(chosen.files * 4 * TENSOR[0] * TENSOR[1]))
        with nginx(folder, root) as port, Relay([port]) as relay:
            relay.become(Link(chosen.rtt / 1000, chosen.rate * 1e6 / 8 or None))
            show(measured(f"http://127.0.0.1:{relay.ports[0]}", relay, chosen, folder / "cache"), chosen)
    finally:
        shutil.rmtree(folder)


def measured(url: str, relay: Relay, chosen: argparse.Namespace, cache: Path) -> dict[str, list[dict[str, float]]]:
    """Every repeat of each of the three, in turns."""
    zoo, after = cache.with_name("zoo"), cache.with_name("after-link")

    def link() -> int:
        shutil.rmtree(zoo, ignore_errors=True)
        return ckptzoo.link_zoo(f"{url}/", zoo, license="MIT", include=["*.safetensors"]).added

    def layer() -> int:
        return ckptzoo.open(zoo)[LAYER][:].nbytes

    def transfer() -> int:
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("GET", "/transfer")
        data = connection.getresponse().read()
        connection.close()
        return len(data)

    ways: dict[str, Callable[[], int]] = {"link": link, "one layer": layer, "plain transfer": transfer}
    results: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    link()  # what a layer is read of
    cache.rename(after)
    for way in turns(ways, chosen.repeats):
        shutil.rmtree(cache, ignore_errors=True)
        if way == "one layer":
            shutil.copytree(after, cache)
        relay.counted()
        began, spent = time.perf_counter(), time.process_time()
        nbytes = ways[way]()
        seconds, spent = time.perf_counter() - began, time.process_time() - spent
        counted = relay.counted()
        results[way].append(
            {"seconds": seconds, "cpu": spent, "requests": counted.requests, "received": counted.received}
            | {"connections": counted.connections, "wanted": float(nbytes)}
        )
    return results


def figures(results: dict[str, list[dict[str, float]]], files: int) -> Iterator[Figure]:
    """Seconds, requests and bytes of each way."""
    for way, runs in results.items():
        for key, column, unit in (
            ("seconds", "time", "s"), ("cpu", "processor time", "s"), ("requests", "requests", "requests"),
            ("received", "received", "bytes"),
        ):  # fmt: skip
            yield figure("references", f"{way} of {files:,} files", column, [run[key] for run in runs], unit)


def show(results: dict[str, list[dict[str, float]]], chosen: argparse.Namespace) -> None:
    """Print medians and the bound, and write everything."""
    table = Table(box=SIMPLE_HEAD)
    for column in ("", "s", "s of processor", "requests", "connections", "MB received"):
        table.add_column(column, justify="left" if not column else "right")
    medians = {
        way: {key: float(np.median([run[key] for run in runs])) for key in runs[0]} for way, runs in results.items()
    }
    for way, run in medians.items():
        cells = f"{run['requests']:.0f}", f"{run['connections']:.0f}", f"{run['received'] / 1e6:.2f}"
        table.add_row(way, f"{run['seconds']:.2f}", f"{run['cpu']:.2f}", *cells)
    Console().print(table)
    ideal = medians["plain transfer"]["seconds"] + chosen.rtt / 1000 * -(-chosen.files // WORKERS)
    ratio = medians["one layer"]["seconds"] / ideal
    print(f"One layer takes {ratio:.2f} times a plain transfer and a round trip for each {WORKERS} files.")
    settings = {name: getattr(chosen, name) for name in ("files", "rtt", "rate", "repeats")}
    write(chosen.json, list(figures(results, chosen.files)), {"settings": settings, "runs": results, "ratio": ratio})


if __name__ == "__main__":
    main()
