"""A zoo as its reader sees it: metadata, selections, stacked tensors, streams, checkpoints, ensembles."""

import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.arguments import Count, Seed, Within, checked
from ckptzoo.errors import AbsentError, Problem, UnknownNameError, ZooError, require
from ckptzoo.format.files import Files, Folder
from ckptzoo.format.landscapes import figures_of, landscape_sets
from ckptzoo.format.reader import Contents, read_contents, read_documents
from ckptzoo.format.releases import read_release, read_releases
from ckptzoo.format.reproductions import read_reproductions
from ckptzoo.format.sources import Follow, Servers
from ckptzoo.format.splits import COLUMNS, part_numbers, read_split, split_names
from ckptzoo.lazy_names import lazy_module
from ckptzoo.loader.checkpoint import Checkpoint, import_torch
from ckptzoo.loader.citation import Citation, card_if_any, cite, condition_code, slice_code
from ckptzoo.loader.lazy_tensor import StackedTensor
from ckptzoo.loader.predictions import Predictions
from ckptzoo.loader.readers import cast_reader
from ckptzoo.loader.rebuilding import MAX_BYTES, MAX_SECONDS, RebuildOptions, Rebuilt, checkpoint_at, rebuild
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.selection import Selection, left_out, standing
from ckptzoo.loader.shard_index import ShardMaps
from ckptzoo.loader.stream import Batch, ReaderShard, Remainder, Shuffle, Source, Stream
from ckptzoo.loader.variant import Variant
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.release import Release
from ckptzoo.schema.reproduction import Reproduction
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.text import Progress, counted, shortened

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from ckptzoo.loader.filters import Filters
else:
    pc = lazy_module("pyarrow.compute")

_CALLER = 4
"""Frames between a warning and the code that opens a zoo: that of ``checked``, ``open``, and ``_of_all``."""
BATCH_BYTES = 64 * 2**20
"""The largest batch of ``Zoo.batches`` by default, in bytes of its tensors."""
Followed = bool | str | Path | Sequence[str] | Mapping[str, str | Path] | None
"""The kinds of values that ``follow`` takes."""
_DIGEST = "sha256:"
"""How revisions begin; names of releases have no colon."""


@checked
def open(
    address: str | os.PathLike[str],
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    follow: Followed = None,
) -> "Zoo":
    """Open a zoo: a folder on this machine, a dataset repository on a hub, or a folder behind a web server.

    Parameters
    ----------
    address
        a folder, ``org/zoo``, ``hf://datasets/org/zoo@revision``, ``https://host/path/zoo`` (any server with ranges;
        ``ckptzoo compact`` writes the listing it needs) or an fsspec address such as ``s3://bucket/zoo``. A folder that
        exists wins over a repository of the same name.
    revision
        ``zoo.revision``, or the ``"revision"`` of a stream's state: the zoo as it was then, without the parts and
        tombstones that came behind it. A stream's state continues there exactly. Variants and predictions that were
        derived since are there. Or the name of a release, or ``"stable"`` for the newest one; of a hub's repository
        also that of a branch, a tag or a pull request. By default the zoo as it is now.
    endpoint, token
        of the hub, if they are not those that huggingface_hub uses (``HF_ENDPOINT``, ``HF_TOKEN``). The token stays in
        this process; others that the zoo is sent to use huggingface_hub's.
    follow
        of a zoo that refers to files: the folder that they are in, or folders by the names of their sources (the column
        ``source``), of a zoo in a folder on this machine. For files on other machines True, which asks public servers
        by https and, with your token, the hub; or servers that may have any address, ``"http://host:8000"``. By default
        those recorded when ``ckptzoo link`` was run here; the references of a zoo that came from elsewhere are not
        followed.

    Raises
    ------
    AbsentError
        There is no such zoo; the message names every place that was tried.
    RemoteError
        Another machine gives no answer for longer than the retry policy allows.
    IntegrityError
        It is not a zoo, or what can be seen without reading the shards is wrong.
    ZooError
        It has no such revision; the message names the nearest.
    UnknownNameError
        It has no such release.

    Notes
    -----
    Reads the documents and the index of every part, or those in a snapshot; columns of the rows are read, and checked,
    when they are asked for. No weights are read. The revision is pinned: what is published later is seen by
    ``refresh`` alone. Retracted checkpoints are left out, with a warning. The number of requests and of bytes is
    tested in ``tests/loader/test_remote_files.py``.

    Examples
    --------
    >>> zoo = ckptzoo.open("cards/mnist-optunet")
    >>> zoo
    <zoo mnist-optunet: 8,192 checkpoints of optunet, 8 parts>
    >>> zoo["conv1.weight"][:64].shape
    (64, 2, 1, 4, 4)
    """
    contents = _contents_at(address, revision, endpoint, token, follow)
    return _of_all(contents)


def _of_all(contents: Contents) -> "Zoo":
    """The zoo without the checkpoints that were retracted, of which a warning tells."""
    rows = standing(contents)
    if note := left_out(contents, rows):
        warnings.warn(f"{contents.files.name}: {note}; zoo.retracted lists them.", UserWarning, stacklevel=_CALLER)
    return Zoo(contents, {}, rows, ())


