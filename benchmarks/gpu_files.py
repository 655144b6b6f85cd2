"""What travels to and from a machine that takes and gives back only a few small files.

Results travel as tar files, ``volume-<n>.tar``: the most valuable files first, and one that is larger than a volume in
parts, ``<path>.<first byte>-<size>.<digest>.part``, only where all its parts fit. Data travels in pieces, each named
by its digest, with a list of them: ``python -m benchmarks.gpu_files split FOLDER --to PIECES``.
"""

import argparse
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BLOCK, _HEADER, _END = 512, 2048, tarfile.RECORDSIZE
"""Bytes of a tar file: what contents are padded to, the header of a file with a long name, and the end."""
_MIN_PART = 2**16
"""A part of a file is not smaller, unless it is the last."""
_PART = re.compile(r"(?P<path>.+)\.(?P<start>\d+)-(?P<size>\d+)\.(?P<digest>[0-9a-f]{16})\.part")
_PIECES = ".pieces.json"
_KEPT = ".pieces"


def byte_count(text: str) -> int:
    """Bytes of ``16MiB``, ``64KiB`` or ``1000``."""
    matched = re.fullmatch(r"(\d+)(|KiB|MiB|GiB)", text)
    if not matched:
        raise argparse.ArgumentTypeError(f"expected a number of bytes such as 16MiB, got {text!r}")
    return int(matched[1]) * _UNITS[matched[2]]


@dataclass(frozen=True)
class Item:
    """A file that may travel: its path in the folder, its bytes, and its rank, 0 for the most valuable."""

    path: str
    size: int
    rank: int = 0


