"""The splits of a pulled zoo; those of a part of one name the same members and ids."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path

from ckptzoo.format.durable import write_file
from ckptzoo.format.files import Files
from ckptzoo.format.splits import read_split, split_names
from ckptzoo.schema.documents import Identity, digest_of
from ckptzoo.schema.layout import split_file
from ckptzoo.schema.split import Split, encode


def read_splits(files: Files, identity: Identity) -> tuple[Split, ...]:
    """Return every split of a zoo; raise ``IntegrityError`` where one is damaged, or that of another zoo."""
    return tuple(read_split(files, name, identity) for name in split_names(files))


def write_splits(root: Path, splits: Sequence[Split], identity: Identity) -> None:
    """Write splits into a pulled zoo; one that exists under the name of another stays, with a warning.

    ``identity`` is that of the pulled zoo, which is another one's where tensors were left out.
    """
    for split in splits:
        path, data = (
            root / split_file(split.name),
            encode(dataclasses.replace(split, zoo=digest_of(identity.to_json()))),
        )
        if path.is_file() and path.read_bytes() != data:
            note = f"{path}: another split {split.name!r} is here already; it stays, and the zoo's was not pulled."
            warnings.warn(note, UserWarning, stacklevel=5)  # at the caller of pull
        elif not path.is_file():
            path.parent.mkdir(exist_ok=True)
            write_file(path, data)
