"""Makes the report: every part from its zoos, kept by the digest of what it was made from, and the page of all."""

import base64
import fnmatch
import hashlib
import json
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

import ckptzoo
from builders.report.claims import OPEN
from builders.report.page import PartResult, ReportRow, StudiedZoo, page
from builders.report.parts import PARTS, ReportPart
from ckptzoo import image_sets
from ckptzoo.console import printed_blocks
from ckptzoo.derive import derive, predict
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.format.durable import locked, make_folder, write_file
from ckptzoo.html import Grid
from ckptzoo.hub.contributions.inputs import inputs_to_store, labelled_of
from ckptzoo.progress import progress_bars
from ckptzoo.schema import layout
from ckptzoo.schema.documents import canonical
from ckptzoo.symmetry import gauge_named
from ckptzoo.text import StageProgress

PACKAGES = ("numpy", "pyarrow", "torch", "matplotlib", "pillow")
"""Packages whose versions may decide figures or pictures."""
_PAGE = Path(__file__).with_name("page.py")
_STATISTICS = 10_000
"""Training images for the statistics of BatchNorm, as ``ckptzoo study barriers`` takes them."""


def report(
    zoos: Sequence[str | Path],
    to: str | Path,
    *,
    data: str | Path | None = None,
    only: Sequence[str] = (),
    console: Console | None = None,
) -> Path:
    """Make the report of all parts, or of those that ``only`` names, and return the path of its page.

    ``zoos`` are folders of zoos, of which the first that has a zoo of some name counts. ``to`` is a folder for the
    page (``report.html``, or of some parts one with the name in ``only``, ``parts.html`` of several names), for
    results, each kept by the digest of what it was made from, and for copies of zoos that lack variants or predictions;
    a call after a stop carries on. ``data`` is where data sets are, as ``ckptzoo.image_sets.find`` takes it. What
    cannot be made has its reason on the page.

    Raises ZooError: there is no such part, or a folder of zoos is missing.
    """
    console, folder = console or Console(), Path(to)
    chosen = _chosen(only)
    for each in map(Path, zoos):
        if not each.is_dir():
            raise ZooError(Problem(str(each), "zoos", "a folder that holds zoos", "none", "Name another one."))
    make_folder(folder)
    # one report at a time in a folder: both would copy zoos and predict
    with locked(folder):
        for left in (*folder.glob(".pictures-*"), *folder.glob("zoos/*/.copy-*")):
            shutil.rmtree(left)
        inputs = _Inputs([Path(each) for each in zoos], data, folder)
        made: list[tuple[ReportPart, PartResult]] = []
        for number, part in enumerate(map(inputs.with_sets, chosen), 1):
            began = time.process_time()
            kept, how = _made(part, inputs, folder)
            said = f"{how}, {time.process_time() - began:.1f} s of processor time" if how == "made" else how
            console.print(
                f"{number} of {len(chosen)}  {part.key}: {said}", highlight=False, soft_wrap=True, markup=False
            )
            made.append((part, kept))
        # the names of several parts together may be longer than a file's may be
        name = "report" if not only else only[0] if len(only) == 1 else "parts"
        path = folder / f"{name}.html"
        write_file(path, page(made, _facts()).encode())
    return path


def _chosen(only: Sequence[str]) -> list[ReportPart]:
    for name in only:
        if not any(part.is_named(name) for part in PARTS):
            raise UnknownNameError("report", "part", name, sorted({name for part in PARTS for name in part.names}))
    return [part for part in PARTS if not only or any(map(part.is_named, only))]


def _made(part: ReportPart, inputs: "_Inputs", folder: Path) -> tuple[PartResult, str]:
    """Return the kept part of the page, and whether it was made, was kept, or why it could not be made."""
    if part.study is None:
        rows = [ReportRow(claim.where, claim.says, "", OPEN, claim.open) for claim in part.claims]
        return PartResult(rows), "no study"
    try:
        sources = inputs.sources(part)
        path = folder / "results" / f"{part.key}-{_digest(part, sources)[:16]}.json"
        if (kept := _read(path)) is not None:
            return kept, "kept"
        made = _study(part, inputs, sources, folder)
    except ZooError as error:
        reason = " ".join(str(error).split())
        rows = [ReportRow(claim.where, claim.says, "", OPEN, claim.open) for claim in part.claims]
        return PartResult(rows, reason=reason), f"not made: {reason}"
    make_folder(path.parent)
    write_file(path, canonical(asdict(made)))
    return made, "made"


