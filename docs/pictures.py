"""Draws the pictures of the documentation and of the cards again, by the commands that the pages show.

``python docs/pictures.py`` runs the commands of docs/studies.md and cards/README.md that draw into ``pictures``, in the
current folder, which holds ``cards``. What they drew and a page or a card shows is copied to docs/pictures and to
cards/<zoo>/pictures, in 256 colours. ``python docs/pictures.py mass explorer`` draws what these commands draw alone.
``CKPTZOO_DATA`` names the folder of data sets. Zoos in ``zoos`` are used; those that are missing are trained, which
takes hours for some.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ckptzoo.studies.shared.plots import fewer_colours

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
PAGES = (ROOT / "docs" / "studies.md", ROOT / "cards" / "README.md")
EXPLORER = ROOT / "cards" / "mnist-optunet" / "pages" / "explorer.html"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDER = re.compile(r"-o (pictures[\w/-]*)")
_COMMAND = re.compile(r"^ckptzoo (?:study )?([\w-]+)", re.MULTILINE)
_ZOO = re.compile(r"\bzoos/[\w-]+")
_SHOWN = re.compile(r'(?:\]\(|src=")(?:\.\./)*pictures/([\w/-]+\.png)')
_SPINE = 0x9A
"""The grey of the frames of panels, which smoothing makes a little lighter."""
_GAP = 14
"""Rows of white between a panel, with its title and labels, and what is above and below it."""
_LINE = 40
"""The most rows of a line of text."""
_WIDTH = 680
"""The greatest width of a thumbnail: twice that of a column of the gallery, for dense screens."""


def blocks() -> list[str]:
    """The blocks of commands that draw what is shown, each behind the commands that make the zoos it uses."""
    found = [text for page in PAGES for text in _BLOCK.findall(page.read_text(encoding="utf-8"))]
    makers = [line for text in found if "-o pictures" not in text for line in text.splitlines()]
    folders = {Path("pictures", name).parent.as_posix() for name in places()}
    return [
        "\n".join([*(line for line in makers if set(_ZOO.findall(line)) & set(_ZOO.findall(text))), text])
        for text in found
        if folders & set(FOLDER.findall(text))
    ]


def draw(block: str, folder: Path) -> None:
    """Run the commands of a block in a folder that holds ``cards``; they draw into its folder ``pictures``."""
    data = os.environ.get("CKPTZOO_DATA", "FOLDER")
    # the programs of the environment that runs this, and the code beside this file
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    commands = re.sub(r"\bFOLDER\b", data, block)
    subprocess.run(["bash", "-e", "-c", commands], cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)


def places() -> dict[Path, list[Path]]:
    """Where each picture, by its path below ``pictures``, is shown: on a page, in the card of a zoo, or both."""
    found: dict[Path, list[Path]] = {}
    for page in ROOT.glob("docs/**/*.md"):
        for name in map(Path, _SHOWN.findall(page.read_text(encoding="utf-8"))):
            found[name] = [PICTURES / name]
    for path in ROOT.glob("cards/*/pictures/*.png"):
        found.setdefault(Path(path.parts[-3], path.name), []).append(path)
    return found


def copy(drawn: Path) -> None:
    """Copy the pictures of a folder to where they are shown, and make a thumbnail of those that have one."""
    shown = places()
    for name, targets in sorted(shown.items()):
        if not (drawn / name).exists():
            continue
        image = fewer_colours((drawn / name).read_bytes())
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(image)
            print(target.relative_to(ROOT), flush=True)
        if Path("thumbnails", name) in shown:
            small = PICTURES / "thumbnails" / name
            small.parent.mkdir(parents=True, exist_ok=True)
            thumbnail(PICTURES / name).save(small, optimize=True)


def thumbnail(path: Path) -> Image.Image:
    """The first panel of a picture, with its title and labels, without the head of the picture."""
    image = Image.open(path).convert("RGB")
    pixels = np.asarray(image, np.int64)
    framed = (np.abs(pixels - _SPINE).max(axis=2) < 20) & (np.ptp(pixels, axis=2) < 12)
    # the lower frame of the first panel: the topmost row with a long run of its colour
    least = image.width // 6
    lengths = np.cumsum(framed, axis=1)
    foot, start = (int(at) for at in np.argwhere(lengths[:, least:] - lengths[:, :-least] == least)[0])
    white: NDArray[np.bool_] = np.all(pixels > 250, axis=2)
    top = max(_blank(_all(white[:foot, : start + least]), _GAP), default=0) + _GAP // 2
    # what is drawn over the lower frame may hide its beginning, which the left one shows, if there is one
    start = min([start, *np.flatnonzero(framed[top:foot].mean(axis=0) > 0.5)])
    # a title may be wider than its panel
    head = top + int(np.argmax(framed[top:foot, start : start + 3].any(axis=1)))
    # lines of the grid, and the frame where there is none, reach to the end of the panel
    columns = _all(white[head : foot + 2].T)
    end = min((at for at in _blank(columns, 2) if at > start), default=image.width)
    end += int(np.argmin(np.append(columns[end : end + _GAP], False)))
    below = [foot + at for at in _blank(_all(white[foot:, :end]), _GAP)]
    # below the numbers of the axis may be its name, in the middle; a title of the next panel is at the left
    last = max((at for at in below if at < below[0] + _LINE and at - below.index(at) == below[0]), default=below[0])
    line = [at for at in below if last < at < last + _GAP + _LINE]
    named = bool(line) and bool(white[last : line[0], : end // 4].all())
    panel = image.crop((0, top, end, min((line[0] if named else below[0]) + _GAP // 2, image.height)))
    panel.thumbnail((_WIDTH, _WIDTH), Image.Resampling.LANCZOS)
    return panel.quantize(64, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def _all(white: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows are white."""
    return np.asarray(white.all(axis=1))


def _blank(white: NDArray[np.bool_], count: int) -> list[int]:
    """The places from which so many rows or columns are white."""
    return np.flatnonzero(np.convolve(white, np.ones(count), "valid") == count).tolist()


def photograph(target: Path) -> None:
    """Take a picture of a zoo's page for browsers, with Chromium."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        print("explorer: no Chromium is here; its picture stays as it is")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    address = f"{EXPLORER.as_uri()}#colour=test_accuracy"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1300,1880"]
    subprocess.run(
        [program, *options, "--virtual-time-budget=10000", f"--screenshot={target}", address],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def main(only: set[str]) -> None:
    """Draw what some commands draw, or everything, in the current folder, and copy it to where it is shown."""
    drawn = Path("pictures")
    for block in blocks():
        if not only or only & set(_COMMAND.findall(block)):
            draw(block, Path())
    if not only or "explorer" in only:
        photograph((drawn / "explorer.png").absolute())
    copy(drawn)


if __name__ == "__main__":
    main(set(sys.argv[1:]))
