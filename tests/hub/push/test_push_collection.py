"""Collections on a real server: each zoo as a push of it alone, table and page for what the repository then holds."""

import itertools
import json
import shutil
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import CommitOperationAdd, snapshot_download

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.errors import HubError, ZooError
from ckptzoo.hub.client import Client, HubRetryPolicy
from ckptzoo.hub.push import Pushed, plan, push_collection, rewrite
from ckptzoo.schema.card import Card
from tests.loader.test_collection import NAMES
from tests.support.derived_zoos import weights_of
from tests.support.effort import ALL, examples
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import files_of, inject_faults, pushed, zoo_of
from tests.support.server_layers import FAULT_KINDS

REPO = "lab/both"
pytestmark = pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")


def add(path: Path, name: str, count: int, first: int = 0) -> None:
    """Add checkpoints ``m0``, ``m1``, ... to a zoo, which is made where there is none."""
    arch = ckptzoo.archs.architecture(name)
    writer = ckptzoo.append(path) if path.exists() else ckptzoo.create(path, arch=arch)
    rows = [{"id": f"m{at}", "test_accuracy": at % 10 / 10} for at in range(first, first + count)]
    with writer:
        writer.add(weights_of(count, first, arch=arch), rows)


def sent(server: Hosted, root: Path, role: str = "write", **options: Any) -> Pushed:
    return push_collection(root, REPO, endpoint=server.url, token=server.tokens[role], **options)


def downloaded(server: Hosted, folder: Path) -> Path:
    options = {"repo_type": "dataset", "endpoint": server.url, "cache_dir": folder / "hf"}
    return Path(snapshot_download(REPO, token=server.tokens["read"], **options))


def ids_of(collection: ckptzoo.loader.Collection) -> dict[str, list[str]]:
    rows = collection.metadata
    return {
        entry.folder: [name for folder, name in zip(*(rows[c].to_pylist() for c in ("zoo", "id")), strict=True)
                       if folder == entry.folder]
        for entry in collection.entries
    }  # fmt: skip


@pytest.fixture
def both(tmp_path: Path) -> Path:
    root = tmp_path / "both"
    for folder, name in NAMES.items():
        add(root / folder, name, 3)
    ckptzoo.write_collection(root)
    return root


def test_a_first_push_then_growth_then_nothing(server: Hosted, both: Path, tmp_path: Path) -> None:
    how = {"endpoint": server.url, "token": server.tokens["write"]}
    planned = plan(both, REPO, **how)
    assert planned.creates and Client(server.url).find(REPO) is None
    first = sent(server, both)
    assert first.parts == planned.parts and set(first.documents) == set(planned.documents)
    assert {name.partition("/")[0] for name in first.parts} == set(NAMES) and "collection.json" in first.documents
    opened = ckptzoo.open_collection(REPO, endpoint=server.url)
    assert opened.metadata.equals(ckptzoo.open_collection(both).metadata)
    assert np.array_equal(opened.zoos["wide"]["fc1.bias"][:], ckptzoo.open(both / "wide")["fc1.bias"][:])
    down = downloaded(server, tmp_path)
    assert ckptzoo.verify_collection(down) == [] and "**6 checkpoints**" in (down / "README.md").read_text()
    page = (down / "wide" / "README.md").read_text()
    assert f'ckptzoo.open("hf://datasets/{REPO}/wide")' in page
    assert len(ckptzoo.open(f"hf://datasets/{REPO}/wide", endpoint=server.url)) == 3
    assert (sent(server, both).commits, rewrite(REPO, **how).commit) == ((), None)
    add(both / "wide", NAMES["wide"], 2, first=3)
    with pytest.raises(ZooError, match="Write the collection again"):
        sent(server, both)
    ckptzoo.write_collection(both)
    grown = sent(server, both)
    assert len(grown.parts) == 1 and grown.already == 2 and "narrow/README.md" not in grown.documents
    assert len(ckptzoo.open_collection(REPO, endpoint=server.url)) == 8


