"""Tensors that overlap within what is stored: copied where they are few, refused before any copy where they are many."""

import io
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted import Limits
from ckptzoo.hub.untrusted.process import ReadingProcess
from ckptzoo.hub.untrusted.protocol import Job
from tests.support.effort import examples

LIMITS = Limits(always_allowed=2**14)


def saved(value: object) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


class Shared:
    """Pickled as an array of numpy whose bytes other arrays have too."""

    def __init__(self, data: bytes, shape: tuple[int, ...]) -> None:
        self.data, self.shape = data, shape

    def __reduce__(self) -> Any:
        empty = np.zeros(0, "f4").__reduce__()
        return empty[0], empty[1], (1, self.shape, np.dtype("f4"), False, self.data)


class Nested:
    """Pickled as a file of torch.save within a pickle, as tensors of a module are."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.data = saved(tensor)

    def __reduce__(self) -> Any:
        return getattr(torch.storage, "_load_from_bytes"), (self.data,)  # noqa: B009


def some_views(draw: random.Random, base: torch.Tensor) -> list[torch.Tensor]:
    """Views of a storage of which none is another one."""
    found: list[torch.Tensor] = [base]
    for number in range(draw.choice((0, 1, 5, 8, 20))):
        match draw.randrange(3):
            case 0:
                found.append(base[number + 1 :])
            case 1:
                found.append(base[: -number - 1].reshape(1, -1).t())
            case _:
                found.append(base[:1].expand(draw.randrange(2, 3000) + 3000 * number))
    return found


def written(draw: random.Random, kind: str) -> tuple[bytes, int, int]:
    """A file, the bytes of its tensors written out, and of what is stored of them."""
    size = draw.choice((100, 1000, 5000))
    if kind == "bytes":
        data, count = np.arange(size, dtype="f4").tobytes(), draw.randrange(1, 20)
        content: dict[str, Any] = {f"w{at}": Shared(data, (size,)) for at in range(count)}
        return pickle.dumps(content), count * len(data), len(data)
    bases = [torch.arange(float(size)) for _ in range(draw.randrange(1, 4))]
    views = [view for base in bases for view in some_views(draw, base)]
    shown = sum(4 * view.numel() for view in views)
    if kind == "storage":
        return saved({f"w{at}": view for at, view in enumerate(views)}), shown, 4 * size * len(bases)
    return pickle.dumps({f"w{at}": Nested(view) for at, view in enumerate(views)}), shown, 4 * size * len(views)


def read(files: list[bytes], file_format: str) -> tuple[list[Any], list[Any]]:
    jobs = [Job(str(number), file_format, len(data), strict=False) for number, data in enumerate(files)]
    with ReadingProcess(LIMITS) as process:
        return process.read(jobs, files)


@pytest.mark.parametrize("kind", ["storage", "bytes", "nested"])
def test_what_is_written_out_is_bounded_by_what_is_stored(kind: str) -> None:
    made = [written(random.Random(number), kind) for number in range(examples(20))]
    answers, arrays = read([data for data, *_ in made], "torch" if kind == "storage" else "pickle")
    outcomes = set[bool]()
    for answer, (_, shown, stored) in zip(answers, made, strict=True):
        refused = isinstance(answer, IntegrityError)
        if refused:
            assert "at most 8 times" in str(answer) and "x.clone()" in str(answer), answer
        else:
            assert sum(arrays[at].nbytes for at in answer[0].tensor_indices) == shown
        # a file within another is refused by its own size
        assert refused == (shown > max(LIMITS.always_allowed, LIMITS.views * stored)) or kind == "nested"
        outcomes.add(refused)
    assert outcomes == {True, False}


def test_tied_tensors_count_once() -> None:
    base = torch.arange(10_000.0)
    (answer,), arrays = read([saved({f"w{number}": base for number in range(50)})], "torch")
    assert len(answer[0].tensor_indices) == 50 and len(arrays) == 1
