"""Conversions of FP8 and bfloat16 in Triton's interpreter as hardware makes them.

Why: the interpreter of Triton 3.9.0 cuts bfloat16 off, rounds FP8 without carrying into the exponent
and reads the NaN of the FNUZ formats (0x80) as zero. A test of a format's rounding, range and NaN
must see none of that.
Remove when: the interpreter rounds to nearest even and knows FNUZ's NaN.
"""

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


def mend() -> None:
    """Let torch, which rounds to nearest even, make the conversions between these types."""
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
