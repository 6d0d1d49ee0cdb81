"""Tensors of the tiny models: drawn from a name, kept as bfloat16 patterns, written as safetensors.

Drawn from SHAKE-256 of the tensor's name with the standard library alone: neither torch, numpy, the
CPU nor the Python version shows in a file.
"""

from __future__ import annotations  # array[int] is not subscriptable at run time before 3.12

import hashlib
import json
import math
import struct
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from operator import add
from typing import Any

NAN_BITS = 0x7FC0
_ONE_BITS = 0x3F80
# The sum of two uniform bytes is triangular with this mean and standard deviation.
_BYTE_SUM_MEAN = 255
_BYTE_SUM_STD = math.sqrt(2 * (256**2 - 1) / 12)


@dataclass(frozen=True)
class Tensor:
    """A bfloat16 tensor: its shape, and its values as bit patterns in row order."""

    shape: tuple[int, ...]
    bits: array[int]

    def rows(self) -> Iterable[list[float]]:
        """The rows of a matrix as floats."""
        values = [_float(pattern) for pattern in self.bits]
        width = self.shape[-1]
        return (values[start : start + width] for start in range(0, len(values), width))


Weights = dict[str, Tensor]


def random(name: str, shape: tuple[int, ...], std: float) -> Tensor:
    """A tensor with this standard deviation, drawn from SHAKE-256 of its name."""
    count = math.prod(shape)
    stream = hashlib.shake_256(name.encode()).digest(2 * count)
    table = [bits_of((total - _BYTE_SUM_MEAN) * std / _BYTE_SUM_STD) for total in range(511)]
    sums = map(add, stream[:count], stream[count:])
    return Tensor(shape, array("H", map(table.__getitem__, sums)))


def ones(size: int) -> Tensor:
    """A vector of ones."""
    return Tensor((size,), array("H", [_ONE_BITS]) * size)


def zeros(*shape: int) -> Tensor:
    """A tensor of zeros."""
    return Tensor(shape, array("H", [0]) * math.prod(shape))


def bits_of(value: float) -> int:
    """The bfloat16 pattern of a finite number, rounded to nearest, ties to even."""
    (pattern,) = struct.unpack("<I", struct.pack("<f", value))
    return int((pattern + 0x7FFF + ((pattern >> 16) & 1)) >> 16)


def _float(bits: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", bits << 16))
    return float(value)


def normalised(matrix: Tensor, epsilon: float) -> Tensor:
    """Each row divided by its root mean square, as a norm of weight one does.

    math.fsum, because the rounding of sum() changed in Python 3.12.
    """
    bits = array("H")
    for row in matrix.rows():
        mean_square = math.fsum(value * value for value in row) / len(row)
        scale = math.sqrt(mean_square + epsilon)
        bits.extend(bits_of(value / scale) for value in row)
    return Tensor(matrix.shape, bits)


def safetensors(weights: Weights) -> bytes:
    """The safetensors container: length of the header, JSON header, values, all little-endian."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    values = bytearray()
    for name, tensor in weights.items():
        start = len(values)
        values += _little_endian(tensor.bits)
        header[name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [start, len(values)],
        }
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(values)


def _little_endian(bits: array[int]) -> bytes:
    if sys.byteorder == "little":
        return bits.tobytes()
    swapped = array("H", bits)
    swapped.byteswap()
    return swapped.tobytes()
