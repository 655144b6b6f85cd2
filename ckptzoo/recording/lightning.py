"""A callback for Lightning that records the runs of its trainer; needs the extra ``lightning``."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from ckptzoo.errors import UnknownNameError
from ckptzoo.recording.metrics import measured
from ckptzoo.recording.recorder import Recorder, check_columns, record

__all__ = ["RecordCallback"]


class RecordCallback(pl.Callback):
    """Records a run of a Lightning trainer, at the end of each epoch or every so many steps, and when it ends.

    The process of rank 0 records. A trainer that is resumed with ``ckpt_path`` goes on with its member. Figures of a
    validation are those of the weights that it measured: they are in the rows of checkpoints of the same step alone.

    Parameters
    ----------
    path
        the zoo's folder, as for ``ckptzoo.record``.
    network
        the attribute of the Lightning module that is the network, such as ``model``; by default the whole module,
        metrics and losses with tensors included.
    every_n_steps
        optimiser steps between two checkpoints; by default one at the end of each epoch.
    columns
        the columns of the metadata for metrics of validations, such as ``{"val_acc": "test_accuracy"}``. All metrics
        are in ``extra``, too.
    options
        further arguments of ``ckptzoo.record``, such as ``member``, ``seed`` and ``card``.

    Examples
    --------
    >>> from lightning.pytorch import Trainer
    >>> from ckptzoo.recording.lightning import RecordCallback
    >>> callback = RecordCallback("zoos/mine", network="model", seed=0, columns={"val_acc": "test_accuracy"})
    >>> trainer = Trainer(callbacks=[callback], accelerator="cpu", logger=False, enable_progress_bar=False)
    """

    def __init__(
        self,
        path: str | Path,
        *,
        network: str | None = None,
        every_n_steps: int | None = None,
        columns: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self._path, self._network, self._every, self._options = path, network, every_n_steps, options
        self._columns = dict(columns or {})
        check_columns(dict.fromkeys(self._columns.values()))
        self._run: Recorder | None = None
        self._member: str | None = options.get("member")
        self._validated: int | None = None
        self._waits, self._epoch = False, 0.0
        self._validation_names = set[str]()
        self._seen = set[str]()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint of the trainer holds of it: the member."""
        return {"member": self._member}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the member of a checkpoint of the trainer.

        Parameters
        ----------
        state_dict
            what ``state_dict`` returned.
        """
        self._member = state_dict.get("member") or self._member

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the run."""
        if self._run is not None:  # of a training that ended by an exception
            self._run.close()
        if trainer.is_global_zero:
            options = {**self._options, "member": self._member}
            self._run = record(self._path, **{"arch": self._weights(pl_module), **options})
            self._member = self._run.member

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note what was measured before."""
        self._before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note which step was validated, and which metrics are those of validations."""
        if trainer.sanity_checking:
            return
        self._validated = trainer.global_step
        now = trainer.callback_metrics
        self._validation_names |= {name for name in now if self._before.get(name) is not now[name]}
        self._seen |= now.keys()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Save the checkpoint of the step before, which was validated in between, if at all."""
        self._save_waiting(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the epoch, and whether the step of a checkpoint has come."""
        batches = trainer.num_training_batches
        self._epoch = trainer.current_epoch + ((batch_idx + 1) / batches if math.isfinite(batches) else 0.0)
        self._waits = self._every is not None and trainer.global_step % self._every == 0

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save a checkpoint at the end of an epoch."""
        self._epoch = trainer.current_epoch + 1.0
        self._save_waiting(trainer, pl_module)
        if self._every is None:
            self._save(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the last checkpoint, wait until everything is on the disk, and end the run."""
        if self._run is None:
            return
        self._save(trainer, pl_module)
        self._run.close()
        if lacking := sorted(self._columns.keys() - self._seen):
            there = ", ".join(sorted(self._seen)) or "none"
            text = f"no validation had the metric {lacking[0]!r} of columns; there were {there}"
            warnings.warn(text, UserWarning, stacklevel=2)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """End the run; what was saved stays."""
        if self._run is not None:
            self._run.close()

    def _weights(self, module: pl.LightningModule) -> Any:
        # the state dict has the names of the module that the attribute is
        if self._network is None:
            return module.state_dict()
        names = [name for name, _ in module.named_modules() if name]
        if self._network not in names:
            raise UnknownNameError("RecordCallback", "network", self._network, names)
        return module.get_submodule(self._network).state_dict()

    def _save_waiting(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self._waits:
            self._waits = False
            self._save(trainer, module)

    def _save(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # gradients that are accumulated end several batches with one step
        if self._run is None or trainer.global_step in self._run.saved_here:
            return
        metrics = dict(trainer.callback_metrics)
        if self._validated != trainer.global_step:
            # those of a validation were measured of other weights
            metrics = {name: value for name, value in metrics.items() if name not in self._validation_names}
        figures, extra = measured(metrics, self._columns)
        values: dict[str, Any] = {"epoch": float(self._epoch), **figures}
        self._run.save(self._weights(module), step=trainer.global_step, extra=extra, **values)
