"""``open_run``: trains members of a zoo again, from what their rows say, or from one of their checkpoints.

``ckptzoo`` finds it by the entry point of its own distribution, and never imports ``builders``. Rows are anybody's:
they are data, whose recipe has to have the digest that they state and names known architectures, losses and data sets;
nothing of them is executed, and none of them names a file.
"""

import math
import os
import platform
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from builders import engines, metadata, sources
from builders.data_source import Feed
from builders.estimate import WARM_UP
from builders.progress import duration
from builders.recipe import FLOAT64, KINDS, GaussianRecipe, Recipe, TableRecipe, names
from builders.sources import Source
from builders.state import Tensors, TrainingState, as_stored
from builders.train import (
    Trainer,
    available_cores,
    choose_engine,
    default_unit_size,
    device_kind,
    largest_result,
    open_trainer,
)
from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.text import counted, excerpt, size

_KERNEL_VARIABLES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE")
"""Environment variables that choose kernels of libraries within torch and numpy, which do not tell what they chose."""
_KINDS = {GaussianRecipe: "centres", TableRecipe: "target_mean"}
"""Kinds of recipes with a key that others lack; rows do not name the kind."""
_TIMED_SECONDS = 0.5
"""Seconds of training after which the rest is predicted."""
_SPAN_SECONDS = 0.5
"""Steps are taken in spans of about this many seconds: between two it is seen how long the rest will take."""
_ROUNDING = 1e-5
"""Figures of the same weights differ by less, between machines and groups of members that are measured together: they
are means of float32 outputs."""
_EXAMPLES_OF_ONE = 30_000
"""Among as many examples one may have two best outputs so near that rounding decides, or be as near to the edge of a
bin, which moves the calibration error twice as far."""
_COUNTED_FIGURES = {"train_accuracy": "train", "test_accuracy": "test", "test_ece": "test"}
"""Figures that change by whole examples, with the half of the data that they are measured on."""
Weights = Mapping[str, NDArray[Any]]
"""``{name: (M, *shape)}``."""
_RECIPE_STEP = "Give the recipe that trained it with --recipe FILE."
_GONE = "Ask whoever wrote the row for its recipe."


def open_run(
    row: Mapping[str, Any],
    arch: Architecture,
    *,
    location: str,
    recipe: str | Path | None = None,
    data: str | Path | None = None,
    max_bytes: int,
    threads: int | None = None,
) -> "RepeatedTraining":
    """Return the training that a checkpoint's row describes, ready to be done again.

    ``row`` is the metadata of a checkpoint and ``arch`` the zoo's tensors; ``location`` names the checkpoint in errors.
    ``recipe`` is the recipe's name or file; by default it is made from the row. ``data`` is the folder of data sets,
    and ``max_bytes`` bounds the memory that training takes.

    Raises IntegrityError: the row contradicts itself or this data. Raises ZooError: it does not say how it was trained,
    or this machine cannot train it.
    """
    extra = parse_extra(row.get("extra")) or {}
    _require_run(row, location)
    found = _recipe_of(row, extra, recipe, location)
    dtype = _rounding_of(found, arch, extra, location)
    engine, device = _engine_of(row, extra, found, location)
    step, seed = row["step"], row["seed"]
    if not 0 <= step <= found.steps:
        expected = f"0 to {found.steps}, those of {found.name}"
        raise IntegrityError(Problem(location, "step", expected, str(step), "Its row is wrong: do not use it."))
    if seed < 0:
        raise IntegrityError(Problem(location, "seed", "0 or more", str(seed), "Its row is wrong: do not use it."))
    _require_memory(_data_bytes(found), max_bytes, location)
    source = _load(found, None if data is None else str(data))
    if source.digest != row.get("dataset_digest"):
        problem = Problem(
            location,
            f"digest of {source.name}",
            f"{row.get('dataset_digest')}, on which it was trained",
            f"{source.digest} here",
            "Give the folder of that data with --data FOLDER.",
        )
        raise IntegrityError(problem)
    unit = default_unit_size(source, device, engine, threads)
    _require_memory(_training_bytes(found, source, unit), max_bytes, location)
    return RepeatedTraining(
        found, source, engine, device, arch, dtype, isinstance(extra.get("planted"), dict), threads, unit
    )


