"""The tables on screen, what the figures should be, and the JSON beside them."""

from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, figure, ratios
from benchmarks.figures import machine as facts_of
from benchmarks.layers_measure import CONSUMED, human
from benchmarks.layers_targets import SMALL_READ, Target
from benchmarks.remote_contenders import Contender
from benchmarks.remote_measure import Samples
from benchmarks.remote_relay import Link

PACKAGES = ("huggingface_hub", "fsspec", "aiohttp", "starlette", "uvicorn")
HEADS = 2000
"""Bytes of a shard's answers that are no weights: heads, and a redirect."""
SHORT = 10
"""Transfers of fewer round trips than this are held to a time, not to a ratio: round trips weigh more than bytes."""
TURNS = 2
"""Round trips that such a read may take beyond the plain one: files are resolved first."""


def machine(folder: Path) -> dict[str, Any]:
    """What the figures depend on: processor, memory, versions."""
    facts = facts_of(folder)
    for name in PACKAGES:
        try:
            facts["packages"][name] = version(name)
        except PackageNotFoundError:
            facts["packages"][name] = None
    return facts


def show(console: Console, samples: Sequence[Samples], contenders: Sequence[Contender]) -> None:
    """Three tables with a row an operation and a column a contender: seconds, bytes received, requests."""
    shown = [found for found in samples if found.seconds]
    for title in ("median seconds", "received over the link", "requests, redirected ones included"):
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("read", no_wrap=True)
        table.add_column("bytes", justify="right", no_wrap=True)
        for contender in contenders:
            table.add_column(contender.label, justify="right")
        for found in shown:
            cells = [_cell(title, found, contender.label) for contender in contenders]
            nbytes = human(found.operation.nbytes) if found.operation.nbytes else "-"
            table.add_row(found.operation.title, nbytes, *cells)
        console.print(table)
    for contender in contenders:
        console.print(f"{contender.label}: {contender.how}", highlight=False, markup=False)
    console.print("*: read once. snapshot_download brings every layer at once, so a small one takes as long.")


def _cell(title: str, found: Samples, label: str) -> str:
    seconds, received, requests = found.median(label), found.received(label), found.requests(label)
    if seconds is None or received is None or requests is None:
        return "-"
    once = "*" if len(found.seconds[label]) == 1 and max(map(len, found.seconds.values())) > 1 else ""
    match title[0]:
        case "m":
            return f"{seconds:.3g}{once}"
        case "r" if title.startswith("received"):
            return human(int(received))
        case _:
            return f"{requests:.0f}"


def show_link(console: Console, link: Link, alone: dict[str, dict[str, float]]) -> None:
    """What the relay carries, measured with one plain connection."""
    rate = "no bound" if link.rate is None else f"{8 * link.rate / 1e6:,.0f} Mbit/s"
    console.print(f"Link: round trip {1e3 * link.rtt:g} ms, {rate}. Relay, one plain connection:")
    for name, found in alone.items():
        console.print(f"  {name}: {found['bytes_a_second'] / 1e6:,.0f} MB/s, one byte in {found['byte_ms']:.1f} ms")


def targets(samples: Sequence[Samples], *, link: Link) -> Iterator[Target]:
    """Ours against the plain transfer of the same bytes, against those bytes, and in requests.

    Where no plain transfer was measured, the time that the link needs for the bytes stands for it.
    """
    for found in samples:
        operation = found.operation
        if operation.link != link:
            continue  # what the processes carry with a link that costs nothing is shown, not held to anything
        for label in (label for label in ("ckptzoo", "ckptzoo views") if label in found.seconds):
            what = f"{operation.title}, {label}" if label != "ckptzoo" else operation.title
            ours, received, requests = found.median(label), found.received(label), found.requests(label)
            assert ours is not None and received is not None and requests is not None
            if operation.read is None:
                yield Target(f"{what}: bytes", received / 1e3, 200, "kB")
                yield Target(f"{what}: requests", requests, 6, "")
                continue
            plain = found.median("plain")
            if plain is None and operation.link.rate:
                plain = operation.nbytes / operation.link.rate + operation.link.rtt
            rate, rtt = operation.link.rate, operation.link.rtt
            short = rate is not None and operation.nbytes / rate < SHORT * rtt
            if plain is not None and (short or operation.nbytes < SMALL_READ):
                bound = 1e3 * TURNS * rtt + 10
                yield Target(f"{what}: above the plain transfer", 1e3 * (ours - plain), bound, "ms")
            elif plain is not None:
                yield Target(f"{what}: of the plain transfer", ours / plain, 1.2, "x")
            if operation.key == "checkpoint":
                yield Target(f"{what}: bytes, of its own", received / operation.nbytes, 1.2, "x")
            else:
                over = round(0.02 * operation.nbytes + HEADS * operation.shards, -3)
                yield Target(f"{what}: bytes beyond its own", (received - operation.nbytes) / 1e3, over / 1e3, "kB")
                yield Target(f"{what}: requests a shard", requests / operation.shards, 2, "")


def figures(samples: Sequence[Samples], contenders: Sequence[Contender]) -> Iterator[Figure]:
    """Seconds, bytes and requests of every contender, and ours over the plain transfer."""
    for found in samples:
        title = found.operation.title
        for label in (contender.label for contender in contenders if contender.label in found.seconds):
            seconds = found.seconds[label]
            yield figure("reads", title, label, seconds, "s")
            yield figure("received", title, label, [float(item.received) for item in found.counted[label]], "bytes")
            yield figure("requests", title, label, [float(item.requests) for item in found.counted[label]], "requests")
        ours, plain = found.seconds.get("ckptzoo"), found.seconds.get("plain")
        if ours and plain and len(ours) == len(plain):
            yield figure("ratios", title, "ckptzoo over the plain transfer", ratios(ours, plain), "times")


def content(
    facts: dict[str, Any],
    settings: dict[str, Any],
    alone: dict[str, dict[str, float]],
    samples: Sequence[Samples],
    contenders: Sequence[Contender],
    found: Sequence[Target],
) -> dict[str, Any]:
    """Everything that was measured, for JSON."""
    return {
        "machine": facts,
        "settings": settings,
        "relay": alone,
        "consumed": CONSUMED,
        "contenders": {contender.label: contender.how for contender in contenders},
        "reads": [
            {
                "operation": item.operation.key,
                "title": item.operation.title,
                "bytes": item.operation.nbytes,
                "link": vars(item.operation.link),
                "contender": label,
                "median_seconds": item.median(label),
                "seconds": seconds,
                "counted": [vars(counted) for counted in item.counted[label]],
            }
            for item in samples
            for label, seconds in item.seconds.items()
        ],
        "targets": [{**vars(target), "met": target.met} for target in found],
    }
