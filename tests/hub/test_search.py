"""Zoos are found by what their cards say, and no untrusted card does harm."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import ckptzoo
from ckptzoo.cli.hub import search as command
from ckptzoo.errors import HubError, ZooError
from ckptzoo.hub.card import write
from ckptzoo.hub.search import search
from tests.cli.conftest import Cli, cli  # noqa: F401  (a fixture)
from tests.support.hosted import Hosted, hosted, push
from tests.support.hub_zoos import files_of, zoo_of


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """A server for all tests of this module, which only read from it.

    It has a zoo of five OptuNets trained on mnist, one of others, and a data set that is no zoo.
    """
    folder = tmp_path_factory.mktemp("search")
    path = zoo_of(folder / "nets")
    write(path)
    texts = {
        "lab/nets": {name: data for name, data in files_of(path).items() if name == "README.md"},
        "lab/odd": {
            "README.md": b"---\nlicense:\n- mit\n- cc-by-4.0\ntags:\n- ckptzoo\n- 'arch:resnet18'\n"
            b'- "dataset:\\u001b[31mcifar100"\n- "dataset:[/x]"\n'
            b"ckptzoo:\n  checkpoints: many\n---\n# odd\n"
        },
        "lab/pictures": {"README.md": b"---\ntags:\n- arch:optunet\n---\n# no zoo\n"},
    }
    with hosted(folder / "served") as server:
        for repo, files in texts.items():
            server.api().create_repo(repo, repo_type="dataset")
            push(server, files, repo=f"datasets/{repo}")
        yield server


def names(server: Hosted, *arguments: Any, **options: Any) -> list[str]:
    return [zoo.repository for zoo in search(*arguments, endpoint=server.url, **options).zoos]


def test_zoos_are_found_by_their_tags(filled: Hosted) -> None:
    assert names(filled) == ["lab/odd", "lab/nets"]
    assert names(filled, "optunet") == names(filled, dataset="mnist") == ["lab/nets"]
    assert names(filled, "optunet", "mnist", ["arch:optunet"]) == ["lab/nets"]
    assert names(filled, "optunet", "cifar100") == names(filled, "resnet") == []
    assert names(filled, text="od") == ["lab/odd"]


def test_what_the_card_says_is_told(filled: Hosted) -> None:
    odd, nets = search(endpoint=filled.url).zoos
    assert (nets.architectures, nets.datasets, nets.checkpoints) == (("optunet",), ("mnist",), 5)
    assert nets.parameters == ckptzoo.archs.architecture("optunet").parameters
    assert nets.license == "apache-2.0" and nets.updated is not None and not nets.private
    assert (odd.checkpoints, odd.parameters, odd.license) == (None, None, "mit, cc-by-4.0")


def test_a_limit_says_that_there_are_more(filled: Hosted) -> None:
    found = search(limit=1, endpoint=filled.url)
    assert [zoo.repository for zoo in found.zoos] == ["lab/odd"] and found.more
    assert not search(limit=2, endpoint=filled.url).more
    with pytest.raises(ZooError, match="limit: expected 1 or more, got 0"):
        search(limit=0, endpoint=filled.url)


def test_as_json(filled: Hosted) -> None:
    found = json.loads(json.dumps(search("optunet", endpoint=filled.url).to_json()))
    assert found["endpoint"] == filled.url and found["tags"] == ["ckptzoo", "arch:optunet"] and not found["more"]
    (zoo,) = found["zoos"]
    assert zoo["repository"] == "lab/nets" and zoo["updated"].startswith("20")


def test_a_hub_that_refuses(tmp_path: Path) -> None:
    with hosted(tmp_path / "closed", private=True) as found:
        assert search(endpoint=found.url, token=found.tokens["read"]).zoos == ()
        with pytest.raises(HubError, match=r"[Tt]oken|[Ll]og in"):
            search(endpoint=found.url, token="hf_" + "x" * 34)


@pytest.fixture
def typed(cli: Cli, filled: Hosted, monkeypatch: pytest.MonkeyPatch) -> Cli:  # noqa: F811
    """The command alone in a program, against the server."""
    app = typer.Typer()
    app.command()(command)
    app.callback()(lambda: None)
    monkeypatch.setattr("ckptzoo.cli.app.app", app)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", filled.url)
    return cli


def test_the_table(typed: Cli) -> None:
    ended = typed("search")
    assert ended.code == 0 and ended.err == ""
    head, odd, nets = ended.out.splitlines()
    assert head.split() == ["repository", "architecture", "data", "set", "checkpoints", "licence", "updated"]
    assert nets.split()[:-1] == ["lab/nets", "optunet", "mnist", "5", "apache-2.0"]
    assert "\x1b" not in odd and "mit, cc-by-4.0" in odd
    assert typed("search", "--limit", "1").out.splitlines()[-1] == "and others: --limit 2 shows more."
    (zoo,) = typed("search", "nets", "--arch", "optunet", "--dataset", "mnist", "--tag", "ckptzoo", "--json").json[
        "zoos"
    ]
    assert zoo["checkpoints"] == 5


def test_nothing_found_says_how_to_ask_for_less(typed: Cli, filled: Hosted) -> None:
    ended = typed("search", "--arch", "vgg", "--dataset", "mnist")
    assert ended.code == 0
    said = f"{filled.url}: no zoo with the tags ckptzoo, arch:vgg, dataset:mnist. Ask for less, or see all of them"
    assert ended.out.startswith(said)
    assert "'nothing' in its name" in typed("search", "nothing").out
