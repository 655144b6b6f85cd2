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
        # ticks of the clock are longer than it takes to write such a file
        time = 10**18 + 1 + 7 * (first + number) if moment is None else moment
        os.utime(path, ns=(time, time))


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


def copy(folder: Path, to: Path, *, keep_times: bool) -> None:
    shutil.copytree(folder, to, copy_function=shutil.copy2 if keep_times else shutil.copy)


STEPS = (
    *("link",) * 5,
    *("move", "unmount", "mount", "exchange", "rewrite", "more", "move the zoo"),
    *("copy with times", "copy beside", "copy", "restore", "restore with times", "touch", "verify"),
)


@settings(max_examples=examples(150, 1), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_link_makes_a_reference_lead_to_other_files(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    root, draw = tmp_path_factory.mktemp("places"), np.random.default_rng(seed)
    zoo, written, known, is_copied = root / "zoo0", 0, dict[str, float](), False
    moment = 10**18 if draw.integers(2) else None
    places = [root / f"disk{number}/{'nets' if number < 3 else 'others'}" for number in range(5)]
    for folder in places[:2]:
        write(folder, 2, written := written + 10, moment=moment)
    link_zoo(places[0], zoo, license="MIT")
    for step in draw.choice(STEPS, 9):
        here = [folder for folder in places if folder.is_dir()]
        away = [folder for folder in places if not folder.is_dir()]
        hidden = [folder.parent / "hidden" for folder in places if (folder.parent / "hidden").is_dir()]
        before = numbers(zoo)
        if not here:
            write(places[0], 2, written := written + 10, moment=moment)
            continue
        folder = here[draw.integers(len(here))]
        if step == "link":
            try:
                said = "; ".join(link_zoo(folder, zoo, license="MIT").notes)
            except ZooError as error:
                # nothing tells whether these are copies of what was linked
                assert "files that can be compared" in str(error) and numbers(zoo) == before
                continue
            after = numbers(zoo)
            for name, value in before.items():
                assert value is None or after[name] == value
            # what is there can be read, once, but for what is said to have changed
            there = [value for value in after.values() if value in in_files(folder)]
            assert len(there) == len(set(there)) and ("changed or went" in said or set(there) == in_files(folder)), said
            assert all(value is not None or name in before for name, value in after.items())
        elif step in ("move", "copy with times", "copy", "copy beside") and away:
            to = away[draw.integers(len(away))]
            to.parent.mkdir(exist_ok=True)
            if step == "move":
                folder.rename(to)
            else:
                copy(folder, to, keep_times=step != "copy")
            if step in ("copy with times", "copy"):
                shutil.rmtree(folder)
            # a copy beside what was linked, with another name and other times, is another source
            is_copied = is_copied or step == "copy beside"
        elif step in ("restore", "restore with times", "touch") and not is_copied:
            path = sorted(folder.iterdir())[draw.integers(len(list(folder.iterdir())))]
            if step == "touch":
                path.touch()
                continue
            (shutil.copy if step == "restore" else shutil.copy2)(path, root / "backup")
            path.unlink()
            (shutil.copy if step == "restore" else shutil.copy2)(root / "backup", path)
        elif step == "verify":
            ckptzoo.verify(zoo)
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
        assert len(set(known.values())) == len(known), (step, known)
    shutil.rmtree(root)


def notes(source: Path, zoo: Path) -> list[str]:
    return list(link_zoo(source, zoo, license="MIT").notes)


def test_what_becomes_of_a_name_is_said(tmp_path: Path) -> None:
    write(tmp_path / "a/nets", 2, 0)
    write(tmp_path / "b/nets", 2, 10)
    assert notes(tmp_path / "a/nets", tmp_path / "zoo") == []
    # a disk that is not there: nothing tells whether another folder of its name is a copy
    (tmp_path / "a/nets").rename(tmp_path / "unmounted")
    with pytest.raises(ZooError, match=r"files of the same names and sizes.*verify before files are moved"):
        notes(tmp_path / "b/nets", tmp_path / "zoo")
    assert len(ckptzoo.open(tmp_path / "zoo")) == 2
    (tmp_path / "unmounted").rename(tmp_path / "a/nets")
    (note,) = notes(tmp_path / "b/nets", tmp_path / "zoo")
    assert re.fullmatch(r"files of \S+/b/nets are 'b/nets' in the zoo, which has other files as 'nets'", note)
    assert sorted(map(str, numbers(tmp_path / "zoo").values())) == ["0.0", "1.0", "10.0", "11.0"]
    (tmp_path / "a/nets").rename(tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / "nets")
    (note,) = notes(tmp_path / "nets", tmp_path / "zoo")
    assert re.fullmatch(r"files of 'nets' have moved from \S+/a/nets to \S+/nets, and are read there", note)
    assert None not in numbers(tmp_path / "zoo").values() and notes(tmp_path / "nets", tmp_path / "zoo") == []


@pytest.mark.parametrize("name", ["nets", "moved"])
@pytest.mark.parametrize("digests", [False, True])
@pytest.mark.parametrize("keep_times", [False, True])
def test_a_copy_is_what_was_linked_by_its_times_or_by_digests(
    tmp_path: Path, name: str, digests: bool, keep_times: bool
) -> None:
    write(tmp_path / "a/nets", 3, 0)
    zoo, to = tmp_path / "zoo", tmp_path / "b" / name
    link_zoo(tmp_path / "a/nets", zoo, license="MIT")
    held = numbers(zoo)
    if digests:
        assert ckptzoo.verify(zoo) == []
    copy(tmp_path / "a/nets", to, keep_times=keep_times)
    shutil.rmtree(tmp_path / "a")
    if keep_times:
        assert ckptzoo.open(zoo, follow=to)[NAME][:].shape == (3, 2, 3)
    if not (digests or keep_times):
        with pytest.raises(ZooError, match="ckptzoo verify before files are moved"):
            link_zoo(to, zoo, license="MIT")
        assert len(ckptzoo.open(zoo)) == 3
        return
    said = "; ".join(notes(to, zoo))
    assert f"have moved from {tmp_path}/a/nets to {to}" in said and ("other times" in said) == (not keep_times)
    assert numbers(zoo) == held and ckptzoo.verify(zoo) == [] and notes(to, zoo) == []
    # what was found of a file holds for that file alone
    write(tmp_path / "c", 1, 50)
    (tmp_path / "c/net0.safetensors").replace(to / "net1.safetensors")
    assert list(numbers(zoo).values()).count(None) == 1
    (note,) = notes(to, zoo)
    assert "1 of 'nets' (net1.safetensors)" in note and "changed or went" in note


def test_files_of_one_time_that_change_places_are_told_by_their_inodes(tmp_path: Path) -> None:
    write(tmp_path / "nets", 3, 0, moment=10**18 + 1)
    link_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    first, second, third = sorted((tmp_path / "nets").iterdir())
    for old, new in ((first, tmp_path / "x"), (second, first), (tmp_path / "x", second)):
        old.rename(new)
    shutil.copy2(third, tmp_path / "x")
    (tmp_path / "x").replace(third)
    assert sorted(numbers(tmp_path / "zoo").values(), key=str) == [2.0, None, None]
    # archives set whole seconds, the same for many versions of a file
    write(tmp_path / "others", 1, 0, moment=10**18)
    link_zoo(tmp_path / "others", tmp_path / "other", license="MIT")
    write(tmp_path / "newer", 1, 5, moment=10**18)
    (tmp_path / "newer/net0.safetensors").replace(tmp_path / "others/net0.safetensors")
    with pytest.raises(ZooError, match=r"net0\.safetensors: file: expected the one that was linked"):
        ckptzoo.open(tmp_path / "other")[NAME][:]


def test_a_changed_file_is_named_with_dates_and_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "nets", 2, 0)
    link_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    os.utime(tmp_path / "nets/net1.safetensors", ns=(10**18, 10**18 + 86400 * 10**9 + 5))
    expected = (
        r"nets/net1\.safetensors: modification time: expected 2001-09-09 01:46:40\.000000008 UTC, as when it was linked, "
        r"got 2001-09-10 01:46:40\.000000005 UTC: it was changed since\. Restore.*where\(\"id != "
    )
    with pytest.raises(ZooError, match=expected):
        ckptzoo.open(tmp_path / "zoo")[NAME][:]


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
