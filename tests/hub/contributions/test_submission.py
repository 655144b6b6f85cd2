"""contribution.toml: what it may say, and every problem with it, reported at once."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ckptzoo.errors import SpecError
from ckptzoo.hub.contributions.submission import DEFAULTS, OF_CHECKPOINT, OF_ZOO, TOP, Submission
from ckptzoo.image_sets.evaluation import Evaluation

TEMPLATE = Path(__file__).parents[3] / "cards" / "template" / "contribution.toml"
LEAST = 'contributor = "A"\nlicense = "mit"\n'


def read(tmp_path: Path, text: str) -> Submission:
    path = tmp_path / "contribution.toml"
    path.write_text(text)
    return Submission.from_toml(path)


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(SpecError) as found:
        read(tmp_path, text)
    return [str(problem) for problem in found.value.problems]


def test_the_template_is_valid_and_shows_every_key(tmp_path: Path) -> None:
    text = TEMPLATE.read_text()
    found = read(tmp_path, text)
    assert found.evaluation == Evaluation("mnist", (0.1307,), (0.3081,))
    head, tables = text.split("[evaluation]")
    # every commented key and table, uncommented; the first comments say how it is used
    uncommented = [re.sub(r"^# (?=(\w+ = |\[|\"))", "", line) for line in (head + "[evaluation]" + tables).splitlines()]
    whole = read(tmp_path, "\n".join(uncommented))
    assert whole.cast is False and whole.zoo is not None and whole.zoo.input_shape == (1, 28, 28)
    assert whole.names == {"features.0.*": "conv1.*", "classifier.weight": "fc.weight"}
    assert whole.checkpoints[0].file == "run-7.pt" and whole.checkpoints[0].values["seed"] == 7
    assert whole.defaults["created"] == datetime(2024, 5, 1, 12, tzinfo=UTC)
    shown = set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))
    shown |= set(re.findall(r"^(?:# )?\[+(\w+)\]", text, re.MULTILINE))
    assert {*TOP, *OF_CHECKPOINT, *OF_ZOO} <= shown


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    text = """
licence = "mit"
dataset = 3
claimed_test_accuracy = 98.9
test_accuracy = 0.9
epoch = nan
cast = "yes"
[names]
"a.*" = "b"
[evaluation]
dataset = ""
mean = [0.1, 0.2]
std = [1.0, 1.0, 1.0]
[zoo]
forwards = "mlp"
input_shape = [0]
[[checkpoint]]
file = "a.pt"
sed = 3
[[checkpoint]]
file = "a.pt"
seed = 1.5
"""
    found = problems(tmp_path, text)
    for piece in (
        "key 'licence': expected a known key, got another. Did you mean license",
        "contributor: expected one for all",
        "license: expected one for all",
        "dataset: expected a text",
        "claimed_test_accuracy: expected a fraction",
        "What you measured yourself is claimed_test_accuracy",
        "epoch: expected a finite number",
        "cast: expected true or false",
        "as many *",
        "the name of a data set",
        "mean and std: expected as many",
        "key 'forwards': expected a known key, got another. Did you mean forward",
        "zoo: name: expected the new zoo's name",
        "input_shape: expected positive integers",
        "key 'sed': expected a known key, got another. Did you mean seed",
        "checkpoint 2: file: expected each once",
        "seed: expected an integer",
    ):
        assert any(piece in problem for problem in found), (piece, found)
    assert len(found) == 17


@pytest.mark.parametrize("scaling", ["mean = 127.5\nstd = 127.5", "mean = [125.3, 123.0, 113.9]\nstd = 0.25"])
def test_a_scaling_of_pixels_up_to_255_is_refused(tmp_path: Path, scaling: str) -> None:
    text = f'contributor = "A"\nlicense = "mit"\ndataset = "mnist"\n[evaluation]\n{scaling}\n'
    (problem,) = problems(tmp_path, text)
    assert "mean and std: expected those of pixels from 0 to 1, got" in problem and "Divide them by 255." in problem


@pytest.mark.parametrize("text", ["unknown", "none", "", "all rights reserved!", "mit;", "MIT AND", "x" * 300])
def test_licences_that_are_none(tmp_path: Path, text: str) -> None:
    assert len(problems(tmp_path, f'contributor = "A"\nlicense = "{text}"\n')) == 1


@pytest.mark.parametrize(
    "text", ["MIT", "apache-2.0", "BSD-2-Clause", "(MIT OR Apache-2.0)", "LicenseRef-mine", "other"]
)
def test_licences(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, f'contributor = "A"\nlicense = "{text}"\n').license == text


@pytest.mark.parametrize(
    "more",
    [
        "checkpoint = 3",
        "names = 3",
        "evaluation = 3",
        "zoo = []",
        "training = 1",
        "extra = 5",
        "extra = { a = nan }",
        "extra = { a = 2024-01-01 }",
        'source = "two\\nlines"',
        'recipe = "\\u001b[31m"',
        "seed = 9223372036854775808",
        "step = -1",
        "diverged = 1",
        'created = "yesterday"',
    ],
)
def test_wrong_values(tmp_path: Path, more: str) -> None:
    assert len(problems(tmp_path, LEAST + more)) == 1


@pytest.mark.parametrize("data", [b"", b"a = ", b"\xff\xfe", b"a = 1\na = 2"])
def test_files_that_are_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "contribution.toml").write_bytes(data)
    with pytest.raises(SpecError):
        Submission.from_toml(tmp_path / "contribution.toml")
    with pytest.raises(SpecError, match="a contribution in TOML"):
        Submission.from_toml(tmp_path)


def test_defaults_are_columns_that_may_be_claimed() -> None:
    assert "claimed_test_accuracy" in DEFAULTS and "license" in DEFAULTS
    assert not {"id", "unit", "finite", "test_accuracy", "train_loss"} & set(DEFAULTS)


def test_draws_of_a_method(tmp_path: Path) -> None:
    text = LEAST + 'method = "swag"\nmode = "net-7"\n[[checkpoint]]\nfile = "a.pt"\ndraw = 3\n'
    found = read(tmp_path, text)
    assert found.defaults["method"] == "swag" and found.defaults["mode"] == "net-7"
    assert found.checkpoints[0].values == {"draw": 3}
    assert "key 'draw'" in problems(tmp_path, LEAST + 'method = "swag"\ndraw = 3\n')[0], "one draw is one checkpoint"
    assert "0 or more" in problems(tmp_path, LEAST + '[[checkpoint]]\nfile = "a.pt"\ndraw = -1\n')[0]
