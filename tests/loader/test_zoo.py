"""The loader's API, as its user meets it."""

import re
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import IntegrityError, SpecError, UnknownNameError, ZooError
from ckptzoo.format.writer import Writer
from tests.conftest import MIXED, rows_of, weights_of
from tests.support.effort import examples


@pytest.fixture
def zoo(make_zoo):
    return ckptzoo.open(make_zoo((6, 4, 7))[0])


_INTERNAL = re.compile(r"BinOp|BoolOp|IfExp|Constant|kernel|Function|FieldRef|<unknown>|line \d")
"""Classes of Python's parser and functions of Arrow, which are no words of a user."""


@pytest.fixture(scope="module")
def kept_zoo(tmp_path_factory):
    """Seventeen checkpoints in one part, for tests that only read."""
    path = tmp_path_factory.mktemp("kept") / "zoo"
    with ckptzoo.create(path, arch=MIXED) as writer:
        writer.add(weights_of(MIXED, 17), rows_of(17))
    return ckptzoo.open(path)


@pytest.fixture
def full(zoo):
    return weights_of(MIXED, 17)


def test_what_a_zoo_says_of_itself(zoo):
    assert len(zoo) == 17 and zoo.name == "zoo" and zoo.arch == MIXED and zoo.variants == ("raw",)
    assert repr(zoo) == "<zoo zoo: 17 checkpoints of mixed, 3 parts>"
    assert zoo.metadata.num_rows == 17 and zoo.metadata["id"].to_pylist() == zoo.ids
    assert zoo.layers["norm"] == ("norm.running_var", "norm.num_batches_tracked") and zoo.layers["flag"] == ("flag",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        3, -1, slice(None), slice(2, 5), slice(None, None, 3), slice(None, None, -1), slice(5, 5), [1, 2, 3], [16, 0, 7],
        [], np.array([4, 4]), np.arange(17) % 2 == 0, (slice(3, 14), 1), (3, 1), (slice(None), slice(0, 2), 1),
        ([5, 12], ..., 0), ..., (..., 1), (slice(None), None), ([5, 12], [0, 1]), (slice(3, 9), [2, 0]), (3, [2, 0]),
        ([9, 2, 2], slice(None), 1), ([9, 2], 1, slice(None)), ([9, 2], None, 1),
    ],
)  # fmt: skip
def test_indexing_is_numpys(zoo, full, key):
    if isinstance(key, list) and not key:
        key = np.array(key, dtype=int)
    expected = full["conv.weight"][key]
    assert np.array_equal(zoo["conv.weight"][key], expected) and zoo["conv.weight"][key].shape == expected.shape


def test_a_stacked_tensor_is_an_array(zoo, full):
    stacked = zoo["half.weight"]
    assert stacked.shape == (17, 5) and stacked.dtype == np.float16 and stacked.ndim == 2 and len(stacked) == 17
    assert stacked.size == 85 and stacked.nbytes == 170 and "17, 5" in repr(stacked)
    assert np.array_equal(np.asarray(stacked), full["half.weight"])
    assert np.asarray(stacked, dtype=np.float64).dtype == np.float64
    assert [row.tolist() for row in stacked] == full["half.weight"].tolist()
    assert np.array_equal(np.concatenate(list(stacked.views())), full["half.weight"])
    with pytest.raises(IndexError):
        stacked[17]
    with pytest.raises(IndexError):
        stacked[[0, 99]]
    assert zoo["norm.num_batches_tracked"].shape == (17,)
    assert zoo["tied.weight"].name == "tied.weight" and np.asarray(zoo["tied.weight"]).shape == (17, 2, 3)


def test_nothing_is_copied_within_a_shard_and_nothing_can_be_written(zoo):
    for rows in (slice(0, 6), slice(1, 6, 2), [2, 4], 3):
        assert not zoo["conv.weight"][rows].flags.owndata
        assert not zoo["conv.weight"][rows].flags.writeable
    assert np.shares_memory(zoo["conv.weight"][0:3], zoo["conv.weight"][2:5])
    assert len(list(zoo["conv.weight"].views())) == 3
    with pytest.raises(ValueError, match="read-only"):
        zoo["conv.weight"][0:3][:] = 0


