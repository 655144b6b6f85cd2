"""Imports published zoos, in the formats of the literature and any other checkpoint files."""

from ckptzoo.hub.imports.adapters import ADAPTERS, Options
from ckptzoo.hub.imports.link import link_zoo
from ckptzoo.hub.imports.plan import ImportPlan, PlannedFile, plan_import
from ckptzoo.hub.imports.report import ImportResult
from ckptzoo.hub.imports.run import import_zoo
from ckptzoo.hub.imports.split_lists import import_order, import_split

__all__ = [
    "ADAPTERS",
    "ImportPlan",
    "ImportResult",
    "Options",
    "PlannedFile",
    "import_order",
    "import_split",
    "import_zoo",
    "link_zoo",
    "plan_import",
]
