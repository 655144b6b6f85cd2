"""One question a module: from zoos to a frozen result that prints itself, draws itself and becomes JSON.

Each study is a function of its module's name (``ckptzoo.studies.mass.mass``) and a command; ``mmd``, which compares
two zoos, is here too. The numerics that a study needs are in modules of their own beside it, pictures in ``plots``.
"""

from typing import TYPE_CHECKING

from ckptzoo.lazy_names import lazy_names

__all__ = ["StudyResult", "mmd"]

if TYPE_CHECKING:
    from ckptzoo.studies.discrepancy import mmd as mmd
    from ckptzoo.studies.shared.result import StudyResult as StudyResult

__getattr__, __dir__ = lazy_names(
    __name__, {"StudyResult": "ckptzoo.studies.shared.result", "mmd": "ckptzoo.studies.discrepancy"}
)
