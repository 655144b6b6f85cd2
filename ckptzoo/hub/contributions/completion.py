"""Completes a merged contribution: figures that its review measured, its variants and predictions, the page.

What the zoo has stays as it is, so that the same call can be repeated.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ckptzoo.derive import derive, predict
from ckptzoo.derive.checks import missing_for_checks
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.maintenance import add_measured
from ckptzoo.format.reader import read_contents
from ckptzoo.format.reproductions import add_reproduction
from ckptzoo.hub.client import Client
from ckptzoo.hub.contributions.evaluation import COLUMNS, Figures, lacking_options
from ckptzoo.hub.contributions.inputs import inputs_to_store
from ckptzoo.hub.contributions.run_checks import StageProgress
from ckptzoo.hub.contributions.target_zoo import open_target
from ckptzoo.hub.push import push
from ckptzoo.loader.derived_command import derived_command
from ckptzoo.loader.rebuilding import Rebuilt
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.symmetry import GAUGES
from ckptzoo.symmetry.gauges import gauge_of
from ckptzoo.text import Progress


def complete(
    client: Client,
    repo: str,
    number: int,
    folder: Path,
    measured: Mapping[str, Figures],
    *,
    rebuilt: Rebuilt | None = None,
    derives: bool,
    network: Any = None,
    data: str | Path | None = None,
    own: Labelled | None = None,
    progress: StageProgress | None = None,
) -> tuple[str, ...]:
    """Publish what follows from merged parts, with the zoo's page and snapshot; return notes on what could not be done,
    each with a next step.

    ``repo`` is the zoo after the merge. ``folder`` is a zoo of its documents and the merged parts alone; derived
    parts are written into it. ``measured`` has figures by id, for rows without an accuracy
    or with one that is stated; checkpoints that were ``rebuilt`` bit for bit are marked. With ``derives`` the new
    checkpoints get every variant and every set of predictions that the zoo has. ``network`` is a torch module, for
    one that is not in ``ckptzoo.archs``; ``data`` the folder of test sets; ``own`` are inputs as the networks take
    them, for predictions on the same ones. ``progress`` is called with the stage, how much of it is done, and how
    much there is.

    Raises ``ZooError`` where nothing could be published; the merge stands.
    """
    zoo = open_target(client, repo, client.listing(repo))
    known = set(zoo.column("id").filter(zoo.column("test_accuracy").is_valid()).to_pylist())
    known -= zoo.contents.stated("test_accuracy")
    lacking = {name: figures for name, figures in measured.items() if name not in known}
    account = client.whoami().name
    _add_figures(folder, lacking, account)
    if rebuilt is not None:
        add_reproduction(folder, rebuilt.ids, by=account, on=rebuilt.environment)
    notes: list[str] = []
    if derives:
        added = set(read_contents(Folder(folder)).ids.to_pylist())
        steps: list[tuple[str, str, Callable[[Any, Progress | None], Iterator[str]]]] = [
            *(("deriving", gauge, partial(_derive, zoo, folder, repo, gauge)) for gauge in zoo.gauges),
            *(("predicting", inputs, partial(_predict, zoo, folder, inputs, data, own)) for inputs in zoo.predicted),
        ]
        # those that are there already were made by somebody who was faster
        steps = [step for step in steps if not added <= set(zoo.having(step[1]).ids)]
        for stage, name, make in steps:
            try:
                notes += make(network, None if progress is None else partial(progress, f"{stage} {name}"))
            except ZooError as error:
                again = derived_command(zoo.contents, name)
                step = f"ckptzoo pull {repo} -o FOLDER, {again} and ckptzoo push FOLDER {repo}"
                if stage == "predicting":
                    step = _finishing(zoo, repo, number, network=network is not None, inputs=own is not None) or step
                said = f"merged, but {name} was not made for the new checkpoints: {error}"
                notes.append(f"{said} It is made later with {step}.")
    _renumber(folder, zoo)
    pushed = push(
        folder,
        repo,
        endpoint=client.endpoint,
        token=client.token,
        retry_policy=client.retry_policy,
        progress=None if progress is None else partial(progress, "uploading"),
    )
    return (*notes, *pushed.notes)


def _finishing(zoo: Zoo, repo: str, number: int, *, network: bool, inputs: bool) -> str:
    """Return the command that makes all outputs, where it needs a network or inputs that were not given; else empty."""
    needed = any("--inputs" in derived_command(zoo.contents, name) for name in zoo.predicted)
    if not lacking_options(zoo.arch, network=network, inputs=inputs or not needed):
        return ""
    options = lacking_options(zoo.arch, network=False, inputs=not (inputs or needed))
    return f"ckptzoo review {repo} {number} --finish{options}"


def _add_figures(folder: Path, measured: Mapping[str, Figures], by: str) -> None:
    contents = read_contents(Folder(folder))
    units = [part.digest for part in contents.raw.parts for _ in range(part.rows)]
    rows: list[dict[str, Any]] = [
        {"id": name, "unit": unit, "by": by, **_finite(measured[name])}
        for name, unit in zip(contents.ids.to_pylist(), units, strict=True)
        if name in measured
    ]
    add_measured(folder, rows, {})


def _finite(figures: Figures) -> dict[str, float]:
    """Select the figures that are numbers: networks whose outputs are not finite have none."""
    return {column: figures[column] for column in COLUMNS if math.isfinite(figures[column])}


def _derive(zoo: Zoo, folder: Path, repo: str, gauge: str, network: Any, progress: Progress | None) -> Iterator[str]:
    """Derive the parts in a folder as the zoo's other parts are; a note where they were not checked."""
    tree = zoo.contents.derived(gauge)
    if gauge.startswith(layout.ALIGNED):
        raise ZooError("it is aligned to a reference that a review does not fetch.")
    version, ours = tree.parts[-1].facts.get("version"), GAUGES.get(gauge)
    if ours is not None and zoo.symmetry is not None:
        ours = gauge_of(ours.name, zoo.symmetry)
    if ours is None or ours.version != version:
        raise ZooError(f"the zoo has version {version} of this gauge. Derive the zoo in its folder, and push it.")
    shards = map(layout.SHARD_NAME.fullmatch, tree.outline["file"].unique().to_pylist())
    store = "weights" if any(shard is not None and shard[1] == gauge for shard in shards) else "element"
    derived = derive(folder, gauge=ours.name, store=store, module=network, progress=progress)
    if derived.failed.ids:
        raise ZooError(derived.failed.problem(zoo.name, gauge))
    if not derived.certified and derived.untouched < derived.checkpoints:
        lacks, options = missing_for_checks(network=network is not None)
        yield (
            f"no equivalence check of {gauge} for the new checkpoints: {lacks}; ckptzoo pull {repo} -o FOLDER, "
            f"ckptzoo derive FOLDER --gauge {gauge} {options} and ckptzoo push FOLDER {repo} add it."
        )


