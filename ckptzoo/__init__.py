"""Thousands of trained networks, read one layer at a time.

>>> import ckptzoo
>>> zoo = ckptzoo.open("cards/mnist-optunet")
>>> zoo["conv1.weight"].shape
(8192, 2, 1, 4, 4)

Importing ckptzoo imports none of numpy, pyarrow and torch; each public name is loaded when first used.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("ckptzoo: operating system: expected Linux or macOS, got Windows. Use it in WSL, which is Linux.")

__version__ = "0.1.0"

_PUBLIC = {
    "open": "ckptzoo.loader.zoo",
    "Zoo": "ckptzoo.loader.zoo",
    "open_collection": "ckptzoo.loader.collection",
    "write_collection": "ckptzoo.loader.collection",
    "verify_collection": "ckptzoo.loader.collection",
    "progress_bar": "ckptzoo.progress",
    "make_split": "ckptzoo.format.splits",
    "write_split": "ckptzoo.format.splits",
    "import_split": "ckptzoo.hub.imports.split_lists",
    "ray_datasource": "ckptzoo.loader.ray",
    "create": "ckptzoo.format.writer",
    "append": "ckptzoo.format.writer",
    "record": "ckptzoo.recording",
    "gather": "ckptzoo.recording",
    "verify": "ckptzoo.format.verify",
    "compact": "ckptzoo.format.maintenance",
    "merge_parts": "ckptzoo.format.merging",
    "retract": "ckptzoo.format.maintenance",
    "search": "ckptzoo.hub.search",
    "pull": "ckptzoo.hub.pull",
    "materialize": "ckptzoo.hub.pull",
    "pull_collection": "ckptzoo.hub.pull",
    "push": "ckptzoo.hub.push",
    "push_collection": "ckptzoo.hub.push",
    "release": "ckptzoo.hub.push.naming",
    "catalogue": "ckptzoo.schema.catalogue",
    "import_zoo": "ckptzoo.hub.imports",
    "link_zoo": "ckptzoo.hub.imports",
    "contribute": "ckptzoo.hub.contributions.contribute",
    "review": "ckptzoo.hub.contributions.review",
    "Architecture": "ckptzoo.schema.architecture",
    "Tensor": "ckptzoo.schema.architecture",
    "Card": "ckptzoo.schema.card",
    "ZooError": "ckptzoo.errors",
}
_NAMED_BELOW = {"RemoteReferences": "ckptzoo.remote.referenced"}
"""Names for packages that may not import these modules, which are above them."""
_PACKAGES = (
    "archs",
    "derive",
    "doctor",
    "errors",
    "explorer",
    "hub",
    "learning",
    "symmetry",
    "measure",
    "schema",
    "studies",
)

__all__ = ["__version__", *_PUBLIC]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from ckptzoo.errors import ZooError as ZooError
    from ckptzoo.format.maintenance import compact as compact
    from ckptzoo.format.maintenance import retract as retract
    from ckptzoo.format.merging import merge_parts as merge_parts
    from ckptzoo.format.splits import make_split as make_split
    from ckptzoo.format.splits import write_split as write_split
    from ckptzoo.format.verify import verify as verify
    from ckptzoo.format.writer import append as append
    from ckptzoo.format.writer import create as create
    from ckptzoo.hub.contributions.contribute import contribute as contribute
    from ckptzoo.hub.contributions.review import review as review
    from ckptzoo.hub.imports import import_zoo as import_zoo
    from ckptzoo.hub.imports import link_zoo as link_zoo
    from ckptzoo.hub.imports.split_lists import import_split as import_split
    from ckptzoo.hub.pull import materialize as materialize
    from ckptzoo.hub.pull import pull as pull
    from ckptzoo.hub.pull import pull_collection as pull_collection
    from ckptzoo.hub.push import push as push
    from ckptzoo.hub.push import push_collection as push_collection
    from ckptzoo.hub.push.naming import release as release
    from ckptzoo.hub.search import search as search
    from ckptzoo.loader.collection import open_collection as open_collection
    from ckptzoo.loader.collection import verify_collection as verify_collection
    from ckptzoo.loader.collection import write_collection as write_collection
    from ckptzoo.loader.ray import ray_datasource as ray_datasource
    from ckptzoo.loader.zoo import Zoo as Zoo
    from ckptzoo.loader.zoo import open as open
    from ckptzoo.progress import progress_bar as progress_bar
    from ckptzoo.recording import gather as gather
    from ckptzoo.recording import record as record
    from ckptzoo.schema.architecture import Architecture as Architecture
    from ckptzoo.schema.architecture import Tensor as Tensor
    from ckptzoo.schema.card import Card as Card
    from ckptzoo.schema.catalogue import catalogue as catalogue


def __getattr__(name: str) -> Any:
    if (module := _PUBLIC.get(name) or _NAMED_BELOW.get(name)) is not None:
        value = getattr(import_module(module), name)
    elif name in _PACKAGES:
        value = import_module(f"ckptzoo.{name}")
    else:
        raise AttributeError(f"module 'ckptzoo' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES})