def test_selections(zoo, full):
    good = zoo.where([("test_accuracy", ">", 0.03), ("seed", "<", 12)])
    assert good.ids == [f"m{at:05d}" for at in range(4, 12)]
    same = [
        "test_accuracy > 0.03 and seed < 12",
        "0.03 < test_accuracy and not seed >= 12",
        "seed in [4, 5, 6, 7, 8, 9, 10, 11]",
        "id >= 'm00004' and id <= 'm00011' and created is None",
        pc.field("seed") > 3,
        [[("seed", "in", [4, 5])], [("seed", ">", 5)]],
    ]
    for filters in same:
        assert zoo.where(filters).where("seed < 12").ids == good.ids
    assert np.array_equal(np.asarray(good["conv.weight"]), full["conv.weight"][4:12])
    assert np.array_equal(good["conv.weight"][[7, 0]], full["conv.weight"][[11, 4]])
    assert zoo.take([5, 3]).ids == ["m00005", "m00003"] and len(zoo.take(np.zeros(17, bool))) == 0
    assert good.metadata["seed"].to_pylist() == list(range(4, 12))
    assert zoo.where([]).ids == zoo.ids and len(zoo.where("seed > 99")) == 0


def test_positions_give_checkpoints_and_selections(zoo, full):
    assert zoo[3].id == "m00003" and zoo[-1].id == "m00016" and zoo[np.int64(2)].id == "m00002"
    assert zoo[3].variant == "raw" and np.array_equal(zoo[3]["conv.weight"], full["conv.weight"][3])
    assert zoo.where("seed > 10")[0].id == "m00011"
    assert zoo[2:5].ids == zoo.ids[2:5] and zoo[::-5].ids == zoo.ids[::-5] and zoo[[4, 1]].ids == ["m00004", "m00001"]
    assert zoo[np.arange(17) < 2].ids == ["m00000", "m00001"] and zoo[range(2)].ids == ["m00000", "m00001"]
    for position in (17, -18):
        with pytest.raises(IndexError, match=f"zoo: position: expected -17 to 16, got {position}"):
            zoo[position]


def test_iteration_gives_every_checkpoint_in_order(zoo, full):
    some = zoo[[5, 3]]
    assert [checkpoint.id for checkpoint in some] == ["m00005", "m00003"]
    assert all(np.array_equal(item["conv.weight"], full["conv.weight"][item.row["seed"]]) for item in zoo)
    assert list(zoo[:0]) == []


def test_membership_is_that_of_ids(zoo):
    assert "m00003" in zoo and "m00099" not in zoo and 3 not in zoo and None not in zoo
    assert "m00003" not in zoo[5:] and zoo[7] in zoo and zoo[7] not in zoo[:3]
    with pytest.raises(ZooError, match=r"'conv.weight' in zoo: expected a checkpoint's id, got a tensor's name"):
        assert "conv.weight" in zoo


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("norm", r"'norm' is a layer: read its tensors by their names, or stream them all: zoo.stream\('norm'\)"),
        ("raw", r"'raw' is a variant: write zoo\['conv.weight', 'raw'\]"),
        ("seed", r"'seed' is a column: write zoo.metadata\['seed'\]"),
        ("m00003", r"'m00003' is a checkpoint: write zoo.checkpoint\('m00003'\)"),
        (("conv.weight", 0), r"expected a tensor's name, .* Write zoo\['conv.weight'\]\[...\] to index"),
        (("conv.weight", "raw", "raw"), r"expected a tensor's name"),
        (None, r"got None. Write, for example, zoo\['conv.weight'\]"),
        (1.5, "got 1.5"),
        (True, "got True"),
    ],
)
def test_other_keys_are_explained(kept_zoo, key, message):
    with pytest.raises(ZooError, match=message):
        kept_zoo[key]


