"""Imports published zoos, in the formats of the literature and any other checkpoint files."""

from ckptzoo.hub.imports.adapters import ADAPTERS, Options
from ckptzoo.hub.imports.run import ImportResult, import_zoo

__all__ = ["ADAPTERS", "ImportResult", "Options", "import_zoo"]
