"""The page of a zoo: its laws, and zoos that are odd."""

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import derive
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.explorer import page
from ckptzoo.explorer.bundle import bundle
from ckptzoo.schema.card import Card
from ckptzoo.symmetry import GroupElement, apply
from tests.support.derived_zoos import ARCH, TABLE, weights_of
from tests.support.explorer_pages import optunets, payload_of, rows_with_gaps


def made(path: Path, **options: object) -> tuple[str, ckptzoo.Zoo]:
    zoo = ckptzoo.open(path)
    page(zoo, path.parent / "page.html", **options)  # type: ignore[arg-type]
    return (path.parent / "page.html").read_text(encoding="utf-8"), zoo


def test_columns_that_filter_are_the_zoos_bit_for_bit(tmp_path):
    text, zoo = made(optunets(tmp_path / "zoo", rows_with_gaps(150)))
    data = payload_of(text)
    for name in ("test_accuracy", "test_nll", "test_brier"):
        column = zoo.column(name)
        is_null = column.is_null().to_numpy()
        assert data.columns[name].tobytes() == column.fill_null(float("nan")).to_numpy().astype("<f8").tobytes()
        nulls = data.columns.get(f"{name}:null", np.zeros(150, np.uint8))
        np.testing.assert_array_equal(nulls, is_null)
    lengths = data.columns["id_lengths"]
    ids = data.columns["id_bytes"].tobytes().decode()
    assert [ids[end - length : end] for length, end in zip(lengths, lengths.cumsum(), strict=True)] == zoo.ids
    codes, (licence,) = data.columns["license"], [c for c in data.header["categories"] if c["name"] == "license"]
    texts = [None if code == 255 else licence["texts"][code] for code in codes]
    assert texts == zoo.column("license").to_pylist() and licence["missing"] == texts.count(None)


def test_grey_bars_are_numpys_histograms_of_all_members_also_of_a_sample(tmp_path):
    path = optunets(tmp_path / "zoo", rows_with_gaps(150))
    text, zoo = made(path, max_rows=40)
    data = payload_of(text)
    assert (data.header["rows"], data.header["total"]) == (40, 150) and "40 of 150 members" in text
    for measure in data.header["measures"]:
        name = measure["name"]
        if not measure["is_column"]:
            continue
        values = zoo.column(name).drop_null().to_numpy()
        finite = values[np.isfinite(values)]
        assert measure["counts"] == np.histogram(finite, measure["edges"])[0].tolist()
        assert measure["missing"] == zoo.column(name).null_count and measure["nan"] == np.isnan(values).sum()
    again = payload_of(made(path, max_rows=60)[0])
    ids = [set(_ids(found)) for found in (data, again)]
    assert ids[0] < ids[1], "a larger sample has those of a smaller one"


def _ids(data) -> list[str]:
    ends = data.columns["id_lengths"].cumsum()
    text = data.columns["id_bytes"].tobytes().decode()
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def test_a_revision_gives_the_same_bytes_twice(tmp_path):
    path = optunets(tmp_path / "zoo", rows_with_gaps(60))
    assert made(path)[0] == made(path)[0]
    assert str(tmp_path) not in made(path)[0], "no path of this machine"


def test_permuted_neurons_leave_the_canonical_panel_as_it_is(tmp_path):
    """Every member's neurons in another order: the raw panel changes, the canonical one keeps its bits."""
    count, weights = 80, weights_of(80, 3)
    element = GroupElement.random(TABLE, count, np.random.default_rng(5))
    still = GroupElement.identity(TABLE, count)
    permuted = apply(GroupElement(element.perms, still.scales), weights, TABLE)
    rows = [{"id": f"net-{at}"} for at in range(count)]
    first, second = (
        payload_of(made(optunets(tmp_path / name, rows, weights=own))[0])
        for name, own in (("zoo", weights), ("permuted", permuted))
    )
    changed = 0
    for layer, other in zip(first.header["layers"], second.header["layers"], strict=True):
        for panel, moved in zip(layer["panels"], other["panels"], strict=True):
            columns = [f"{panel['column']}:{axis}" for axis in "xy"]
            same = all(first.columns[name].tobytes() == second.columns[name].tobytes() for name in columns)
            if panel["variant"] == "canonical":
                assert same and panel["members"] == moved["members"] == count
                np.testing.assert_allclose(panel["ratios"], moved["ratios"], rtol=1e-9)
            else:
                changed += not same
    assert changed == len(first.header["layers"]) == 3


