"""What bounds the training of OptuNets on a machine: its arithmetic and its memory, measured here and now."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_SIDE = {"cpu": 2048, "cuda": 8192}
"""Of the matrices whose product tells the arithmetic."""
_COPIED = {"cpu": 2**28, "cuda": 2**32}
"""Bytes whose copy tells the memory's speed."""
_REPEATS = 5
_WINDOWS, _PLACES, _TAPS1, _TAPS2 = 64, 16, 16, 25
_CHANNELS, _OUTPUTS, _CLASSES, _WEIGHTS = 2, 10, 10, 392
_USED = 27


@dataclass(frozen=True)
class Limits:
    """How fast a member-step can be at best.

    Parameters
    ----------
    flop
        float32 operations that a member-step needs, multiplications and additions counted apart.
    nbytes
        bytes that a member-step moves to and from memory when everything else stays in caches or registers.
    flop_rate
        operations a second of a float32 matrix product on this device, all cores.
    byte_rate
        bytes a second that a copy reads and writes on this device, all cores.
    """

    flop: int
    nbytes: int
    flop_rate: float
    byte_rate: float

    @property
    def arithmetic(self) -> float:
        """Member-steps a second, if nothing but arithmetic took time."""
        return self.flop_rate / self.flop

    @property
    def memory(self) -> float:
        """Member-steps a second, if nothing but memory took time."""
        return self.byte_rate / self.nbytes

    def to_json(self) -> dict[str, Any]:
        """Everything, and the two bounds."""
        return {**vars(self), "arithmetic_bound": self.arithmetic, "memory_bound": self.memory}


def limits(batch: int, device: str) -> Limits:
    """Those of a device, for OptuNets and batches of so many images."""
    flop_rate, byte_rate = _rates(device)
    return Limits(flop_of(batch), bytes_of(batch), flop_rate, byte_rate)


def flop_of(batch: int) -> int:
    """Operations of a member-step by direct convolution, forward and backward, exponentials and comparisons left out.

    Forward: the first convolution at the 9 positions of each pooling window and of both channels, the second, the head.
    Backward: the first convolution's weights at the one position of each window that was the maximum; the second's
    weights and its input; the head's weights and its input. A multiplication and an addition count as two.
    """
    pooled = _CHANNELS * _WINDOWS
    first, second, head = pooled * 9 * _TAPS1, _OUTPUTS * _PLACES * _TAPS2, _OUTPUTS * _CLASSES
    return 2 * batch * (first + second + head + pooled * _TAPS1 + 2 * second + 2 * head)


def bytes_of(batch: int) -> int:
    """The pixels that pooling leaves in use, a byte each, and the weights, read and written in float32."""
    return batch * _USED**2 + 2 * 4 * _WEIGHTS


def _rates(device: str) -> tuple[float, float]:
    return product_rate(device), copy_rate(device)


def product_rate(device: str, dtype: torch.dtype = torch.float32, side: int | None = None) -> float:
    """Operations a second of a product of square matrices; a multiplication and an addition count as two."""
    side = side or _SIDE[_kind(device)]
    one, two = (torch.rand(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(one)
    return 2 * side**3 / _fastest(lambda: torch.mm(one, two, out=out), device)


def product_steps(device: str, flop: int) -> Callable[[int], float]:
    """A function of a number of member-steps that returns the seconds of their arithmetic in products of matrices."""
    side = _SIDE[_kind(device)]
    one, two = (torch.rand(side, side, device=device) for _ in range(2))
    out = torch.empty_like(one)

    def take(count: int) -> float:
        products = max(1, round(count * flop / (2 * side**3)))
        began = time.perf_counter()
        for _ in range(products):
            torch.mm(one, two, out=out)
        if _kind(device) == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began) * count * flop / (products * 2 * side**3)

    return take


def copy_rate(device: str) -> float:
    """Bytes a second that a copy within the device's memory reads and writes."""
    source = torch.zeros(_COPIED[_kind(device)], dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    return 2 * len(source) / _fastest(lambda: target.copy_(source), device)


def _kind(device: str) -> str:
    return device.partition(":")[0]


def _fastest(call: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of a few calls after one that does not count."""
    found: list[float] = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        call()
        if _kind(device) == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - began)
    return min(found[1:])
