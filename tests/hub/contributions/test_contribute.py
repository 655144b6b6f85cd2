"""``contribute``: files and zoos become one part and a pull request, which a review merges."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import ckptzoo
from ckptzoo.errors import HubError
from ckptzoo.hub.contributions.contribute import contribute, misfit
from ckptzoo.hub.contributions.evaluation import output_differences
from ckptzoo.hub.contributions.ingest import Ingestor
from ckptzoo.hub.contributions.matching import names_table
from ckptzoo.hub.contributions.result import Contribution
from ckptzoo.hub.contributions.review import review
from ckptzoo.hub.contributions.submission import Submission
from ckptzoo.hub.push import push
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import grown, weights_of
from tests.support.untrusted_files import CARD, accuracy_of, card_of, heldout_in, keys, saved, state_of

Bring = Callable[..., Contribution]


@pytest.fixture
def zoo(server: Hosted, make_zoo: Callable[..., Path]) -> Path:
    """The folder of a zoo that is published as ``lab/zoo``."""
    folder = make_zoo("zoo")
    push(folder, ZOO, endpoint=server.url, token=server.tokens["write"])
    return folder


@pytest.fixture
def bring(server: Hosted, zoo: Path, tmp_path: Path) -> Bring:
    """Contribute files with a token that may open pull requests alone."""
    data = heldout_in(tmp_path / "data")

    def contributed(*files: Path, more: str = "", text: str = CARD, **options) -> Contribution:
        how = {"card": card_of(tmp_path, more, text), "data": data, "token": server.tokens["contribute"]} | options
        return contribute(files, to=ZOO, endpoint=server.url, **how)

    return contributed


def outcomes(made) -> dict[str, str]:
    return {check.name: check.outcome for check in made.checks}


def commits(server: Hosted) -> int:
    return len(server.api().list_repo_commits(ZOO, repo_type="dataset"))


TWO_WAYS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head1 = torch.nn.Linear(8, 8)
        self.fc1 = torch.nn.Linear(8, 8)
        self.fc3 = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc1(torch.relu(self.head1(x)))))
"""
"""A perceptron whose second layer has the name of the zoo's first."""


