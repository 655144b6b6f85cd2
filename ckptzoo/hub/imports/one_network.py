"""Tells by paths which files of a source hold one network: in several formats, or cut for several devices."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ckptzoo.hub.imports.packed import PACKED_SUFFIXES

MAX_COMPARED = 64 * 2**20
"""Bytes of a file that is read to see whether it holds the network of another."""
_FORMATS = (
    (".safetensors",), (".pt", ".pth", ".bin", ".ckpt", ".pth.tar", ".pt.tar", ".th"), (".npz",),
    (".keras", ".h5", ".weights.h5", ".hdf5"), (".msgpack",), (".pkl", ".pickle", ".joblib"), (".ot",),
)  # fmt: skip
"""Suffixes by format, that which is preferred first."""
_RANK = {suffix: (at, place) for at, suffixes in enumerate(_FORMATS) for place, suffix in enumerate(suffixes)}
_NAME = re.compile(
    r"(?P<stem>.+?)(?:[-_](?P<shard>\d{5,7})-of-(?P<count>\d{5,7}))?(?:\.(?P<precision>fp32|float32|bf16|bfloat16|fp16|float16))?"
    r"(?:[-_](?P<later>\d{5,7})-of-(?P<count_later>\d{5,7}))?"
    rf"(?P<suffix>{'|'.join(re.escape(suffix) for suffix in sorted(_RANK, key=len, reverse=True))})"
    rf"(?P<packed>{'|'.join(map(re.escape, PACKED_SUFFIXES))})?",
    re.IGNORECASE,
)
"""A file's name: transformers writes the number of a shard before the precision, diffusers after it."""
_PUBLISHED = {
    "model": ("model", (".safetensors",)), "pytorch_model": ("model", (".bin",)), "tf_model": ("model", (".h5",)),
    "flax_model": ("model", (".msgpack",)), "rust_model": ("model", (".ot",)),
    "adapter_model": ("adapter", (".safetensors", ".bin")),
    "diffusion_pytorch_model": ("diffusion", (".safetensors", ".bin")),
    "diffusion_flax_model": ("diffusion", (".msgpack",)),
    "open_clip_model": ("open_clip", (".safetensors",)),
    "open_clip_pytorch_model": ("open_clip", (".safetensors", ".bin")),
}  # fmt: skip
"""Names of the network of a folder in each format of transformers, PEFT, diffusers and open_clip."""
_ORIGINAL = re.compile(r"(?:original/)?consolidated(?:\.\d+)?\.(?:pth|pt|safetensors)")
"""Weights as the authors' own program keeps them, beside those of transformers, or in a folder there."""
_CHOICES = re.compile(rf"(?:^|/)(?:{'|'.join(_PUBLISHED)}|consolidated)[.-]|rank_|model_part-|-rank-")
"""A part of every path that is published in several formats, or that is a part of a network."""
_PARTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (form, re.compile(pattern))
    for form, pattern in (
        ("llama-parts", r"(?:^|/)consolidated\.(\d+)\.(?:pth|pt|safetensors)$"),
        ("deepspeed-parts", r"(?:^|/)mp_rank_(\d+)_model_states\.pt$"),
        ("megatron-parts", r"(?:^|[/_.-])[tpm]p_rank[_-]?(\d+)[^/]*(?:/[^/]+)?\.(?:pt|pth|ckpt|bin|safetensors)$"),
        ("device-parts", r"model_part-(\d+)[^/]*\.(?:pt|pth)$|-rank-(\d+)-part-\d+\.(?:safetensors|pt|bin)$"),
    )
)
"""Names of the parts of networks that were cut for several devices; one part alone may be a whole network."""


def is_published(path: str) -> bool:
    """Whether a file is called as transformers, PEFT, diffusers or open_clip call the network of a folder."""
    matched = _NAME.fullmatch(path.rpartition("/")[2])
    if matched is None or matched["packed"]:
        return False
    return matched["suffix"].lower() in _PUBLISHED.get(matched["stem"].lower(), ("", ()))[1]


_Group = tuple[str, str, bool]
"""The folder of files of one network, what they are called in it, and whether that is a published name."""


def are_surely_one(path: str, other: str) -> bool:
    """Whether two related files hold one network whatever is in them: by published names, or in two formats."""
    names = [_NAME.fullmatch(item.rpartition("/")[2]) for item in (path, other)]
    formats = {_RANK[matched["suffix"].lower()][0] for matched in names if matched is not None}
    return len(formats) > 1 or (is_published(path) and is_published(other))


class _Named(NamedTuple):
    """One file's name in a group: what is compared between formats, and which shard of how many it is."""

    rank: tuple[int, ...]
    kind: tuple[str, ...]
    shards: int

    @property
    def is_one_file(self) -> bool:
        """Whether it is no shard, no archive of Keras and not packed."""
        _, _, suffix, packed, _ = self.kind
        return not self.shards and not packed and suffix != ".keras"


@dataclass(frozen=True)
class Related:
    """Files that hold one network with others.

    ``kept`` maps paths that are passed over to the file that is read in their place, and ``reasons`` to why.
    ``compared`` maps paths that are read to small files that are passed over for them and may hold the same numbers.
    ``parts`` maps paths of parts of networks to the names of their forms.
    """

    kept: Mapping[str, str] = field(default_factory=dict[str, str])
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    compared: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    parts: Mapping[str, str] = field(default_factory=dict[str, str])


