"""Facts in files of JSON and YAML beside checkpoints: settings, the state of a trainer, facts of one file."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, cast

from ckptzoo.errors import ZooError
from ckptzoo.hub.imports.adapters.adapter import PassedOver
from ckptzoo.hub.imports.exported import exported_row, is_exported
from ckptzoo.hub.imports.facts import Row
from ckptzoo.hub.imports.one_network import is_published
from ckptzoo.hub.imports.opened import OpenedFile, OpenedSource
from ckptzoo.hub.imports.shards import ShardIndex, read_index
from ckptzoo.hub.untrusted.objects import is_aside
from ckptzoo.hub.untrusted.runs import without_suffixes
from ckptzoo.hub.untrusted.settings_files import PARSERS, parse_json

Facts = dict[str, Any]

_OF_A_FOLDER = {
    "config", "adapter_config", "params", "hparams", "hyperparameters", "args", "settings", "metrics", "results",
    "training_args", "train_config", "model_config", "metadata", "meta", "experiment", "debug", "plans", "cfg", "opt",
    "hyp",
}  # fmt: skip
"""Names of files about the checkpoints of their folder and those in it."""
_STATES = {"trainer_state"}
"""Names of files about the checkpoint of their own folder alone, whose facts are columns."""
_MAX_BYTES, _MAX_ALL = 4 * 2**20, 64 * 2**20
"""Bytes of one such file, and of all that are kept."""
_MAX_FACTS = 256
"""Values that are taken of one file, as of a checkpoint."""
_MAX_MAPPING = 64
"""Entries of a mapping that is settings; more are a table, such as the names of classes."""
_INDEX = re.compile(r"\.index(\.\w+)?\.json$", re.IGNORECASE)
_MAX_INDEX = 64 * 2**20
"""Bytes of an index of shards, which has a line for each tensor."""
_HYDRA = re.compile(r"(.*/)?\.hydra/([^/]+)\.ya?ml")
_SHARD = re.compile(r"[-_]\d{5,7}-of-\d{5,7}$")
_OF_TRAINING = re.compile(r"^(random_states?|training_args|evaluations|vec_?normalize|sampler|custom_checkpoint)")
"""Names of files beside a network that hold none."""


class SideFiles:
    """The files of JSON and YAML in a source, by what they are about; ``passed_over`` has those not used, and why.

    ``indices`` has the index that names a file as a shard, by the path of the file.
    """

    def __init__(self, source: OpenedSource) -> None:
        self.passed_over: list[PassedOver] = []
        self.indices: dict[str, ShardIndex] = {}
        self._by_folder: dict[str, dict[str, Facts]] = {}
        self._by_stem: dict[str, Facts] = {}
        self._exported: dict[str, Facts] = {}
        self._networks: dict[str, set[str]] = {}
        # a pass over an archive in order takes as long as reading it
        if source.may_hold(tuple(PARSERS)):
            self._read(source)

    def of(self, path: str, *, within: str = "") -> Facts:
        """Return the facts about a checkpoint, the nearest first: in its own file, its folder's and those above.

        Folders around ``within`` say nothing then.
        """
        if not self._by_stem and not self._by_folder:
            return {}
        known = dict(self._by_stem.get(without_suffixes(path), {}))
        folder = path.rpartition("/")[0]
        for name, facts in self._by_folder.get(folder, {}).items():
            if name in _STATES:
                known = {**facts, **known}
        while True:
            if within and not f"{folder}/".startswith(f"{within}/"):
                return known
            for name, facts in self._by_folder.get(folder, {}).items():
                if name not in _STATES and name not in known:
                    known[name] = facts
            if not folder:
                return known
            folder = folder.rpartition("/")[0]

    def shared(self, path: str) -> frozenset[str]:
        """Return the names of facts that are about a folder with several networks, of which ``path`` is one."""
        names, folder = set[str](), path.rpartition("/")[0]
        if not self._by_folder:
            return frozenset()
        while True:
            if len(self._networks.get(folder, ())) > 1:
                names |= self._by_folder.get(folder, {}).keys() - _STATES
            if not folder:
                return frozenset(names)
            folder = folder.rpartition("/")[0]

    def exported(self, path: str) -> Row | None:
        """Return the row that ``export`` wrote beside a file; None where it wrote none, or for another file."""
        about = self._exported.get(path.rpartition("/")[0])
        return exported_row(about) if about is not None and is_published(path) else None

    def names_network(self, path: str) -> bool:
        """Whether a file is called as networks of any name are, and settings beside it say that it is one."""
        about = self._by_folder.get(path.rpartition("/")[0], {})
        return ("config" in about or "adapter_config" in about) and is_published(path)

    def _read(self, source: OpenedSource) -> None:
        stems = set[str]()
        files: dict[str, Facts] = {}
        left = _MAX_ALL
        for file in source.files():
            path = file.path
            if file.form.is_read:
                stems.add(without_suffixes(path))
                self._count(path)
            elif _INDEX.search(path):
                self._read_index(file, source)
            elif (parse := PARSERS.get(_suffix(path))) is not None:
                if file.size > min(_MAX_BYTES, left):
                    reason = f"facts in {file.size} bytes, at most {_MAX_BYTES} are read"
                    self.passed_over.append(PassedOver(path, reason))
                    continue
                left -= file.size
                try:
                    content = parse(file.read(_MAX_BYTES), path)
                except ZooError as error:
                    expected, got = error.problems[0].expected, error.problems[0].got
                    reason = f"facts that cannot be read: expected {expected}, got {got}"
                    self.passed_over.append(PassedOver(path, reason))
                    continue
                files[path] = cast(Facts, content) if isinstance(content, dict) else {}
        source.broken.clear()  # the pass over checkpoints meets them again
        # what lies in the folder of a run itself goes before Hydra's files about it
        for path in sorted(files, key=lambda path: _of_hydra(path) is not None):
            content, beside = files[path], path[: -len(_suffix(path))]
            folder, _, name = (_of_hydra(path) or beside).rpartition("/")
            stem = name.lower()
            taken = dict(_few(content))
            if stem == "config" and is_exported(content):
                self._exported[folder] = content
                source.facts[path] = "the rows that ckptzoo export wrote"
            elif not taken:
                self.passed_over.append(PassedOver(path, "no facts"))
            elif beside in stems and beside not in self._by_stem:
                self._by_stem[beside] = taken
                source.facts[path] = "columns and extra"
            elif stem in self._by_folder.get(folder, {}) or beside in stems:
                self.passed_over.append(PassedOver(path, "facts by a name that a file before it has"))
            elif stem in _OF_A_FOLDER or stem in _STATES:
                self._by_folder.setdefault(folder, {})[stem] = taken
                source.facts[path] = "columns and extra" if stem in _STATES else f"extra.{stem}"
            else:
                self.passed_over.append(PassedOver(path, "facts of no checkpoint, by its name"))

    def _read_index(self, file: OpenedFile, source: OpenedSource) -> None:
        index = None
        if file.size <= _MAX_INDEX:
            with contextlib.suppress(ZooError):
                index = read_index(file.path, parse_json(file.read(_MAX_INDEX), file.path))
        if index is not None:
            self.indices |= dict.fromkeys(index.names, index)
            source.facts[file.path] = "which files hold one network"

    def _count(self, path: str) -> None:
        """Count a file among the networks of its folder and those above; shards of one network are one."""
        stem = _SHARD.sub("", without_suffixes(path))
        if is_aside(stem.rpartition("/")[2].lower(), {}) or _OF_TRAINING.search(stem.rpartition("/")[2].lower()):
            return
        folder = path
        while folder:
            folder = folder.rpartition("/")[0]
            self._networks.setdefault(folder, set()).add(stem)


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _of_hydra(path: str) -> str | None:
    """Return the name that a file of Hydra would have in the folder of its run; None for any other."""
    found = _HYDRA.fullmatch(path)
    return None if found is None else f"{found[1] or ''}{found[2]}"


def _few(content: Mapping[str, Any], depth: int = 0, left: list[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the settings among the entries: plain values, short lists of them, and mappings of a few such."""
    left = [_MAX_FACTS] if left is None else left
    for name, value in content.items():
        if isinstance(value, Mapping):
            inner = cast(Mapping[str, Any], value)
            if len(inner) <= _MAX_MAPPING and depth < 4:
                yield name, dict(_few(inner, depth + 1, left))
        elif not isinstance(value, list) or (
            len(cast(list[Any], value)) <= _MAX_MAPPING
            and not any(isinstance(one, list | dict) for one in cast(list[Any], value))
        ):
            left[0] -= 1
            if left[0] < 0:
                return
            yield name, value
