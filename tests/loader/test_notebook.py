"""Zoos, tensors and checkpoints in a notebook, and the keys that IPython offers for them."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import ckptzoo
from ckptzoo import html
from ckptzoo.derive import derive
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.loader.zoo import Zoo
from tests.support.hosted import hosted
from tests.support.html_checks import shown_text
from tests.support.hub_zoos import zoo_of

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>&\"'\u202e\x1b[31m"


def many_tensors(path: Path, count: int) -> Zoo:
    """Two checkpoints of a network of so many tensors with long names; tensors with hostile names are refused."""
    tensors = tuple(ckptzoo.Tensor(f"layer{number:04d}.{'long' * 100}", (2,)) for number in range(count))
    with ckptzoo.create(path, arch=ckptzoo.Architecture("large", tensors), card=ckptzoo.Card(HOSTILE[:29])) as writer:
        rows = [{"id": f"{at}{'<&>' * 60}", "contributor": HOSTILE} for at in range(2)]
        writer.add({tensor.name: np.zeros((2, 2), np.float32) for tensor in tensors}, rows)
    return ckptzoo.open(path)


def test_a_zoo_shows_what_is_in_it(make_zoo: Callable[..., Any]) -> None:
    path, _ = make_zoo()
    zoo = ckptzoo.open(path)
    text = shown_text(zoo.where("seed < 3")._repr_html_())
    for word in (str(path), zoo.revision, "3 of 7", "raw", "seed", "conv.weight", "3 × 2 × 2", "bfloat16", "scalar"):
        assert word in text
    assert "7 of" not in shown_text(zoo._repr_html_())
    assert "3 × 2 × 2" in shown_text(zoo["conv.weight"]._repr_html_())
    assert "m00002" in (text := shown_text(zoo[2]._repr_html_())) and "test_accuracy" in text and "method" not in text


def test_names_of_others_are_text_and_large_zoos_are_cut(tmp_path: Path) -> None:
    zoo = many_tensors(tmp_path / "zoo", 1_000)
    for item in (zoo, zoo[0], zoo[zoo.arch.names[0]]):
        fragment = item._repr_html_()
        assert len(fragment) > 1_000
        assert "\x1b" not in shown_text(fragment) and "\u202e" not in fragment
        assert "<script" not in fragment.lower() and "<img" not in fragment.lower()
    left = re.search(r"([\d,]+) more rows not shown", shown_text(zoo._repr_html_()))
    assert left is not None and 1_000 - html.MAX_ROWS <= int(left[1].replace(",", "")) < 1_000


def test_a_row_of_any_size_is_cut(mixed: ckptzoo.Architecture) -> None:
    row = {"id": "&" * 10_000, **{f"column{number}": HOSTILE * 1_000 for number in range(300)}}
    checkpoint = Checkpoint(mixed, row, "raw", lambda name, private: np.zeros(1), lambda: None)
    text = shown_text(checkpoint._repr_html_())
    assert "301 values" in text and "more rows not shown" in text


def test_it_takes_20_ms_at_most(tmp_path: Path) -> None:
    zoo = many_tensors(tmp_path / "zoo", 1_000)
    for item in (zoo, zoo[0], zoo[zoo.arch.names[0]]):
        seconds = list[float]()
        for _ in range(5):
            start = time.perf_counter()
            item._repr_html_()
            seconds.append(time.perf_counter() - start)
        assert min(seconds) < 0.02


@pytest.mark.usefixtures("isolated_clients")
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
@pytest.mark.parametrize("with_snapshot", [True, False])
def test_nothing_is_fetched_for_it(tmp_path: Path, with_snapshot: bool) -> None:
    path = zoo_of(tmp_path / "zoo")
    if with_snapshot:
        ckptzoo.compact(path)
    derive(path, gauge="unit-norm", certify="none")
    with hosted(tmp_path / "served") as server:
        server.api().create_repo("lab/zoo", repo_type="dataset")
        server.api().upload_folder(folder_path=path, repo_id="lab/zoo", repo_type="dataset")
        zoo = ckptzoo.open("lab/zoo", endpoint=server.url, token=server.tokens["read"])
        tensor, before = zoo["conv1.weight"], len(server.request_log.entries)
        assert "unit-norm" in shown_text(zoo._repr_html_())
        assert ("conv1.weight", "unit-norm") in zoo._ipython_key_completions_()
        assert "conv1.weight" in shown_text(tensor._repr_html_())
        assert len(server.request_log.entries) == before
        _ = tensor[0]
        assert len(server.request_log.entries) > before


@pytest.fixture
def offered(make_zoo: Callable[..., Any]) -> Iterator[Callable[[str], list[str]]]:
    """What IPython offers behind a text, where ``zoo``, ``net`` and ``batch`` are defined."""
    path, _ = make_zoo()
    zoo = ckptzoo.open(path)
    shell = InteractiveShell()
    batch = next(iter(zoo.stream("conv", columns=["seed"])))
    shell.user_ns.update(zoo=zoo, net=zoo[0], batch=batch)

    def complete(text: str) -> list[str]:
        with provisionalcompleter():
            return [item.text for item in shell.Completer.completions(text, len(text))]

    yield complete
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('zoo["conv', ["conv.weight"]),
        ('zoo["tied', ["tied.weight"]),
        ('zoo["half.weight", "', ["raw"]),
        ('net["norm.r', ["norm.running_var"]),
        ('batch["', ["conv.weight", "seed"]),
        ('zoo["nothing', []),
    ],
)
def test_keys_are_completed(offered: Callable[[str], list[str]], text: str, expected: list[str]) -> None:
    quoted = [name.strip("\"[]', ") for name in offered(text)]
    assert sorted(name for name in quoted if name) == expected
