"""Whether a hub already has a file, whatever it says of it."""

import hashlib
from pathlib import Path

import pytest

from ckptzoo.hub.client.models import RepoFile
from ckptzoo.hub.client.stored_files import LocalFile, is_stored

DATA, OTHER = b"data", b"atad"
SHA256 = hashlib.sha256(DATA).hexdigest()
GIT_ID = "6320cd248dd8aeaab759d5871f8781b5c0505172"  # printf data | git hash-object --stdin


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (None, (False, False)),
        (RepoFile(5, SHA256, GIT_ID), (False, False)),
        (RepoFile(4, SHA256, None), (True, False)),
        (RepoFile(4, SHA256, "of the pointer"), (True, False)),
        (RepoFile(4, None, GIT_ID), (True, False)),
        (RepoFile(4, None, None), (True, True)),
    ],
)
def test_bytes_and_local_files_are_compared_alike(
    stored: RepoFile | None, expected: tuple[bool, bool], tmp_path: Path
) -> None:
    for data, same in zip((DATA, OTHER), expected, strict=True):
        path = tmp_path / "file"
        path.write_bytes(data)
        assert is_stored(data, stored) is same
        assert is_stored(LocalFile(path, len(data), hashlib.sha256(data).hexdigest()), stored) is same


def test_a_local_file_is_read_only_where_the_hub_gives_no_sha256(tmp_path: Path) -> None:
    missing = LocalFile(tmp_path / "none", 4, SHA256)
    assert is_stored(missing, RepoFile(4, SHA256, GIT_ID)) and not is_stored(missing, RepoFile(5, None, GIT_ID))
    with pytest.raises(FileNotFoundError):
        is_stored(missing, RepoFile(4, None, GIT_ID))
