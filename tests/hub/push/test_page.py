"""The page of a hub's zoo is right for what the zoo holds there, whoever wrote to it last."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.errors import SpecError
from ckptzoo.hub.client import Client
from ckptzoo.hub.push import Pushed, plan, push
from ckptzoo.schema.card import Card
from ckptzoo.server.responses import front_matter as parsed
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_clients import END, run_client
from tests.support.hub_zoos import ARCH, assert_generated_page, downloaded, files_of, grown, pushed, weights_of

Make = Callable[..., Path]


def contributed(zoo: Path) -> Path:
    """Add a checkpoint of somebody else's, under another licence."""
    with ckptzoo.append(zoo) as writer:
        writer.add(weights_of(1, 9), [{"id": "ada", "contributor": "Ada", "license": "cc-by-4.0"}])
    return zoo


@pytest.mark.exhaustive
def test_an_older_copy_does_not_roll_the_page_back(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    before = files_of(zoo)["README.md"]
    older = Path(shutil.copytree(zoo, tmp_path / "older"))
    pushed(server, contributed(zoo))
    first = assert_generated_page(downloaded(server, tmp_path))
    assert "**6** of 6 members" in first and "cc-by-4.0" in first and 'ckptzoo.open("lab/zoo")' in first
    assert files_of(zoo)["README.md"] == before  # the folder's own stays as it is
    assert pushed(server, older).commits == ()
    assert assert_generated_page(downloaded(server, tmp_path)) == first
    pushed(server, grown(older, (2,), start=5))
    text = assert_generated_page(downloaded(server, tmp_path))
    assert "**8** of 8 members" in text and "`Ada`" in text
    assert sorted(parsed(text)["license"]) == ["apache-2.0", "cc-by-4.0"]


@pytest.mark.exhaustive
def test_variants_and_retractions_are_on_the_page(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    pushed(server, zoo)
    assert [item["config_name"] for item in parsed(assert_generated_page(downloaded(server, tmp_path)))["configs"]] == [
        "metadata"
    ]
    derive(zoo, gauge="canonical", certify="none")
    ckptzoo.retract(zoo, ["m0-1"], reason="a test")
    pushed(server, zoo)
    text = assert_generated_page(downloaded(server, tmp_path))
    names = [item["config_name"] for item in parsed(text)["configs"]]
    assert names == ["metadata", "canonical", "retracted"] and "1 retracted and left out" in text
    assert parsed(text)["ckptzoo"]["checkpoints"] == 4


LOADED = """
import json
from datasets import load_dataset
rows = load_dataset("lab/zoo", "retracted", split="train")
print(json.dumps([list(rows["id"]), list(rows["reason"])]))
"""


@pytest.mark.exhaustive
def test_load_dataset_reads_what_was_retracted(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    zoo = make_zoo()
    pushed(server, zoo)
    ckptzoo.retract(zoo, ["m0-1"], reason="a test")
    pushed(server, zoo)
    printed = run_client(server, tmp_path / "home", sys.executable, "-c", LOADED + END, role=None)
    assert json.loads(printed) == [["m0-1"], ["a test"]]


def test_a_stale_page_is_all_there_is_to_do(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    pushed(server, zoo)
    client = Client(server.url, server.tokens["write"])
    client.commit(ZOO, {"README.md": b"# By hand\n"}, title="harm", parent=client.head(ZOO))
    planned = plan(zoo, ZOO, endpoint=server.url)
    assert (planned.documents, planned.commits) == (("README.md",), 1)
    found = pushed(server, zoo)
    assert (found.documents, found.parts, len(found.commits)) == (("README.md",), (), 1)
    assert_generated_page(downloaded(server, tmp_path))
    assert pushed(server, zoo).commits == ()


@pytest.mark.exhaustive
def test_the_last_pushers_card_stands(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    other = Path(shutil.copytree(zoo, tmp_path / "other"))
    pushed(server, zoo)
    (other / "card.toml").write_text(Card("zoo", summary="In other words.").to_toml())
    assert pushed(server, other).documents == ("card.toml", "README.md", "croissant.json")
    assert "In other words." in assert_generated_page(downloaded(server, tmp_path))
    (zoo / "card.toml").unlink()  # then that of the hub is taken
    (zoo / "README.md").write_text("# Mine\n")
    found = pushed(server, grown(zoo, (1,), start=7))
    assert found.documents[0] == "README.md" and "card.toml" not in found.documents
    text = assert_generated_page(downloaded(server, tmp_path))
    assert "In other words." in text and "**6** of 6" in text


def test_without_any_card_the_folders_page_is_taken(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    (zoo / "card.toml").unlink()
    (zoo / "README.md").write_text("# Mine\n")
    found = pushed(server, zoo)
    assert "README.md" in found.documents and [note.partition(",")[0] for note in found.notes] == [
        "README.md stays as it is"
    ]
    assert (downloaded(server, tmp_path) / "README.md").read_text() == "# Mine\n"


def test_a_card_that_cannot_be_used_is_refused_before_anything_is_sent(server: Hosted, make_zoo: Make) -> None:
    zoo = make_zoo()
    for text, said in (('name = "zoo"\nlicence = "mit"\n', "got licence"), ('name = "other"\n', "expected 'zoo'")):
        (zoo / "card.toml").write_text(text)
        with pytest.raises(SpecError, match=said):
            pushed(server, zoo)
    assert server.request_log.count("create", "upload", "commit") == 0


def test_what_others_damaged_does_not_keep_anybody_from_publishing(
    server: Hosted, make_zoo: Make, tmp_path: Path
) -> None:
    zoo = make_zoo()
    older = Path(shutil.copytree(zoo, tmp_path / "older"))
    pushed(server, contributed(zoo))
    page = files_of(downloaded(server, tmp_path))["README.md"]
    client = Client(server.url, server.tokens["write"])
    name = next(name for name in client.files(ZOO) if name.startswith("parts/000003") and "raw-00" in name)
    client.commit(ZOO, {}, title="harm", parent=client.head(ZOO), delete=[name])
    found = pushed(server, grown(older, (1,), start=5))
    assert len(found.parts) == 1 and found.notes[0].startswith("README.md stays as it is: ")
    assert files_of(downloaded(server, tmp_path))["README.md"] == page


def test_a_licence_that_nobody_stated_is_noted(
    server: Hosted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo = tmp_path / "zoo"
    with ckptzoo.create(zoo, arch=ARCH) as writer:
        writer.add(weights_of(1, 1), [{"id": "a"}])
    found = pushed(server, zoo)
    assert len(found.notes) == 1 and "no licence is stated" in found.notes[0]
    found.print()
    assert f"note: {found.notes[0]}" in capsys.readouterr().out and found.to_json()["notes"] == list(found.notes)
    assert plan(zoo, ZOO, endpoint=server.url).notes == found.notes
    text = assert_generated_page(downloaded(server, tmp_path))
    assert "No licence is stated." in text and "license" not in parsed(text)
    (zoo / "card.toml").write_text(Card("zoo", license="mit").to_toml())
    assert pushed(server, zoo).notes == ()
    assert parsed(assert_generated_page(downloaded(server, tmp_path)))["license"] == "mit"


def test_a_repository_that_is_public_stays_so(server: Hosted, make_zoo: Make) -> None:
    zoo = make_zoo()
    assert pushed(server, zoo).notes == ()
    (note,) = pushed(server, zoo, private=True).notes
    assert "is public, and stays so" in note and Client(server.url).find(ZOO) is not None
    hidden = make_zoo("hidden")
    for _ in range(2):
        found = push(hidden, "lab/hidden", private=True, endpoint=server.url, token=server.tokens["write"])
        assert found.notes == ()


def test_bytes_that_were_sent_in_vain_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    for sent, said in (
        (83_200, "83.2 kB sent of 83.2 kB, in 1 commit."),
        (143_000, "83.2 kB uploaded (143 kB sent in all, because others published meanwhile), in 1 commit."),
    ):
        Pushed("hf://x", None, False, ("a",), (), 0, (), 83_200, sent).print()
        assert said in capsys.readouterr().out
