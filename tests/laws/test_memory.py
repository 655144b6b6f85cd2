"""Memory that a process has for itself, maps of files left out, on zoos that are several times as large."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo import archs
from tests.support.derived_zoos import weights_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
LIMIT = 512 * 2**20
"""Bytes that a process may have; torch alone takes about 150 MiB of them once it is imported."""
DERIVE = "from ckptzoo.derive import derive; derive(sys.argv[1], certify={!r})"
VERIFY = "import ckptzoo; assert ckptzoo.verify(sys.argv[1]) == []"
PREDICT = """
import numpy as np
from ckptzoo.derive import predict
predict(sys.argv[1], np.random.default_rng(0).standard_normal(({}, {})).astype(np.float32), set="random/test")
"""
PAGE = "from ckptzoo.cli import main; sys.argv = ['ckptzoo', 'page', sys.argv[1], '-o', sys.argv[2]]; main()"
WRITE = """
import ckptzoo
from tests.support.derived_zoos import weights_of
count, step = int(sys.argv[2]), 10_000
with ckptzoo.create(sys.argv[1], arch="optunet") as writer:
    for start in range(0, count, step):
        rows = [{"id": f"member-{at:07d}-of-a-recipe", "unit": f"unit-{at // step}", "test_accuracy": at / count,
                 "recipe": "mnist-optunet", "seed": at} for at in range(start, start + step)]
        writer.add(weights_of(step, start), rows)
"""


def own_bytes(process: int | str) -> int:
    """The bytes that a process has for itself now, 0 where it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def run_within(limit: int, statement: str, *args: object) -> None:
    """Run a statement in a process of its own, which is killed as soon as it has more bytes than the limit."""
    environment = {**os.environ, "PYTHONPATH": str(Path(ckptzoo.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", f"import sys\n{statement}", *map(str, args)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None:
                found = own_bytes(process.pid)
                assert found <= limit, f"{found / 2**20:.0f} MiB of at most {limit / 2**20:.0f} in: {statement}"
                time.sleep(0.005)
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.returncode == 0, process.stderr.read()[-2000:]


def test_a_process_over_the_limit_is_killed() -> None:
    with pytest.raises(AssertionError, match="of at most 64 in"):
        run_within(64 * 2**20, "import time; data = b'1' * 2**27; time.sleep(30)")


BOUNDED = """
from ckptzoo.derive import derive, variants
from tests.laws.test_memory import own_bytes
variants.BATCH_BYTES, variants._AT_ONCE_BYTES = 2**20, 5 * 2**20
derive(sys.argv[1], certify="none")  # of a few, so that everything is imported
before = own_bytes("self")
peaks = []
derive(sys.argv[2], certify="none", progress=lambda *_: peaks.append(own_bytes("self") - before))
assert len(peaks) == 32 and max(peaks) < int(sys.argv[3]), max(peaks)
"""


@pytest.mark.exhaustive
def test_variants_in_memory_that_does_not_grow_with_the_zoo(tmp_path: Path) -> None:
    """Less than half of the zoo's weights, of which every copy would be twice as much."""
    arch = archs.architecture("mlp-512-512-10")
    for name, count in (("few", 4), ("many", 32)):
        with ckptzoo.create(tmp_path / name, arch="mlp-512-512-10") as writer:
            for number in range(count):
                writer.add(weights_of(1, number, arch=arch), [{"id": str(number)}])
    half = 16 * arch.nbytes
    run_within(LIMIT, BOUNDED, tmp_path / "few", tmp_path / "many", half)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_large_networks(tmp_path: Path) -> None:
    """48 ResNet-18s, 2.2 GB."""
    arch, zoo = archs.architecture("resnet18-100"), tmp_path / "zoo"
    writer = ckptzoo.create(zoo, arch=arch, symmetry=archs.symmetry("resnet18-100"))
    for number in range(48):
        writer.add(weights_of(1, number, arch=arch), [{"id": str(number)}])
    writer.commit()
    run_within(LIMIT, DERIVE.format("auto"), zoo)
    run_within(LIMIT, DERIVE.format("all"), zoo)
    run_within(LIMIT, PREDICT.format(64, "3, 32, 32"), zoo)
    run_within(LIMIT, PAGE, zoo, tmp_path / "page.html")
    run_within(LIMIT, VERIFY, zoo)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_many_networks(tmp_path: Path) -> None:
    """A million OptuNets, 1.6 GB, in one part."""
    zoo = tmp_path / "zoo"
    run_within(LIMIT, WRITE, zoo, 1_000_000)
    run_within(LIMIT, VERIFY, zoo)
    run_within(LIMIT, DERIVE.format("none"), zoo)
    run_within(LIMIT, PREDICT.format(8, "1, 28, 28"), zoo)
    run_within(LIMIT, PAGE, zoo, tmp_path / "page.html")
    run_within(LIMIT, VERIFY, zoo)
