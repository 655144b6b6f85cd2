"""Checkpoints that a training loop hands over while it trains, and the zoo that is made of them.

``record`` opens a run, whose ``save`` writes files of units (``unit_files.py``) into a hidden folder of the zoo,
without locks; ``gather`` makes parts of what is there. Neither needs torch.
"""

from ckptzoo.recording.gathering import Gathered, gather
from ckptzoo.recording.recorder import Recorder, record

__all__ = ["Gathered", "Recorder", "gather", "record"]
