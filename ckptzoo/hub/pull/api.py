"""``pull``, and ``Pulled``, what it reports."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptzoo.arguments import checked
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import Contents, list_trees, read_contents
from ckptzoo.hub.pull.mirror import mirror
from ckptzoo.hub.pull.selection import PullSelection
from ckptzoo.hub.pull.subset import extract
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.selection import standing
from ckptzoo.remote import open_remote
from ckptzoo.schema import layout
from ckptzoo.schema.documents import JsonFields
from ckptzoo.text import Progress


@dataclass(frozen=True)
class Pulled(JsonFields):
    """The result of ``pull``.

    Parameters
    ----------
    address, revision
        what was pulled, and the commit or digest that it was pinned to.
    folder
        where it is.
    checkpoints
        how many the folder holds now.
    variants
        ``raw``, where the weights as trained are among them, and the gauges.
    parts
        the parts that this call brought, as paths from the zoo's folder.
    there
        how many parts were there already.
    fetched
        bytes that were fetched, without what was read to open the zoo.
    predicted
        the sets of inputs whose outputs the folder holds.
    left_out
        the sets of inputs whose outputs the zoo holds, and the folder does not.
    """

    address: str
    revision: str
    folder: Path
    checkpoints: int
    variants: tuple[str, ...]
    parts: tuple[str, ...]
    there: int
    fetched: int
    predicted: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@checked
def pull(
    address: str | os.PathLike[str],
    folder: str | Path,
    *,
    variants: str | Sequence[str] | None = None,
    layers: str | Sequence[str] | None = None,
    where: Any = None,
    predictions: str | Sequence[str] | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
) -> Pulled:
    """Fetch a zoo, or a part of one that is itself a zoo.

    Without ``layers`` and ``where``, and with the weights as trained, every part is copied byte for byte. Otherwise
    parts are written again: they hold the selected checkpoints, tensors and variants, each with its metadata, and name
    the part that they were taken from. The same call repeated later brings what has been added since.

    Parameters
    ----------
    address
        as ``ckptzoo.open`` takes it.
    folder
        where to; it is not there, is empty, or holds what an earlier call with the same options brought.
    variants
        ``raw`` and gauges; all without. Without ``raw`` the weights as trained are left out.
    layers
        modules and tensors, as ``Zoo.stream`` takes them; all without. The result then has no forward function and no
        table of symmetries, and its variants hold weights and no group elements.
    where
        a condition on the metadata, as ``Zoo.where`` takes it. Retracted checkpoints are left out.
    predictions
        sets of inputs such as ``mnist/test`` whose stored outputs are kept, or ``"all"``. Without, all of them where
        nothing else is left out, and else none.
    endpoint, token
        of the hub; by default those of huggingface_hub. The token is stored nowhere.
    progress
        called with the bytes that this call has put in place, and the bytes that it has to bring in all.

    Raises
    ------
    AbsentError
        There is no such zoo.
    UnknownNameError
        The zoo has no such variant, layer or column.
    ZooError
        The folder holds something else or another selection, or another pull is at work there; or nothing is selected.
    IntegrityError
        The bytes that came are not those that were promised. None of them is in the zoo.
    RemoteError
        The network was gone for longer than the retry policy allows. What was fetched is kept.
    OSError
        The disk is full; the message says how many bytes are needed. What was fetched is kept.

    Notes
    -----
    From the first part on, the folder is a valid zoo at every moment. A call that was interrupted, in whatever way, is
    continued by the same call, which fetches only the blocks that are missing. Every block, file and table is compared
    with its digest before the part that holds it appears. Memory: a few blocks, and the rows and index of the zoo.
    Disk: the result, and where parts are written again the blocks of one part beside it. Tested in ``tests/hub/pull``.

    Examples
    --------
    >>> pulled = ckptzoo.pull("lab/optunets", "zoos/last-layer", layers=["fc"], where="test_accuracy > 0.88")
    >>> pulled.checkpoints
    11
    >>> ckptzoo.open("zoos/last-layer").arch.names
    ('fc.weight', 'fc.bias')
    """
    selection, root = PullSelection.of(variants, layers, where, predictions), Path(folder).absolute()
    remote = open_remote(address, endpoint=endpoint, token=token)
    files = RemoteFiles(remote, os.fspath(address), endpoint, token)
    fetch = mirror if selection.includes_raw and layers is None and where is None else extract
    parts, already, fetched_bytes = fetch(files, selection, root, progress)
    contents = read_contents(Folder(root))
    # a part that is bare has rows and no weights (docs/format.md)
    raw_parts = [part for part in contents.raw.parts if part.facts.get("bare") is not True]
    gauges = [name for name in contents.derived_parts if contents.kind(name) == "variant"]
    return Pulled(
        remote.name,
        remote.revision,
        root,
        len(standing(contents)),
        (*((layout.RAW,) if raw_parts else ()), *gauges),
        tuple(parts),
        already,
        fetched_bytes,
        *(tuple(sorted(names)) for names in _sets(list_trees(files), contents)),
    )


def _sets(trees: Iterable[str], contents: Contents) -> tuple[set[str], set[str]]:
    """Return the sets of inputs whose outputs the folder holds, and those of the zoo that were left out."""
    here, there = (
        {name for tree in names if (name := layout.set_name(tree.removeprefix(f"{layout.DERIVED}/"))) is not None}
        for names in (contents.derived_parts, trees)
    )
    return here, there - here