def test_only_the_named_layers_and_rows_are_shown(tmp_path):
    path = optunets(tmp_path / "zoo", rows_with_gaps(40))
    text, _ = made(path, layers=["fc"], where="test_brier > 0")
    data = payload_of(text)
    expected = ckptzoo.open(path).where("test_brier > 0")
    assert [layer["name"] for layer in data.header["layers"]] == ["fc"] and text.count("<figure>") == 1
    assert data.header["code"] == "zoo.where('test_brier > 0')" and _ids(data) == expected.ids
    with pytest.raises(UnknownNameError, match=r"layer 'fcc': expected one of conv1, conv2, fc"):
        page(ckptzoo.open(path), tmp_path / "page.html", layers=["fcc"])


def test_histograms_are_of_last_steps(tmp_path):
    rows = [
        {"id": f"m{member}-{step}", "member": f"m{member}", "step": step, "test_accuracy": 0.1 * step + 0.01 * member}
        for member in range(4)
        for step in (0, 1, 5)
    ]
    text, zoo = made(optunets(tmp_path / "zoo", rows))
    data = payload_of(text)
    assert data.header["rows"] == 4 and data.header["code"] == "zoo.last_steps()"
    assert _ids(data) == zoo.last_steps().ids
    assert data.header["trajectories"] == {"members": 4, "total": 4}
    values = data.columns["trajectory_values"].reshape(4, 3)
    np.testing.assert_allclose(values[2], [0.02, 0.12, 0.52], rtol=1e-6)
    assert data.columns["trajectory_steps"].tolist() == [0, 1, 5]
    assert data.columns["trajectory_rows"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [0, 1])
def test_zoos_without_members_and_of_one(tmp_path, count):
    text, _ = made(optunets(tmp_path / "zoo", [{"id": "alone", "test_accuracy": 0.5}][:count]))
    data = payload_of(text)
    assert data.header["rows"] == count and data.header["layers"] == []
    assert len(data.header["measures"]) == (3 if count else 0)


def test_a_zoo_without_accuracies_and_without_a_variant(tmp_path):
    text, _ = made(optunets(tmp_path / "zoo", [{"id": str(at)} for at in range(5)], gauge=False))
    data = payload_of(text)
    assert data.header["measures"] == [] and data.header["categories"] == []
    assert [[panel["variant"] for panel in layer["panels"]] for layer in data.header["layers"]] == [["raw"]] * 3
    assert "none was derived" in text


def test_members_that_are_not_finite_diverged_or_not_derived_are_left_out_and_counted(tmp_path):
    weights = weights_of(12, 0)
    weights["conv1.weight"][3, 0, 0, 0, 0] = np.nan
    rows = [{"id": f"net-{at}", "diverged": at == 7, "test_accuracy": 0.5 + at / 100} for at in range(12)]
    path = optunets(tmp_path / "zoo", rows, weights=weights)
    with ckptzoo.append(path) as writer:
        writer.add(weights_of(2, 9), [{"id": "late-0"}, {"id": "late-1"}])
    text, _ = made(path)
    data = payload_of(text)
    raw, canonical = data.header["layers"][0]["panels"]
    assert (raw["members"], raw["left_out"]) == (12, 2)
    assert (canonical["members"], canonical["left_out"]) == (10, 4)
    missing = [np.flatnonzero(data.columns[f"{panel['column']}:x"] == -(2**15)).tolist() for panel in (raw, canonical)]
    assert missing == [[3, 7], [3, 7, 12, 13]]
    assert "2 of 14" in text and "4 of 14" in text and data.header["measures"][0]["missing"] == 2


def test_constant_and_infinite_columns(tmp_path):
    rows = [
        {"id": str(at), "test_accuracy": 0.25, "test_nll": float("inf"), "test_ece": float("nan"), "train_loss": -1e308}
        for at in range(6)
    ]
    data = payload_of(made(optunets(tmp_path / "zoo", rows))[0])
    accuracy, nll, ece = data.header["measures"][:3]
    assert sum(accuracy["counts"]) == 6 and nll["infinite"] == 6 and ece["nan"] == 6
    assert nll["edges"] == ece["edges"] == [] and data.header["constants"]["train_loss"] == -1e308


HOSTILE = (
    '</script><script>document.title="taken"</script><img src=x onerror=alert(1)>\u202egnp.exe &amp; "\'\U0001f98a'
)


