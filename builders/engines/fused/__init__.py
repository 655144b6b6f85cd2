"""The fused engine for OptuNet on a GPU (extra ``gpu``): one program a member, many steps a launch, in Triton.

A lane is an image. A program draws its batch, and then goes through the network layer by layer; each sum of a layer
stays in the registers of one lane, and what the next layer reads, or another lane, goes through 124 kB of memory of
the member's own that the caches hold, with a barrier in between. Around the first convolution a lane is a pooling
window instead: its 6x6 pixels, fetched from where they lie, give nine sums for each of the two kernels, of which only
the largest is kept. Gradients of the weights are added up in each lane, and over the lanes once a step, always in the
same order: nothing is atomic, all is float32 (no TF32), and a member's bits do not depend on its company.

Counted for a member-step of 64 images: 2.10 million multiplications with addition, of which the first convolution has
1.18 million, its gradient 0.13, the second convolution and its two gradients 0.26 each. 47 kB of pixels are new;
0.15 MB are written to the member's own memory, 0.44 MB read from it, and 0.28 million single pixels from caches.
Compiled by Triton 3.9 for compute capability 9.0 that is 128 registers a lane with one number spilled, 16 warps of a
multiprocessor, and about 150,000 instructions of a warp.

So on paper an H100 or H200 (132 multiprocessors, four instructions a cycle each, about 1.7 GHz) could take 13 million
member-steps a second by its arithmetic and 6 million by its instructions. An H100 takes 2.69 million of 8,192 members
at 64 images (torch 2.11, Triton 3.6), 22 % of what a product of matrices would allow; docs/benchmarks.md has it beside
other engines. How fast the caches answer is in no bound.

``tests/builders/test_fused.py`` compiles it, runs it in Triton's interpreter, and on a GPU where there is one.
"""

from typing import Any

import torch
import triton

from builders.data_source import DataSource
from builders.engines.fused import rng, training
from builders.state import Tensors, TrainingState
from ckptzoo.errors import Problem, ZooError

_NAMES = ("conv1.weight", "conv2.weight", "fc.weight", "fc.bias")
_PIXELS, _MAX_BATCH = 28, 256


def advance(data_source: DataSource, state: TrainingState, stop: int) -> None:
    """Take the steps of every member up to ``stop``, as every ``builders.engines.Engine``. Raises ZooError: the data is
    not on a CUDA device, its images are not of 28x28 pixels, or a batch has more than 256.
    """
    recipe, device, start = data_source.recipe, data_source.device, state.step
    _check(data_source)
    lanes, members = _lanes(recipe.batch), len(state)
    # a kernel takes no None; without momentum it neither reads nor writes this pointer
    weights, momenta = _rows(state.weights), _rows(state.momentum or state.weights)
    (mean,), (std,) = recipe.statistics(1)
    epochs = range(start // recipe.epoch_steps, stop // recipe.epoch_steps + 1)
    rates = [recipe.rates.learning_rate_at(epoch) for epoch in epochs]
    with torch.cuda.device_of(data_source.pixels):
        launch: Any = training.train[(members,)]
        launch(
            data_source.pixels,
            data_source.labels,
            # torch has no arithmetic for uint64; the kernel takes the bits
            torch.from_numpy(state.keys.view("int64")).to(device),
            torch.tensor(rates, dtype=torch.float32, device=device),
            weights,
            momenta,
            torch.empty(members, lanes, dtype=torch.int64, device=device),
            torch.empty(members, training.WINNERS.value, lanes, dtype=torch.int8, device=device),
            # zeros: lanes behind the last images are read and never written, and 0 times a NaN left in memory is a NaN
            torch.zeros(members, training.NUMBERS.value, lanes, device=device),
            torch.empty(members, training.WORDS.value, lanes, dtype=torch.int32, device=device),
            start,
            stop,
            255 * mean,
            1 / (255 * std),
            **constants(data_source),
            **options(lanes),
        )
    _return(weights, state.weights)
    _return(momenta, state.momentum)
    state.step = stop


def constants(data_source: DataSource) -> dict[str, Any]:
    """Return the constants of the kernel: another recipe is another compilation, of some ten seconds, kept on disk."""
    recipe = data_source.recipe
    return {
        "count": recipe.train,
        "batch": recipe.batch,
        "side": rng.side(recipe.train),
        "pad": recipe.crop_pad,
        "width": data_source.width,
        "area": data_source.height * data_source.width,
        # constants, so that the compiler drops the terms where they are 0
        "decay": recipe.weight_decay,
        "friction": recipe.momentum,
        "lanes": _lanes(recipe.batch),
    }


def options(lanes: int) -> dict[str, Any]:
    """Return Triton's options of compilation: a thread for each lane."""
    # a warp has 32 threads; products that go into sums are rounded once
    return {"num_warps": lanes // 32, "enable_fp_fusion": True}


def _lanes(batch: int) -> int:
    # Triton's blocks are powers of two; fewer threads than a warp has would idle
    return max(32, triton.next_power_of_2(batch))


def _check(data_source: DataSource) -> None:
    recipe, step = data_source.recipe, "Choose the engine optunet."
    size = data_source.crop_shape
    interpreted = not isinstance(training.train, triton.JITFunction)
    if size != (_PIXELS, _PIXELS) or not (data_source.device.type == "cuda" or interpreted):
        got = f"{size[0]}x{size[1]} on {data_source.device.type}"
        raise ZooError(Problem("engine fused", "images", "28x28 pixels on cuda", got, step))
    if recipe.batch > _MAX_BATCH:
        expected = f"1 to {_MAX_BATCH} images"
        raise ZooError(Problem("engine fused", "batch", expected, str(recipe.batch), step))


def _rows(tensors: Tensors) -> torch.Tensor:
    """Return (M, 392), a copy."""
    return torch.cat([tensors[name].flatten(1) for name in _NAMES], 1)


def _return(rows: torch.Tensor, tensors: Tensors) -> None:
    """Write rows back into the tensors of a state."""
    start = 0
    for name in _NAMES if tensors else ():
        size = tensors[name][0].numel()
        tensors[name].copy_(rows[:, start : start + size].view_as(tensors[name]))
        start += size
