"""The page of a zoo beside the same views by Altair, both as one file, in Chromium without a network.

The zoos are the first 2,048 members of ``cards/mnist-optunet``, 100,000 jittered copies of its members with their
canonical variant and equivalence checks, and one layer of 64 random ResNet-18s. Altair's page (``inline=True``) has
four linked histograms and two linked panels of principal components of one layer, the values of our page, and of ours
nothing else. Pages are built each in a process of its own, for its time and its largest resident memory. In Chromium a
page is opened several times: first paint, ready (all views drawn; for Altair: the promise of ``vegaEmbed``), and the
heap after a collection, with the arrays' buffers. Then a brush of the first histogram is moved; the time of a move is
that of the page's tasks on its main thread, which includes handling, layout and painting.
"""

import argparse
import base64
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from playwright.sync_api import Browser, Page, sync_playwright
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import ckptzoo
from benchmarks.figures import Figure, figure, machine, turns, write
from ckptzoo import archs
from ckptzoo.derive import derive
from ckptzoo.explorer import page as write_page
from ckptzoo.explorer.bundle import bundle
from ckptzoo.explorer.payload import decode
from ckptzoo.hub.pull import pull

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "cards/mnist-optunet"
FEW = 2048
"""Members of the small zoo."""
PARTS = 20_000
"""Members of a part of the large zoo."""
MOVES, SECONDS = 60, 10
"""Moves of a brush, fewer where they take longer."""
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PLACES = {
    "#measures svg": (20.0, 300.0, 30.0),
    "#components .plot svg": (60.0, 300.0, 150.0),
    "#vis svg.marks": (60.0, 280.0, 50.0),
}
"""Left end, width and middle of the view that is brushed, in its picture, in pixels."""
AIMS = {
    "file_kb": (300, 8000),
    "first_paint_ms": (300, 300),
    "ready_ms": (500, 2000),
    "redraw_ms": (4, 20),
    "panel_redraw_ms": (4, 20),
    "heap_mb": (60, 150),
    "build_s": (3, 30),
    "build_mib": (None, 1024),
}
"""For up to ``FEW`` members, and for more."""


def copies(folder: Path, count: int) -> Path:
    """A zoo of jittered copies of the members of ``SOURCE``, with their canonical variant."""
    source, rng = ckptzoo.open(SOURCE), np.random.default_rng(0)
    weights = {name: np.asarray(source[name]) for name in source.arch.names}
    rows = source.metadata.to_pylist()
    writer = ckptzoo.create(folder, arch=source.arch, symmetry=source.symmetry)
    for start in range(0, count, PARTS):
        taken = np.arange(start, min(count, start + PARTS)) % len(source)
        made = {
            name: (array[taken] * (1 + 0.02 * rng.normal(size=array[taken].shape))).astype(np.float32)
            for name, array in weights.items()
        }
        own = []
        for number, at in enumerate(taken.tolist(), start):
            row = {
                **rows[at],
                "id": f"copy-{number:06d}-056280",
                "member": f"copy-{number:06d}",
                "seed": number,
                "unit": str(start),
            }
            for name in ("train_loss", "test_loss", "test_nll", "test_brier", "test_ece"):
                row[name] *= 1 + 0.02 * rng.normal()
            row["test_nll"] = row["test_loss"]
            row["test_accuracy"] = round(min(1.0, max(0.0, row["test_accuracy"] + 0.01 * rng.normal())), 4)
            own.append(row)
        writer.add(made, own)
        writer.commit()
    derive(folder, certify="all")
    return folder


def resnets(folder: Path, count: int) -> Path:
    """A zoo of random ResNet-18s, canonical without stored weights."""
    arch, rng = archs.architecture("resnet18-100"), np.random.default_rng(0)
    writer = ckptzoo.create(folder, arch=arch, symmetry=archs.symmetry("resnet18-100"))
    for start in range(0, count, 16):
        taken = min(16, count - start)
        made = {}
        for tensor in arch.tensors:
            if tensor.dtype == "int64":
                made[tensor.name] = np.ones((taken, *tensor.shape), np.int64)
                continue
            values = 0.05 * rng.standard_normal((taken, *tensor.shape), dtype=np.float32)
            made[tensor.name] = np.exp(values) if tensor.name.endswith("running_var") else values
        writer.add(made, [{"id": f"net-{start + at}", "unit": str(start)} for at in range(taken)])
        writer.commit()
    derive(folder, certify="none", store="element")
    return folder


def build(zoo: Path, output: Path, layers: list[str]) -> dict[str, float]:
    """Make our page in a process of its own: its seconds, and the largest resident memory in MiB."""
    command = [sys.executable, "-m", "benchmarks.explorer", "--build", str(zoo), str(output), *layers]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(ran.stdout.splitlines()[-1])


