"""``croissant.json``: a zoo described in the vocabulary of MLCommons, Croissant 1.1 with its RAI extension."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from ckptzoo.format.table import times_of
from ckptzoo.hub.card.contents import counts
from ckptzoo.loader.citation import cite
from ckptzoo.loader.selection import standing
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.card import Card
from ckptzoo.schema.metadata import COLUMNS, LEAST
from ckptzoo.schema.readme import config_of
from ckptzoo.text import counted, shortened

# as the reference implementation has it for version 1.1 (mlcroissant 1.1.1); it warns of contexts that lack some
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{
        name: f"cr:{name}"
        for name in (
            "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileObject",
            "fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5",
            "parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate",
            "separator", "source", "subField", "transform",
        )
    },
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}  # fmt: skip
_VERSIONS = ("http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0")
# the registered type, application/vnd.apache.parquet, is not read by mlcroissant 1.1.1
_PARQUET = "application/x-parquet"
_SAFETENSORS = "https://github.com/huggingface/safetensors"
"""The page of a format that has no registered type."""
_TYPES = {
    "string": "sc:Text",
    "int64": "sc:Integer",
    "float64": "sc:Float",
    "bool": "sc:Boolean",
    "timestamp": "sc:DateTime",
}
CHECKPOINTS = "checkpoints"
"""The record set of all rows."""
MAX_NAME = 255
_MAX_NAMES = 12
_STATED = {
    "dataUseCases": "use_cases",
    "dataLimitations": "limitations",
    "dataBiases": "biases",
    "dataSocialImpact": "social_impact",
    "personalSensitiveInformation": "personal_information",
}
"""Fields of the RAI extension that only a person can fill, and the keys of the card for them."""


def croissant(zoo: Zoo, card: Card) -> bytes:
    """The croissant.json of a zoo.

    Parameters
    ----------
    zoo
        a whole zoo, as ``ckptzoo.open`` gives it.
    card
        what a person wrote about it.

    Returns
    -------
    bytes
        JSON, the same for the same zoo and card. All of it is ASCII, and no character of it means anything in HTML.

    Notes
    -----
    Reads metadata; no weights. Its size does not grow with the number of parts. Tested in
    ``tests/hub/card/test_croissant.py``.
    """
    rows = zoo.metadata
    tombstones = zoo.contents.retracted
    created = times_of(rows["created"])
    content: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": list(_VERSIONS),
        "name": _name(card.title or card.name),
        "description": _description(zoo, card),
        "license": _license(card, rows),
        # numbers that only grow: of parts, and of parts of tombstones
        "version": f"{len(zoo.contents.raw.parts)}.{len(tombstones.parts)}.0",
        "citeAs": card.citation.strip() or cite(zoo, standing(zoo.contents), (), card, releases=()).bibtex,
        "keywords": list(dict.fromkeys(["ckptzoo", f"arch:{zoo.arch.name}"[:MAX_NAME], *card.tags])),
        "distribution": list(_files(zoo)),
        "recordSet": [_records(zoo, rows)],
        **dict(_responsible(zoo, card, rows, created)),
    }
    if created:
        content["datePublished"] = f"{max(created):%Y-%m-%d}"
    if card.authors:
        content["creator"] = [{"@type": "sc:Person", "name": _name(author)} for author in card.authors]
    if card.repository:
        content["url"] = f"hf://datasets/{card.repository}"
    if card.doi:
        content["sameAs"] = f"https://doi.org/{card.doi}"
    text = json.dumps(content, indent=1, sort_keys=True)
    # an escape of JSON within its strings, the only places where these occur
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text.encode() + b"\n"


def _name(text: str) -> str:
    """Return a text on one line, of printable characters."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return shortened(line, MAX_NAME) or "zoo"


def _description(zoo: Zoo, card: Card) -> str:
    members = counted(len(zoo.column("member").unique()), "member")
    facts = (
        f"{counted(len(zoo), 'checkpoint')} of {members} of the network {_name(zoo.arch.name)}, with "
        f"{zoo.arch.parameters:,} parameters each. Revision {zoo.revision}."
    )
    return " ".join(filter(None, (" ".join(card.summary.split()), facts)))


def _license(card: Card, rows: pa.Table) -> list[str]:
    names = [card.license.strip(), *list(counts(rows["license"]))[:_MAX_NAMES]]
    return [_name(name) for name in dict.fromkeys(names) if name] or ["No licence is stated."]


