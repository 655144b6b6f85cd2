"""The first contribution of an architecture makes a zoo."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import HubError, SpecError, ZooError
from ckptzoo.hub.client import Client
from ckptzoo.hub.contributions.contribute import contribute
from ckptzoo.hub.contributions.result import Contribution
from ckptzoo.hub.contributions.review import review
from tests.support.hosted import Hosted
from tests.support.hub_zoos import files_of
from tests.support.untrusted_files import CARD, card_of, heldout_in, keys, saved, state_of

NEW = "lab/nets"


class Net(nn.Module):
    """Not one of ``ckptzoo.archs``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 7, 7), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(images)).flatten(1))


def zoo_table(**values: object) -> str:
    lines = [f"{key} = {value!r}" for key, value in values.items()]
    return "\n".join([CARD, "[zoo]", *lines, ""])


def nets(tmp_path: Path, *seeds: int) -> list[Path]:
    paths: list[Path] = []
    for seed in seeds:
        torch.manual_seed(seed)
        paths.append(tmp_path / f"net{seed}.pt")
        torch.save({"model": {f"module.{name}": value for name, value in Net().state_dict().items()}}, paths[-1])
    return paths


def bring(server: Hosted, tmp_path: Path, files: list[Path], text: str, **options) -> Contribution:
    how = {"new": tmp_path / "nets", "data": heldout_in(tmp_path / "data"), "token": server.tokens["write"]} | options
    return contribute(files, to=NEW, card=card_of(tmp_path, "", text), endpoint=server.url, **how)


def test_a_network_that_nobody_knows(server: Hosted, tmp_path: Path) -> None:
    text = zoo_table(name="nets", architecture="net", input_shape=[1, 28, 28], summary="Small nets.")
    made = bring(server, tmp_path, nets(tmp_path, 0, 1), text, module=Net)
    assert made.status == "published" and {check.outcome for check in made.checks} == {"passed"}
    found = ckptzoo.open(NEW, endpoint=server.url)
    assert found.ids == ["net0", "net1"]
    assert found.arch.names == ("conv.weight", "conv.bias", "head.weight", "head.bias") and found.arch.forward is None
    assert found.symmetry is not None and [group.n for group in found.symmetry.groups] == [4]
    assert found.metadata["test_accuracy"].null_count == 0
    assert "Small nets." in (tmp_path / "nets" / "README.md").read_text()
    assert ckptzoo.verify(tmp_path / "nets") == []

    more = bring(server, tmp_path, nets(tmp_path, 2), text, module=Net, token=server.tokens["contribute"])
    assert more.status == "proposed" and more.part.startswith("parts/000002-")
    assert review(NEW, 1, module=Net, merge=True, endpoint=server.url, token=server.tokens["write"]).merged
    copy = bring(server, tmp_path, [permuted(tmp_path)], CARD, module=Net, token=server.tokens["contribute"])
    assert copy.status == "refused" and "permuted or rescaled" in str(copy.entries[0].copy)


def permuted(tmp_path: Path) -> Path:
    """net2 with its channels the other way round."""
    torch.manual_seed(2)
    state = {name: value.numpy() for name, value in Net().state_dict().items()}
    state["conv.weight"], state["conv.bias"] = state["conv.weight"][::-1], state["conv.bias"][::-1]
    state["head.weight"] = state["head.weight"].reshape(10, 4, 16)[:, ::-1].reshape(10, 64)
    return saved(tmp_path / "copy.safetensors", state)


def test_a_network_of_the_package(server: Hosted, tmp_path: Path) -> None:
    files = [saved(tmp_path / "one.safetensors", state_of(1), "net.")]
    made = bring(server, tmp_path, files, zoo_table(name="optunets", forward="optunet"))
    assert made.status == "published" and made.entries[0].measured is not None
    found = ckptzoo.open(NEW, endpoint=server.url)
    assert found.arch == archs.architecture("optunet") and found.symmetry == archs.symmetry("optunet")
    assert found.name == "optunets"