def _predict(
    zoo: Zoo,
    folder: Path,
    inputs: str,
    data: str | Path | None,
    own: Labelled | None,
    network: Any,
    progress: Progress | None,
) -> Iterator[str]:
    """Evaluate the parts in a folder on a set of inputs, scaled as the zoo's rows say; no notes."""
    added = read_contents(Folder(folder)).ids.to_pylist()
    seen = inputs_to_store(zoo.where(("id", "in", added)), inputs, data=data, own=own)
    predict(
        folder,
        seen.inputs,
        set=inputs,
        targets=seen.targets,
        others=seen.others,
        module=network,
        progress=progress,
    )
    yield from ()


def _renumber(folder: Path, zoo: Zoo) -> None:
    """Number the derived parts in a folder after those of the zoo; digests do not cover numbers."""
    for path in _trees(folder):
        known = list(zoo.contents.derived_parts.get(path.name, ()))
        for part in sorted(path.iterdir()):
            number = layout.next_sequence(known, location=f"{layout.DERIVED}/{path.name}")
            renamed = f"{number:06d}{part.name[6:]}"
            part.rename(path / renamed)
            known.append(renamed)


def _trees(folder: Path) -> Iterator[Path]:
    derived = folder / layout.DERIVED
    yield from sorted(derived.iterdir()) if derived.is_dir() else ()
