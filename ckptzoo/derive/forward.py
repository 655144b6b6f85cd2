"""Outputs of many checkpoints at once, with torch."""

import copy
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.torch import device_of
from ckptzoo.schema.architecture import Architecture
from ckptzoo.symmetry.tracing.module_copy import copied

# where vmap loops over an operation itself; a filter for a while would be undone by other threads
warnings.filterwarnings(
    "ignore", message="There is a performance drop because we have not yet implemented the batching"
)
Weights = Mapping[str, NDArray[Any]]
STACK, STACK_BYTES = 8, 2**20
"""The maximum of checkpoints evaluated at once, and of their weights' bytes; a larger network is evaluated alone."""
INPUT_BYTES = 512 * 4 * 28 * 28
"""Bytes of inputs of a stack of checkpoints at once, counted for each of them: 512 images of MNIST in float32."""
LARGE_BYTES, LARGE_INPUT_BYTES = 4 * 2**20, INPUT_BYTES // 4
"""A network with more bytes of weights gets fewer bytes of inputs at once: it keeps a core busy with few, and its
activations would be more memory than its weights."""
FAST_STACK, FAST_INPUT_BYTES = 64, 1024 * 4 * 28 * 28
"""The number of checkpoints, and bytes of inputs for all of them, where ``ckptzoo.archs`` has a function for stacks."""


