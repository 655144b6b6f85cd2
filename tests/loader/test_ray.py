"""Zoos as data sources of Ray Data."""

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.errors import MissingExtraError, UnknownNameError, ZooError
from tests.conftest import rows_of, weights_of
from tests.support.serving import Served, running

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra ray is not installed"),
    pytest.mark.slow,
    # of its own settings, which it sets
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
]

MakeZoo = Callable[..., tuple[Path, dict[str, np.ndarray]]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray on this machine alone."""
    import ray
    import ray.data

    ray.init(
        address="local",
        num_cpus=1,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    yield
    ray.shutdown()


@pytest.fixture
def zoo(make_zoo: MakeZoo) -> ckptzoo.Zoo:
    path, _ = make_zoo((5, 4))
    return ckptzoo.open(path)


def read(zoo: ckptzoo.Zoo, *names: str, blocks: int = 2) -> Any:
    from ray.data import read_datasource

    return read_datasource(ckptzoo.ray_datasource(zoo, *names), override_num_blocks=blocks)


def stacked(rows: Any, name: str) -> np.ndarray:
    return np.concatenate([batch[name] for batch in rows.iter_batches(batch_size=None, batch_format="numpy")])


@pytest.mark.exhaustive
def test_every_tensor_is_a_column_with_its_bits(cluster: None, zoo: ckptzoo.Zoo) -> None:
    rows = read(zoo).materialize()
    assert rows.schema().names == [*zoo.metadata.schema.names, *zoo.arch.names]
    for name in zoo.arch.names:
        expected = np.asarray(zoo[name])
        if name == "brain.weight":  # bfloat16
            expected = expected.astype(np.float32)
        if name == "flag":  # truth values
            expected = expected.astype(np.uint8)
        found = stacked(rows, name)
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
    assert stacked(rows, "id").tolist() == zoo.ids
    assert stacked(read(zoo[::-1], "norm"), "id").tolist() == zoo.ids[::-1]
    assert read(zoo, "norm").schema().names[-2:] == ["norm.running_var", "norm.num_batches_tracked"]


@pytest.mark.exhaustive
def test_counts_and_sizes_are_exact(cluster: None, zoo: ckptzoo.Zoo) -> None:
    from ray.data.expressions import col

    for condition, asked in (("seed < 7", col("seed") < 7), ("seed > 100", col("seed") > 100)):
        chosen = zoo.where(condition)
        rows = read(zoo).filter(expr=asked)
        assert rows.count() == len(chosen)
        assert rows.select_columns(["half.weight"]).count() == len(chosen)
        assert read(zoo).select_columns(["half.weight", "seed"]).filter(expr=asked).count() == len(chosen)
        assert read(zoo).filter(expr=asked).select_columns([]).count() == len(chosen)
    # one on a tensor is for Ray to apply
    assert (
        read(zoo).filter(expr=col("norm.num_batches_tracked") == int(zoo["norm.num_batches_tracked"][3])).count() == 1
    )
    for names in (["id", "half.weight"], ["conv.weight"], ["flag", "norm.num_batches_tracked"], ["seed"]):
        source = ckptzoo.ray_datasource(zoo).apply_projection({name: name for name in names})
        tasks = source.get_read_tasks(2)
        tables = [list(task()) for task in tasks]
        assert [[table.num_rows for table in some] for some in tables] == [[4], [5]]
        for task, (table,) in zip(tasks, tables, strict=True):
            assert set(table.schema.names) == set(names) and task.schema == table.schema
            assert task.metadata.size_bytes == table.nbytes and task.metadata.num_rows == table.num_rows


@pytest.mark.exhaustive
def test_only_what_is_asked_for_is_fetched(cluster: None, tmp_path: Path) -> None:
    arch = ckptzoo.Architecture("large", (ckptzoo.Tensor("a.weight", (512, 16)), ckptzoo.Tensor("b.weight", (512, 64))))
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        weights = weights_of(arch, 32)
        writer.add(weights, rows_of(32))
    ckptzoo.compact(tmp_path / "zoo")
    files = {f"/zoo/{path.relative_to(tmp_path / 'zoo')}": path for path in (tmp_path / "zoo").rglob("*")}
    served = Served({name: path.read_bytes() for name, path in files.items() if path.is_file()})
    with running(served):
        zoo = ckptzoo.open(f"{served.url}/zoo")
        before = served.sent
        rows = read(zoo).select_columns(["a.weight"])
        found = stacked(rows, "a.weight")
        sent = served.sent - before
    assert found.tobytes() == weights["a.weight"].tobytes()
    assert found.nbytes <= sent <= 1.02 * found.nbytes


def test_what_does_not_fit(tmp_path: Path, zoo: ckptzoo.Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="tensor 'no"):
        ckptzoo.ray_datasource(zoo, "no.weight")
    arch = ckptzoo.Architecture("odd", (ckptzoo.Tensor("seed", (2,)),))
    with ckptzoo.create(tmp_path / "odd", arch=arch) as writer:
        writer.add(weights_of(arch, 2), rows_of(2))
    with pytest.raises(ZooError, match="tensor 'seed': expected another name than a column's"):
        ckptzoo.ray_datasource(ckptzoo.open(tmp_path / "odd"))
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ckptzoo\[ray\]'"):
        ckptzoo.ray_datasource(zoo)
