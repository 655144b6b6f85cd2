"""Reads one stranger's file in the confined process, from open descriptor to report."""

from typing import IO, Any

import numpy as np

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.intake.archives import members_of
from ckptzoo.hub.intake.found import Limits, refuse
from ckptzoo.hub.intake.handing import Handed, hand_over, refusal_of, report_of
from ckptzoo.hub.intake.kinds import Kind as Format
from ckptzoo.hub.intake.npz import load_npz
from ckptzoo.hub.intake.states import Kind, State, states_of
from ckptzoo.hub.intake.torch_files import dense, load_torch

_NUMPY = Kind(
    is_tensor=lambda value: isinstance(value, np.ndarray),
    size=lambda value: value.size,
    scalar=lambda value: value.item(),
    describe=lambda value: f"an array of shape {value.shape}",
)


def read_one(kind: Format, file: IO[bytes], out: IO[bytes], *, where: str, limits: Limits) -> bytes:
    """Read a file, write its numbers to ``out`` and return the report; a refusal is a report too."""
    try:
        zipped = file.read(2) == b"PK"
        file.seek(0)
        members = members_of(file, where=where, limits=limits) if zipped or kind == "npz" else None
        if kind == "npz" and members is not None:
            root = load_npz(members, where=where, limits=limits)
            states = states_of(root, _NUMPY, where=where, limits=limits)
            return report_of(_hand_arrays(states, out))
        root = load_torch(file, members, where=where, limits=limits)
        return report_of(_hand_tensors(states_of(root, _torch(), where=where, limits=limits), out, where, limits))
    except IntegrityError as error:
        return refusal_of(error.problems)
    except MemoryError:
        step = "Raise Limits.memory_bytes, or split the file."
        return refusal_of([Problem(where, "memory", f"at most {limits.memory_bytes} bytes to read it", "more", step)])
    except RecursionError:
        return refusal_of(
            [Problem(where, "content", "few levels of nesting", "too many", "Save the state dict alone.")]
        )


def _torch() -> Kind:
    import torch

    return Kind(
        is_tensor=lambda value: isinstance(value, torch.Tensor),
        size=lambda value: value.numel(),
        scalar=lambda value: value.item() if not value.is_complex() else None,
        describe=lambda value: f"a tensor of shape {tuple(value.shape)}",
    )


def _hand_arrays(states: list[State], out: IO[bytes]) -> list[Handed]:
    arrays = [array for state in states for array in state.tensors.values()]
    hand_over([(array.dtype.name, array.shape) for array in arrays], (_bytes(array) for array in arrays), out)
    made, at = list[Handed](), 0
    for state in states:
        many = len(state.tensors)
        made.append(Handed(state.key, tuple(state.tensors), tuple(range(at, at + many)), state.facts, state.left_out))
        at += many
    return made


def _bytes(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")


def _hand_tensors(states: list[State], out: IO[bytes], where: str, limits: Limits) -> list[Handed]:
    """Write every distinct tensor once; those that share all their numbers point to one."""
    import torch

    kept: dict[tuple[Any, ...], int] = {}
    tensors: list[Any] = []
    dtypes: list[str] = []
    made: list[Handed] = []
    total = 0
    for state in states:
        places: list[int] = []
        for name, tensor in state.tensors.items():
            dtype = dense(tensor, name, where=where)
            storage = tensor.untyped_storage().data_ptr()
            key = (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), dtype, tensor.is_neg())
            if not tensor.numel() or key not in kept:
                total += tensor.numel() * tensor.element_size()
                if total > limits.tensor_bytes:
                    refuse(where, "tensors", f"at most {limits.tensor_bytes} bytes", f"{total} bytes with {name!r}")
                kept[key] = len(tensors)
                tensors.append(tensor)
                dtypes.append(dtype)
            places.append(kept[key])
        made.append(Handed(state.key, tuple(state.tensors), tuple(places), state.facts, state.left_out))
    data = (
        memoryview(tensor.detach().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy())
        if tensor.numel()
        else memoryview(b"")
        for tensor in tensors
    )
    hand_over(list(zip(dtypes, (tuple(tensor.shape) for tensor in tensors), strict=True)), data, out)
    return made
