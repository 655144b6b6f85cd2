"""``ckptzoo push`` as a person types it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from ckptzoo.cli.hub import push
from ckptzoo.errors import HubError
from ckptzoo.hub.client import Client
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import inject_faults

Make = Callable[..., Path]
Run = Callable[..., Result]


@pytest.fixture
def run(server: Hosted, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command with the hub's address and a token where the client library looks for them."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", server.tokens["write"])
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(push)

    def called(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return result

    return called


def test_push_says_what_it_did(run: Run, server: Hosted, make_zoo: Make) -> None:
    zoo = make_zoo()
    shown = run(zoo, ZOO, "--dry-run")
    assert "2 parts to upload in a new repository, 0 there." in shown.stdout and Client(server.url).find(ZOO) is None
    first = run(zoo, f"hf://datasets/{ZOO}", "--message", "First light", "--private")
    assert "2 parts uploaded, 0 there already." in first.stdout and f"{ZOO} at {server.url}" in first.stdout
    assert first.stderr == ""  # no bars, no log lines
    titles = [item.title for item in server.api().list_repo_commits(ZOO, repo_type="dataset")]
    assert titles[0] == "First light" and not server.api(None).repo_exists(ZOO, repo_type="dataset")
    assert "nothing to do, 2 parts there already." in run(zoo, ZOO).stdout
    assert "Make the repository private" in " ".join(run("--help").stdout.split())


def test_push_in_json(run: Run, server: Hosted, make_zoo: Make) -> None:
    zoo = make_zoo()
    planned_now = json.loads(run(zoo, ZOO, "--dry-run", "--json").stdout)
    assert planned_now["commits"] == 1 and planned_now["creates"] and len(planned_now["parts"]) == 2
    done = json.loads(run(zoo, ZOO, "--json").stdout)
    assert done["commits"] == [Client(server.url).head(ZOO)] and done["nbytes"] == planned_now["nbytes"]
    assert not any(token in json.dumps(done) for token in server.tokens.values())


@pytest.mark.exhaustive
def test_the_librarys_own_words_are_not_heard(run: Run, server: Hosted, make_zoo: Make) -> None:
    zoo = make_zoo()
    with inject_faults(server, at=(1,), kinds=("broken",), operations=("upload",)):
        result = run(zoo, ZOO)
    assert server.faults.injected and result.stderr == "" and "_uploads" not in result.output


def test_what_is_wrong_is_an_error(run: Run, server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="expected a zoo's folder"):
        run(tmp_path / "none", ZOO)
    run(make_zoo("zoo"), ZOO)
    with pytest.raises(HubError, match="Push to another repository"):
        run(make_zoo("other"), ZOO)
