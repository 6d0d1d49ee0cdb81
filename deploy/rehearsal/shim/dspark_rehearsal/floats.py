"""Small floats in the interpreter of Triton 3.9.0 as hardware has them.

Why: the interpreter keeps bfloat16 as bit patterns and computes with the patterns as if they were
integers: a sum, product, comparison or dot of bfloat16 is noise. Its conversions cut bfloat16 off,
round FP8 without carrying into the exponent and read the NaN of the FNUZ formats (0x80) as zero.
vLLM's kernels for AMD do all of it; those of its sampler compute in float32.
Remove when: the interpreter computes with values, rounds to nearest even and knows FNUZ's NaN.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

_TYPES = {
    tl.float32: (torch.float32, np.int32),
    tl.float16: (torch.float16, np.int16),
    tl.bfloat16: (torch.bfloat16, np.int16),
    tl.float8e4nv: (torch.float8_e4m3fn, np.uint8),
    tl.float8e4b8: (torch.float8_e4m3fnuz, np.uint8),
}
"""The torch type that converts for a Triton type, and the integers that hold its bits."""

_COMPUTING = ("binary_op", "unary_op", "create_fma", "create_rsqrt", "create_erf", "create_dot")


def mend() -> None:
    """Convert by torch, which rounds to nearest even, and compute bfloat16 in float32."""
    _convert_by_torch()
    builder = interpreter.InterpreterBuilder
    for name in _COMPUTING:
        setattr(builder, name, _in_float32(getattr(builder, name)))
    builder.ternary_op = _but_for(np.where, builder.ternary_op)
    interpreter.ReduceOps.apply_impl = _reduce_in_float32(interpreter.ReduceOps.apply_impl)


def _convert_by_torch() -> None:
    original = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        nearest = rounding_mode in (None, interpreter._ir.ROUNDING_MODE.RTNE)
        if source not in _TYPES or target not in _TYPES or not nearest:
            return original(data, source, target, rounding_mode)
        (have, bits), (want, result_bits) = _TYPES[source], _TYPES[target]
        flat = np.ascontiguousarray(data).reshape(-1).view(bits)
        converted = torch.from_numpy(flat).view(have).to(want).view(_integer(result_bits))
        return converted.numpy().reshape(data.shape)

    interpreter._convert_float = convert


def _integer(bits: Any) -> torch.dtype:
    return {np.int32: torch.int32, np.int16: torch.int16, np.uint8: torch.uint8}[bits]


def _in_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compute with what is bfloat16 as float32, and round the result once."""

    @functools.wraps(original)
    def computed(builder: Any, *operands: Any) -> Any:
        if not any(map(_is_bfloat16, operands)):
            return original(builder, *operands)
        result = original(builder, *map(_widened, operands))
        is_dot = original.__name__ == "create_dot"  # which has the type of what it is added to
        return result if is_dot else _narrowed(result)

    return computed


def _but_for(selection: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """The same of an operation of three, but for the one that selects patterns as they are."""
    in_float32 = _in_float32(original)

    def ternary_op(builder: Any, *operands: Any) -> Any:
        return (original if operands[-1] is selection else in_float32)(builder, *operands)

    return ternary_op


def _reduce_in_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply_impl(reduction: Any, blocks: Any) -> Any:
        if not any(_is_bfloat16(block.handle) for block in blocks):
            return original(reduction, blocks)
        results = original(reduction, tuple(_retyped(block, _widened) for block in blocks))
        results = results if isinstance(results, (list, tuple)) else (results,)
        return tuple(_retyped(result, _narrowed) for result in results)

    return apply_impl


def _retyped(block: Any, change: Callable[[Any], Any]) -> Any:
    handle = change(block.handle)
    kind = handle.dtype.scalar
    return tl.tensor(handle, tl.block_type(kind, block.shape) if block.type.is_block() else kind)


def _is_bfloat16(operand: Any) -> bool:
    """Whether an operand is patterns of bfloat16; a comparison of them only has their type."""
    return (
        isinstance(operand, interpreter.TensorHandle)
        and operand.dtype.scalar is tl.bfloat16
        and operand.data.dtype == np.uint16
    )


def _widened(operand: Any) -> Any:
    if not _is_bfloat16(operand):
        return operand
    bits = operand.data.astype(np.uint32) << np.uint32(16)
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)


def _narrowed(result: Any) -> Any:
    if result.data.dtype != np.float32:
        return result
    data = interpreter._convert_float(result.data, tl.float32, tl.bfloat16, None)
    return interpreter.TensorHandle(data.view(np.uint16), tl.bfloat16)