def _study(part: ReportPart, inputs: "_Inputs", sources: list[StudiedZoo], folder: Path) -> PartResult:
    from ckptzoo.studies.shared.plots import fewer_colours

    assert part.study is not None
    # one display for all stages: preparing zoos is within the study's call
    with progress_bars("number") as update:
        result = part.study(replace(inputs, sets=part.sets, update=update), partial(update, part.key))
    rows: list[ReportRow] = []
    for claim in part.claims:
        ours, verdict = ("", OPEN) if claim.judge is None else claim.judge(result)
        rows.append(ReportRow(claim.where, claim.says, ours, verdict, claim.open))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pictures-") as scratch:
        pictures = [fewer_colours(path.read_bytes()) for path in result.plot(scratch) if path.suffix == ".png"]
    seed = result.to_json().get("seed")
    return PartResult(
        rows,
        [block if isinstance(block, str) else _plain(block) for block in printed_blocks(result)],
        [base64.b64encode(picture).decode() for picture in pictures],
        sources,
        None if seed is None else int(seed),
    )


def _plain(grid: Grid) -> dict[str, Any]:
    return {"rows": [list(row) for row in grid.rows], "header": list(grid.header), "numbers": sorted(grid.numbers)}


def _digest(part: ReportPart, sources: list[StudiedZoo]) -> str:
    """Return the digest of everything that a part is made from: its zoos and inputs, the code, and versions."""
    made_from = {"part": part.key, "sets": part.sets, "sources": [asdict(source) for source in sources], **_facts()}
    return hashlib.sha256(canonical(made_from)).hexdigest()


def _read(path: Path) -> PartResult | None:
    """Return the result that is kept there; None where there is none, or what is there is damaged."""
    try:
        content = json.loads(path.read_bytes())
        rows, sources = content.pop("rows"), content.pop("sources")
        return PartResult(
            [ReportRow(**row) for row in rows], sources=[StudiedZoo(**source) for source in sources], **content
        )
    except (FileNotFoundError, ValueError, TypeError, AttributeError, KeyError):
        return None


@cache
def _facts() -> dict[str, str]:
    """Return the versions of packages and the digest of the code, by name."""
    sha256 = hashlib.sha256()
    for root in (Path(ckptzoo.__file__).parent, Path(__file__).parent):
        # the page is written from what is kept
        for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".csv") and path != _PAGE):
            sha256.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode())
            sha256.update(path.read_bytes())
    versions = {name: version(name) for name in ("ckptzoo", *PACKAGES) if find_spec(name) is not None}
    return {"python": platform.python_version(), **versions, "code": f"sha256:{sha256.hexdigest()}"}


