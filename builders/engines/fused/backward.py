"""OptuNet's backward pass: a row of sums, one a lane, for the gradient of each of the 392 weights.

No sum is shared by two lanes before the end, so that nothing is atomic and the order of addition is always the same.
"""

# Triton's language, of which a type checker knows too little.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportReturnType=false

import triton
import triton.language as tl

from builders.engines.fused.forward import row, spot, zeros

CONV2, HEAD, BIAS, WEIGHTS = tl.constexpr(32), tl.constexpr(282), tl.constexpr(382), tl.constexpr(392)
"""The offsets of a member's second kernels, head and bias, behind its first kernels; and the end."""
# a block of 32 x lanes numbers in registers; tl.arange takes powers of two alone
_ROWS = tl.constexpr(32)
"""Rows that are added up at once."""


@triton.jit
def _slopes(
    passed: tl.tensor, backs: tl.tensor, out: tl.tensor, y: tl.tensor, lanes: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Propagate back through ReLU: return the gradients of one output's four positions in row ``y``."""
    offset = out * lanes + tl.arange(0, lanes)
    word, back = tl.load(passed + offset) >> (4 * y), tl.load(backs + offset)
    return (
        tl.where((word & 1) != 0, back, 0.0),
        tl.where((word & 2) != 0, back, 0.0),
        tl.where((word & 4) != 0, back, 0.0),
        tl.where((word & 8) != 0, back, 0.0),
    )


@triton.jit
def conv2_weight_grad(hidden: tl.tensor, passed: tl.tensor, backs: tl.tensor, sums: tl.tensor, lanes: tl.constexpr):
    """Add to the sums for the second convolution's weights: one row of the kernels of five outputs at a time."""
    lane = tl.arange(0, lanes)
    for channel in range(2):
        for i in range(5):
            # 25 sums, 8 inputs and 4 slopes stay in a lane's registers: 128 of them leave room for 16 warps
            totals = zeros(25, lanes)
            for y in range(4):
                inputs = row(hidden + (64 * channel + 8 * (y + i)) * lanes + lane, 8, lanes)
                added = ()
                for out in tl.static_range(5):
                    slopes = _slopes(passed, backs, 5 * channel + out, y, lanes)
                    for j in tl.static_range(5):
                        total = totals[5 * out + j]
                        for x in tl.static_range(4):
                            total += slopes[x] * inputs[x + j]
                        added += (total,)
                totals = added
            for k in tl.static_range(25):
                weight = (5 * channel + k // 5) * 25 + 5 * i + k % 5
                tl.store(sums + weight * lanes + lane, totals[k])


@triton.jit
def conv2_input_grad(hidden: tl.tensor, kernel: tl.tensor, passed: tl.tensor, backs: tl.tensor, lanes: tl.constexpr):
    """Propagate back through the second convolution and ReLU: replace the maxima by their gradients."""
    for offset in range(16):
        channel, y = offset // 8, offset % 8
        totals = zeros(8, lanes)
        # the rows of a 5 x 5 kernel through which row y of 8 enters the four rows of outputs
        for i in range(tl.maximum(0, y - 3), tl.minimum(4, y) + 1):
            for out in range(5 * channel, 5 * channel + 5):
                slopes = _slopes(passed, backs, out, y - i, lanes)
                weights = row(kernel + out * 25 + 5 * i, 5, 1)
                added = ()
                for x in tl.static_range(8):
                    total = totals[x]
                    for j in tl.static_range(5):
                        if x - j >= 0 and x - j < 4:
                            total += weights[j] * slopes[x - j]
                    added += (total,)
                totals = added
        for x in tl.static_range(8):
            place = hidden + (8 * offset + x) * lanes + tl.arange(0, lanes)
            # not <= 0 is true for a NaN, as in torch's derivative of ReLU
            tl.store(place, tl.where(tl.load(place) <= 0, 0.0, totals[x]))


@triton.jit
def conv1_weight_grad(
    pixels: tl.tensor,
    corners: tl.tensor,
    slopes: tl.tensor,
    winners: tl.tensor,
    sums: tl.tensor,
    shift: tl.tensor,
    scale: tl.tensor,
    batch: tl.constexpr,
    width: tl.constexpr,
    lanes: tl.constexpr,
):
    """Add to the sums for the first convolution's weights, from the 4x4 pixels below each maximum."""
    for channel in range(2):
        totals = zeros(16, lanes)
        # four images are 4 x 64 windows; ``spot`` deals with whole fours
        for block in range((batch + 3) // 4 * 256 // lanes):
            image, y, x = spot(block, lanes)
            offset = (64 * channel + 8 * y + x) * lanes + image
            # a maximum is the winner among the nine sums of its 3 x 3 window
            slope, winner = tl.load(slopes + offset) * scale, tl.load(winners + offset).to(tl.int32)
            corner = pixels + tl.load(corners + image) + (3 * y + winner // 3) * width + 3 * x + winner % 3
            added = ()
            for k in tl.static_range(16):
                inputs = tl.load(corner + (k // 4 * width + k % 4)).to(tl.float32) - shift
                added += (totals[k] + slope * inputs,)
            totals = added
        for k in tl.static_range(16):
            tl.store(sums + (16 * channel + k) * lanes + tl.arange(0, lanes), totals[k])


@triton.jit
def descend(
    weights: tl.tensor,
    momenta: tl.tensor,
    sums: tl.tensor,
    features: tl.tensor,
    slopes: tl.tensor,
    rate: tl.tensor,
    decay: tl.constexpr,
    friction: tl.constexpr,
    lanes: tl.constexpr,
):
    """Add the lanes up, and take the step of ``builders.engines.sgd.update``."""
    lane = tl.arange(0, lanes)[None, :]
    for start in range(0, HEAD, _ROWS):
        offset = start + tl.arange(0, _ROWS)
        valid = offset < HEAD
        gradient = tl.sum(tl.load(sums + offset[:, None] * lanes + lane, mask=valid[:, None], other=0.0), 1)
        _move(weights, momenta, offset, valid, gradient, rate, decay, friction)
    for start in range(HEAD, WEIGHTS, _ROWS):
        offset = start + tl.arange(0, _ROWS)
        valid = offset < WEIGHTS
        of_bias = offset >= BIAS
        out = tl.where(of_bias, offset - BIAS, (offset - HEAD) // 10)
        slope = tl.load(slopes + out[:, None] * lanes + lane, mask=valid[:, None], other=0.0)
        inputs = features + ((offset - HEAD) % 10)[:, None] * lanes + lane
        gradient = tl.sum(slope * tl.load(inputs, mask=(offset < BIAS)[:, None], other=1.0), 1)
        _move(weights, momenta, offset, valid, gradient, rate, decay, friction)


@triton.jit
def _move(
    weights: tl.tensor,
    momenta: tl.tensor,
    offset: tl.tensor,
    valid: tl.tensor,
    gradient: tl.tensor,
    rate: tl.tensor,
    decay: tl.constexpr,
    friction: tl.constexpr,
):
    weight = tl.load(weights + offset, mask=valid, other=0.0)
    if decay != 0:
        gradient += decay * weight
    if friction != 0:
        gradient += friction * tl.load(momenta + offset, mask=valid, other=0.0)
        tl.store(momenta + offset, gradient, mask=valid)
    tl.store(weights + offset, weight - rate * gradient, mask=valid)
