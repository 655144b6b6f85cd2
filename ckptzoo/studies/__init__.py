"""One question a folder: zoos to a frozen result that can print, plot and serialise itself."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptzoo.studies.discrepancy import mmd as mmd

_PUBLIC = {"mmd": "ckptzoo.studies.discrepancy"}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ckptzoo.studies' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
