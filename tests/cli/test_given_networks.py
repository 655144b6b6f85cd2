"""Networks as people give them: classes, instances, files that import others, and names that do not fit."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.errors import SpecError
from ckptzoo.symmetry import trace

NETWORK = """
import torch
from torch import nn
from widths_beside import WIDTH


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))


net = Net()
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def test_a_class_in_place_of_a_network_is_named(tmp_path: Path) -> None:
    given = (
        lambda: ckptzoo.create(tmp_path / "zoo", arch=Net),
        lambda: ckptzoo.record(tmp_path / "runs", arch=Net, seed=0).__enter__(),
        lambda: trace(Net, torch.zeros(2, 3)),  # pyright: ignore[reportArgumentType]
    )
    for call in given:
        with pytest.raises(SpecError, match=r"got the class Net\. Make a network of it: Net\(\.\.\.\)"):
            call()
    assert not (tmp_path / "zoo").exists()


@pytest.mark.parametrize("name", ["Net", "net"])
def test_a_file_imports_what_lies_beside_it(tmp_path: Path, name: str) -> None:
    """In a process of its own: the folder stays on the path."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sub.py").write_text(NETWORK)
    (tmp_path / "own/widths_beside.py").write_text("WIDTH = 5")
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    with ckptzoo.create(tmp_path / "zoo", arch=network) as writer:
        writer.add(network, {"id": "a", "seed": 0})
    command = ["derive", "zoo", "--module", f"own/sub.py:{name}", "--input-shape", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "ckptzoo", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "1 checkpoint derived in canonical" in done.stdout, done.stderr


@pytest.mark.parametrize("command", ["import", "link"])
def test_names_that_are_proposed_can_be_given_back(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nets").mkdir()
    torch.save(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).state_dict(), tmp_path / "nets/a.pt")
    asked = [command, str(tmp_path / "nets"), "--to", str(tmp_path / "zoo"), "--arch", "mlp-8-16-3", "--license", "MIT"]
    assert run(asked) == 3
    lines = capsys.readouterr().err.splitlines()
    table = "\n".join(line for line in lines if line.startswith(('"', "[names]")))
    assert tomllib.loads(table)["names"]["0.weight"] == "fc1.weight" and "add this to a file for --names" in lines[0]
    (tmp_path / "names.toml").write_text(table)
    assert run([*asked, "--names", str(tmp_path / "names.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == 1


def test_a_batch_lists_what_it_has(tmp_path: Path) -> None:
    network = Net()
    with ckptzoo.create(tmp_path / "zoo", arch=network) as writer:
        writer.add(network, {"id": "a", "seed": 3})
    (batch,) = ckptzoo.open(tmp_path / "zoo").stream("fc", columns=["seed"], batch_size=4)
    assert list(batch) == ["fc.weight", "fc.bias", "seed"] and all(len(batch[name]) == 1 for name in batch)


def test_a_table_of_another_network_is_found_also_where_all_is_derived(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Signs of neurons leave networks with tanh as they are, and none with ReLU."""
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    made = "from torch import nn\n"
    for name, layer in (("right", "ReLU"), ("wrong", "Tanh")):
        made += f"def {name}(): return nn.Sequential(nn.Linear(4, 5), nn.{layer}(), nn.Linear(5, 2))\n"
    (tmp_path / "nets.py").write_text(made)
    path = str(tmp_path / "zoo")
    with ckptzoo.create(path, arch=network) as writer:
        writer.add(network, {"id": "a", "seed": 0})
    named = ["derive", path, "--input-shape", "4", "--module"]
    # nothing but the module says what the network is
    assert run([*named, f"{tmp_path}/nets.py:wrong"]) == 0
    assert run([*named, f"{tmp_path}/nets.py:wrong"]) == 0
    for more in ([], ["--certify", "all"], ["--gauge", "unit-norm"]):
        capsys.readouterr()
        assert run([*named, f"{tmp_path}/nets.py:right", *more]) == 4
        assert "expected outputs of zoo that agree to" in capsys.readouterr().err
