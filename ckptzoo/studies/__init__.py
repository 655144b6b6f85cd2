"""One question a module: from zoos to a frozen result that prints itself, draws itself and becomes JSON.

Each study is a function of its module's name (``ckptzoo.studies.mass.mass``) and a command; ``mmd``, which compares
two zoos, is here too. The numerics that a study needs are in modules of their own beside it, pictures in ``plots``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptzoo.studies.discrepancy import mmd as mmd

# resolved by __getattr__ when it is asked for, so that importing the package stays light
_PUBLIC = {"mmd": "ckptzoo.studies.discrepancy"}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ckptzoo.studies' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
