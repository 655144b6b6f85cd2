"""What is looked at in a contribution.

By its contributor before it is uploaded, and again by its reviewer, from the bytes on the hub.
"""

from ckptzoo.hub.checks.check import Check, failures

__all__ = ["Check", "failures"]
