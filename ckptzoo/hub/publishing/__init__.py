"""Publish a zoo: what a repository lacks is uploaded, in commits each of which is a valid zoo."""

from ckptzoo.hub.publishing.push import plan, push
from ckptzoo.hub.publishing.refresh import Refreshed, refresh, rewrite
from ckptzoo.hub.publishing.result import Planned, Pushed

__all__ = ["Planned", "Pushed", "Refreshed", "plan", "push", "refresh", "rewrite"]
