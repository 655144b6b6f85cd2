"""Disks of any size for a test, on machines where a file system can be mounted."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Disk:
    """A file system in memory."""

    path: Path

    def resize(self, nbytes: int) -> None:
        """Change its size in bytes."""
        _mount("-o", f"remount,size={nbytes}", str(self.path))

    @property
    def free(self) -> int:
        """Bytes that are left."""
        return shutil.disk_usage(self.path).free


@contextmanager
def disk(path: Path, nbytes: int) -> Iterator[Disk]:
    """A disk of so many bytes; the test is skipped where none can be mounted."""
    path.mkdir()
    if shutil.which("mount") is None or _mount("-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(path)):
        pytest.skip("no file system can be mounted here")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def _mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode
