"""The head of a README.md is plain YAML whatever the names are, and says what the hub understands."""

from typing import Any

import pytest
from huggingface_hub import DatasetCard
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.card import Card
from ckptzoo.schema.metadata import COLUMNS, VARIANT_COLUMNS
from ckptzoo.schema.readme import LICENSES, config_of, first_readme, front_matter, plain, quoted
from ckptzoo.server.responses import front_matter as parsed
from tests.support.effort import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
NASTY = TEXT | st.text("'\"\\\n\r\t:#-[]{}&*!|>%@`\x00\x07\x7f\x85\u2028\ufeff\U0001f600 ---", min_size=1, max_size=20)


def arch(name: str = "net") -> Architecture:
    return Architecture(name, (Tensor("w", (2, 3)),))


def head(card: Card, name: str = "net", **facts: Any) -> dict[str, Any]:
    return parsed(front_matter(card, arch(name), **facts))


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(50))
@given(NASTY.filter(str.strip), NASTY, NASTY, NASTY, st.lists(NASTY, max_size=4), st.lists(NASTY, max_size=3))
def test_strings_come_through_whatever_is_in_them(
    name: str, license: str, dataset: str, net: str, datasets: list[str], licenses: list[str]
) -> None:
    card = Card(name, license=license, dataset=dataset)
    found = head(card, net, datasets=datasets, licenses=licenses, checkpoints=3, variants=("canonical",))
    assert found["pretty_name"] == name
    assert found["tags"][:2] == ["ckptzoo", f"arch:{net}"]
    expected = [f"dataset:{item}" for item in dict.fromkeys((dataset, *datasets)) if item.isprintable()]
    assert found["tags"][2:] == expected
    named = found.get("license", [])
    assert set(named if isinstance(named, list) else [named]) <= LICENSES | {"other"}
    text = front_matter(card, arch(net), datasets=datasets, licenses=licenses) + "---\ntags: [evil]\n---\n"
    assert DatasetCard(text).data.to_dict()["pretty_name"] == name


def test_configurations_and_features() -> None:
    found = head(Card("a"), checkpoints=10_000, members=7, variants=("canonical", "metadata"), retracted=True)
    assert [(item["config_name"], item["data_files"], item.get("default")) for item in found["configs"]] == [
        ("metadata", "parts/*/metadata.parquet", True),
        ("canonical", "derived/canonical/*/metadata.parquet", None),
        ("variant_metadata", "derived/metadata/*/metadata.parquet", None),
        ("retracted", "derived/retracted/*/metadata.parquet", None),
    ]
    features = {item["config_name"]: [one["name"] for one in item["features"]] for item in found["dataset_info"]}
    assert features["metadata"] == [column.name for column in COLUMNS]
    assert features["canonical"] == features["variant_metadata"] == [column.name for column in VARIANT_COLUMNS]
    assert found["ckptzoo"] == {"checkpoints": 10_000, "members": 7, "parameters": 6}
    assert config_of("canonical") == "canonical"


@pytest.mark.parametrize(
    ("count", "size"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (99_999, "10K<n<100K"), (10**7, "10M<n<100M")]
)
def test_sizes(count: int, size: str) -> None:
    assert head(Card("a"), checkpoints=count)["size_categories"] == [size]


@pytest.mark.parametrize(
    ("own", "others", "license", "name"),
    [
        ("Apache-2.0", [], "apache-2.0", None),
        ("apache-2.0", ["MIT", "Apache-2.0", "mit"], ["apache-2.0", "mit"], None),
        ("Lab Licence 1.0", ["mit"], ["other", "mit"], "lab-licence-1.0"),
        ("", ["mit"], "mit", None),
        ("", [], None, None),
        ("/", [], "other", "other"),
    ],
)
def test_licences(own: str, others: list[str], license: str | list[str] | None, name: str | None) -> None:
    found = head(Card("a", license=own), licenses=others)
    assert (found.get("license"), found.get("license_name")) == (license, name)


def test_data_sets_beyond_twenty_and_those_with_long_names_are_no_tags() -> None:
    found = head(Card("a"), datasets=["x" * 93, "y" * 92, *(str(number) for number in range(30))])
    assert found["tags"][2:] == ["dataset:" + "y" * 92, *(f"dataset:{number}" for number in range(19))]


def test_the_first_readme_says_what_is_known() -> None:
    text = first_readme(Card("a", title="A *zoo*", summary="Two\nlines.", dataset="mnist"), arch())
    assert text.endswith("A ckptzoo of networks with 6 parameters. `ckptzoo card` writes here what it holds.\n")
    assert "# A \\*zoo\\*\n\nTwo lines.\n\n" in text
    assert parsed(text)["tags"] == ["ckptzoo", "arch:net", "dataset:mnist"] and "size_categories" not in parsed(text)


def test_marks_are_escaped() -> None:
    assert quoted('a"\\\n') == '"a\\"\\\\\\U0000000a"' and quoted("\ud800") == '"\ufffd"'
    assert plain("<b>[x](y)\n* `z`\x07|") == "\\<b\\>\\[x\\](y) \\* \\`z\\` \\|"