@pytest.mark.parametrize(
    "filters",
    [
        {"seed": [4, 5], "diverged": None},
        {"seed": np.array([4, 5, 5])},
        {"seed": {4, 5}, "id": ["m00004", "m00005", "x"]},
        [("seed", "in", range(4, 6))],
        [("seed", ">=", np.int64(4)), ("seed", "<", 5.5)],
        [("seed", "in", [4.0, 5.0, 4.5, 10**30])],
        [("diverged", "==", None), ("seed", "in", [4, 5])],
        [[("seed", "=", 4)], [("seed", "=", 5)]],
        [("seed", "not in", [*range(4), *range(6, 17)])],
        np.isin(np.arange(17), [4, 5]),
        [at in (4, 5) for at in range(17)],
        pc.is_in(pa.chunked_array([range(9), range(9, 17)]), pa.array([4, 5])),
        pa.array([None, None, None, None, True, True, *[False] * 11]),
        "(seed > 3) & (seed < 6)",
        "(seed == 4) | (seed == 5)",
        "(seed > 3) & ~(seed >= 6)",
        "diverged == None and seed in {4, 5}",
        "3 < seed <= 5 and seed < 999999999999999999999999 and test_accuracy < 99999999999999999999999",
        "created != '2024-01-31' or seed in (4, 5)",
    ],
)
def test_every_form_of_a_filter(kept_zoo, filters):
    assert kept_zoo.where(filters).ids == ["m00004", "m00005"]


def test_one_term_and_no_terms(zoo):
    assert zoo.where(("seed", "==", 3)).ids == zoo.where({"seed": 3}).ids == ["m00003"]
    assert zoo.where({}).ids == zoo.where([]).ids == zoo.ids and len(zoo[:0].where(np.zeros(0, bool))) == 0


@pytest.mark.parametrize(
    ("filters", "named"),
    [
        ("epoch < 5", "column 'epoch'"),
        ("not epoch < 5", "column 'epoch'"),
        ("epoch > 2 or seed > 99", "column 'epoch'"),
        ("seed == 3 and 0 < epoch < 5 and method == 'seed'", "columns 'epoch' and 'method'"),
        ({"epoch": [1, 2]}, "column 'epoch'"),
        ([("method", "==", "epoch")], "column 'method'"),
        (pc.field("diverged"), "column 'diverged'"),
    ],
)
def test_columns_without_values_that_no_row_can_meet_a_condition_on_are_named(kept_zoo, filters, named):
    for zoo in (kept_zoo, kept_zoo.take([5, 3])):
        with pytest.warns(UserWarning) as warned:
            assert len(zoo.where(filters)) == 0
        (warning,) = warned
        got = f"zoo: {named}: empty in all {len(zoo)} checkpoints, so that no comparison holds. "
        assert str(warning.message).startswith(got) and warning.filename == __file__


@pytest.mark.parametrize(
    "filters",
    [
        "seed > 99 and epoch is None",
        "epoch is not None",
        "seed > 99 and epoch not in [3]",
        "id == 'epoch'",
        "epoch < 5 or seed == 3",
        {"epoch": None, "seed": 99},
        {"epoch": [None, 2], "seed": 99},
        np.zeros(17, bool),
    ],
)
def test_conditions_that_empty_columns_do_not_decide_warn_of_nothing(kept_zoo, filters):
    kept_zoo.where(filters)
    kept_zoo[:0].where("epoch < 5")


def test_times_are_compared_with_dates(tmp_path):
    days = [datetime(2024, 1, day, 12, tzinfo=UTC) for day in (1, 2, 3)]
    rows = [{"id": f"day-{at}", "created": day} for at, day in enumerate(days)]
    with ckptzoo.create(tmp_path / "zoo", arch=MIXED) as writer:
        writer.add(weights_of(MIXED, 4), [*rows, {"id": "unknown"}])
    zoo = ckptzoo.open(tmp_path / "zoo")
    for filters in (
        "created >= '2024-01-02'",
        "created > '2024-01-02T13:30+02:00'",
        [("created", ">", date(2024, 1, 2))],
        [("created", ">=", days[1])],
        "created in ['2024-01-02 12:00', '2024-01-03 12:00']",
    ):
        assert zoo.where(filters).ids == ["day-1", "day-2"]
    assert zoo.where("created is None").ids == ["unknown"]
    with pytest.raises(ZooError, match=r"expected a date to compare the column 'created' .* got the string 'spring'"):
        zoo.where("created > 'spring'")


