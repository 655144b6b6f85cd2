"""Reading checkpoints from afar, side by side with other ways, over a link with a delay and a bandwidth.

Checkpoints of ResNet-18 (45 MB each) lie as a zoo, and as safetensors files, in two repositories of a ``ckptzoo
serve``, and as a zarr store behind a plain web server. A relay stands between the servers and this process. Measured
through ckptzoo, snapshot_download, HfFileSystem and zarr, beside a plain ranged transfer: opening, one layer of every
checkpoint (three sizes), and one checkpoint; time, bytes and requests, nothing cached. Then ckptzoo with content
repeated to many more checkpoints.

By default it writes 12 GB into a scratch folder and takes about 5 minutes on 2 cores; the folder is removed
afterwards. ``--checkpoints 8 --many 32 --repeats 1`` takes under a minute. Slow start, losses and TLS are not played.
"""

import argparse
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
READS = ("open", "small", "medium", "large", "checkpoint", "free", "many-open", "many-small", "many-medium")
LONG = ("many-large",)
"""Not measured unless asked for: 9.7 GB of 1,024 checkpoints take 80 s at 1 Gbit/s."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=64, help="of the zoo and of the others (64, 45 MB each)")
    parser.add_argument("--many", type=int, default=1024, help="of the zoo with repeated content, about (1024)")
    parser.add_argument("--rtt", type=float, default=20.0, help="milliseconds of a round trip (20)")
    parser.add_argument("--rate", type=float, default=1000.0, help="Mbit/s each way; 0 for no bound (1000)")
    parser.add_argument("--repeats", type=int, default=3, help="reads of each, but of those slower than 6 s (3)")
    parser.add_argument("--folder", type=Path, help="where to make the scratch folder (default: zoos/)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "remote.json", help="where figures go")
    parser.add_argument("--only", nargs="+", choices=(*READS, *LONG), default=READS, help="measure these")
    chosen = parser.parse_args()
    for name, least in (("checkpoints", 1), ("many", 1), ("repeats", 1), ("rtt", 0), ("rate", 0)):
        if getattr(chosen, name) < least:
            parser.error(f"--{name}: expected at least {least}, got {getattr(chosen, name)}.")
    if find_spec("aiohttp") is None:
        parser.error("zarr over http: expected aiohttp, got none. Run pip install aiohttp.")
    return chosen


def main() -> None:
    """Write and publish, measure, print the tables, write the JSON, remove everything."""
    chosen = arguments()
    scratch = chosen.folder or ROOT / "zoos"
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=scratch))
    os.environ |= {
        "CKPTZOO_CACHE": str(folder / "caches" / "ckptzoo"),
        "HF_HOME": str(folder / "caches" / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    try:
        run(chosen, folder, Console(width=None if sys.stdout.isatty() else 120))
    finally:
        shutil.rmtree(folder)


def run(chosen: argparse.Namespace, folder: Path, console: Console) -> None:
    """Everything between making the scratch folder and removing it."""
    # huggingface_hub reads the environment when it is imported
    from benchmarks import figures, layers_report, remote_report
    from benchmarks.remote_contenders import Place
    from benchmarks.remote_material import Material, hub, publish, static
    from benchmarks.remote_measure import EVERYONE, Samples, measure, operations, relay_alone
    from benchmarks.remote_relay import Link, Relay

    facts = remote_report.machine(folder)
    layers_report.show_machine(console, facts)
    link = Link(chosen.rtt / 1e3, 1e6 * chosen.rate / 8 or None)
    (folder / "static").mkdir()
    times, samples, alone = max(1, round(chosen.many / chosen.checkpoints)), list[Samples](), {}
    with Progress(console=console, auto_refresh=False) as progress, hub(folder / "hub") as (port, token):
        task, material = progress.add_task("write", total=None), None
        url = f"http://127.0.0.1:{port}"
        for step in publish(folder / "static", url, token, members=chosen.checkpoints, times=times):
            if isinstance(step, Material):
                material = step
            else:
                progress.update(task, description=f"write {step}", refresh=True)
        assert material is not None
        progress.remove_task(task)
        with static(folder / "static") as plain, Relay((port, plain)) as relay:
            place = Place(material, relay.ports[0], relay.ports[1], folder / "caches")
            for name, kind in (("no delay, no bound", Link()), ("as set", link)):
                alone[name] = relay_alone(place, relay, kind)
            wanted = [item for item in operations(material, link) if item.key in chosen.only]
            task = progress.add_task("measure", total=sum(chosen.repeats * len(item.contenders) for item in wanted))
            for operation in wanted:
                progress.update(task, description=operation.title)
                samples.append(Samples(operation))
                for _ in measure(samples[-1], place, relay, chosen.repeats):
                    progress.update(task, advance=1, refresh=True)
    targets = list(remote_report.targets(samples, link=link))
    remote_report.show_link(console, link, alone)
    remote_report.show(console, samples, EVERYONE)
    layers_report.show_targets(console, targets)
    settings = {name: getattr(chosen, name) for name in ("checkpoints", "many", "rtt", "rate", "repeats")}
    kept = remote_report.content(facts, settings, alone, samples, EVERYONE, targets)
    figures.write(chosen.json, list(remote_report.figures(samples, EVERYONE)), kept)


if __name__ == "__main__":
    main()