def built(zoo: str, output: str, *layers: str) -> None:
    """The process of ``build``."""
    start = time.perf_counter()
    write_page(ckptzoo.open(zoo), output, layers=layers)
    seconds = time.perf_counter() - start
    # getrusage would give the peak of the parent process where that is larger
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) / 1024
    print(json.dumps({"build_s": seconds, "build_mib": peak, "file_kb": Path(output).stat().st_size / 1000}))


def by_altair(zoo: ckptzoo.Zoo, ours: Path, output: Path) -> dict[str, float]:
    """The same values in linked views of Altair's, in one file with its scripts."""
    import altair as alt

    start = time.perf_counter()
    text = ours.read_text(encoding="utf-8")
    place = text.index('id="payload">') + len('id="payload">')
    data = decode(base64.b64decode(text[place : text.index("<", place)]), location=str(ours))
    names = ["test_accuracy", "test_nll", "test_brier", "test_ece"]
    columns = {name: data.columns[name] for name in names}
    for panel in data.header["layers"][0]["panels"]:
        for axis, step in zip("xy", panel["steps"], strict=True):
            columns[f"{panel['variant']}_{axis}"] = data.columns[f"{panel['column']}:{axis}"] * step
    table = pa.table(columns)
    alt.data_transformers.disable_max_rows()
    brushes = {name: alt.selection_interval(encodings=["x"], name=name) for name in names}
    panels = {name: alt.selection_interval(name=name) for name in ("raw", "canonical")}
    every = [*brushes.values(), *panels.values()]

    def histogram(name: str) -> Any:
        bars = (
            alt.Chart()
            .mark_bar()
            .encode(alt.X(f"{name}:Q", bin=alt.Bin(maxbins=60)), y="count()")
            .properties(width=300, height=96)
        )
        chosen = bars
        for brush in every:
            if brush is not brushes[name]:
                chosen = chosen.transform_filter(brush)
        return alt.layer(bars.encode(color=alt.value("#ccc")).add_params(brushes[name]), chosen)

    def scatter(name: str) -> Any:
        points = (
            alt.Chart().mark_point(size=4).encode(x=f"{name}_x:Q", y=f"{name}_y:Q").properties(width=400, height=400)
        )
        chosen = points
        for brush in every:
            chosen = chosen.transform_filter(brush)
        return alt.layer(points.encode(color=alt.value("#ccc")).add_params(panels[name]), chosen)

    views = alt.vconcat(alt.hconcat(*map(histogram, names)), alt.hconcat(*map(scatter, panels)), data=table)
    html = views.to_html(inline=True, fullhtml=True)
    # the promise of vegaEmbed tells when everything is drawn
    embedding = "vegaEmbed('#vis', spec, embedOpt)"
    assert html.count(embedding) == 1
    report = "document.documentElement.dataset.ready = performance.now(); return result;"
    html = html.replace(embedding, f"{embedding}.then(result => {{ {report} }})")
    output.write_text(html, encoding="utf-8")
    return {"build_s": time.perf_counter() - start, "file_kb": output.stat().st_size / 1000}


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser of this machine."""
    program = shutil.which("chromium")
    assert program is not None, "needs chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        yield browser
        browser.close()


def opened(browser: Browser, path: Path, plot: str) -> dict[str, float]:
    """Figures of a page: its start, its heap, and the moves of a brush.

    Parameters
    ----------
    plot
        Selects the picture that has the first histogram, whose place in it is ``PLACES``.
    """
    context = browser.new_context(offline=True, viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(path.as_uri())
    page.wait_for_function("() => document.documentElement.dataset.ready")
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")
    page.wait_for_timeout(500)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    ready = float(page.evaluate("document.documentElement.dataset.ready"))
    session = context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")
    session.send("Performance.enable")
    moves = brushed(page, plot, session)
    if "redraw_ms" in moves:
        # with both panels in the window, which are drawn then
        moves["panel_redraw_ms"] = brushed(page, "#components .plot svg", session)["redraw_ms"]
    context.close()
    held = heap["usedSize"] + heap.get("backingStorageSize", 0)
    return {"first_paint_ms": paint, "ready_ms": ready, "heap_mb": held / 1e6, **moves}


def brushed(page: Page, plot: str, session: Any) -> dict[str, float]:
    """Move a brush over a histogram: milliseconds of the main thread a move, and of our own redraws.

    What moving the mouse costs by itself is taken off.
    """
    picture = page.locator(plot).first
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    assert box is not None
    left, width, middle = PLACES[plot]

    def place(part: float) -> tuple[float, float]:
        return box["x"] + left + part * width, box["y"] + middle

    def moved() -> float:
        frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
        before, end = tasks(session), time.perf_counter() + SECONDS
        for move in range(MOVES):
            page.mouse.move(*place(0.5 + 0.2 * move / MOVES))
            page.evaluate(frame)
            if time.perf_counter() > end:
                break
        return 1000 * (tasks(session) - before) / (move + 1)

    page.evaluate(
        """const root = document.documentElement;
        window.redraws = [];
        new MutationObserver(() => redraws.push(Number(root.dataset.redraw)))
            .observe(root, {attributes: true, attributeFilter: ["data-redraw"]})"""
    )
    idle = moved()
    page.mouse.move(*place(0.3))
    page.mouse.down()
    page.mouse.move(*place(0.5))
    page.wait_for_timeout(300)
    spent = moved() - idle
    page.mouse.up()
    own = page.evaluate("window.redraws.slice(2)")
    return {"move_ms": spent, "idle_ms": idle, **({"redraw_ms": statistics.median(own)} if own else {})}


def tasks(session: Any) -> float:
    """Seconds that the main thread has spent in tasks."""
    metrics = {item["name"]: item["value"] for item in session.send("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"]


SHOWN = {
    "file_kb": ("file", 1e3, "bytes"),
    "first_paint_ms": ("first paint", 1e-3, "s"),
    "ready_ms": ("ready", 1e-3, "s"),
    "redraw_ms": ("script of a redraw while brushing", 1e-3, "s"),
    "move_ms": ("main thread for one move of a brush", 1e-3, "s"),
    "heap_mb": ("heap", 1e6, "bytes"),
    "build_s": ("making the page", 1.0, "s"),
    "build_mib": ("resident memory while making it", 2**20, "bytes"),
}
"""The name of each figure in the documentation, and its size in the unit."""


def figures(rows: list[dict[str, Any]]) -> Iterator[Figure]:
    """Those of ``SHOWN`` that a row has, quantity by quantity."""
    for key, (title, factor, unit) in SHOWN.items():
        for row in rows:
            if key in row:
                values = [factor * run[key] for run in row.get("runs", [row]) if key in run] or [factor * row[key]]
                yield figure("pages", title, f"{row['contender']}, {row['members']:,}", values, unit)


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def main() -> None:
    """Measure, print tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=100_000, help="of the large zoo")
    parser.add_argument("--resnets", type=int, default=64, help="0 leaves them out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results/explorer.json")
    parser.add_argument("--build", nargs="+", metavar=("ZOO", "OUTPUT"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.build:
        built(*chosen.build)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pull(SOURCE, folder / "members", where=f"seed < {FEW}")
        zoos = {FEW: folder / "members", chosen.members: copies(folder / "copies", chosen.members)}
        with chromium() as browser:
            for members, path in zoos.items():
                ours, theirs = folder / f"{members}.html", folder / f"{members}-altair.html"
                found = {"ckptzoo": build(path, ours, []), "altair": by_altair(ckptzoo.open(path), ours, theirs)}
                pages = {"ckptzoo": (ours, "#measures svg"), "altair": (theirs, "#vis svg.marks")}
                times: dict[str, list[dict[str, float]]] = {contender: [] for contender in pages}
                for contender in turns(pages, chosen.repeats):
                    times[contender].append(opened(browser, *pages[contender]))
                for contender, runs in times.items():
                    row = {"contender": contender, "members": members, **found[contender], **medians(runs)}
                    rows.append({**row, "runs": runs})
        if chosen.resnets:
            path = resnets(folder / "resnets", chosen.resnets)
            spent = build(path, folder / "resnets.html", ["layer4.1.conv2"])
            rows.append({"contender": "ckptzoo, one layer of ResNet-18", "members": chosen.resnets, **spent})
    console, facts = Console(width=200), machine(ROOT)
    table = Table(title="Pages of zoos", box=SIMPLE_HEAD)
    names = [
        "build_s",
        "build_mib",
        "file_kb",
        "first_paint_ms",
        "ready_ms",
        "redraw_ms",
        "panel_redraw_ms",
        "move_ms",
        "heap_mb",
    ]
    for column in ("contender", "members", *names):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for row in rows:
        table.add_row(
            row["contender"], f"{row['members']:,}", *(f"{row[name]:,.3g}" if name in row else "" for name in names)
        )
    console.print(table)
    for row in rows:
        for name, aims in AIMS.items():
            aim = aims[row["members"] > FEW or "ResNet" in row["contender"]]
            if row["contender"] != "altair" and name in row and aim is not None:
                console.print(f"{row['contender']}, {row['members']:,}: {name} {row[name]:,.3g} (aim {aim:,})")
    console.print(f"script {len(bundle().script) / 1000:.1f} kB, style {len(bundle().style) / 1000:.1f} kB")
    console.print(f"{facts['cpu']}, {facts['cores']} cores")
    write(chosen.json, list(figures(rows)), {"machine": facts, "rows": rows})


if __name__ == "__main__":
    main()
