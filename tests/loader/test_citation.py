"""Citations: the code in one opens the same checkpoints, and whatever names and texts hold, BibTeX is sound."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import SpecError, ZooError
from ckptzoo.loader.citation import escaped, positions_code
from tests.support.effort import examples

ARCH = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("w", (2,)),))
LETTERS = {
    "textbackslash": "\\", "textbraceleft": "{", "textbraceright": "}", "textasciitilde": "~", "textasciicircum": "^",
    "textless": "<", "textgreater": ">", "textbar": "|", "char34": '"', "char39": "'", "char96": "`",
}  # fmt: skip


def shown(text: str) -> str:
    """A text of LaTeX as a reader sees it."""
    return re.sub(r"\\(\w+)\{\}|\\(.)", lambda match: LETTERS[match[1]] if match[1] else match[2], text)


def fields(bibtex: str) -> dict[str, str]:
    """The fields of an entry, whose braces are counted as BibTeX does."""
    head, rest = bibtex.split("\n", 1)
    assert (
        re.fullmatch(r"@misc\{[A-Za-z0-9-]+,", head) and rest.endswith("}") and bibtex.count("{") == bibtex.count("}")
    )
    found: dict[str, str] = {}
    for line in rest.splitlines()[:-1]:
        name, value = re.fullmatch(r"  (\w+) = \{(.*)\},", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        depth = np.cumsum([{"{": 1, "}": -1}.get(letter, 0) for letter in value])
        assert (depth >= 0).all() and depth[-1] == 0
        found[name] = value
    return found


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty checkpoints of ten members in three parts, one retracted, with a split."""
    path = tmp_path_factory.mktemp("cited") / "zoo"
    card = ckptzoo.Card("tiny", repository="lab/tiny", doi="10.5281/zenodo.12_34", authors=("Ada, L.", "A and B"))
    ckptzoo.create(path, arch=ARCH, card=card)
    for part in range(3):
        with ckptzoo.append(path) as writer:
            rows = [
                {"id": f"m{n % 10}-{n}", "member": f"m{n % 10}", "step": n // 10, "seed": n % 10, "test_accuracy": n / 40}
                for n in range(40) if n % 3 == part
            ]  # fmt: skip
            writer.add({"w": np.zeros((len(rows), 2), np.float32)}, rows)
    ckptzoo.retract(path, ["m3-3"], reason="a test")
    ckptzoo.make_split(path, "main")
    return path


def reopened(path: Path, citation: Any) -> ckptzoo.Zoo:
    """The zoo that a citation's code opens."""
    where = fields(citation.bibtex)["note"]
    found = re.search(r"revision (sha256:\w+)(?:, selection (zoo.*))?, ids sha256:\w+$", shown(where))
    assert found is not None and found[1] == citation.revision
    opened = ckptzoo.open(path, revision=found[1])
    return opened if found[2] is None else eval(found[2], {"zoo": opened, "range": range, "__builtins__": {}})


CONDITIONS = st.one_of(
    st.floats(0, 1).map(lambda value: f"test_accuracy > {value} or seed == 3"),
    st.lists(st.integers(0, 9), min_size=1, max_size=4).map(lambda seeds: {"seed": seeds}),
    st.integers(0, 4).map(lambda step: [("step", "<", step), ("member", "!=", "m'{\\}")]),
    st.sampled_from(["member != 'm1   - 2  '", [("member", "!=", "  \t a")]]),
    st.just("member != 'a_b' and id != \"%{\""),
    st.just("MASK"),
)
STEPS = st.one_of(
    st.tuples(st.just("where"), CONDITIONS),
    st.tuples(st.just("slice"), st.slices(50)),
    st.tuples(st.just("take"), st.lists(st.integers(0, 10**6), max_size=12)),
    st.tuples(st.just("sorted"), st.sampled_from(["-test_accuracy", "seed", "member"])),
    st.tuples(st.just("split"), st.sampled_from(["train", "val", "test"])),
    st.tuples(st.just("last_steps"), st.none()),
)


@pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
@settings(max_examples=examples(400, 4))
@given(st.lists(STEPS, max_size=4))
def test_a_cited_selection_opens_to_the_same_ids(zoo: Path, steps: list[tuple[str, Any]]) -> None:
    chosen = ckptzoo.open(zoo)
    for kind, value in steps:
        match kind:
            case "where" if value == "MASK":
                chosen = chosen.where(np.arange(len(chosen)) % 2 == 0)
            case "where":
                chosen = chosen.where(value)
            case "slice":
                chosen = chosen[value]
            case "take":
                chosen = chosen.take([place % len(chosen) for place in value] if len(chosen) else [])
            case "sorted":
                chosen = chosen.sorted(value)
            case "split":
                chosen = chosen.split("main", value)
            case _:
                chosen = chosen.last_steps()
    citation = chosen.cite()
    again = reopened(zoo, citation)
    assert again.ids == chosen.ids and again.cite().ids == citation.ids
    assert (citation.checkpoints, citation.total) == (len(chosen), 39)


@settings(max_examples=examples(200))
@given(st.text(st.characters(codec="utf-8")))
def test_whatever_a_text_holds_braces_are_balanced_and_readers_see_it(text: str) -> None:
    found = escaped(text)
    depth = np.cumsum([0, *({"{": 1, "}": -1}.get(letter, 0) for letter in found)])
    assert (depth >= 0).all() and depth[-1] == 0 and "\n" not in found
    kept = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    assert "".join(letter for letter in shown(found) if letter.isprintable()) == kept


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 30), max_size=30))
def test_positions_are_those_of_the_list(positions: list[int]) -> None:
    assert eval(f"[{positions_code(np.array(positions, np.int64))}]", {"range": range}) == positions


@pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
def test_what_is_in_the_entry(zoo: Path) -> None:
    found = fields(ckptzoo.open(zoo).where("seed < 3").cite().bibtex)
    assert found["doi"] == r"10.5281/zenodo.12\_34" and found["author"] == "Ada, L. and {A and B}"
    assert found["howpublished"] == "hf://datasets/lab/tiny" and "version" not in found
    assert shown(found["note"]).startswith("ckptzoo zoo tiny, 12 of 39 checkpoints, revision sha256:")


def test_the_version_is_a_release_of_this_revision(tmp_path: Path) -> None:
    with ckptzoo.create(tmp_path / "zoo", arch=ARCH, card=ckptzoo.Card("a\n@b{\\")) as writer:
        writer.add({"w": np.zeros((1, 2), np.float32)}, [{"id": "a"}])
    ckptzoo.release(tmp_path / "zoo", "2026-12")
    citation = ckptzoo.open(tmp_path / "zoo").cite()
    assert (citation.version, citation.key) == ("2026-12", f"a-b-{citation.revision[7:15]}")
    assert citation.year == ckptzoo.open(tmp_path / "zoo").releases[0].created.year
    with ckptzoo.append(tmp_path / "zoo") as writer:
        writer.add({"w": np.zeros((1, 2), np.float32)}, [{"id": "b"}])
    assert ckptzoo.open(tmp_path / "zoo").cite().version is None
    assert ckptzoo.open(tmp_path / "zoo", revision="stable").cite().version == "2026-12"


def test_too_many_positions_have_to_get_a_name() -> None:
    zoo = ckptzoo.open(Path(__file__).parents[2] / "cards/mnist-optunet")
    with pytest.raises(
        ZooError, match=r"selection to cite: expected a condition.*got 4,096 positions\. Keep them as a"
    ):
        zoo.take(np.random.default_rng(0).permutation(len(zoo))[::2]).cite()


@pytest.mark.parametrize(
    "doi", ["zenodo", "https://doi.org/10.5281/a", "10.5281/a b", "10.5281/a}", "10.5281/" + "a" * 300]
)
def test_a_doi_that_is_none(doi: str) -> None:
    with pytest.raises(SpecError, match=r"doi: expected a DOI as 10\.5281"):
        ckptzoo.Card("a", doi=doi)
