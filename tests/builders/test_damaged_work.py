"""Files of an unfinished build that were damaged, exchanged or replaced: never sealed into a zoo."""

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

import builders.shared
import builders.units
import ckptzoo
from builders.build import build
from builders.checkpointing import WORK_FOLDER, Interrupted
from builders.posterior.build import build as build_draws
from builders.recipe import Recipe
from builders.shared import merge, plan, work
from builders.status import status
from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.schema.documents import seal
from tests.support.builds import QUIET
from tests.support.effort import examples

TOY = Recipe.load("toy").shortened(1)
OPTIONS: dict[str, Any] = {"unit_size": 2, "keep_steps": (1,)}
COLUMNS = ("id", "member", "seed", "step", "train_loss", "test_accuracy", "unit", "diverged")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A zoo built at once; one whose unit's files wait to be merged, one of another plan, one stopped in the middle."""
    root = tmp_path_factory.mktemp("builds")
    build(TOY, root / "whole", members=4, console=QUIET, **OPTIONS)
    for name, members in {"ready": 4, "other": 6, "stopped": 4}.items():
        plan(TOY, root / name, members=members, **OPTIONS)
        with pytest.MonkeyPatch.context() as patched:
            if name == "stopped":
                patched.setattr(builders.shared, "catch_stop_signals", impatient)
                patched.setattr(builders.units, "_SPAN_SECONDS", 1e-9)
            with suppress(Interrupted):
                work(root / name, console=QUIET)
    return {name: root / name for name in ("whole", "ready", "other", "stopped")}


@contextmanager
def impatient() -> Iterator[Callable[[], bool]]:
    """Stop behind the first step that is kept."""
    calls = itertools.count()
    yield lambda: next(calls) >= 3


def files(zoo: Path, pattern: str = "*.safetensors") -> list[Path]:
    return sorted((zoo / WORK_FOLDER / TOY.prefix).glob(pattern))


def content(zoo: Path) -> dict[str, Any]:
    """Of every checkpoint its weights, and what its row says of it."""
    if not (zoo / "parts").exists():
        return {}
    opened = ckptzoo.open(zoo)
    rows = opened.metadata.select(list(COLUMNS)).to_pylist()
    arrays = [np.asarray(opened[name][:]) for name in opened.arch.names]
    return {row["id"]: (row, *(array[at].tobytes() for array in arrays)) for at, row in enumerate(rows)}


def flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def replace(path: Path, kind: str, draw: random.Random) -> None:
    """Put what is no file, or a part of one, in its place."""
    data = path.read_bytes()
    path.unlink()
    match kind:
        case "cut":
            path.write_bytes(data[: int(draw.random() * len(data))])
        case "longer":
            path.write_bytes(data + bytes(draw.randrange(1, 9)))
        case "empty":
            path.write_bytes(b"")
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/dev/zero" if draw.random() < 0.5 else path.with_name("nothing"))
        case "folder":
            path.mkdir()
        case _:
            pass  # it stays away


def damage(zoo: Path, other: Path, draw: random.Random) -> None:
    """One damage, of any kind, to any file."""
    present = [path for path in files(zoo, "*") if path.is_file() and not path.is_symlink()]
    work_files = [path for path in present if path.suffix == ".safetensors"]
    chosen = draw.choice(present)
    match draw.randrange(6) if work_files else 0:
        case 0 | 1:
            flip(chosen, draw)
        case 2:
            replace(chosen, draw.choice(("cut", "longer", "empty", "pipe", "link", "folder", "nothing")), draw)
        case 3:
            second = draw.choice(work_files)
            data = chosen.read_bytes()
            chosen.write_bytes(second.read_bytes())
            second.write_bytes(data)
        case 4 if (other / WORK_FOLDER / TOY.prefix / chosen.name).exists():
            shutil.copyfile(other / WORK_FOLDER / TOY.prefix / chosen.name, chosen)
        case _:
            unseal(draw.choice(work_files))


def unseal(path: Path) -> None:
    """As versions before digests wrote it, with other weights."""
    try:
        arrays = load(path.read_bytes())
    except Exception:  # it is damaged already
        return
    path.write_bytes(save({name: array + 1 for name, array in arrays.items()}, metadata={"rows": "[]", "step": "1"}))


def attempt(command: Callable[[], Any], zoo: Path) -> bool:
    try:
        command()
    except (ZooError, OSError) as error:
        assert str(zoo) in str(error) and len(str(error)) < 2000, error
        return False
    return True


@pytest.mark.slow
def test_nothing_damaged_is_sealed(folders: dict[str, Path], tmp_path: Path) -> None:
    """Of any commands after any damages each refuses by name, or ends well; the zoo holds what an undisturbed one does."""
    expected, whole = content(folders["whole"]), 0
    for number in range(examples(40, 8)):
        draw, zoo = random.Random(number), tmp_path / f"zoo{number}"
        shutil.copytree(folders[draw.choice(("ready", "ready", "stopped"))], zoo)
        for _ in range(draw.choice((1, 1, 2, 4))):
            damage(zoo, folders["other"], draw)
        commands = {
            "merge": lambda zoo=zoo: merge(zoo),
            "work": lambda zoo=zoo: work(zoo, console=QUIET),
            "build": lambda zoo=zoo: build(TOY, zoo, members=4, console=QUIET, **OPTIONS),
            "status": lambda zoo=zoo: status(zoo),
        }
        for name in draw.choices(list(commands), weights=(4, 2, 1, 1), k=3):
            attempt(commands[name], zoo)
        found = content(zoo)
        assert found.items() <= expected.items(), number
        assert ckptzoo.verify(zoo) == []
        whole += found == expected
        shutil.rmtree(zoo)
    assert whole


