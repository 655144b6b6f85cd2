"""The tables on screen and the JSON beside them."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, figure, ratios
from benchmarks.layers_measure import CONSUMED, Samples, human
from benchmarks.layers_open import summary
from benchmarks.layers_targets import Target
from benchmarks.peers.peer import Peer

OURS = "ckptzoo"


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


def figures(results: dict[str, Any], samples: Sequence[Samples], peers: Sequence[Peer]) -> Iterator[Figure]:
    """Reads by every reader and their ratios, opening, importing, and memory of streams."""
    for found in samples:
        for cache in ("warm", "cold"):
            ours, row = found.seconds[cache, OURS], f"{found.operation.title}, {cache}"
            for label in (peer.label for peer in peers if (cache, peer.label) in found.seconds):
                theirs = found.seconds[cache, label]
                yield figure("reads", row, label, theirs, "s")
                if label != OURS:
                    yield figure("ratios", row, label, ratios(ours, theirs), "times")
    for found in results["opening"]:
        row = f"{found['checkpoints']:,} checkpoints, {found['parts']} part{'s' * (found['parts'] > 1)}"
        for name, column in (("warm", "warm"), ("cold", "cold"), ("warm_located", "warm, a tensor located")):
            seconds = [value / 1e3 for value in found[name]["samples_ms"]]
            yield figure("opening", row, column, seconds, "s")
    if results["import"]:
        seconds = [value / 1e3 for value in results["import"]["samples_ms"]]
        yield figure("import", "import ckptzoo", "beyond an interpreter that does nothing", seconds, "s")
    for found in results["streams"]:
        row = f"{found['members']} checkpoints, {human(found['streamed'])}"
        column = "shuffled" if found["shuffle"] else "in order"
        yield figure("streams", row, column, [found["peak_growth"]], "bytes")


def content(
    results: dict[str, Any], samples: Sequence[Samples], peers: Sequence[Peer], targets: Sequence[Target]
) -> dict[str, Any]:
    """Everything that was measured, for JSON."""
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
    return {
        **results,
        "consumed": CONSUMED,
        "readers": {peer.label: peer.how for peer in peers},
        "cold_pages_left": max((found.left for found in samples), default=None),
        "reads": rows,
        "targets": [{**vars(target), "met": target.met} for target in targets],
    }
