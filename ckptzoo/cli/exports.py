"""``ckptzoo export`` and ``ckptzoo compare``: checkpoints for other programs, and how two of them differ."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.completion import complete_ids
from ckptzoo.cli.options import (
    AsJson,
    Data,
    Module,
    Output,
    VariantName,
    Where,
    ZooAddress,
    bar,
    emit,
    opened,
    print_result,
)

if TYPE_CHECKING:
    from ckptzoo.derive.averages import Averaged
    from ckptzoo.derive.labelled import Labelled
    from ckptzoo.loader.checkpoint import Checkpoint
    from ckptzoo.loader.zoo import Zoo
    from ckptzoo.schema.symmetry import Symmetry

TRAINING_INPUTS = 10_000
"""Inputs for the statistics of BatchNorm of an average, where no number is given: as in studies."""


def export(
    zoo: ZooAddress,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...",
            help="The checkpoint, or those to average; may be left out where --where leaves only one.",
            show_default=False,
            autocompletion=complete_ids,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="A .safetensors or a .pt file, of which an older one is replaced; or a folder.",
        ),
    ] = None,
    variant: VariantName = None,
    where: Where = None,
    average: Annotated[bool, typer.Option("--average", help="The mean of the checkpoints.")] = False,
    soup: Annotated[
        bool,
        typer.Option(
            "--soup", help="Their greedy soup (arXiv 2203.05482): each is added unless the accuracy on --set falls."
        ),
    ] = False,
    align: Annotated[
        str | None,
        typer.Option(
            metavar="REFERENCE",
            help="Align them before they are averaged: best, an id, or a folder or address of a zoo of one checkpoint.",
        ),
    ] = None,
    set: Annotated[
        str | None,
        typer.Option("--set", metavar="SET", help="Labelled images on which the result is measured: mnist/test."),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            metavar="SET", help="Others by which --soup chooses, such as mnist/train-5000.  [default: that of --set]"
        ),
    ] = None,
    statistics: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Training images from which the statistics of BatchNorm of an average are recomputed; 0 averages "
            f"them.  [default: {TRAINING_INPUTS} where there is a --set]",
        ),
    ] = None,
    data: Data = None,
    module: Module = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The largest size of a file of weights in a folder.  [default: 5GB]"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a folder that is not empty, with everything in it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write one checkpoint, or the average of several, to a file or a folder.

    A .safetensors file carries the checkpoint's metadata; a .pt file is what torch saves of a state dict. A folder is
    one of the Hugging Face hub: model.safetensors, or shards with an index, config.json and README.md. An average
    records which checkpoints went in.
    """
    from ckptzoo.hub.exports import MAX_SHARD_SIZE, check_target
    from ckptzoo.hub.exports import export as write
    from ckptzoo.text import parse_size

    _check_options(output, average=average, soup=soup, align=align, set=set, held_out=held_out, statistics=statistics)
    assert output is not None
    if max_shard_size is not None and output.suffix in (".safetensors", ".pt"):
        raise typer.BadParameter("--max-shard-size: expected a folder to write to, got a file; leave it out.")
    if set is None and (data is not None or (module is not None and align is None)):
        raise typer.BadParameter("--data and --module are for --set, and --module for --align; leave them out.")
    size = MAX_SHARD_SIZE if max_shard_size is None else parse_size(max_shard_size, location="--max-shard-size")
    chosen = _chosen(opened(zoo, where), ids, several=average or soup)
    # before weights are read and averaged, which may take hours
    check_target(output, zoo=chosen, force=force)
    network, gauge = _network(chosen, module), variant or "raw"
    labelled = inputs_to_choose_by = None
    if set is not None:
        training = (TRAINING_INPUTS if statistics is None else statistics) if average or soup else 0
        inputs_to_choose_by = None if held_out is None else _labelled(chosen, held_out, data, training)
        labelled = _labelled(chosen, set, data, training if inputs_to_choose_by is None else 0)
    exported: Checkpoint | Averaged
    if average or soup:
        exported = _averaged(chosen, gauge, align, labelled, inputs_to_choose_by, network, soup=soup)
        facts, lines = {}, _lines(exported)
        said = {"average": exported.to_json()}
    else:
        exported = chosen.checkpoint(chosen.ids[0], variant=gauge)
        facts = said = {} if labelled is None else {"measured": _measured(exported, labelled, network)}
        lines = [f"accuracy {item['accuracy']:.4f} on {item['set']}" for item in facts.values()]
    with bar("writing", nbytes=True) as progress:
        written = write(exported, output, zoo=chosen, facts=facts, max_shard_size=size, force=force, progress=progress)
    if as_json:
        emit({"zoo": zoo, "ids": chosen.ids, **said, "files": [str(path) for path in written]})
        return
    for line in (*lines, str(output)):
        print(line)


def _check_options(
    output: Path | None,
    *,
    average: bool,
    soup: bool,
    align: str | None,
    set: str | None,
    held_out: str | None,
    statistics: int | None,
) -> None:
    """Refuse options that exclude each other, before anything is read."""
    if output is None:
        raise typer.BadParameter("expected -o PATH, a folder or a file that ends in .safetensors or .pt, got none.")
    if average and soup:
        raise typer.BadParameter("expected --average or --soup, got both.")
    if soup and set is None:
        raise typer.BadParameter("--soup: expected --set SET, by whose accuracy checkpoints are chosen, got none.")
    if held_out is not None and not soup:
        raise typer.BadParameter("--held-out is for --soup, which chooses by it; leave it out.")
    for name, value in (("--align", align), ("--statistics", statistics)):
        if value is not None and not (average or soup):
            raise typer.BadParameter(f"{name} is for --average and --soup; leave it out, or add one of them.")
    if statistics is not None and set is None:
        raise typer.BadParameter("--statistics: expected --set SET, with whose data set they are computed, got none.")


