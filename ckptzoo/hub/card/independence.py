"""The section of a page that says whether members started from independent weights."""

import numpy as np

from ckptzoo.errors import ZooError
from ckptzoo.hub.card import contents
from ckptzoo.loader.flags import usable_rows
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.zoo import Zoo
from ckptzoo.text import counted

MAX_BYTES = 16 * 2**20
"""The most bytes of weights of a zoo whose members are tested."""
MIN_PAIRS = 8
"""The least number of pairs that are tested."""


def independence_section(zoo: Zoo) -> str:
    """Say whether members started from independent weights, by tests of disjoint pairs; empty where few can be tested.

    The only section for which weights are read, of zoos that have at most ``MAX_BYTES`` of them.
    """
    if zoo.symmetry is None or zoo.contents.identity.references or len(zoo) * zoo.arch.nbytes > MAX_BYTES:
        return ""
    files = zoo.contents.files
    # of what is pushed, some parts may be in the repository alone
    if contents.ids_without_raw_weights(zoo) or not (files.here or isinstance(files, RemoteFiles)):
        return ""
    from ckptzoo.derive.independence import UNIFORM, IndependenceTest, first_and_last, random_pairs
    from ckptzoo.measure.marginals import uniformity

    chosen = zoo.take(usable_rows(zoo))
    _, last = first_and_last(chosen)
    if len(last) < 2 * MIN_PAIRS:
        return ""
    try:
        test = IndependenceTest(chosen, permutations=999, seed=0)
    except ZooError:
        # of Gaussians and networks with few neurons nothing can be tested
        return ""
    pairs = last[random_pairs(len(last), len(last), True, np.random.default_rng(np.random.SeedSequence(0)))]
    p = test.of(chosen, chosen, pairs).p
    together = uniformity(p)
    said = (
        "no sign that members share their initial weights" if together >= UNIFORM else "members share initial weights"
    )
    return (
        f"**Tested:** {said}. Corresponding neurons of {counted(len(pairs), 'disjoint pair')} were compared, by exact "
        f"permutation tests: all p-values together have p {together:.1g}, and {(p <= 0.01).mean():.1%} of them are "
        "0.01 or less. `ckptzoo study independence` makes the tests again."
    )