def may_be_related(path: str) -> bool:
    """Whether a path is one of those that hold one network with others wherever there are such."""
    return _CHOICES.search(path) is not None and not path.endswith("/model.safetensors")


def related(sizes: Mapping[str, int], *, can_compare: bool) -> Related:
    """Find the files that are passed over for others of the same network, and those that are parts.

    ``sizes`` are in bytes by path, in order. Without ``can_compare`` (files cannot be read a second time), files whose
    names alone say that they hold one network, such as ``net.pt`` and ``net.safetensors``, are not related.

    >>> found = related({"a/model.safetensors": 9, "a/pytorch_model.bin": 9, "b.pt": 9}, can_compare=True)
    >>> found.kept, found.compared
    ({'a/pytorch_model.bin': 'a/model.safetensors'}, {'a/model.safetensors': ('a/pytorch_model.bin',)})
    """
    parts = _parts(sizes)
    groups = _groups(path for path in sizes if path not in parts)
    originals = {path: group for path in sizes if (group := _published_form(path, groups)) is not None}
    kept: dict[str, str] = {}
    compared: dict[str, tuple[str, ...]] = {}
    for group, every in groups.items():
        files = {path: named for path, named in every.items() if path not in originals}
        if not files:
            continue
        is_small = can_compare and all(sizes[path] <= MAX_COMPARED for path in files)
        if not is_small:
            files = {path: named for path, named in files.items() if is_published(path)} or files
        there = Counter(named.kind for named in files.values())
        # shards of which some are missing come last
        chosen = min(files.values(), key=lambda named: (there[named.kind] < named.shards, named.rank)).kind
        first = next(path for path, named in files.items() if named.kind == chosen)
        kept |= {path: first for path, other in originals.items() if other == group}
        others = [path for path, named in files.items() if named.kind != chosen]
        if others and (is_small or all(map(is_published, files))):
            kept |= dict.fromkeys(others, first)
            if is_small and all(named.is_one_file for named in files.values()):
                compared[first] = tuple(others)
    reasons = {path: _reason(first) for path, first in kept.items()}
    return Related(kept, reasons, compared, {path: form for path, form in parts.items() if path not in kept})


def _groups(paths: Iterable[str]) -> dict[_Group, dict[str, _Named]]:
    """Return the files whose names say that they may hold one network."""
    groups: dict[_Group, dict[str, _Named]] = {}
    heads = {path: path[: path.find(".", path.rfind("/") + 1)] for path in paths}
    counts = Counter(heads.values())
    for path, head in heads.items():
        # most files have a name of their own
        if counts[head] < 2 and "-of-" not in path and _CHOICES.search(path) is None:
            continue
        folder, slash, name = path.rpartition("/")
        matched = _NAME.fullmatch(name)
        if matched is not None:
            # a precision in a name that is not published may be what is studied
            stem = _PUBLISHED[matched["stem"].lower()][0] if is_published(path) else None
            own = matched["stem"] + (matched["precision"] or "")
            groups.setdefault((folder + slash, stem or own, stem is not None), {})[path] = _named(matched)
    for folder, own, is_named in list(groups):
        stem, _ = _PUBLISHED.get(own.lower(), ("", ()))
        published = groups.get((folder, stem, True), {})
        if not is_named and any(named.kind[0] == own for named in published.values()):
            published |= groups.pop((folder, own, False))  # model.pt beside model.safetensors
    return groups


def _named(matched: re.Match[str]) -> _Named:
    count = int(matched["count"] or matched["count_later"] or 0)
    # a whole file before shards, full precision before half, files as they were saved before packed ones
    precision = (matched["precision"] or "").lower()
    precisions = ("", "fp32", "float32", "bf16", "bfloat16", "fp16", "float16")
    suffix = matched["suffix"].lower()
    rank = (precisions.index(precision), *_RANK[suffix], count, bool(matched["packed"]))
    return _Named(rank, (matched["stem"], precision, suffix, matched["packed"] or "", str(count)), count)


def _parts(paths: Iterable[str]) -> dict[str, str]:
    """Return the parts of networks by their paths, where there are at least two of one."""
    groups: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        if "rank" not in path and "consolidated" not in path and "_part-" not in path:
            continue
        for form, pattern in _PARTS:
            if (matched := pattern.search(path)) is not None:
                at = next(group for group in range(1, pattern.groups + 1) if matched[group] is not None)
                groups.setdefault((form, f"{path[: matched.start(at)]}#{path[matched.end(at) :]}"), []).append(path)
                break
    return {path: form for (form, _), several in groups.items() if len(several) > 1 for path in several}


def _published_form(path: str, groups: Container[_Group]) -> _Group | None:
    """Return the files of transformers that hold what an authors' file does; None where there are none."""
    if "consolidated" not in path:
        return None
    folder = path.rpartition("/")[0]
    for around in (folder, folder.rpartition("/")[0]):
        inside = f"{around}/" if around else ""
        if _ORIGINAL.fullmatch(path.removeprefix(inside)) and (inside, "model", True) in groups:
            return inside, "model", True
    return None


def _reason(kept: str) -> str:
    name = kept.rpartition("/")[2]
    return f"another form of the network in {name}, which is read; --include chooses another"
