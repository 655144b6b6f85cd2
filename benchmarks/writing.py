"""Writing, checking, pushing and looking for copies, beside what digests, other clients and other files take.

ResNet-18s in memory are written as a zoo, and the zoo is verified, beside the limit: the two sha256 that every byte
gets, one a core, and beside ``save_file`` of safetensors. The zoo is pushed to a ``ckptzoo serve`` by ``ckptzoo push``
and by huggingface_hub's ``upload_folder``. OptuNets are appended one by one, beside HDF5. Then ``ckptzoo dedupe`` looks
for copies in ever more OptuNets. Each is a process of its own, and contenders take turns in a random order.

``--networks 1000000 --only dedupe --saved`` takes five minutes and 6 GB of disk. ``--checkpoints 4 --rows 1000
--networks 1000 --repeats 1`` takes a minute.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

import ckptzoo
from benchmarks.figures import Figure, figure, machine, ratios, turns, write
from benchmarks.layers_weights import Weights
from benchmarks.server import SERVE, processor_seconds, started, token_of
from ckptzoo import archs

ROOT = Path(__file__).resolve().parent.parent
REPO = "lab/zoo"
PARTS = ("bytes", "push", "append", "dedupe")
BATCH = 4096
"""OptuNets that are drawn at a time."""
COPY_EVERY = 1000
"""One OptuNet in this number is a copy of the one before it with noise added, so that both compute nearly the same."""
NOISE = 1e-6
Spent = dict[str, float]

UPLOAD = """
import sys
from huggingface_hub import HfApi
folder, repo, endpoint, token = sys.argv[1:]
api = HfApi(endpoint=endpoint, token=token)
api.create_repo(repo, repo_type="dataset")
api.upload_folder(repo_id=repo, folder_path=folder, repo_type="dataset")
"""


def resnets(count: int) -> list[dict[str, NDArray[Any]]]:
    """Random ResNet-18s."""
    weights = Weights(archs.architecture("resnet18-100"), count, seed=0)
    return [weights.member(number) for number in range(count)]


def digested(networks: list[dict[str, NDArray[Any]]]) -> None:
    """Two sha256 of all bytes, one a thread."""

    def digest(_: int) -> str:
        state = hashlib.sha256()
        for network in networks:
            for tensor in network.values():
                state.update(tensor.data)
        return state.hexdigest()

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(digest, range(2)))) == 1


def written(networks: list[dict[str, NDArray[Any]]], folder: Path) -> None:
    """The networks as a zoo."""
    with ckptzoo.create(folder / "zoo", arch=archs.architecture("resnet18-100")) as writer:
        for number, network in enumerate(networks):
            writer.add(network, {"id": f"m{number}", "seed": number})


def saved(networks: list[dict[str, NDArray[Any]]], folder: Path) -> None:
    """The networks as a safetensors file each."""
    (folder / "files").mkdir()
    for number, network in enumerate(networks):
        save_file(network, folder / "files" / f"m{number}.safetensors")


def appended(networks: list[dict[str, NDArray[Any]]], folder: Path) -> None:
    """OptuNets as a zoo, one by one."""
    with ckptzoo.create(folder / "appended", arch=archs.architecture("optunet")) as writer:
        for number, network in enumerate(networks):
            writer.add(network, {"id": f"m{number}", "seed": number})


def appended_hdf5(networks: list[dict[str, NDArray[Any]]], folder: Path) -> None:
    """OptuNets as HDF5, an array a tensor that grows by a row each time."""
    with h5py.File(folder / "appended.h5", "w") as file:
        arrays = {
            tensor.name: file.create_dataset(tensor.name, (0, *tensor.shape), "f4", maxshape=(None, *tensor.shape))
            for tensor in archs.architecture("optunet").tensors
        }
        for number, network in enumerate(networks):
            for name, tensor in network.items():
                arrays[name].resize(number + 1, axis=0)
                arrays[name][number] = tensor


def drawn(start: int, count: int) -> dict[str, NDArray[np.float32]]:
    """Random OptuNets, every ``COPY_EVERY``-th of them nearly a copy."""
    rng, arch = np.random.default_rng(start), archs.architecture("optunet")
    copies = np.flatnonzero(np.arange(start, start + count) % COPY_EVERY == 1)
    copies = copies[copies > 0]
    found = {}
    for tensor in arch.tensors:
        values = rng.normal(0, 0.3, (count, *tensor.shape)).astype(np.float32)
        noise = rng.normal(0, NOISE, (len(copies), *tensor.shape)).astype(np.float32)
        values[copies] = values[copies - 1] + noise
        found[tensor.name] = values
    return found


def optunets(count: int) -> list[dict[str, NDArray[np.float32]]]:
    """Random OptuNets, one by one."""
    stacked = drawn(0, count)
    return [{name: values[number] for name, values in stacked.items()} for number in range(count)]


def make_optunets(folder: Path, count: int) -> None:
    """A zoo of random OptuNets with a few near copies."""
    with ckptzoo.create(folder, arch="optunet") as writer:
        for start in range(0, count, BATCH):
            numbers = range(start, min(start + BATCH, count))
            rows = [{"id": f"m{number}", "member": f"m{number}", "seed": number} for number in numbers]
            writer.add(drawn(start, len(numbers)), rows)


def answer(name: str, folder: Path, count: int) -> None:
    """The process of a contender: prepare, act, print what was spent between."""
    networks: list[dict[str, NDArray[Any]]] = []
    if name in ("two digests", "write", "save_file"):
        networks = resnets(count)
    elif name in ("ckptzoo", "HDF5"):
        networks = optunets(count)
    # a process imports once what it needs
    appended(optunets(1), folder)
    ckptzoo.verify(folder / "appended", deep=True)
    shutil.rmtree(folder / "appended")
    acts: dict[str, Callable[[], object]] = {
        "two digests": lambda: digested(networks),
        "write": lambda: written(networks, folder),
        "save_file": lambda: saved(networks, folder),
        "verify --deep": lambda: ckptzoo.verify(folder / "zoo", deep=True),
        "ckptzoo": lambda: appended(networks, folder),
        "HDF5": lambda: appended_hdf5(networks, folder),
    }
    began, worked = time.perf_counter(), time.process_time()
    acts[name]()
    spent = {"seconds": time.perf_counter() - began, "processor": time.process_time() - worked}
    print(json.dumps(spent))


def asked(name: str, folder: Path, count: int) -> Spent:
    """Measure a contender in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.writing", "--run", name, str(folder), str(count)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def run(command: list[str], **environment: str) -> Spent:
    """Run a command; return its seconds, its processor seconds and its largest anonymous memory."""
    began, memory = time.perf_counter(), 0
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.DEVNULL
    ) as process:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            with suppress(OSError, StopIteration):  # it may end meanwhile
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                own = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
                memory = max(memory, own)
            time.sleep(0.01)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: expected an end with 0, got {process.returncode}.")
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "processor": usage.ru_utime + usage.ru_stime, "memory": memory}


