"""Memory that a process has for itself, maps of files left out, on zoos that are several times as large."""

import subprocess
import sys
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo import archs
from tests.support.derived_zoos import weights_of

LIMIT = 512 * 2**20
RUN = """
import sys, threading, time
peak, ended = 0, threading.Event()
def watch():
    global peak
    while not ended.wait(0.01):
        with open("/proc/self/status") as file:
            peak = max(peak, *(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon")))
thread = threading.Thread(target=watch)
thread.start()
try:
    import ckptzoo
    from ckptzoo.derive import derive
    {statement}
finally:
    ended.set()
    thread.join()
print(peak)
"""


def peak(statement: str, *args: str) -> int:
    """The largest number of bytes of its own that a process has which runs a statement."""
    code = RUN.format(statement=statement)
    environment = {"PYTHONPATH": str(Path(ckptzoo.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", code, *args], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout.splitlines()[-1])


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_variants_of_large_networks(tmp_path: Path) -> None:
    """48 ResNet-18s, 2.2 GB."""
    arch = archs.architecture("resnet18-100")
    writer = ckptzoo.create(tmp_path / "zoo", arch=arch, symmetry=archs.symmetry("resnet18-100"))
    for number in range(48):
        writer.add(weights_of(1, number, arch=arch), [{"id": str(number)}])
    writer.commit()
    assert peak('derive(sys.argv[1], certify="none")', str(tmp_path / "zoo")) < LIMIT
    assert peak("assert ckptzoo.verify(sys.argv[1]) == []", str(tmp_path / "zoo")) < LIMIT


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_variants_of_many_networks(tmp_path: Path) -> None:
    """300,000 OptuNets, 0.5 GB, in one part, whose rows alone would be 0.5 GB of Python objects."""
    count, step = 300_000, 10_000
    with ckptzoo.create(tmp_path / "zoo", arch="optunet") as writer:
        for start in range(0, count, step):
            writer.add(weights_of(step, start), [{"id": f"member-{at:07d}"} for at in range(start, start + step)])
    assert peak('derive(sys.argv[1], certify="none")', str(tmp_path / "zoo")) < LIMIT
    assert peak("assert ckptzoo.verify(sys.argv[1]) == []", str(tmp_path / "zoo")) < LIMIT
