"""Depthwise convolutions whose blocks do not fit the groups around them: they write more entries of what they read."""

import numpy as np

from ckptzoo.symmetry.tracing.ledger import FIXED, OUTPUT, Blocks, Ledger


def mergeable(ledger: Ledger, blocks: Blocks) -> bool:
    """Whether each block reads one channel, which may move, wherever the weight is used."""
    if not blocks.places or blocks.members[0].shape[1] > 1:
        return False
    read = np.concatenate([use.members[0].ravel() for use in _uses(ledger, blocks)])
    held = [(ledger.channels.marks(read, kind) >= 0).any() for kind in (FIXED, OUTPUT)]
    return bool((read >= 0).all()) and not any(held)


def merge(ledger: Ledger, blocks: Blocks, why: str) -> None:
    """Tie what each block writes to the channel that it reads.

    The weight is permuted along its first axis alone. Where both what it reads and what it writes could be scaled,
    these scales become one, and the weight is not scaled.
    """
    ledger.here = f"{blocks.name!r}"
    written = blocks.members[1].shape
    reads, writes = (ledger.places[place] for place in blocks.places)
    before = np.broadcast_to(reads.scale[:, None], written)
    after = writes.scale.reshape(written)
    alive = ledger.alive(before).any(), ledger.alive(after).any()
    scale, exponent, role = after, 1, "out"
    if alive[0] and not alive[1]:
        scale, exponent, role = before, reads.exponent, "in"
    elif alive[0]:
        if reads.exponent == 1:
            ledger.kill(before, "reads inverses")
        scale, exponent, role = ledger.join(before, after, "joins scaled values with others that cannot be"), 0, "out"
    kept, dropped = (reads, writes) if reads.axis == 0 else (writes, reads)
    if kept is reads:
        scale = ledger.join(scale[:, :1], scale, "writes several channels of one")[:, :1]
    kept.scale, kept.exponent, kept.role = scale.ravel(), exponent, role
    del ledger.places[dropped.tensor, dropped.axis]
    for use in _uses(ledger, blocks):
        ledger.tie(use.members[0], use.members[1], "writes what stays in place")
        use.members, use.places = (), ()
    ledger.notes.append(
        f"The channels that {blocks.name!r} writes move with those that it reads, and share their scales: {why}."
    )


def _uses(ledger: Ledger, blocks: Blocks) -> list[Blocks]:
    """All uses of the weight."""
    return [use for use in ledger.blocks if use.places == blocks.places]
