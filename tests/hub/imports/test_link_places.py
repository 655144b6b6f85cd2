"""Whatever is moved, unmounted, replaced and linked again, a reference reads the numbers that were linked, or nothing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.imports import link_zoo
from tests.hub.imports.test_link import gguf, legacy_file, npz, tar, torch_file
from tests.support.effort import ALL, examples
from tests.support.published_zoos import network

NAME = "w.weight"


def write(folder: Path, count: int, first: int, *, moment: int | None = None) -> None:
    """Files whose numbers tell which they are; all with one time, as archives leave them, where ``moment`` is given."""
    folder.mkdir(parents=True, exist_ok=True)
    there = len(list(folder.iterdir()))
    for number in range(there, there + count):
        path = folder / f"net{number}.safetensors"
        save_file({NAME: np.full((2, 3), first + number, np.float32)}, path)
        if moment is not None:
            os.utime(path, ns=(moment, moment))


def numbers(zoo: Path) -> dict[str, float | None]:
    """The number that tells each checkpoint, by id; None for one whose file cannot be read."""
    opened, found = ckptzoo.open(zoo), dict[str, float | None]()
    for checkpoint in opened:
        try:
            values = np.unique(checkpoint[NAME])
            assert len(values) == 1
            found[checkpoint.id] = float(values[0])
        except ZooError:
            found[checkpoint.id] = None
    return found


def in_files(folder: Path) -> set[float]:
    from safetensors import safe_open

    found = set[float]()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "np") as file:
            found.add(float(file.get_tensor(NAME)[0, 0]))
    return found


STEPS = ("link", "link", "link", "move", "unmount", "mount", "exchange", "rewrite", "copy", "more", "move the zoo")


@settings(max_examples=examples(150, 2), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_link_makes_a_reference_lead_to_other_files(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    root, draw = tmp_path_factory.mktemp("places"), np.random.default_rng(seed)
    zoo, written, known = root / "zoo0", 0, dict[str, float]()
    moment = 10**18 if draw.integers(2) else None
    places = [root / f"disk{number}/nets" for number in range(4)]
    for folder in places[:2]:
        write(folder, 2, written := written + 10, moment=moment)
    link_zoo(places[0], zoo, license="MIT")
    for step in draw.choice(STEPS, 7):
        here = [folder for folder in places if folder.is_dir()]
        away = [folder for folder in places if not folder.is_dir()]
        hidden = [folder.parent / "hidden" for folder in places if (folder.parent / "hidden").is_dir()]
        before = numbers(zoo)
        if not here:
            write(places[0], 2, written := written + 10, moment=moment)
            continue
        folder = here[draw.integers(len(here))]
        if step == "link":
            link_zoo(folder, zoo, license="MIT")
            after = numbers(zoo)
            for name, value in before.items():
                assert value is None or after[name] == value
            # what is there can be read, once
            there = [value for value in after.values() if value in in_files(folder)]
            assert sorted(there) == sorted(in_files(folder)), (step, after)
        elif step == "move" and away:
            away[0].parent.mkdir(exist_ok=True)
            folder.rename(away[0])
        elif step == "unmount":
            shutil.rmtree(folder.parent / "hidden", ignore_errors=True)
            folder.rename(folder.parent / "hidden")
        elif step == "mount" and hidden and not (hidden[0].parent / "nets").exists():
            hidden[0].rename(hidden[0].parent / "nets")
        elif step == "exchange" and len(here) > 1:
            here[0].rename(root / "aside")
            here[1].rename(here[0])
            (root / "aside").rename(here[1])
        elif step == "rewrite":
            shutil.rmtree(folder)
            write(folder, 2, written := written + 10, moment=moment)
        elif step == "more":
            write(folder, 1, written := written + 10, moment=moment)
        elif step == "move the zoo":
            zoo = zoo.rename(root / f"zoo{int(zoo.name[3:]) + 1}")
        # every number that is read is the one that was read first
        for name, value in numbers(zoo).items():
            assert value is None or known.setdefault(name, value) == value, (step, name)
    shutil.rmtree(root)


def notes(source: Path, zoo: Path) -> list[str]:
    return list(link_zoo(source, zoo, license="MIT").notes)


def test_what_becomes_of_a_name_is_said(tmp_path: Path) -> None:
    write(tmp_path / "a/nets", 2, 0)
    write(tmp_path / "b/nets", 2, 10)
    assert notes(tmp_path / "a/nets", tmp_path / "zoo") == []
    # a disk that is not there: another folder of its name takes nothing of it
    (tmp_path / "a/nets").rename(tmp_path / "unmounted")
    (note,) = notes(tmp_path / "b/nets", tmp_path / "zoo")
    assert re.fullmatch(r"files of \S+/b/nets are 'b/nets' in the zoo, which has other files as 'nets'", note)
    (tmp_path / "unmounted").rename(tmp_path / "a/nets")
    assert sorted(map(str, numbers(tmp_path / "zoo").values())) == ["0.0", "1.0", "10.0", "11.0"]
    (tmp_path / "a/nets").rename(tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / "nets")
    (note,) = notes(tmp_path / "nets", tmp_path / "zoo")
    assert re.fullmatch(r"files of 'nets' have moved from \S+/a/nets to \S+/nets, and are read there", note)
    assert None not in numbers(tmp_path / "zoo").values() and notes(tmp_path / "nets", tmp_path / "zoo") == []


SHRINKING = """
import sys
from pathlib import Path
import ckptzoo, ckptzoo.hub.imports.mapped as mapped, ckptzoo.hub.imports.run as run
from ckptzoo.hub.imports import link_zoo
from ckptzoo.hub.imports.link import LinkedZoos
from ckptzoo.hub.imports.reading import Reader