def _contents_at(
    address: str | os.PathLike[str],
    revision: str | None,
    endpoint: str | None,
    token: str | None,
    follow: Followed | Follow,
) -> Contents:
    """Read a zoo as it is now, at a revision, or at a release."""
    files = files_at(address, endpoint, token, follow)
    if revision is None or revision.startswith(_DIGEST):
        return read_contents(files, revision)
    try:
        return read_contents(files, read_release(files, revision, read_documents(files)[0]).revision)
    except UnknownNameError:
        if files.here is not None or (pinned := _pinned(os.fspath(address), revision)) is None:
            raise
        try:
            return read_contents(files_at(pinned, endpoint, token))
        except AbsentError:
            pass
        raise


def _pinned(address: str, revision: str) -> str | None:
    """Return the address of a hub's repository at a branch, a tag or a commit; None for other addresses."""
    from ckptzoo.remote.address import MAIN, HubAddress, candidates

    place = candidates(address)[-1]
    if not isinstance(place, HubAddress) or place.revision != MAIN or any(sign in revision for sign in "@ "):
        return None
    return str(dataclasses.replace(place, revision=revision))


def files_at(
    address: str | os.PathLike[str],
    endpoint: str | None,
    token: str | None,
    follow: Followed | Follow = None,
) -> Files:
    """The files of a folder on this machine, with the places of its references, or of a place on another one."""
    places = _followed(follow, endpoint, token)
    if os.fspath(address) and Path(address).is_dir():
        folder = Folder(address, places)
        folder.hub = endpoint, token
        return folder
    if places is not None and not isinstance(places, Servers):
        step = "Pull the zoo first, and open its folder."
        raise ZooError(Problem(os.fspath(address), "follow", "a zoo in a folder on this machine", "another", step))
    from ckptzoo.remote import open_remote  # only here, because it takes as long as all the rest of opening

    remote = open_remote(address, endpoint=endpoint, token=token)
    return RemoteFiles(remote, os.fspath(address), endpoint, token, places)


def _followed(follow: Followed | Follow, endpoint: str | None, token: str | None) -> Follow | None:
    """The places that a caller names for references."""
    if follow is None or follow is False:
        return None
    if isinstance(follow, Servers):
        return follow
    if isinstance(follow, Mapping):
        return {name: _real(folder) for name, folder in follow.items()}
    if follow is True:
        return Servers((), endpoint, token)
    texts = [follow] if isinstance(follow, str | Path) else list(follow)
    if not all(map(str, texts)) or not texts:
        # no servers would be all public ones, and no text the folder where the process is
        step = "Leave follow out to follow what was linked here, or write True for all public servers."
        raise ZooError(Problem("open", "follow", "a folder or servers", "none", step))
    if len(texts) == 1 and "://" not in str(texts[0]):
        return _real(texts[0])
    if any("://" not in str(text) for text in texts):
        step = "Give a folder, or a folder for each source by its name."
        raise ZooError(Problem("open", "follow", "a folder or servers", "several folders", step))
    return Servers(tuple(map(str, texts)), endpoint, token)


def _labelled(extra: str) -> Any:
    """The module ``ckptzoo.loader.labelled``, or an error that names the install command of this extra."""
    require("xarray", extra)
    return import_module("ckptzoo.loader.labelled")


def _real(folder: str | Path) -> Path:
    """A folder without links in its path: below it none are followed."""
    return Path(os.path.realpath(folder))


