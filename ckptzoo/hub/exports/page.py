"""The documents of an exported checkpoint: the metadata of a file, ``config.json`` and ``README.md`` of a folder."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from shlex import quote
from typing import Any

from ckptzoo import archs
from ckptzoo.hub.card.files import card_of
from ckptzoo.hub.card.markdown import code, fenced, table
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import CARD_TOML, MAX_TAG, Card
from ckptzoo.schema.documents import Document
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.schema.readme import license_lines, plain, quoted
from ckptzoo.text import counted

_SHOWN = 20
"""Ids of an average that its page lists; config.json has all."""
_SHORT = ("ids", "left_out", "trials")
"""Lists of an average, which grow with the number of checkpoints."""


def metadata(checkpoint: Checkpoint, zoo: str, facts: Document) -> dict[str, str]:
    """Return ``__metadata__`` of a safetensors file: the row and further facts as strings."""
    row = {name: _text(value) for name, value in checkpoint.row.items() if value is not None}
    # who tried what in which order is in config.json: readers of safetensors bound their headers
    short = {key: _without(value, "trials") for key, value in facts.items()}
    return {
        **row,
        **{key: _text(value) for key, value in short.items()},
        "architecture": checkpoint.arch.name,
        # as huggingface_hub's save_torch_state_dict has it; loaders of torch ask for it
        "format": "pt",
        "variant": checkpoint.variant,
        "zoo": zoo,
    }


def config(checkpoint: Checkpoint, arch: Architecture, zoo: Zoo, facts: Document) -> bytes:
    """Return ``config.json``: the architecture, where the checkpoint is from, and its row.

    ``arch`` has the dtypes in which tensors are written; ``facts`` are documents by name that are recorded beside those
    of the row.
    """
    row: dict[str, Any] = {name: value for name, value in checkpoint.row.items() if value is not None}
    if "extra" in row:
        row["extra"] = parse_extra(row["extra"]) or row["extra"]
    dtypes = {tensor.dtype for tensor in arch.tensors if "float" in tensor.dtype}
    document: Document = {
        # keys of config.json in transformers
        "architectures": [arch.name],
        **({"dtype": dtypes.pop()} if len(dtypes) == 1 else {}),
        **row,
        **facts,
        "variant": checkpoint.variant,
        "zoo": {key: value for key, value in _origin(zoo, _card(zoo)).items() if value},
        "architecture": arch.to_json(),
    }
    return (json.dumps(document, indent=2, ensure_ascii=False, default=_json) + "\n").encode()


def readme(checkpoint: Checkpoint, arch: Architecture, zoo: Zoo, facts: Document) -> bytes:
    """Return ``README.md``: where the checkpoint comes from, under which licence, and how it is loaded."""
    card = _card(zoo)
    average = facts.get("average", {})
    licenses = _licenses(checkpoint, zoo, average)
    own = "" if licenses else card.license
    stated = licenses or [name for name in [card.license] if name]
    tags = ["ckptzoo", f"arch:{arch.name}"[:MAX_TAG]]
    if dataset := checkpoint.row.get("dataset"):
        tags.append(f"dataset:{dataset}"[:MAX_TAG])
    head = ["---", *license_lines(own, licenses), "tags:", *(f"- {quoted(tag)}" for tag in tags), "---"]
    blocks = [
        "\n".join(head),
        f"# {plain(f'{zoo.name}: {checkpoint.id}')}",
        _what(checkpoint, _origin(zoo, card), average),
        table(("", ""), _rows(checkpoint, arch, zoo, facts, stated)),
        "## How to load it",
        _loading(arch, stated),
    ]
    if average:
        blocks += ["## What went in", _ingredients(average)]
    return ("\n\n".join(blocks) + "\n").encode()


def _card(zoo: Zoo) -> Card:
    return card_of(zoo) if zoo.contents.files.size(CARD_TOML) is not None else Card(zoo.name)


def _origin(zoo: Zoo, card: Card) -> Document:
    """Return a zoo's address for readers on other machines: no path of this one."""
    address = card.repository if zoo.contents.files.here is not None else zoo.address
    return {"name": zoo.name, "address": address, "revision": zoo.revision}


