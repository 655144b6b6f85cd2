"""Reading checkpoints one layer at a time, side by side with other ways to store them.

Measures, with a warm and a cold page cache, through ckptzoo, a bare np.memmap, safetensors, torch.load, zarr and HDF5:
one whole layer of every checkpoint (three sizes), one checkpoint, every layer in turn, and opening. Then, for ckptzoo
alone: opening 8,192 checkpoints in one part and in 128, importing the package, and the memory of a stream.

By default it writes 19 GB into a scratch folder and takes about 6 minutes on 2 cores; the folder is removed afterwards.
"Warm" needs memory for one store at a time (3 GB). "Cold" is what this system's page cache does not hold; what a
hypervisor or the drive itself caches is out of its reach.
"""

import argparse
import gc
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks import figures, layers_open, layers_report, layers_stream, layers_targets
from benchmarks.layers_measure import Samples, measure, operations
from benchmarks.layers_pages import evict, files_of
from benchmarks.layers_weights import LAYERS, Weights, resnet18
from benchmarks.peers.bare import BarePeer
from benchmarks.peers.hdf5 import Hdf5Peer
from benchmarks.peers.peer import Peer
from benchmarks.peers.safetensors_files import SafetensorsPeer
from benchmarks.peers.torch_files import TorchPeer
from benchmarks.peers.zarr_store import ZarrPeer
from benchmarks.peers.zoo import ZooPeer

PEERS: tuple[Peer, ...] = (ZooPeer(), BarePeer(), SafetensorsPeer(), TorchPeer(), ZarrPeer(), Hdf5Peer())
READS = ("small", "medium", "large", "checkpoint", "every", "open")
OTHERS = ("zoos", "import", "stream")
ROOT = Path(__file__).resolve().parent.parent


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=64, help="checkpoints a store (default 64, 45 MB each)")
    parser.add_argument("--width", type=int, default=64, help="channels of the network's first stage (default 64)")
    parser.add_argument("--checkpoints", type=int, default=layers_open.CHECKPOINTS, help="of the large zoos (8192)")
    parser.add_argument("--parts", type=int, default=layers_open.PARTS, help="of the second of them (128)")
    parser.add_argument("--repeats", type=int, default=5, help="cold reads of each; three times as many warm ones (5)")
    parser.add_argument("--folder", type=Path, help="where to make the scratch folder (default: zoos/)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "layers.json", help="where figures go")
    parser.add_argument("--only", nargs="+", choices=(*READS, *OTHERS), default=(*READS, *OTHERS), help="measure these")
    chosen = parser.parse_args()
    for name in ("members", "width", "repeats", "parts"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name}: expected at least 1, got {getattr(chosen, name)}.")
    if chosen.checkpoints < chosen.parts:
        parser.error(f"--checkpoints: expected at least --parts, got {chosen.checkpoints}.")
    return chosen


def main() -> None:
    """Write the stores, measure, print the tables, write the JSON, remove the stores."""
    chosen = arguments()
    scratch = chosen.folder or ROOT / "zoos"
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=scratch))
    try:
        run(chosen, folder, Console(width=None if sys.stdout.isatty() else 100))
    finally:
        shutil.rmtree(folder)


def run(chosen: argparse.Namespace, folder: Path, console: Console) -> None:
    """Everything between making the scratch folder and removing it."""
    facts = figures.machine(folder)
    layers_report.show_machine(console, facts)
    weights = Weights(resnet18(width=chosen.width), chosen.members, seed=0)
    samples: list[Samples] = []
    results: dict[str, Any] = {
        "machine": facts,
        "settings": {name: getattr(chosen, name) for name in ("members", "width", "repeats", "checkpoints", "parts")},
        "opening": [],
        "import": None,
        "streams": [],
    }
    with Progress(console=console, auto_refresh=False) as progress:
        wanted = [found for found in operations(weights.arch, chosen.members) if found.key in chosen.only]
        peers = PEERS if wanted else PEERS[:1] if "stream" in chosen.only else ()
        for peer in peers:
            (folder / peer.store).mkdir()
            advance(progress, f"write {peer.label}", weights.nbytes, peer.write(folder / peer.store, weights))
        evict(files_of(folder))
        gc.freeze()  # what was imported is not looked through again between the reads
        for found in wanted:
            steps = measure(found, PEERS, folder, chosen.repeats)
            samples.append(last(progress, found.title, chosen.repeats * len(PEERS), steps))
        if "zoos" in chosen.only:
            results["opening"] = list(opening(chosen, folder, progress))
        if "import" in chosen.only:
            results["import"] = layers_open.time_import(3 * chosen.repeats)
        if "stream" in chosen.only:
            results["streams"] = list(streams(weights, folder, progress))
    targets = [*layers_targets.of_reads(samples), *layers_targets.of_opening(results["opening"])]
    targets += [layers_targets.of_import(results["import"])] if results["import"] else []
    targets += layers_targets.of_streams(results["streams"])
    if samples:
        layers_report.show_reads(console, samples, PEERS)
    layers_report.show_small(console, results)
    layers_report.show_targets(console, targets)
    kept = layers_report.content(results, samples, PEERS, targets)
    figures.write(chosen.json, list(layers_report.figures(results, samples, PEERS)), kept)


def opening(chosen: argparse.Namespace, folder: Path, progress: Progress) -> Iterator[dict[str, Any]]:
    """Write and open the zoos of many small checkpoints."""
    for parts in sorted({1, chosen.parts}):
        zoo, count = folder / f"optunet-{parts}", chosen.checkpoints
        rows = layers_open.write_small(zoo, count=count, parts=parts)
        advance(progress, f"write {count:,} OptuNets in {parts} parts", count, rows)
        timed = layers_open.time_open(zoo, count=count, repeats=3 * chosen.repeats)
        yield {"checkpoints": count, "parts": parts, **timed}


def streams(weights: Weights, folder: Path, progress: Progress) -> Iterator[dict[str, Any]]:
    """Memory of streams over half of the checkpoints in a zoo of their own, and over all of them."""
    peer = ZooPeer()
    part = Weights(weights.arch, max(1, weights.members // 2), weights.seed)
    (folder / "part").mkdir()
    advance(progress, "write a smaller zoo", part.nbytes, peer.write(folder / "part", part))
    row_bytes = weights.arch[LAYERS[-1]].nbytes
    for store, members in (("part", part.members), (peer.store, weights.members)):
        for shuffle in (False, True):
            zoo = folder / store / "resnet18"
            yield layers_stream.watch(zoo, LAYERS[-1], row_bytes=row_bytes, members=members, shuffle=shuffle)


def advance(progress: Progress, title: str, total: int, steps: Iterator[int]) -> None:
    """Draw a bar for work that yields how much it did."""
    task = progress.add_task(title, total=total)
    for step in steps:
        progress.advance(task, step)
        progress.refresh()
    progress.update(task, completed=total)
    progress.refresh()


def last(progress: Progress, title: str, total: int, steps: Iterator[Samples]) -> Samples:
    """Draw a bar for measurements, redrawn between them only; the last state is the whole."""
    task = progress.add_task(title, total=total)
    for found in steps:
        progress.advance(task)
        progress.refresh()
        if progress.tasks[task].finished:
            return found
    raise RuntimeError(f"{title}: expected {total} measurements, got fewer.")


if __name__ == "__main__":
    main()