def of_bytes(folder: Path, count: int, repeats: int) -> Iterator[Figure]:
    """Writing and verifying beside two digests of every byte."""
    found: dict[str, list[Spent]] = {name: [] for name in ("two digests", "verify --deep", "write", "save_file")}
    for name in turns(("two digests", "write", "save_file"), repeats):
        for left in ("zoo", "files"):
            shutil.rmtree(folder / left, ignore_errors=True)
        found[name].append(asked(name, folder, count))
        if name == "write":  # of what is in the cache of the system
            found["verify --deep"].append(asked("verify --deep", folder, count))
    shutil.rmtree(folder / "files", ignore_errors=True)
    nbytes = count * archs.architecture("resnet18-100").nbytes
    limit = found["two digests"]
    for name, runs in found.items():
        for key, column in (("seconds", "time"), ("processor", "processor time")):
            yield figure("bytes", name, column, [each[key] for each in runs], "s")
        yield figure("bytes", name, "GB a second", [nbytes / 1e9 / each["seconds"] for each in runs], "GB/s")
        shares = ratios([each["seconds"] for each in limit], [each["seconds"] for each in runs])
        yield figure("bytes", name, "speed over that of two digests", shares, "share")


def of_pushing(folder: Path, count: int, repeats: int) -> Iterator[Figure]:
    """Two clients that bring a zoo to a server which knows nothing of it."""
    zoo = folder / "zoo"
    if not zoo.exists():
        asked("write", folder, count)
    ckptzoo.compact(zoo)
    nbytes = sum(path.stat().st_size for path in zoo.rglob("*") if path.is_file())
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    found: dict[str, list[Spent]] = {name: [] for name in ("ckptzoo push", "upload_folder")}
    for name in turns(found, repeats):
        root = Path(tempfile.mkdtemp(dir=folder))
        with started([sys.executable, "-c", SERVE, "--root", str(root), "--port", "0"]) as (server, said):
            token, url = token_of(root, ROOT), said.split()[-1]
            before = processor_seconds(server.pid)
            if name == "upload_folder":
                spent = run(["-c", UPLOAD, str(zoo), REPO, url, token], HF_HUB_DISABLE_XET="1", **quiet)
            else:
                spent = run(["-m", "ckptzoo", "push", str(zoo), REPO], HF_ENDPOINT=url, HF_TOKEN=token, **quiet)
            found[name].append({**spent, "server": processor_seconds(server.pid) - before})
        shutil.rmtree(root)
    for name, runs in found.items():
        for key, column in (("seconds", "time"), ("processor", "processor time"), ("server", "that of the server")):
            yield figure("push", f"{name}, {nbytes / 1e9:.2f} GB", column, [each[key] for each in runs], "s")
        yield figure("push", f"{name}, {nbytes / 1e9:.2f} GB", "memory", [each["memory"] for each in runs], "bytes")


