"""Group elements: uniform, a function of seed, epoch, id and view, and of the table's group."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo import archs, learning
from ckptzoo.derive import declare
from ckptzoo.errors import ZooError
from ckptzoo.learning import Augment
from ckptzoo.learning.augment import ElementDraw, bounded, element_keys, id_hashes
from ckptzoo.learning.group_action import Mover
from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, trace
from tests.support.effort import FEW_EXAMPLES, examples
from tests.support.symmetry_tables import networks
from tests.symmetry.tracing.test_buffers import Masked

KNOWN_PERMS = [[1, 2, 0, 7, 4, 6, 5, 3], [6, 2, 7, 4, 0, 3, 5, 1]]
KNOWN_SCALES = [1.1642849839984848, 0.9516034877534248, 0.9055762839243473]
IDS = [f"net-{number}" for number in range(24_000)]


def test_known_words():
    """The elements of a seed stay what they are: streams of other versions resume."""
    element = Augment(scales=0.3).element(archs.symmetry("mlp-4-8-2"), ["net-0", "net-1"], seed=0, epoch=0)
    assert element.perms["fc1"].tolist() == KNOWN_PERMS
    assert element.scales["fc1"][0, :3].tolist() == pytest.approx(KNOWN_SCALES, abs=1e-15)


class Held:
    """A reader of an array."""

    def __init__(self, array):
        self.array, self.dtype, self.shape, self.row_bytes = array, array.dtype, array.shape[1:], array[:1].nbytes

    def gather(self, rows):
        return self.array[rows]


def _vector(group: str, n: int) -> AxisAction:
    return AxisAction(f"{group}.bias", 0, (Segment(group, 0, 1, n),), 1, False, "bias")


@pytest.mark.parametrize("n", [2, 3, 4])
def test_all_permutations_are_as_frequent(n):
    table = Symmetry((Group("a", n, Sym(), "none"), Group("b", n, Sym(), "none")), (_vector("a", n), _vector("b", n)))
    element = Augment().element(table, IDS, seed=0, epoch=0)
    known = {perm: at for at, perm in enumerate(itertools.permutations(range(n)))}
    found = [np.array([known[tuple(row)] for row in element.perms[name].tolist()]) for name in ("a", "b")]
    for counts, cells in (
        (np.bincount(found[0], minlength=len(known)), len(known)),
        (np.bincount(found[0] * len(known) + found[1], minlength=len(known) ** 2), len(known) ** 2),
    ):
        expected = len(IDS) / cells
        chi_square = ((counts - expected) ** 2 / expected).sum()
        freedom = cells - 1
        # below its mean + 4 standard deviations; the seed is fixed
        assert chi_square < freedom + 4 * math.sqrt(2 * freedom), (n, chi_square)


def test_wreath_groups_move_their_blocks_together_and_uniformly():
    groups = (Group("x", 2, Wreath("o", 2, 1), "none"), Group("y", 6, Wreath("o", 2, 3), "none"))
    table = Symmetry((*groups, Group("z", 6, Like("y"), "none")), (_vector("x", 2), _vector("y", 6), _vector("z", 6)))
    element = Augment().element(table, IDS, seed=3, epoch=1)
    element.check(table)
    cells, counts = np.unique(element.perms["y"], axis=0, return_counts=True)
    assert len(cells) == 2 * math.factorial(3) ** 2
    expected = len(IDS) / len(cells)
    assert ((counts - expected) ** 2 / expected).sum() < 71 + 4 * math.sqrt(2 * 71)


def test_scales_are_log_uniform_and_signs_fair():
    table = Symmetry((Group("a", 5, Sym(), "nonzero"),), (_vector("a", 5),))
    scale = Augment(scales=0.5, signs=True).element(table, IDS, seed=0, epoch=0).scales["a"]
    logs = np.log(np.abs(scale)) / 0.5
    assert abs(logs).max() <= 1 and abs(logs.mean()) < 0.01 and abs(logs.var() - 1 / 3) < 0.01
    assert abs(np.sign(scale).mean()) < 0.02
    assert abs(np.corrcoef(np.sign(scale).ravel(), logs.ravel())[0, 1]) < 0.02
    assert (Augment(signs=True).element(table, IDS[:5], seed=0, epoch=0).scales["a"] ** 2 == 1).all()
    assert (Augment(scales=0.5).element(table, IDS[:5], seed=0, epoch=0).scales["a"] > 0).all()


def test_seeds_epochs_ids_and_views_differ():
    table, augment = archs.symmetry("mlp-4-16-2"), Augment(scales=0.1)
    elements = [
        augment.element(table, [id], seed=seed, epoch=epoch, view=view)
        for id, seed, epoch, view in itertools.product(["a", "b"], [0, 1], [0, 1], [0, 1])
    ]
    assert len({tuple(element.perms["fc1"][0]) for element in elements}) == 16
    assert len({tuple(element.scales["fc1"][0]) for element in elements}) == 16


def test_groups_draw_what_they_draw_whatever_the_others_are():
    small, large = archs.symmetry("mlp-4-16-2"), archs.symmetry("mlp-4-16-16-2")
    one, two = (Augment().element(table, ["a"], seed=0, epoch=0) for table in (small, large))
    assert (one.perms["fc1"] == two.perms["fc1"]).all()
    assert (two.perms["fc1"] != two.perms["fc2"]).any()


@settings(max_examples=examples(100, FEW_EXAMPLES), deadline=None)
@given(networks(nested=True), st.integers(0, 2**32), st.sampled_from([0.0, 0.4]), st.booleans(), st.booleans())
def test_elements_are_of_the_group_and_act_as_apply_does(net, seed, scales, permutations, signs):
    K, augment = 5, Augment(permutations=permutations, scales=scales, signs=signs)
    element = augment.element(net.table, IDS[:K], seed=seed, epoch=0)
    element.check(net.table)
    weights = net.weights(K, seed)
    perms, free = ElementDraw.of(net.table, augment)(element_keys(id_hashes(IDS[:K]), seed, 0, 0))
    free = bounded(free, weights.__getitem__, net.table)
    whole = GroupElement.identity(net.table, K)
    scaling = GroupElement(whole.perms, {**whole.scales, **free})
    moving = GroupElement({**whole.perms, **perms}, whole.scales)
    expected = apply(moving, apply(scaling, weights, net.table), net.table)
    before = {name: array.copy() for name, array in weights.items()}
    mover = Mover(net.shapes, net.table)
    readers = {name: Held(array) for name, array in weights.items()}
    made, again = mover.views(readers, np.arange(K), [(perms, free), (perms, free)])
    assert all((weights[name] == before[name]).all() for name in weights)
    assert all((made[name] == again[name]).all() for name in weights)
    for name, array in expected.items():
        assert made[name].dtype == array.dtype
        assert np.allclose(made[name], array, rtol=1e-13, atol=1e-15), name


@pytest.mark.parametrize("cut", [1, 3])
def test_no_bit_depends_on_the_batch(cut):
    table, ids = archs.symmetry("mlp-20-40-40-5"), IDS[:7]
    augment = Augment(scales=0.3)
    whole = augment.element(table, ids, seed=1, epoch=2)
    for start in range(0, 7, cut):
        part = augment.element(table, ids[start : start + cut], seed=1, epoch=2)
        for name, perm in part.perms.items():
            assert (perm == whole.perms[name][start : start + cut]).all()
            assert (part.scales[name] == whole.scales[name][start : start + cut]).all()


def test_scales_in_front_of_a_running_variance_are_bounded_exactly():
    table = Symmetry(
        (Group("a", 3, Sym(), "nonzero"),),
        (
            _vector("a", 3),
            AxisAction("var", 0, (Segment("a", 0, 1, 3),), 2, False, "variance", eps=1e-2),
        ),
    )
    variance = np.array([[0.0, 1e-3, 10.0]])
    scales = np.array([[0.5, -0.5, 0.5]])
    least = np.sqrt(1e-2 / (variance + 1e-2))
    weights = {"a.bias": np.ones((1, 3)), "var": variance}
    found = bounded({"a": scales}, weights.__getitem__, table)
    assert found["a"].tolist() == [[least[0, 0], -least[0, 1], 0.5]]
    mover = Mover({"a.bias": (3,), "var": (3,)}, table)
    (made,) = mover.views({name: Held(array) for name, array in weights.items()}, np.arange(1), [({}, found)])
    assert made["var"][0].tolist() == pytest.approx([0, 0, 0.25 * (10 + 1e-2) - 1e-2], abs=1e-17, rel=1e-15)


@pytest.mark.parametrize("scales", [-0.1, 81, float("nan")])
def test_scales_out_of_range_are_refused(scales):
    with pytest.raises(ZooError, match="logarithm from 0 to 80"):
        Augment(scales=scales)


@pytest.mark.parametrize(
    ("variant", "refused"),
    [
        ("raw", ""),
        ("canonical", "permutations scales signs"),
        ("unit-norm", "scales signs"),
        ("min-mass", "scales signs"),
        ("aligned-best", "permutations scales signs"),
    ],
)
def test_variants_are_not_augmented_with_what_was_removed(variant, refused):
    table = archs.symmetry("mlp-4-8-2")
    for name, augment in {
        "permutations": Augment(),
        "scales": Augment(permutations=False, scales=0.1),
        "signs": Augment(permutations=False, signs=True),
    }.items():
        if name in refused:
            with pytest.raises(ZooError, match="weights that still have them"):
                augment.require(table, variant, location="zoo")
        else:
            assert augment.require(table, variant, location="zoo") is table


def test_masks_of_each_checkpoint_move_with_its_channels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Masked(lambda m, h: h * m.mask, torch.relu, 0)
    table, rng = trace(module, torch.randn(2, 3)).symmetry, np.random.default_rng(0)
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    weights = {
        name: np.stack(
            [rng.permuted(value) if value.ndim and value.dtype.kind not in "iu" else value for _ in range(4)]
        )
        for name, value in state.items()
    }
    with ckptzoo.create(tmp_path / "zoo", arch=state, card=ckptzoo.Card("masked", "A mask each.")) as writer:
        writer.add(weights, [{"id": f"net-{number}"} for number in range(4)])
    declare(tmp_path / "zoo", table)
    zoo, example = ckptzoo.open(tmp_path / "zoo"), torch.randn(5, 3)
    (batch,) = learning.stream(zoo, augment=Augment(scales=0.3), shuffle=False, seed=4)
    for number in range(4):
        made, plain = (
            torch.func.functional_call(
                module, {name: torch.from_numpy(np.array(value[number])) for name, value in stack.items()}, (example,)
            )
            for stack in (batch.x, weights)
        )
        torch.testing.assert_close(made, plain, rtol=1e-4, atol=1e-4)
    assert (batch.x["mask"] != weights["mask"]).any()
