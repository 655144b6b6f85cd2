"""One checkpoint by its address: in a zoo here or on another machine, in a file, or in a folder of an export."""

import re
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any

from numpy.typing import NDArray

import ckptzoo
from ckptzoo.errors import AbsentError, Problem, UnknownNameError, ZooError
from ckptzoo.hub.untrusted import StateDict, read_all
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture

_FILE = re.compile(r"\.(pt|pth|ckpt|bin|safetensors|np[yz]|h5|pkl|gguf)$")
"""Names of files of checkpoints."""


def checkpoint_at(address: str, *, variant: str = layout.RAW) -> tuple[Checkpoint, Zoo | None]:
    """Open one checkpoint by its address, and the zoo that holds it; None for one of a file.

    ``address`` is ``ZOO#ID`` with a folder or an address as ``ckptzoo.open`` takes it, ``ZOO`` alone where it holds one
    checkpoint; a checkpoint file, ``FILE#KEY`` where it holds several state dicts; or a folder with
    ``model.safetensors`` or shards of it. A path that exists is taken whole, with any ``#`` in it. ``variant`` is the
    gauge of a zoo's weights.

    Raises ``ZooError``: it holds several checkpoints and none is named, or the file cannot be read. Raises
    ``AbsentError``: there is nothing at this address.
    """
    place, hash, key = address, "", ""
    if not Path(address).exists():
        place, hash, key = address.rpartition("#") if "#" in address else (address, "", "")
    path = Path(place)
    if path.is_file():
        return _of_files(place, [path], key), None
    weights = sorted(path.glob("model*.safetensors")) if path.is_dir() else []
    if weights and not (path / layout.ZOO).exists():
        return _of_files(place, weights, key), None
    # a file that is not there, such as runs/last.pt, is not asked for on a hub
    if _FILE.search(place) and not path.exists() and "://" not in place:
        near = get_close_matches(path.name, [item.name for item in path.parent.glob("*")], n=1)
        step = f"Did you mean {path.with_name(near[0])}?" if near else "Correct the path."
        raise AbsentError(Problem(place, "checkpoint", "a file", "nothing", step))
    zoo = ckptzoo.open(place)
    if not hash:
        if len(zoo) != 1:
            step = f"Name one of them, such as {quote(f'{place}#{zoo.ids[0]}')}." if len(zoo) else "Name another zoo."
            raise ZooError(Problem(zoo.name, "checkpoints", "one", f"{len(zoo):,} of them", step))
        key = zoo.ids[0]
    return zoo.checkpoint(key, variant=variant), zoo


def _of_files(place: str, paths: list[Path], key: str) -> Checkpoint:
    """Return the state dict in a file, or in all shards of a folder."""
    states: list[StateDict] = []
    for result in read_all(paths):
        if result.error is not None:
            raise result.error
        states += result.states
    if len(paths) > 1:
        tensors = {name: array for state in states for name, array in state.tensors.items()}
        states = [StateDict(place, tensors, {}, {}, ())]
    keys = [state.source.partition("#")[2] for state in states]
    if key not in keys and (key or len(states) > 1):
        named = f"Name one of them, such as {place}#{keys[0]}." if keys[0] else f"Write {place} alone."
        raise UnknownNameError(place, "state dict", key, keys, named)
    state = states[keys.index(key)] if key in keys else states[0]
    return _checkpoint(state, Path(place).name + (f"#{key}" if key else ""))


def _checkpoint(state: StateDict, name: str) -> Checkpoint:
    aliases: dict[str, list[str]] = {}
    for alias, first in state.aliases.items():
        aliases.setdefault(first, []).append(alias)
    arch = Architecture.of(
        {each: array for each, array in state.tensors.items() if each not in state.aliases}, name=name
    )
    tensors = (replace(tensor, aliases=(*tensor.aliases, *aliases.get(tensor.name, ()))) for tensor in arch.tensors)
    arch = replace(arch, tensors=tuple(tensors))

    def read(each: str, private: bool) -> NDArray[Any]:
        array = state.tensors[each]
        return array.copy() if private else array

    return Checkpoint(arch, {"id": name}, layout.RAW, read, lambda: None)
