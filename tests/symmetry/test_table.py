"""The symmetry table as a document, and what it refuses."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ckptzoo import archs
from ckptzoo.errors import SpecError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.documents import seal, unseal
from ckptzoo.schema.groups import AxisAction, Fixed, Group, Like, Segment, Sym, Wreath, with_scaled_gates
from ckptzoo.schema.symmetry import Symmetry

TABLE = archs.symmetry("optunet")
ARCH = archs.architecture("optunet")
EVERY_KIND = Symmetry(
    (
        Group("a", 4, Sym(), "sign"),
        Group("b", 4, Fixed(), "none"),
        Group("c", 4, Wreath("o", 2, 2), "positive"),
        Group("d", 4, Like("c"), "positive"),
        Group("e", 4, Wreath("o", 2, 2, "fixed"), "nonzero"),
        Group("f", 6, Wreath("o", 2, 3), "none"),
    ),
    (
        AxisAction("w", 0, (Segment("d", 0, 1, 4),), 1, False, "gain"),
        AxisAction("x", 0, (Segment("a", 0, 1, 4), Segment("b", 4, 2, 4)), 1, True, "out"),
        AxisAction("v", 0, (Segment("c", 0, 1, 4),), 2, False, "variance", eps=1e-5),
        AxisAction("s", 0, (Segment("e", 0, 1, 4), Segment("f", 4, 2, 6, within="e")), 1, True, "out"),
        AxisAction("u", 0, (Segment("c", 0, 1, 4), Segment("c", 4, 1, 4, -1)), 1, False, "bias"),
        AxisAction(
            "t", 1, (Segment("b", 0, 1, 4), Segment("c", 4, 1, 4)), -1, True, "in", gates=(Segment("d", 4, 1, 4),)
        ),
    ),
)


@pytest.mark.parametrize("table", [TABLE, EVERY_KIND])
def test_a_table_survives_its_sealed_document(table: Symmetry) -> None:
    content, digest = unseal(seal(table.to_json()), location="symmetry.json")
    assert Symmetry.from_json(content) == table
    assert digest == table.digest


def test_the_document_of_optunet_is_what_it_was() -> None:
    assert TABLE.digest == "sha256:463e8a34ca005bbedeef3bb5bd5df09fbf097d18bca672cfa688d99345548631"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content.pop("actions"),
        lambda content: content["groups"][0].pop("n"),
        lambda content: content["groups"][0].update(more=1),
        lambda content: content["groups"][0].update(perm={"kind": "cyclic"}),
        lambda content: content["groups"][0].update(perm=[]),
        lambda content: content["groups"][0].update(perm={"kind": "sym", "g": 2}),
        lambda content: content["actions"][0].update(segments=3),
        lambda content: content["actions"][0]["segments"][0].update(count="2"),
        lambda content: content["actions"][0].update(tensor=["conv1.weight"]),
        lambda content: content["actions"][0].update(exponent=True),
        lambda content: content["groups"].append(None),
        lambda content: content["groups"][1]["perm"].update(outer=7),
        lambda content: content["groups"][1]["perm"].update(inner=True),
    ],
)
def test_a_document_with_other_fields_or_types_is_refused(spoil) -> None:
    content = json.loads(json.dumps(TABLE.to_json()))
    spoil(content)
    with pytest.raises(SpecError):
        Symmetry.from_json(content)


def _group(**changes: object) -> Symmetry:
    return replace(TABLE, groups=(replace(TABLE.groups[0], **changes), *TABLE.groups[1:]))


def _action(which: int, **changes: object) -> Symmetry:
    actions = list(TABLE.actions)
    actions[which] = replace(actions[which], **changes)
    return replace(TABLE, actions=tuple(actions))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: _group(id="../x"), "id that could name a tensor"),
        (lambda: _group(n=0), "n: expected 1 to"),
        (lambda: _group(n=3), "g \\* k = 3"),
        (lambda: _group(perm=Wreath("conv2", 2, 1, "any")), "free or fixed"),
        (lambda: _group(scale="any"), "positive or sign or nonzero or none"),
        (lambda: _group(id="conv2"), "each id once"),
        (lambda: _group(id="other"), "unknown group 'conv1'"),
        (lambda: _group(perm=Wreath("conv2", 1, 2)), "blocks of 'conv2'"),
        (lambda: _group(perm=Wreath("else", 2, 1)), "the same block permutation"),
        (lambda: _group(perm=Sym()), "the same block permutation"),
        (lambda: replace(TABLE, groups=(*TABLE.groups, Group("z", 2, Sym(), "none"))), "at least one axis action"),
        (lambda: replace(TABLE, actions=(*TABLE.actions, TABLE.actions[0])), "one action"),
        (lambda: _action(0, tensor=""), "the name of a tensor"),
        (lambda: _action(0, axis=-1), "0 or more"),
        (lambda: _action(0, exponent=3), "1, -1, 0 or 2"),
        (lambda: _action(0, in_mass=1), "true or false"),
        (lambda: _action(0, role="boss"), "one of out"),
        (lambda: _action(0, blocks=2), "an axis other than 0"),
        (lambda: _action(0, eps=1e-5), "exponent is not 2"),
        (lambda: _action(0, eps=float("nan")), "a finite number"),
        (lambda: _action(0, segments=()), "segments: expected 1 to"),
        (lambda: _action(0, segments=(Segment("conv1", -1, 1, 2),)), "offset >= 0"),
        (lambda: _action(0, segments=(Segment("conv1", 0, 1, 1),)), "every channel of 'conv1'"),
        (lambda: _action(0, segments=(Segment("conv1", 0, 1, 3),)), "the last of 2 channels"),
        (lambda: _action(0, segments=(Segment("conv1", 0, 1, 2), Segment("conv1", 1, 1, 2))), "segments apart"),
        (lambda: _action(0, segments=(Segment("conv1", 0, 1, 1), Segment("conv1", 1, 2, 1))), "inner 1 for every"),
        (lambda: _action(2, segments=(Segment("conv1", 1, 1, 2),)), "without a hole"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_right_is_refused_with_the_reason(make, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        make()


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(SpecError) as refused:
        replace(_group(), groups=(Group("a", 0, Sym(), "x"), Group("b", -1, Sym(), "none")))
    assert len(refused.value.problems) == 3


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (Tensor("conv2.bias", (10, 1, 5, 5)), "no such tensor"),
        (Tensor("conv2.weight", (10,)), "an axis of shape"),
        (Tensor("conv2.weight", (9, 1, 5, 5)), "a number of blocks that divides 9"),
        (Tensor("conv2.weight", (8, 1, 5, 5)), "segments within 8 positions"),
        (Tensor("conv2.weight", (10, 2, 5, 5)), "segments within 4 positions"),
        (Tensor("conv2.weight", (10, 1, 5, 5), "int64"), "a floating-point tensor"),
    ],
)
def test_a_table_of_another_architecture_is_refused(tensor: Tensor, says: str) -> None:
    tensors = tuple(tensor if item.name == "conv2.weight" else item for item in ARCH.tensors)
    with pytest.raises(SpecError, match=says):
        TABLE.check(Architecture("other", tensors))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (AxisAction("u", 0, (Segment("c", 0, 1, 4, 1),), 1, False, "bias"), "the inverse of the action's"),
        (AxisAction("u", 0, (Segment("c", 0, 1, 4, 0),), 1, False, "bias"), "the inverse of the action's"),
        (AxisAction("u", 0, (Segment("c", 0, 1, 4, -1),), 0, False, "bias"), "the inverse of the action's"),
        (AxisAction("u", 0, (Segment("c", 0, 1, 4, -1),), 1, False, "bias", absolute=True), "none beside signs"),
        (AxisAction("u", 0, (Segment("c", 0, 1, 4), Segment("c", 3, 1, 4, -1)), 1, False, "bias"), "segments apart"),
        (AxisAction("u", 0, (Segment("c", 0, 1, 4), Segment("c", 4, 1, 2, -1)), 1, False, "bias"), "every channel of"),
    ],
)
def test_segments_with_an_exponent_of_their_own_that_are_refused(action: AxisAction, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Symmetry((Group("c", 4, Sym(), "positive"),), (action,))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (AxisAction("u", 0, (Segment("f", 0, 2, 6, within="z"),), 1, True, "out"), "unknown group 'z'"),
        (AxisAction("u", 0, (Segment("f", 0, 2, 6, within=3),), 1, True, "out"), "the id of a group"),  # pyright: ignore
        (AxisAction("u", 0, (Segment("f", 0, 2, 6, within="a"),), 1, True, "out"), "two groups of one block"),
        (AxisAction("u", 0, (Segment("f", 0, 2, 6, within="p"),), 1, True, "out"), "two groups of one block"),
        (AxisAction("u", 0, (Segment("f", 0, 2, 6, within="f"),), 1, True, "out"), "another group, and one without"),
        (AxisAction("u", 0, (Segment("e", 0, 3, 4, within="f"),), 1, True, "out"), "another group, and one without"),
        (AxisAction("u", 0, (Segment("f", 0, 3, 6, within="e"),), 1, True, "out"), "a multiple of the 2 channels"),
        (AxisAction("u", 0, (Segment("f", 0, 2, 6, within="e"),), 2, False, "variance"), "none beside signs"),
        (AxisAction("u", 0, (Segment("f", 0, 2, 6, within="e"),), 1, True, "out", absolute=True), "none beside signs"),
        (AxisAction("u", 1, (Segment("f", 0, 2, 6, within="e"),), 1, True, "out", blocks=2), "none beside signs"),
        (
            AxisAction("u", 0, (Segment("f", 0, 2, 3, within="e"), Segment("f", 6, 2, 3)), 1, True, "out"),
            "within 'e' for every channel of 'f'",
        ),
    ],
)  # fmt: skip
def test_segments_with_a_group_inside_that_are_refused(action: AxisAction, message: str) -> None:
    groups = {
        "e": Group("e", 4, Wreath("o", 2, 2, "fixed"), "nonzero"),
        "f": Group("f", 6, Wreath("o", 2, 3), "none"),
        "a": Group("a", 4, Sym(), "none"),
        "p": Group("p", 4, Wreath("p", 2, 2), "none"),
    }
    names = sorted(name for name in action.groups if name in groups)
    with pytest.raises(SpecError, match=message):
        Symmetry(tuple(groups[name] for name in names), (action,))


def test_an_action_in_parts_of_one_exponent() -> None:
    action = EVERY_KIND.actions[-2]
    assert [(part.exponent, part.segments) for part in action.parts] == [
        (1, (Segment("c", 0, 1, 4),)),
        (-1, (Segment("c", 4, 1, 4),)),
    ]
    assert EVERY_KIND.actions[0].parts == (EVERY_KIND.actions[0],)


def _gated(segments: tuple[Segment, ...], gates: tuple[Segment, ...], exponent: int = -1, **more: Any) -> AxisAction:
    return AxisAction("u", 1, segments, exponent, True, "in", gates=gates, **more)


VALUE, GATE = Segment("value", 0, 1, 4), Segment("gate", 0, 1, 4)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (_gated((VALUE,), (GATE,), 0), "exponent 1 or -1 beside them"),
        (_gated((VALUE,), (GATE,), 2), "exponent 1 or -1 beside them"),
        (_gated((VALUE,), (GATE,), blocks=2), "exponent 1 or -1 beside them"),
        (_gated((VALUE,), (GATE,), absolute=True), "exponent 1 or -1 beside them"),
        (_gated((VALUE,), (GATE,), 1, signs=(Segment("other", 0, 1, 4),)), "exponent 1 or -1 beside them"),
        (_gated((VALUE, Segment("value", 4, 1, 4, 1)), (GATE,)), "exponent 1 or -1 beside them"),
        (_gated((VALUE,), (replace(GATE, exponent=1),)), "exponent 1 or -1 beside them"),
        (_gated((replace(VALUE, within="blocks"),), (GATE,)), "exponent 1 or -1 beside them"),
        (_gated((replace(VALUE, part=0),), (GATE,)), "exponent 1 or -1 beside them"),
        (_gated((VALUE,), (Segment("gate", 0, 1, 0),)), "count >= 1"),
        (_gated((VALUE,), (Segment("unknown", 0, 1, 4),)), "unknown group 'unknown'"),
        (_gated((VALUE,), (VALUE,)), "other groups than those that they multiply"),
        (_gated((VALUE,), (Segment("still", 0, 1, 4),)), "groups with scales"),
        (_gated((VALUE,), (Segment("mixed", 0, 1, 4),)), "groups with scales"),
        (_gated((Segment("mixed", 0, 1, 4),), (GATE,)), "groups without matrices"),
        (_gated((VALUE,), (Segment("gate", 0, 1, 2),)), "every channel of 'gate'"),
        (_gated((VALUE,), (Segment("gate", 4, 1, 4),)), "listed as those that they multiply"),
        (_gated((Segment("value", 0, 2, 4),), (GATE,)), "listed as those that they multiply"),
        (_gated((VALUE,), (Segment("gate", 0, 1, 1), Segment("gate", 1, 1, 3))), "listed as those that they multiply"),
        (
            _gated(
                (Segment("value", 0, 1, 2), Segment("value", 2, 1, 2), Segment("value", 4, 1, 2), Segment("value", 6, 1, 2)),
                (Segment("gate", 0, 1, 2), Segment("gate", 6, 1, 2)),
            ),
            "listed as those that they multiply",
        ),
        (_gated((VALUE,), (Segment("other", 0, 1, 4),)), "permuted with those of the axis"),
    ],
)  # fmt: skip
def test_gates_that_are_refused(action: AxisAction, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Symmetry(_gated_groups(action), (action, *_biases(_gated_groups(action))))


def _gated_groups(action: AxisAction) -> tuple[Group, ...]:
    groups = (
        Group("value", 4, Sym(), "nonzero"),
        Group("gate", 4, Like("value"), "positive"),
        Group("still", 4, Like("value"), "none"),
        Group("other", 4, Sym(), "sign"),
        Group("mixed", 4, Sym(), "linear"),
        Group("blocks", 4, Wreath("o", 2, 2), "none"),
    )
    return tuple(group for group in groups if group.id in action.groups | {"value"})


def _biases(groups: tuple[Group, ...]) -> tuple[AxisAction, ...]:
    return tuple(AxisAction(f"{item.id}.b", 0, (Segment(item.id, 0, 1, 4),), 1, False, "bias") for item in groups)


def test_gates_have_a_place_in_the_tensor() -> None:
    action = _gated((VALUE,), (GATE,))
    table = Symmetry(_gated_groups(action), (action, *_biases(_gated_groups(action))))
    assert action.groups == {"value", "gate"} and action.listed_groups == {"value"}
    assert action.of_gates == replace(action, segments=(GATE,), gates=(VALUE,))
    vectors = tuple(Tensor(f"{name}.b", (4,)) for name in ("value", "gate"))
    table.check(Architecture("gated", (Tensor("u", (3, 4)), *vectors)))
    with pytest.raises(SpecError, match="segments within 3 positions"):
        table.check(Architecture("gated", (Tensor("u", (3, 3)), *vectors)))


def test_tables_without_gates_have_no_such_field() -> None:
    assert all("gates" not in action for action in TABLE.to_json()["actions"])
    assert EVERY_KIND.to_json()["actions"][-1]["gates"] == [{"group": "d", "offset": 4, "inner": 1, "count": 4}]


def test_gates_without_scales_are_left_out() -> None:
    groups = tuple(replace(group, scale="none") if group.id == "d" else group for group in EVERY_KIND.groups)
    actions = with_scaled_gates(EVERY_KIND.actions, groups)
    assert Symmetry(groups, actions).actions[-1] == replace(EVERY_KIND.actions[-1], gates=())
    assert with_scaled_gates(EVERY_KIND.actions, EVERY_KIND.groups) == EVERY_KIND.actions
