"""``inr``: implicit neural representations of images, one file each, with the label and the split in the path.

AvivNavon/DWSNets at 2001d52, ``experiments/mnist/`` (``mnist_png_training_<label>_<number>/**/*.pth``);
AllanYangZhou/nfn (``<prefix>_<label>s/net<i>.pth``).
"""

import re
from collections.abc import Iterator, Sequence

from ckptzoo.hub.imports.adapters.adapter import FoundCheckpoints, Options, all_fit, every_state, identifier, reader
from ckptzoo.hub.imports.sources import ImportSource
from ckptzoo.hub.untrusted import Limits

_DWSNETS = re.compile(r"(?:.*/)?(?P<member>[a-z]+_png_(?P<split>[a-z]+)_(?P<label>\d+)_\d+)(?:/.*)?/[^/]+\.(pth|pt)")
_NFN = re.compile(r"(?:.*/)?(?P<folder>(?P<split>[A-Za-z0-9]*)_?(?P<label>\d+)s)/(?P<name>net\d+)\.(pth|pt)")


class ImplicitRepresentations:
    """Members are images; ``extra.label`` is what a classifier of weights is to find."""

    name = "inr"
    license: str | None = None
    by_order = False

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether all checkpoint files are named in one of the two ways."""
        return all_fit(paths, lambda path: _DWSNETS.fullmatch(path) or _NFN.fullmatch(path))

    def checkpoints(self, source: ImportSource, options: Options) -> Iterator[FoundCheckpoints]:
        for file in source.files():
            matched = _DWSNETS.fullmatch(file.path) or _NFN.fullmatch(file.path)
            if matched is None:
                continue
            groups = matched.groupdict()
            member = groups.get("member") or f"{groups['folder']}-{groups['name']}"
            extra = {"label": int(groups["label"])} | ({"split": groups["split"]} if groups["split"] else {})
            read = reader(file, Limits().file_bytes)
            yield FoundCheckpoints(file.path, identifier(member), None, {"extra": extra}, file.size, read, every_state)