root = Path(sys.argv[1])
def cut(path):
    open(path, "r+b").truncate(int(sys.argv[2]))
def patched(owner, name, path, before):
    whole = getattr(owner, name)
    def instead(*words, **options):
        if before:
            cut(path)
        done = whole(*words, **options)
        if not before:
            cut(path)
        return done
    setattr(owner, name, instead)
    return whole
MOMENTS = {
    "mapped": (mapped.MappedFile, "view", False), "read": (Reader, "read", False), "adding": (LinkedZoos, "add", True),
    "looked at": (LinkedZoos, "_place", True), "placed": (LinkedZoos, "_references", True),
}
for form in sorted(root.iterdir()):
    for moment, (owner, name, before) in MOMENTS.items():
        (path,) = [path for path in form.iterdir() if path.is_file()]
        data = path.read_bytes()
        whole = patched(owner, name, path, before)
        zoo = root.parent / f"zoos/{form.name}-{moment}"
        try:
            link_zoo(form, zoo, license="MIT")
            setattr(owner, name, whole)
            opened = ckptzoo.open(zoo)
            opened[opened.arch.names[-1]][:]
            print(form.name, moment, "was read")
        except ckptzoo.ZooError as error:
            print(form.name, moment, path.name in str(error), str(error)[:300])
        setattr(owner, name, whole)
        path.write_bytes(data)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", ["0", *(pytest.param(size, marks=pytest.mark.exhaustive) for size in ("700", "4100"))])
def test_a_file_that_becomes_shorter_is_an_error_that_names_it(tmp_path: Path, size: str) -> None:
    folder = tmp_path / "forms"
    # each link to a file that is no safetensors starts a process that reads it
    for form in (torch_file, legacy_file, npz, gguf, tar) if ALL else ():
        (folder / form.__name__).mkdir(parents=True)
        form(folder / form.__name__, 7, network(7, width=90))
    (folder / "flat").mkdir(parents=True)
    # equal matrices that begin with a zero are compared, and are no mask
    state = {**network(1, width=90), "head.weight": network(1, width=90)["0.weight"]}
    state["0.weight"][0, 0] = state["head.weight"][0, 0] = 0
    save_file(state, folder / "flat/net.safetensors")
    command = [sys.executable, "-c", SHRINKING, str(folder), size]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, (done.returncode, lines, done.stderr[-2000:])
    assert len(lines) == 5 * len(list(folder.iterdir())) and all(" True " in line for line in lines), lines


def test_a_name_that_is_not_text_is_named_and_the_others_are_linked(tmp_path: Path) -> None:
    write(tmp_path / "nets", 2, 0)
    (tmp_path / "nets/net1.safetensors").rename(os.fsdecode(os.fsencode(tmp_path / "nets") + b"/n\xff.safetensors"))
    for bring in (link_zoo, ckptzoo.import_zoo):
        with pytest.raises(ZooError, match=r"'n.udcff.safetensors': name: expected one in UTF-8"):
            bring(tmp_path / "nets", tmp_path / bring.__name__, license="MIT")
        assert bring(tmp_path / "nets", tmp_path / bring.__name__, license="MIT", skip_bad=True).present == 1
        assert bring(tmp_path / "nets", tmp_path / "b" / bring.__name__, license="MIT", exclude=["n[!e]*"]).added == 1
