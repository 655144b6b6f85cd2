"""Sixteen numbers at once: the vector type in which the compiled engine computes, and its operations.

``Lanes`` is LLVM's ``<16 x float>`` inside functions that Numba compiles: one register with AVX-512, two with AVX2,
four with SSE or NEON. Lane by lane the arithmetic is that of float32 scalars; only a product and the sum that it goes
into may be rounded once instead of twice. Nothing is reordered, so the bits do not depend on what surrounds a sum.
"""

import operator
import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

# A register of AVX-512 holds 16 numbers of 4 bytes; LLVM splits the vector for smaller ones.
LANES = 16
_FLOAT, _BYTE, _INT, _LONG = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR, _INTS, _FOUR = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES), ir.VectorType(_BYTE, 4)
# a vector load may assume no more than the alignment of one number: offsets are any
_LINE = 4
"""The least alignment of an address in bytes."""


def _vectors(typed: Callable[..., Any]) -> Callable[..., Any]:
    """Apply Numba's decorator, which supplies the first argument itself."""
    return intrinsic(typed)


class LanesType(types.Type):
    """Numba's type of sixteen float32."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


LANES_TYPE = LanesType()


@register_model(LanesType)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * LANES)


def _whole(value: int) -> ir.Constant:
    return ir.Constant(_INTS, [value] * LANES)


def _splat(builder: Any, value: Any) -> Any:
    # LLVM's idiom for a broadcast, which it turns into one instruction
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, ir.Constant(_VECTOR, ir.Undefined), _whole(0))


def _address(context: Any, builder: Any, kind: Any, array: Any, offset: Any, pointed: ir.Type) -> Any:
    """Return the address of element ``at`` of a one-dimensional contiguous array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), pointed.as_pointer())


def _called(builder: Any, name: str, *arguments: Any) -> Any:
    """Call one of LLVM's intrinsic functions of vectors."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(arguments))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32"), arguments)


@_vectors
def load(typing: Any, array: Any, offset: Any) -> Any:
    """Load the sixteen numbers of a float32 array from ``at`` on."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1], _VECTOR)
        return builder.load(address, align=_LINE)

    return LANES_TYPE(array, types.intp), build


@_vectors
def store(typing: Any, array: Any, offset: Any, value: Any) -> Any:
    """Store sixteen numbers in a float32 array from ``at`` on."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(
            arguments[2],
            _address(context, builder, signature.args[0], arguments[0], arguments[1], _VECTOR),
            align=_LINE,
        )
        return context.get_dummy_value()

    return types.void(array, types.intp, LANES_TYPE), build


@_vectors
def spread(typing: Any, value: Any) -> Any:
    """Copy one number to every lane."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _splat(builder, arguments[0])

    return LANES_TYPE(types.float32), build


@_vectors
def crops(typing: Any, pixels: Any, corners: Any, offset: Any) -> Any:
    """Load four neighbouring pixels of sixteen pictures: lane l of the i-th is ``pixels[corners[l] + at + i]``."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, places, _ = signature.args
        packed = ir.Constant(_INTS, ir.Undefined)
        for lane in range(LANES):
            corner = builder.load(_address(context, builder, places, arguments[1], _LONG(lane), _LONG))
            # crops start at any byte, hence ``align=1`` below
            address = _address(context, builder, kind, arguments[0], builder.add(corner, arguments[2]), _FOUR)
            word = builder.bitcast(builder.load(address, align=1), _INT)
            packed = builder.insert_element(packed, word, ir.Constant(_INT, lane))
        # four bytes were loaded as one word
        shifts = (0, 8, 16, 24) if sys.byteorder == "little" else (24, 16, 8, 0)
        four = [
            builder.uitofp(builder.and_(builder.lshr(packed, _whole(shift)), _whole(255)), _VECTOR) for shift in shifts
        ]
        return context.make_tuple(builder, signature.return_type, four)

    return types.UniTuple(LANES_TYPE, 4)(pixels, corners, types.intp), build


@_vectors
def patch(typing: Any, pixels: Any, offset: Any, width: Any) -> Any:
    """Load the 4x4 pixels of one picture whose first is ``pixels[at]``, row by row; rows are ``width`` pixels apart."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows: list[Any] = []
        offset = arguments[1]
        for _ in range(4):
            rows.append(
                builder.load(_address(context, builder, signature.args[0], arguments[0], offset, _FOUR), align=1)
            )
            offset = builder.add(offset, arguments[2])
        upper, lower = _joined(builder, rows[0], rows[1]), _joined(builder, rows[2], rows[3])
        return builder.uitofp(_joined(builder, upper, lower), _VECTOR)

    return LANES_TYPE(pixels, types.intp, types.intp), build


