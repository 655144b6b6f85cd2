"""What travels to and from a machine with a GPU: which files are chosen, how they are cut, and that they come back."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu_files import Item, join, pack, plan, split, unpack
from tests.support.effort import FEW_EXAMPLES, examples

SIZES = st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 3)), max_size=12)
LIMITS = st.tuples(st.integers(1, 300_000), st.integers(0, 6), st.integers(0, 900_000))


def made(sizes: list[tuple[int, int]]) -> list[Item]:
    return [Item(f"folder/file-{number}", size, rank) for number, (size, rank) in enumerate(sizes)]


@given(SIZES, LIMITS)
def test_every_file_is_packed_whole_or_left_out(sizes: list[tuple[int, int]], limits: tuple[int, int, int]) -> None:
    items = made(sizes)
    chosen = plan(items, *limits)
    slices = sorted((piece for volume in chosen.volumes for piece in volume), key=lambda piece: piece.start)
    for item in items:
        stops = [0]
        for piece in (piece for piece in slices if piece.path == item.path):
            assert piece.start == stops[-1]
            stops.append(piece.stop)
        assert (item.path in chosen.left_out) == (len(stops) == 1)
        assert len(stops) == 1 or stops[-1] == item.size


@given(SIZES, LIMITS)
def test_a_less_valuable_file_never_takes_the_place_of_another(
    sizes: list[tuple[int, int]], limits: tuple[int, int, int]
) -> None:
    items = made(sizes)
    first = [item for item in items if item.rank == 0]
    alone = set(plan(first, *limits).left_out)
    assert {path for path in plan(items, *limits).left_out if path in {item.path for item in first}} == alone


@settings(max_examples=examples(60, FEW_EXAMPLES))
@given(SIZES, LIMITS)
def test_volumes_obey_their_limits_and_their_files_come_back(
    sizes: list[tuple[int, int]], limits: tuple[int, int, int]
) -> None:
    max_file, max_files, max_total = limits
    with tempfile.TemporaryDirectory() as place:
        root, to, back = (Path(place) / name for name in ("root", "to", "back"))
        to.mkdir()
        items = made(sizes)
        for number, item in enumerate(items):
            path = root / item.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(hashlib.shake_128(bytes([number])).digest(item.size))
        (to / "volume-9.tar").write_bytes(b"of a call before")
        chosen = pack(root, items, to, max_file=max_file, max_files=max_files, max_total=max_total)
        volumes = [path.stat().st_size for path in to.iterdir()]
        assert len(volumes) == len(chosen.volumes) <= max_files
        assert max(volumes, default=0) <= max_file
        assert sum(volumes) <= max_total
        assert unpack([to], back) == []
        for item in items:
            if item.path in chosen.left_out:
                assert not (back / item.path).exists()
            else:
                assert (back / item.path).read_bytes() == (root / item.path).read_bytes()


def test_a_large_file_is_cut_and_one_that_lacks_a_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(range(256)) * 4000)
    to = tmp_path / "to"
    to.mkdir()
    pack(tmp_path, [Item("large", 1_024_000)], to, max_file=400_000, max_files=5, max_total=10**7)
    assert len(list(to.iterdir())) == 3
    (to / "volume-1.tar").unlink()
    assert unpack([to], tmp_path / "back") == ["large"]
    assert not (tmp_path / "back" / "large").exists()


@settings(max_examples=examples(60, FEW_EXAMPLES))
@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.integers(1, 100), st.randoms(use_true_random=False)
)
def test_data_in_pieces_is_joined_whatever_comes_when(contents: list[bytes], size: int, random: object) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, pieces, to = (Path(place) / name for name in ("set", "pieces", "to"))
        folder.mkdir()
        for number, content in enumerate(contents):
            (folder / f"part-{number}.npz").write_bytes(content)
        split(folder, pieces, size)
        assert all(path.stat().st_size <= size for path in pieces.glob("*.piece"))
        arriving = sorted(pieces.glob("*.piece"))
        random.shuffle(arriving)  # pyright: ignore[reportAttributeAccessIssue]
        half = len(arriving) // 2
        for number, some in enumerate((arriving[:half], arriving[half:])):
            call = Path(place) / f"call-{number}"
            call.mkdir()
            for path in (*some, pieces / "set.pieces.json"):
                shutil.copy(path, call)
            missing = join([call], to)
            whole = {name: (to / f"set/{name}").exists() for name in (f"part-{i}.npz" for i in range(len(contents)))}
            assert {f"set/{name}" for name, there in whole.items() if not there} == set(missing)
        assert missing == {}
        assert [(to / f"set/part-{number}.npz").read_bytes() for number in range(len(contents))] == contents
        assert not list((to / ".pieces").glob("*.piece"))


def test_a_damaged_piece_counts_as_missing(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "images").write_bytes(b"0123456789")
    assert split(tmp_path / "set", tmp_path / "pieces", 4) == 3
    next((tmp_path / "pieces").glob("*.piece")).write_bytes(b"none")
    assert join([tmp_path / "pieces"], tmp_path / "to") == {"set/images": 1}
