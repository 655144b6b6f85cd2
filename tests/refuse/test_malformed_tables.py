"""Parquet files broken at random and sealed again: refused or read, never a crash, a hang or another exception."""

import contextlib
import hashlib
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.effort import ALL

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "v1"


def sealed(data: bytes) -> bytes:
    at = data.rfind(b'"seal":"') + 8
    if at < 8:
        return data
    blank = data[:at] + b"0" * 64 + data[at + 64 :]
    return data[:at] + hashlib.sha256(blank).hexdigest().encode() + data[at + 64 :]


def hammer(folder: Path, cases: int, seed: int) -> None:
    """Runs in a process of its own, with bounded memory, so that a crash is seen."""
    import resource
    import warnings

    import ckptzoo

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
    rng = random.Random(seed)
    files = sorted(folder.rglob("*.parquet"))
    for _ in range(cases):
        path = rng.choice(files)
        data = path.read_bytes()
        broken = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 5, 20])):
            at = rng.randrange(len(broken))
            broken[at] = rng.choice([rng.randrange(256), 0, 255, broken[at] ^ 1 << rng.randrange(8)])
        made = sealed(bytes(broken))
        place = path
        if path.parent.name == "snapshots":
            place = path.with_name(f"{path.name[:7]}{hashlib.sha256(made).hexdigest()}.parquet")
            path.unlink()
        place.write_bytes(made)
        ckptzoo.verify(folder, deep=False)
        with contextlib.suppress(ckptzoo.ZooError):
            ckptzoo.open(folder).variants  # noqa: B018
        place.unlink()
        path.write_bytes(data)


@pytest.mark.slow
def test_malformed_tables_are_survived(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "zoo")
    command = [sys.executable, "-m", "tests.refuse.test_malformed_tables", str(tmp_path / "zoo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
    hammer(Path(sys.argv[1]), cases=250 if ALL else 60, seed=0)
