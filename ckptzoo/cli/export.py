"""``ckptzoo export``: one checkpoint as a file that other programs read."""

import io
import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.options import VariantName, Where, ZooAddress, complete_ids, opened

if TYPE_CHECKING:
    from ckptzoo.loader.checkpoint import Checkpoint
    from ckptzoo.loader.zoo import Zoo


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
    found = chosen.checkpoint(_only(chosen, id), variant=variant or "raw")
    data = writers[output.suffix](found, chosen.name)
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

    ``__metadata__`` holds the row as strings. Tied tensors stand under each of their names, as stock torch wants them.
    Larger elements come first, so that nothing is misaligned.
    """
    from ckptzoo.format.header import CODES
    from ckptzoo.spec.architecture import ITEMSIZE

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