def draws_zoo(path):
    """One part a mode: four draws of SWAG, then three of Laplace; and two independent members before them."""
    weights, start = weights_of(MIXED, 16), 0
    writer = ckptzoo.create(path, arch=MIXED)
    parts = [[{"id": f"net-{mode}", "member": f"net-{mode}"} for mode in (0, 1)]]
    for mode in (0, 1):
        methods = (("swag", 4), ("laplace", 3))
        parts.append([
            {"id": f"{method}-{mode}-{draw}", "method": method, "mode": f"net-{mode}", "draw": draw}
            for method, count in methods for draw in range(count)
        ])  # fmt: skip
    for rows in parts:
        writer.add({name: array[start : start + len(rows)] for name, array in weights.items()}, rows)
        writer.commit()
        start += len(rows)
    return ckptzoo.open(path), weights


def test_one_layer_of_all_draws_of_a_method(tmp_path):
    zoo, weights = draws_zoo(tmp_path / "draws")
    swag = zoo.where("method == 'swag'")
    places = [2, 3, 4, 5, 9, 10, 11, 12]
    assert np.array_equal(swag["conv.weight"][:], weights["conv.weight"][places])
    assert swag.where("draw < 2").ids == ["swag-0-0", "swag-0-1", "swag-1-0", "swag-1-1"]
    assert zoo.where([("method", "=", "laplace"), ("mode", "=", "net-1")]).ids == [f"laplace-1-{n}" for n in range(3)]
    assert zoo.where("method is None").ids == ["net-0", "net-1"]
    assert zoo.where("method == 'swag' and draw >= 2 and mode == 'net-1'").ids == ["swag-1-2", "swag-1-3"]
    # each mode's draws are one run of rows: read without a copy, and put together with one copy
    views = list(swag["conv.weight"].views())
    assert [len(view) for view in views] == [4, 4] and not any(view.flags.owndata for view in views)
    of_mode = swag.where("mode == 'net-1'")["conv.weight"][:]
    assert of_mode.flags.c_contiguous and np.shares_memory(of_mode, views[1])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"method": "swag", "draw": -1}, "column 'draw': expected numbers from 0, got 1 others, such as -1"),
        ({"draw": 0}, "column 'method': expected the method .* got none in 1 rows with a mode or a draw, such as 'a'"),
        ({"mode": "net-0"}, "column 'method'"),
        ({"method": "swag", "draw": 0.5}, "column 'draw'"),
    ],
)
def test_draws_that_make_no_sense_are_refused(tmp_path, row, message):
    writer = ckptzoo.create(tmp_path / "zoo", arch=MIXED)
    with pytest.raises(SpecError, match=message):
        writer.add(weights_of(MIXED, 2), [{"id": "a", **row}, {"id": "b", "method": "swag", "mode": "m", "draw": 3}])


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("test_acuracy > 0.8", "Did you mean test_accuracy"),
        ("__import__('os').system('true')", "expected a comparison"),
        ("seed + 1 > 2", "expected a column, a number or a string"),
        ("seed > (lambda: 1)()", "expected a column"),
        ("seed >", "expected a condition"),
        ("seed > 'three'", r"expected a number to compare the column 'seed' \(int64\) with, got the string 'three'"),
        ("seed in [1, 'a']", "expected a number to compare the column 'seed'.* got the string 'a'"),
        ([("seed", "==", "x")], "expected a number .* got the string 'x'. Write, for example, seed == 3"),
        ({"seed": "x"}, "expected a number .* got the string 'x'"),
        ({"sed": 3}, "Did you mean seed"),
        ({3: 3}, "filters: expected a condition as text"),
        ("id > 3", "expected a string to compare the column 'id'"),
        ("diverged == 1", "expected True or False .* got the number 1. Write, for example, diverged == False"),
        ("seed > test_accuracy and id > seed", "expected a string .* got the column 'seed'"),
        ("seed", r"expected a comparison, got the column 'seed' \(int64\) alone. Write, for example, seed == 3"),
        ("not id", "got the column 'id'"),
        ("seed > 1 & seed < 3", r"got arithmetic. Write and, or and not, or brackets round each comparison"),
        ("seed > 1 && seed < 3", "Write and, or and not"),
        ("-seed > 1", "'-seed': expected a column, a number or a string, got arithmetic"),
        ("seed < -'x'", "got arithmetic"),
        ("seed == [1]", "got a list"),
        ("id == m0-half", "expected a string, got 'm0 - half' without quotes. Write, for example, id == 'name'"),
        ("id == abc", "expected a string, got 'abc' without quotes. Write, for example, id == 'name'"),
        ("seed is 3", "expected == or !=, got is"),
        ("seed in 3", r"expected a list behind in, got the number 3. Write, for example, seed in \[1, 2\]"),
        ("3 in [3]", "expected a column before in"),
        ([("seed", "in", 3)], "expected a list behind in"),
        ("seed > None", "To find missing values write: seed is None"),
        ("3 == 3", "expected a comparison with a column"),
        ("id.startswith('m')", "expected a comparison, got a call"),
        ("", "expected a condition, got nothing"),
        ("seed > (1", "expected a condition, got '.' was never closed"),
        (3, "expected a condition as text"),
        (len, "got a function. Write, for example, zoo.where"),
        ([("seed", 3)], "expected a condition as text"),
        ([True] * 5, r"mask: expected booleans of shape \(17,\), one a checkpoint, got bool of shape \(5,\)"),
        (np.arange(5), r"got int64 of shape \(5,\). Positions are taken with zoo.take\(positions\)"),
        ([3, 1], "Positions are taken with zoo.take"),
        (pc.field("sed") > 3, "Did you mean seed"),
        (pc.field("seed") == "x", r"expression: expected a condition that fits the columns' types"),
        (pc.field("seed") + 1, r"of the column 'seed' \(int64\)"),
        ([("sed", ">", 1)], "Did you mean seed"),
        ([("seed", "~", 1)], "filters: expected one of ==, .* got '~'"),
        ("(" * 5000 + "seed" + ")" * 4999, "expected"),
        ("x" * 20000, "at most 10,000 characters"),
        ("seed = 3", "Compare with =="),
        ("seed is null", "write: seed is None"),
        ("diverged == false", "Write, for example, diverged == False"),
    ],
)
def test_conditions_that_are_refused(kept_zoo, condition, message):
    with pytest.raises(ZooError, match=message) as caught:
        kept_zoo.where(condition)
    assert not _INTERNAL.search(str(caught.value))


