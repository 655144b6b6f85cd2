"""Files of torch.save, in both formats: every kind of tensor and of wrapper that is understood."""

from collections import OrderedDict
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted import StateDict, read, read_all
from tests.support.checkpoint_files import saved, written
from tests.support.effort import ALL

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
NEW = ["uint16", "uint32", "uint64"]


def bits(value: torch.Tensor) -> bytes:
    flat = value.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def all_of(folder: Path, contents: dict[str, object]) -> dict[str, tuple[StateDict, ...]]:
    """Every content in both formats of torch.save, which must read alike."""
    files = {f"{name}.pt": saved(content) for name, content in contents.items()}
    files |= {f"{name}.th": saved(content, zipped=False) for name, content in contents.items()}
    made = {}
    for one in read_all(written(folder, files)):
        assert one.error is None, one.error
        made[one.path.name] = one.states
    for name in contents:
        new, old = made[f"{name}.pt"], made[f"{name}.th"]
        assert [list(found.tensors) for found in new] == [list(found.tensors) for found in old]
        for one, two in zip(new, old, strict=True):
            assert all(one.tensors[key].tobytes() == two.tensors[key].tobytes() for key in one.tensors)
            assert repr((one.aliases, one.facts, one.left_out)) == repr((two.aliases, two.facts, two.left_out))
    return {name: made[f"{name}.pt"] for name in contents}


