"""The pictures of the documentation and of the cards are those that the commands on the pages draw."""

import os
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.support.effort import ALL

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("CKPTZOO_DATA") or ROOT.parent / "shared" / "data")
OTHERWISE_MADE = "explorer.png"
"""The photograph of a page, which differs with the fonts and the Chromium of a machine."""

_spec = util.spec_from_file_location("pictures", ROOT / "docs/pictures.py")
assert _spec is not None and _spec.loader is not None
pictures = util.module_from_spec(_spec)
_spec.loader.exec_module(pictures)
OF_CARDS = [block for block in pictures.blocks() if "zoos/" not in block]
"""Blocks that draw pictures of zoos in ``cards``, which need no training."""
QUICK = "study mass"


def pixels(path: Path) -> NDArray[np.int64]:
    """(H, W, 3) of a picture."""
    return np.asarray(Image.open(path).convert("RGB"), np.int64)


def same(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Whether two pictures show the same: 256 colours, and another order of sums, change little and few pixels."""
    return one.shape == other.shape and bool((np.abs(one - other).max(axis=-1) > 40).mean() < 0.002)


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, marks=() if QUICK in block else pytest.mark.exhaustive) for block in OF_CARDS],
    ids=[block.strip().splitlines()[-1][:60] for block in OF_CARDS],
)
def test_pictures_are_those_that_the_commands_draw(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not DATA.is_dir() and QUICK not in block:
        pytest.skip("no data sets")
    monkeypatch.setenv("CKPTZOO_DATA", str(DATA))
    (tmp_path / "cards").symlink_to(ROOT / "cards")
    pictures.draw(block, tmp_path)
    shown = [(name, target) for name, targets in pictures.places().items() for target in targets]
    drawn = [
        (target, tmp_path / "pictures" / name) for name, target in shown if (tmp_path / "pictures" / name).exists()
    ]
    assert drawn
    assert [str(target) for target, path in drawn if not same(pixels(target), pixels(path))] == []


def test_every_picture_is_shown_and_drawn() -> None:
    places = pictures.places()
    of_pages = {target for targets in places.values() for target in targets if pictures.PICTURES in target.parents}
    assert of_pages == set(pictures.PICTURES.rglob("*.png"))
    folders = {Path(folder) for block in pictures.blocks() for folder in pictures.FOLDER.findall(block)}
    drawn = {name for name in places if name.parts[0] != "thumbnails" and name.name != OTHERWISE_MADE}
    assert len(drawn) >= 20 and {name for name in drawn if Path("pictures", name).parent not in folders} == set()


def test_nothing_in_a_picture_is_cut_at_its_edge() -> None:
    for name, targets in pictures.places().items():
        if name.parts[0] != "thumbnails" and name.name != OTHERWISE_MADE:
            image = pixels(targets[0])
            edges = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
            assert (edges > 245).all(), name


def test_a_picture_is_the_same_wherever_it_is_shown() -> None:
    for targets in pictures.places().values():
        assert len({target.read_bytes() for target in targets}) == 1


def test_thumbnails_are_the_first_panels_of_their_pictures() -> None:
    thumbnails = [name for name in pictures.places() if name.parts[0] == "thumbnails"]
    assert len(thumbnails) >= 16
    for name in thumbnails if ALL else thumbnails[::5]:
        made = pictures.thumbnail(pictures.PICTURES / name.relative_to("thumbnails"))
        assert same(pixels(pictures.PICTURES / name), np.asarray(made.convert("RGB"), np.int64)), name
