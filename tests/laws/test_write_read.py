"""write o read = identity, bit for bit, however the checkpoints came in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import ckptzoo
from ckptzoo.errors import IntegrityError, SpecError, UnknownNameError, ZooError
from ckptzoo.format import table
from ckptzoo.format.header import lay_out, read_header
from ckptzoo.format.writer import Writer
from ckptzoo.schema.architecture import ITEMSIZE, Architecture, Tensor
from ckptzoo.schema.metadata import KINDS, LEAST
from tests.conftest import MIXED, rows_of, weights_of
from tests.support.effort import FEW_EXAMPLES, examples

tensors = st.lists(
    st.tuples(st.lists(st.integers(1, 4), max_size=3).map(tuple), st.sampled_from(sorted(ITEMSIZE))),
    min_size=1,
    max_size=6,
).map(lambda found: tuple(Tensor(f"layer{n}.weight", shape, dtype) for n, (shape, dtype) in enumerate(found)))


@settings(max_examples=examples(60, FEW_EXAMPLES), deadline=None)
@given(tensors, st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 4))
def test_identity_bit_for_bit(tmp_path_factory, found, batches, rows_a_shard):
    arch = Architecture("any", found)
    path = tmp_path_factory.mktemp("zoos") / "zoo"
    weights, at = weights_of(arch, sum(batches)), 0
    ckptzoo.create(path, arch=arch)
    with Writer(path, arch, shard_bytes=rows_a_shard * arch.nbytes) as writer:
        for count in batches:
            writer.add({name: array[at : at + count] for name, array in weights.items()}, rows_of(count, at))
            at += count
    assert ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    for name, array in weights.items():
        read = np.asarray(zoo[name])
        assert read.dtype == array.dtype and read.shape == array.shape
        assert read.tobytes() == array.tobytes()
        assert b"".join(view.tobytes() for view in zoo[name].views()) == array.tobytes()


@settings(max_examples=examples(40), deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), count=st.integers(0, 5), drawn=st.data())
def test_a_table_with_fewer_columns_is_read_with_nulls(kind, count, drawn):
    schema = table.schema_of(KINDS[kind])
    held = drawn.draw(st.integers(LEAST[kind], len(schema)))
    rows = table.table_of([{"id": str(at)} for at in range(count)], schema, location="here").select(range(held))
    data = table.encode([rows], {"version": 1}, sealed=True)
    file, _ = table.open_table(data, location="here")
    read = table.read_table(data, file, schema, location="here", least=LEAST[kind])
    assert read.equals(rows)
    for name in rows.column_names:
        assert list(table.plain(read, name)) == list(table.plain(rows, name))
    full = table.filled(read, schema)
    assert full.schema.equals(schema) and full.select(range(held)).equals(rows)
    assert all(full[at].null_count == count for at in range(held, len(schema)))
    if held < len(schema):
        with pytest.raises(IntegrityError, match="no column"):
            table.read_table(data, file, schema, location="here")


@settings(max_examples=examples(100), deadline=None)
@given(tensors, st.integers(1, 50))
def test_headers_are_read_back_and_aligned(found, rows):
    layout = lay_out(found, rows, {"b": "1", "a": "2"})
    assert len(layout.header) % 4096 == 0
    entries = read_header(layout.header[8:], file_size=layout.nbytes, location="here")
    assert entries == tuple(sorted(layout.entries, key=lambda entry: entry.offset))
    assert all(entry.offset % ITEMSIZE[entry.dtype] == 0 for entry in entries)


def test_any_safetensors_reader_reads_a_shard(make_zoo):
    path, weights = make_zoo((5,))
    with safe_open(next(path.glob("parts/*/raw-00.safetensors")), "pt") as shard:
        assert set(shard.keys()) == set(weights)
        for name in set(weights) - {"brain.weight"}:
            assert shard.get_tensor(name).numpy().tobytes() == weights[name].tobytes()


def test_same_inputs_same_bytes(tmp_path):
    for name in ("one", "two"):
        with ckptzoo.create(tmp_path / name / "zoo", arch=MIXED) as writer:
            writer.add(weights_of(MIXED, 6), rows_of(6))
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 7
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_one_by_one_gives_the_same_bytes_as_at_once(tmp_path):
    weights = weights_of(MIXED, 7)
    with ckptzoo.create(tmp_path / "once", arch=MIXED) as writer:
        writer.add(weights, rows_of(7))
    with ckptzoo.create(tmp_path / "single", arch=MIXED) as writer:
        for at, row in enumerate(rows_of(7)):
            writer.add({name: array[at] for name, array in weights.items()}, row)
    once, single = (sorted(path.name for path in (tmp_path / name / "parts").iterdir()) for name in ("once", "single"))
    assert once == single


def test_torch_tensors_and_state_dicts(tmp_path):
    import torch

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(3, 3, bias=False, dtype=torch.bfloat16)
            self.b = torch.nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight
            self.norm = torch.nn.BatchNorm1d(3)

    torch.manual_seed(0)
    members = [Tied() for _ in range(3)]
    with ckptzoo.create(tmp_path / "zoo", arch=members[0].state_dict()) as writer:
        for at, member in enumerate(members):
            writer.add(member.state_dict(), {"id": f"m{at}"})
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert zoo.arch["a.weight"].aliases == ("b.weight",)
    assert [tensor.kind for tensor in zoo.arch.tensors] == ["parameter"] * 3 + ["buffer"] * 3
    for at, member in enumerate(members):
        restored = Tied()
        restored.load_state_dict(zoo.checkpoint(f"m{at}").state_dict())
        for name, value in member.state_dict().items():
            assert torch.equal(restored.state_dict()[name], value), name
    assert zoo.ensemble()["b.weight"].dtype == torch.bfloat16


def test_modules_and_what_is_no_state_dict(tmp_path):
    import torch

    model = torch.nn.Linear(3, 2)
    with ckptzoo.create(tmp_path / "zoo", arch=model) as writer:
        writer.add(model, {"id": "m"})
        with pytest.raises(SpecError, match=r"tensor 'bias': expected \(2,\) float32, got \(3,\)"):
            writer.add({"weight": model.weight, "bias": torch.ones(3)}, {"id": "n"})
    assert np.array_equal(ckptzoo.open(tmp_path / "zoo")["bias"][0], model.bias.detach().numpy())
    with pytest.raises(SpecError, match="got OrderedDict under 'model'"):
        ckptzoo.create(tmp_path / "other", arch={"model": model.state_dict()})


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(IntegrityError, match=r"net\.json: file: expected a readable file, got No such file"):
        ckptzoo.create(tmp_path / "zoo", arch="net.json")
    with pytest.raises(UnknownNameError, match=r"architecture 'optunett'.*Did you mean optunet\?"):
        ckptzoo.create(tmp_path / "zoo", arch="optunett")
    with pytest.raises(SpecError, match=r"card\.toml: file: expected a card in TOML"):
        ckptzoo.create(tmp_path / "zoo", arch=MIXED, card=tmp_path / "card.toml")
    assert not (tmp_path / "zoo").exists()


def test_architecture_from_a_file(tmp_path, make_zoo):
    path, _ = make_zoo()
    ckptzoo.create(tmp_path / "second", arch=path / "architecture.json")
    assert ckptzoo.open(tmp_path / "second").arch == ckptzoo.open(path).arch


def test_non_finite_values_are_kept_and_marked(tmp_path):
    weights = weights_of(MIXED, 3)
    weights["half.weight"][1, 2] = np.nan
    with ckptzoo.create(tmp_path / "zoo", arch=MIXED) as writer:
        writer.add(weights, rows_of(3, test_loss=float("nan")))
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert zoo.metadata["finite"].to_pylist() == [True, False, True]
    assert zoo["half.weight"][1].tobytes() == weights["half.weight"][1].tobytes()
    assert ckptzoo.verify(tmp_path / "zoo") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights, rows: weights.pop("flag"), "tensor 'flag': expected"),
        (lambda weights, rows: weights.update(flags=weights["flag"]), "Did you mean flag"),
        (lambda weights, rows: weights.update(flag=weights["flag"][:2]), r"got \(2, 1\) bool"),
        (
            lambda weights, rows: weights.update({"half.weight": weights["half.weight"].astype("f4")}),
            r"expected \(3, 5\) float16, got \(3, 5\) float32",
        ),
        (lambda weights, rows: rows[1].update(id="m00000"), "'m00000' twice"),
        (lambda weights, rows: rows[1].pop("id"), "column 'id': expected a value in every row"),
        (lambda weights, rows: rows[1].update(sed=3), "Did you mean seed"),
        (lambda weights, rows: rows[1].update(seed="three"), "column 'seed': expected int64"),
        (lambda weights, rows: rows[1].update(seed=1.5), "column 'seed': expected int64 .an integer., got 1.5"),
        (lambda weights, rows: rows[1].update(id=3), "column 'id': expected string"),
        (lambda weights, rows: rows[1].update(id=""), "id: expected 1 to 200 printable characters"),
        (lambda weights, rows: rows[1].update(id="a b"), "1 others, such as 'a b'"),
        (lambda weights, rows: rows[1].update(id="a" * 201), "id: expected 1 to 200"),
        (lambda weights, rows: rows[1].update(test_accuracy=93.0), "expected fractions from 0 to 1, got 1 others"),
        (
            lambda weights, rows: weights.update({"tied.weight": weights["brain.weight"] * 2}),
            "tensor 'tied.weight': expected the values of 'brain.weight'",
        ),
    ],
)
def test_wrong_input_is_refused_and_nothing_is_written(tmp_path, change, message):
    weights, rows = weights_of(MIXED, 3), rows_of(3)
    change(weights, rows)
    writer = ckptzoo.create(tmp_path / "zoo", arch=MIXED)
    with pytest.raises((SpecError, UnknownNameError), match=message):
        writer.add(weights, rows)
    assert writer.commit() is None
    assert not (tmp_path / "zoo" / "parts").exists()


def test_ids_and_units_go_in_once(make_zoo):
    path, _ = make_zoo((4, 3))
    writer = ckptzoo.append(path)
    for rows, message in ((rows_of(1, 2, unit="new"), "checkpoint ids"), (rows_of(1, 9, unit="unit-1"), "unit ids")):
        with pytest.raises(SpecError, match=message):
            writer.add(weights_of(MIXED, 1), rows)
    for rows, message in ((rows_of(1, 20), "checkpoint ids"), (rows_of(1, 21, unit="other"), "unit ids")):
        writer.add(weights_of(MIXED, 1), rows)
        with ckptzoo.append(path) as faster:
            faster.add(weights_of(MIXED, 1), rows if message == "checkpoint ids" else rows_of(1, 22, unit="other"))
        with pytest.raises(SpecError, match=message):
            writer.commit()
        writer.discard()
    assert len(ckptzoo.open(path)) == 9
    assert [name.name for name in (path / "parts").iterdir() if name.name.startswith(".")] == []


def test_a_writer_whose_block_has_ended_takes_no_more(make_zoo):
    path, _ = make_zoo((4,))
    with ckptzoo.append(path) as writer:
        writer.add(weights_of(MIXED, 1), rows_of(1, 20))
    with pytest.raises(ZooError, match=r"with block has ended.*ckptzoo\.append"):
        writer.add(weights_of(MIXED, 1), rows_of(1, 21))
    assert len(ckptzoo.open(path)) == 5


def test_an_exception_discards_and_an_existing_zoo_is_not_made_again(make_zoo):
    path, _ = make_zoo((4,))
    with pytest.raises(KeyboardInterrupt), ckptzoo.append(path) as writer:
        writer.add(weights_of(MIXED, 1), rows_of(1, 20))
        raise KeyboardInterrupt
    assert len(list((path / "parts").iterdir())) == 1
    with pytest.raises(ZooError, match=r"ckptzoo\.append"):
        ckptzoo.create(path, arch=MIXED)


def test_a_killed_writer_leaves_nothing_that_counts(make_zoo):
    path, _ = make_zoo((4,))
    program = (
        "import sys, os, signal; sys.path.insert(0, sys.argv[2]); import ckptzoo; "
        "from tests.conftest import *; w = ckptzoo.append(sys.argv[1]); "
        "w.add(weights_of(MIXED, 3), rows_of(3, 50)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    here = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program, str(path), str(here)], check=False, cwd=here)
    left = [found.name for found in (path / "parts").iterdir() if found.name.startswith(".")]
    assert len(left) == 1
    assert len(ckptzoo.open(path)) == 4 and ckptzoo.verify(path) == []
    with ckptzoo.append(path) as writer:
        writer.add(weights_of(MIXED, 3), rows_of(3, 50))
    assert len(ckptzoo.open(path)) == 7
    assert not (path / "parts" / left[0]).exists()


def test_two_writers_at_once_both_land(make_zoo):
    path, _ = make_zoo((1,))
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); import ckptzoo; from tests.conftest import *; "
        "w = ckptzoo.append(sys.argv[1])\n"
        "for n in range(8): w.add(weights_of(MIXED, 1), rows_of(1, 100 + 10 * int(sys.argv[3]) + n)); w.commit()"
    )
    here = str(Path(__file__).parents[2])
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(path), here, str(number)], cwd=here) for number in range(2)
    ]
    assert [process.wait() for process in running] == [0, 0]
    zoo = ckptzoo.open(path)
    assert len(zoo) == 17 and len({part.name[:6] for part in zoo.contents.raw.parts}) == 17
    assert ckptzoo.verify(path) == []


def test_memory_of_a_writer_is_bounded(tmp_path):
    """160 MB go in one checkpoint at a time; anonymous memory grows by far less."""
    program = """