def _chosen(zoo: "Zoo", ids: list[str] | None, *, several: bool) -> "Zoo":
    """Return the checkpoints that are named, in the order of the zoo; all where none is named."""
    if ids:
        if len(ids) > 1 and not several:
            raise typer.BadParameter(f"expected one ID, or --average or --soup of several, got {len(ids):,} of them.")
        for id in ids:
            if id not in zoo:
                zoo.checkpoint(id)  # says that it is retracted, or which ids are near
        wanted = frozenset(ids)
        return zoo.take([number for number, id in enumerate(zoo.ids) if id in wanted])
    if not several and len(zoo) != 1:
        raise typer.BadParameter(f"expected an ID or a --where that leaves one checkpoint, got {len(zoo):,} of them.")
    return zoo


def _network(zoo: "Zoo", module: str | None) -> Any:
    """Return the user's own network; None where none is named."""
    if module is None:
        return None
    from ckptzoo.hub.contributions.evaluation import own_network

    return own_network(zoo.arch, module)


def _labelled(zoo: "Zoo", name: str, data: Path | None, statistics: int) -> "Labelled":
    from ckptzoo.hub.contributions.inputs import labelled_of

    return labelled_of(zoo, name, data=data, statistics=statistics)


def _measured(checkpoint: "Checkpoint", labelled: "Labelled", network: Any) -> dict[str, Any]:
    from ckptzoo.derive import measured_on

    accuracy, loss = measured_on(checkpoint, labelled, module=network)
    return {"set": labelled.set, "accuracy": accuracy, "loss": loss}


def _averaged(
    zoo: "Zoo",
    variant: str,
    to: str | None,
    labelled: "Labelled | None",
    held_out: "Labelled | None",
    network: Any,
    *,
    soup: bool,
) -> "Averaged":
    from ckptzoo import derive

    with bar("averaging") as progress:
        if not soup:
            return derive.average(zoo, variant=variant, to=to, labelled=labelled, module=network, progress=progress)
        assert labelled is not None
        return derive.soup(
            zoo,
            held_out or labelled,
            variant=variant,
            to=to,
            measured=labelled,
            module=network,
            progress=progress,
        )


def _lines(average: "Averaged") -> list[str]:
    """Return the checkpoints of an average, and its measures."""
    from ckptzoo.text import counted, printable

    of = f", of {len(average.trials) + len(average.left_out):,}" if average.trials else ""
    aligned = "" if average.reference is None else f", aligned with {average.reference}"
    lines = [f"{average.method} of {counted(len(average.ids), 'checkpoint')}{of}{aligned}"]
    if average.trials:
        best = average.trials[0]
        lines.append(
            f"on {average.chosen_on}: the best alone {best.accuracy:.4f}, the soup {average.chosen_accuracy:.4f}"
        )
    if average.left_out:
        lines.append(f"{len(average.left_out):,} left out, which are not finite")
    if average.statistics is not None:
        lines.append(f"running statistics of BatchNorm: {average.statistics}")
    if average.accuracy is not None:
        lines.append(f"accuracy {average.accuracy:.4f} on {average.set}")
    return [printable(line) for line in lines]


def compare(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="ZOO ID ID | PLACE PLACE",
            help="Two checkpoints of one zoo; or two places, each ZOO#ID, a zoo of one checkpoint, a checkpoint file, "
            "or a folder that export wrote.",
            show_default=False,
        ),
    ],
    variant: VariantName = None,
    module: Module = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """How do two checkpoints differ, layer by layer?

    Norms, the norm of the difference and the angle, as they are and, where a symmetry table is known, after the
    second was aligned with the first. Files are read as data.
    """
    from ckptzoo.hub.addressed import checkpoint_at
    from ckptzoo.studies.differences import differences

    if len(places) not in (2, 3):
        raise typer.BadParameter(f"expected ZOO ID ID, or two places such as ZOO#ID or a file, got {len(places)}.")
    gauge = variant or "raw"
    names = (places[-2], places[-1])
    if len(places) == 3:
        zoo = other = opened(places[0])
        first, second = (_chosen(zoo, [id], several=False).checkpoint(id, variant=gauge) for id in names)
    else:
        (first, zoo), (second, other) = (checkpoint_at(place, variant=gauge) for place in names)
    table = _table(zoo or other, module)
    with bar("comparing") as progress:
        differing = differences(first, second, table, names=names, progress=progress)
    print_result(differing, as_json, [] if output is None else differing.plot(output))


def _table(zoo: "Zoo | None", module: str | None) -> "Symmetry | None":
    """Return the symmetry table of a zoo, or None where none is known; that of a file is not."""
    from ckptzoo.derive.tables import symmetry_of
    from ckptzoo.errors import SymmetryError

    if zoo is None:
        if module is not None:
            raise typer.BadParameter("--module: expected a zoo among both, got two files, whose inputs are not known.")
        return None
    try:
        return symmetry_of(zoo.contents, _network(zoo, module))
    except SymmetryError:
        if module is not None:
            raise
        return None
