"""Time and energy that a device spends on training."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

Counter = Callable[[], float | None]
"""A function that returns the joules a device has used since some moment in the past; None where they are not counted.
"""


@dataclass(frozen=True)
class Spent:
    """The time and energy of training; ``+`` adds, and an unknown term makes the sum unknown. Both are those of the
    device, the joules whatever else ran on it at the time; None where unknown.
    """

    seconds: float = 0.0
    joules: float | None = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        joules = None if self.joules is None or other.joules is None else self.joules + other.joules
        return Spent(self.seconds + other.seconds, joules)


def spent(work: Callable[[], object], counter: Counter) -> Spent:
    """Do some work, which ends when the device is done with it, and return its time and energy."""
    first, began = counter(), time.monotonic()
    work()
    seconds, last = time.monotonic() - began, counter()
    return Spent(seconds, None if first is None or last is None else last - first)


@contextmanager
def counter_of(device: str) -> Iterator[Counter]:
    """Open the counter of a CUDA device, read through NVML (extra ``gpu``).

    ``device`` is ``"cpu"``, ``"cuda"`` or ``"cuda:1"``. The counter returns None for a CPU, without the package or the
    driver's library, and for a device that does not count (those before Volta, and slices of one).

    ``nvmlDeviceGetTotalEnergyConsumption``: millijoules of the whole board since the driver was loaded.
    """
    nvml = _library() if device.startswith("cuda") else None
    if nvml is None:
        # training goes on, and its rows have no energy
        yield _unknown
        return
    try:
        yield _reader(nvml, device)
    finally:
        nvml.nvmlShutdown()


def _library() -> Any | None:
    """Return NVML, initialised; None where there is none."""
    try:
        # the module of the package nvidia-ml-py
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        # fails where there is no driver, as in a container without the device
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _reader(nvml: Any, device: str) -> Counter:
    """Return the counter of a device, found by its UUID: torch and NVML may number devices differently."""

    def read() -> float | None:
        try:
            # NVML counts millijoules
            return nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
        # drivers refuse the call on cards before Volta and on slices of a card (MIG); time is counted all the same
        except nvml.NVMLError:
            return None

    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except nvml.NVMLError:
        return _unknown
    return read


def _unknown() -> None:
    return None
