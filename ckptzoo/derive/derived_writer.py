"""A derived tree while it is written: one part for every raw part, also where several processes write."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format import table
from ckptzoo.format.checks import geometry_problems, row_limits
from ckptzoo.format.digests import check_part
from ckptzoo.format.files import Folder
from ckptzoo.format.part import Arrays, Part, PartWriter
from ckptzoo.format.reader import Contents, read_tree
from ckptzoo.format.verify import damaged
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Tensor
from ckptzoo.schema.documents import Document
from ckptzoo.schema.metadata import columns_of

Row = dict[str, Any]


@dataclass(frozen=True)
class RowRun:
    """Rows of a raw part that are derived together.

    ``first`` and ``last`` say whether the part begins, and ends, with these rows of the raw tree.
    """

    raw: Part
    rows: slice
    first: bool
    last: bool


class _TakenError(Exception):
    """Another process derived the part meanwhile."""


class DerivedTreeWriter:
    """One derived tree of a zoo.

    ``derived`` holds digests of the raw parts that have been derived, ``parts`` the names of the parts that were
    written. ``facts`` are those of all its parts, which are never mixed with others; ``sets`` maps stems to the tensors
    of their shards; ``what`` names the derived thing in a word or two; ``error`` is raised where parts with other facts
    are there.
    """

    def __init__(
        self,
        contents: Contents,
        name: str,
        facts: Document,
        sets: Mapping[str, Sequence[Tensor]],
        *,
        what: str,
        error: type[ZooError] = ZooError,
    ) -> None:
        self._contents, self._root = contents, contents.root
        self._tree, self._facts, self._sets = f"{layout.DERIVED}/{name}", facts, sets
        self._what, self._error = what, error
        matrices = contents.symmetry is not None and contents.symmetry.has_matrices
        self._schema = table.schema_of(columns_of(facts["kind"], matrices=matrices))
        self._seen: set[str] = set()
        self._writer: PartWriter | None = None
        self._finite: tuple[str, NDArray[np.bool_]] | None = None
        self.derived: set[str] = set()
        self.parts: list[str] = []

    def catch_up(self) -> None:
        """Find which raw parts have been derived, and refuse to mix facts."""
        names = (name for name in Folder(self._root).listed(self._tree) if layout.PART_NAME.fullmatch(name))
        unseen = tuple(name for name in names if name not in self._seen)
        contents = self._contents
        limits = row_limits(contents.architecture, contents.symmetry)
        tree = read_tree(Folder(self._root), self._tree, unseen, None, limits=limits)
        if problems := geometry_problems(contents.files, contents.architecture, contents.symmetry, tree):
            raise IntegrityError(problems)
        for part in tree.parts:
            for key, expected in self._facts.items():
                if (got := part.facts.get(key)) != expected:
                    location, what = f"{self._root.name}/{part.path}", f"{key} of the {self._what}"
                    step = f"Remove {self._tree} and make it again."
                    raise self._error(Problem(location, what, repr(expected)[:80], repr(got)[:80], step))
        self.derived.update(unit for unit in tree.rows["unit"].unique().to_pylist())
        self._seen.update(unseen)

    def todo(self, share: tuple[int, int] = (0, 1)) -> list[tuple[int, Part]]:
        """The raw parts that have not been derived, each after the number of its first row.

        ``share`` is ``(i, n)``: every n-th of all raw parts, from the i-th.
        """
        missing: list[tuple[int, Part]] = []
        start = 0
        for number, part in enumerate(self._contents.raw.parts):
            if part.rows and part.digest not in self.derived and number % share[1] == share[0]:
                missing.append((start, part))
            start += part.rows
        return missing

    def runs(self, parts: Sequence[tuple[int, Part]], rows: int) -> Iterator[RowRun]:
        """The rows of parts that are not derived yet when their turn comes, at most ``rows`` at a time.

        Raises ``IntegrityError`` if a raw part's weights are damaged: nothing is derived from those.
        """
        index_of = self._indices()
        with ThreadPoolExecutor(1) as pool:
            for start, raw in parts:
                if raw.digest in self.derived:
                    continue
                # the first runs are worked on while the bytes are read; without its last run no part appears
                problems = pool.submit(self._damaged, raw, index_of[raw.name])
                if self._contents.identity.references and problems.result():
                    raise IntegrityError(problems.result())
                for first in range(0, raw.rows, rows):
                    stop = min(first + rows, raw.rows)
                    if stop == raw.rows and problems.result():
                        raise IntegrityError(problems.result())
                    yield RowRun(raw, slice(start + first, start + stop), first == 0, stop == raw.rows)

    def _damaged(self, raw: Part, index: pa.Table) -> list[Problem]:
        """The problems of the bytes of a raw part, which are all read; whether they are finite is known then."""
        if not self._contents.identity.references:
            return damaged(self._root, raw, index)
        checked = check_part(self._contents, self._contents.raw.parts.index(raw))
        self._finite = raw.name, checked.finite
        return checked.problems

    def finite(self, run: RowRun) -> NDArray[np.bool_]:
        """(K,) whether each checkpoint of a raw part is finite, of the part's first run, when that has come."""
        if self._finite is not None and self._finite[0] == run.raw.name:
            return self._finite[1]
        rows = np.arange(run.rows.start, run.rows.start + run.raw.rows)
        finite = self._contents.raw.rows.take(["finite"], rows)["finite"]
        return finite.fill_null(False).to_numpy().astype(np.bool_)

    def _indices(self) -> dict[str, pa.Table]:
        """Return the index of each raw part by its name."""
        tree = self._contents.raw
        index = tree.index
        bounds = np.searchsorted(index["part"].to_numpy(), np.arange(len(tree.parts) + 1)).tolist()
        spans = zip(tree.parts, bounds[:-1], bounds[1:], strict=True)
        return {part.name: index.slice(first, behind - first) for part, first, behind in spans}

    def store(self, run: RowRun, arrays: Mapping[str, Arrays], rows: list[Row], facts: Document) -> pa.Table:
        """Write a run; with the last run of a part the part appears, unless another process has written it meanwhile.

        Returns the rows of a part that has appeared; none before, and none where another process was first. ``rows``
        are the derived part's, without their ``unit``; ``facts`` are those of this part, beside those of all.
        """
        if run.first:
            self._writer = PartWriter(
                self._root / self._tree,
                sets=self._sets,
                schema=self._schema,
                facts={**self._facts, "raw": run.raw.digest, **facts},
                rows=run.raw.rows,
            )
        assert self._writer is not None
        self._writer.add(arrays, [{**row, "unit": run.raw.digest} for row in rows])
        if not run.last:
            return self._schema.empty_table()
        # the lock is held from the last look at what is derived to the rename, so that a raw part is derived once
        try:
            self.parts.append(self._writer.commit(self._root, refuse=partial(self._refuse, run.raw)).name)
        except _TakenError:
            self.discard()
            return self._schema.empty_table()
        written, self._writer = self._writer.rows, None
        return written

    def discard(self) -> None:
        """Abandon the part that is being written, and remove it."""
        if self._writer is not None:
            self._writer.discard()
            self._writer = None

    def _refuse(self, raw: Part, rows: object) -> None:
        self.catch_up()
        if raw.digest in self.derived:
            raise _TakenError
