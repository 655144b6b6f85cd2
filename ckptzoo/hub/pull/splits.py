"""Splits, releases, marks and figures of a pulled zoo; splits of a part of one name the same members and ids."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ckptzoo.format.durable import write_file
from ckptzoo.format.files import Files, Folder
from ckptzoo.format.landscapes import LandscapeFile, add_landscape, read_landscapes
from ckptzoo.format.reader import read_contents
from ckptzoo.format.splits import read_split, split_names
from ckptzoo.format.tree import places_of
from ckptzoo.schema import release as release_format
from ckptzoo.schema import reproduction as reproduction_format
from ckptzoo.schema.documents import Identity, digest_of
from ckptzoo.schema.layout import release_file, split_file
from ckptzoo.schema.release import Release
from ckptzoo.schema.reproduction import Reproduction
from ckptzoo.schema.split import Split, encode


def read_splits(files: Files, identity: Identity) -> tuple[Split, ...]:
    """Return every split of a zoo; raise ``IntegrityError`` where one is damaged, or that of another zoo."""
    return tuple(read_split(files, name, identity) for name in split_names(files))


def write_splits(root: Path, splits: Sequence[Split], identity: Identity) -> None:
    """Write splits into a pulled zoo; one that exists under the name of another stays, with a warning.

    ``identity`` is that of the pulled zoo, which is another one's where tensors were left out.
    """
    for split in splits:
        own = dataclasses.replace(split, zoo=digest_of(identity.to_json()))
        _write(root / split_file(split.name), encode(own), f"split {split.name!r}")


def write_releases(root: Path, releases: Sequence[Release]) -> None:
    """Write releases of a zoo of which all checkpoints were pulled; one that exists stays, with a warning."""
    for release in releases:
        _write(root / release_file(release.name), release_format.encode(release), f"release {release.name!r}")


def write_marks(root: Path, marks: Sequence[Reproduction]) -> None:
    """Write marks of a zoo of which all checkpoints were pulled; one that exists has the same bytes by its name."""
    for mark in marks:
        _write(root / mark.file, reproduction_format.encode(mark), f"mark {mark.file!r}")


def write_landscapes(root: Path, figures: Sequence[LandscapeFile]) -> None:
    """Write landscape figures of a zoo of which all checkpoints were pulled, with the bytes that they have there."""
    for one in figures:
        _write(root / one.file, one.data, f"table of figures {one.file!r}")


def copy_figures(root: Path, figures: Sequence[LandscapeFile], taken: Mapping[str, str]) -> None:
    """Write landscape figures of checkpoints whose parts were written again, for those that lack them.

    ``taken`` has for digests of raw parts of the zoo of the figures those of the parts in ``root`` taken from them.
    """
    if not figures:
        return
    contents = read_contents(Folder(root))
    parts, known = contents.raw.parts, dict[str, set[str]]()
    digests = np.repeat([part.digest for part in parts], [part.rows for part in parts])
    for one in read_landscapes(contents.files, contents.identity):
        known.setdefault(one.set, set()).update(one.rows["id"].to_pylist())
    for one in figures:
        places, listed = places_of(one.rows["id"], contents.ids), one.rows.select(["id", "unit"]).to_pylist()
        kept = [
            at
            for at, (place, row) in enumerate(zip(places.tolist(), listed, strict=True))
            if place >= 0 and taken.get(row["unit"]) == digests[place] and row["id"] not in known.get(one.set, ())
        ]
        if kept:
            rows = one.rows.take(pa.array(kept, pa.int64()))
            units = pa.array(digests[places[kept]].tolist(), pa.string())
            rows = rows.set_column(rows.schema.get_field_index("unit"), "unit", units)
            own = ("format", "version", "kind", "zoo", "seal")
            add_landscape(root, rows, {name: value for name, value in one.facts.items() if name not in own})


def _write(path: Path, data: bytes, name: str) -> None:
    if path.is_file() and path.read_bytes() != data:
        note = f"{path}: another {name} is here already; it stays, and the zoo's was not pulled."
        warnings.warn(note, UserWarning, stacklevel=6)  # at the caller of pull
    elif not path.is_file():
        path.parent.mkdir(exist_ok=True)
        write_file(path, data)
