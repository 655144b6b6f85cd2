"""A member's steps, one after another, in one program of one launch."""

# Triton's language, of which a type checker knows too little.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportReturnType=false

import triton
import triton.language as tl

from builders.engines.fused import rng
from builders.engines.fused.backward import (
    BIAS,
    CONV2,
    HEAD,
    WEIGHTS,
    conv1_weight_grad,
    conv2_input_grad,
    conv2_weight_grad,
    descend,
)
from builders.engines.fused.forward import classify, convolve, pool

WINNERS, WORDS, NUMBERS = tl.constexpr(128), tl.constexpr(10), tl.constexpr(128 + 282 + 30)
"""Rows of a member's memory, one number a lane: the first convolution's maxima; outputs of the second; numbers."""


# Triton compiles again for an integer that is 1 or a multiple of 16, as steps may be.
@triton.jit(do_not_specialize=["start", "stop"])
def train(
    pixels: tl.tensor,
    labels: tl.tensor,
    keys: tl.tensor,
    rates: tl.tensor,
    weights: tl.tensor,
    momenta: tl.tensor,
    corners: tl.tensor,
    winners: tl.tensor,
    numbers: tl.tensor,
    words: tl.tensor,
    start: tl.tensor,
    stop: tl.tensor,
    shift: tl.tensor,
    scale: tl.tensor,
    count: tl.constexpr,
    batch: tl.constexpr,
    side: tl.constexpr,
    pad: tl.constexpr,
    width: tl.constexpr,
    area: tl.constexpr,
    decay: tl.constexpr,
    friction: tl.constexpr,
    lanes: tl.constexpr,
):
    """Program m takes member m from step ``start`` to ``stop``; see ``builders.engines.fused.advance``."""
    # 64 bits: with 256 lanes a member has 112,640 numbers, so that offsets pass 2^31 from 19,066 members on
    member = tl.program_id(0).to(tl.int64)
    key = tl.load(keys + member)
    weights += member * WEIGHTS
    momenta += member * WEIGHTS
    corners += member * lanes
    winners += member * (WINNERS * lanes)
    words += member * (WORDS * lanes)
    hidden = numbers + member * (NUMBERS * lanes)
    sums = hidden + WINNERS * lanes
    features = sums + HEAD * lanes
    slopes = features + 10 * lanes
    backs = slopes + 10 * lanes
    lane = tl.arange(0, lanes)
    steps: tl.constexpr = (count + batch - 1) // batch
    for step in range(start, stop):
        epoch = step // steps
        first = (step - epoch * steps) * batch
        # the last batch of an epoch may be short
        size = tl.minimum(batch, count - first)
        position = (first + tl.where(lane < size, lane, 0)).to(tl.uint32)
        item = rng.items(key, epoch.to(tl.uint32), position, count, side).to(tl.int64)
        corner = rng.corners(key, epoch.to(tl.uint32), position, pad, width)
        tl.store(corners + lane, item * area + corner.to(tl.int64))
        # despite its name this is the barrier of a block's threads, CUDA's __syncthreads: what other lanes wrote can be
        # read then
        tl.debug_barrier()
        pool(pixels, corners, weights, hidden, winners, shift, scale, batch, width, lanes)
        tl.debug_barrier()
        convolve(hidden, weights + CONV2, features, words, lanes)
        tl.debug_barrier()
        answers = tl.load(labels + item)
        classify(features, weights + HEAD, weights + BIAS, answers, size, slopes, backs, lanes)
        tl.debug_barrier()
        conv2_weight_grad(hidden, words, backs, sums + CONV2 * lanes, lanes)
        tl.debug_barrier()
        conv2_input_grad(hidden, weights + CONV2, words, backs, lanes)
        tl.debug_barrier()
        conv1_weight_grad(pixels, corners, hidden, winners, sums, shift, scale, batch, width, lanes)
        tl.debug_barrier()
        rate = tl.load(rates + (epoch - start // steps))
        descend(weights, momenta, sums, features, slopes, rate, decay, friction, lanes)
        tl.debug_barrier()
