"""The commands that read, check and clear up one zoo; each is one call of the library, imported when it runs."""

import io
import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.completion import complete_ids
from ckptzoo.cli.exits import PROBLEMS
from ckptzoo.cli.options import (
    AsJson,
    VariantName,
    Where,
    ZooAddress,
    ZooFolder,
    bar,
    emit,
    folder,
    opened,
    print_result,
)

if TYPE_CHECKING:
    from ckptzoo.loader.checkpoint import Checkpoint
    from ckptzoo.loader.zoo import Zoo


def info(zoo: ZooAddress, where: Where = None, as_json: AsJson = False) -> None:
    """Say what a zoo is: counts, variants, size, accuracies.

    Of a collection, or of a folder whose folders are zoos, it lists the zoos.
    """
    from ckptzoo.studies.inventory import take_stock

    print_result(take_stock(zoo, where), as_json)


def verify(
    zoo: ZooFolder,
    shallow: Annotated[bool, typer.Option("--shallow", help="Check what opening reads; leave the weights.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a zoo, or of all zoos of a collection or a folder.

    The card, its pictures and the explorer page have no digest, so that changes there are not found. Prints every
    problem found, with what was expected, what is there and what to do, and exits with 1 if there is one.
    """
    import ckptzoo
    from ckptzoo.format.reader import zoo_folders
    from ckptzoo.loader.collection import verify_collection
    from ckptzoo.schema import layout
    from ckptzoo.text import counted, printable

    root = folder(zoo)
    holds_zoos = (root / layout.COLLECTION).exists() or bool(zoo_folders(root))
    is_collection = holds_zoos and not (root / layout.ZOO).exists()
    with bar("verifying", nbytes=True) as progress:
        problems = (verify_collection if is_collection else ckptzoo.verify)(root, deep=not shallow, progress=progress)
    if as_json:
        # the first of a problem's facts is named "where" in this output, though it is an attribute ``location``
        listed = [asdict(problem) for problem in problems]
        described = [{"where": item.pop("location"), **item} for item in listed]
        emit({"zoo": zoo, "deep": not shallow, "problems": described})
    else:
        for problem in problems:
            print(printable(str(problem)))
        unread = "the card, its pictures and pages/explorer.html, which have no digest"
        read = "only what opening reads was checked" if shallow else f"every byte was checked but those of {unread}"
        print(f"{zoo}: {counted(len(problems), 'problem')} found." if problems else f"{zoo}: no problem found; {read}.")
    if problems:
        raise typer.Exit(PROBLEMS)


def show(
    zoo: ZooAddress,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where the pictures go.  [default: <zoo>-pictures]"),
    ] = None,
    variant: VariantName = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Draw a zoo.

    Writes accuracy.png (histogram), marginals.png (weights per layer, raw against derived), scatter.png (two weights
    of one output neuron) and summary.json.
    """
    from ckptzoo.studies.overview import overview

    chosen = opened(zoo, where)
    with bar("reading weights", nbytes=True) as progress:
        result = overview(chosen, variant, progress=progress)
    print_result(result, as_json, result.plot(output if output is not None else f"{chosen.name}-pictures"))


def compact(
    zoo: ZooFolder,
    index: Annotated[bool, typer.Option("--index", help="Write rows and index of all parts into one file.")] = True,
) -> None:
    """Make a zoo of many parts open fast, and ready for a web server.

    Writes rows and index of all parts into one snapshot, and listing.json, which says to readers of a web server which
    files there are. The parts stay as they are.
    """
    import ckptzoo

    snapshot = ckptzoo.compact(folder(zoo))
    print(f"{zoo}: no parts, nothing to write." if snapshot is None else snapshot)


def retract(
    zoo: ZooFolder,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False, autocompletion=complete_ids)],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, in a sentence.", show_default=False)],
    contributor: Annotated[str | None, typer.Option(metavar="NAME", help="Who withdraws them.")] = None,
) -> None:
    """Withdraw checkpoints.

    Readers leave them out from now on and say so; their bytes stay.
    """
    import ckptzoo
    from ckptzoo.text import counted

    count = ckptzoo.retract(folder(zoo), ids, reason=reason, contributor=contributor)
    print(f"{zoo}: {counted(count, 'checkpoint')} retracted.")


def export(
    zoo: ZooAddress,
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="The checkpoint; may be left out where --where leaves only one.",
            show_default=False,
            autocompletion=complete_ids,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="A .safetensors or a .pt file; an older one is replaced."),
    ] = None,
    variant: VariantName = None,
    where: Where = None,
) -> None:
    """Write one checkpoint to a file.

    A .safetensors file carries the checkpoint's metadata; a .pt file is what torch saves of a state dict.
    """
    writers = {".safetensors": _safetensors, ".pt": _torch}
    if output is None or output.suffix not in writers:
        raise typer.BadParameter(f"expected -o FILE that ends in {' or '.join(writers)}, got {output or 'none'}.")
    if not output.parent.is_dir():
        raise typer.BadParameter(f"{output}: expected an existing folder to write to, got none.")
    from ckptzoo.format.durable import write_file

    chosen = opened(zoo, where)
    checkpoint = chosen.checkpoint(_only(chosen, id), variant=variant or "raw")
    data = writers[output.suffix](checkpoint, chosen.name)
    write_file(output, data)
    print(output)


