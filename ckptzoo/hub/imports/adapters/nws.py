"""``nws``: neural weight spaces (Eilertsen et al. 2020, arXiv 2002.05688).

gabrieleilertsen/nws at c21b054, ``util.py``: ``<folder>/weights/%03d.bin`` are vectors of float64, one a step;
what they are is in a table, or in ``--layout``.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.adapters.adapter import (
    MAX_SIDE_BYTES,
    FoundArrays,
    Options,
    all_fit,
    identifier,
    side_files,
)
from ckptzoo.hub.imports.facts import Row, row_of
from ckptzoo.hub.imports.sources import ImportSource
from ckptzoo.hub.imports.tables import read_layout, read_table

_CHECKPOINT = re.compile(r"(?:(?P<folder>.+)/)?weights/(?P<number>\d{1,9})\.bin")
_TABLE = re.compile(r"(?:.+/)?[^/]+\.csv")
_LAYOUT = "layout.csv"
_STEP = "Give one with --layout FILE.csv: columns varname, start_idx, end_idx, shape."


class NeuralWeightSpace:
    """Members are folders, steps the numbers of the files."""

    name = "nws"
    license: str | None = None
    by_order = False

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether all checkpoint files are a ``weights/N.bin``."""
        return all_fit(paths, _CHECKPOINT.fullmatch)

    def checkpoints(self, source: ImportSource, options: Options) -> Iterator[FoundArrays]:
        texts, _ = side_files(source, lambda path: _TABLE.fullmatch(path) is not None)
        layouts = {path: data for path, data in texts.items() if path.rpartition("/")[2] == _LAYOUT}
        if options.layout is not None:
            slices = read_layout(options.layout.encode(), "--layout")
        elif layouts:
            path, data = next(iter(layouts.items()))
            slices = read_layout(data, path)
        else:
            raise ZooError(Problem(source.address, "layout of the vectors", "one", "none", _STEP))
        facts = {
            path.rpartition("/")[0]: _first(read_table(data, path))
            for path, data in texts.items()
            if path not in layouts
        }
        for file in source.files():
            if (matched := _CHECKPOINT.fullmatch(file.path)) is None:
                continue
            # numpy.tofile writes numbers alone, without a header
            vector = np.frombuffer(file.read(MAX_SIDE_BYTES), "<f8")
            if len(vector) != slices[-1].stop:
                raise ZooError(Problem(file.path, "numbers", str(slices[-1].stop), str(len(vector)), _STEP))
            folder, step = matched["folder"] or "", int(matched["number"])
            row = row_of(facts.get(folder, {}), location=file.path, percent=options.percent)
            tensors = {item.name: vector[item.start : item.stop].reshape(1, *item.shape) for item in slices}
            yield FoundArrays(file.path, [identifier(folder or source.name)], [step], [row], tensors)


def _first(rows: Sequence[Row]) -> Row:
    return rows[0] if rows else {}
