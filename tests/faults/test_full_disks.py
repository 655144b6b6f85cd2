"""Full disks: what is said, that nothing broken remains, and that the same call carries on once there is room."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import ckptzoo
from builders.posterior import build as posterior_build
from builders.recipe import Recipe
from ckptzoo.errors import HubError
from ckptzoo.hub.contributions.contribute import contribute
from ckptzoo.hub.pull import pull
from ckptzoo.hub.push import push
from tests.faults.bench import Bench, is_sound, nothing_twice, put, same_files
from tests.faults.counts import COUNTS
from tests.faults.disks import disk
from tests.faults.material import strangers, zoo_of
from tests.faults.operations import OPERATIONS
from tests.faults.processes import Client, Server
from tests.support.effort import ALL
from tests.support.hosted import hosted
from tests.support.hub_zoos import files_of

REPO = "lab/zoo"
pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo of 1.6 MB in two parts."""
    path = zoo_of(tmp_path_factory.mktemp("large") / "zoo", (400, 240))
    ckptzoo.compact(path)
    (path / "listing.json").unlink()
    return path


def test_a_server_without_room_says_so_and_takes_the_rest_later(large: Path, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", 1_200_000) as place, hosted(place.path / "served") as server:
        how = {"endpoint": server.url, "token": server.tokens["write"]}
        with pytest.raises(HubError, match=r"room on the hub's disk.*507.*nothing is sent twice"):
            push(large, REPO, **how)
        COUNTS.disks["server during push"] += 1
        place.resize(8_000_000)
        push(large, REPO, **how)
        nothing_twice(server, 0, REPO)
        bench = Bench(server, tmp_path)
        same_files(bench.downloaded(REPO), large, but="README.md")
        assert len(bench.commits(REPO)) == 2


@pytest.mark.exhaustive
def test_a_server_that_may_not_write_large_files(large: Path, tmp_path: Path) -> None:
    """Where no disk can be mounted: the same with a limit on the size of files."""
    server = Server(tmp_path / "served", limit=300_000)
    bench = Bench(server, tmp_path)  # pyright: ignore[reportArgumentType]
    case = OPERATIONS["push"](bench, large)
    for ending in ("507", "done"):
        told = Client(case.call(), cache=tmp_path / "cache", temporary=tmp_path / "temporary").result(60)
        assert ending in told, told
        server.kill()
        server.limit = None
        server.start()
    COUNTS.disks["server during push, by limit"] += 1
    case.done()
    server.kill()


def test_a_cache_without_room_is_said_once_and_reading_goes_on(bench: Bench, large: Path, tmp_path: Path) -> None:
    repo, near = bench.repo(), ckptzoo.open(large)
    put(bench.server, repo, files_of(large))
    with disk(tmp_path / "disk", 200_000) as place:
        os.environ["CKPTZOO_CACHE"] = str(place.path / "cache")
        with pytest.warns(UserWarning, match=r"cache cannot be written.*CKPTZOO_CACHE") as said:
            far = ckptzoo.open(repo, endpoint=bench.server.url)
            for name in near.arch.names:
                assert np.asarray(far[name]).tobytes() == np.asarray(near[name]).tobytes()
        assert len(said) == 1
        COUNTS.disks["cache during stream"] += 1
        assert not list(place.path.glob("cache/**/.tmp-*"))
        again = ckptzoo.open(repo, endpoint=bench.server.url)  # what was kept is whole
        with pytest.warns(UserWarning, match="cache cannot be written"):
            for name in near.arch.names:
                assert np.asarray(again[name]).tobytes() == np.asarray(near[name]).tobytes()


@pytest.mark.parametrize("layers", [None, ["fc"]])
def test_a_disk_that_fills_while_a_zoo_is_pulled(
    bench: Bench, large: Path, tmp_path: Path, layers: list[str] | None
) -> None:
    repo, nbytes = bench.repo(), sum(map(len, files_of(large).values()))
    put(bench.server, repo, files_of(large))
    with disk(tmp_path / "disk", 2 * nbytes) as place:
        other = place.path / "other"

        def fill(done: int, total: int) -> None:
            """Somebody else takes all room that is left."""
            if not other.exists():
                with other.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, place.free)

        target = place.path / "zoo"
        try:
            pull(repo, target, endpoint=bench.server.url, layers=layers, progress=fill)
            filled = False  # its room was taken before
        except OSError as error:
            filled = True
            assert "expected" in str(error) and "bytes" in str(error) and "what was fetched is kept" in str(error)
        COUNTS.disks["target during pull"] += filled
        assert other.exists() and (filled or layers is None)
        if (target / "zoo.json").exists():
            assert ckptzoo.verify(target, deep=True) == []
        other.unlink()
        pull(repo, target, endpoint=bench.server.url, layers=layers)
        assert ckptzoo.verify(target, deep=True) == []
        assert (
            np.asarray(ckptzoo.open(target)["fc.weight"]).tobytes()
            == np.asarray(ckptzoo.open(large)["fc.weight"]).tobytes()
        )


