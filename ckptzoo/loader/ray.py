"""A zoo as a data source of Ray Data: one row a checkpoint, one tensor a column."""

from typing import Any

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, ZooError, require
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout


@checked
def ray_datasource(zoo: Zoo, *names: str, variant: str = layout.RAW) -> Any:
    """A ``ray.data.Datasource`` of a zoo's checkpoints, for ``ray.data.read_datasource``.

    Its columns are those of the metadata, and one of shape ``(N, *shape)`` for every tensor. Only columns that are used
    are read, and conditions on the metadata choose checkpoints before anything else is.

    Parameters
    ----------
    zoo
        on this machine or another; the workers must reach it under the same address.
    names
        tensors, or layers or modules for all their tensors; none for everything.
    variant
        the gauge.

    Raises
    ------
    MissingExtraError
        Ray Data is not installed.
    UnknownNameError
        No such tensor, or no such variant.
    ZooError
        A tensor has the name of a column of the metadata.

    Notes
    -----
    Tensors of bfloat16 come as float32, and those of truth values as uint8, which Arrow's tensors can be of. Blocks are
    consecutive rows in zoo order.

    Examples
    --------
    ``ray.data.read_datasource`` takes it:

    >>> source = ckptzoo.ray_datasource(ckptzoo.open("cards/mnist-optunet"), "fc.weight")
    >>> source.get_name(), len(source.get_read_tasks(parallelism=8))
    ('Zoo(mnist-optunet)', 8)
    """
    require("ray.data", "ray")
    # a class of Ray is its base
    from ckptzoo.loader.ray_source import ZooDatasource

    tensors = tuple(zoo.source(names, variant).readers)
    if taken := [name for name in tensors if name in zoo.contents.raw.rows.schema.names]:
        step = "Name the other tensors; this one can be read by zoo[...]."
        expected = "another name than a column's of the metadata"
        raise ZooError(Problem(zoo.name, f"tensor {taken[0]!r}", expected, "both", step))
    return ZooDatasource(zoo, tensors, variant)
