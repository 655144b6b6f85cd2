"""Publish a zoo or a collection: what a repository lacks is uploaded, in commits each of which is valid.

::

    api         push, push_collection and plan, and what they report
    plan        what a commit of the repository lacks, in which commits it is uploaded, and what is refused
    collection  the same for a collection
    sources     the files: of the folder, of the repository, and of both together
    page        README.md of what the repository will hold
    refresh     make page and snapshot of a repository again, without a folder
    naming      name what a zoo holds now: in a folder a document, in a repository a tag, too
"""

from ckptzoo.hub.push.api import Planned, Pushed, plan, push, push_collection
from ckptzoo.hub.push.refresh import Refreshed, rewrite

__all__ = ["Planned", "Pushed", "Refreshed", "plan", "push", "push_collection", "rewrite"]
