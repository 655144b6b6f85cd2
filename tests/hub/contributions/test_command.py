"""``ckptzoo contribute`` and ``ckptzoo review`` as a person types them."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptzoo.cli.app import run
from ckptzoo.hub.push import push
from tests.support.hosted import ZOO, Hosted
from tests.support.untrusted_files import card_of, heldout_in, saved, state_of

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(
    server: Hosted,
    make_zoo: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Say:
    """Run a command line as somebody; gives the exit code and what was printed."""
    push(make_zoo("zoo"), ZOO, endpoint=server.url, token=server.tokens["write"])
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    capsys.readouterr()

    def said(*arguments: object, role: str = "contribute") -> tuple[int, str, str]:
        monkeypatch.setenv("HF_TOKEN", server.tokens[role])
        code = run([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return said


def test_contribute_and_review(say: Say, tmp_path: Path, server: Hosted) -> None:
    data, card = heldout_in(tmp_path / "data"), card_of(tmp_path)
    file = saved(tmp_path / "one.safetensors", state_of(1))
    bring = ("contribute", file, "--to", ZOO, "--card", card, "--data", data)
    code, out, err = say(*bring, "--dry-run")
    assert (code, err) == (0, "") and "nothing was uploaded; it would be 1 checkpoint" in out
    assert not list(tmp_path.glob("ckptzoo-contribution-*"))
    code, out, err = say(*bring)
    assert (code, err) == (0, "") and f"pull request 1 adds 1 checkpoint (20.3 kB): ckptzoo review {ZOO} 1\n" in out
    code, out, _ = say("review", ZOO, 1, "--data", data)
    assert code == 0 and "nothing failed; 1 check not done: near copies." in out and "by stranger, open" in out
    assert re.search("accuracy +passed", out) and re.search("near copies +not done", out)
    code, out, err = say("review", ZOO, 1, "--merge", "--data", data)
    assert code == 5 and "expected one that may merge" in err
    code, out, _ = say("review", ZOO, 1, "--merge", "--data", data, "--json", role="write")
    told = json.loads(out)
    assert code == 0 and told["passed"] and len(told["merged"]) == 40 and told["checkpoints"][0]["id"] == "stranger/one"
    code, out, _ = say(*bring, "--json")
    assert code == 0 and json.loads(out)["status"] == "merged"
    code, out, _ = say("review", ZOO, 1)
    assert code == 1 and "expected an open pull request, it is merged" in out


def test_names_are_proposed(say: Say, tmp_path: Path) -> None:
    odd = {name.replace("fc", "head"): array for name, array in state_of(1).items()}
    bring = ("contribute", saved(tmp_path / "one.safetensors", odd), "--to", ZOO, "--card", card_of(tmp_path))
    code, out, err = say(*bring, "--dry-run")
    assert code == 3 and out == ""
    lines = err.splitlines()
    assert '"head.weight" = "fc.weight"' in lines and lines[-1].startswith("ckptzoo: error: one.safetensors: names")
    assert lines[-1].endswith("add the table [names] to contribution.toml.")
    table = tmp_path / "names.toml"
    table.write_text("\n".join(line for line in lines if line.startswith('"')))
    code, _, _ = say(*bring, "--dry-run", "--map", table)
    assert code == 0


def test_what_is_refused(say: Say, tmp_path: Path) -> None:
    file, data = saved(tmp_path / "one.safetensors", state_of(1)), heldout_in(tmp_path / "data")
    claim = card_of(tmp_path, "claimed_test_accuracy = 0.99\n")
    code, out, _ = say("contribute", file, "--to", ZOO, "--card", claim, "--data", data)
    assert code == 1 and "accuracy    failed" in out and "1 check failed; nothing was uploaded" in out
    code, _, err = say("contribute", file, "--to", ZOO, "--card", card_of(tmp_path, "licens = 'mit'\n"))
    assert code == 3 and "Did you mean license or" in err
    code, _, err = say("contribute", file, "--to", "lab/none", "--card", card_of(tmp_path))
    assert code == 2 and "add a table [zoo]" in err
    code, _, err = say("review", ZOO, 7)
    assert code == 2 and "discussion 7" in err
    code, _, err = say("contribute", tmp_path / "none.pt", "--to", ZOO, "--card", card_of(tmp_path))
    assert code == 3 and "none.pt: file" in err
