"""Mends to the interpreter of Triton 3.9.0, each with its reason.

Remove a mend when its reason no longer holds in the pinned Triton.
"""

import functools
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

from . import floats

_mended = False


def mend() -> None:
    """Apply all mends, once in a process."""
    global _mended
    if _mended:
        return
    _mended = True
    _provide_log1p()
    _accept_any_mask()
    _survive_all_nan()
    floats.mend()


def _provide_log1p() -> None:
    """libdevice is a set of empty stubs that return None where no device is present.

    Why: the Gumbel noise and the rejection sampler use log1p.
    Remove when: Triton's interpreter maps libdevice functions itself.
    """

    def log1p(x: Any, _semantic: object = None) -> Any:
        data = x.handle.data
        result = interpreter.TensorHandle(np.log1p(data).astype(data.dtype), x.handle.dtype)
        return tl.tensor(result, x.type)

    libdevice.log1p = log1p


def _accept_any_mask() -> None:
    """The native load and store primitives take a mask of numpy bools only.

    Why: ``mask & condition`` comes out of the interpreter as int32 when the condition is a scalar,
    as in vLLM's gumbel_block_argmax, and the store then fails with a type error.
    Remove when: the interpreter casts masks to bool.
    """
    builder = interpreter.InterpreterBuilder
    for name, mask_position in (("create_masked_load", 1), ("create_masked_store", 2)):
        setattr(builder, name, _with_bool_mask(getattr(builder, name), mask_position))


def _with_bool_mask(original: Any, mask_position: int) -> Any:
    @functools.wraps(original)
    def wrapped(builder: Any, *args: Any) -> Any:
        mask = args[mask_position]
        if mask.data.dtype != np.bool_:
            mask = interpreter.TensorHandle(mask.data.astype(np.bool_), tl.int1)
            args = (*args[:mask_position], mask, *args[mask_position + 1 :])
        return original(builder, *args)

    return wrapped


def _survive_all_nan() -> None:
    """numpy's nanargmax and nanargmin raise on a block that holds nothing but NaN.

    Why: hardware returns some index instead, and vLLM relies on it: its profile run samples from
    uninitialised hidden states, and a model with NaN weights must answer as it does on a GPU.
    Remove when: the interpreter's reductions no longer raise on NaN.
    """
    original = interpreter.ReduceOps.min_max

    @functools.wraps(original)
    def min_max(reduction: Any, block: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        values = block[0] if isinstance(block, tuple) else block
        data = values.handle.data
        if data.dtype.kind != "f" or not np.isnan(data).any():
            return original(reduction, values, val_reduce_op, idx_reduce_op)
        return original(
            reduction,
            values,
            _REPLACEMENTS[val_reduce_op],
            _REPLACEMENTS[idx_reduce_op] if idx_reduce_op else None,
        )

    interpreter.ReduceOps.min_max = min_max


def _max_of_numbers(data: Any, axis: Any, keepdims: Any) -> Any:
    """NaN only where there is no number at all; numpy's nanmax would warn about that."""
    return np.fmax.reduce(data, axis=axis, keepdims=keepdims)


def _min_of_numbers(data: Any, axis: Any, keepdims: Any) -> Any:
    return np.fmin.reduce(data, axis=axis, keepdims=keepdims)


def _argmax_of_numbers(data: Any, axis: Any, keepdims: Any) -> Any:
    return np.argmax(np.where(np.isnan(data), -np.inf, data), axis=axis, keepdims=keepdims)


def _argmin_of_numbers(data: Any, axis: Any, keepdims: Any) -> Any:
    return np.argmin(np.where(np.isnan(data), np.inf, data), axis=axis, keepdims=keepdims)


_REPLACEMENTS = {
    np.nanmax: _max_of_numbers,
    np.nanmin: _min_of_numbers,
    np.nanargmax: _argmax_of_numbers,
    np.nanargmin: _argmin_of_numbers,
}
