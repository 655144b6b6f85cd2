"""OptuNet's forward pass over a batch in one program: direct convolutions, all of whose sums stay in registers."""

# Triton's language, of which a type checker knows too little.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportReturnType=false

import triton
import triton.language as tl


@triton.jit
def row(start: tl.tensor, count: tl.constexpr, stride: tl.constexpr) -> tl.tuple:
    """Load ``count`` numbers or blocks from memory, one every ``stride``."""
    values = ()
    for k in tl.static_range(count):
        values += (tl.load(start + k * stride),)
    return values


@triton.jit
def spot(block: tl.tensor, lanes: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return image, row and column of the pooling windows that a block of lanes takes.

    Four images of one column lie side by side, then the eight columns, then rows, then more images: pixels that are
    read together share a line of the cache, and so do the numbers that are written.
    """
    offset = block * lanes + tl.arange(0, lanes)
    return offset // 256 * 4 + offset % 4, offset // 32 % 8, offset // 4 % 8


@triton.jit
def pool(
    pixels: tl.tensor,
    corners: tl.tensor,
    kernel: tl.tensor,
    hidden: tl.tensor,
    winners: tl.tensor,
    shift: tl.tensor,
    scale: tl.tensor,
    batch: tl.constexpr,
    width: tl.constexpr,
    lanes: tl.constexpr,
):
    """Apply the first convolution, its maximum over each window, and ReLU; store which of a window's nine was the
    largest. A lane takes a window: its 6x6 pixels and the 32 weights are in registers, and the sums are never stored.
    """
    weights = row(kernel, 32, 1)
    # four images are 4 x 64 windows
    for block in range((batch + 3) // 4 * 256 // lanes):
        image, y, x = spot(block, lanes)
        corner = pixels + tl.load(corners + image) + 3 * (y * width + x)
        inputs = ()
        for k in tl.static_range(36):
            inputs += ((tl.load(corner + (k // 6 * width + k % 6)).to(tl.float32) - shift) * scale,)
        for channel in tl.static_range(2):
            best = tl.full((lanes,), float("-inf"), tl.float32)
            winner = tl.zeros((lanes,), tl.int32)
            for place in tl.static_range(9):
                total = tl.zeros((lanes,), tl.float32)
                for k in tl.static_range(16):
                    total += weights[16 * channel + k] * inputs[(place // 3 + k // 4) * 6 + place % 3 + k % 4]
                # a NaN becomes the maximum, as in torch's max-pooling; of equal ones the first stays
                better = (total > best) | (total != total)
                best = tl.where(better, total, best)
                winner = tl.where(better, place, winner)
            offset = (64 * channel + 8 * y + x) * lanes + image
            # a NaN is kept: it is not <= 0
            tl.store(hidden + offset, tl.where(best <= 0, 0.0, best))
            tl.store(winners + offset, winner.to(tl.int8))


@triton.jit
def zeros(count: tl.constexpr, lanes: tl.constexpr) -> tl.tuple:
    """Return ``count`` initial sums."""
    sums = ()
    for _ in tl.static_range(count):
        sums += (tl.zeros((lanes,), tl.float32),)
    return sums


@triton.jit
def convolve(hidden: tl.tensor, kernel: tl.tensor, features: tl.tensor, passed: tl.tensor, lanes: tl.constexpr):
    """Apply the second convolution, ReLU, and the mean over its positions; an image a lane. What is kept are ten means,
    and ten words in which bit 4 y + x says that ReLU let position (y, x) pass.
    """
    lane = tl.arange(0, lanes)
    for channel in range(2):
        means = zeros(5, lanes)
        words = ()
        for _ in tl.static_range(5):
            words += (tl.zeros((lanes,), tl.int32),)
        for y in range(4):
            sums = zeros(20, lanes)
            for i in range(5):
                inputs = row(hidden + (64 * channel + 8 * (y + i)) * lanes + lane, 8, lanes)
                added = ()
                for out in tl.static_range(5):
                    weights = row(kernel + (5 * channel + out) * 25 + 5 * i, 5, 1)
                    for x in tl.static_range(4):
                        total = sums[4 * out + x]
                        for j in tl.static_range(5):
                            total += weights[j] * inputs[x + j]
                        added += (total,)
                sums = added
            new_means, new_words = (), ()
            for out in tl.static_range(5):
                mean, word = means[out], words[out]
                for x in tl.static_range(4):
                    total = sums[4 * out + x]
                    positive = (total > 0) | (total != total)
                    # 1/16: the mean over 4x4 positions
                    mean += tl.where(positive, total * 0.0625, 0.0)
                    word |= positive.to(tl.int32) << (4 * y + x)
                new_means += (mean,)
                new_words += (word,)
            means, words = new_means, new_words
        for out in tl.static_range(5):
            tl.store(features + (5 * channel + out) * lanes + lane, means[out])
            tl.store(passed + (5 * channel + out) * lanes + lane, words[out])


@triton.jit
def classify(
    features: tl.tensor,
    head: tl.tensor,
    bias: tl.tensor,
    answers: tl.tensor,
    size: tl.tensor,
    slopes: tl.tensor,
    backs: tl.tensor,
    lanes: tl.constexpr,
):
    """Apply the head and softmax, and propagate back.

    What is kept are the gradients of the ten outputs, which are the shares of softmax, less 1 at the answer, over the
    size of the batch; and those of each of the ten sums, before ReLU, that went into a mean.
    """
    lane = tl.arange(0, lanes)
    outputs = zeros(10, lanes)
    for j in range(10):
        mean = tl.load(features + j * lanes + lane)
        added = ()
        for k in tl.static_range(10):
            added += (outputs[k] + tl.load(head + 10 * k + j) * mean,)
        outputs = added
    biased = ()
    for k in tl.static_range(10):
        biased += (outputs[k] + tl.load(bias + k),)
    largest = biased[0]
    for k in tl.static_range(1, 10):
        # by default tl.maximum drops a NaN, and a member that diverged would go on with numbers
        largest = tl.maximum(largest, biased[k], propagate_nan=tl.PropagateNan.ALL)
    powers = ()
    total_power = tl.zeros((lanes,), tl.float32)
    for k in tl.static_range(10):
        powers += (tl.exp(biased[k] - largest),)
        total_power += powers[k]
    errors = ()
    for k in tl.static_range(10):
        slope = (powers[k] / total_power - (answers == k).to(tl.float32)) / size
        # lanes behind the batch hold its first image again and must not count
        errors += (tl.where(lane < size, slope, 0.0),)
        tl.store(slopes + k * lanes + lane, errors[k])
    for j in range(10):
        back = tl.zeros((lanes,), tl.float32)
        for k in tl.static_range(10):
            back += tl.load(head + 10 * k + j) * errors[k]
        # 1/16: each of 4x4 positions gets its share of the mean's gradient
        tl.store(backs + j * lanes + lane, back * 0.0625)
