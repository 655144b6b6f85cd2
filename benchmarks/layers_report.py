"""The tables on screen and the JSON beside them."""

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.layers_measure import CONSUMED, Samples, human
from benchmarks.layers_open import summary
from benchmarks.layers_targets import Target
from benchmarks.peers.peer import Peer

PACKAGES = ("ckptzoo", "numpy", "pyarrow", "safetensors", "torch", "zarr", "h5py")


def machine(folder: Path) -> dict[str, Any]:
    """What the figures depend on: processor, memory, the disk's read-ahead, versions."""
    cpu = "unknown"
    if (info := Path("/proc/cpuinfo")).exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    device = folder.stat().st_dev
    ahead = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "read_ahead_kb": int(ahead.read_text()) if ahead.exists() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def show_machine(console: Console, facts: dict[str, Any]) -> None:
    """One line on the machine, one on the versions."""
    ahead = "" if facts["read_ahead_kb"] is None else f", read-ahead {facts['read_ahead_kb']} kB"
    memory = human(facts["memory_bytes"])
    console.print(f"{facts['cpu']}, {facts['cores']} cores, {memory} of memory{ahead}, {facts['system']}")
    versions = {"Python": facts["python"], **facts["packages"]}
    console.print(", ".join(f"{name} {number}" for name, number in versions.items()))


def show_reads(console: Console, samples: Sequence[Samples], peers: Sequence[Peer]) -> None:
    """A table for the warm and one for the cold page cache: a row an operation, a column a reader."""
    for cache in ("warm", "cold"):
        table = _table(f"{cache} page cache: median milliseconds")
        table.add_column("read", no_wrap=True)
        table.add_column("bytes", justify="right")
        for peer in peers:
            table.add_column(peer.label, justify="right")
        for found in samples:
            medians = [found.median(cache, peer.label) for peer in peers]
            cells = ["-" if seconds is None else f"{1e3 * seconds:.3g}" for seconds in medians]
            size = human(found.operation.nbytes) if found.operation.nbytes else "-"
            table.add_row(found.operation.title, size, *(_plain(cell) for cell in cells))
        console.print(table)
    left = max((found.left for found in samples), default=0.0)
    console.print(f"Before cold reads the page cache held at most {left:.2%} of a store.")


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)


def _plain(cell: str) -> str:
    return f"{float(cell):,.0f}" if "e" in cell else cell


def show_small(console: Console, results: dict[str, Any]) -> None:
    """Opening a large zoo, importing the package, and memory of streams, as far as they were measured."""
    if results["opening"] or results["import"]:
        table = _table("opening and importing: median milliseconds")
        for column in ("what", "warm", "cold", "warm, a tensor located"):
            table.add_column(column, justify="left" if column == "what" else "right")
        for found in results["opening"]:
            cells = [f"{found[name]['median_ms']:.1f}" for name in ("warm", "cold", "warm_located")]
            table.add_row(f"{found['checkpoints']:,} checkpoints, parts: {found['parts']}", *cells)
        if results["import"]:
            table.add_row("import ckptzoo", f"{results['import']['import_ms']:.1f}", "-", "-")
        console.print(table)
    if results["streams"]:
        table = _table("anonymous memory of a stream: MB")
        for column in ("checkpoints", "streamed", "batch", "shuffle", "before", "peak growth", "bound"):
            table.add_column(column, justify="right")
        for found in results["streams"]:
            sizes = [f"{found[name] / 1e6:,.0f}" for name in ("before", "peak_growth", "bound")]
            first = (str(found["members"]), f"{found['streamed'] / 1e6:,.0f}", str(found["batch_size"]))
            table.add_row(*first, "on" if found["shuffle"] else "off", *sizes)
        console.print(table)


def show_targets(console: Console, targets: Sequence[Target]) -> None:
    """Every figure beside its bound."""
    table = _table("targets")
    for column in ("what", "figure", "at most", ""):
        table.add_column(column, justify="left" if column in ("what", "") else "right")
    for target in targets:
        verdict = "[green]met[/]" if target.met else "[red]missed[/]"
        table.add_row(target.what, f"{target.figure:,.2f} {target.unit}", f"{target.bound:,g} {target.unit}", verdict)
    console.print(table)


def to_json(
    results: dict[str, Any], samples: Sequence[Samples], peers: Sequence[Peer], targets: Sequence[Target]
) -> str:
    """Everything that was measured, as JSON."""
    rows = [
        {
            "operation": found.operation.key,
            "title": found.operation.title,
            "bytes": found.operation.nbytes,
            "cache": cache,
            "reader": label,
            **summary([1e3 * value for value in seconds]),
        }
        for found in samples
        for (cache, label), seconds in found.seconds.items()
    ]
    content = {
        **results,
        "consumed": CONSUMED,
        "readers": {peer.label: peer.how for peer in peers},
        "cold_pages_left": max((found.left for found in samples), default=None),
        "reads": rows,
        "targets": [{**vars(target), "met": target.met} for target in targets],
    }
    return json.dumps(content, indent=1) + "\n"
