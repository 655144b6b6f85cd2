"""A pull of a collection: every zoo of it, then the table of all rows."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from ckptzoo.arguments import checked
from ckptzoo.errors import SpecError
from ckptzoo.hub.card import write
from ckptzoo.hub.pull.api import Pulled, pull
from ckptzoo.hub.pull.page import read_card_files, write_if_changed
from ckptzoo.hub.pull.selection import PullSelection
from ckptzoo.loader.collection import open_collection, write_collection
from ckptzoo.schema import layout
from ckptzoo.text import Progress


@checked
def pull_collection(
    address: str | os.PathLike[str],
    folder: str | Path,
    *,
    variants: str | Sequence[str] | None = None,
    where: str | None = None,
    predictions: str | Sequence[str] | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
) -> tuple[Pulled, ...]:
    """Fetch the zoos of a collection, each as ``pull`` does, its card, and write the collection of what came.

    Parameters
    ----------
    address, endpoint, token
        as ``open_collection`` takes them.
    folder
        where to; each zoo gets a folder in it.
    variants, where, predictions
        as ``pull`` takes them, for every zoo; zoos in which a condition selects nothing are left out.
    progress
        called for each zoo in turn.

    Raises
    ------
    IntegrityError
        It is no collection, or the bytes that came are not those that were promised.
    ZooError, RemoteError, OSError
        As ``pull``.

    Notes
    -----
    A call that was interrupted is continued by the same call. The collection is written last: until then an earlier
    one in the folder says that its zoos have changed. Pulled whole, its files have the bytes of the source's.

    Examples
    --------
    >>> pulled = ckptzoo.pull_collection("lab/zoos", "pulled", where="method == 'swag'")
    >>> [(zoo.folder.name, zoo.checkpoints) for zoo in pulled]
    [('draws', 4)]
    """
    collection, root = open_collection(address, endpoint=endpoint, token=token), Path(folder).absolute()
    chosen = collection if where is None else collection.where(where)
    pulled: list[Pulled] = []
    for name in chosen.zoos:
        how = {"variants": variants, "where": where, "predictions": predictions, "progress": progress}
        zoo_address = collection.address_of(name)
        pulled.append(pull(zoo_address, root / name, endpoint=endpoint, token=token, **how))
    if pulled:
        write_collection(root)
        is_whole = PullSelection.of(variants, None, where, predictions).is_everything
        _write_page(read_card_files(collection.files), root, is_whole=is_whole)
    return tuple(pulled)


def _write_page(card_files: dict[str, bytes], root: Path, *, is_whole: bool) -> None:
    """Write card and pictures, and the page: where everything came as it is, else made of what came."""
    for name, data in card_files.items():
        if name != layout.README or is_whole:
            (root / name).parent.mkdir(exist_ok=True)
            write_if_changed(root / name, data)
    if layout.README in card_files and not is_whole:
        try:
            write(root)
        except SpecError as error:
            warnings.warn(f"{error} The pull goes on without the page.", UserWarning, stacklevel=4)