class Forward:
    """A network in evaluation mode, for any of its checkpoints; threads may share one.

    Raises ``ZooError`` if the module lacks tensors of the architecture, or there is neither a module nor a name of a
    forward function.

    Parameters
    ----------
    arch
        an architecture whose forward function is in ``ckptzoo.archs``, or any with a module.
    module
        the network; by default that of ``ckptzoo.archs``. It is copied.
    vmap
        whether stacked checkpoints go through the module also where ``archs.stacked`` has a faster function.
    """

    def __init__(
        self, arch: Architecture, module: torch.nn.Module | None = None, *, vmap: bool = False, device: str = "cpu"
    ) -> None:
        self._arch, self._device = arch, device_of(device, arch.name)
        self._name = None if module is not None or vmap else arch.forward
        self._constants: dict[str, torch.Tensor] = {}
        self._one_by_one = False
        if module is not None:
            if not isinstance(module, torch.nn.Module):
                got, step = type(module).__name__, "Pass a network, not its class or what it was saved in."
                raise ZooError(Problem(arch.name, "module", "a torch.nn.Module", got, step))
            # a state dict leaves out buffers that are not persistent, such as tables of rotary embeddings
            stored = module.state_dict().keys()
            self._constants = {name: value for name, value in module.named_buffers() if name not in stored}
            template = copied(module).to("meta")
            _check_tensors(arch, template)
            self._factory = partial(copy.deepcopy, template)
        else:
            if arch.forward is None:
                expected, step = (
                    "one of ckptzoo.archs",
                    "Name the network: --module FILE.py:NAME, or module= in Python.",
                )
                raise ZooError(Problem(arch.name, "forward function", expected, "none", step))
            self._factory = archs.get(arch.forward)
        self._local = threading.local()

    def features(self, shape: Sequence[int]) -> int:
        """The number of outputs of an input of this shape; nothing is computed.

        Raises ``ZooError`` if the network does not take such inputs, or an input has no list of outputs.
        """
        module = self.module()
        try:
            # two inputs, so that outputs that lack the axis of the inputs are noticed
            with torch.no_grad():
                outputs: Any = module(torch.empty(2, *shape, device="meta"))
            if isinstance(outputs, torch.Tensor) and outputs.ndim > 1 and len(outputs) == 2 and outputs.numel():
                return outputs[0].numel()
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        # of a module whose code is not ours: torch raises RuntimeError for shapes that do not fit, NotImplementedError
        # for what the meta device lacks
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            first = next((tensor for tensor in self._arch.tensors if len(tensor.shape) > 1), self._arch.tensors[0])
            said = f"{type(error).__name__}: {error}"[:200].rstrip(".")
            got = f"a network that does not take them, whose first weights, {first.name}, are {first.shape} ({said})"
        what = f"outputs for inputs (2, {str(tuple(shape))[1:]}"
        step = "Pass inputs of the size that the network takes, --inputs FILE.npz, or a module that fits."
        raise ZooError(Problem(self._arch.name, what, "(2, features)", got, step))

    def has_stacked(self, shape: Sequence[int]) -> bool:
        """Whether a function of ``archs.stacked`` evaluates stacked checkpoints on inputs of this shape.

        It bounds its memory and fills up short stacks and batches by itself.
        """
        return self._stacked_function(shape) is not None

    def batches(self, inputs: NDArray[Any], max_size: int) -> list[torch.Tensor]:
        """Inputs in equal batches of at most ``max_size``, the last one filled up with zeros."""
        # equal sizes, because the last bit of a matrix product may depend on the number of its rows
        size = -(-len(inputs) // -(-len(inputs) // max_size))
        last = np.zeros((size, *inputs.shape[1:]), inputs.dtype)
        last[: len(inputs) - (len(inputs) - 1) // size * size] = inputs[(len(inputs) - 1) // size * size :]
        batches = [*torch.from_numpy(inputs).split(size)[:-1], torch.from_numpy(last)]
        return [batch.to(self._device) for batch in batches]

    def outputs(self, weights: Weights, batches: Sequence[torch.Tensor], *, stacked: bool) -> Iterator[torch.Tensor]:
        """Outputs (K, B, features) of K checkpoints for each batch, in the precision of the inputs.

        ``weights`` maps tensor names to (K, *shape) of any floating dtype; ``batches`` are inputs (B, *input_shape);
        ``stacked`` says whether all checkpoints are evaluated at once, or the only one alone.
        """
        state, constants = self.tensors(weights, batches[0].dtype)
        module = self.module()

        def forward(member: Mapping[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
            return self.call(module, {**member, **constants}, batch)

        evaluate: Callable[[torch.Tensor], torch.Tensor]
        if stacked and (stacked_outputs := self._stacked_function(batches[0].shape[1:])) is not None:
            evaluate = partial(stacked_outputs, state)
        elif stacked:
            evaluate = partial(self._of_stack, forward, state)
        else:
            member = {name: tensor[0] for name, tensor in state.items()}

            def evaluate(batch: torch.Tensor, /) -> torch.Tensor:
                return forward(member, batch)[None]

        for batch in batches:
            # not around the yield: what another iterator sets in between would be undone in the wrong order
            with torch.no_grad():
                outputs = evaluate(batch)
            yield outputs

    def tensors(self, weights: Weights, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the tensors (K, *shape) of K checkpoints under all of their names, and the module's constants."""
        numpy_dtype = str(dtype).removeprefix("torch.")
        state: dict[str, torch.Tensor] = {}
        for tensor in self._arch.tensors:
            array = weights[tensor.name]
            # float64 weights beyond float32 become infinities, as a network in float32 would have them
            with np.errstate(over="ignore"):
                stacked_tensor = torch.from_numpy(np.array(array, None if array.dtype.kind in "iub" else numpy_dtype))
            stacked_tensor = stacked_tensor.to(self._device)
            for name in (tensor.name, *tensor.aliases):
                state[name] = stacked_tensor
        constants = {
            name: value.to(self._device, dtype if value.is_floating_point() else None)
            for name, value in self._constants.items()
        }
        return state, constants

    def _of_stack(
        self,
        forward: Callable[[Mapping[str, torch.Tensor], torch.Tensor], torch.Tensor],
        state: Mapping[str, torch.Tensor],
        batch: torch.Tensor,
    ) -> torch.Tensor:
        """Outputs (K, B, features) of all checkpoints at once, or one after the other where vmap cannot."""
        if self._one_by_one:
            return _in_turn(forward, state, batch)
        try:
            return torch.func.vmap(forward, in_dims=(0, None))(state, batch)
        # vmap has no rule for an operation, or the module asks for numbers, which it refuses: RuntimeError of several
        # texts, ValueError and others; what is wrong with the module itself is raised again by the loop
        except Exception:
            outputs = _in_turn(forward, state, batch)
            self._one_by_one = True
            return outputs

    def call(self, module: torch.nn.Module, member: Mapping[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        """(B, features) of one checkpoint in a module without values; another kind of network has others."""
        # no search for tied tensors: a member has each under all of its names
        return torch.func.functional_call(module, dict(member), (batch,), tie_weights=False).flatten(1)

    def _stacked_function(self, shape: Sequence[int]) -> "archs.StackedOutputs | None":
        return None if self._name is None else archs.stacked(self._name, tuple(shape))

    def module(self) -> torch.nn.Module:
        """The thread's own module, without values: a call puts those of a checkpoint in their places."""
        # functional_call puts values into the module while it runs, so that threads cannot share one
        if not hasattr(self._local, "module"):
            with torch.device("meta"):
                self._local.module = self._factory().eval()
        return self._local.module


def _in_turn(
    forward: Callable[[Mapping[str, torch.Tensor], torch.Tensor], torch.Tensor],
    state: Mapping[str, torch.Tensor],
    batch: torch.Tensor,
) -> torch.Tensor:
    count = len(next(iter(state.values())))
    return torch.stack([forward({name: tensor[at] for name, tensor in state.items()}, batch) for at in range(count)])


class StackedForward:
    """Outputs of stacks of checkpoints on fixed inputs.

    Stacks and batches are filled up to one size, so that the outputs of a checkpoint depend neither on those beside it
    nor on their number: the last bit of a matrix product may depend on its size. Threads may share one. ``inputs`` are
    one or more forms of the inputs, such as scaled in several ways, each (N, *input_shape) float32; ``most_outputs``
    limits the bytes of outputs of a batch and a stack, but not below those of one input; None for no limit.
    """

    def __init__(
        self, forward: Forward, arch: Architecture, *inputs: NDArray[np.float32], most_outputs: int | None = None
    ) -> None:
        shape = inputs[0].shape[1:]
        self._forward, self._examples = forward, len(inputs[0])
        # a function of ``archs.stacked`` fills up by itself
        self._fills_up = not forward.has_stacked(shape)
        self.size = max(1, min(STACK, STACK_BYTES // arch.nbytes)) if self._fills_up else FAST_STACK
        input_bytes = INPUT_BYTES // self.size if self._fills_up else FAST_INPUT_BYTES
        if arch.nbytes > LARGE_BYTES:
            input_bytes = min(input_bytes, LARGE_INPUT_BYTES)
        batch = max(1, input_bytes // inputs[0][:1].nbytes)
        if most_outputs is not None:
            batch = max(1, min(batch, most_outputs // (4 * forward.features(shape) * self.size)))
        self._batches = [forward.batches(each, batch) for each in inputs]

    def outputs(self, weights: Weights, form: int = 0) -> Iterator[NDArray[np.float32]]:
        """(K, B, features) for each batch of the inputs, of at most ``size`` checkpoints.

        ``weights`` maps tensor names to (K, *shape); ``form`` selects the form of the inputs.
        """
        count, start = len(next(iter(weights.values()))), 0
        taken = weights
        if self._fills_up and count < self.size:
            places = np.minimum(np.arange(self.size), count - 1)
            taken = {name: array[places] for name, array in weights.items()}
        for outputs in self._forward.outputs(taken, self._batches[form], stacked=self.size > 1):
            single = outputs.cpu().numpy()[:count, : self._examples - start]
            start += single.shape[1]
            yield single


def _check_tensors(arch: Architecture, module: torch.nn.Module) -> None:
    """Refuse a module that lacks tensors of the architecture, or has others under their names."""
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    needed = [(name, tensor.shape) for tensor in arch.tensors for name in (tensor.name, *tensor.aliases)]
    others = [(name, shape) for name, shape in needed if shapes.get(name) != shape]
    if others:
        (name, shape), *more = others
        got = f"{shapes.get(name, 'none')}{f', and {len(more):,} more differ' if more else ''}"
        step = "Name the network of this zoo: --module FILE.py:NAME, or module= in Python."
        raise ZooError(Problem(arch.name, f"tensor {name!r} of the module", str(shape), got, step))


@contextmanager
def full_precision() -> Iterator[None]:
    """Let a GPU convolve in float32, where by default it rounds to TensorFloat-32, which has 10 bits."""
    cudnn: Any = torch.backends.cudnn
    before = cudnn.allow_tf32
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32 = before


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread per operation, because checkpoints are spread over threads instead."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def attention_by_products() -> Iterator[None]:
    """Let torch compute attention by products of matrices: its fused kernel takes one checkpoint of a stack a time."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield
