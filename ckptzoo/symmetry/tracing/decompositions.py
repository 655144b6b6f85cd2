"""Replace operations without a rule by torch's decompositions: ``cosine_similarity`` by norms, a quotient and a sum.

torch has such decompositions for most operators that are not elementary. A graph with them in place is traced as if the
module had been written so; what has neither a rule nor a decomposition stays, and is refused by its name.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.export import default_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ckptzoo.symmetry.tracing.graph import Operations, name_of, schema_of

PART_OF = "ckptzoo_part_of"
"""Key of the metadata of a node that stands, with others, for an operation: the operation's name."""


def decompose(found: Operations, known: Callable[[str], bool]) -> None:
    """Replace a module's operations by their decompositions, in place, where no rule for the operator is ``known``."""
    table: dict[Any, Callable[..., Any]] = {}
    graphs = [found.graph]
    while graphs:
        graph = graphs.pop()
        waiting = list(graph.nodes)
        while waiting:
            node = waiting.pop()
            if node.op == "get_attr":
                part = operator.attrgetter(str(node.target))(graph.owning_module)
                graphs += [part.graph] if isinstance(part, fx.GraphModule) else []
            if node.op != "call_function" or schema_of(node.target) is None or known(name_of(node.target)):
                continue
            table = table or dict(default_decompositions().items())
            if (made := _decomposition(node, table)) is not None:
                waiting += _put_in_place(graph, node, made)


def _decomposition(node: fx.Node, table: dict[Any, Callable[..., Any]]) -> fx.Graph | None:
    """Return an operation's decomposition, as a graph of the tensors among its arguments; None where torch has none."""
    target: Any = node.target
    # a change in place concerns all who share the memory; random numbers would be others in each call
    if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    values = [leaf.meta.get("val") for leaf in leaves if isinstance(leaf, fx.Node)]
    if not values or not all(isinstance(value, torch.Tensor) for value in values):
        return None
    composite = torch._C.DispatchKey.CompositeImplicitAutograd  # pyright: ignore[reportPrivateUsage]
    # torch writes these operators in terms of others itself; the table has decompositions for the rest
    if target.has_kernel_for_dispatch_key(composite):
        function = target.decompose
    elif (function := table.get(target)) is None:
        return None

    def apply(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, structure)
        return function(*args, **kwargs)

    mode: Any = getattr(values[0], "fake_mode", None)
    made = pytree.tree_leaves(node.meta.get("val"))
    if mode is None or not all(isinstance(value, torch.Tensor) for value in made):  # a number, such as that of item()
        return None
    try:
        with mode, torch.no_grad():
            made = make_fx(apply)(*values).graph
    except Exception:  # the operation depends on numbers, or a decomposition does not take these arguments
        return None
    calls = [item for item in made.nodes if item.op == "call_function"]
    # one that needs constants, or calls the operation itself, which would never end
    if any(item.op == "get_attr" for item in made.nodes) or any(item.target is target for item in calls):
        return None
    several = not isinstance(next(item for item in made.nodes if item.op == "output").args[0], fx.Node)
    if several and any(user.target is not operator.getitem for user in node.users):
        return None
    return made


def _put_in_place(graph: fx.Graph, node: fx.Node, made: fx.Graph) -> list[fx.Node]:
    """Replace an operation by a graph, and return the new nodes."""
    arguments = iter([leaf for leaf in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, fx.Node)])
    copies: dict[fx.Node, fx.Node] = {}
    new: list[fx.Node] = []
    results: Any = None
    with graph.inserting_before(node):
        for item in made.nodes:
            if item.op == "placeholder":
                copies[item] = next(arguments)
            elif item.op == "output":
                results = fx.map_arg(item.args[0], copies.__getitem__)
            else:
                copy = copies[item] = graph.node_copy(item, copies.__getitem__)
                own = {"val": item.meta["val"]} if "val" in item.meta else {}
                name = node.meta.get(PART_OF, name_of(node.target))
                copy.meta = {**{key: value for key, value in node.meta.items() if key != "val"}, **own, PART_OF: name}
                new.append(copy)
    if isinstance(results, fx.Node):
        node.replace_all_uses_with(results)
    else:
        # each user takes one of several results
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)
    return new
