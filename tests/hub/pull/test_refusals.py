"""Where a zoo must not be pulled into, what is said, and that nothing there is touched."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.pull import mirror, pull
from ckptzoo.hub.pull.destination import PULL_FOLDER, require_disk_space
from ckptzoo.remote import AbsentError
from ckptzoo.remote.stores import FileEntry
from tests.hub.pull.conftest import verified
from tests.support.hub_zoos import files_of

ROOT = Path(__file__).parents[3]


def test_a_folder_with_something_else(derived: Path, wide: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(ZooError, match=r"a zoo or an empty folder, got one with thesis.tex\. Name another"):
        pull(derived, tmp_path / "mine")
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ZooError, match="a folder or none, got a file"):
        pull(derived, tmp_path / "file", layers=["fc"])
    shutil.copytree(wide, tmp_path / "other")
    before = files_of(tmp_path / "other")
    with pytest.raises(ZooError, match=r"zoo.json: expected that of the zoo to pull, got that of another"):
        pull(derived, tmp_path / "other")
    assert files_of(tmp_path / "other") == before and not (tmp_path / "other" / PULL_FOLDER).exists()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_another_selection_of_the_same_zoo(derived: Path, tmp_path: Path) -> None:
    pull(derived, tmp_path / "got", where="seed < 2")
    before = files_of(tmp_path / "got")
    with pytest.raises(ZooError, match=r"what is pulled here: expected where seed < 2, got variants canonical"):
        pull(derived, tmp_path / "got", variants=["canonical"])
    with pytest.raises(ZooError, match=r"expected where seed < 2, got everything"):
        pull(derived, tmp_path / "got")
    with pytest.raises(ZooError, match=r"expected where seed < 2, got layers fc; where seed < 2"):
        pull(derived, tmp_path / "got", where="seed < 2", layers=["fc"])
    assert files_of(tmp_path / "got") == before
    shutil.copytree(derived, tmp_path / "copy")
    with pytest.raises(ZooError, match="an empty folder, got one that was not pulled with these options"):
        pull(derived, tmp_path / "copy", where="seed < 2")
    assert pull(derived, tmp_path / "copy").parts == ()


def test_the_order_of_names_makes_no_other_selection(derived: Path, tmp_path: Path) -> None:
    pull(derived, tmp_path / "got", layers=["fc", "conv1"], variants=["raw", "canonical"])
    again = pull(derived, tmp_path / "got", layers=["conv1", "fc", "fc"], variants=["canonical", "raw"])
    assert again.parts == ()


def test_two_at_once(derived: Path, tmp_path: Path) -> None:
    own = tmp_path / "got" / PULL_FOLDER
    own.mkdir(parents=True)
    descriptor = os.open(own, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(ZooError, match=r"pull: expected one at a time, got another at work\. Wait"):
            pull(derived, tmp_path / "got")
    finally:
        os.close(descriptor)
    pull(derived, tmp_path / "got")
    verified(tmp_path / "got")


def test_no_such_zoo(tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match="none: a zoo: expected a folder"):
        pull(tmp_path / "none", tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_too_little_room_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"room on the disk: expected 4,611,686,018,427,387,904 bytes, got") as caught:
        require_disk_space(tmp_path, 2**62)
    assert caught.value.errno == errno.ENOSPC and "Make room and repeat" in str(caught.value)


FULL = """
import resource, signal, sys
sys.path.insert(0, {root!r})
from ckptzoo.hub.pull import mirror, pull
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (6_000_000, 6_000_000))  # every file ends here, as on a full disk
try:
    pull({zoo!r}, {target!r}, layers={layers!r})
except OSError as error:
    print(error.errno, error.filename, error.strerror)
"""


@pytest.mark.parametrize("layers", [None, ["big"]])
@pytest.mark.sampled(2)
def test_a_disk_that_is_full_says_what_is_needed_and_the_rest_comes_later(
    wide: Path, tmp_path: Path, layers: list[str] | None
) -> None:
    program = FULL.format(root=str(ROOT), zoo=str(wide), target=str(tmp_path / "got"), layers=layers)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    needed = sum(path.stat().st_size for path in wide.glob("parts/*/*.safetensors")) if layers is None else 24 * 2**20
    assert f"expected {needed:,} bytes, got File too large. Make room and repeat" in done.stdout, done.stderr
    assert str(tmp_path / "got") in done.stdout and not list((tmp_path / "got").glob("parts/0*"))
    pulled = pull(wide, tmp_path / "got", layers=layers)
    assert pulled.checkpoints == 24
    verified(tmp_path / "got")
    assert ckptzoo.open(tmp_path / "got").ids == ckptzoo.open(wide).ids


def test_a_damaged_selection_file_is_written_again(derived: Path, tmp_path: Path) -> None:
    pull(derived, tmp_path / "got")
    (tmp_path / "got" / PULL_FOLDER / "asked.json").write_bytes(b"{}")
    assert pull(derived, tmp_path / "got").parts == ()
    with pytest.raises(ZooError, match="expected everything, got layers fc"):
        pull(derived, tmp_path / "got", layers=["fc"])


def test_parts_with_large_tables_are_not_fetched_together() -> None:
    sizes = {"parts/000001-0/raw-00.safetensors": 10, "parts/000002-0/index.parquet": mirror.FETCH_BYTES - 20}
    sizes |= {"parts/000003-0/metadata.parquet": 5, "parts/000004-0/index.parquet": 6}
    remote: Any = SimpleNamespace(entries={name: FileEntry(name, size, None) for name, size in sizes.items()})
    groups = list(mirror.grouped(remote, [name.rpartition("/")[0] for name in sizes]))
    assert [[path[11] for path in group] for group in groups] == [["1", "2", "3"], ["4"]]