def of_appending(folder: Path, rows: int, repeats: int) -> Iterator[Figure]:
    """OptuNets that are added one by one."""
    found: dict[str, list[Spent]] = {name: [] for name in ("ckptzoo", "HDF5")}
    for name in turns(found, repeats):
        found[name].append(asked(name, folder, rows))
        shutil.rmtree(folder / "appended", ignore_errors=True)
        (folder / "appended.h5").unlink(missing_ok=True)
    for name, runs in found.items():
        yield figure("append", name, "rows a second", [rows / each["seconds"] for each in runs], "rows/s")


def of_dedupe(folder: Path, networks: list[int], *, is_saved: bool) -> Iterator[Figure]:
    """Looking for copies among ever more networks; the first search alone, then with what computes nearly the same."""
    code = "import sys, ckptzoo; from ckptzoo.derive import dedupe; dedupe(ckptzoo.open(sys.argv[1]))"
    for count in networks:
        zoo, blocks = folder / f"optunets-{count}", folder / "blocks"
        make_optunets(zoo, count)
        ckptzoo.compact(zoo)
        commands = {"ckptzoo dedupe": ["-m", "ckptzoo", "dedupe", str(zoo)]}
        if is_saved:
            commands = {"ckptzoo dedupe --saved": [*commands["ckptzoo dedupe"], "--saved", str(blocks)]}
        else:
            commands["ckptzoo.derive.dedupe"] = ["-c", code, str(zoo)]
        for name, command in commands.items():
            spent = run(command)
            row = f"{name}, {count:,} OptuNets"
            yield figure("dedupe", row, "time", [spent["seconds"]], "s")
            yield figure("dedupe", row, "processor time", [spent["processor"]], "s")
            yield figure("dedupe", row, "memory", [spent["memory"]], "bytes")
        shutil.rmtree(zoo)
        shutil.rmtree(blocks, ignore_errors=True)


def main() -> None:
    """Measure, print every figure as it comes, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=24, help="ResNet-18s that are written and pushed (24)")
    parser.add_argument("--rows", type=int, default=20_000, help="OptuNets that are appended (20,000)")
    parser.add_argument("--networks", type=int, nargs="+", default=[8192, 32768, 100_000], help="of dedupe")
    parser.add_argument("--saved", action="store_true", help="dedupe with --saved, as for more networks than fit")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="what is measured (everything)")
    parser.add_argument("--repeats", type=int, default=5, help="of each contender; dedupe runs once (5)")
    parser.add_argument("--folder", type=Path, help="where files go; by default the folder of temporary files")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "writing.json", help="where figures go")
    chosen = parser.parse_args()
    if chosen.run:
        name, place, count = chosen.run
        answer(name, Path(place), int(count))
        return
    folder, found = Path(tempfile.mkdtemp(dir=chosen.folder)), list[Figure]()
    measured: dict[str, Iterator[Figure]] = {
        "bytes": of_bytes(folder, chosen.checkpoints, chosen.repeats),
        "push": of_pushing(folder, chosen.checkpoints, chosen.repeats),
        "append": of_appending(folder, chosen.rows, chosen.repeats),
        "dedupe": of_dedupe(folder, chosen.networks, is_saved=chosen.saved),
    }
    try:
        for part in chosen.only:
            for each in measured[part]:
                found.append(each)
                print(f"{each['row']}: {each['column']} {each['median']:,} {each['unit']}", flush=True)
    finally:
        shutil.rmtree(folder)
    write(chosen.json, found, {"machine": machine(ROOT)})


if __name__ == "__main__":
    main()