import sys, numpy as np, ckptzoo
def anonymous():
    return next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('RssAnon'))
arch = ckptzoo.Architecture('wide', (ckptzoo.Tensor('w', (1024, 1024)), ckptzoo.Tensor('b', (1024,))))
one = {t.name: np.ones(t.shape, t.dtype) for t in arch.tensors}
with ckptzoo.create(sys.argv[1], arch=arch) as writer:
    writer.add(one, {'id': 'first'})
    before = anonymous()
    for n in range(40):
        writer.add(one, {'id': str(n)})
    writer.commit()
    print(anonymous() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "zoo")],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert int(done.stdout) < 64 * 1024


def test_rows_of_every_type_come_back(tmp_path):
    from datetime import UTC, datetime

    row = {
        "id": "a", "seed": 2**40, "epoch": 1.5, "diverged": False, "recipe": "r", "extra": {"b": [1, 2]},
        "created": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    }  # fmt: skip
    with ckptzoo.create(tmp_path / "zoo", arch=MIXED) as writer:
        writer.add({name: array[0] for name, array in weights_of(MIXED, 1).items()}, row)
    back = ckptzoo.open(tmp_path / "zoo").metadata.to_pylist()[0]
    assert {name: back[name] for name in row if name != "extra"} == {k: v for k, v in row.items() if k != "extra"}
    assert json.loads(back["extra"]) == {"b": [1, 2]} and back["member"] == "a" and back["finite"] is True
    assert pa.types.is_timestamp(ckptzoo.open(tmp_path / "zoo").metadata["created"].type)