def _joined(builder: Any, first: Any, second: Any) -> Any:
    size = first.type.count
    mask = ir.Constant(ir.VectorType(_INT, 2 * size), list(range(2 * size)))
    return builder.shuffle_vector(first, second, mask)


@_vectors
def greater(typing: Any, value: Any, best: Any, yes: Any, no: Any) -> Any:
    """Select ``yes`` where the value is above ``best`` or not a number, else ``no``, as PyTorch's max-pooling."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # an ordered comparison with a NaN is false, so NaN is asked for by itself
        above = builder.fcmp_ordered(">", arguments[0], arguments[1])
        return builder.select(
            builder.or_(above, builder.fcmp_unordered("uno", arguments[0], arguments[0])), arguments[2], arguments[3]
        )

    return LANES_TYPE(LANES_TYPE, LANES_TYPE, LANES_TYPE, LANES_TYPE), build


@_vectors
def where_positive(typing: Any, value: Any, then: Any) -> Any:
    """Select ``then`` where the value is above 0 or not a number, else 0; with the value itself, ReLU."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # a NaN is not <= 0 and passes, as through torch.relu
        return builder.select(builder.fcmp_ordered("<=", arguments[0], _constant(0.0)), _constant(0.0), arguments[1])

    return LANES_TYPE(LANES_TYPE, LANES_TYPE), build


@_vectors
def total(typing: Any, value: Any) -> Any:
    """Return the sum over the lanes: 16 become 8, then 4, 2 and 1."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # a tree of fixed shape: llvm.vector.reduce.fadd leaves the order to the target, and with it the bits
        left, size = arguments[0], LANES
        while size > 1:
            size //= 2
            low, high = (
                builder.shuffle_vector(
                    left, left, ir.Constant(ir.VectorType(_INT, size), list(range(offset, offset + size)))
                )
                for offset in (0, size)
            )
            left = builder.fadd(low, high)
        return builder.extract_element(left, ir.Constant(_INT, 0))

    return types.float32(LANES_TYPE), build


@_vectors
def exponential(typing: Any, value: Any) -> Any:
    r"""Return e to the power of each lane, for numbers up to 0, good to 2 units in the last place; 0 below -87.

    :math:`e^x = 2^n e^r` with :math:`n = \mathrm{round}(x / \ln 2)`, so that :math:`|r| \le \ln 2 / 2`, where
    :math:`e^r` is Taylor's polynomial of degree 7; :math:`\ln 2` is subtracted in two pieces (Cody and Waite,
    "Software manual for the elementary functions", 1980, chapter 6).
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # e^-87.3 is the smallest normal number of float32
        least = _constant(-87.0)
        in_range = builder.fcmp_ordered(">=", arguments[0], least)
        x = builder.select(in_range, arguments[0], least)
        # 1 / ln 2
        n = _called(builder, "rint", builder.fmul(x, _constant(1.4426950408889634)))
        minus = builder.fsub(_constant(-0.0), n)
        # ln 2 = 355/512 - 2.12194440e-4: n times the first piece, of 9 bits, is exact
        r = _called(builder, "fmuladd", minus, _constant(0.693359375), x)
        r = _called(builder, "fmuladd", minus, _constant(-2.12194440e-4), r)
        # |r| <= ln 2 / 2: the first omitted term, r^8 / 8!, is below 6e-9, a tenth of float32's rounding
        series = _constant(1 / 5040)
        for term in (720, 120, 24, 6, 2, 1, 1):
            series = _called(builder, "fmuladd", series, r, _constant(1 / term))
        # 2^n as float32 has it: the exponent, 127 too large, above 23 bits of mantissa
        power = builder.shl(builder.add(builder.fptosi(n, _INTS), _whole(127)), _whole(23))
        result = builder.fmul(series, builder.bitcast(power, _VECTOR))
        # a NaN stays one, so that a member that diverged is seen
        otherwise = builder.select(
            builder.fcmp_unordered("uno", arguments[0], arguments[0]), arguments[0], _constant(0.0)
        )
        return builder.select(in_range, result, otherwise)

    return LANES_TYPE(LANES_TYPE), build


def _combined(operation: str) -> Any:
    """Return an operator between two sixteens; a product that goes into a sum is not rounded by itself."""

    @_vectors
    def combined(typing: Any, left: Any, right: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            # "contract" allows LLVM a fused multiply-add and nothing else of fast-math
            return getattr(builder, operation)(*arguments, flags=("contract",))

        return LANES_TYPE(LANES_TYPE, LANES_TYPE), build

    def chosen(left: Any, right: Any) -> Any:
        if left is LANES_TYPE and right is LANES_TYPE:

            def apply(left: Any, right: Any) -> Any:
                return combined(left, right)

            return apply
        return None

    return chosen


for _operator, _operation in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    overload(_operator)(_combined(_operation))
