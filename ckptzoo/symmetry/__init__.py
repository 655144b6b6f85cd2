"""Symmetries of networks on stacked weights: group elements, their action, and gauges. Pure arrays, no files."""

from typing import TYPE_CHECKING, Any

from ckptzoo.arguments import checked
from ckptzoo.errors import require
from ckptzoo.lazy_names import lazy_names
from ckptzoo.schema.layout import GaugeName
from ckptzoo.symmetry.common import common
from ckptzoo.symmetry.counts import Counts, GroupCounts, count, counts_by_group, orbits
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.matrices.tables import monomial
from ckptzoo.symmetry.nested import unnested
from ckptzoo.symmetry.traced import Traced
from ckptzoo.symmetry.transpositions import random_element, random_permutations, transpositions

__all__ = [
    "GAUGES",
    "Aligned",
    "Barycentre",
    "Canonical",
    "Counts",
    "Gauge",
    "GaugeName",
    "GroupCounts",
    "GroupElement",
    "MinMass",
    "Report",
    "Traced",
    "align",
    "apply",
    "barycentre",
    "canonicalize",
    "common",
    "count",
    "counts_by_group",
    "fingerprint",
    "fold",
    "gauge_named",
    "min_mass",
    "monomial",
    "orbits",
    "ordering_keys",
    "pair_distances",
    "random_element",
    "random_permutations",
    "remove_softmax_shift",
    "sketches",
    "trace",
    "transpositions",
    "unnested",
]

if TYPE_CHECKING:
    import torch

    from ckptzoo.symmetry.action import apply as apply
    from ckptzoo.symmetry.alignment.align import Aligned as Aligned
    from ckptzoo.symmetry.alignment.align import align as align
    from ckptzoo.symmetry.alignment.barycentre import Barycentre as Barycentre
    from ckptzoo.symmetry.alignment.barycentre import barycentre as barycentre
    from ckptzoo.symmetry.alignment.pairs import pair_distances as pair_distances
    from ckptzoo.symmetry.folds import fold as fold
    from ckptzoo.symmetry.gauges import (
        GAUGES as GAUGES,
    )
    from ckptzoo.symmetry.gauges import (
        Canonical as Canonical,
    )
    from ckptzoo.symmetry.gauges import (
        Gauge as Gauge,
    )
    from ckptzoo.symmetry.gauges import (
        canonicalize as canonicalize,
    )
    from ckptzoo.symmetry.gauges import (
        gauge_named as gauge_named,
    )
    from ckptzoo.symmetry.gauges import (
        ordering_keys as ordering_keys,
    )
    from ckptzoo.symmetry.identity.fingerprint import fingerprint as fingerprint
    from ckptzoo.symmetry.identity.fingerprint import sketches as sketches
    from ckptzoo.symmetry.mass.minimum import MinMass as MinMass
    from ckptzoo.symmetry.mass.minimum import min_mass as min_mass
    from ckptzoo.symmetry.report import Report as Report
    from ckptzoo.symmetry.softmax import remove_softmax_shift as remove_softmax_shift

_MODULES = {
    "action": ("apply",),
    "alignment.align": ("Aligned", "align"),
    "alignment.barycentre": ("Barycentre", "barycentre"),
    "alignment.pairs": ("pair_distances",),
    "folds": ("fold",),
    "gauges": ("GAUGES", "Canonical", "Gauge", "canonicalize", "gauge_named", "ordering_keys"),
    "identity.fingerprint": ("fingerprint", "sketches"),
    "mass.minimum": ("MinMass", "min_mass"),
    "report": ("Report",),
    "softmax": ("remove_softmax_shift",),
}
"""Names by the module that has them, which is imported when one of them is first asked for: counts need none."""
__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
)


@checked
def trace(module: "torch.nn.Module", example_input: Any) -> Traced:
    """The symmetry table of any torch module, derived from its operations and verified on its outputs.

    ``torch.export`` lists the operations of the module in evaluation mode, and one pass over them ties the channels
    that must move together and the scales that must be the same. Channels that look alike wherever they are read and
    written become one group: a symmetric group, or a wreath product where operations take them in blocks.
    What ``g . theta`` does is arXiv 2310.08287, section 3; see ``ckptzoo.symmetry.apply``.

    Parameters
    ----------
    module
        any module. It is copied and not changed.
    example_input
        what it takes, examples along the first axis: a tensor, a tuple of positional arguments or a dict of named ones.
        Tensors of integers are indices of embeddings, or masks.

    Returns
    -------
    Traced
        The table, the architecture of the module's state dict, notes that say what keeps groups in place, unscaled or
        apart, and the largest relative difference of outputs that the verification found.

    Raises
    ------
    SymmetryError
        There is no rule for an operation, and the message names it and its line; the operations
        depend on the input's numbers; the module does not take the example; or random elements of the table's group
        change the outputs by more than 1e-9.
    MissingExtraError
        torch is not installed.

    Notes
    -----
    Sound by verification: in float64, on the module's own weights and on generic ones, on four random inputs; with
    BatchNorm modules in training mode at eps = 0 too. Random integers are below the sizes of the embeddings that they
    index; other integers and booleans stay those of the example. Groups that fail it alone are held in place or left
    unscaled, and the notes say so. A tenth of a second for small networks, about a second for a ResNet-18 on images of
    32x32 pixels, most of it six forward passes. Tested in tests/symmetry/tracing.
    """
    require("torch", "torch")
    from ckptzoo.symmetry.tracing.trace import trace_module as of_module

    return of_module(module, example_input)