numbers = st.integers(-3, 20) | st.sampled_from([0.035, 5.5, 1e300, 10**30, -(10**30), 10**400])
operands = st.sampled_from(["seed", "test_accuracy", "step"])
symbols = st.sampled_from(["<", "<=", "==", "!=", ">", ">="])
comparisons = st.one_of(
    st.builds("{} {} {}".format, operands, symbols, numbers | operands),
    st.builds("{} {} {} {} {}".format, numbers, symbols, operands, symbols, numbers),
    st.builds("{} {} {}".format, operands, st.sampled_from(["in", "not in"]), st.lists(numbers, max_size=4)),
    st.builds("id {} 'm{:05}'".format, symbols, st.integers(0, 20)),
)
conditions = st.recursive(
    comparisons,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner)
        | st.builds("(not {})".format, inner)
    ),
    max_leaves=6,
)


@settings(max_examples=examples(1000), deadline=None)
@given(conditions)
def test_conditions_mean_what_they_mean_in_python(kept_zoo, condition):
    rows = kept_zoo.metadata.select(["id", "seed", "test_accuracy", "step"]).to_pylist()
    expected = [row["id"] for row in rows if eval(condition, {}, row)]
    assert kept_zoo.where(condition).ids == expected


@settings(max_examples=examples(1000), deadline=None)
@pytest.mark.filterwarnings("ignore:.*empty in all 17 checkpoints")
@given(
    st.lists(
        st.sampled_from(
            [
                "seed",
                "id",
                "created",
                "diverged",
                "3",
                "'a'",
                "None",
                "True",
                "(",
                ")",
                "[",
                "]",
                ",",
                ".",
                "+",
                "-",
                "~",
                "&",
                "and",
                "or",
                "not",
                "in",
                "is",
                "<",
                "==",
                "{}",
                ":",
                "*",
            ]
        )
    )
)
def test_any_text_is_a_condition_or_is_explained(kept_zoo, words):
    try:
        kept_zoo.where(" ".join(words))
    except ZooError as error:
        assert not _INTERNAL.search(str(error))