@pytest.mark.parametrize("seed", range(examples(12, 1)))
@pytest.mark.exhaustive
def test_any_series_of_pushes_leaves_the_table_of_what_is_there(server: Hosted, tmp_path: Path, seed: int) -> None:
    """Two people grow, retract, add and leave out zoos in turn; nobody's checkpoints are lost or counted twice."""
    rng = np.random.default_rng(np.random.SeedSequence((7, seed)))
    roots = [tmp_path / name / "both" for name in ("one", "two")]
    for root in roots:
        add(root / "narrow", NAMES["narrow"], 1)
    there: dict[str, set[str]] = {}
    first_ids = itertools.count(100, 2)  # everybody's ids are their own
    for _ in range(examples(8, 2)):
        root = roots[int(rng.integers(2))]
        for _ in range(int(rng.integers(1, 3))):
            folder = str(rng.choice(["narrow", "wide", "x y", "%41"]))
            known = len(ckptzoo.open(root / folder)) if (root / folder).exists() else 0
            action = rng.choice(["grow", "retract", "remove"]) if known > 1 else "grow"
            if action == "grow":
                add(root / folder, NAMES.get(folder, NAMES["wide"]), 2, first=next(first_ids))
            elif action == "retract":
                ckptzoo.retract(root / folder, [ckptzoo.open(root / folder).ids[-1]], reason="a test")
            elif folder != "narrow":
                shutil.rmtree(root / folder)
        ckptzoo.write_collection(root)
        try:
            sent(server, root)
        except HubError as error:
            assert "which it has" in str(error) or "digest" in str(error), error
            continue
        for folder, ids in ids_of(ckptzoo.open_collection(root)).items():
            there[folder] = there.get(folder, set()) | set(ids)
        found = ckptzoo.open_collection(REPO, endpoint=server.url)
        down = downloaded(server, tmp_path)
        assert ckptzoo.verify_collection(down) == []
        assert set(ids_of(found)) == set(there)
        for folder, ids in ids_of(found).items():
            assert len(ids) == len(set(ids)) and set(ids) <= there[folder]
            assert ids == ckptzoo.open(down / folder).ids
        assert sent(server, root).commits == ()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("commits", range(10) if ALL else (5,))