def test_ids_texts_and_cards_are_text(tmp_path, any_rows):
    card = Card("zoo", title=HOSTILE, summary=f"{HOSTILE} <b>bold</b>", license=HOSTILE)
    rows = [
        {"id": f"{HOSTILE}{at}", "license": HOSTILE, "contributor": "\u2066x", "test_accuracy": 0.5} for at in range(3)
    ]
    rows.append({"id": "i" * 10_000, "test_accuracy": 0.6})
    with ckptzoo.create(tmp_path / "zoo", arch=ARCH, card=card, symmetry=TABLE) as writer:
        writer.add(weights_of(4, 0), rows)
    text, zoo = made(tmp_path / "zoo")
    assert text.count("</script>") == 2 and text.count("<script") == 2 and "<img" not in text and "<b>bold" not in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", text), "marks of direction are written out"
    assert _ids_by_utf16(payload_of(text)) == zoo.ids


def _ids_by_utf16(data) -> list[str]:
    text = data.columns["id_bytes"].tobytes().decode().encode("utf-16-le")
    ends = 2 * data.columns["id_lengths"].cumsum()
    return [text[start:end].decode("utf-16-le") for start, end in zip([0, *ends], ends, strict=False)]


def test_a_card_that_cannot_be_read_is_left_out(tmp_path):
    path = optunets(tmp_path / "zoo", [{"id": "a"}])
    (path / "card.toml").write_text("name = 3")
    with pytest.warns(UserWarning, match="The page says nothing of the card"):
        text, _ = made(path)
    assert "<h1><bdi>zoo</bdi></h1>" in text


def test_the_output_is_a_file_in_a_folder_that_is_there(tmp_path):
    zoo = ckptzoo.open(optunets(tmp_path / "zoo", [{"id": "a"}]))
    with pytest.raises(ZooError, match=r"output: expected a file, got a folder. Name a file in it, such as"):
        page(zoo, tmp_path)
    with pytest.raises(ZooError, match="Make it first"):
        page(zoo, tmp_path / "none" / "page.html")
    for name, begins, got in (
        ("net.pt", b"PK", "another file"),
        ("page.html", b"<!DOCTYPE html>", ""),
        ("new", b"", ""),
    ):
        (tmp_path / name).write_bytes(begins)
        if got:
            with pytest.raises(
                ZooError, match="output: expected an older page, or nothing there yet, got another file"
            ):
                page(zoo, tmp_path / name)
            assert (tmp_path / name).read_bytes() == begins
        else:
            assert page(zoo, tmp_path / name).path == tmp_path / name
    with pytest.raises(ZooError, match="max_rows: expected 1 or more, got 0"):
        page(zoo, tmp_path / "page.html", max_rows=0)


def test_a_full_disk_leaves_the_older_page(tmp_path, monkeypatch):
    zoo = ckptzoo.open(optunets(tmp_path / "zoo", [{"id": "a"}]))
    page(zoo, tmp_path / "page.html")
    before = (tmp_path / "page.html").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device\. Make room there"):
        page(zoo, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == before
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


def test_networks_of_whole_numbers_have_no_layers(tmp_path):
    arch = ckptzoo.Architecture("counts", (ckptzoo.Tensor("a.counts", (3,), "int64", "buffer"),))
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        writer.add({"a.counts": np.ones((2, 3), np.int64)}, [{"id": "a"}, {"id": "b"}])
    text, _ = made(tmp_path / "zoo")
    assert payload_of(text).header["layers"] == [] and text.count("<figure>") == 0


def test_the_policy_of_the_page_names_the_committed_bundle(tmp_path):
    text, _ = made(optunets(tmp_path / "zoo", [{"id": "a"}]))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert f"script-src '{bundle().script_hash}'" in policy and f"style-src '{bundle().style_hash}'" in policy
    assert "unsafe" not in policy and 'style="' not in text.replace(bundle().script, "")


def test_every_gauge_of_a_resnet_in_halves(tmp_path):
    arch, table = archs.architecture("resnet8-conv-4"), archs.symmetry("resnet8-conv-4")
    with ckptzoo.create(tmp_path / "zoo", arch=arch, symmetry=table) as writer:
        writer.add(weights_of(6, 0, arch=arch), [{"id": str(at)} for at in range(6)])
    derive(tmp_path / "zoo", certify="none")
    data = payload_of(made(tmp_path / "zoo")[0])
    assert 1 < len(data.header["layers"]) <= 8
    assert all(len(layer["panels"]) == 2 for layer in data.header["layers"])