@dataclass(frozen=True, eq=False)
class RepeatedTraining:
    """The training of members with seeds, by one recipe and engine on one device.

    ``arch`` are the tensors of the zoo; ``dtype`` is the type to which trained weights were rounded, None where they
    were not. With ``planted`` members start as those of ``builders.planted``. ``unit_size`` members are trained
    together at most.
    """

    recipe: Recipe
    source: Source
    engine: str
    device: str
    arch: Architecture
    dtype: str | None
    planted: bool
    threads: int | None
    unit_size: int

    @property
    def key(self) -> Hashable:
        """Equal for trainings whose members can be trained together."""
        return self.recipe.digest, self.engine, self.device, self.dtype, self.planted

    @property
    def steps(self) -> int:
        """The optimiser steps of the whole training."""
        return self.recipe.steps

    @property
    def resumable(self) -> bool:
        """Whether the stored weights of a step are all that the next steps depend on."""
        return not self.recipe.momentum and self.recipe.precision != FLOAT64 and self.dtype is None

    @property
    def environment(self) -> dict[str, str]:
        """The facts that may decide bits here: processor, kernels, versions."""
        found = {
            "processor": _processor(),
            "engine": self.engine,
            "device": metadata.device_name(self.device),
            "torch": torch.__version__,
            # which of its kernels torch takes, by what the processor has or ATEN_CPU_CAPABILITY says
            "torch kernels": torch.backends.cpu.get_cpu_capability(),
        }
        if self.engine == "compiled":
            found |= _numba_target()
        return found | {name: os.environ[name][:100] for name in _KERNEL_VARIABLES if name in os.environ}

    def train(
        self,
        seeds: Sequence[int],
        stops: Sequence[int],
        *,
        start: tuple[int, Weights] | None = None,
        max_seconds: float,
        location: str,
        advance: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Train members and yield each of the rising steps ``stops`` with their weights ``{name: (M, *shape)}``.

        ``start`` has a step and the weights of all members there; by default they are initialised. ``advance`` is
        called with the member-steps taken.

        Raises ZooError before it trains for long: it would take more than ``max_seconds``.
        """
        with self._trainer() as trainer:
            state = self._start(trainer, seeds, start)
            total = len(seeds) * (max(stops, default=state.step) - state.step)
            budget = _Budget(total, max_seconds, location)
            if stops and stops[-1] - state.step > WARM_UP:
                # an engine is compiled here: the time counts, and says nothing of the rest
                began = time.monotonic()
                trainer.advance(self._start(trainer, seeds, start), state.step + WARM_UP)
                budget.begin(time.monotonic() - began)
            span = trainer.first_span
            for stop in stops:
                while state.step < stop:
                    first, began = state.step, time.monotonic()
                    trainer.advance(state, min(stop, first + span))
                    took = time.monotonic() - began
                    taken = len(seeds) * (state.step - first)
                    # at most eight times as many: the first ones include what is done once
                    wanted = (state.step - first) * _SPAN_SECONDS / max(took, 1e-6)
                    span = max(1, round(min(wanted, 8 * span)))
                    if advance is not None:
                        advance(taken)
                    budget.spend(taken, took)
                yield stop, self._stored(state.weights, location)

    def measure(self, weights: Weights) -> dict[str, NDArray[Any]]:
        """Return every measured column ``{column: (M,)}`` of weights as the zoo has them."""
        from builders.rounding import widened

        with self._trainer() as trainer:
            return trainer.measure(widened(dict(weights)))

    def differences(self, row: Mapping[str, Any], measured: Mapping[str, Any], last: Mapping[str, Any]) -> list[str]:
        """Return where a row says something else than its training: its columns, its recipe in ``extra``, and figures.

        ``measured`` are the figures of the same weights, ``last`` those at the end of the training, which say whether
        it diverged; empty where they are not known. The row of a contributor has an id of their own.
        """
        seed, extra = row["seed"], parse_extra(row.get("extra")) or {}
        name, recipe = metadata.member_id(self.recipe, seed), self.recipe
        expected = {
            "id": f"{name}-{row['step']:06d}",
            "member": name,
            "epoch": row["step"] / recipe.epoch_steps,
            "recipe": recipe.name,
            "dataset": self.source.name,
            "precision": recipe.precision,
        }
        own = ("id", "member") if row.get("contributor") else ()
        pairs = {name: (value, row.get(name)) for name, value in expected.items() if name not in own}
        stated = {key: value for key, value in self.recipe.facts().items() if key in extra}
        pairs |= {f"extra.{key}": (_plain(value), extra[key]) for key, value in stated.items()}
        if self.dtype is None and last and row.get("diverged") is not None:
            pairs["diverged"] = (bool(last["diverged"]), row["diverged"])
        found = [
            f"{name}: expected {excerpt(right)}, got {excerpt(got)}"
            for name, (right, got) in pairs.items()
            if right != got
        ]
        for name, right in measured.items():
            got = row.get(name)
            if name != "diverged" and got is not None and not self._agree(name, float(right), got):
                found.append(f"{name}: measured {float(right):.9g}, got {got:.9g}")
        return found

    def _agree(self, name: str, right: float, got: float) -> bool:
        """Return whether two figures of the same weights are the same but for rounding."""
        if not (math.isfinite(right) and math.isfinite(got)):
            return str(right) == str(got)
        allowed = _ROUNDING * max(1.0, abs(right))
        if name in _COUNTED_FIGURES:
            count = len(self.source.half(_COUNTED_FIGURES[name])[1])
            allowed += math.ceil(count / _EXAMPLES_OF_ONE) * (2 if name == "test_ece" else 1) / count
        return abs(right - got) <= allowed

    def _trainer(self) -> AbstractContextManager[Trainer]:
        return open_trainer(
            self.recipe,
            self.source,
            device=self.device,
            engine=self.engine,
            threads=self.threads or (available_cores() if self.device == "cpu" else None),
            feed=_feed(self.recipe, self.source, self.device),
        )

    def _start(self, trainer: Trainer, seeds: Sequence[int], start: tuple[int, Weights] | None) -> TrainingState:
        if start is not None:
            step, weights = start
            # copies, since a state is changed in place
            state = trainer.start(seeds, {name: np.array(array) for name, array in weights.items()})
            state.step = step
            return state
        if self.planted:
            from builders.planted import initial_weights

            return trainer.start(seeds, initial_weights(self.recipe, seeds)[0])
        return trainer.start(seeds)

    def _stored(self, weights: Tensors, location: str) -> dict[str, NDArray[Any]]:
        """Return a copy of the weights as the zoo stores them."""
        stored = {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in as_stored(weights).items()}
        if self.dtype is None:
            return stored
        from builders.rounding import round_tensor

        return {tensor.name: round_tensor(stored[tensor.name], tensor, location) for tensor in self.arch.tensors}


@dataclass(eq=False)
class _Budget:
    """The seconds that training may take: it is refused as soon as it is known that they will not do."""

    member_steps: int
    max_seconds: float
    location: str
    taken: int = 0
    seconds: float = 0.0
    beginning: float = 0.0

    def begin(self, seconds: float) -> None:
        """Count the time of the first steps, which are taken again; raises ZooError if it was too long."""
        self.beginning = seconds
        if seconds > self.max_seconds:
            self._refuse(f"{duration(seconds)} for the first {WARM_UP} steps")

    def spend(self, member_steps: int, seconds: float) -> None:
        """Count steps and their time; raises ZooError if all of them would take too long."""
        self.taken, self.seconds = self.taken + member_steps, self.seconds + seconds
        predicted = self.beginning + self.seconds * self.member_steps / self.taken
        is_timed = self.seconds >= _TIMED_SECONDS
        if self.beginning + self.seconds > self.max_seconds or (is_timed and predicted > self.max_seconds):
            self._refuse(f"about {duration(predicted)} for {counted(self.member_steps, 'member-step')}")

    def _refuse(self, got: str) -> NoReturn:
        step = "Rebuild fewer, or give it more time with --max-seconds."
        raise ZooError(Problem(self.location, "time of training", f"at most {duration(self.max_seconds)}", got, step))


@lru_cache(maxsize=2)
def _load(recipe: Recipe, data: str | None) -> Source:
    # points of a hostile recipe may be beyond the range of float32
    with np.errstate(over="ignore"):
        return sources.load(recipe, data)


@lru_cache(maxsize=2)
def _feed(recipe: Recipe, source: Source, device: str) -> Feed:
    return sources.data_source(recipe, source, device)


def _require_run(row: Mapping[str, Any], location: str) -> None:
    """Check that the row is one of a training run, and says what its seed, step and recipe are."""
    if row.get("method") is not None:
        got = f"a draw of the posterior method {excerpt(row['method'], 40)}"
        step = "Rebuild the members that it was drawn around."
        raise ZooError(Problem(location, "checkpoint", "one of a training run", got, step))
    for column, what in (("recipe_digest", "recipe"), ("recipe", "recipe"), ("seed", "seed"), ("step", "step")):
        if row.get(column) is None:
            step = "It cannot be trained again: rebuild members that were trained from a recipe."
            raise ZooError(Problem(location, what, f"one in its row ({column})", "none", step))


def _recipe_of(row: Mapping[str, Any], extra: Mapping[str, Any], given: str | Path | None, location: str) -> Recipe:
    """Return the recipe with the digest of the row: the given one, or that in ``extra``, or a known one of the name."""
    tried = list[Recipe]()
    for make in (_given(given, extra),) if given is not None else (_stated(row, extra), _known(row, extra)):
        try:
            tried += make()
        # rows may have anything where a recipe has numbers
        except (ZooError, TypeError, ValueError, OverflowError, ArithmeticError, RecursionError) as error:
            if given is not None:
                raise
            said = excerpt(str(error) or type(error).__name__)
            raise IntegrityError(
                Problem(location, "recipe in extra", f"that of digest {row['recipe_digest']}", said, _RECIPE_STEP)
            ) from error
    for found in tried:
        if found.digest == row["recipe_digest"]:
            return found
    if not tried:
        got = f"none: no recipe of builders is called {excerpt(row['recipe'], 60)!r}, and the row does not have it"
        raise ZooError(Problem(location, "recipe", f"that of digest {row['recipe_digest']}", got, _RECIPE_STEP))
    step = _RECIPE_STEP if given is None else _GONE
    raise IntegrityError(Problem(location, "recipe", f"digest {row['recipe_digest']}", tried[0].digest, step))


def _given(recipe: str | Path, extra: Mapping[str, Any]) -> Callable[[], list[Recipe]]:
    return lambda: _with_epochs(Recipe.load(recipe), extra)


def _stated(row: Mapping[str, Any], extra: Mapping[str, Any]) -> Callable[[], list[Recipe]]:
    """Return what makes the recipe from the facts that a builder wrote into ``extra``; nothing where there are none."""

    def make() -> list[Recipe]:
        if "architecture" not in extra:
            return []
        kind = next((cls for cls, key in _KINDS.items() if key in extra), KINDS["images"])
        inputs = next(name for name, cls in KINDS.items() if cls is kind)
        content = {field.name: extra[field.name] for field in fields(kind) if field.name in extra}
        named = {"inputs": inputs, **content, "name": row["recipe"], "summary": ""}
        return [Recipe.from_content(named, location=f"recipe {excerpt(row['recipe'], 60)!r}")]

    return make


def _known(row: Mapping[str, Any], extra: Mapping[str, Any]) -> Callable[[], list[Recipe]]:
    """Return what loads the recipe of ``builders/recipes`` with the row's name; nothing where there is none."""
    return lambda: _with_epochs(Recipe.load(row["recipe"]), extra) if row["recipe"] in names() else []


def _with_epochs(recipe: Recipe, extra: Mapping[str, Any]) -> list[Recipe]:
    """Return a recipe, and the same for the epochs that a row states."""
    epochs = extra.get("epochs")
    return [recipe, *([recipe.shortened(epochs)] if type(epochs) is int and epochs != recipe.epochs else [])]


def _rounding_of(recipe: Recipe, arch: Architecture, extra: Mapping[str, Any], location: str) -> str | None:
    """Return the dtype to which weights were rounded after training, None where they were not; the tensors of the zoo
    must be those that the recipe trains.
    """
    if arch.digest == recipe.arch.digest:
        return None
    from builders.rounding import rounded_dtype

    if extra.get("rounded_from") is not None and (dtype := rounded_dtype(recipe.arch, arch)) is not None:
        return dtype
    got, step = f"{recipe.arch.name}, which {recipe.name} trains", "Its row is wrong: do not use it."
    raise IntegrityError(Problem(location, "architecture", f"{arch.name} of this zoo", got, step))


def _engine_of(row: Mapping[str, Any], extra: Mapping[str, Any], recipe: Recipe, location: str) -> tuple[str, str]:
    """Return the engine and the kind of device that trained a row."""
    engine, device = extra.get("engine"), str(row.get("device") or "")
    if not isinstance(engine, str) or engine not in engines.names():
        expected = f"one of {', '.join(engines.names())} in extra.engine"
        got, step = (
            "none" if engine is None else excerpt(engine),
            "Without it bits are not known: engines round differently.",
        )
        raise ZooError(Problem(location, "engine", expected, got, step))
    kind = device.partition(":")[0]
    if kind == "cuda" and not torch.cuda.is_available():
        got = f"none, and it was trained on {excerpt(device, 80)} by {engine}"
        step = "Rebuild it on a machine with such a device: others round differently."
        raise ZooError(Problem(location, "device", "a CUDA device that torch can use", got, step))
    device_kind(kind)
    return choose_engine(recipe, kind, engine), kind


def _data_bytes(recipe: Recipe) -> int:
    """Return the bytes of data that is made, and not read from files."""
    if not isinstance(recipe, GaussianRecipe):
        return 0
    # words of Philox, normal numbers and their sum in float64
    return 12 * 8 * (recipe.train + recipe.test) * len(recipe.centres[0])


def _training_bytes(recipe: Recipe, source: Source, members: int) -> int:
    """Return about as many bytes as training and measuring take: data, weights, and intermediate results of a batch."""
    raw = source.half("train")[0]
    pad = getattr(recipe, "crop_pad", 0)
    padded = math.prod(raw.shape[:-2]) * (raw.shape[-2] + 2 * pad) * (raw.shape[-1] + 2 * pad) if pad else raw.size
    batch = min(recipe.batch, recipe.train)
    try:
        results = largest_result(recipe.architecture, raw.shape[1:]) * len(recipe.arch.tensors)
    except RuntimeError:  # the network does not take this data: ``open_trainer`` says so
        results = 0
    return 2 * padded * raw.itemsize + members * (6 * recipe.arch.nbytes + batch * results)


def _require_memory(nbytes: int, max_bytes: int, location: str) -> None:
    if nbytes > max_bytes:
        step = "Do not rebuild it, or allow more with --max-memory."
        raise ZooError(
            Problem(location, "memory of training", f"at most {size(max_bytes)}", f"about {size(nbytes)}", step)
        )


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _processor() -> str:
    """Return the name of this machine's processor."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()[:100]
    return platform.processor() or platform.machine()


def _numba_target() -> dict[str, str]:
    """Return Numba's version, and the processor and the vector instructions for which it compiles."""
    import llvmlite.binding
    import numba
    from numba.core import config
    from numba.core.codegen import get_host_cpu_features

    settings: Any = config
    # set by the environment, or None
    target, features = settings.CPU_NAME, settings.CPU_FEATURES
    enabled = str(get_host_cpu_features() if features is None else features).split(",")
    vectors = [name for name in ("avx2", "fma", "avx512f", "sve", "neon") if f"+{name}" in enabled]
    return {
        "numba": numba.__version__,
        "numba target": target or llvmlite.binding.get_host_cpu_name(),
        "numba vectors": ", ".join(vectors) or "none",
    }