def _licenses(checkpoint: Checkpoint, zoo: Zoo, average: Document) -> list[str]:
    """Return the licences that the rows state, each once."""
    if not average:
        licenses = [checkpoint.row.get("license")]
    else:
        of = dict(zip(zoo.column("id").to_pylist(), zoo.column("license").to_pylist(), strict=True))
        licenses = [of.get(id) for id in average["ids"]]
    return list(dict.fromkeys(name for name in licenses if name))


def _what(checkpoint: Checkpoint, origin: Document, average: Document) -> str:
    origin_zoo = f"the zoo {code(origin['name'])}" + (f" ({code(origin['address'])})" if origin["address"] else "")
    if not average:
        what = f"One network of {origin_zoo}, written by `ckptzoo export`."
    else:
        kind = "The greedy soup" if average["method"] == "soup" else "The mean of the weights"
        what = f"{kind} of {counted(len(average['ids']), 'network')} of {origin_zoo}, written by `ckptzoo export`."
    in_gauge = "" if checkpoint.variant == "raw" else f" Weights are in the gauge {code(checkpoint.variant)}."
    return what + in_gauge + " `config.json` has the architecture and all facts."


def _rows(
    checkpoint: Checkpoint, arch: Architecture, zoo: Zoo, facts: Document, licenses: list[str]
) -> Iterator[tuple[str, str]]:
    yield "architecture", f"{code(arch.name)}, {counted(arch.parameters, 'parameter')}"
    yield "revision of the zoo", code(zoo.revision)
    shown = ("member", "seed", "step", "epoch", "dataset", "recipe", "test_accuracy", "claimed_test_accuracy", "source")
    measured_sets = {item.get("set") for item in facts.values()}
    for name in shown:
        if name == "test_accuracy" and f"{checkpoint.row.get('dataset')}/test" in measured_sets:
            continue
        if (value := checkpoint.row.get(name)) is not None:
            yield name.replace("_", " "), code(_text(value))
    for measured in facts.values():
        if measured.get("accuracy") is not None:
            yield f"accuracy on {code(measured['set'])}", f"{measured['accuracy']:.4f}"
    yield "licence", ", ".join(map(code, licenses)) or "none is stated"


def _loading(arch: Architecture, licenses: list[str]) -> str:
    if archs.known(arch.forward):
        make = f'import ckptzoo.archs\n\nmodel = ckptzoo.archs.get("{arch.forward}")()'
    else:
        make = "model = ...  # your own module, with the tensors that config.json lists"
    lines = f'{make}\nload_torch_model(model, "FOLDER", strict=True)'
    text = f"from huggingface_hub import load_torch_model\n{lines}"
    named = f" --license {quote(licenses[0])}" if len(licenses) == 1 else ""
    return f"{fenced(text, 'python')}\n\nor into a zoo: {code(f'ckptzoo import FOLDER --to ZOO{named}', limit=200)}."


def _ingredients(average: Document) -> str:
    ids = average["ids"]
    how = [f"{counted(len(ids), 'checkpoint')}, summed in float64 in this order"]
    if "reference" in average:
        how.append(f"each aligned with {code(average['reference'])} before")
    if "statistics" in average:
        how.append(f"running statistics of BatchNorm {average['statistics']}")
    if "chosen_on" in average:
        tried = counted(len(average["trials"]), "checkpoint")
        how.append(f"chosen among {tried} by the accuracy on {code(average['chosen_on'])} (arXiv 2203.05482)")
    more = [f"- and {len(ids) - _SHOWN:,} more"] if len(ids) > _SHOWN else []
    return "\n".join([f"{'; '.join(how)}:", "", *(f"- {code(id, limit=200)}" for id in ids[:_SHOWN]), *more])


def _without(value: Any, name: str) -> Any:
    return {key: item for key, item in value.items() if key != name} if isinstance(value, Mapping) else value


def _text(value: Any) -> str:
    """Return a value as text: ISO 8601 times, true and false, floats that read back exactly."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else json.dumps(value)


def _json(value: Any) -> str:
    """Return a value that JSON lacks, as text: times alone are such."""
    return value.isoformat()