@pytest.mark.exhaustive
def test_a_push_that_is_killed_leaves_the_collection_as_it_was(
    server: Hosted, both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    sent(server, both)
    before = ckptzoo.open_collection(REPO, endpoint=server.url).metadata
    for folder, name in NAMES.items():
        add(both / folder, name, 2, first=3)
        add(both / folder, name, 2, first=5)
    zoo_of(both / "later")
    ckptzoo.write_collection(both)
    whole, count = Client.commit, iter(range(commits))

    def commit(self: Client, *given: Any, **named: Any) -> Any:
        if next(count, None) is None:
            raise Killed
        return whole(self, *given, **named)

    with monkeypatch.context() as patch:
        # the package has a function of the module's name
        patch.setattr(import_module("ckptzoo.hub.push.plan"), "MAX_FILES", 3)
        patch.setattr(Client, "commit", commit)
        with pytest.raises(Killed):
            sent(server, both)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has changed since", category=UserWarning)
        there = ckptzoo.open_collection(REPO, endpoint=server.url)
        assert there.metadata.equals(before)
        for folder, zoo in there.zoos.items():
            assert zoo.ids == ids_of(there)[folder] and np.asarray(zoo["fc1.bias"]).shape[0] == 3
    sent(server, both)
    down = downloaded(server, tmp_path)
    assert ckptzoo.verify_collection(down) == [] and len(ckptzoo.open_collection(down)) == 19


@pytest.mark.exhaustive
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("kind", sorted(FAULT_KINDS) if ALL else ["lost"])
def test_faults_now_and_then_cost_nothing(server: Hosted, both: Path, tmp_path: Path, kind: str) -> None:
    sent(server, both)
    add(both / "wide", NAMES["wide"], 2, first=3)
    zoo_of(both / "later")
    ckptzoo.write_collection(both)
    with inject_faults(server, seed=5, rate=0.25, kinds=(kind,), wait=0.2):
        try:
            sent(server, both, retry_policy=HubRetryPolicy(first_pause=0.01, read_timeout=5.0))
        except ZooError as error:
            assert "expected" in str(error) and not any(token in str(error) for token in server.tokens.values())
    sent(server, both)
    down = downloaded(server, tmp_path)
    assert ckptzoo.verify_collection(down) == [] and len(ckptzoo.open_collection(down)) == 13


def refusals(root: Path) -> dict[str, tuple[Callable[[], object], str]]:
    """Collections that may not be published, each with the words of the message."""
    outside = root.parent / "outside"
    return {
        "no collection": (lambda: (root / "collection.json").unlink(), "Write one with ckptzoo collection"),
        "a folder elsewhere": (
            lambda: (shutil.move(root / "wide", outside), (root / "wide").symlink_to(outside)),
            "a link to .*cp --dereference",
        ),
        "a card elsewhere": (
            lambda: (outside.write_text('name = "x"'), (root / "card.toml").symlink_to(outside)),
            "a link to|link",
        ),
        "a damaged table": (
            lambda: (root / "collection.parquet").write_bytes(b"PAR1 and no more"), "Write the collection again"
        ),
        "a card with a typo": (lambda: (root / "card.toml").write_text('name = "x"\nlicence = "mit"'), "license"),
        "a picture that is none": (
            lambda: (root / "card.toml").write_text('name = "x"\n[[pictures]]\nfile = "a.png"\ncaption = "a"'), "a.png"
        ),
        "a zoo that is not listed": (lambda: add(root / "more", "mlp-4-5-3", 1), "Write the collection again"),
        "a zoo that is damaged": (lambda: (root / "wide" / "architecture.json").write_text("{}"), "wide/architecture"),
        "a folder that would be a script": (
            lambda: ((root / "wide").rename(root / "javascript:alert(1)"), ckptzoo.write_collection(root)), "colon"
        ),
        "a folder of git": (lambda: ((root / "wide").rename(root / ".git"), ckptzoo.write_collection(root)), "git"),
    }  # fmt: skip


def test_what_may_not_be_published_is_named_and_nothing_is_sent(server: Hosted, both: Path, tmp_path: Path) -> None:
    for name in refusals(both):
        root = tmp_path / name / "both"
        shutil.copytree(both, root)
        make, expected = refusals(root)[name]
        make()
        with pytest.raises((ZooError, ValueError), match=expected):
            sent(server, root)
        listing = Client(server.url).find(REPO)
        assert listing is None or set(listing.files) <= {".gitattributes"}, name


def test_repositories_of_something_else_are_refused(server: Hosted, both: Path, tmp_path: Path) -> None:
    pushed(server, zoo_of(tmp_path / "zoo"))
    how = {"endpoint": server.url, "token": server.tokens["write"]}
    with pytest.raises(HubError, match="a collection, or an empty one, got a zoo"):
        push_collection(both, ZOO, **how)
    sent(server, both)
    with pytest.raises(HubError, match="a zoo, or an empty one, got a collection"):
        ckptzoo.push(tmp_path / "zoo", REPO, **how)
    with pytest.raises(ZooError, match="one zoo, got a collection"):
        (tmp_path / "c.toml").write_text('contributor = "bob"\nlicense = "mit"\n')
        (tmp_path / "net.pt").write_bytes(b"")
        ckptzoo.contribute([tmp_path / "net.pt"], to=REPO, card=tmp_path / "c.toml", **how)
    api = server.api()
    api.create_repo("lab/other", repo_type="dataset")
    operation = [CommitOperationAdd("notes/a.txt", b"1")]
    api.create_commit("lab/other", operation, commit_message="x", repo_type="dataset")
    with pytest.raises(HubError, match=r"notes/a\.txt"):
        push_collection(both, "lab/other", **how)
    # a zoo of the same folder but another architecture
    other = tmp_path / "theirs" / "both"
    add(other / "wide", NAMES["narrow"], 1)
    ckptzoo.write_collection(other)
    with pytest.raises(HubError, match="holds another zoo"):
        sent(server, other)
    add(both / "narrow", NAMES["narrow"], 1, first=50)
    ckptzoo.write_collection(both)
    for role in ("read", "contribute"):
        with pytest.raises(HubError, match="one that may write"):
            sent(server, both, role)


@pytest.mark.exhaustive
def test_cards_and_pages_of_people_stay(server: Hosted, both: Path, tmp_path: Path) -> None:
    (both / "README.md").write_text("# By hand\n")
    found = sent(server, both)
    assert any("somebody wrote it" in note for note in found.notes)
    assert (downloaded(server, tmp_path) / "README.md").read_text() == "# By hand\n"
    (both / "card.toml").write_text(Card("both", title="Two widths", license="cc-by-4.0").to_toml())
    assert not [note for note in sent(server, both).notes if "licence" in note or "wrote it" in note]
    down = downloaded(server, tmp_path)
    assert "# Two widths" in (down / "README.md").read_text() and f'("{REPO}")' in (down / "README.md").read_text()
    pulled = tmp_path / "pulled"
    ckptzoo.pull_collection(REPO, pulled, endpoint=server.url)
    assert all(files_of(pulled)[name] == files_of(down)[name] for name in ("README.md", "card.toml", "collection.json"))
    part = tmp_path / "part"
    ckptzoo.pull_collection(REPO, part, where="test_accuracy > 0.15", endpoint=server.url)
    assert "**2 checkpoints**" in (part / "README.md").read_text()
    # a zoo that somebody damaged is named, and keeps nobody from publishing
    operation = [CommitOperationAdd("third/zoo.json", b"{}")]
    server.api().create_commit(REPO, operation, commit_message="x", repo_type="dataset")
    (both / "card.toml").write_text(Card("both", title="Again", license="cc-by-4.0").to_toml())
    assert any("third" in note for note in sent(server, both).notes)
    assert [entry.folder for entry in ckptzoo.open_collection(REPO, endpoint=server.url).entries] == list(NAMES)


@pytest.mark.exhaustive
def test_commands(
    server: Hosted, both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", server.tokens["write"])
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN", server.tokens["write"], raising=False)
    assert run(["card", str(both)]) == 0 and "| [`wide`](./wide/README.md) |" in (both / "README.md").read_text()
    assert run(["push", str(both), REPO, "--dry-run"]) == 0 == run(["push", str(both), REPO])
    capsys.readouterr()
    for address in (str(both), REPO, f"hf://datasets/{REPO}"):
        assert run(["info", address, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert {name: item["checkpoints"] for name, item in found["zoos"].items()} == {"narrow": 3, "wide": 3}
        assert found["notes"] == []
    assert run(["search"]) == 0 and "6 in 2 zoos" in capsys.readouterr().out
    add(both / "wide", NAMES["wide"], 2, first=3)
    add(both / "more", NAMES["wide"], 2)
    shutil.rmtree(both / "narrow")
    assert run(["info", str(both)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "wide has changed since" in out and "more is not in the collection" in out and "narrow cannot be read" in out
    assert run(["card", REPO, "--check"]) == 0