@dataclass(frozen=True)
class _Inputs:
    """The zoos of some folders, and the data sets of another.

    ``work`` has copies of zoos that lacked something; ``sets`` are those of a part; ``update`` is called with what is
    being done.
    """

    folders: list[Path]
    data: str | Path | None
    work: Path
    sets: tuple[str, ...] = ()
    update: StageProgress = lambda what, done, total: None

    def with_sets(self, part: ReportPart) -> ReportPart:
        """Return the part, with its fallback where that is there and the last of its sets is not."""
        if part.fallback and not self._has(part, part.sets[-1]) and self._has(part, part.fallback):
            return part.with_fallback()
        return part

    def _has(self, part: ReportPart, name: str) -> bool:
        """Return whether images of a set are there, or outputs on it in all zoos of a part."""
        paths = [path for pattern in part.zoos for path in self._paths(pattern)]
        return image_sets.find(name, self.data) is not None or (
            bool(paths) and all(name in ckptzoo.open(path).predicted for path in paths)
        )

    def sources(self, part: ReportPart) -> list[StudiedZoo]:
        """Return all that a part is made from, with digests; raises ZooError where a zoo is missing."""
        found: list[StudiedZoo] = []
        for pattern in part.zoos:
            paths = list(self._paths(pattern))
            # of several patterns one is enough: a study of widths takes those that are there
            if not paths and ("*" not in pattern or not any(map(any, map(self._paths, part.zoos)))):
                where = ", ".join(map(str, self.folders))
                step = "The page has the commands." if part.makes else "Name a folder that has it with --zoos."
                raise ZooError(Problem(where, "zoos", f"one named {pattern}", "none", step))
            for path in paths:
                zoo = ckptzoo.open(path)
                found.append(StudiedZoo("zoo", path.name, zoo.revision, f"{len(zoo):,} checkpoints of {zoo.arch.name}"))
        for name in part.sets:
            # outputs that zoos store are part of their revision
            images = image_sets.find(name, self.data)
            if images is not None:
                found.append(StudiedZoo("images", name, images.digest, f"{len(images):,}"))
        return found

    def zoo(self, name: str, variants: Sequence[str] = (), sets: Sequence[str] = ()) -> ckptzoo.Zoo:
        """Return a zoo with these variants and predictions: as it is, or a copy to which they are added."""
        source = next(self._paths(name))
        zoo = ckptzoo.open(source)
        if not _lacking(zoo, variants, sets):
            return zoo
        # images that are missing are noticed before a zoo is copied
        images = {each: inputs_to_store(zoo, each, data=self.data) for each in sets if each not in zoo.predicted}
        copy = self._copied(source, zoo.revision)
        zoo = ckptzoo.open(copy)
        for gauge in (each for each in variants if each not in zoo.variants):
            derive(copy, gauge=gauge_named(gauge), progress=partial(self.update, f"{zoo.name}: {gauge}"))
        for each, seen in images.items():
            progress = partial(self.update, f"{zoo.name}: outputs on {each}")
            predict(copy, seen.inputs, set=each, targets=seen.targets, others=seen.others, progress=progress)
        return ckptzoo.open(copy)

    def every(self, pattern: str) -> list[ckptzoo.Zoo]:
        """Return all zoos whose folders' names match a pattern."""
        return [ckptzoo.open(path) for path in self._paths(pattern)]

    def labelled(self, zoo: ckptzoo.Zoo) -> Labelled:
        """Return the labelled test images of a zoo's data set."""
        return labelled_of(zoo, data=self.data, statistics=_STATISTICS)

    def _paths(self, pattern: str) -> Iterator[Path]:
        """Yield the folders of zoos whose names match, one a name, in the order of names: mlp-64 before mlp-128."""
        by_name: dict[str, Path] = {}
        for folder in self.folders:
            for path in folder.iterdir():
                if fnmatch.fnmatchcase(path.name, pattern) and (path / layout.ZOO).is_file():
                    by_name.setdefault(path.name, path)
        yield from (by_name[name] for name in sorted(by_name, key=_numbered))

    def _copied(self, source: Path, revision: str) -> Path:
        """Return the copy of a zoo at this revision; those of other revisions are removed."""
        copies = self.work / "zoos"
        target = copies / revision.removeprefix("sha256:")[:16] / source.name
        for other in copies.glob(f"*/{source.name}"):
            if other != target:
                shutil.rmtree(other)
        if not target.exists():
            make_folder(target.parent)
            # a whole copy gets its name at once
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copy-") as scratch:
                copy = Path(scratch) / "zoo"
                # what a writer has not finished is in folders with a dot
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".*"))
                if ckptzoo.open(copy).revision != revision:
                    step = "Run the same command again when nothing writes to it."
                    raise ZooError(Problem(source.name, "zoo", "the same while it is copied", "another revision", step))
                copy.rename(target)
        return target


def _numbered(name: str) -> tuple[list[str | int], str]:
    """Return a key that orders names with numbers in them by the numbers: mlp-64 comes before mlp-128."""
    # text and numbers alternate, so that none is compared with the other
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)], name


def _lacking(zoo: ckptzoo.Zoo, variants: Sequence[str], sets: Sequence[str]) -> bool:
    return any(name not in zoo.variants for name in variants) or any(name not in zoo.predicted for name in sets)