@dataclass(frozen=True)
class Slice:
    """The bytes of a file from ``start`` to ``stop``."""

    path: str
    start: int
    stop: int

    @property
    def packed(self) -> int:
        """Bytes that it takes in a tar file, at most."""
        return _HEADER + -(-(self.stop - self.start) // _BLOCK) * _BLOCK


@dataclass(frozen=True)
class Plan:
    """The slices of each volume, and the files that do not fit."""

    volumes: tuple[tuple[Slice, ...], ...]
    left_out: tuple[str, ...]


def plan(items: Iterable[Item], max_file: int, max_files: int, max_total: int) -> Plan:
    """Choose files by rank, then by size and name, for at most ``max_files`` volumes of ``max_file`` bytes.

    A file goes whole into the first volume with room for it. One that no empty volume could hold goes in parts into
    whatever room there is, where there is enough; every other file that does not fit is left out.
    """
    rooms: list[int] = []
    for _ in range(max_files):
        size = min(max_file, max_total)
        max_total -= size
        if size > _END + _HEADER:
            rooms.append(size - _END)
    largest = max(rooms, default=0)
    volumes: list[list[Slice]] = [[] for _ in rooms]
    left_out: list[str] = []
    for item in sorted(items, key=lambda item: (item.rank, item.size, item.path)):
        whole = Slice(item.path, 0, item.size)
        at = next((number for number, room in enumerate(rooms) if whole.packed <= room), None)
        slices = [(at, whole)] if at is not None else _cut(item, rooms) if whole.packed > largest else []
        if not slices:
            left_out.append(item.path)
        for number, piece in slices:
            volumes[number].append(piece)
            rooms[number] -= piece.packed
    return Plan(tuple(tuple(volume) for volume in volumes if volume), tuple(left_out))


def _cut(item: Item, rooms: Sequence[int]) -> list[tuple[int, Slice]]:
    """The parts of a file by volume; none where they do not fit."""
    slices: list[tuple[int, Slice]] = []
    start = 0
    for number, room in enumerate(rooms):
        size = min((room - _HEADER) // _BLOCK * _BLOCK, item.size - start)
        if size < min(_MIN_PART, item.size - start):
            continue
        slices.append((number, Slice(item.path, start, start + size)))
        start += size
        if start == item.size:
            return slices
    return []


def pack(root: Path, items: Sequence[Item], to: Path, *, max_file: int, max_files: int, max_total: int) -> Plan:
    """Write the volumes of a plan for files of ``root``; each is replaced whole, and those of before are removed."""
    chosen = plan(items, max_file, max_files, max_total)
    sizes = {item.path: item.size for item in items}
    for number, volume in enumerate(chosen.volumes):
        temporary = to / f".volume-{number}.tmp"
        with tarfile.open(temporary, "w", format=tarfile.GNU_FORMAT) as archive:
            for piece in volume:
                with (root / piece.path).open("rb") as file:
                    file.seek(piece.start)
                    content = file.read(piece.stop - piece.start)
                if len(content) != piece.stop - piece.start:
                    continue
                name = piece.path
                if len(content) != sizes[piece.path]:
                    digest = _digest_of(root / piece.path)[:16]
                    name = f"{piece.path}.{piece.start}-{sizes[piece.path]}.{digest}.part"
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        temporary.replace(to / f"volume-{number}.tar")
    for old in to.glob("volume-*.tar"):
        if int(old.stem.partition("-")[2]) >= len(chosen.volumes):
            old.unlink()
    return chosen


def unpack(folders: Iterable[Path], to: Path) -> list[str]:
    """Bring back the files of volumes, and join those that are in parts; what is there already stays as it is.

    Returns the paths of files that could not be joined: a part is missing, or the digest is another.
    """
    parts: dict[tuple[str, int, str], dict[int, bytes]] = {}
    for folder in folders:
        for volume in sorted(folder.glob("volume-*.tar")):
            with tarfile.open(volume) as archive:
                for member in archive.getmembers():
                    matched = _PART.fullmatch(member.name)
                    if matched:
                        key = matched["path"], int(matched["size"]), matched["digest"]
                        file = archive.extractfile(member)
                        assert file is not None
                        parts.setdefault(key, {})[int(matched["start"])] = file.read()
                    elif not (to / member.name).exists():
                        archive.extract(member, to, filter="data")
    wrong: list[str] = []
    for (path, size, digest), found in parts.items():
        target = to / path
        if target.exists():
            continue
        content = b"".join(found[start] for start in sorted(found))
        if (
            ".." in Path(path).parts
            or Path(path).is_absolute()
            or len(content) != size
            or hashlib.sha256(content).hexdigest()[:16] != digest
        ):
            wrong.append(path)
        else:
            _write(target, content)
    return wrong


def split(folder: Path, to: Path, max_file: int) -> int:
    """Cut every file of a data set's folder into pieces of at most ``max_file`` bytes; returns how many there are."""
    to.mkdir(parents=True, exist_ok=True)
    listed: dict[str, dict[str, object]] = {}
    names: set[str] = set()
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        pieces: list[str] = []
        with path.open("rb") as file:
            while content := file.read(max_file):
                pieces.append(hashlib.sha256(content).hexdigest())
                _write(to / _piece_name(pieces[-1]), content)
        names.update(pieces)
        relative = path.relative_to(folder.parent).as_posix()
        listed[relative] = {"sha256": _digest_of(path), "pieces": pieces}
    _write(to / f"{folder.name}{_PIECES}", json.dumps(listed, indent=1).encode())
    return len(names)


def join(folders: Sequence[Path], to: Path) -> dict[str, int]:
    """Join the files whose pieces are in these folders, or were in a call before; how many pieces each other one lacks.

    Pieces of files that are not complete yet are kept in ``to``, because each call may bring some of them.
    """
    kept = to / _KEPT
    places = [*folders, kept]
    lists = [path for folder in places for path in folder.glob(f"*{_PIECES}")]
    missing: dict[str, int] = {}
    needed: set[str] = set()
    for path in lists:
        for name, facts in json.loads(path.read_text()).items():
            target = to / name
            if ".." in Path(name).parts or Path(name).is_absolute() or target.exists():
                continue
            found = [_find_piece(digest, places) for digest in facts["pieces"]]
            if all(piece is not None for piece in found):
                content = b"".join(piece for piece in found if piece is not None)
                if hashlib.sha256(content).hexdigest() == facts["sha256"]:
                    _write(target, content)
                    continue
            missing[name] = max(1, sum(piece is None for piece in found))
            needed.update(facts["pieces"])
        if path.parent != kept:
            _write(kept / path.name, path.read_bytes())
    for digest in needed:
        content = _find_piece(digest, folders)
        if content is not None:
            _write(kept / _piece_name(digest), content)
    for piece in kept.glob("*.piece"):
        if piece.name not in map(_piece_name, needed):
            piece.unlink()
    return missing


def _piece_name(digest: str) -> str:
    return f"{digest[:32]}.piece"


def _find_piece(digest: str, folders: Iterable[Path]) -> bytes | None:
    """The bytes of a piece; None where no folder has it whole."""
    for folder in folders:
        path = folder / _piece_name(digest)
        if path.is_file() and hashlib.sha256(content := path.read_bytes()).hexdigest() == digest:
            return content
    return None


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Write a file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def write_json(path: Path, content: object) -> None:
    """Write JSON that appears whole."""
    _write(path, (json.dumps(content, indent=1) + "\n").encode())


def main() -> None:
    """Split the folder of a data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="split")
    command = commands.add_parser("split", help="cut the files of a data set into pieces, each named by its digest")
    command.add_argument("folder", type=Path, help="such as data/cifar100")
    command.add_argument("--to", type=Path, required=True, metavar="PIECES", help="folder for the pieces")
    command.add_argument("--max-file", type=byte_count, default=16 * 2**20, help="bytes of a piece (16MiB)")
    chosen = parser.parse_args()
    count = split(chosen.folder.resolve(), chosen.to, chosen.max_file)
    print(f"{chosen.to}: {count} pieces of {chosen.folder}")


if __name__ == "__main__":
    main()
