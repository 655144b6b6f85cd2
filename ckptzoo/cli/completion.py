"""Completion in the shell: zoos, variants, layers, columns, ids, gauges.

Only small files of this machine are read, and only ids need Arrow: a shell waits for each answer. A zoo with problems
leads to no words here; the command itself will report them.
"""

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import typer

from ckptzoo.environment import PUBLIC_HUB, cache_root, hub_endpoint
from ckptzoo.errors import ZooError
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.catalogue import catalogue
from ckptzoo.schema.documents import MAX_BYTES, unseal
from ckptzoo.schema.metadata import COLUMNS

MAX_COMPLETIONS = 200
"""Words that the shell is offered."""
MAX_ENTRIES = 1_000
"""The number of entries of a folder that are looked at."""
_DATASETS = "hf://datasets/"
_CONDITION = re.compile(r"(.*?)([A-Za-z_]\w*)?", re.DOTALL)
"""A pattern of the text before the last word of a condition, and of that word."""


def complete_folders(incomplete: str) -> Iterable[str]:
    """Return folders that are zoos or collections: in the folder that is typed, and in those within it."""
    return list(islice(_zoos_below(incomplete), MAX_COMPLETIONS))


def complete_zoos(incomplete: str) -> Iterable[str]:
    """Return the same, and the addresses of the zoos in the cache."""
    cached = [address for address in sorted(_cached()) if address.startswith(incomplete)]
    return [*complete_folders(incomplete), *cached][:MAX_COMPLETIONS]