def test_outputs_tell_which_names_are_right(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(TWO_WAYS)
    arch = ckptzoo.archs.architecture("mlp-8-8-8-3")
    draw = np.random.default_rng(0)
    state: dict[str, np.ndarray] = {}
    for name, shape in {"head1": (8, 8), "fc1": (8, 8), "fc3": (3, 8)}.items():
        state[f"{name}.weight"] = draw.standard_normal(shape, np.float32)
        state[f"{name}.bias"] = draw.standard_normal(shape[:1], np.float32)
    torch.save({name: torch.from_numpy(array) for name, array in state.items()}, file := tmp_path / "net.pt")
    ingestor = Ingestor(Submission.from_toml(card_of(tmp_path)), {})
    assert list(ingestor.ingest([file], arch)) == []
    by_order = {"head1": "fc1", "fc1": "fc2"}
    by_order = {f"{old}.{kind}": f"{new}.{kind}" for old, new in by_order.items() for kind in ("weight", "bias")}
    by_names = {f"head1.{kind}": f"fc2.{kind}" for kind in ("weight", "bias")}
    assert ingestor.misnamed is not None
    found, proposals = ingestor.misnamed
    assert proposals == (by_order, by_names)
    module = f"{tmp_path}/net.py:Net"
    differences = output_differences(arch, module, found, proposals)
    assert differences is not None and differences[0] < 1e-6 < 0.1 < differences[1]
    error = misfit(ingestor, arch, module)
    assert error.proposals == (by_order,) and names_table(by_order) in str(error.problems[0])
    assert misfit(ingestor, arch, None).proposals == proposals


@pytest.mark.exhaustive
def test_untrusted_files_become_rows(server: Hosted, bring: Bring, tmp_path: Path) -> None:
    """Three formats in one contribution: pull request, review, merge, and then the zoo has them."""
    states = [state_of(100 + at) for at in range(5)]
    plain = saved(tmp_path / "one.safetensors", states[0], "module.")
    packed = tmp_path / "two.npz"
    np.savez(packed, **{name: array.astype(np.float64) for name, array in states[1].items()})
    torched = tmp_path / "three.pt"
    wrapped = {"state_dict": {name: torch.from_numpy(array) for name, array in states[2].items()}}
    torch.save({**wrapped, "epoch": 9, "optimizer": {"state": {}, "param_groups": []}}, torched)
    stacked = tmp_path / "four.npz"
    np.savez(stacked, **{name: np.stack([states[3][name], states[4][name]]) for name in states[3]})
    claimed = accuracy_of(states[0], tmp_path / "data")
    of_one = f'\n[[checkpoint]]\nfile = "one.safetensors"\nid = "first"\nseed = 5\nclaimed_test_accuracy = {claimed}\n'
    of_one += 'extra = { note = "ours" }\n[[checkpoint]]\nfile = "four.npz#1"\nid = "last"\n'
    made = bring(plain, packed, torched, stacked, text=CARD + of_one)
    assert made.status == "proposed" and made.number == 1 and made.url is None
    assert set(outcomes(made).values()) == {"passed"}
    assert made.part.startswith("parts/000003-") and made.folder is None
    assert any("module." in note for note in made.notes) and any("optimizer" in text for text in made.left_out)

    found = review(ZOO, 1, data=tmp_path / "data", merge=True, endpoint=server.url, token=server.tokens["write"])
    # a zoo of 5 is too small to say what is near
    assert found.passed and found.merged and outcomes(found)["near copies"] == "not done"
    assert {outcome for name, outcome in outcomes(found).items() if name != "near copies"} == {"passed"}
    after = ckptzoo.open(ZOO, endpoint=server.url)
    assert after.ids[5:] == [f"stranger/{name}" for name in ("first", "two", "three", "four-0", "last")]
    rows = after.metadata.to_pylist()[5:]
    assert rows[0]["seed"] == 5 and rows[0]["claimed_test_accuracy"] == claimed
    assert {row["license"] for row in rows} == {"cc-by-4.0"} and rows[0]["contributor"] == "Ada Stranger"
    assert [row["test_accuracy"] for row in rows] == [accuracy_of(state, tmp_path / "data") for state in states]
    for name in after.arch.names:
        assert after[name][5:].tobytes() == np.stack([state[name] for state in states]).tobytes()
    assert '"note": "ours"' in rows[0]["extra"] and '"epoch": 9' in rows[2]["extra"]
    assert '"std": [0.3081]' in rows[0]["extra"] and '"file": "one.safetensors"' in rows[0]["extra"]


@pytest.mark.exhaustive
def test_figures_in_files_are_compared_with_what_is_measured(server: Hosted, bring: Bring, tmp_path: Path) -> None:
    """A network that its contributor evaluated otherwise says so in its file, and is not merged without a word."""
    good, bad = state_of(0), state_of(1)
    figures = {"good": accuracy_of(good, tmp_path / "data"), "bad": accuracy_of(bad, tmp_path / "data") + 0.25}
    files = [tmp_path / f"{name}.pt" for name in figures]
    for file, state, figure in zip(files, (good, bad), figures.values(), strict=True):
        torch.save({"model": {key: torch.from_numpy(array) for key, array in state.items()}, "test_acc": figure}, file)
    made = bring(*files, dry_run=True)
    assert outcomes(made)["accuracy"] == "failed" and "bad: claimed_test_accuracy" in str(made.checks)
    assert "good: claimed" not in str(made.checks)
    sound = bring(files[0])
    assert sound.status == "proposed" and outcomes(sound)["accuracy"] == "passed"
    found = review(ZOO, 1, data=tmp_path / "data", endpoint=server.url, token=server.tokens["write"])
    assert [entry.claimed for entry in found.entries] == [figures["good"]] and found.passed


def test_the_text_of_the_pull_request(server: Hosted, bring: Bring, tmp_path: Path) -> None:
    file = saved(tmp_path / "a `b` | @lab [x](e.org) <script>.safetensors", state_of(1))
    made = bring(file, more="claimed_test_accuracy = 0.1\n" if accuracy_of(state_of(1), tmp_path / "data") else "")
    made = bring(file) if made.status == "refused" else made
    (event, *_) = server.api().get_discussion_details(ZOO, 1, repo_type="dataset").events
    text = event.content
    assert f"ckptzoo review {ZOO} N" in text and "`cc-by-4.0`" in text and "`https://example.org/runs`" in text
    assert "| duplicates | passed |" in text and "| accuracy | passed |" in text
    assert "<b>bar</b>`" in text and "| with a" not in text
    outside = "".join(text.split("`")[::2])
    assert "<" not in outside and "@lab" not in outside and "](" not in outside


def test_a_dry_run_uploads_nothing(server: Hosted, bring: Bring, tmp_path: Path) -> None:
    before = len(server.request_log.entries)
    made = bring(saved(tmp_path / "one.safetensors", state_of(1)), dry_run=True)
    assert made.status == "dry run" and made.folder is not None and made.number is None
    assert ckptzoo.verify(made.folder) == [] and ckptzoo.open(made.folder).ids == ["stranger/one"]
    assert {entry.method for entry in server.request_log.entries[before:]} <= {"GET", "HEAD"}


def test_ids_begin_with_the_account(server: Hosted, bring: Bring, tmp_path: Path) -> None:
    """The name of the card is that of a person; a dry run without a token knows no other."""
    file = saved(tmp_path / "one.safetensors", state_of(1))
    for token, name in ((server.tokens["write"], "lab/one"), (None, "ada-stranger/one")):
        made = bring(file, dry_run=True, token=token)
        assert made.folder is not None and ckptzoo.open(made.folder).ids == [name]
        assert ckptzoo.open(made.folder).metadata["contributor"].to_pylist() == ["Ada Stranger"]
    with pytest.raises(HubError, match="token"):
        bring(file, token=None)


def test_the_same_again_is_recognised(server: Hosted, bring: Bring, tmp_path: Path) -> None:
    file = saved(tmp_path / "one.safetensors", state_of(1))
    assert bring(file).status == "proposed"
    again = bring(file)
    assert (again.status, again.number) == ("open", 1)
    review(ZOO, 1, merge=True, data=tmp_path / "data", endpoint=server.url, token=server.tokens["write"])
    assert bring(file).status == "merged"
    other = bring(saved(tmp_path / "one.safetensors", state_of(2)))
    assert other.status == "refused" and "stranger/one is in the zoo already" in str(other.checks)
    assert len(ckptzoo.open(ZOO, endpoint=server.url)) == 6


def test_a_checkpoint_of_another_open_pull_request_is_refused_at_once(
    server: Hosted, bring: Bring, tmp_path: Path
) -> None:
    file = saved(tmp_path / "one.safetensors", state_of(1))
    both = [file, saved(tmp_path / "two.safetensors", state_of(2))]
    assert bring(file).status == "proposed"
    bob = {"text": CARD.replace("Ada Stranger", "Bob"), "token": server.tokens["write"]}
    second = bring(*both, **bob)
    assert second.status == "refused" and second.number is None
    detail = next(check.detail for check in second.checks if check.name == "open requests")
    assert detail == "lab/one is stranger/one of pull request 1, which is open"
    server.api().change_discussion_status(ZOO, 1, "closed", repo_type="dataset")
    assert bring(*both, **bob).status == "proposed"
    # one that is opened again is the earlier one
    server.api().change_discussion_status(ZOO, 1, "open", repo_type="dataset")
    how = {"data": tmp_path / "data", "endpoint": server.url, "token": server.tokens["write"]}
    assert outcomes(review(ZOO, 1, **how))["open requests"] == "passed"
    found = review(ZOO, 2, **how)
    assert outcomes(found)["open requests"] == "failed" and found.merged is None


def test_a_zoo_is_brought_with_its_rows(server: Hosted, bring: Bring, make_zoo: Callable[..., Path]) -> None:
    other = make_zoo("other", (2,), label="x")
    made = bring(other, data=None)
    assert made.status == "proposed", made.checks
    found = review(ZOO, 1, merge=True, endpoint=server.url, token=server.tokens["write"])
    assert outcomes(found)["accuracy"] == "not done" and found.merged
    rows = ckptzoo.open(ZOO, endpoint=server.url).metadata.to_pylist()[5:]
    assert [row["id"] for row in rows] == ["stranger/x0-0", "stranger/x0-1"]
    assert [json.loads(row["extra"])["contributed_as"]["id"] for row in rows] == ["x0-0", "x0-1"]
    assert rows[1]["test_accuracy"] == 0.91 and rows[1]["license"] == "apache-2.0"
    assert {row["contributor"] for row in rows} == {"Ada Stranger"}


def own(name: str) -> str:
    return f"stranger/{name}"


def test_stacked_draws_are_numbered(bring: Bring, tmp_path: Path) -> None:
    """Of a file that holds several, the number is that of the first; a file on its own may name another."""
    states = [state_of(100 + at) for at in range(4)]
    stacked = tmp_path / "swag.npz"
    np.savez(stacked, **{name: np.stack([state[name] for state in states[:3]]) for name in states[0]})
    last = saved(tmp_path / "last.safetensors", states[3])
    more = keys(method="swag", mode="net-7")
    text = CARD.replace("contributor", f"{more}contributor", 1)
    text += '\n[[checkpoint]]\nfile = "swag.npz"\ndraw = 20\n[[checkpoint]]\nfile = "last.safetensors"\ndraw = 4\n'
    made = bring(stacked, last, text=text, dry_run=True)
    assert made.status == "dry run" and made.folder is not None, made.checks
    rows = ckptzoo.open(made.folder).metadata.select(["id", "method", "mode", "draw"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (own("swag-0"), "swag", "net-7", 20), (own("swag-1"), "swag", "net-7", 21), (own("swag-2"), "swag", "net-7", 22),
        (own("last"), "swag", "net-7", 4),
    ]  # fmt: skip


def test_weights_that_are_not_finite(bring: Bring, tmp_path: Path, server: Hosted) -> None:
    state = state_of(1)
    state["fc.bias"][3] = np.nan
    file = saved(tmp_path / "one.safetensors", state)
    made = bring(file)
    assert made.status == "refused" and outcomes(made)["finiteness"] == "failed" and commits(server) == 2
    made = bring(file, more=keys(diverged=True))
    assert made.status == "proposed" and "1 not finite" in str(made.checks)
    assert review(ZOO, 1, data=tmp_path / "data", endpoint=server.url).passed


def test_scaling_of_the_recipe(bring: Bring, server: Hosted, zoo: Path, tmp_path: Path) -> None:
    """What rows of the same recipe in the zoo say is taken where the contribution says nothing."""
    file = saved(tmp_path / "one.safetensors", state_of(1))
    text = CARD.split("[evaluation]")[0]
    assert outcomes(bring(file, text=text, dry_run=True))["accuracy"] == "not done"
    writer = ckptzoo.append(zoo)
    extra = {"dataset": "mnist", "mean": 0.1307, "std": 0.3081}
    writer.add(weights_of(1, 9), [{"id": "own", "recipe": "sgd", "dataset": "mnist", "extra": extra}])
    writer.commit()
    push(zoo, ZOO, endpoint=server.url, token=server.tokens["write"])
    made = bring(file, text=text, dry_run=True)
    assert made.entries[0].measured == accuracy_of(state_of(1), tmp_path / "data")


@pytest.mark.exhaustive
def test_the_zoo_moves_on_before_the_pull_request(server: Hosted, bring: Bring, zoo: Path, tmp_path: Path) -> None:
    """Another part with the same number came meanwhile: both are there, in the order of their names."""
    made = bring(saved(tmp_path / "one.safetensors", state_of(1)))
    grown(zoo, (1,), start=7)
    push(zoo, ZOO, endpoint=server.url, token=server.tokens["write"])
    found = review(ZOO, 1, merge=True, data=tmp_path / "data", endpoint=server.url, token=server.tokens["write"])
    assert found.merged and outcomes(found)["order"] == "passed"
    parts = [part.path for part in ckptzoo.open(ZOO, endpoint=server.url).contents.raw.parts]
    assert made.part in parts and len([name for name in parts if "/000003-" in name]) == 2
    assert sorted(ckptzoo.open(ZOO, endpoint=server.url).ids) == sorted([*ckptzoo.open(zoo).ids, "stranger/one"])
