"""``materialize``: the weights that a zoo refers to, copied into a zoo that holds them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_contents, read_documents
from ckptzoo.hub.pull.selection import ALL, PullSelection
from ckptzoo.hub.pull.subset import extract
from ckptzoo.loader.selection import standing
from ckptzoo.loader.zoo import Followed, files_at
from ckptzoo.schema.documents import JsonFields
from ckptzoo.text import Progress


@dataclass(frozen=True)
class Materialized(JsonFields):
    """The result of ``materialize``.

    Parameters
    ----------
    folder
        where the zoo is.
    checkpoints
        how many it holds now.
    parts
        the parts that this call wrote, as paths from the zoo's folder.
    there
        how many parts were there already.
    nbytes
        the bytes of weights that this call copied.
    """

    folder: Path
    checkpoints: int
    parts: tuple[str, ...]
    there: int
    nbytes: int


@checked
def materialize(
    path: str | Path,
    to: str | Path,
    *,
    layers: str | Sequence[str] | None = None,
    where: Any = None,
    follow: Followed = None,
    progress: Progress | None = None,
) -> Materialized:
    """Copy the weights that a zoo refers to, or some of them, into a new zoo that holds them.

    What was derived of the checkpoints is copied too, with stored predictions, splits and, where all layers are
    copied, landscape figures. Releases and marks of reproduction are statements about the zoo as it is, and stay with
    it. The zoo itself stays as it is.

    Parameters
    ----------
    path
        the folder of a zoo that ``ckptzoo.link_zoo`` made.
    to
        the new zoo's folder: it is not there, is empty, or holds what an earlier call with the same options wrote.
    layers
        modules and tensors, as ``Zoo.stream`` takes them; all without. The result then has no forward function and no
        table of symmetries, and its variants hold weights and no group elements.
    where
        a condition on the metadata, as ``Zoo.where`` takes it. Retracted checkpoints are left out.
    follow
        as ``ckptzoo.open`` takes it.
    progress
        called with the bytes that were copied, and those to be copied.

    Raises
    ------
    IntegrityError
        A file is not the one that was linked, or its bytes are not those that were read before; it is named, and
        nothing of its part is written.
    ZooError
        The zoo holds its weights, or the folder something else; or nothing is selected.

    Notes
    -----
    Without ``layers`` and ``where`` the parts are those that ``import_zoo`` would write of the same files, to the last
    bit. A call that was interrupted is continued by the same call: a part that is there is not written again.

    Examples
    --------
    >>> _ = ckptzoo.link_zoo("net.safetensors", "zoos/referring", arch="optunet", license="CC-BY-4.0")
    >>> done = ckptzoo.materialize("zoos/referring", "zoos/held", layers="fc")
    >>> done.checkpoints, ckptzoo.open("zoos/held").arch.names
    (1, ('fc.weight', 'fc.bias'))
    """
    files = files_at(Path(os.fspath(path)).absolute(), None, None, follow)
    assert isinstance(files, Folder)
    identity, _, _ = read_documents(files)
    if not identity.references:
        step = "It is complete as it is; ckptzoo pull copies a zoo, or a part of one."
        raise ZooError(Problem(str(path), "zoo", "one that refers to files of others", "one with its weights", step))
    root = Path(to).absolute()
    parts, there, nbytes = extract(files, PullSelection.of(None, layers, where, ALL), root, progress)
    return Materialized(root, len(standing(read_contents(Folder(root)))), tuple(parts), there, nbytes)
