"""Pull requests that were made by hand, and must not be merged; the tests of this file share one server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.hub.contributions.row_checks import NAMESPACED, check_author
from ckptzoo.schema.architecture import Tensor
from ckptzoo.symmetry import GroupElement, apply
from tests.support.effort import ALL
from tests.support.hosted import hosted
from tests.support.hub_zoos import ARCH, TABLE, weights_of, zoo_of
from tests.support.tampering import Tamper
from tests.support.untrusted_files import accuracy_of


@pytest.fixture(scope="module")
def tamper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tamper]:
    """A zoo on a server, which no test of this file changes."""
    folder = tmp_path_factory.mktemp("shared")
    with hosted(folder / "served") as server:
        made = Tamper(server, zoo_of(folder / "zoo"), folder)
        # made before the first pull request: where one is open with the same weights, `contribute` makes no other
        made.part()
        yield made


def held(zoo: Path) -> list[str]:
    return sorted(path.relative_to(zoo).as_posix() for path in (zoo / "parts").rglob("*") if path.is_file())


def test_documents_are_changed(tamper: Tamper) -> None:
    """zoo.json, the card and others, alone and beside a sound part."""
    identity = (tamper.zoo / "zoo.json").read_bytes().replace(b'"zoo"', b'"oot"')
    card = b"---\nlicense: mit\n---\n<script>alert(1)</script>"
    part = tamper.part()
    tamper.refused({**part, "zoo.json": identity}, "changes", "zoo.json is changed")
    tamper.refused({**part, "README.md": card}, "changes", "README.md is changed")
    tamper.refused({**part, ".gitattributes": b"* -text\n"}, "changes", ".gitattributes is changed")
    tamper.refused({"NOTES.md": card}, "changes", "NOTES.md is added; no new part")
    tamper.refused({**part, "symmetry.json": None}, "changes", "symmetry.json is deleted")


def test_parts_are_deleted_changed_or_joined(tamper: Tamper) -> None:
    names = held(tamper.zoo)
    part = tamper.part()
    tamper.refused({**part, **dict.fromkeys(names[:3])}, "changes", "is deleted")
    tamper.refused({**part, names[0]: b"other"}, "changes", f"{names[0]} is changed")
    inside = names[0].rpartition("/")[0]
    tamper.refused({**part, f"{inside}/raw-01.safetensors": b"more"}, "changes", "is a part of the zoo already")


@pytest.mark.parametrize(
    "name",
    [
        "parts/000003-01234567/run.py",
        "parts/000003-01234567/inner/index.parquet",
        "parts/3-01234567/index.parquet",
        "parts/000003-01234567/g-00.safetensors",
        "derived/canonical/000003-01234567/index.parquet",
        "derived/retracted/000003-01234567/index.parquet",
        "snapshots/000003-99-" + "0" * 64 + ".parquet",
        "zoo.py",
        ".github/workflows/x.yml",
    ],
)
@pytest.mark.sampled(3)
def test_files_that_are_no_part(tamper: Tamper, name: str) -> None:
    tamper.refused({**tamper.part(), name: b"data"}, "changes", "is added")


def test_bytes_that_disagree(tamper: Tamper) -> None:
    """A flipped byte in the weights, the rows or the index, a part under another name, a file too few."""
    part = tamper.part()
    for end, at in (("raw-00.safetensors", -5), ("metadata.parquet", 60), ("index.parquet", 90)):
        (name,) = [name for name in part if name.endswith(end)]
        data = bytearray(part[name] or b"")
        data[at] ^= 1
        tamper.refused({**part, name: bytes(data)}, "bytes")
        tamper.refused({key: value for key, value in part.items() if key != name}, "bytes")
    renamed = {name.replace(name[6:21], "000003-01234567"): data for name, data in part.items()}
    tamper.refused(renamed, "bytes", "name of the part")


def test_rows_that_lie(tamper: Tamper) -> None:
    """By default of every fifth kind."""
    true = accuracy_of({name: array[0] for name, array in weights_of(1, 50).items()}, tamper.data)
    extra = '{"evaluation": {"dataset": "mnist", "mean": 0.1307, "std": 0.3081}}'
    # what a builder of the owner may want to add later
    builders = "digits-optunet-271137fb-000007"
    texts = ("[" * 5000, '{"a": NaN}', '{"a": "\\ud800"}', '{"a": ' + "9" * 401 + "}", '{"settings": [1e400]}')
    lies: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"test_accuracy": 0.99, "extra": extra}, ("accuracy", f"0.9900, measured {true:.4f}")),
        ({"claimed_test_accuracy": 0.99, "extra": extra}, ("accuracy", "claimed")),
        ({"finite": False}, ("finiteness", "the row says not finite, the weights are finite")),
        ({"id": "m0-0"}, ("ids", "m0-0 is in the zoo already")),
        ({"unit": "m0"}, ("ids", "its unit 'm0' is in the zoo already")),
        ({"id": f"{builders}-001800"}, ("ids", "lacks the contributor's name and a slash")),
        ({"member": builders}, ("ids", f"{builders} lacks the contributor's name and a slash")),
        ({"unit": f"{builders}-000070"}, ("ids", f"the unit is '{builders}-000070', by the weights 'we")),
        ({"unit": "weights-" + "0" * 40}, ("ids", "by the weights 'weights-")),
        ({"unit": None}, ("ids", "the unit is None")),
        ({"license": None}, ("licence", "stranger/x has no licence")),
        ({"license": "unknown"}, ("licence",)),
        ({"test_nll": -1.0}, ("values", "test_nll is -1.0")),
        *(({"extra": text}, ("bytes", "column 'extra': expected JSON objects of finite numbers")) for text in texts),
        ({"extra": '{"a": "' + "x" * 64_000 + '"}'}, ("values", "extra is no small JSON object")),
        ({"recipe": "\x1b[2J"}, ("values", "recipe")),
        ({"draw": 3}, ("values", "a mode or a draw is given without a method")),
        ({"method": "swag", "draw": -1}, ("values", "draw is -1")),
        ({"id": "a b"}, ("ids",)),
    ]
    for row, said in lies if ALL else lies[::5]:
        tamper.refused(tamper.part(**row), *said)


def test_names_of_others_before_ids(tamper: Tamper) -> None:
    """The pull requests are those of ``stranger``."""
    for row in ({"id": "ada/x"}, {"member": "ada/x"}, {"id": "strange/x"}, {"id": "stranger-2/x"}, {"id": "stranger"}):
        tamper.refused(tamper.part(**row), "author", "begin with stranger/, the author of the pull request, got ")
    found = tamper.review(tamper.propose(tamper.part(id="stranger/a/b", contributor="Ada")), merge=False)
    (check,) = [check for check in found.checks if check.name == "author"]
    assert (check.outcome, check.detail) == ("passed", "stranger/, for Ada")


@pytest.mark.parametrize("author", ["Ada.L_2", "ada.l_2"])
def test_the_size_of_letters_does_not_tell_authors_apart(tamper: Tamper, author: str) -> None:
    folder = tamper.folder / author
    zoo_of(folder, ())
    with ckptzoo.append(folder) as writer:
        writer.add(weights_of(2, 1), [{"id": "ada.l_2/x"}, {"id": "ada.l_2/y"}])
    zoo = ckptzoo.open(folder)
    assert check_author(zoo, author).outcome == "passed" and NAMESPACED.fullmatch(zoo.ids[0])
    assert check_author(zoo, "ada").detail.count("ada.l_2/") == 2


def test_weights_that_lie(tamper: Tamper) -> None:
    broken = weights_of(1, 50)
    broken["fc.bias"][0, 0] = np.inf
    row = {"id": "x", "license": "mit"}
    tamper.refused(tamper.written(broken, [row]), "finiteness", "the row says finite, the weights are not finite")
    tamper.refused(
        tamper.written(broken, [{**row, "finite": False}]), "finiteness", "its row does not say that it diverged"
    )
    two = {name: np.concatenate([array, array]) for name, array in weights_of(1, 50).items()}
    tamper.refused(tamper.written(two, [row, row]), "bytes", "each id once")
    tamper.refused(tamper.written(two, [row, {**row, "id": "y"}]), "duplicates", "bit for bit")


@pytest.mark.parametrize(
    "facts", [{"pulled": {"zoo": "[here](http://elsewhere) <script>", "part": "x"}}, {"note": "x"}, {"bare": "yes"}]
)
def test_facts_that_no_contribution_has(tamper: Tamper, facts: dict[str, object]) -> None:
    files = tamper.written(weights_of(1, 50), [{"id": "x", "license": "mit"}], **facts)
    tamper.refused(files, "bytes", "facts: expected the kind raw alone")


def test_copies_of_the_zoo(tamper: Tamper) -> None:
    held = {name: array[:1] for name, array in weights_of(3, 1000 * ord("m")).items()}
    moved = apply(GroupElement.random(TABLE, 1, np.random.default_rng(0)), held, TABLE)
    weights = {name: np.asarray(array) for name, array in moved.items()}
    tamper.refused(tamper.written(weights, [{"id": "x", "license": "mit"}]), "duplicates", "m0-0 of the zoo")


def test_odd_evaluations_are_as_good_as_none(tamper: Tamper) -> None:
    texts = (
        '{"evaluation": {"dataset": "../../etc", "mean": 0, "std": 1}}',
        '{"evaluation": {"dataset": "mnist", "mean": ["1"], "std": 1}}',
        '{"evaluation": {"dataset": "mnist", "mean": 0, "std": 0}}',
        '{"evaluation": 3}',
    )
    for text in texts if ALL else texts[::3]:
        found = tamper.review(tamper.propose(tamper.part(test_accuracy=0.99, extra=text)), merge=False)
        # the four have the same weights
        outcomes = {check.name: check.outcome for check in found.checks if check.name != "open requests"}
        assert outcomes["accuracy"] == "not done" and "failed" not in outcomes.values()


def test_too_much_is_not_fetched(tamper: Tamper) -> None:
    number = tamper.propose(tamper.part())
    before = len(tamper.server.request_log.entries)
    found = tamper.review(number, max_bytes=1000)
    assert {item.name for item in found.checks if item.outcome == "failed"} == {"sizes"} and not found.entries
    asked = [entry.path for entry in tamper.server.request_log.entries[before:]]
    assert not [path for path in asked if "raw-00" in path or "000003" in path]


def test_another_architecture(tamper: Tamper) -> None:
    """A part with one tensor more, sealed as it should be."""
    weights = {**weights_of(1, 1), "more": np.zeros((1, 2), np.float32)}
    files = tamper.written(weights, [{"id": "x", "license": "mit"}], (*ARCH.tensors, Tensor("more", (2,))))
    tamper.refused(files, "bytes", "a tensor of architecture.json")


@pytest.mark.parametrize("number", [0, 1, 9, 999_999])
@pytest.mark.sampled(4)
def test_parts_with_other_numbers_than_the_next(tamper: Tamper, number: int) -> None:
    """Behind number 999999 the owner could add nothing."""
    files = tamper.written(weights_of(1, 50), [{"id": "x", "license": "mit"}], number=number)
    tamper.refused(files, "order", "is none of the next parts, which are numbered 000003 to 000003")
