"""Whether a contributed checkpoint computes nearly what one of the zoo does: a copy that was rounded or has noise."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.derive.labelled import Labelled
from ckptzoo.derive.near_copies import INPUTS, LEAST_MEMBERS, NearPair, points, seeded_inputs, stored_points
from ckptzoo.errors import ZooError
from ckptzoo.hub.contributions.evaluation import no_forward
from ckptzoo.hub.contributions.inputs import ZooInputs, stored_inputs
from ckptzoo.hub.contributions.report import ReviewCheck
from ckptzoo.hub.contributions.target_zoo import COMPARED_BYTES, TargetZoo
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.layout import predictions_name
from ckptzoo.text import Progress, size

NAME = "near copies"
MAX_CANDIDATES = 8
"""Checkpoints of a large zoo that are evaluated for each contributed one, the nearest by their stored outputs."""
_SHOWN = 16
"""Pairs that are named: each is for the reviewer to look at."""


def check_near_copies(
    zoo: Zoo,
    target: TargetZoo,
    *,
    without: Collection[str] = (),
    network: Any = None,
    data: str | Path | None = None,
    own: Labelled | None = None,
    accepted: bool = False,
    progress: Progress | None = None,
) -> ReviewCheck:
    """Check that contributed checkpoints do not compute nearly the same as others, of the contribution or of the zoo.

    The threshold follows from the distances between independent members of the zoo (``ckptzoo.derive.near_copies``). A
    small zoo is evaluated from its weights; the stored outputs of a large one say which checkpoints may be near, and
    their weights decide, on the same inputs. The check names the pairs; it is not done where nothing can be compared.

    ``without`` are contributed checkpoints that are known to be copies; ``network`` is a torch module, by default that
    of ``ckptzoo.archs``; ``data`` the folder of test sets; ``own`` are inputs as the networks take them, for a zoo that
    does not say the shape of one, or stores outputs on them; ``accepted`` says that a person has compared the pairs and
    accepts them as different networks.
    """
    kept = zoo.take(np.array([row for row, name in enumerate(zoo.ids) if name not in without], np.int64))
    try:
        if target.small:
            lacking: list[str] = []
            if zoo.arch.input_shape is None and own is None:
                lacking.append(
                    "the zoo does not say the shape of one input (--inputs FILE.npz names inputs of your own)"
                )
            if network is None and not archs.known(zoo.arch.forward):
                lacking.append(no_forward(zoo.arch))
            if lacking:
                return ReviewCheck(NAME, "not done", "; ".join(lacking))
            inputs = seeded_inputs(zoo.arch) if own is None or zoo.arch.input_shape else own.inputs[:INPUTS]
            theirs = points(target.zoo, inputs, module=network, progress=progress)
            mine = points(kept, inputs, module=network)
            threshold = theirs.threshold()
            pairs = [] if threshold is None else [*mine.near(mine, threshold)[0], *mine.near(theirs, threshold)[0]]
        else:
            threshold, pairs = _by_stored_outputs(kept, target.zoo, network, data, own)
    except ZooError as error:
        return ReviewCheck(NAME, "not done", str(error))
    if threshold is None:
        return ReviewCheck(
            NAME, "not done", f"the zoo has fewer than {LEAST_MEMBERS} independent members to compare with"
        )
    if not pairs:
        return ReviewCheck(
            NAME, "passed", f"none nearer than {threshold:.3g}, a tenth of what independent members are apart"
        )
    shown = "; ".join(f"{pair.ids[0]} and {pair.ids[1]}: {pair.distance:.2g}" for pair in pairs[:_SHOWN])
    more = f"; and {len(pairs) - _SHOWN:,} more" if len(pairs) > _SHOWN else ""
    said = f"outputs nearer than {threshold:.2g}, a tenth of what independent members are apart: {shown}{more}"
    step = "Look at them; merge with --accept-near-copies if these are different networks."
    return (
        ReviewCheck(NAME, "passed", f"accepted: {said}") if accepted else ReviewCheck(NAME, "failed", f"{said}. {step}")
    )


def _by_stored_outputs(
    mine: Zoo, theirs: Zoo, network: Any, data: str | Path | None, own_inputs: Labelled | None
) -> tuple[float | None, list[NearPair]]:
    """Return the threshold and the pairs below it, where a zoo is too large to be evaluated.

    Raises ``ZooError`` where it stores no outputs on inputs that are on this machine.
    """
    name, seen = _stored_set(mine, theirs, data, own_inputs)
    kept = theirs.having(name)
    outputs = kept.predictions(name)

    def logits() -> Iterator[tuple[slice, NDArray[Any]]]:
        start = 0
        for batch in outputs.stream(remainder="keep"):
            yield slice(start, start + len(batch.ids)), batch["logits"]
            start += len(batch.ids)

    stored = stored_points(kept, logits(), INPUTS)
    threshold = stored.threshold()
    if threshold is None:
        return None, []
    inputs, others = seen.inputs[:INPUTS], [(ids, scaled[:INPUTS]) for ids, scaled in seen.others]
    own = points(mine, inputs, others, module=network)
    # outputs are stored in float16, which moves a checkpoint by less than the threshold
    candidates: dict[str, list[str]] = {}
    for pair in own.near(stored, 2 * threshold)[0]:
        nearest = candidates.setdefault(pair.ids[0], [])
        if len(nearest) < MAX_CANDIDATES:
            nearest.append(pair.ids[1])
    pairs, _ = own.near(own, threshold)
    chosen = kept.where(("id", "in", sorted({name for names in candidates.values() for name in names})))
    if len(chosen):
        scaled = stored_inputs(theirs, name, chosen, data=data, own=own_inputs)
        shown = [(ids, images[:INPUTS]) for ids, images in scaled.others]
        pairs += own.near(points(chosen, scaled.inputs[:INPUTS], shown, module=network), threshold)[0]
    return threshold, sorted(pairs, key=lambda pair: (pair.distance, pair.ids))


def _stored_set(mine: Zoo, theirs: Zoo, data: str | Path | None, own: Labelled | None) -> tuple[str, ZooInputs]:
    """Return a set with few bytes of stored outputs, and its inputs as the contributed checkpoints take them."""
    reasons: list[str] = []
    for name in theirs.predicted:
        facts = theirs.contents.derived(predictions_name(name)).parts[0].facts
        nbytes = 2 * len(theirs) * facts["examples"] * facts["classes"]
        if nbytes > COMPARED_BYTES:
            reasons.append(f"its outputs on {name} have {size(nbytes)}")
            continue
        try:
            return name, stored_inputs(theirs, name, mine, data=data, own=own)
        except ZooError as error:
            reasons.append(str(error))
    nbytes = len(theirs) * theirs.arch.nbytes
    why = "; ".join(reasons) or "it stores no outputs"
    step = "Store outputs on a small set, such as mnist/test-64, with ckptzoo predict."
    raise ZooError(f"the zoo has {size(nbytes)} of weights, too many to evaluate, and {why}. {step}")
