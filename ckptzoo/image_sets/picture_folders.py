"""TinyImageNet and Describable Textures from the folders of JPEG files that their archives unpack to."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ckptzoo.image_sets.image_set import ImageSet, KnownSet, Labels, file_error, first_line
from ckptzoo.image_sets.pictures import EncodedPicture, Shape, decode_to_cache

_TEXTURES_SIZE = 64
_TEXTURE = re.compile(r".+_\d+\.jpg", re.IGNORECASE)
_VALIDATION = re.compile(r"val_\d+\.JPEG")


def read_tiny_imagenet(known: KnownSet, split: str, folder: Path) -> ImageSet | None:
    """``train/<class>/images/<class>_<number>.JPEG`` by class and number; the test set is ``val``; see ``Form``.

    Labels are the places of classes in ``wnids.txt``. The order of the test set is that of ``val_annotations.txt``;
    the archive's own test set has no labels.
    """
    listing = folder / "wnids.txt"
    if not listing.is_file():
        return None
    wnids = _lines(known, listing)
    known.check_class_names(wnids, listing.name)
    paths, labels = _train_files(known, wnids, folder) if split == "train" else _test_files(known, wnids, folder)
    where = f"{folder.name}/{'train' if split == 'train' else 'val'}"
    return _decoded(known, split, paths, labels, Shape(known.size or 64), folder, where)


def read_textures(known: KnownSet, split: str, folder: Path) -> ImageSet | None:
    """``images/<class>/<class>_<number>.jpg``, all of them whatever the split, by name, scaled to 64x64; see ``Form``.
    The aspect is not kept. Labels are the places of the classes in the order of their names.
    """
    root = folder / "images"
    if split != "test" or not known.is_named_by(folder) or not root.is_dir():
        return None
    # a folder lists its entries in any order
    names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    known.check_class_names(names, f"{folder.name}/images")
    paths, labels = _listed(
        (number, sorted(path for path in (root / name).iterdir() if _TEXTURE.fullmatch(path.name)))
        for number, name in enumerate(names)
    )
    shape = Shape(known.size or _TEXTURES_SIZE, scaled=True)
    return _decoded(known, split, paths, labels, shape, folder, f"{folder.name}/images")


def _decoded(
    known: KnownSet, split: str, paths: list[Path], labels: Labels, shape: Shape, folder: Path, where: str
) -> ImageSet:
    count = known.counts.get(split, len(paths))
    if len(paths) != count:  # before anything is decoded
        raise file_error(where, f"{split} images", f"{count:,}", f"{len(paths):,}", known.step)
    pictures = [EncodedPicture(path.relative_to(folder).as_posix(), path) for path in paths]
    return known.image_set(split, decode_to_cache(pictures, shape), labels, where)


def _train_files(known: KnownSet, wnids: list[str], folder: Path) -> tuple[list[Path], Labels]:
    def files() -> Iterator[tuple[int, list[Path]]]:
        for number, wnid in enumerate(wnids):
            images = folder / "train" / wnid / "images"
            name = re.compile(rf"{re.escape(wnid)}_(\d+)\.JPEG")
            try:
                found = [matched for entry in os.scandir(images) if (matched := name.fullmatch(entry.name))]
            except OSError as error:
                where = f"{folder.name}/train/{wnid}/images"
                raise file_error(where, "folder", "the images of a class", first_line(error), known.step) from error
            # by number, because 10 is before 2 among names
            yield number, [images / matched[0] for matched in sorted(found, key=lambda item: int(item[1]))]

    return _listed(files())


def _test_files(known: KnownSet, wnids: list[str], folder: Path) -> tuple[list[Path], Labels]:
    listing = folder / "val" / "val_annotations.txt"
    number_of = {wnid: number for number, wnid in enumerate(wnids)}
    paths: list[Path] = []
    labels: list[int] = []
    for number, line in enumerate(_lines(known, listing), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if not _VALIDATION.fullmatch(name) or wnid not in number_of:
            expected = "val_<number>.JPEG and a class of wnids.txt"
            raise file_error(listing, f"line {number}", expected, repr(line[:40]), known.step)
        paths.append(folder / "val" / "images" / name)
        labels.append(number_of[wnid])
    if len(set(paths)) != len(paths):
        raise file_error(listing, "images", "each once", "one twice", known.step)
    return paths, np.array(labels, np.int64)


def _listed(files: Iterator[tuple[int, list[Path]]]) -> tuple[list[Path], Labels]:
    paths: list[Path] = []
    counts: list[tuple[int, int]] = []
    for number, found in files:
        paths += found
        counts.append((number, len(found)))
    numbers, repeats = np.array(counts, np.int64).reshape(-1, 2).T
    return paths, np.repeat(numbers, repeats)


def _lines(known: KnownSet, path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise file_error(path, "file", "a text", first_line(error), known.step) from error