def test_tensors_of_every_kind(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    base = torch.randn(6, 7, generator=draw)
    payload = torch.tensor([0x7FC12345, -0x3EDCBB, 0x7F800001, 0], dtype=torch.int32).view(torch.float32)
    tensors: dict[str, torch.Tensor] = {
        f"dtype.{name}": (torch.randn(3, 2, generator=draw) * 9).to(getattr(torch, name)) for name in DTYPES
    }
    tensors |= {
        "nan": payload,
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "num_batches_tracked": torch.tensor(2**40),
        "empty": torch.zeros(0, 3),
        "transposed": base.t(),
        "strided": base[::2, 1::3],
        "offset": base[3],
        "expanded": torch.arange(3.0)[:, None].expand(3, 4),
        "flipped": torch.ones(2, 2, 2).permute(2, 0, 1),
        "parameter": nn.Parameter(torch.randn(2, 2, generator=draw)),
        "grad": torch.ones(3, requires_grad=True),
    }
    ((found,),) = all_of(tmp_path, {"all": tensors}).values()
    assert list(found.tensors) == list(tensors)
    for name, value in tensors.items():
        assert found.tensors[name].shape == tuple(value.shape)
        assert found.tensors[name].dtype.name == str(value.dtype).removeprefix("torch.")
        assert found.tensors[name].tobytes() == bits(value), name
    assert found.tensors["dtype.bfloat16"].dtype == ml_dtypes.bfloat16
    assert found.aliases == {}


def test_one_number_shown_many_times_is_refused(tmp_path: Path) -> None:
    """512 MiB from four bytes; a small one is read as it is."""
    for name, shape in (("large.pt", (2**13, 2**14)), ("small.pt", (2**10, 2**10))):
        torch.save({"w": torch.ones(1).expand(shape)}, tmp_path / name)
    assert (tmp_path / "large.pt").stat().st_size < 10_000
    large, small = read_all([tmp_path / "large.pt", tmp_path / "small.pt"])
    assert "at most 8 times their storages written out, got 536870912 bytes from their shapes, of 4 stored" in str(
        large.error
    )
    assert small.error is None and small.states[0].tensors["w"].sum() == 2**20


def test_dtypes_that_the_old_format_cannot_hold(tmp_path: Path) -> None:
    tensors = {f"{name}.weight": torch.arange(5).to(getattr(torch, name)) for name in NEW}
    (found,) = read(written(tmp_path, {"new.pt": saved(tensors)})[0])
    for name, value in tensors.items():
        assert f"{found.tensors[name].dtype}.weight" == name and np.array_equal(found.tensors[name], value.numpy())


def test_shared_storages_are_aliases_and_views_are_copies(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    content = {
        "encoder.weight": weight,
        "decoder.weight": weight,
        "part": weight[1],
        "turned": weight.t(),
        "b": weight.clone(),
    }
    ((found,),) = all_of(tmp_path, {"tied": content}).values()
    assert found.aliases == {"decoder.weight": "encoder.weight"}
    assert np.array_equal(found.tensors["part"], [3, 4, 5]) and found.tensors["turned"].shape == (3, 2)
    assert found.tensors["decoder.weight"] is found.tensors["encoder.weight"]


def test_modules_with_their_state_and_metadata(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    made = module.state_dict()
    assert isinstance(made, OrderedDict) and made._metadata  # pyright: ignore[reportAttributeAccessIssue]
    ((found,),) = all_of(tmp_path, {"module": made}).values()
    assert list(found.tensors) == list(made) and found.tensors["1.num_batches_tracked"].dtype == np.int64


def test_wrappers_optimisers_and_facts(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    state = {f"module.{name}": value for name, value in net.state_dict().items()}
    other = {name: value + 1 for name, value in net.state_dict().items()}
    found = all_of(
        tmp_path,
        {
            "full": {
                "epoch": 12,
                "arch": "lenet",
                "best_acc1": torch.tensor(91.5),
                "nan": float("nan"),
                "done": True,
                "state_dict": state,
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "rng_state": torch.get_rng_state(),
                "args": {"lr": 0.1},
                "note": "x\ny",
                "huge": 10**100,
                "history": [0.1, 0.2],
            },
            "two": {"model": state, "ema": other, "step": 3},
            "same": {"model": state, "ema": state},
            "list": [state, other, state],
            "numbered": {0: state, 1: other},
            "nested": {"checkpoint": {"model": {"state_dict": state}, "epoch": 4}},
            "lightning": {
                "epoch": 1,
                "global_step": 10,
                "pytorch-lightning_version": "2.1",
                "state_dict": state,
                "loops": {"fit_loop": {"state_dict": {}}},
                "callbacks": {},
                "optimizer_states": [optimizer.state_dict()],
                "lr_schedulers": [],
            },
            "bare": list(net.state_dict().values()),
        },
    )
    (full,) = found["full"]
    assert full.source == "full.pt" and list(full.tensors) == ["module.weight", "module.bias"]
    assert np.isnan(full.facts.pop("nan"))
    assert full.facts == {"epoch": 12, "arch": "lenet", "best_acc1": 91.5, "done": True, "args.lr": 0.1}
    assert type(full.facts["done"]) is bool and type(full.facts["epoch"]) is int
    assert sorted(full.left_out) == [
        "history: 2 items",
        "huge: a int",
        "note: a text of 3 characters",
        "optimizer: 2 entries",
        "rng_state: a tensor of shape (5056,)",
        full.left_out[[one.split(":")[0] for one in full.left_out].index("scheduler")],
    ]
    assert [one.source for one in found["two"]] == ["two.pt#model", "two.pt#ema"]
    assert list(found["two"][1].tensors) == ["weight", "bias"] and found["two"][1].facts == {"step": 3}
    assert [one.source for one in found["same"]] == ["same.pt#model", "same.pt#ema"]
    assert [one.source for one in found["list"]] == ["list.pt#0", "list.pt#1", "list.pt#2"]
    assert [one.source for one in found["numbered"]] == ["numbered.pt#0", "numbered.pt#1"]
    (nested,) = found["nested"]
    assert list(nested.tensors) == ["module.weight", "module.bias"] and nested.facts == {"epoch": 4}
    (lightning,) = found["lightning"]
    assert lightning.facts == {"epoch": 1, "global_step": 10, "pytorch-lightning_version": "2.1"}
    assert "optimizer_states: 1 item" in " ".join(lightning.left_out)
    assert list(found["bare"][0].tensors) == ["0", "1"]


def test_names_that_a_zoo_does_not_allow_are_kept_and_those_that_nothing_allows_refused(tmp_path: Path) -> None:
    odd = {
        "a\nb": r"'a\\nb'",
        "\x1b[31m": r"\\x1b",
        "\u202e": r"\\u202e",
        "": "an empty name",
        "n" * 600: "600 characters",
    }
    files = {"kept.pt": saved({"params/Dense 0/kernel": torch.ones(2), "größe": torch.ones(1)})}
    files |= {f"{at}.pt": saved({name: torch.ones(2)}) for at, name in enumerate(odd)}
    kept, *others = read_all(written(tmp_path, files))
    assert list(kept.states[0].tensors) == ["params/Dense 0/kernel", "größe"]
    for one, shown in zip(others, odd.values(), strict=True):
        with pytest.raises(IntegrityError, match=f"name: expected a printable text, got .*{shown}"):
            raise one.error or AssertionError


@pytest.mark.slow
def test_very_many_tensors(tmp_path: Path) -> None:
    count = 100_000 if ALL else 5_000
    path = tmp_path / "many.pt"
    whole = torch.arange(float(count))
    torch.save({f"layer{at}.weight": whole[at] for at in range(count)}, path)
    (found,) = read(path)
    assert len(found.tensors) == count and float(found.tensors[f"layer{count - 1}.weight"]) == count - 1
