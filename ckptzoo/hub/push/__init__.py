"""Publish a zoo: what a repository lacks is uploaded, in commits each of which is a valid zoo."""

from ckptzoo.hub.push.api import Planned, Pushed, plan, push
from ckptzoo.hub.push.refresh import Refreshed, refresh, rewrite

__all__ = ["Planned", "Pushed", "Refreshed", "plan", "push", "refresh", "rewrite"]