def test_a_module_stands_for_the_layers_in_it(tmp_path):
    names = ("body.0.weight", "body.2.0.weight", "body.2.0.bias", "bodyguard.weight", "head.weight")
    arch = ckptzoo.Architecture.of({name: np.zeros(2, np.float32) for name in names}, name="nested")
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        writer.add(weights_of(arch, 3), rows_of(3))
    zoo = ckptzoo.open(tmp_path / "zoo")
    for module, within in (("body", names[:3]), ("body.2", names[1:3]), ("body.0", names[:1]), ("head", names[4:])):
        assert tuple(next(iter(zoo.stream(module, batch_size=2))).tensors) == within
        ckptzoo.pull(str(tmp_path / "zoo"), tmp_path / module, layers=[module])
        assert ckptzoo.open(tmp_path / module).arch.names == within
    with pytest.raises(UnknownNameError, match=r"'body' is a module: .*zoo\.stream\('body'\)"):
        zoo["body"]


def test_unknown_names_list_the_near_ones(zoo):
    with pytest.raises(UnknownNameError, match=r"Did you mean conv\.weight"):
        zoo["conv.weigth"]
    with pytest.raises(UnknownNameError, match="variant 'canonica'"):
        zoo["conv.weight", "canonica"]
    with pytest.raises(UnknownNameError, match="checkpoint 'm0001'"):
        zoo.checkpoint("m0001")
    with pytest.raises(UnknownNameError, match="checkpoint 'm00001'"):
        zoo.where("seed > 3").checkpoint("m00001")
    with pytest.raises(KeyError):
        zoo["none"]
    with pytest.raises(
        UnknownNameError, match=r"expected one of norm\.running_var, norm\.num_batches_tracked, got 'norm'"
    ):
        zoo["norm"]


def test_one_checkpoint(zoo, full):
    checkpoint = zoo.checkpoint("m00007")
    assert checkpoint.row["seed"] == 7 and len(checkpoint) == 6 and "m00007" in repr(checkpoint)
    for name, array in checkpoint.items():
        assert array.tobytes() == full[name][7].tobytes() and array.shape == full[name].shape[1:]
    state = checkpoint.state_dict()
    assert list(state) == [*[t.name for t in MIXED.tensors[:5]], "tied.weight", "flag"]
    state["conv.weight"].zero_()
    assert np.array_equal(zoo["conv.weight"][7], full["conv.weight"][7])
    with pytest.raises(ZooError, match="load_state_dict"):
        checkpoint.model()


def test_training_an_ensemble_in_place_never_changes_the_file(zoo, full):
    before = {path: path.read_bytes() for path in zoo.path.rglob("*.safetensors")}
    first, second = zoo.ensemble(limit=5), zoo.take(slice(0, 10)).ensemble()
    assert first["conv.weight"].shape == (5, 3, 2, 2) and second["conv.weight"].shape == (10, 3, 2, 2)
    for ensemble in (first, second):
        assert np.array_equal(ensemble["conv.weight"].numpy(), full["conv.weight"][: len(ensemble["conv.weight"])])
        for tensor in ensemble.values():
            tensor.fill_(1)
    assert {path: path.read_bytes() for path in before} == before
    assert np.array_equal(np.asarray(zoo["conv.weight"]), full["conv.weight"])
    assert np.array_equal(zoo.ensemble(limit=5)["conv.weight"].numpy(), full["conv.weight"][:5])


