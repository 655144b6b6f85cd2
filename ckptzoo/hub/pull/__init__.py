"""Fetch a zoo, or a part of one that is itself a zoo.

::

    api            pull: one call, and what it reports
    mirror         copies every part byte for byte                 | one of the two,
    subset         writes some tensors, variants or rows again     | as the selection needs
    materializing  copies weights that lie in files of others
    selection      which variants, tensors and checkpoints; progress
    destination    the target folder: its lock, what it holds already, disk space, the block cache
    page           card, pictures and README.md
"""

from ckptzoo.hub.pull.api import Pulled, pull
from ckptzoo.hub.pull.collection import pull_collection
from ckptzoo.hub.pull.materializing import Materialized, materialize

__all__ = ["Materialized", "Pulled", "materialize", "pull", "pull_collection"]
