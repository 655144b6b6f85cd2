"""The committed bundle is that of its sources, and released."""

from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.explorer.bundle import BUNDLE, WEB, bundle, recorded_digests, source_digests
from ckptzoo.schema.explorer import BUNDLES, is_released
from tests.support.explorer_pages import payload_of

CARDS = Path(__file__).parents[2] / "cards"


def test_the_bundle_was_built_from_these_sources_and_this_lock_file():
    step = "Run make explorer."
    assert recorded_digests() == source_digests(WEB), step


def test_a_hub_runs_the_bundle():
    assert bundle().script_hash in BUNDLES and bundle().style_hash in BUNDLES


def test_the_lock_file_names_no_registry():
    lock = (WEB / "package-lock.json").read_text()
    assert "://" not in lock and '"resolved"' not in lock and lock.count('"integrity"') > 10


def test_the_bundle_can_stand_in_a_page():
    own = bundle()
    assert "</script" not in own.script.lower() and "<!--" not in own.script
    assert "</style" not in own.style.lower() and "@import" not in own.style and "url(" not in own.style
    assert "eval(" not in own.script and "new Function" not in own.script
    assert own.script.isascii() and own.style.isascii()
    assert sorted(path.name for path in BUNDLE.iterdir()) == ["digests.json", "explorer.css", "explorer.js"]


@pytest.mark.parametrize(
    "name", ["mnist-optunet", "mnist-optunet-trajectories", "mnist-optunet-posteriors", "cifar100-resnet18-w8"]
)
def test_the_pages_of_the_zoos_of_a_clone_are_those_of_their_revisions(name):
    folder = CARDS / name
    page, zoo = folder / "pages/explorer.html", ckptzoo.open(folder)
    assert is_released(page.read_bytes()) and page.stat().st_size < 900_000
    header = payload_of(page).header
    assert (header["revision"], header["total"]) == (zoo.revision, len(zoo.last_steps()))