def test_ensembles_take_each_members_last_step(tmp_path):
    rows = [
        {"id": f"{member}-{step}", "member": member, "step": step}
        for step in (0, 20, 10)
        for member in ("b", "a")
    ] + [{"id": "c", "step": None}]  # fmt: skip
    with ckptzoo.create(tmp_path / "zoo", arch=MIXED) as writer:
        writer.add(weights_of(MIXED, 7), rows)
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert zoo.last_steps().ids == ["b-20", "a-20", "c"]
    assert zoo.ensemble()["flag"].shape == (3, 1) and zoo.ensemble(steps="all")["flag"].shape == (7, 1)
    with pytest.raises(UnknownNameError, match="steps 'first'"):
        zoo.ensemble(steps="first")
    with pytest.raises(ZooError, match="limit: expected 0 or more, got -1"):
        zoo.ensemble(limit=-1)


def test_a_zoo_stays_what_it_was_at_opening(zoo):
    revision, ids = zoo.revision, zoo.ids
    with ckptzoo.append(zoo.path) as writer:
        writer.add(weights_of(MIXED, 3), rows_of(3, 40))
    assert (zoo.revision, zoo.ids, len(zoo)) == (revision, ids, 17) and zoo["flag"].shape == (17, 1)
    again = zoo.refresh()
    assert len(again) == 20 and again.revision != revision and again["flag"].shape == (20, 1)


def test_retracted_checkpoints_are_left_out_and_said(zoo):
    assert ckptzoo.retract(zoo.path, ["m00003", "m00011"], reason="trained on the test set") == 2
    assert ckptzoo.retract(zoo.path, ["m00003"], reason="again") == 0
    with pytest.raises(UnknownNameError, match="checkpoint 'm3'"):
        ckptzoo.retract(zoo.path, ["m3"], reason="x")
    with pytest.warns(UserWarning, match="zoo: 2 of 17 checkpoints retracted and left out"):
        left = ckptzoo.open(zoo.path)
    with pytest.raises(ZooError, match="checkpoint 'm00003': retracted, because 'trained on the test set'"):
        left.checkpoint("m00003")
    assert len(left) == 15 and "m00003" not in left.ids and left["conv.weight"].shape[0] == 15
    assert left.retracted["reason"].to_pylist() == ["trained on the test set"] * 2
    assert left.revision != zoo.revision and ckptzoo.verify(zoo.path) == []
    assert [len(batch) for batch in left.stream("flag", batch_size=10)] == [10, 5]


