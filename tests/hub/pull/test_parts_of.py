"""A part of a zoo is a zoo that holds exactly what was selected, bit for bit as the whole zoo has it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.hub.pull import pull
from ckptzoo.studies.inventory import inventory
from tests.conftest import MIXED, rows_of, weights_of
from tests.hub.pull.conftest import REPO, Publish, verified
from tests.support.effort import examples
from tests.support.hub_zoos import files_of, grown

GAUGES = ("canonical", "first-weight")
LAYERS = ("conv1", "conv2.weight", "fc", "fc.bias")


def same(got: ckptzoo.Zoo, whole: ckptzoo.Zoo, variants: tuple[str, ...]) -> None:
    """Every tensor in every variant, and the metadata of both."""
    assert got.metadata.equals(whole.metadata)
    for variant in variants:
        for name in got.arch.names:
            left, right = np.asarray(got[name, variant]), np.asarray(whole[name, variant])
            assert left.dtype == right.dtype and left.tobytes() == right.tobytes(), (name, variant)
        if variant != "raw":
            left, right = got.variant_metadata(variant), whole.variant_metadata(variant)
            assert left.drop_columns(["unit"]).equals(right.drop_columns(["unit"]))


@settings(max_examples=examples(12, 3), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    variants=st.none() | st.sets(st.sampled_from(["raw", *GAUGES]), min_size=1),
    layers=st.none() | st.sets(st.sampled_from(LAYERS), min_size=1),
    min_accuracy=st.none() | st.sampled_from([0.905, 0.925, 0.935]),
)
def test_any_part_is_a_zoo_with_the_same_bits(
    derived: Path,
    tmp_path_factory: pytest.TempPathFactory,
    variants: set[str] | None,
    layers: set[str] | None,
    min_accuracy: float | None,
) -> None:
    target = tmp_path_factory.mktemp("part") / "got"
    where = None if min_accuracy is None else f"test_accuracy > {min_accuracy}"
    asked: dict[str, Any] = {
        "variants": None if variants is None else sorted(variants),
        "layers": None if layers is None else sorted(layers),
        "where": where,
    }
    pulled = pull(derived, target, **asked)
    whole = ckptzoo.open(derived)
    selected = whole if where is None else whole.where(where)
    expected = tuple(name for name in whole.variants if variants is None or name in variants)
    got = verified(target)
    assert pulled.variants == expected and got.variants == expected
    names = {name for layer in layers or () for name in whole.layers.get(layer, (layer,))} or set(whole.arch.names)
    assert set(got.arch.names) == names
    same(got, selected, expected)
    if names == set(whole.arch.names):
        assert got.arch == whole.arch and got.symmetry == whole.symmetry
        for variant in set(expected) - {"raw"}:
            for name, stack in got.group_element(variant).items():
                assert np.array_equal(np.asarray(stack), np.asarray(selected.group_element(variant)[name]))
    else:
        assert got.arch.forward is None and got.symmetry is None and not list(target.glob("derived/*/*/g-*"))
    again = pull(derived, target, **asked)
    assert again.parts == () and again.there == len(pulled.parts)
    shutil.rmtree(target)


def test_the_same_part_has_the_same_bytes_wherever_it_is_taken_from(
    derived: Path, publish: Publish, tmp_path: Path
) -> None:
    server = publish(derived)
    asked: dict[str, Any] = {"variants": ["canonical"], "layers": ["fc", "conv1"], "where": "seed < 3"}
    pulled = pull(REPO, tmp_path / "one", endpoint=server.url, **asked)
    pull(derived, tmp_path / "two", **asked)
    one, two = (files_of(tmp_path / name) for name in ("one", "two"))
    assert {name for name in one if one[name] != two.get(name)} == {"README.md"} and one.keys() == two.keys()
    text = one["README.md"].decode()
    assert (
        f"took 9 of 12 checkpoints from `hf://datasets/lab/zoo at {server.url}`, revision `{pulled.revision}`" in text
    )
    assert "with variants `canonical`; layers `conv1, fc`; where `seed < 3`." in text
    assert "\n\n# zoo\n" in text or "# zoo" in text
    same(verified(tmp_path / "one"), ckptzoo.open(derived).where("seed < 3"), ("canonical",))
    assert [item.name for item in inventory(ckptzoo.open(tmp_path / "one")).variants] == ["canonical"]
    with pytest.raises(ZooError, match=r"raw weights: expected some, got none.*canonical"):
        np.asarray(ckptzoo.open(tmp_path / "one")["fc.weight"])


def test_parts_name_what_they_were_taken_from(derived: Path, tmp_path: Path) -> None:
    pull(derived, tmp_path / "got", variants=["first-weight"], where="seed == 4")
    whole, got = ckptzoo.open(derived).contents, ckptzoo.open(tmp_path / "got").contents
    assert [part.facts for part in got.raw.parts] == [
        {"kind": "raw", "bare": True, "pulled": {"zoo": "zoo", "part": whole.raw.parts[0].digest}}
    ]
    (part,), source = got.derived("first-weight").parts, whole.derived("first-weight").parts[0]
    raw = got.raw.parts[0].digest
    assert part.facts == {**source.facts, "raw": raw, "pulled": {"zoo": "zoo", "part": source.digest}}
    assert got.derived("first-weight").metadata["unit"].to_pylist() == [raw]
    identity = json.loads((tmp_path / "got" / "zoo.json").read_bytes())
    assert identity == json.loads((derived / "zoo.json").read_bytes())


def test_what_is_added_later_is_extracted_later(derived: Path, tmp_path: Path) -> None:
    source = shutil.copytree(derived, tmp_path / "source" / "zoo")
    asked: dict[str, Any] = {"where": "seed < 2"}
    pull(source, tmp_path / "got", **asked)
    before = files_of(tmp_path / "got")
    grown(source, (4,), start=3)
    assert [path.partition("/")[0] for path in pull(source, tmp_path / "got", **asked).parts] == ["parts"]
    derive(source, certify="none")
    assert [path.rpartition("/")[0] for path in pull(source, tmp_path / "got", **asked).parts] == ["derived/canonical"]
    ckptzoo.retract(source, ["m1-0", "m1-3"], reason="a test")
    with pytest.warns(UserWarning, match="2 of 16 checkpoints retracted"):
        pulled = pull(source, tmp_path / "got", **asked)
    assert [path.rpartition("/")[0] for path in pulled.parts] == ["derived/retracted"] and pulled.checkpoints == 7
    after = files_of(tmp_path / "got")
    assert {name for name, data in before.items() if after[name] != data} == {"README.md", "croissant.json"}
    with pytest.warns(UserWarning, match="retracted"):
        left = ["m0-0", "m0-1", "m1-1", "m2-0", "m2-1", "m3-0", "m3-1"]
        assert ckptzoo.open(tmp_path / "got").ids == left
        assert ckptzoo.verify(tmp_path / "got") == []
    with pytest.warns(UserWarning, match="retracted"):
        fresh = pull(source, tmp_path / "fresh", **asked)
    assert fresh.checkpoints == 7 and not (tmp_path / "fresh" / "derived" / "retracted").exists()


def test_a_part_of_a_part(derived: Path, tmp_path: Path) -> None:
    pull(derived, tmp_path / "one", variants=["canonical"])
    pull(tmp_path / "one", tmp_path / "two", where="seed == 1", layers=["conv2"])
    same(verified(tmp_path / "two"), ckptzoo.open(derived).where("seed == 1"), ("canonical",))
    pulled = pull(tmp_path / "one", tmp_path / "three")
    assert pulled.variants == ("canonical",)
    one, three = (files_of(tmp_path / name) for name in ("one", "three"))
    assert one == three


def test_every_dtype_aliases_and_scalars(tmp_path: Path) -> None:
    weights = weights_of(MIXED, 7)
    with ckptzoo.create(tmp_path / "zoo", arch=MIXED) as writer:
        writer.add(weights, rows_of(7))
    pull(tmp_path / "zoo", tmp_path / "got", layers=["tied.weight", "norm", "half"], where="seed >= 3")
    got = verified(tmp_path / "got")
    assert got.arch.names == ("norm.running_var", "norm.num_batches_tracked", "half.weight", "brain.weight")
    assert got.arch["brain.weight"].aliases == ("tied.weight",)
    for name in got.arch.names:
        assert np.asarray(got[name]).tobytes() == weights[name][3:].tobytes()


def test_only_selected_blocks_are_fetched(wide: Path, publish: Publish, tmp_path: Path) -> None:
    server = publish(wide)
    pull(REPO, tmp_path / "got", layers=["other"], endpoint=server.url)
    wanted = 24 * 64 * 1024 * 4
    assert server.request_log.sent("blob") <= 1.02 * wanted
    same(verified(tmp_path / "got"), ckptzoo.open(wide), ("raw",))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"variants": ["cannonical"]}, r"variant 'cannonical'.*Did you mean canonical"),
        ({"layers": ["conv3"]}, r"layer 'conv3'.*Did you mean conv"),
        ({"where": "test_acuracy > 1"}, r"column 'test_acuracy'.*test_accuracy"),
    ],
)
def test_unknown_names_are_answered_with_near_ones(
    derived: Path, tmp_path: Path, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnknownNameError, match=message):
        pull(derived, tmp_path / "got", **asked)
    assert not (tmp_path / "got").exists()


def test_nothing_at_all_and_nothing_whole_are_refused(derived: Path, tmp_path: Path) -> None:
    source = shutil.copytree(derived, tmp_path / "source" / "zoo")
    grown(source, (2,), start=3)
    for asked, message in (
        ({"where": "seed > 99"}, "checkpoints to pull: expected some, got none where seed > 99"),
        ({"variants": []}, "variants: expected one name or more, got none"),
        ({"layers": ()}, "layers: expected one name or more, got none"),
    ):
        with pytest.raises(ZooError, match=message):
            pull(source, tmp_path / "got", **asked)  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "got").exists()
    pulled = pull(source, tmp_path / "got", layers=["fc"])
    assert pulled.checkpoints == 14 and len(pulled.parts) == 4 + 3 + 3
    with pytest.warns(UserWarning, match="2 of 14 checkpoints are not derived in canonical, and left out"):
        pulled = pull(source, tmp_path / "canonical", variants=["canonical"])
    assert (
        pulled.checkpoints == 12 and pulled.variants == ("canonical",) == ckptzoo.open(tmp_path / "canonical").variants
    )
    verified(tmp_path / "canonical")


@pytest.mark.exhaustive
def test_a_condition_in_any_form(derived: Path, tmp_path: Path) -> None:
    import pyarrow.compute as pc

    texts: list[Callable[[], Any]] = [
        lambda: "seed < 2",
        lambda: [("seed", "<", 2)],
        lambda: pc.field("seed") < 2,
    ]
    for number, text in enumerate(texts):
        pull(derived, tmp_path / str(number), where=text())
        assert pull(derived, tmp_path / str(number), where=text()).parts == ()
        if number:
            assert sorted((tmp_path / str(number) / "parts").iterdir())[0].name == (
                sorted((tmp_path / "0" / "parts").iterdir())[0].name
            )


def test_a_condition_cannot_act_as_markdown(derived: Path, tmp_path: Path) -> None:
    pull(derived, tmp_path / "got", where="id != '``a`\\n# b' and seed == 0")
    message = (tmp_path / "got" / "README.md").read_text().split("\n\n")[0].splitlines()[-1]
    assert message.endswith("with where ```id != '``a`\\n# b' and seed == 0```.")