class Zoo:
    """Many checkpoints of one architecture, as they were when the zoo was opened, or a selection of them.

    ``zoo["conv1.weight"]`` is the tensor of every checkpoint, ``(N, *shape)``, read when indexed;
    ``zoo["conv1.weight", "first-weight"]`` the same in another gauge. ``zoo[3]`` and iteration give checkpoints as
    trained, ``id in zoo`` asks for one by its id. Selections (``where``, ``take``, ``last_steps``, ``zoo[10:20]``) are
    Zoos too and share what was read. A Zoo can be pickled and sent to another process.

    Parameters
    ----------
    contents
        what ``ckptzoo.open`` has read.
    variants
        the gauges that were opened so far, by name; selections share them.
    rows
        (N,) the places of its checkpoints among all of the zoo.
    steps
        the calls that select these checkpoints from the whole zoo, as code; None where they are not known.

    Examples
    --------
    >>> zoo = ckptzoo.open("cards/mnist-optunet").where("test_accuracy > 0.91")
    >>> len(zoo), zoo["fc.weight", "canonical"].shape
    (17, (17, 10, 10))
    >>> zoo[0].id
    'mnist-optunet-2cdbd75c-000231-056280'
    """

    def __init__(
        self,
        contents: Contents,
        variants: dict[str, Variant],
        rows: NDArray[np.int64],
        steps: tuple[str, ...] | None = None,
    ) -> None:
        self._contents, self._selection, self._steps = contents, Selection(contents, variants, rows), steps

    def __repr__(self) -> str:
        parts = counted(len(self._contents.raw.parts), "part")
        return f"<zoo {self.name}: {len(self):,} checkpoints of {self.arch.name}, {parts}>"

    def _repr_html_(self) -> str:
        from ckptzoo.loader.notebook import zoo_html

        return zoo_html(repr(self)[1:-1], self.address, self._contents, len(self))

    def _ipython_key_completions_(self) -> list[str | tuple[str, str]]:
        """Completions of ``zoo[``: tensors as trained, and in every variant."""
        names = [name for tensor in self.arch.tensors for name in (tensor.name, *tensor.aliases)]
        # not self.variants: of a zoo on another machine, what kind a tree is may have to be fetched
        return [*names, *((name, variant) for variant in (layout.RAW, *self._contents.variants) for name in names)]

    def __len__(self) -> int:
        return len(self._selection.rows)

    @property
    def name(self) -> str:
        """The zoo's name."""
        return self._contents.identity.name

    @property
    def path(self) -> Path:
        """The zoo's folder; ZooError where it is on another machine."""
        return self._contents.root

    @property
    def address(self) -> str:
        """The zoo's folder, or its address where it is on another machine."""
        files = self._contents.files
        return files.name if files.here is None else str(files.here)

    @property
    def arch(self) -> Architecture:
        """The tensors of a checkpoint."""
        return self._contents.architecture

    @property
    def symmetry(self) -> Symmetry | None:
        """The table of groups and axis actions, where the zoo has one."""
        return self._contents.symmetry

    @property
    def contents(self) -> Contents:
        """Everything that was read at opening: documents, parts, index."""
        return self._contents

    @property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """Module name to its tensors' names."""
        return self.arch.layers

    @property
    def revision(self) -> str:
        """Digest of the ordered list of parts and tombstones at opening; ``ckptzoo.open`` takes it."""
        return self._contents.revision

    @property
    def metadata(self) -> pa.Table:
        """One row per checkpoint, in the zoo's order; the columns are those of ``ckptzoo.schema.metadata.COLUMNS``."""
        return self._selection.metadata

    @checked
    def column(self, name: str) -> pa.ChunkedArray:
        """(N,) one column of the metadata, in the zoo's order; no other is read.

        Parameters
        ----------
        name
            of a column, or ``extra.optim.lr`` for a value within ``extra``, null where a row has none.

        Raises
        ------
        UnknownNameError
            There is none; of values within ``extra``, no row has it.
        ZooError
            Values within ``extra`` are of several types, or objects or lists.
        """
        if name not in self._contents.raw.rows.schema.names and not name.startswith("extra."):
            raise self._selection.absent_column(name)
        return self._selection.columns([name])[name]

    @checked
    def metadata_runs(self, *names: str) -> Iterator[pa.Table]:
        """The metadata some rows at a time, in the zoo's order, where those of all checkpoints need too much memory.

        Parameters
        ----------
        names
            of columns; none for all of them.

        Raises
        ------
        UnknownNameError
            There is no such column.

        Examples
        --------
        >>> zoo = ckptzoo.open("cards/mnist-optunet")
        >>> sum(len(run) for run in zoo.metadata_runs("id", "test_accuracy")) == len(zoo)
        True
        """
        known = self._contents.raw.rows.schema.names
        if unknown := [name for name in names if name not in known]:
            raise self._selection.absent_column(unknown[0])
        return map(itemgetter(1), self._selection.runs(names or known))

    @property
    def ids(self) -> list[str]:
        """The checkpoints' ids, in the zoo's order."""
        return self._selection.ids.to_pylist()

    @property
    def retracted(self) -> pa.Table:
        """The tombstones: id, reason, contributor, created."""
        return self._contents.retracted.metadata

    @property
    def measured(self) -> pa.Table:
        """Figures that were measured when their checkpoints were in the zoo already: id, by whom, when, and which.

        ``metadata`` and ``variant_metadata`` have them where rows had none.
        """
        return self._contents.measured.metadata

    @property
    def reproduced(self) -> tuple[Reproduction, ...]:
        """The marks of checkpoints that somebody trained again bit for bit: ids, by whom, when and on what."""
        return read_reproductions(self._contents.files, self._contents.identity)

    @property
    def landscapes(self) -> tuple[str, ...]:
        """Every set of inputs on which figures of the loss around checkpoints are stored; ``landscape`` has these."""
        return landscape_sets(self._contents.files, self._contents.identity)

    @checked
    def landscape(self, set: str | None = None) -> pa.Table:
        """Figures of the loss around these checkpoints: its Hessian's trace and largest eigenvalue, as far as stored.

        ``ckptzoo.derive.landscape`` measures and stores them.

        Parameters
        ----------
        set
            the inputs on which the loss was measured, such as ``mnist/test-1000``; by default the only ones.

        Returns
        -------
        pyarrow.Table
            A row for each checkpoint, in this zoo's order: ``id``, ``loss``, ``hessian_trace``, ``hessian_top`` and
            their errors; null where nothing was measured.

        Raises
        ------
        UnknownNameError
            Nothing was measured on such a set.
        ZooError
            Nothing was measured, or on several sets and none is named.
        """
        return figures_of(self._contents.files, self._contents.identity, self._selection.ids, set)

    @property
    def variants(self) -> tuple[str, ...]:
        """``raw`` and every gauge that was derived, whether its weights are stored or computed when read.

        ``raw`` is missing where the zoo was pulled without the weights as trained.
        """
        return self._selection.names

    @property
    def gauges(self) -> tuple[str, ...]:
        """Every gauge that was derived."""
        return self._selection.gauges

    @property
    def predicted(self) -> tuple[str, ...]:
        """Every set of inputs whose outputs are stored, such as ``mnist/test``; ``derive.predict`` adds to them."""
        return self._selection.predicted

    @checked
    def predictions(self, set: str) -> Predictions:
        """The stored outputs of these checkpoints on a set of inputs, in this zoo's order.

        Parameters
        ----------
        set
            a name in ``predicted``.

        Raises
        ------
        UnknownNameError
            No such set.
        ZooError
            Not every checkpoint has been evaluated on it; the message says what to do.
        """
        return self._selection.predictions(set)

    def where(self, filters: "Filters") -> "Zoo":
        """The checkpoints whose metadata satisfy a condition.

        Parameters
        ----------
        filters
            ``[("test_accuracy", ">", 0.8), ("seed", "<", 500)]``, of which all hold, or a list of such lists, of which
            any holds; a ``pyarrow.compute`` expression; text such as ``"test_accuracy > 0.8 and seed < 500"``, which is
            parsed and never evaluated; ``{"dataset": "mnist", "seed": [3, 4]}``, the value or the values that columns
            are to have; or a mask, ``(N,)`` booleans. ``None`` stands for a missing value, and a text such as
            ``"2024-01-31"`` for a time where the column holds times, of UTC where it names no other zone.
            ``extra.optim.lr`` is a value within the JSON of ``extra``, which is parsed where it is named.

        Raises
        ------
        UnknownNameError
            No such column.
        ZooError
            The filters have another form, compare a column with a value of another type, or are a mask of another
            length; the message shows how to write it.

        Examples
        --------
        >>> zoo = ckptzoo.open("cards/mnist-optunet")
        >>> zoo.where({"seed": [3, 4]}).ids == zoo.where("seed in [3, 4]").ids
        True
        """
        return self._chosen(self._selection.matching(filters), condition_code(filters))

    def take(self, rows: Any) -> "Zoo":
        """The checkpoints at these positions: a slice, integers in any order, or a mask.

        Parameters
        ----------
        rows
            positions in this zoo's order.
        """
        return self._chosen(rows, slice_code(rows))

    def _chosen(self, rows: Any, step: str | None) -> "Zoo":
        """Return the checkpoints at these positions, which a call selects; None where no short one does."""
        selection, steps = self._selection, None
        if step is not None and self._steps is not None:
            steps = (*self._steps, step)
        return Zoo(self._contents, selection.variants, np.atleast_1d(selection.rows[rows]), steps)

    @checked
    def having(self, *names: str) -> "Zoo":
        """The checkpoints that have all of these gauges and predicted sets; parts that came later may lack them yet.

        Parameters
        ----------
        names
            variants, and sets of inputs.

        Raises
        ------
        UnknownNameError
            No such variant and no such set.
        """
        zoo = self
        for name in names:
            zoo = zoo.take(zoo._selection.having(name))
        return zoo

    def last_steps(self) -> "Zoo":
        """Each member's checkpoint of the last step, in zoo order."""
        return self._chosen(self._selection.last_steps(), ".last_steps()")

    @checked
    def sorted(self, *names: str) -> "Zoo":
        """The checkpoints in the order of some columns; those that are equal in all of them stay in the zoo's order.

        Parameters
        ----------
        names
            of columns, or ``extra.optim.lr`` for a value within ``extra``: the first decides, the next where it is
            equal. The largest values come first where a minus stands before the name, ``"-test_accuracy"``. Missing
            values come last.

        Raises
        ------
        UnknownNameError
            There is no such column.

        Examples
        --------
        >>> draws = ckptzoo.open("cards/mnist-optunet-posteriors").sorted("mode", "draw")
        >>> draws.metadata["draw"][:4].to_pylist()
        [0, 0, 1, 1]
        """
        if not names:
            step = 'Write, for example, zoo.sorted("mode", "draw").'
            raise ZooError(Problem(self.name, "columns to sort by", "at least one", "none", step))
        columns = [self.column(name.removeprefix("-")).combine_chunks() for name in names]
        table = pa.table(columns, names=[str(number) for number in range(len(names))])
        # pyarrow sorts stably
        orders = ("descending" if name.startswith("-") else "ascending" for name in names)
        keys = list(zip(table.column_names, orders, strict=True))
        order = pc.call_function("sort_indices", [table], pc.SortOptions(sort_keys=keys))
        return self._chosen(order.to_numpy(), f".sorted({', '.join(map(repr, names))})")

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits that the zoo has."""
        return split_names(self._contents.files)

    @checked
    def split(self, name: str, part: str) -> "Zoo":
        """The checkpoints in one part of a split, such as those to train on.

        Parameters
        ----------
        name
            in ``splits``.
        part
            of the split, such as ``"train"``.

        Raises
        ------
        UnknownNameError
            The zoo has no such split, or the split no such part.
        IntegrityError
            The split's document is damaged, or that of another zoo.

        Examples
        --------
        >>> zoo = ckptzoo.open("cards/mnist-optunet")
        >>> train, test = zoo.split("main", "train"), zoo.split("main", "test")
        >>> len(train), len(test)
        (5830, 1168)
        """
        split = read_split(self._contents.files, name, self._contents.identity)
        if part not in split.parts:
            raise UnknownNameError(self.name, f"part of split {name!r}", part, split.parts)
        numbers = [part_numbers(split, run) for _, run in self._selection.runs(COLUMNS)]
        places = np.flatnonzero(np.concatenate([[], *numbers]) == split.parts.index(part))
        return self._chosen(places, f".split({name!r}, {part!r})")

    @property
    def releases(self) -> tuple[Release, ...]:
        """The zoo's releases, the newest last; ``ckptzoo.open`` takes their names."""
        return read_releases(self._contents.files, self._contents.identity)

    def cite(self) -> Citation:
        """A citation of these checkpoints, in BibTeX: the zoo's name, version, revision and selection, and its DOI.

        Returns
        -------
        Citation
            ``print(zoo.cite())`` shows the BibTeX; its fields have what is in it.

        Raises
        ------
        ZooError
            The checkpoints were selected by positions, and these are too many to be listed; the message says how to
            give them a name.

        Notes
        -----
        Conditions are cited as they were written, and positions otherwise. Both are of the zoo at its revision, so that
        the cited code selects the same checkpoints however the zoo grows. ``ids`` is a digest of theirs: where it is
        another one, figures that a condition asks for were measured later.

        Examples
        --------
        >>> zoo = ckptzoo.open("cards/mnist-optunet")
        >>> zoo.where("test_accuracy > 0.91").cite().selection
        ".where('test_accuracy > 0.91')"
        >>> zoo[[3, 5, 6, 7]].cite().selection
        '.take([3, *range(5, 8)])'
        """
        files, rows = self._contents.files, self._selection.rows
        address = "" if files.here is not None else files.name
        return cite(self, rows, self._steps, card_if_any(files), releases=self.releases, address=address)

    @overload
    def __getitem__(self, key: str | tuple[str, str]) -> StackedTensor: ...
    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Checkpoint: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> "Zoo": ...
    def __getitem__(self, key: Any) -> "StackedTensor | Checkpoint | Zoo":
        """A tensor of every checkpoint, one checkpoint, or some of them.

        Parameters
        ----------
        key
            a tensor's name, for its stack as trained, or a tensor's name and a variant's; an integer, for the
            checkpoint at that position, as trained; a slice, integers or a mask, for a selection as ``take`` gives it.

        Raises
        ------
        UnknownNameError
            No such tensor, or no such variant.
        IndexError
            No checkpoint has this position.
        """
        if not isinstance(key, str | tuple | np.ndarray) and hasattr(key, "__array__"):
            key = np.asarray(key)[()]  # of torch, or of a lazy tensor
        match key:
            case np.ndarray() if key.ndim == 0:
                return self[key[()]]
            case str():
                return self._selection.stacked(key, layout.RAW)
            case (str() as name, str() as variant):
                return self._selection.stacked(name, variant)
            case bool():  # an int, too
                pass
            case int() | np.integer():
                return self._selection.checkpoint_at(self._place(int(key)), layout.RAW)
            case slice() | list() | range() | np.ndarray():
                return self.take(key)
        expected = "a tensor's name, a tensor's and a variant's, or positions"
        first = next(iter(self.arch.names))
        step = f"Write, for example, zoo[{first!r}], zoo[{first!r}, 'canonical'], zoo[3] or zoo[10:20]."
        if isinstance(key, tuple) and key and isinstance(key[0], str):
            step = f"Write zoo[{key[0]!r}][...] to index the tensor."
        raise ZooError(Problem(self.name, "index", expected, shortened(repr(key), 80), step))

    def __iter__(self) -> Iterator[Checkpoint]:
        """Every checkpoint as trained, one by one; ``stream`` and ``batches`` read many at a time, which is faster."""
        return (self._selection.checkpoint_at(position, layout.RAW) for position in range(len(self)))

    def __contains__(self, item: object) -> bool:
        """Whether a checkpoint of this id is among these; of a checkpoint, its own id."""
        id = item.id if isinstance(item, Checkpoint) else item
        if not isinstance(id, str):
            return False
        found = self._selection.place_of(id) >= 0
        if not found and id in self.arch:
            step = f"Write {id!r} in zoo.arch to ask for a tensor."
            raise ZooError(Problem(self.name, f"{id!r} in zoo", "a checkpoint's id", "a tensor's name", step))
        return found

    def _place(self, index: int) -> int:
        """A position from 0, of one that may count from the end."""
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"{self.name}: position: expected {-count} to {count - 1}, got {index}.")
        return index % count

    @checked
    def group_element(self, variant: str) -> dict[str, StackedTensor]:
        """The group element g of a variant, with variant = g . raw: ``{"<group>.perm": (N, n), ...}``.

        Parameters
        ----------
        variant
            a name in ``variants`` other than ``raw``.
        """
        return self._selection.group_element(variant)

    @checked
    def variant_metadata(self, variant: str) -> pa.Table:
        """A variant's own rows (ties, margins, certificates), one per checkpoint, in zoo order.

        Parameters
        ----------
        variant
            a name in ``variants`` other than ``raw``.
        """
        opened, rows = self._selection.variant_rows(variant)
        return self._contents.columns(opened.tree, opened.tree.rows.schema.names, rows)

    @checked
    def stream(
        self,
        *names: str,
        variant: str = layout.RAW,
        columns: str | Sequence[str] = (),
        batch_size: int = 256,
        shuffle: Shuffle = False,
        seed: int = 0,
        remainder: Remainder = "error",
        rank: int = 0,
        world_size: int = 1,
        device: Any = None,
        dtype: Any = None,
    ) -> Any:
        """Batches of stacked tensors, in an order that resumes exactly.

        Parameters
        ----------
        names
            tensors, or layers or modules for all their tensors; none for everything.
        variant
            the gauge.
        columns
            of the metadata, whose values come with each batch, ``batch["test_accuracy"]``: numbers and truth values as
            arrays of int64, float64 or bool, strings and times (of UTC) as lists. A missing value is NaN or None;
            integers and truth values are float64 (integers exact up to 2**53) where the zoo or selection lacks one.
            They change neither order nor state: a stream with other columns continues from it.
        batch_size
            checkpoints a batch.
        shuffle
            False; True (blocks across the zoo, then rows within a window of blocks: bounded memory and requests); or
            ``"global"``.
        seed
            of the order where it is shuffled; together with the epoch it decides the order.
        remainder
            what happens when the last rows make no equal shares for the ranks: ``"error"``, ``"keep"`` them as they
            come, ``"drop"`` them, or ``"pad"`` with the epoch's first rows.
        rank, world_size
            which reader of how many this is.
        device
            None for numpy; else torch tensors there, read one batch ahead (pinned, for CUDA).
        dtype
            float64, float32, float16 or bfloat16, to which tensors of floating-point numbers are cast when they are
            read; None leaves them as they are stored. The order and the state stay the same.

        Returns
        -------
        Any
            Stream, or TorchStream where a device is given: an iterable of Batch.

        Examples
        --------
        >>> zoo = ckptzoo.open("cards/mnist-optunet")
        >>> batch = next(iter(zoo.stream("conv1", columns=["test_accuracy"], batch_size=4)))
        >>> batch["conv1.weight"].shape, batch["test_accuracy"].shape
        ((4, 2, 1, 4, 4), (4,))
        """
        source = self.source(names, variant, columns, dtype)
        shard = ReaderShard(rank, world_size)
        stream = Stream(source, batch_size=batch_size, shuffle=shuffle, seed=seed, remainder=remainder, shard=shard)
        return stream if device is None else import_torch().TorchStream(stream, device)

    @checked
    def batches(
        self, *names: str, variant: str = layout.RAW, max_bytes: int = BATCH_BYTES, dtype: Any = None
    ) -> Iterator[Batch]:
        """Everything once, in zoo order, as many checkpoints at a time as fit into ``max_bytes``, and at least one.

        Parameters
        ----------
        names
            tensors, or layers or modules for all their tensors; none for everything.
        variant
            the gauge.
        max_bytes
            of the tensors in a batch.
        dtype
            as in ``stream``.

        Examples
        --------
        >>> zoo = ckptzoo.open("cards/mnist-optunet")
        >>> sum(len(batch.ids) for batch in zoo.batches("conv1")) == len(zoo)
        True
        """
        if not len(self):
            return iter(())
        readers = self.source(names, variant, dtype=dtype).readers.values()
        row_bytes = sum(int(np.prod(reader.shape)) * reader.dtype.itemsize for reader in readers)
        size = max(1, max_bytes // max(1, row_bytes))
        return iter(self.stream(*names, variant=variant, batch_size=size, remainder="keep", dtype=dtype))

    @checked
    def to_torch(
        self,
        *names: str,
        variant: str = layout.RAW,
        columns: str | Sequence[str] = (),
        batch_size: int = 256,
        shuffle: Shuffle = False,
        seed: int = 0,
        remainder: Remainder = "error",
        rank: int | None = None,
        world_size: int | None = None,
        dtype: Any = None,
    ) -> Any:
        """An IterableDataset of Batch for ``DataLoader(dataset, batch_size=None, num_workers=...)``.

        Its batches have ``batch_size`` checkpoints; a DataLoader with a batch size of its own raises ZooError.

        Parameters
        ----------
        names, variant, columns, batch_size, shuffle, seed, remainder, dtype
            as in ``stream``, and columns of numbers are torch tensors.
        rank, world_size
            by default those of ``torch.distributed`` where it is initialised, else one rank.

        Notes
        -----
        The order of every epoch follows from seed and epoch: call ``dataset.set_epoch(n)`` before epoch n, as with a
        ``DistributedSampler``. Workers of a DataLoader with ``persistent_workers=True`` see it too.
        """
        return import_torch().ZooDataset(
            self.source(names, variant, columns, dtype),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            remainder=remainder,
            rank=rank,
            world_size=world_size,
        )

    @checked
    def to_datasets(
        self,
        *names: str,
        variant: str = layout.RAW,
        columns: str | Sequence[str] = (),
        shards: int = 16,
        dtype: Any = None,
    ) -> Any:
        """A ``datasets.IterableDataset`` of ``{"id": ..., name: array, column: value}``, one example a checkpoint.

        Its ``features`` say the dtype and shape of every tensor and the type of every column.

        Parameters
        ----------
        names, variant, dtype
            as in ``stream``. bfloat16 comes as float32, because ``datasets`` does not have it.
        columns
            of the metadata; missing values are None, and times are texts such as ``2024-01-31T12:00:00+00:00``.
        shards
            pieces that ``datasets`` may hand to workers or nodes.

        Raises
        ------
        MissingExtraError
            ``datasets`` is not installed.
        """
        from ckptzoo.loader.datasets import iterable

        return iterable(self.source(names, variant, columns, dtype), shards=shards)

    @checked
    def to_xarray(
        self,
        *names: str,
        variant: str = layout.RAW,
        columns: str | Sequence[str] | None = None,
        dtype: Any = None,
    ) -> Any:
        """An ``xarray.Dataset`` of stacked tensors ``(checkpoint, ...)``, read when their numbers are needed.

        Axes are named by what they are: ``conv1.weight`` has ``conv1.out``, ``conv1.in``, ``conv1.height`` and
        ``conv1.width``, of which its bias shares ``conv1.out``. They follow the zoo's symmetry table, and for axes that
        it does not name PyTorch's weights (Keras' where they are called kernels); others are numbered, ``token.0``.

        Parameters
        ----------
        names
            tensors, or layers or modules for all their tensors; none for everything.
        variant
            the gauge.
        columns
            of the metadata, which become coordinates of the checkpoints beside their ids. Missing values are as in
            ``stream``, and times are datetime64. By default those of numbers and truth values, ``member``, ``method``
            and ``mode``, where they have values.
        dtype
            as in ``stream``.

        Returns
        -------
        Any
            xarray.Dataset. Where dask is installed its variables are dask arrays, in chunks of whole blocks, 64 MiB of
            the widest tensor; otherwise what is computed is read at once.

        Raises
        ------
        MissingExtraError
            xarray is not installed.
        ZooError
            A tensor has the name of a column or of the axis ``checkpoint``; the message says what to do.

        Examples
        --------
        >>> conv2 = ckptzoo.open("cards/mnist-optunet").to_xarray("conv2")
        >>> conv2["conv2.weight"].dims
        ('checkpoint', 'conv2.out', 'conv2.in', 'conv2.height', 'conv2.width')
        >>> conv2["conv2.weight"].where(conv2.test_accuracy > 0.91).mean("checkpoint").shape
        (10, 1, 5, 5)
        """
        labels = self._selection.labels() if columns is None else columns
        source = self.source(names, variant, labels, dtype)
        return _labelled("xarray").dataset(source, self.arch, self.symmetry, self._facts(variant))

    @checked
    def to_arviz(
        self,
        *names: str,
        variant: str = layout.RAW,
        columns: str | Sequence[str] | None = None,
        dtype: Any = "float64",
    ) -> Any:
        """An ``xarray.DataTree`` as ArviZ takes it: draws of one method, a chain for each mode, in the chain's order.

        Parameters
        ----------
        names
            tensors, or layers or modules for all their tensors; none for everything.
        variant
            the gauge. Chains wander between networks that differ by permutations alone; ArviZ compares numbers.
        columns
            of the metadata, for the group ``sample_stats``; by default those of numbers and truth values that have
            some, except what tells the chains.
        dtype
            as in ``stream``. ArviZ calculates in the dtype of the draws: folded float32 have ties that change R-hat in
            the second digit.

        Returns
        -------
        Any
            xarray.DataTree: in ``posterior`` the tensors, ``(chain, draw, ...)`` with axes as in ``to_xarray``, read
            when their numbers are needed. The coordinate ``chain`` has the modes; ``checkpoint`` and ``step``,
            ``(chain, draw)``, are ids and steps. Draws are in the order of their steps, and where these do not tell
            them in that of the column ``draw``, which may have been numbered so that the first are spread.

        Raises
        ------
        MissingExtraError
            xarray is not installed.
        ZooError
            They are not draws of one method, or not as many in each chain; the message says what to select.

        Examples
        --------
        >>> draws = ckptzoo.open("cards/mnist-optunet-posteriors").where("method == 'sghmc' and draw < 10")
        >>> tree = draws.to_arviz("fc.weight")
        >>> dict(tree.posterior.sizes)
        {'chain': 10, 'draw': 10, 'fc.out': 10, 'fc.in': 10}
        >>> tree.posterior.step[0, :4].values
        array([13630, 21150, 24910, 28670])
        """
        module = _labelled("arviz")
        asked = self._selection.labels() if columns is None else [columns] if isinstance(columns, str) else columns
        others = [name for name in asked if name not in module.OF_CHAINS]
        source = self.source(names, variant, [*module.OF_CHAINS, *others], dtype)
        return module.chains(source, self.arch, self.symmetry, self._facts(variant))

    def _facts(self, variant: str) -> dict[str, str]:
        """Where arrays come from."""
        return {"zoo": self.name, "revision": self.revision, "architecture": self.arch.name, "variant": variant}

    @checked
    def checkpoint(self, id: str, *, variant: str = layout.RAW) -> Checkpoint:
        """One checkpoint by its id.

        Parameters
        ----------
        id
            as in the column ``id``.
        variant
            the gauge.

        Raises
        ------
        UnknownNameError
            This zoo, or this selection of it, has no such checkpoint.
        """
        return self._selection.checkpoint(id, variant)

    @checked
    def at(
        self,
        member: str,
        step: Annotated[int, Within(0)],
        *,
        check: bool = True,
        recipe: str | Path | None = None,
        data: str | Path | None = None,
        max_seconds: Annotated[float, Within(0)] = MAX_SECONDS,
        max_bytes: Annotated[int, Within(1)] = MAX_BYTES,
    ) -> Checkpoint:
        """One member at any step of its training: where that was not kept, it is trained again up to there.

        Training begins at the nearest kept step before, where its weights are all that later steps depend on (without
        momentum, weights as trained); else at the beginning.

        Parameters
        ----------
        member
            as in the column ``member``.
        step
            optimiser steps taken.
        check
            go on to the next kept step, whose bits must come out.
        recipe
            the file or the name of its recipe; by default it is made from the member's row, whose digest it must have.
        data
            the folder of data sets; by default that of ``CKPTZOO_DATA``.
        max_seconds
            the most seconds of training; nothing that would take longer is trained to its end.
        max_bytes
            the most memory that training may take.

        Returns
        -------
        Checkpoint
            With the weights; of its row what all checkpoints of the training share. Nobody measured its figures.

        Raises
        ------
        UnknownNameError
            This zoo, or this selection of it, has no such member.
        IntegrityError
            The next kept step has other bits, or the row contradicts itself or the data.
        ZooError
            The training has no such step, the row does not say how it was trained, or this machine cannot train it.
        MissingExtraError
            What trains it is not installed.

        Examples
        --------
        >>> zoo = ckptzoo.open("zoos/toy")
        >>> zoo.column("step").unique().to_pylist(), zoo.at("toy-0430338b-000000", step=7).row["step"]
        ([400], 7)
        """
        options = RebuildOptions(recipe, data, max_seconds, max_bytes)
        return checkpoint_at(self, member, step, check=check, options=options)

    @checked
    def rebuild(
        self,
        members: Count | Sequence[str] = 1,
        *,
        seed: Seed | None = None,
        recipe: str | Path | None = None,
        data: str | Path | None = None,
        max_seconds: Annotated[float, Within(0)] = MAX_SECONDS,
        max_bytes: Annotated[int, Within(1)] = MAX_BYTES,
        threads: Count | None = None,
        progress: Progress | None = None,
    ) -> Rebuilt:
        """Train members again from what their rows say, and compare all of their checkpoints bit for bit.

        Weights must be equal to the bit, the columns of the training (recipe, step, epoch, data set, precision, ids of
        rows without a contributor) and the recipe in ``extra`` equal, and the figures equal but for rounding: within
        1e-5, accuracies also by one example in 30,000 or fewer, calibration errors by two. Who wrote a row, when, where
        from and how long it took are not compared.

        Parameters
        ----------
        members
            how many are drawn, or the names of some.
        seed
            of the draw; by default one that nobody knew before, which the result tells.
        recipe
            the file or the name of their recipe; by default it is made from each row, whose digest it must have.
        data
            the folder of data sets; by default that of ``CKPTZOO_DATA``.
        max_seconds
            the most seconds of training; what would take longer is not trained to its end, and says so.
        max_bytes
            the most memory that training may take.
        threads
            processor cores; by default all. No bit depends on it.
        progress
            called with the optimiser steps of all members that were taken, and their number.

        Raises
        ------
        UnknownNameError
            This zoo, or this selection of it, has no such member.
        MissingExtraError
            What trains them is not installed.

        Examples
        --------
        >>> found = ckptzoo.open("zoos/toy").rebuild(2, seed=0)
        >>> found.reproduced, found.members[0].differences
        (2, ())
        """
        options = RebuildOptions(recipe, data, max_seconds, max_bytes, threads)
        return rebuild(self, members, seed, options, progress)

    @checked
    def ensemble(
        self,
        *,
        limit: int | None = None,
        variant: str = layout.RAW,
        steps: str = "last",
        device: Any = None,
        dtype: Any = None,
    ) -> dict[str, Any]:
        """Stacked torch tensors ``{name: (N, *shape)}``, as ``torch.func.functional_call`` and ``vmap`` take them.

        Parameters
        ----------
        limit
            the largest number of checkpoints; the first in zoo order are taken.
        variant
            the gauge.
        steps
            ``"last"`` takes each member's last step, ``"all"`` every checkpoint.
        device
            where to; None leaves them on the pages of the file.
        dtype
            as in ``stream``; another than the stored one makes copies.

        Notes
        -----
        Where the rows are evenly spaced in one shard nothing is copied until it is written to, and writing never
        reaches the file or another reader.
        """
        if limit is not None and limit < 0:
            raise ZooError(Problem(self.name, "limit", "0 or more", str(limit), "Leave it out to take all."))
        if steps not in ("last", "all"):
            raise UnknownNameError(self.name, "steps", steps, ("last", "all"))
        zoo = (self.last_steps() if steps == "last" else self).take(slice(limit))
        opened, rows = zoo._selection.variant_rows(variant)
        # torch cannot protect a tensor from writing, so these maps belong to the caller alone
        torch, maps = import_torch(), ShardMaps()
        place = None if device is None else torch.device_of(device, self.name)
        stacked: dict[str, Any] = {}
        for tensor in self.arch.tensors:
            reader = cast_reader(opened.reader(tensor.name), dtype, self.name)
            stacked[tensor.name] = torch.tensor_of(reader.gather(rows, private=maps))
            for alias in tensor.aliases:
                stacked[alias] = stacked[tensor.name]
        return stacked if place is None else {name: tensor.to(place) for name, tensor in stacked.items()}

    def refresh(self) -> "Zoo":
        """The zoo as it is now, also where it was opened at a revision; a selection is not carried over."""
        files = self._contents.files
        if isinstance(files, RemoteFiles):
            contents = _contents_at(files.address, None, files.endpoint, files.token, files.follow)
        else:
            folder = files if isinstance(files, Folder) else Folder(self.path)
            contents = _contents_at(self.path, None, *folder.hub, folder.follow)
        return _of_all(contents)

    def source(
        self, names: Sequence[str], variant: str = layout.RAW, columns: str | Sequence[str] = (), dtype: Any = None
    ) -> Source:
        """The source of a stream of these tensors, layers and columns; of all tensors where there are no names.

        Parameters
        ----------
        names
            tensors, or layers or modules for all their tensors.
        variant
            the gauge.
        columns
            of the metadata.
        dtype
            as in ``stream``.
        """
        return self._selection.source(names, variant, columns, dtype)
