"""Landscape figures: exact for small networks, with errors that hold for others, stored once, whoever measures them."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ckptzoo
from ckptzoo import archs, image_sets
from ckptzoo.derive import Landscape, landscape, landscapes
from ckptzoo.derive.hessians import Hessians
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.measure.spectra import interval_factor
from ckptzoo.schema.architecture import Architecture, Tensor
from tests.support.derived_zoos import ARCH, inputs_of, linked, weights_of, written, zoo_of
from tests.support.effort import examples

CARD = Path(__file__).parents[2] / "cards" / "mnist-optunet"
SMALL = archs.architecture("mlp-tanh-5-4-3")
NAMES = ("loss", "hessian_trace", "hessian_trace_error", "hessian_top", "hessian_top_error")


def inputs(arch: Architecture = SMALL, count: int = 12) -> np.ndarray:
    return inputs_of(arch, count).astype(np.float32)


def measured(path: Path, arch: Architecture = SMALL, count: int = 12, **how: Any) -> Landscape:
    return landscape(path, inputs(arch, count), np.arange(count) % 3, **{"set": "own/test", **how})


def figures(path: Path, name: str | None = None) -> dict[str, np.ndarray]:
    table = ckptzoo.open(path).landscape(name)
    return {column: np.array(table[column].to_pylist(), float) for column in NAMES}


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (path / "landscape").iterdir()}


def test_small_networks_have_exact_figures(tmp_path: Path) -> None:
    weights = weights_of(5, 1, arch=SMALL)
    path = written(tmp_path / "zoo", SMALL, weights)
    found = measured(path)
    assert (found.checkpoints, found.already, found.parameters, found.exact) == (5, 0, SMALL.parameters, True)
    losses, matrices = Hessians(SMALL, inputs(), np.arange(12) % 3).matrices(weights)
    stored = figures(path)
    np.testing.assert_allclose(stored["loss"], losses, rtol=1e-12)
    np.testing.assert_allclose(stored["hessian_trace"], np.trace(matrices, axis1=1, axis2=2), rtol=1e-9)
    np.testing.assert_allclose(stored["hessian_top"], np.linalg.eigvalsh(matrices)[:, -1], rtol=1e-9)
    assert np.isnan(stored["hessian_trace_error"]).all() and np.isnan(stored["hessian_top_error"]).all()
    zoo = ckptzoo.open(path)
    sharp = zoo.where(pc.greater(zoo.landscape()["hessian_top"], float(np.median(stored["hessian_top"]))))
    assert len(sharp) == 2 and len(sharp.landscape()) == 2 and zoo.landscapes == ("own/test",)
    before = files(path)
    again = measured(path)
    assert (again.checkpoints, again.already, again.files) == (0, 5, ()) and files(path) == before
    assert ckptzoo.verify(path) == []


def test_larger_networks_have_errors_that_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_of(6, 1, arch=SMALL)
    exact, path = written(tmp_path / "exact", SMALL, weights), written(tmp_path / "zoo", SMALL, weights)
    measured(exact)
    monkeypatch.setattr(landscapes, "EXACT_SIZE", 3)
    assert not measured(path, seed=3).exact
    right, found = figures(exact), figures(path)
    np.testing.assert_allclose(found["loss"], right["loss"], rtol=1e-12)
    assert (np.abs(found["hessian_top"] - right["hessian_top"]) <= found["hessian_top_error"] + 1e-12).all()
    assert (found["hessian_top_error"] <= 1e-3 * found["hessian_top"]).all()
    off = np.abs(found["hessian_trace"] - right["hessian_trace"])
    # four standard errors: of six intervals of 95 % one may miss
    assert (off <= 4 * found["hessian_trace_error"] + 1e-9).all() and (off <= right["hessian_trace"]).all()


@settings(max_examples=examples(40, 3), deadline=None)
@given(data=st.data())
def test_stopped_and_continued_is_the_same(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is killed, whatever is measured together, and with however many threads."""
    folder, exact = tmp_path_factory.mktemp("stopped"), data.draw(st.booleans())
    count, rows = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    weights = weights_of(count, 1, arch=SMALL)
    whole, other, chosen = written(folder / "whole", SMALL, weights), folder / "other", folder / "chosen"
    for copy in (other, chosen):
        shutil.copytree(whole, copy)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(landscapes, "EXACT_SIZE", 1_000 if exact else 3)
        for name in ("_ROWS", "_LARGE_ROWS"):
            patched.setattr(landscapes, name, rows)
        patched.setattr(landscapes, "cores", lambda: 1)
        # stacks are multiplied at once, in every thread
        patched.setattr(Hessians, "_in_turn", None)
        measured(whole, probes=30)
        kept = landscapes.add_landscape
        for stops in data.draw(st.lists(st.integers(0, 2), max_size=3)):
            left = [stops]

            def add(*arguments: Any, left: list[int] = left) -> str:
                if not left[0]:
                    raise KeyboardInterrupt
                left[0] -= 1
                return kept(*arguments)

            patched.setattr(landscapes, "add_landscape", add)
            with contextlib.suppress(KeyboardInterrupt):
                measured(other, probes=30)
        patched.setattr(landscapes, "add_landscape", kept)
        patched.setattr(landscapes, "cores", lambda: 3)
        measured(other, probes=30)
        assert files(other) == files(whole) and len(files(whole)) == -(-count // rows)
        for at in data.draw(st.permutations(range(count))):
            measured(chosen, probes=30, where={"id": str(at)})
        for name, expected in figures(whole).items():
            np.testing.assert_allclose(figures(chosen)[name], expected, rtol=1e-9, atol=1e-12)


def test_what_is_not_finite_has_no_figures(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (3, 2), spoil=(1,))
    found = measured(path, ARCH, 4)
    assert found.not_finite == 2
    assert np.isnan(figures(path)["hessian_top"]).tolist() == [False, True, False, False, True]
    assert measured(path, ARCH, 4).checkpoints == 0
    huge = {name: array * np.float32(1e30) for name, array in weights_of(2, 0, arch=SMALL).items()}
    found = measured(written(tmp_path / "huge", SMALL, huge))
    assert ckptzoo.verify(tmp_path / "huge") == [] and found.checkpoints == 2


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.layer(given)


def test_a_network_of_ones_own_and_files_of_others(tmp_path: Path) -> None:
    arch = Architecture("own", (Tensor("layer.weight", (3, 4)), Tensor("layer.bias", (3,))), input_shape=(4,))
    path = written(tmp_path / "own", arch, weights_of(2, 0, arch=arch))
    with pytest.raises(ZooError, match=r"forward function: expected one of ckptzoo.archs, got none. Name your own"):
        measured(path, arch)
    assert measured(path, arch, module=Own()).checkpoints == 2
    referring = linked(tmp_path / "linked", SMALL, weights_of(2, 0, arch=SMALL))
    assert measured(referring).checkpoints == 2 and len(files(referring)) == 1


def test_what_makes_no_sense_is_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", SMALL, weights_of(2, 0, arch=SMALL))
    measured(path)

    def refuses(said: str, call: Callable[[], Any], error: type[Exception] = ZooError) -> None:
        with pytest.raises(error, match=said) as caught:
            call()
        assert len(str(caught.value).splitlines()) == 1 and str(caught.value).endswith((".", "?"))

    labels = np.arange(12) % 3
    refuses("labels: expected 12 integers from 0 to 2", lambda: landscape(path, inputs(), labels + 1, set="a/b"))
    refuses("labels: expected 12 integers", lambda: landscape(path, inputs(), labels[:5], set="a/b"))
    refuses("shape of the inputs", lambda: landscape(path, inputs()[:, :3], labels, set="a/b"))
    refuses("shape of the inputs", lambda: landscape(path, inputs()[:0], labels[:0], set="a/b"))
    refuses("name of the set", lambda: measured(path, set="Own"))
    refuses("inputs of own/test: expected sha256:.*, as before", lambda: measured(path, count=9))
    refuses("targets of own/test", lambda: landscape(path, inputs(), labels[::-1].copy(), set="own/test"))
    refuses("checkpoints: expected at least one, got none", lambda: measured(path, where="id == 'none'"))
    refuses("probes: expected", lambda: measured(path, probes=3))
    refuses(
        "set of landscape figures .no/test.: expected one of own/test",
        lambda: ckptzoo.open(path).landscape("no/test"),
        UnknownNameError,
    )
    measured(path, count=9, set="other/test")
    refuses("Name one of them: other/test, own/test", lambda: ckptzoo.open(path).landscape())
    gaussian = archs.architecture("gaussian-mlp-4-3")
    gaussians = written(tmp_path / "gaussians", gaussian, weights_of(2, 0, arch=gaussian))
    refuses("Gaussians over their weights", lambda: landscape(gaussians, inputs(), labels, set="a/b"))
    empty = ckptzoo.create(tmp_path / "none", arch=SMALL)
    refuses("Run ckptzoo landscape", lambda: ckptzoo.open(tmp_path / "none").landscape())
    del empty


@pytest.mark.exhaustive
def test_whole_hessians_and_estimates_of_optunets_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The largest eigenvalue by Lanczos' method is within 1 % of that of the 392 x 392 Hessian, of 64 members."""
    zoo, digits = ckptzoo.open(CARD), image_sets.find("digits/test-100")
    assert digits is not None
    given = digits.normalized((0.1307,), (0.3081,))
    rows = np.random.default_rng(0).choice(len(zoo), 64, replace=False)
    weights = {name: np.asarray(zoo[name][np.sort(rows)]) for name in zoo.arch.names}
    exact, path = written(tmp_path / "exact", zoo.arch, weights), written(tmp_path / "zoo", zoo.arch, weights)
    landscape(exact, given, digits.labels, set="digits/test-100")
    monkeypatch.setattr(landscapes, "EXACT_SIZE", 3)
    landscape(path, given, digits.labels, set="digits/test-100")
    right, found = figures(exact), figures(path)
    np.testing.assert_allclose(found["hessian_top"], right["hessian_top"], rtol=0.01)
    assert (np.abs(found["hessian_top"] - right["hessian_top"]) <= found["hessian_top_error"]).all()
    within = (
        np.abs(found["hessian_trace"] - right["hessian_trace"]) <= interval_factor(64) * found["hessian_trace_error"]
    )
    assert within.sum() >= 55  # the 0.001 quantile of 64 intervals of 95 % is 55
