"""The solver beside cvxpy: the same least mass on every small network and formulation."""

import sys

import numpy as np
import pytest

from ckptzoo.errors import MissingExtraError
from ckptzoo.symmetry import min_mass
from ckptzoo.symmetry.mass.formulations import FORMULATIONS
from tests.support.mass_networks import PLAIN, SMALL, Net, known

CASES = [(net, "pinned") for net in (*PLAIN, known("mlp-32-32-32-10"))]
CASES += [(net, formulation) for net in SMALL for formulation in FORMULATIONS]


@pytest.mark.slow
@pytest.mark.parametrize(("net", "formulation"), CASES, ids=str)
@pytest.mark.sampled(2)
def test_the_engines_agree(net: Net, formulation: str) -> None:
    raw = net.weights(1 if net.name == "mlp-32-32-32-10" else 3, 7)
    first = next(iter(raw))
    raw[first][0, 0] = 0  # a channel that is dropped, or a filter without volume
    one, two = (min_mass(raw, net.table, formulation=formulation, engine=engine) for engine in ("newton", "cvxpy"))
    np.testing.assert_allclose(two.mass_after, one.mass_after, rtol=1e-6)
    assert (two.mass_after >= one.mass_after * (1 - one.gap - 1e-14)).all()
    assert (two.gap <= 1e-3).all() and (two.iterations > 0).all()
    assert two.degenerate.tolist() == one.degenerate.tolist()
    for group, scale in one.scales.items():
        np.testing.assert_allclose(two.scales[group], scale, rtol=2e-2, err_msg=group)


def test_a_missing_cvxpy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[convex\]"):
        min_mass(known("optunet").weights(1, 0), "optunet", engine="cvxpy")
