"""Street View House Numbers, cropped digits, from ``train_32x32.mat`` and ``test_32x32.mat`` (Netzer et al., 2011)."""

from pathlib import Path
from typing import Any

import numpy as np

from ckptzoo.errors import IntegrityError, require
from ckptzoo.image_sets.image_set import ImageSet, KnownSet, file_error, first_line

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "double")


def read_mat(known: KnownSet, split: str, folder: Path) -> ImageSet | None:
    """``X`` (32, 32, 3, N) uint8 and ``y`` (N, 1) from 1 to 10, where 10 is the digit 0; see ``Form``."""
    path = folder / f"{split}_32x32.mat"
    if not path.is_file():
        return None
    io = require("scipy.io", "hub", package="scipy")
    try:
        # names, shapes and types alone, so that what is not expected is never unpacked
        variables = {name: (tuple(shape), kind) for name, shape, kind in io.whosmat(str(path))}
        count = known.counts.get(split, variables.get("y", ((0,), ""))[0][0])
        side = known.size
        for name, shape, kinds in (("X", (side, side, 3, count), ("uint8",)), ("y", (count, 1), _INTEGERS)):
            found = variables.get(name)
            if found is None or found[0] != shape or found[1] not in kinds:
                expected = f"{kinds[0] if len(kinds) == 1 else 'numbers'} {shape}"
                got = "none" if found is None else f"{found[1]} {found[0]}"
                raise file_error(path, f"variable {name}", expected, got, known.step)
        content: Any = io.loadmat(str(path), variable_names=["X", "y"])
    except IntegrityError:
        raise
    # scipy raises errors of its own, those of zlib, ValueError, TypeError and NotImplementedError
    except Exception as error:
        raise file_error(path, "file", "a MATLAB file of version 5", first_line(error), known.step) from error
    labels = np.asarray(content["y"]).reshape(-1)
    if not ((labels >= 1) & (labels <= 10) & (labels == np.floor(labels))).all():
        expected, got = "digits as 1 to 10, where 10 is 0", f"{labels.min()} to {labels.max()}"
        raise file_error(path, "labels", expected, got, known.step)
    images = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))
    return known.image_set(split, images, labels.astype(np.int64) % 10, path.name)