def test_without_a_symmetry_table_copies_are_found_bit_for_bit(server: Hosted, tmp_path: Path) -> None:
    states = [state_of(1), state_of(1)]
    files = [saved(tmp_path / f"{at}.safetensors", state) for at, state in enumerate(states)]
    made = bring(server, tmp_path, files, zoo_table(name="nets"))
    assert made.status == "refused" and made.entries[1].copy == "0 of the same contribution, bit for bit"
    assert not (tmp_path / "nets").exists()
    made = bring(server, tmp_path, files[:1], zoo_table(name="nets"), dry_run=True)
    (check,) = [check for check in made.checks if check.name == "duplicates"]
    assert check.outcome == "passed" and "no symmetry table" in check.detail


def test_what_does_not_make_a_zoo(server: Hosted, tmp_path: Path) -> None:
    files = [saved(tmp_path / "one.safetensors", state_of(1))]
    with pytest.raises(ZooError, match=r"add a table \[zoo\]"):
        bring(server, tmp_path, files, CARD)
    with pytest.raises(ZooError, match="mlp-3"):
        bring(server, tmp_path, files, zoo_table(name="nets", forward="mlp-3"))
    other = saved(tmp_path / "other.safetensors", {"a": np.zeros(3, np.float32)})
    with pytest.raises(SpecError, match="names of the tensors"):
        bring(server, tmp_path, [*files, other], zoo_table(name="nets"))
    assert not (tmp_path / "nets").exists()
    (tmp_path / "bad.pt").write_bytes(b"no")
    with pytest.raises(SpecError):
        bring(server, tmp_path, [tmp_path / "bad.pt"], zoo_table(name="nets"))
    made = bring(server, tmp_path, files, zoo_table(name="nets"), dry_run=True, new=None)
    assert made.status == "dry run" and made.folder is not None and ckptzoo.verify(made.folder) == []


def test_a_dry_run_that_makes_no_zoo_leaves_nothing(
    server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    how = {"dry_run": True, "new": None, "token": server.tokens["write"]}
    files = [saved(tmp_path / "one.safetensors", state_of(1))]
    wrong = keys(claimed_test_accuracy=0.99) + zoo_table(name="nets", forward="optunet")
    assert bring(server, tmp_path, files, wrong, **how).status == "refused"
    with pytest.raises(ZooError):
        bring(server, tmp_path, files, zoo_table(name="nets", forward="mlp-3"), **how)
    assert list(temporary.iterdir()) == []
    kept = bring(server, tmp_path, files, zoo_table(name="nets"), **how)
    assert kept.folder is not None and [path.name for path in temporary.iterdir()] == [kept.folder.parent.name]


def test_without_leave_to_write_the_zoo_stays_here(server: Hosted, tmp_path: Path) -> None:
    files = [saved(tmp_path / "one.safetensors", state_of(1))]
    with pytest.raises(HubError, match="the same command carries on from there"):
        bring(server, tmp_path, files, zoo_table(name="nets"), token=server.tokens["contribute"])
    folder = tmp_path / "nets"
    assert ckptzoo.open(folder).ids == ["one"]
    (folder / "card.toml").write_text((folder / "card.toml").read_text() + 'notes = "Mine."\n')
    before = files_of(folder)

    made = bring(server, tmp_path, files, zoo_table(name="nets"))  # the same again, from the same folder
    assert made.status == "published" and made.folder == folder and files_of(folder) == before
    assert ckptzoo.open(NEW, endpoint=server.url).ids == ["one"]
    assert "Mine." in Client(server.url).read(NEW, "README.md", Client(server.url).listing(NEW)).decode()


def test_a_folder_of_something_else_is_left_alone(server: Hosted, tmp_path: Path) -> None:
    files, folder = [saved(tmp_path / "one.safetensors", state_of(1))], tmp_path / "nets"
    bring(server, tmp_path, files, zoo_table(name="nets"), dry_run=True)
    before, others = files_of(folder), [saved(tmp_path / "two.safetensors", state_of(2))]
    for other in (others, [*files, *others]):
        with pytest.raises(SpecError, match=r"folder of the new zoo: .* got another zoo\. Name another .*ckptzoo push"):
            bring(server, tmp_path, other, zoo_table(name="nets"))
    assert files_of(folder) == before and not list(tmp_path.glob(".ckptzoo*"))
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(SpecError, match=r"got one with other files\. Name another folder with --new"):
        bring(server, tmp_path, files, zoo_table(name="nets"))
    assert Client(server.url).find(NEW) is None
    (folder / "notes.txt").unlink()
    assert bring(server, tmp_path, files, zoo_table(name="nets")).status == "published"
