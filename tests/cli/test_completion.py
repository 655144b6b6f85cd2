"""What the shell is offered where a word of a command line is begun."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.cli.app import run
from ckptzoo.cli.completion import complete_condition
from ckptzoo.derive import derive
from ckptzoo.schema.metadata import COLUMNS
from tests.support.hosted import hosted

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve OptuNets, raw and in first-weight."""
    path, rng = tmp_path_factory.mktemp("completion") / "nets", np.random.default_rng(0)
    arch = archs.architecture("optunet")
    with ckptzoo.create(path, arch=arch, symmetry=archs.symmetry("optunet")) as writer:
        weights = {tensor.name: rng.normal(size=(12, *tensor.shape)).astype(np.float32) for tensor in arch.tensors}
        writer.add(weights, [{"id": f"net-{row:03d}"} for row in range(12)])
    derive(path, gauge="first-weight", certify="none")
    return path


def variables(words: str) -> dict[str, str]:
    """The environment in which bash asks for completions, as Typer's script for it does."""
    line = f"ckptzoo {words}"
    return {
        "_CKPTZOO_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("der", ["derive"]),
        ("catalogue wild", ["wild-park"]),
        ("export ZOO net-01", ["net-010", "net-011"]),
        ("retract ZOO net-003 net-00", [f"net-00{row}" for row in range(10)]),
        ("show ZOO --variant r", ["raw"]),
        ("derive ZOO --gauge first", ["first-weight"]),
        ("export /nowhere net", []),
        ("mm", ["mmd"]),
        ("mmd ZOO ZOO --variant f", ["first-weight"]),
        ("mmd nowhere ZOO --variant-y f", ["first-weight"]),
        ("mmd ZOO --variant-y f", ["first-weight"]),
        ("mmd ZOO nowhere --variant-y f", []),
        ("mmd ZOO ZOO --bandwidths p", ["paper"]),
        (
            "study ",
            [
                *("barriers", "collapse", "compact", "ensembles", "independence", "landscape"),
                *("marginals", "mass", "modes"),
                *("novelty", "pairs"),
                *("permutations", "posteriors", "predict-accuracy", "reference", "steps", "symmetries", "toy"),
                "transpositions",
            ],
        ),
        ("study perm", ["permutations"]),
        ("study mass ZOO --formulation p", ["pinned"]),
        ("study symmetries ZOO --variant f", ["first-weight"]),
        ("study barriers ZOO --variant f", ["first-weight"]),
        ("info ZO", ["ZOO"]),
        ("info PARENT/", ["ZOO"]),
        ("info PARENT", ["ZOO"]),
        ("derive PARENT/net", ["ZOO"]),
        ("mmd ZOO PARENT/net", ["ZOO"]),
        ("info ZOO/", []),
        ("info nowhere", []),
        ("show nowhere --variant r", []),
        ("info ZOO --where test_a", ["test_accuracy"]),
        ("mmd ZOO ZOO --where-y se", ["seed"]),
        ("pull ZOO -o there --layers conv1,co", ["conv1,conv1", "conv1,conv2"]),
        ("pull nowhere -o there --layers co", []),
        ("study permutations ZOO --variant f", ["first-weight"]),
    ],
)
def test_words_are_completed(
    zoo: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    expected: list[str],
) -> None:
    monkeypatch.setenv("CKPTZOO_CACHE", str(zoo.parent / "no cache"))
    folders = {"ZOO": str(zoo), "ZO": str(zoo)[:-1], "PARENT": str(zoo.parent)}
    for name, folder in folders.items():
        words, expected = words.replace(name, folder), [word.replace(name, folder) for word in expected]
    for name, value in variables(words).items():
        monkeypatch.setenv(name, value)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        run([])
    captured = capsys.readouterr()
    assert ended.value.code == 0
    assert sorted(captured.out.split()) == sorted(expected) and captured.err == ""


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("seed < 5 and test_acc", ["seed < 5 and test_accuracy"]),
        ("not (claimed_test_l", ["not (claimed_test_loss"]),
        ("(seed < 5 or ", [f"(seed < 5 or {column.name}" for column in COLUMNS]),
        ("", [column.name for column in COLUMNS]),
        ("seed < ", []),
        ("seed", ["seed"]),
        ("seed < s", []),
        ("seed s", []),
        ("dataset == 'mnist and se", []),
        ("dataset == 'and", []),
        ("5e", []),
    ],
)
def test_the_last_name_of_a_condition_is_completed(condition: str, expected: list[str]) -> None:
    assert list(complete_condition(condition)) == expected


@pytest.mark.exhaustive
@pytest.mark.usefixtures("isolated_clients")
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_zoos_in_the_cache_are_offered_without_the_network(zoo: Path, tmp_path: Path) -> None:
    with hosted(tmp_path / "served") as server:
        server.api().create_repo("lab/zoo", repo_type="dataset")
        server.api().upload_folder(folder_path=zoo, repo_id="lab/zoo", repo_type="dataset")
        ckptzoo.open("lab/zoo", endpoint=server.url, token=server.tokens["read"])
        endpoint, before = server.url, len(server.request_log.entries)
        cases = [
            ("info la", ["lab/zoo"]),
            ("show lab/zoo --variant ", ["raw", "first-weight"]),
            ("show lab/zoo@main --variant f", ["first-weight"]),
            ("show hf://datasets/lab/zoo --variant f", ["first-weight"]),
            ("pull lab/zoo -o there --layers f", ["fc"]),
            ("show lab/other --variant ", []),
            ("derive la", []),
        ]
        for words, expected in cases:
            # ":" begins a new word of bash, though not of the line that it hands over
            assert completed(words, tmp_path, HF_ENDPOINT=endpoint) == expected, words
        assert completed("info la", tmp_path) == []  # a zoo of another hub
        assert len(server.request_log.entries) == before
    assert completed("info la", tmp_path, HF_ENDPOINT=endpoint) == ["lab/zoo"]


def completed(words: str, folder: Path, **environment: str) -> list[str]:
    """What the process prints that the shell starts in a folder, without empty lines."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables(words), **environment}
    command = [sys.executable, "-m", "ckptzoo"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=folder
    )
    assert ended.stderr == ""
    return [line for line in ended.stdout.splitlines() if line]


@pytest.mark.parametrize(
    "words", ["info ZO", "show ZOO --variant r", "pull ZOO --layers c", "show ZOO --where se", "derive ZOO --gauge f"]
)
def test_nothing_large_is_imported_for_it(zoo: Path, words: str) -> None:
    words = words.replace("ZOO", str(zoo)).replace("ZO", str(zoo)[:-1])
    environment = {**os.environ, **variables(words), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "importtime", "-m", "ckptzoo"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert ended.stdout.strip()
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"numpy", "pyarrow", "torch", "huggingface_hub", "scipy", "ssl"}
    assert seconds < 1  # 0.17 s on a machine with nothing else to do


def test_the_process_that_the_shell_starts_prints_the_same(zoo: Path) -> None:
    assert completed(f"export {zoo} net-01", zoo) == ["net-010", "net-011"]
