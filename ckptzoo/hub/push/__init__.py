"""Publish a zoo: what a repository lacks is uploaded, in commits each of which is a valid zoo.

::

    api      push and plan, and what they report
    plan     what a commit of the repository lacks, in which commits it is uploaded, and what is refused
    sources  the files: of the folder, of the repository, and of both together
    page     README.md of what the repository will hold
    refresh  make page and snapshot of a repository again, without a folder
"""

from ckptzoo.hub.push.api import Planned, Pushed, plan, push
from ckptzoo.hub.push.refresh import Refreshed, rewrite

__all__ = ["Planned", "Pushed", "Refreshed", "plan", "push", "rewrite"]