def complete_variants(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return names of the variants of the zoos on the line."""
    names = dict.fromkeys(name for address in _addresses(context) for name in _variants(address))
    return [name for name in names if name.startswith(incomplete)]


def complete_others(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return names of the variants of the last zoo on the line."""
    return [name for address in _addresses(context)[-1:] for name in _variants(address) if name.startswith(incomplete)]


def complete_catalogue(incomplete: str) -> Iterable[str]:
    """Return names of the catalogue's entries."""
    return [entry.name for entry in catalogue() if entry.name.startswith(incomplete)]


def complete_layers(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return names of the layers of the zoo on the line; the last one behind a comma."""
    done, comma, last = incomplete.rpartition(",")
    layers = [name for address in _addresses(context)[:1] for name in _layers(address)]
    return [f"{done}{comma}{name}" for name in layers if name.startswith(last)][:MAX_COMPLETIONS]


def complete_condition(incomplete: str) -> Iterable[str]:
    """Complete the last word of a condition, where it is the beginning of a column's name.

    >>> complete_condition("seed < 5 and test_acc")
    ['seed < 5 and test_accuracy']
    >>> complete_condition("seed < ")
    []
    """
    matched = _CONDITION.fullmatch(incomplete)
    before, begun = (incomplete, "") if matched is None else (matched[1], matched[2] or "")
    # no column begins within quotation marks
    is_text = any(before.count(quote) % 2 for quote in "'\"")
    words = before.replace("(", " ( ").split()
    if is_text or before[-1:] not in ("", " ", "(") or (words and words[-1].lower() not in ("and", "or", "not", "(")):
        return []
    return [f"{before}{column.name}" for column in COLUMNS if column.name.startswith(begun)]


def complete_ids(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the first ``MAX_COMPLETIONS`` ids of checkpoints of the zoo on the line, where it is a folder."""
    import ckptzoo

    folders = [address for address in _addresses(context)[:1] if Path(address).is_dir()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [id for path in folders for id in ckptzoo.open(path).ids if id.startswith(incomplete)][
                :MAX_COMPLETIONS
            ]
    except Exception:  # of the zoo or of Arrow: a traceback would spoil the line that is being typed
        return []


def complete_gauges(incomplete: str) -> Iterable[str]:
    """Return names of gauges."""
    return [name for name in get_args(layout.GaugeName) if name.startswith(incomplete)]


def complete_cached(incomplete: str) -> Iterable[str]:
    """Return addresses of the zoos in the cache, as ``ckptzoo cache ls`` lists them."""
    return [address for address, _ in _cache_folders() if address.startswith(incomplete)]


def _addresses(context: typer.Context) -> list[str]:
    """Return the zoos that are named on the line that is being completed."""
    # arguments that are not bound to a parameter yet are in context.args
    bound = [context.params.get(name) for name in ("zoo", "other", "zoos")]
    given = [item for value in bound if value for item in ([value] if isinstance(value, str) else value)]
    return [str(item) for item in (*given, *context.args)]


def _zoos_below(begun: str) -> Iterator[str]:
    above, slash, _ = begun.rpartition("/")
    for name in _folders(f"{above}{slash}" or "."):
        path = f"{above}{slash}{name}"
        if not path.startswith(begun):
            continue
        if _is_zoo(path):
            yield path
        else:
            yield from (inner for name in _folders(path) if _is_zoo(inner := f"{path}/{name}"))


def _folders(path: str) -> list[str]:
    """Return the folders in a folder by name, without hidden ones."""
    try:
        with os.scandir(path) as entries:
            some = list(islice(entries, MAX_ENTRIES))
    except OSError:
        return []
    return sorted(entry.name for entry in some if not entry.name.startswith(".") and entry.is_dir())


def _is_zoo(path: str) -> bool:
    return any(Path(path, name).is_file() for name in (layout.ZOO, layout.COLLECTION))


def _cache_folders() -> list[tuple[str, Path]]:
    """Return the address of every zoo in the cache, and its folder there."""
    found: list[tuple[str, Path]] = []
    root = cache_root()
    for name in _folders(str(root)):
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            found.append((str(json.loads(_read(root / name / "address.json"))["address"]), root / name))
    return found


def _cached() -> dict[str, Path]:
    """Return the same by address as it is typed; zoos of other hubs than that of ``HF_ENDPOINT`` are left out."""
    typed: dict[str, Path] = {}
    for address, folder in _cache_folders():
        repository, _, endpoint = address.partition(" at ")
        if not repository.startswith(_DATASETS):
            typed[address] = folder
        elif (endpoint or PUBLIC_HUB) == hub_endpoint():
            typed[repository.removeprefix(_DATASETS)] = folder
    return typed


def _names(address: str) -> dict[str, str | None]:
    """Return the files of a zoo in the cache when it was last looked up, each with its digest."""
    folder = _cached().get(address.removeprefix(_DATASETS).partition("@")[0])
    latest: tuple[float, dict[str, Any]] = (0.0, {})
    for path in [] if folder is None else folder.glob("revisions/*.json"):
        with suppress(OSError, ZooError, KeyError, TypeError, ValueError):
            content, _ = unseal(_read(path), location=path.name)
            latest = max(latest, (float(content["saved"]), content["entries"]), key=lambda item: item[0])
    return {name: facts[1] for name, facts in latest[1].items()}


def _variants(address: str) -> list[str]:
    if Path(address).is_dir():
        if not _is_zoo(address):
            return []
        derived = Path(address, layout.DERIVED)
        parts = [(name, part) for name in _folders(str(derived)) for part in _folders(str(derived / name))]
    else:
        paths = [name.split("/") for name in _names(address)]
        if not paths:
            return []
        parts = [(path[1], path[2]) for path in paths if path[0] == layout.DERIVED and len(path) > 2]
    others = (layout.RETRACTED, layout.MEASURED)
    names = {
        name
        for name, part in parts
        if layout.DERIVED_NAME.fullmatch(name) and layout.PART_NAME.fullmatch(part)
        if name not in others and layout.set_name(name) is None
    }
    return [layout.RAW, *sorted(names)]


def _layers(address: str) -> Iterable[str]:
    try:
        if Path(address).is_dir():
            data = _read(Path(address, layout.ARCHITECTURE))
        else:
            kind, _, digits = str(_names(address)[layout.ARCHITECTURE]).partition(":")
            folder = _cached()[address.removeprefix(_DATASETS).partition("@")[0]]
            data = _read(folder / "blobs" / digits[:2] / f"{kind}-{digits}")
        return Architecture.from_json(unseal(data, location=address)[0]).layers
    except (OSError, ZooError, KeyError):
        return ()


def _read(path: Path) -> bytes:
    # one byte more than documents may have, so that unseal refuses larger ones
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
