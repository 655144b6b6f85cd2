"""What is turned away before anything is uploaded; the tests of this file share one server."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ckptzoo
from ckptzoo.errors import HubError, IntegrityError, SpecError, ZooError
from ckptzoo.hub.contributions.contribute import contribute
from ckptzoo.hub.contributions.matching import NamesError
from ckptzoo.hub.contributions.report import ReviewCheck
from ckptzoo.hub.contributions.result import Contribution
from ckptzoo.hub.push import push
from ckptzoo.symmetry import GroupElement, apply
from tests.support.hosted import ZOO, Hosted, hosted
from tests.support.hub_zoos import TABLE, weights_of, zoo_of
from tests.support.untrusted_files import CARD, accuracy_of, card_of, heldout_in, keys, saved, state_of

Bring = Callable[..., Contribution]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """A server with a zoo, which no test of this file changes."""
    folder = tmp_path_factory.mktemp("shared")
    with hosted(folder / "served") as found:
        push(zoo_of(folder / "zoo"), ZOO, endpoint=found.url, token=found.tokens["write"])
        yield found
        assert not list(found.api().get_repo_discussions(ZOO, repo_type="dataset"))


@pytest.fixture
def bring(server: Hosted, tmp_path: Path) -> Bring:
    """Contribute files with a token that may open pull requests alone."""
    data = heldout_in(tmp_path / "data")

    def contributed(*files: Path, more: str = "", text: str = CARD, **options) -> Contribution:
        how = {"card": card_of(tmp_path, more, text), "data": data, "token": server.tokens["contribute"]} | options
        return contribute(files, to=ZOO, endpoint=server.url, **how)

    return contributed


def failed(made: Contribution) -> list[str]:
    return [check.name for check in made.checks if check.outcome == "failed"]


def test_names_that_do_not_fit(bring: Bring, tmp_path: Path) -> None:
    odd = {name.replace("fc", "head"): array for name, array in state_of(1).items()}
    file = saved(tmp_path / "one.safetensors", odd)
    with pytest.raises(NamesError, match=r"head\.\w+, head\.\w+ instead of fc.weight, fc.bias") as raised:
        bring(file)
    table = tmp_path / "names.toml"
    table.write_text(raised.value.tables)
    assert bring(file, map=table, dry_run=True).passed
    assert bring(file, text=CARD + "\n" + raised.value.tables, dry_run=True).passed
    assert bring(file, map={"head.*": "fc.*"}, dry_run=True).passed
    others = [saved(tmp_path / f"{at}.safetensors", odd) for at in range(2, 7)]
    with pytest.raises(NamesError, match=r"^one.safetensors, 2.safetensors, .* and 2 more: names of") as raised:
        bring(file, *others)
    assert len(raised.value.problems) == 1


def test_everything_that_does_not_fit_is_reported(bring: Bring, tmp_path: Path) -> None:
    wide = state_of(1) | {"fc.bias": np.zeros(11, np.float32)}
    double = {name: array.astype(np.float64) * 1.1 for name, array in state_of(2).items()}
    one, two = saved(tmp_path / "one.safetensors", wide), saved(tmp_path / "two.safetensors", double)
    three = tmp_path / "three.pt"
    three.write_bytes(b"not a checkpoint")
    with pytest.raises(SpecError) as raised:
        bring(one, two, three, text=CARD + '\n[[checkpoint]]\nfile = "four.pt"\n')
    text = str(raised.value)
    assert "one.safetensors: tensor 'fc.bias'" in text and "cast = true" in text and "three.pt" in text
    assert "'four.pt'" in text
    made = bring(two, more=keys(cast=True), dry_run=True)
    assert made.passed and any("rounded" in note for note in made.notes)
    assert made.folder is not None and '"rounded_from"' in ckptzoo.open(made.folder).metadata["extra"][0].as_py()


def test_copies_are_found(bring: Bring, tmp_path: Path) -> None:
    """Bit for bit, permuted and rescaled, of the zoo and among themselves."""
    held = {name: array[1] for name, array in weights_of(3, 1000 * ord("m")).items()}
    mine = {name: array[None] for name, array in state_of(5).items()}
    element = GroupElement.random(TABLE, 1, np.random.default_rng(1), spread=0.5)
    rescaled = [
        {name: array[0] for name, array in apply(element, weights, TABLE).items()}
        for weights in ({name: array[None] for name, array in held.items()}, mine)
    ]
    files = [
        saved(tmp_path / f"{name}.safetensors", state)
        for name, state in zip("abcd", (held, rescaled[0], state_of(5), rescaled[1]), strict=True)
    ]
    made = bring(*files)
    assert made.status == "refused" and failed(made) == ["duplicates"]
    assert [entry.copy for entry in made.entries] == [
        "m0-1 of the zoo, bit for bit",
        "stranger/a of the same contribution, permuted or rescaled",
        None,
        "stranger/c of the same contribution, permuted or rescaled",
    ]
    alone = bring(files[1])
    assert alone.entries[0].copy == "m0-1 of the zoo, permuted or rescaled"


def test_ids_that_are_repeated(bring: Bring, tmp_path: Path) -> None:
    files = saved(tmp_path / "one.safetensors", state_of(1)), saved(tmp_path / "two.safetensors", state_of(2))
    with pytest.raises(SpecError, match="each id once"):
        bring(*files, text=CARD + '\n[[checkpoint]]\nfile = "two.safetensors"\nid = "one"\n')


@pytest.mark.exhaustive
def test_licences_that_hubs_do_not_know_are_for_the_reviewer(bring: Bring, tmp_path: Path) -> None:
    file = saved(tmp_path / "one.safetensors", state_of(1))

    def judged(license: str) -> ReviewCheck:
        made = bring(file, text=CARD.replace("cc-by-4.0", license), dry_run=True)
        assert made.passed and made.folder is not None
        shutil.rmtree(made.folder.parent)
        return next(check for check in made.checks if check.name == "licence")

    assert (
        judged("mti").outcome == "not done"
        and "'mti' is not a licence that hubs know (did you mean mit" in judged("mti").detail
    )
    for known in ("MIT", "GPL-3.0-only", "(mit OR GPL-2.0-or-later WITH Classpath-exception-2.0)", "other",
                  "LicenseRef-lab"):  # fmt: skip
        assert judged(known) == ReviewCheck("licence", "passed", known)


def test_claims_that_are_not_true(bring: Bring, tmp_path: Path) -> None:
    file = saved(tmp_path / "one.safetensors", state_of(1))
    made = bring(file, more=keys(claimed_test_accuracy=0.99))
    assert made.status == "refused" and failed(made) == ["accuracy"]
    unmeasured = bring(file, more=keys(claimed_test_accuracy=0.99), data=tmp_path, dry_run=True)
    assert unmeasured.passed and [item.name for item in unmeasured.checks if item.outcome == "not done"] == ["accuracy"]


def test_a_module_of_ones_own(bring: Bring, tmp_path: Path) -> None:
    file, module = saved(tmp_path / "one.safetensors", state_of(1)), tmp_path / "net.py"
    module.write_text("from ckptzoo.archs.optunet import OptuNet as Net\nfrom torch import nn\nwrong = 3\n")
    made = bring(file, module=f"{module}:Net", dry_run=True)
    assert made.entries[0].measured == accuracy_of(state_of(1), tmp_path / "data")
    for bad, said in (
        (f"{module}:wrong", "class or function"),
        (f"{module}:none", "class or function, got nothing of that name"),
        (f"{module}", rf"expected FILE.py:NAME, got no NAME. Write --module {module}:NAME; NAME is the class"),
        (f"{module}:", rf"got no NAME. Write --module {module}:NAME"),
        (f"{tmp_path}/none.py:Net", "expected FILE.py:NAME, got no such file"),
        (f"{tmp_path}/net.txt:Net", r"got '.*net.txt', which does not end in .py"),
    ):
        with pytest.raises(ZooError, match=said):
            bring(file, module=bad)
    with pytest.raises(SpecError, match="module for optunet"):
        bring(file, module=lambda: torch.nn.Linear(2, 2))
    module.write_text("raise RuntimeError('no')")
    with pytest.raises(ZooError, match="RuntimeError: no"):
        bring(file, module=f"{module}:Net")


def test_who_may_not(server: Hosted, bring: Bring, tmp_path: Path) -> None:
    file = saved(tmp_path / "one.safetensors", state_of(1))
    with pytest.raises(HubError, match=r"status 403 .*\. Use a token that may open pull requests there\.$"):
        bring(file, token=server.tokens["read"])
    with pytest.raises(SpecError, match="nothing"):
        bring(tmp_path / "none.pt")
    with pytest.raises(SpecError, match="expected each once"):
        bring(file, file)


def test_what_fails_leaves_nothing(server: Hosted, bring: Bring, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    bad = tmp_path / "one.safetensors"
    bad.write_bytes(b"\xff" * 100)
    with pytest.raises((SpecError, IntegrityError)):
        bring(bad)
    with pytest.raises(HubError):
        bring(saved(tmp_path / "two.safetensors", state_of(1)), token=server.tokens["read"])
    assert (
        bring(saved(tmp_path / "one.safetensors", state_of(1)), more=keys(claimed_test_accuracy=0.99)).status
        == "refused"
    )
    assert list(scratch.iterdir()) == []