def test_too_small_a_disk_is_said_before_anything_is_fetched(bench: Bench, large: Path, tmp_path: Path) -> None:
    repo = bench.repo()
    put(bench.server, repo, files_of(large))
    with disk(tmp_path / "disk", 400_000) as place:
        with pytest.raises(OSError, match=r"room on the disk: expected [\d,]+ bytes, got [\d,]+"):
            pull(repo, place.path / "zoo", endpoint=bench.server.url)
        COUNTS.disks["target before pull"] += 1
        place.resize(8_000_000)
        pull(repo, place.path / "zoo", endpoint=bench.server.url)
        same_files(place.path / "zoo", large)


def test_a_contribution_that_finds_no_room_for_what_is_in_the_making(
    bench: Bench, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = bench.repo()
    put(bench.server, repo, files_of(tiny))
    files, card = strangers(tmp_path / "strangers", 40)
    how = {"to": repo, "card": card, "endpoint": bench.server.url, "token": bench.server.tokens["contribute"]}
    with disk(tmp_path / "disk", 40_000) as place:
        monkeypatch.setattr(tempfile, "tempdir", str(place.path))
        with pytest.raises(OSError, match=r"No space left|room"):
            contribute(files, **how)
        COUNTS.disks["temporary during contribute"] += 1
        assert list(place.path.iterdir()) == []
        place.resize(8_000_000)
        assert contribute(files, **how).number == 1
        assert list(place.path.iterdir()) == []
    down = bench.downloaded(repo, "refs/pr/1")
    is_sound(down, ckptzoo.open(down).ids)
    shutil.rmtree(down)


@pytest.mark.exhaustive
@pytest.mark.parametrize("room", [60_000, 90_000, 130_000] if ALL else [90_000])
def test_a_disk_that_fills_while_draws_are_built(tmp_path: Path, room: int) -> None:
    recipe, console = Recipe.load("toy").shortened(2), Console(quiet=True)
    settings = {"epochs": 20, "burn_in": 2, "first_draw": 3, "every": 1}
    given: dict[str, Any] = {"modes": 3, "draws": 18, "changes": settings, "console": console}
    posterior_build.build("sghmc", recipe, tmp_path / "whole", **given)
    with disk(tmp_path / "disk", room) as place:
        with pytest.raises(OSError, match="No space left on device"):
            posterior_build.build("sghmc", recipe, place.path / "zoo", **given)
        place.resize(8_000_000)
        posterior_build.build("sghmc", recipe, place.path / "zoo", **given)
        assert not ckptzoo.verify(place.path / "zoo")
        whole, carried_on = (ckptzoo.open(path) for path in (tmp_path / "whole", place.path / "zoo"))
        assert carried_on.ids == whole.ids
        for name in whole.arch.names:
            assert np.array_equal(carried_on[name][:], whole[name][:])
    COUNTS.disks["while draws are built"] += 1


@pytest.mark.parametrize("behind", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_disk_that_fills_while_a_zoo_is_compacted(tmp_path: Path, behind: bool) -> None:
    """A new snapshot and listing, and those of a zoo that has grown since."""
    zoo = zoo_of(tmp_path / "zoo", (40, 24, 8))
    if behind:
        ckptzoo.compact(zoo)
        with ckptzoo.append(zoo) as writer:
            writer.add(ckptzoo.open(zoo)[0], {"id": "last"})
    rows = ckptzoo.open(zoo).metadata
    used = sum(-(-path.stat().st_size // 4096) * 4096 for path in zoo.rglob("*") if path.is_file())
    for room in range(0, 60_000, 8192 if ALL else 16384):
        with disk(tmp_path / f"disk-{room}", used + room) as place:
            copy = Path(shutil.copytree(zoo, place.path / "zoo"))
            before = files_of(copy)
            try:
                ckptzoo.compact(copy)
                filled = False
            except OSError as error:
                filled = True
                assert "No space left on device. Make room there" in str(error) and str(copy) in str(error)
                assert before.items() <= files_of(copy).items()
            COUNTS.disks["while a zoo is compacted"] += filled
            assert not list(copy.rglob(".*")) and ckptzoo.verify(copy) == []
            assert ckptzoo.open(copy).metadata.equals(rows)
            place.resize(8_000_000)
            ckptzoo.compact(copy)
            assert ckptzoo.verify(copy) == [] and len(list((copy / "snapshots").iterdir())) == 1
    assert not filled, "with the most room"