@pytest.mark.slow
@pytest.mark.parametrize("late", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_snapshot_opens_the_same_zoo(make_zoo, late):
    path, _ = make_zoo(tuple([2] * 30))
    ckptzoo.retract(path, ["m00001"], reason="a test")
    ckptzoo.compact(path)
    if late:
        with ckptzoo.append(path) as writer:
            writer.add(weights_of(MIXED, 3), rows_of(3, 70))
    with pytest.warns(UserWarning, match="retracted"):
        with_snapshot = ckptzoo.open(path)
    assert with_snapshot.contents.snapshot is not None
    for snapshot in (path / "snapshots").iterdir():
        snapshot.unlink()
    with pytest.warns(UserWarning, match="retracted"):
        without = ckptzoo.open(path)
    assert without.contents.snapshot is None
    assert with_snapshot.metadata.equals(without.metadata) and with_snapshot.revision == without.revision
    assert with_snapshot.contents.raw.parts == without.contents.raw.parts
    for name in MIXED.names:
        assert np.asarray(with_snapshot[name]).tobytes() == np.asarray(without[name]).tobytes()


def test_a_newer_snapshot_replaces_the_older(make_zoo):
    path, _ = make_zoo((2, 2))
    first = ckptzoo.compact(path)
    assert ckptzoo.compact(path) == first
    with ckptzoo.append(path) as writer:
        writer.add(weights_of(MIXED, 1), rows_of(1, 9))
    second = ckptzoo.compact(path)
    assert [found.name for found in (path / "snapshots").iterdir()] == [second.name] != [first.name]


def test_more_shards_than_are_kept_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr("ckptzoo.loader.shard_index.MAX_MAPS", 3)
    ckptzoo.create(tmp_path / "zoo", arch=MIXED)
    with Writer(tmp_path / "zoo", MIXED, shard_bytes=MIXED.nbytes) as writer:
        writer.add(weights_of(MIXED, 12), rows_of(12))
    zoo, full = ckptzoo.open(tmp_path / "zoo"), weights_of(MIXED, 12)
    views = list(zoo["conv.weight"].views())
    assert len(views) == 12 and np.array_equal(np.concatenate(views), full["conv.weight"])
    order = np.random.default_rng(0).permutation(12)
    assert np.array_equal(zoo["conv.weight"][order], full["conv.weight"][order])


def test_load_dataset_reads_the_metadata(zoo, tmp_path):
    from datasets import load_dataset

    table = load_dataset(str(zoo.path), "metadata", cache_dir=str(tmp_path / "cache"))["train"]
    assert table["id"] == zoo.ids and table["seed"] == zoo.metadata["seed"].to_pylist()
    assert table.features["claimed_test_loss"].dtype == "float64"  # null throughout, and still typed


def test_a_shard_that_went_away_or_shrank_is_named(zoo):
    shard = next(zoo.path.glob("parts/000002-*/raw-00.safetensors"))
    data = shard.read_bytes()
    for broken, word in ((None, "no file"), (data[:-1], f"expected {len(data)} bytes, got {len(data) - 1}")):
        shard.unlink() if broken is None else shard.write_bytes(broken)
        with pytest.raises(IntegrityError, match=rf"000002-.*raw-00.safetensors: .*{word}"):
            ckptzoo.open(zoo.path) if broken is None else zoo["flag"][7]
    shard.unlink()
    with pytest.raises(IntegrityError, match="No such file"):
        zoo["flag"][7]


def test_a_permutation_of_all_checkpoints_permutes_their_metadata(zoo, full):
    order = np.random.default_rng(0).permutation(17)
    again = zoo.take(order)
    assert again.ids == [f"m{at:05d}" for at in order] and again.metadata["seed"].to_pylist() == order.tolist()
    assert np.array_equal(np.asarray(again["conv.weight"]), full["conv.weight"][order])
    assert np.array_equal(again.checkpoint("m00003")["conv.weight"], full["conv.weight"][3])
    assert [name for batch in again.stream("flag", batch_size=5) for name in batch.ids] == again.ids


@pytest.mark.parametrize("digits", ["9223372036854775808", "1" + "0" * 30, "1_" + "0" * 30, "9" * 4000, "1e999"])
def test_numbers_beyond_a_column_are_written_out(make_zoo, digits):
    """Seeds are 64-bit integers; the condition is a text, as of ``--where``."""
    zoo = ckptzoo.open(make_zoo((4,))[0])
    assert len(zoo.where(f"seed > {digits}")) == len(zoo.where(f"seed == {digits}")) == 0
    assert len(zoo.where(f"seed < {digits}")) == len(zoo.where(f"seed != -{digits}")) == 4
    assert zoo.where(f"-{digits} < seed <= 1 or test_accuracy > {digits}").ids == zoo.ids[:2]
    assert zoo.where(f"seed in [{digits}, 3]").ids == zoo.ids[3:]
    with pytest.raises(ZooError, match="expected a column, a number or a string, got arithmetic"):
        zoo.where("seed > 10**30")


def test_numbers_of_thousands_of_digits_are_refused(make_zoo):
    """Python reads no decimal number of more than 4,300 digits."""
    with pytest.raises(ZooError, match="expected a condition"):
        ckptzoo.open(make_zoo((4,))[0]).where("seed > " + "9" * 5000)
