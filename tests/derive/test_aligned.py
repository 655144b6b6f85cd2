"""Variants that are aligned with a reference: as any variant, with the same reference for parts that come later."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.cli.app import run
from ckptzoo.derive import align_zoo, derive, draws
from ckptzoo.errors import SymmetryError, UnknownNameError, ZooError
from ckptzoo.hub.pull import pull
from ckptzoo.symmetry import GroupElement, align, apply
from tests.support.derived_zoos import ARCH, TABLE, fill, weights_of, zoo_of

QUICK: dict[str, Any] = {"certify": "none"}


def weights(path: Path, variant: str = "raw") -> dict[str, np.ndarray]:
    zoo = ckptzoo.open(path)
    return {name: np.asarray(zoo[name, variant]) for name in zoo.arch.names}


@pytest.mark.parametrize(("gauge", "scales"), [(None, "fixed"), ("min-mass", "fixed"), (None, "fit")])
@pytest.mark.sampled(2)
def test_the_variant_is_what_align_gives(tmp_path: Path, gauge: str | None, scales: str) -> None:
    path = zoo_of(tmp_path / "zoo", spoil=(2,))
    made = align_zoo(path, "0-1", label="second", gauge=gauge, scales=scales)
    assert (made.gauge, made.checkpoints, made.untouched, made.certified[0].checkpoints) == ("aligned-second", 8, 2, 6)
    raw, zoo = weights(path), ckptzoo.open(path)
    expected = align(raw, {name: array[1] for name, array in raw.items()}, TABLE, gauge=gauge, scales=scales)
    for name, array in weights(path, made.gauge).items():
        np.testing.assert_array_equal(array, expected.weights[name])
    stored = GroupElement.from_tensors({key: np.asarray(value) for key, value in zoo.group_element(made.gauge).items()})
    np.testing.assert_array_equal(stored.perms["conv2"], expected.element.perms["conv2"])
    assert zoo.variant_metadata(made.gauge)["gauged"].to_pylist() == expected.aligned.tolist()
    assert ckptzoo.verify(path) == [] and zoo.variants == ("raw", made.gauge)
    if gauge is None:
        np.testing.assert_allclose(weights(path, made.gauge)["fc.weight"][1], raw["fc.weight"][1], rtol=1e-6)
    assert zoo.contents.derived(made.gauge).parts[0].facts.get("fitted") == (True if scales == "fit" else None)
    if scales == "fit":
        with pytest.raises(SymmetryError, match="fitted: expected True, got False"):
            align_zoo(path, "0-1", label="second", **QUICK)


def test_later_parts_need_the_same_reference(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (5,))
    align_zoo(path, "0-1", label="one", **QUICK)
    fill(path, (3,), start=1)
    with pytest.raises(SymmetryError, match=r"reference: expected checkpoint 0-1 of zoo, got checkpoint 0-2 of zoo"):
        align_zoo(path, "0-2", label="one", **QUICK)
    with pytest.raises(SymmetryError, match=r"scales of the variant: expected .*min-mass.*, got None"):
        align_zoo(path, "0-1", label="one", gauge="min-mass", **QUICK)
    later = align_zoo(path, "0-1", label="one", **QUICK)
    assert (later.checkpoints, later.already) == (3, 5)
    whole = zoo_of(tmp_path / "whole", (5, 3))
    align_zoo(whole, "0-1", label="one", **QUICK)
    for name, array in weights(path, "aligned-one").items():
        np.testing.assert_array_equal(array, weights(whole, "aligned-one")[name])
    assert align_zoo(path, "0-2", label="two", **QUICK).checkpoints == 8


def test_shares_and_elements_alone_give_the_same(tmp_path: Path) -> None:
    alone, shared = (zoo_of(tmp_path / name, (5, 3, 2)) for name in ("a", "b"))
    align_zoo(alone, "0-1", label="one", **QUICK)
    for number in (1, 0):
        align_zoo(shared, "0-1", label="one", store="element", share=(number, 2), **QUICK)
    for name, array in weights(alone, "aligned-one").items():
        np.testing.assert_array_equal(array, weights(shared, "aligned-one")[name])


def test_the_most_accurate_checkpoint(tmp_path: Path) -> None:
    path, accuracies = tmp_path / "zoo", (0.3, 0.9, None, 0.95, 0.5)
    with ckptzoo.create(path, arch=ARCH, symmetry=TABLE) as writer:
        made = weights_of(5, 0)
        made["fc.bias"][3] = np.nan
        writer.add(made, [{"id": f"m{at}", "test_accuracy": value} for at, value in enumerate(accuracies)])
    align_zoo(path, "best", **QUICK)
    part = ckptzoo.open(path).contents.derived("aligned-best").parts[0]
    assert part.facts["source"] == "checkpoint m1 of zoo"
    plain = zoo_of(tmp_path / "plain", (2,))
    with pytest.raises(ZooError, match="test_accuracy: expected one of a finite checkpoint, got none"):
        align_zoo(plain, "best", **QUICK)


def test_a_barycentre_is_a_zoo_of_one_gaussian(tmp_path: Path) -> None:
    path, rng = tmp_path / "zoo", np.random.default_rng(0)
    one = weights_of(1, 0)
    noisy = {
        name: (array + 0.02 * rng.standard_normal((40, *array.shape[1:]))).astype("f4") for name, array in one.items()
    }
    g = GroupElement.random(TABLE, 40, rng)
    g = GroupElement(g.perms, {name: np.ones_like(scale) for name, scale in g.scales.items()})
    with ckptzoo.create(path, arch=ARCH, symmetry=TABLE) as writer:
        writer.add(apply(g, noisy, TABLE), [{"id": f"m{at}"} for at in range(40)])
    made = align_zoo(path, "barycentre")
    kept = ckptzoo.open(tmp_path / "zoo-barycentre")
    aligned = weights(path, made.gauge)
    assert kept.arch.name == "gaussian-optunet" and ckptzoo.verify(tmp_path / "zoo-barycentre") == []
    for name, array in aligned.items():
        np.testing.assert_allclose(np.asarray(kept[name])[0], array.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(np.asarray(kept[f"{name}_std"])[0], array.std(axis=0, ddof=1), atol=1e-6)
        np.testing.assert_allclose(array.std(axis=0).mean(), 0.02, rtol=0.3)
    assert draws(kept, 3, 0, to=tmp_path / "draws")["fc.weight"].shape == (3, 10, 10)
    before = (tmp_path / "zoo-barycentre" / "zoo.json").stat().st_mtime_ns
    with ckptzoo.append(path) as writer:
        writer.add(
            apply(g[:5], {name: array[:5] for name, array in noisy.items()}, TABLE),
            [{"id": f"n{at}"} for at in range(5)],
        )
    again = align_zoo(path, "barycentre", **QUICK)
    assert (again.checkpoints, again.already) == (5, 40)
    assert (tmp_path / "zoo-barycentre" / "zoo.json").stat().st_mtime_ns == before
    np.testing.assert_array_equal(weights(path, made.gauge)["fc.weight"][40:], aligned["fc.weight"][:5])
    elsewhere = align_zoo(path, str(tmp_path / "zoo-barycentre"), label="barycentre", **QUICK)
    assert elsewhere.already == 45


def test_a_barycentre_of_gaussians_is_one_of_them(tmp_path: Path) -> None:
    """Of the 2-Wasserstein distance: the means of the means and of the deviations, aligned."""
    arch, rng = archs.architecture("gaussian-mlp-4-6-2"), np.random.default_rng(0)
    made = {
        name: np.abs(array) + 0.1 if name.endswith("_std") else array
        for name, array in weights_of(1, 0, arch=arch).items()
    }
    noisy = {name: array + 0.01 * rng.random((9, *array.shape[1:]), np.float32) for name, array in made.items()}
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        writer.add(noisy, [{"id": f"m{at}"} for at in range(9)])
    align_zoo(tmp_path / "zoo", "barycentre", **QUICK)
    kept, aligned = ckptzoo.open(tmp_path / "zoo-barycentre"), weights(tmp_path / "zoo", "aligned-barycentre")
    assert kept.arch.digest == arch.digest and ckptzoo.verify(tmp_path / "zoo-barycentre") == []
    for name, array in aligned.items():
        np.testing.assert_allclose(np.asarray(kept[name])[0], array.mean(axis=0), atol=1e-6)


def test_retracted_members_are_no_reference(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    with ckptzoo.create(path, arch=ARCH, symmetry=TABLE) as writer:
        rows = [{"id": f"m{at}", "test_accuracy": 0.5 + at / 10} for at in range(4)]
        writer.add(weights_of(4, 0), rows)
    ckptzoo.retract(path, ["m3"], reason="a test")
    with pytest.warns(UserWarning, match="1 of 4 checkpoints retracted"):
        align_zoo(path, "best", **QUICK)
    with pytest.warns(UserWarning, match="retracted"):
        part = ckptzoo.open(path).contents.derived("aligned-best").parts[0]
    assert part.facts["source"] == "checkpoint m2 of zoo" and part.rows == 4


def test_a_barycentre_that_was_killed_is_made_again(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (4,))
    align_zoo(path, "barycentre", **QUICK)
    made = weights(path, "aligned-barycentre")
    shutil.rmtree(tmp_path / "zoo-barycentre" / "parts")
    shutil.rmtree(path / "derived")
    (tmp_path / "zoo-barycentre" / "README.md").unlink(missing_ok=True)
    with pytest.raises(ZooError, match=r"barycentre in .*: expected one, to share the work, got none"):
        align_zoo(path, "barycentre", share=(0, 2), **QUICK)
    align_zoo(path, "barycentre", **QUICK)
    np.testing.assert_array_equal(weights(path, "aligned-barycentre")["fc.weight"], made["fc.weight"])


def test_aligned_variants_are_pulled_and_streamed(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    derive(path, **QUICK)
    align_zoo(path, "0-1", label="one", **QUICK)
    pull(path, tmp_path / "got", variants=["aligned-one"], layers=["conv2"])
    streamed = [
        batch["conv2.weight"]
        for batch in ckptzoo.open(tmp_path / "got").stream("conv2", variant="aligned-one", batch_size=8)
    ]
    np.testing.assert_array_equal(np.concatenate(streamed), weights(path, "aligned-one")["conv2.weight"])


@pytest.mark.exhaustive
def test_networks_with_normalisation_by_a_module_of_their_own(tmp_path: Path) -> None:
    name = "resnet8-pad-10"
    arch = archs.architecture(name)
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        writer.add(weights_of(3, 0, arch=arch), [{"id": f"m{at}"} for at in range(3)])
    made = align_zoo(tmp_path / "zoo", "barycentre")
    assert made.certified[0].checkpoints == 3 and made.certified[0].random is not None
    assert made.certified[0].random < 1e-12
    assert ckptzoo.verify(tmp_path / "zoo") == []


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo_of(tmp_path / "zoo", (3,), spoil=(2,))
    before = sorted(tmp_path.rglob("*"))

    def refused(match: str, to: str = "0-1", error: type[Exception] = ZooError, **options: Any) -> None:
        with pytest.raises(error, match=match):
            align_zoo(path, to, **{"label": "one", **QUICK, **options})
        assert sorted(tmp_path.rglob("*")) == before

    refused("label: expected one for this reference, got none", label=None)
    for label in ("A b", "x" * 57, "-", "../x"):
        refused("label: expected small letters, digits and hyphens", label=label)
    refused("scales 'fitted'", error=UnknownNameError, scales="fitted")
    refused("method for scales 'fit': expected weights, got activations", scales="fit", method="activations")
    refused(r"gauge 'min-max'.*Did you mean min-mass", error=UnknownNameError, gauge="min-max")
    refused("reference '0-9': expected one of best, barycentre, 0-0", "0-9", error=UnknownNameError)
    refused("reference: tensor '.*': expected finite numbers, got others", "0-2", error=SymmetryError)
    assert run(["align", str(path), "--to", "0-9", "--label", "one"]) == 2
    assert "Did you mean 0-2" in capsys.readouterr().err
    other = tmp_path / "other"
    with ckptzoo.create(other, arch=archs.architecture("mlp-2-3-1")) as writer:
        writer.add(weights_of(1, 0, arch=archs.architecture("mlp-2-3-1")), [{"id": "one"}])
    before = sorted(tmp_path.rglob("*"))
    refused(r"tensors of the reference: expected conv1.weight \(2, 1, 4, 4\), got none", str(other), SymmetryError)
    two = zoo_of(tmp_path / "two", (2,))
    before = sorted(tmp_path.rglob("*"))
    refused("checkpoints: expected one, the reference, got 2", str(two))
