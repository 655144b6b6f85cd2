"""The callbacks, in the trainers that they are for."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ckptzoo

pytestmark = pytest.mark.slow


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> Any:
    pl = pytest.importorskip("lightning.pytorch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return pl


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def examples() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(16, 4, generator=generator), torch.arange(16) % 2)


def make_module(pl: Any) -> Any:
    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: Any, number: int) -> Any:
            loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            self.log("loss", loss)
            self.log("odd", float("nan"))
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("acc", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def fit(pl: Any, folder: Path, epochs: int, *, resume: Path | None = None, **options: Any) -> tuple[Any, Any]:
    from ckptzoo.recording.lightning import RecordCallback

    callback, module = RecordCallback(folder / "zoo", **options), make_module(pl)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = pl.Trainer(
        max_epochs=epochs, callbacks=[callback], default_root_dir=folder, enable_checkpointing=False, **quiet
    )
    loader = DataLoader(examples(), 4)
    trainer.fit(module, loader, loader, ckpt_path=resume, weights_only=False)
    trainer.save_checkpoint(folder / "last.ckpt")
    return trainer, module


@pytest.mark.filterwarnings("ignore")
def test_lightning(lightning: Any, tmp_path: Path) -> None:
    """A run, the same resumed from the trainer's checkpoint, and another by steps: members, steps, figures, weights."""
    options = {"network": "model", "columns": {"acc": "test_accuracy"}, "seed": 3}
    fit(lightning, tmp_path, 2, **options)
    _, module = fit(lightning, tmp_path, 3, resume=tmp_path / "last.ckpt", **options)
    by_steps = {"every_n_steps": 3, "member": "by-steps", "columns": {"acc": "test_accuracy"}}
    fit(lightning, tmp_path, 1, network="model", **by_steps)
    with pytest.raises(ckptzoo.ZooError, match=r"network 'modell': expected one of model, .* Did you mean model"):
        fit(lightning, tmp_path, 1, network="modell")
    with pytest.raises(ckptzoo.ZooError, match="column 'test_acuracy'"):
        fit(lightning, tmp_path, 1, network="model", columns={"acc": "test_acuracy"})
    with pytest.warns(UserWarning, match="no validation had the metric 'ac' of columns; there were acc, "):
        fit(lightning, tmp_path, 1, network="model", member="other", columns={"ac": "test_loss"})
    assert not ckptzoo.gather(tmp_path / "zoo").problems
    zoo = ckptzoo.open(tmp_path / "zoo")
    rows = zoo.metadata.select(["member", "step", "epoch", "test_accuracy", "extra", "seed"]).to_pylist()
    first = [row for row in rows if row["member"] not in ("by-steps", "other")]
    assert len({row["member"] for row in first}) == 1
    assert [(row["step"], row["epoch"], row["seed"]) for row in first] == [(4, 1.0, 3), (8, 2.0, 3), (12, 3.0, 3)]
    assert all(0 <= row["test_accuracy"] <= 1 and '"loss"' in row["extra"] for row in first)
    # step 3 was not validated: the figures of the epoch before it would be of other weights
    by_steps = [row for row in rows if row["member"] == "by-steps"]
    assert [(row["step"], row["test_accuracy"] is None, "acc" in row["extra"]) for row in by_steps] == [
        (3, True, False),
        (4, False, True),
    ]
    last = zoo.where("step == 12")
    for name, tensor in module.model.state_dict().items():
        assert torch.equal(torch.from_numpy(last[name][0]), tensor)


@pytest.mark.filterwarnings("ignore")
def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from ckptzoo.recording.transformers import RecordCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    data = [{"x": x, "labels": label} for x, label in examples()]
    model = Model()
    arguments = transformers.TrainingArguments(
        tmp_path / "trainer", num_train_epochs=2, per_device_train_batch_size=4, eval_strategy="epoch", seed=5,
        save_strategy="steps", save_steps=3, report_to=[], disable_tqdm=True, use_cpu=True, logging_strategy="no",
    )  # fmt: skip
    callbacks = [
        RecordCallback(tmp_path / "zoo", member="a"),
        RecordCallback(tmp_path / "zoo", member="b", every_n_steps=4, columns={"eval_loss": "test_loss"}),
    ]
    trainer = transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks)
    trainer.train()
    assert not ckptzoo.gather(tmp_path / "zoo").problems
    zoo = ckptzoo.open(tmp_path / "zoo")
    rows = zoo.metadata.select(["member", "step", "seed", "epoch"]).to_pylist()
    assert [(row["member"], row["step"]) for row in rows] == [("a", 3), ("a", 6), ("a", 8), ("b", 4), ("b", 8)]
    assert {row["seed"] for row in rows} == {5} and rows[-1]["epoch"] == 2.0
    # steps 4 and 8 end epochs, which are evaluated after the step; the model's loss then is that of the row
    losses = zoo.where("member == 'b'").metadata["test_loss"].to_pylist()
    assert losses[-1] == pytest.approx(trainer.evaluate()["eval_loss"]) and losses[0] is not None
    for name, tensor in model.state_dict().items():
        assert torch.equal(torch.from_numpy(zoo.where("step == 8")[name][1]), tensor)
