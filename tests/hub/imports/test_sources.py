"""Archives are read member by member; damaged, hostile and unsuitable ones are refused by name."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from ckptzoo.errors import ZooError
from ckptzoo.hub.imports.remote_sources import open_source
from ckptzoo.hub.imports.sources import stem
from tests.support.published_zoos import packed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "nets"
    (root / "deep" / "er").mkdir(parents=True)
    for name, data in {"a.pt": b"1", "deep/b.pt": b"22", "deep/er/c.pt": b"", "z.txt": bytes(3_000_000)}.items():
        (root / name).write_bytes(data)
    return root


@pytest.mark.parametrize("suffix", ["", ".tar", ".tgz", ".tar.gz", ".tar.xz", ".zip"])
def test_every_form_gives_the_same_files_and_ends_at_its_size(folder: Path, suffix: str) -> None:
    path = packed(folder, folder.with_name(f"nets{suffix}")) if suffix else folder
    source = open_source(path)
    assert source.name == "nets" and source.address == str(path)
    for _ in range(2):  # as often as one likes
        made = {file.path: file.read(10**7) for file in source.files()}
        assert made == {
            item.relative_to(folder).as_posix(): item.read_bytes() for item in folder.rglob("*") if item.is_file()
        }
        assert 0.9 * source.nbytes <= source.position <= source.nbytes
    assert {file.size for file in source.files()} == {0, 1, 2, 3_000_000}


def test_members_that_are_not_read_are_passed_over(folder: Path) -> None:
    for suffix in (".tgz", ".zip"):
        path = packed(folder, folder.with_name(f"nets{suffix}"))
        assert [file.read(10) for file in open_source(path).files() if file.name == "b.pt"] == [b"22"]


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def link(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("link.pt")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


def zipped(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def test_hostile_and_damaged_archives_are_refused_by_name(tmp_path: Path, folder: Path) -> None:
    named = tarfile.TarInfo
    whole = packed(folder, tmp_path / "whole.tgz").read_bytes()
    stored = zipped(tmp_path / "good.zip", ("a.pt", b"x" * 1000)).read_bytes()
    encrypted = bytearray(stored)
    encrypted[encrypted.rindex(b"PK\x01\x02") + 8] |= 1
    damaged = bytearray(stored)
    damaged[damaged.rindex(b"PK\x01\x02") + 16] ^= 1  # the checksum
    cases = {
        "up.tar": (tar(tmp_path / "up.tar", (named("../a.pt"), b"x")), "a relative path inside the archive"),
        "root.tar": (tar(tmp_path / "root.tar", (named("/a.pt"), b"x")), "a relative path inside the archive"),
        "bell.tar": (tar(tmp_path / "bell.tar", (named("a\x07.pt"), b"x")), "a relative path inside the archive"),
        "link.tar": (tar(tmp_path / "link.tar", (link(tarfile.SYMTYPE), b"")), "expected a file, got a link"),
        "hard.tar": (tar(tmp_path / "hard.tar", (link(tarfile.LNKTYPE), b"")), "expected a file, got a link"),
        "pipe.tar": (tar(tmp_path / "pipe.tar", (link(tarfile.FIFOTYPE), b"")), "a device or a pipe"),
        "twice.tar": (tar(tmp_path / "twice.tar", (named("a"), b"x"), (named("./a"), b"y")), "'a' twice"),
        "cut.tgz": (tmp_path / "cut.tgz", "a whole tar archive"),
        "none.tgz": (tmp_path / "none.tgz", "a whole tar archive"),
        "cut.zip": (tmp_path / "cut.zip", "a whole zip archive"),
        "secret.zip": (tmp_path / "secret.zip", "expected unencrypted bytes"),
        "damaged.zip": (tmp_path / "damaged.zip", "bytes as they were packed"),
        "up.zip": (zipped(tmp_path / "up.zip", ("../a.pt", b"x")), "a relative path inside the archive"),
    }
    (tmp_path / "cut.tgz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "none.tgz").write_bytes(gzip.compress(b"not a tar archive" * 100))
    (tmp_path / "cut.zip").write_bytes(stored[:-30])
    (tmp_path / "secret.zip").write_bytes(encrypted)
    (tmp_path / "damaged.zip").write_bytes(damaged)
    for name, (path, words) in cases.items():
        with pytest.raises(ZooError) as caught:
            for file in open_source(path).files():
                file.read(10**7)
        assert words in str(caught.value) and name in str(caught.value), (name, str(caught.value))
        assert str(caught.value).isprintable()


def test_archives_that_explode_are_refused(tmp_path: Path) -> None:
    tar(tmp_path / "bomb.tar", (tarfile.TarInfo("a.pt"), bytes(1)))
    # a header that declares 2 TiB, and nothing behind it
    info = tarfile.TarInfo("a.pt")
    info.size = 2**41
    with gzip.open(tmp_path / "bomb.tgz", "wb") as out:
        out.write(info.tobuf(tarfile.GNU_FORMAT))
        out.write(bytes(2**20))
    with pytest.raises(ZooError, match="at most 1000 times its size unpacked"):
        list(open_source(tmp_path / "bomb.tgz").files())
    (large,) = open_source(tmp_path / "bomb.tar").files()
    with pytest.raises(ZooError, match="size: expected at most 0 bytes"):
        large.read(0)


def test_links_to_files_in_a_folder_are_followed_and_links_to_folders_are_not(tmp_path: Path, folder: Path) -> None:
    root = tmp_path / "linked"
    root.mkdir()
    (root / "a.pt").symlink_to(folder / "a.pt")
    (root / "again").symlink_to(root)
    (root / "gone.pt").symlink_to(tmp_path / "nothing")
    assert [(file.path, file.read(9)) for file in open_source(root).files()] == [("a.pt", b"1")]


def test_names_without_suffixes() -> None:
    assert [stem(name) for name in ("a.tar.gz", "a.TGZ", "a.b.zip", "a", ".zip")] == ["a", "a", "a.b", "a", ".zip"]