@pytest.mark.parametrize("kind", ["flip", "cut", "longer", "empty", "pipe", "link", "folder", "swap", "other plan"])
def test_merge_names_the_file(folders: dict[str, Path], tmp_path: Path, kind: str) -> None:
    zoo, draw = tmp_path / "zoo", random.Random(1)
    shutil.copytree(folders["ready"], zoo)
    path, second = draw.sample(files(zoo, "*.kept.*"), 2)
    if kind == "flip":
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    elif kind == "swap":
        path.write_bytes(second.read_bytes())
    elif kind == "other plan":
        shutil.copyfile(folders["other"] / path.relative_to(zoo), path)
    else:
        replace(path, kind, draw)
    with pytest.raises(IntegrityError, match=r"saved work: expected .* Remove it: python -m builders work") as caught:
        merge(zoo)
    assert str(path) in str(caught.value)
    assert content(zoo) == {}
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    assert work(zoo, console=QUIET).units == 1
    assert merge(zoo).left == 0
    assert content(zoo) == content(folders["whole"])


def test_work_without_digests_is_named_and_trained_again(folders: dict[str, Path], tmp_path: Path) -> None:
    """As the version before wrote it; of a state too, from which no training goes on."""
    for name in ("ready", "stopped"):
        zoo = tmp_path / name
        shutil.copytree(folders[name], zoo)
        for path in files(zoo):
            unseal(path)
        if name == "ready":
            with pytest.raises(IntegrityError, match=r"without a digest of 2 units: toy-\S+, toy-\S+\. Run python -m"):
                merge(zoo)
        assert work(zoo, console=QUIET).units == 2
        assert merge(zoo).left == 0
        assert content(zoo) == content(folders["whole"])


def test_a_state_behind_a_step_that_is_gone_is_not_carried_on(folders: dict[str, Path], tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    shutil.copytree(folders["stopped"], zoo)
    (path,) = files(zoo, "*.kept.*")
    path.unlink()
    assert work(zoo, console=QUIET).units == 2
    assert merge(zoo).left == 0 and content(zoo) == content(folders["whole"])


@pytest.mark.parametrize("name", ["plan.json", "lock", "claim", "failures", "log"])
def test_pipes_in_the_place_of_other_files_keep_nobody_waiting(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    zoo = tmp_path / "zoo"
    shutil.copytree(folders["stopped"], zoo)
    folder = zoo / WORK_FOLDER / TOY.prefix
    unit = files(zoo, "*.state.*")[0].name.partition(".")[0]
    names = {"claim": f"{unit}.claim-000001", "failures": f"{unit}.failures.json", "log": f"{unit}.log"}
    path = folder / names.get(name, name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for command in (
        lambda: work(zoo, console=QUIET),
        lambda: build(TOY, zoo, members=4, console=QUIET, **OPTIONS),
        lambda: merge(zoo),
        lambda: status(zoo),
    ):
        attempt(command, zoo)


def test_a_plan_of_another_recipe_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    zoo, other = tmp_path / "zoo", Recipe.load("toy").shortened(2)
    shutil.copytree(folders["ready"], zoo)
    plan(other, tmp_path / "other", members=4, **OPTIONS)
    path = zoo / WORK_FOLDER / TOY.prefix / "plan.json"
    shutil.copyfile(tmp_path / "other" / WORK_FOLDER / other.prefix / "plan.json", path)
    for command in (merge, work):
        with pytest.raises(IntegrityError, match=rf"plan: expected one of {TOY.prefix}, got one of {other.prefix}"):
            command(zoo, TOY)
        with pytest.raises(IntegrityError, match=rf"plan: expected one of {TOY.prefix}, got one of {other.prefix}"):
            command(zoo)
    path.write_bytes(seal({"method": "swag"}))
    with pytest.raises(IntegrityError, match="expected the fields of a BuildPlan"):
        merge(zoo, TOY)


@pytest.mark.parametrize("kind", ["flip", "swap", "cut", "pipe"])
def test_damaged_draws_are_named(tmp_path: Path, kind: str) -> None:
    zoo, draw = tmp_path / "zoo", random.Random(0)
    asked: dict[str, Any] = {"modes": 2, "draws": 2, "unit_size": 2, "console": QUIET}
    build_draws("dropout", TOY, zoo, share=(0, 1), **asked)
    first, second = sorted((zoo / WORK_FOLDER).glob("*/*.kept.*"))
    if kind == "flip":
        data = bytearray(first.read_bytes())
        data[-5] ^= 1
        first.write_bytes(data)
    elif kind == "swap":
        first.write_bytes(second.read_bytes())
    else:
        replace(first, kind, draw)
    with pytest.raises(IntegrityError, match="saved work") as caught:
        build_draws("dropout", TOY, zoo, **asked)
    assert str(first) in str(caught.value)
    first.unlink()
    assert build_draws("dropout", TOY, zoo, **asked).draws == 4
    assert ckptzoo.verify(zoo) == []
