"""A callback for the Trainer of transformers that records its runs; needs the extra ``transformers``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from ckptzoo.recording.metrics import measured
from ckptzoo.recording.recorder import Recorder, check_columns, record

__all__ = ["RecordCallback"]


class RecordCallback(TrainerCallback):
    """Records a run of a transformers ``Trainer``, whenever the trainer saves (``save_strategy``) and at the end.

    The process of rank 0 records. To go on with a member after a run was resumed, give its name.

    Parameters
    ----------
    path
        the zoo's folder, as for ``ckptzoo.record``.
    every_n_steps
        optimiser steps between two checkpoints; by default one whenever the trainer saves its own.
    columns
        the columns of the metadata for figures of ``evaluate``, such as ``{"eval_accuracy": "test_accuracy"}``. They
        are in ``extra``, too, in the rows of checkpoints of the step that was evaluated.
    options
        further arguments of ``ckptzoo.record``, such as ``member`` and ``card``; ``seed`` is by default the trainer's.

    Examples
    --------
    >>> from ckptzoo.recording.transformers import RecordCallback
    >>> import torch
    >>> from transformers import Trainer, TrainingArguments
    >>> callback = RecordCallback("zoos/mine", member="seed-0")
    >>> arguments = TrainingArguments("trainer", report_to=[], use_cpu=True)
    >>> trainer = Trainer(torch.nn.Linear(2, 2), arguments, callbacks=[callback])
    """

    def __init__(
        self,
        path: str | Path,
        *,
        every_n_steps: int | None = None,
        columns: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self._path, self._every, self._options = path, every_n_steps, options
        self._columns, self._metrics = dict(columns or {}), dict[str, Any]()
        check_columns(dict.fromkeys(self._columns.values()))
        self._evaluated: int | None = None
        self._waits = False
        self._run: Recorder | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the run."""
        if self._run is not None:  # of a training that ended by an exception
            self._run.close()
        if state.is_world_process_zero:
            self._run = record(self._path, **{"arch": kwargs["model"], "seed": args.seed, **self._options})

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save the checkpoint of the step before, which was evaluated in between, if at all."""
        if self._waits:
            self._save(state, kwargs["model"])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note that the step of a checkpoint has come, or the last one."""
        is_last = state.global_step >= state.max_steps > 0
        if is_last or (self._every is not None and state.global_step % self._every == 0):
            # figures of this step come later, and the weights stay until the next one begins
            self._waits = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save the last checkpoint, where it is not evaluated first."""
        if self._waits and not control.should_evaluate:
            self._save(state, kwargs["model"])

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep the figures, of several sets together, for the checkpoint of this step."""
        if self._evaluated != state.global_step:
            self._metrics = {}
        self._metrics |= dict(kwargs.get("metrics") or {})
        self._evaluated = state.global_step
        # the best model may be loaded before anything else is called
        if self._waits and state.global_step >= state.max_steps > 0:
            self._save(state, kwargs["model"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save a checkpoint when the trainer saves its own."""
        if self._every is None:
            self._save(state, kwargs["model"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait until everything is on the disk, and end the run."""
        if self._run is None:
            return
        # with load_best_model_at_end the weights are those of another step by now
        if not args.load_best_model_at_end:
            self._save(state, kwargs["model"])
        self._run.close()

    def _save(self, state: TrainerState, model: Any) -> None:
        self._waits = False
        if self._run is None or state.global_step in self._run.saved_here:
            return
        # figures belong to the weights that they were measured of
        metrics = self._metrics if self._evaluated == state.global_step else {}
        figures, extra = measured(metrics, self._columns)
        values: dict[str, Any] = {"epoch": state.epoch, **figures}
        self._run.save(model, step=state.global_step, extra=extra, **values)
