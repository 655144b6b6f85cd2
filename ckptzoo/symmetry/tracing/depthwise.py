"""Depthwise convolutions whose blocks do not fit the groups around them: they write more entries of what they read."""

import numpy as np

from ckptzoo.symmetry.tracing.ledger import FIXED, OUTPUT, Blocks, Ledger


def mergeable(ledger: Ledger, blocks: Blocks) -> bool:
    """Whether each block reads one channel that may move, and is not merged already."""
    if not blocks.places or blocks.members[0].shape[1] > 1:
        return False
    read = blocks.members[0].ravel()
    held = [(ledger.channels.marks(read, kind) >= 0).any() for kind in (FIXED, OUTPUT)]
    return bool((read >= 0).all()) and not any(held)


def merge(ledger: Ledger, blocks: Blocks, why: str) -> None:
    """Tie what each block writes to the channel that it reads.

    The weight is permuted along its first axis alone. Where both what it reads and what it writes could be scaled,
    these scales become one, and the weight is not scaled.
    """
    read, written = blocks.members
    ledger.here = f"{blocks.name!r}"
    ledger.tie(read, written, "writes what stays in place")
    reads, writes = (ledger.places[place] for place in blocks.places)
    before = np.broadcast_to(reads.scale[:, None], written.shape)
    after = writes.scale.reshape(written.shape)
    kept, dropped = (reads, writes) if reads.axis == 0 else (writes, reads)
    alive = ledger.alive(before).any(), ledger.alive(after).any()
    scale, exponent, role = after, 1, "out"
    if alive[0] and not alive[1]:
        scale, exponent, role = before, reads.exponent, "in"
    elif alive[0]:
        if reads.exponent == 1:
            ledger.kill(before, "reads inverses")
        scale, exponent, role = ledger.join(before, after, "joins scaled values with others that cannot be"), 0, "out"
    if kept is reads:
        scale = ledger.join(scale[:, :1], scale, "writes several channels of one")[:, :1]
    kept.scale, kept.exponent, kept.role = scale.ravel(), exponent, role
    del ledger.places[dropped.tensor, dropped.axis]
    blocks.members, blocks.places = (), ()
    ledger.notes.append(
        f"The channels that {blocks.name!r} writes move with those that it reads, and share their scales: {why}."
    )