def _files(zoo: Zoo) -> Iterator[dict[str, Any]]:
    """Yield the rows, the weights, and those of each variant and each set of predictions, as sets of files."""

    def files(name: str, includes: str, encoding: str, description: str) -> dict[str, Any]:
        head = {"@type": "cr:FileSet", "@id": name, "name": name}
        return {**head, "description": description, "encodingFormat": encoding, "includes": includes}

    rows = "Rows of the checkpoints, one part of the zoo a file."
    yield files("metadata", f"{layout.PARTS}/*/{layout.METADATA}", _PARQUET, rows)
    if zoo.contents.identity.references:
        weights = "Where the weights as trained are: in files of others, one row or more for each checkpoint."
        yield files("references", f"{layout.PARTS}/*/{layout.REFERENCES}", _PARQUET, weights)
    elif layout.RAW in zoo.variants:
        weights = (
            "Weights as trained: in each tensor the first axis is that of the checkpoints, in the order of the rows."
        )
        yield files("weights", f"{layout.PARTS}/*/{layout.RAW}-*.safetensors", _SAFETENSORS, weights)
    for name in zoo.gauges:
        said = f"The variant {name}: the same functions, with symmetries of the network removed."
        yield files(f"variant-{config_of(name)}", f"{layout.DERIVED}/{name}/*/*.safetensors", _SAFETENSORS, said)
    for name in zoo.predicted:
        tree, said = layout.predictions_name(name), f"Outputs of the checkpoints on {name}."
        yield files(tree, f"{layout.DERIVED}/{tree}/*/*.safetensors", _SAFETENSORS, said)


def _records(zoo: Zoo, rows: pa.Table) -> dict[str, Any]:
    """Return the record set of the rows: the columns with a value in some row that every file is known to have."""
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{CHECKPOINTS}/{column.name}",
            "name": column.name,
            "description": column.doc,
            "dataType": _TYPES[column.type],
            "source": {"fileSet": {"@id": "metadata"}, "extract": {"column": column.name}},
        }
        for number, column in enumerate(COLUMNS)
        if column.name == "id" or rows[column.name].null_count < len(rows)
        # files of earlier versions lack the last columns, and mlcroissant reads file by file
        if number < LEAST["raw"] or _is_in_every_part(zoo, column.name)
    ]
    head = {"@type": "cr:RecordSet", "@id": CHECKPOINTS, "name": CHECKPOINTS, "key": {"@id": f"{CHECKPOINTS}/id"}}
    said = "A row for each checkpoint, also for those that were retracted."
    return {**head, "description": said, "field": fields}


def _is_in_every_part(zoo: Zoo, name: str) -> bool:
    """Return whether every part has a row with a value in a column, so that its file has the column."""
    tree = zoo.contents.raw
    column, stop = zoo.contents.columns(tree, [name], None)[name], 0
    for part in tree.parts:
        start, stop = stop, stop + part.rows
        if column.slice(start, part.rows).null_count == part.rows:
            return False
    return True


def _responsible(zoo: Zoo, card: Card, rows: pa.Table, created: list[datetime]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of the RAI extension: what rows show, and what the card states."""
    recipes, datasets = (list(counts(rows[column]))[:_MAX_NAMES] for column in ("recipe", "dataset"))
    collected = "The weights come from the training of networks"
    collected += f" on {', '.join(map(_name, datasets or [card.dataset]))}" if datasets or card.dataset else ""
    collected += f", by {counted(len(recipes), 'recipe')}: {', '.join(map(_name, recipes))}" if recipes else ""
    yield "rai:dataCollection", "\n\n".join(filter(None, (f"{collected}.", card.training.strip())))
    yield "rai:dataCollectionType", ["Experiments"]
    if created:
        yield "rai:dataCollectionTimeFrame", [f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in (min(created), max(created))]
    diverged = sum(rows["diverged"].drop_null().to_pylist())
    finite = rows["finite"].drop_null().to_pylist()
    infinite = len(finite) - sum(finite)
    numbers = {"diverged": diverged, "not finite": infinite, "retracted": len(zoo.retracted)}
    said = ", ".join(f"{counted(number, 'checkpoint')} {what}" for what, number in numbers.items())
    yield "rai:dataCollectionMissingData", f"A column is null where its value is not known. {said}."
    derived = f"Variants: {', '.join(zoo.gauges)}." if zoo.gauges else "No variants."
    stored = "are stored as trained" if not zoo.contents.identity.references else "stay in the files that they came in"
    yield "rai:dataPreprocessingProtocol", [f"The weights {stored}. {derived}"]
    yield (
        "rai:dataReleaseMaintenancePlan",
        "The zoo grows by parts, of which none is ever changed; each of its revisions can be opened again.",
    )
    stated = {field: getattr(card, key).strip() for field, key in _STATED.items()}
    # what the notes say of gaps is a limitation
    stated["dataLimitations"] = stated["dataLimitations"] or card.notes.strip()
    for field, text in stated.items():
        if text:
            yield f"rai:{field}", text if field == "dataSocialImpact" else [text]
