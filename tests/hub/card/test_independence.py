"""The section of a page on the independence of members, and the zoos that have one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.hub.card import independence
from ckptzoo.hub.card.independence import independence_section
from tests.support.derived_zoos import weights_of
from tests.support.hosted import hosted

NAME = "mlp-8-10-3"


def zoo_of(folder: Path, starts: list[int], name: str = NAME, **options: Any) -> ckptzoo.Zoo:
    arch = archs.architecture(name)
    begun, noise = weights_of(max(starts) + 1, 1, arch=arch), weights_of(len(starts), 2, arch=arch)
    options = {"symmetry": archs.symmetry(name), **options}
    with ckptzoo.create(folder, arch=arch, **options) as writer:
        writer.add(
            {key: begun[key][starts] + 0.2 * noise[key] for key in begun},
            [{"id": f"n{at}"} for at in range(len(starts))],
        )
    return ckptzoo.open(folder)


def test_a_page_says_whether_members_are_independent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = zoo_of(tmp_path / "zoo", list(range(40)))
    said = independence_section(zoo)
    assert "no sign that members share their initial weights" in said and "20 disjoint pairs" in said
    assert said in ckptzoo.hub.card.readme(zoo, ckptzoo.Card("zoo"))
    assert "**Tested:** members share initial weights" in independence_section(zoo_of(tmp_path / "shared", 40 * [0]))
    assert not independence_section(zoo.take(np.arange(15)))
    monkeypatch.setattr(independence, "MAX_BYTES", 1000)
    assert not independence_section(zoo)


def test_pages_of_other_zoos_say_nothing(tmp_path: Path) -> None:
    starts = list(range(20))
    assert not independence_section(zoo_of(tmp_path / "unknown", starts, symmetry=None))
    assert not independence_section(zoo_of(tmp_path / "small", starts, "mlp-4-3-3"))
    assert not independence_section(zoo_of(tmp_path / "gaussians", starts, f"gaussian-{NAME}"))


def test_a_page_that_is_made_for_a_hub_says_it_too(tmp_path: Path) -> None:
    with hosted(tmp_path / "hub") as hub:
        options: dict[str, Any] = {"endpoint": hub.url, "token": hub.tokens["write"]}
        zoo_of(tmp_path / "zoo", list(range(40)), card=ckptzoo.Card("zoo", license="MIT"))
        done = ckptzoo.push(tmp_path / "zoo", "lab/zoo", **options)
        assert not done.notes
        page = hub.api().hf_hub_download("lab/zoo", "README.md", repo_type="dataset", local_dir=tmp_path / "page")
        assert "no sign that members share their initial weights" in Path(page).read_text()