def _only(zoo: "Zoo", id: str | None) -> str:
    if id is not None:
        return id
    if len(zoo) != 1:
        raise typer.BadParameter(f"expected an ID or a --where that leaves one checkpoint, got {len(zoo):,} of them.")
    return zoo.ids[0]


def _safetensors(checkpoint: "Checkpoint", zoo: str) -> bytes:
    """The bytes of a safetensors file, the same for the same checkpoint.

    ``__metadata__`` holds the row as strings. Tied tensors are under each of their names, as torch's
    ``load_state_dict`` expects them. Larger elements come first, so that nothing is misaligned.
    """
    from ckptzoo.format.header import CODES
    from ckptzoo.schema.architecture import ITEMSIZE

    names = [(name, tensor.name) for tensor in checkpoint.arch.tensors for name in (tensor.name, *tensor.aliases)]
    arrays = {name: checkpoint[stored] for name, stored in names}
    order = sorted(arrays, key=lambda name: -ITEMSIZE[str(arrays[name].dtype)])
    described: dict[str, Any] = {"__metadata__": _metadata(checkpoint, zoo)}
    start = 0
    for name in order:
        stop = start + arrays[name].nbytes
        dtype, shape = CODES[str(arrays[name].dtype)], list(arrays[name].shape)
        described[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(described, separators=(",", ":")).encode()
    # a safetensors file is the length of its header in 8 bytes, the header, padded with spaces so that the tensors
    # behind it are aligned, and the tensors
    length = -(-len(text) // 8) * 8
    return b"".join([length.to_bytes(8, "little"), text.ljust(length), *(arrays[name].tobytes() for name in order)])


def _metadata(checkpoint: "Checkpoint", zoo: str) -> dict[str, str]:
    facts = {
        **{name: _text(value) for name, value in checkpoint.row.items() if value is not None},
        "architecture": checkpoint.arch.name,
        "format": "pt",
        "variant": checkpoint.variant,
        "zoo": zoo,
    }
    return dict(sorted(facts.items()))


def _text(value: Any) -> str:
    """A value of a row as text: ISO 8601 times, true and false, floats that read back exactly."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else json.dumps(value)


def _torch(checkpoint: "Checkpoint", zoo: str) -> bytes:
    """The bytes that ``torch.save`` makes of the state dict, tied tensors under all their names."""
    from ckptzoo.loader.checkpoint import import_torch

    data = io.BytesIO()
    import_torch().torch.save(checkpoint.state_dict(), data)
    return data.getvalue()
