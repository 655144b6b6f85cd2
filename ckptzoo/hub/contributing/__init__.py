"""Bring checkpoints to somebody's zoo: read, name, check and measure them, and open a pull request."""

from ckptzoo.hub.contributing.contribute import contribute
from ckptzoo.hub.contributing.naming import NamesError
from ckptzoo.hub.contributing.result import Contribution
from ckptzoo.hub.contributing.submission import Submission

__all__ = ["Contribution", "NamesError", "Submission", "contribute"]
