"""Small Triton kernels run by the interpreter, for tests of the shim; prints JSON.

Run as a program with TRITON_INTERPRET=1 and the shim on PYTHONPATH: kernels are read from this
file's source, and a process either interprets Triton or it does not.
"""

import json
import resource
import sys
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from dspark_rehearsal import interpreter, speed
from triton.language.extra import libdevice


@triton.jit
def log1p_kernel(x, y, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """y = log1p(x)"""
    block = tl.arange(0, SIZE)
    tl.store(y + block, libdevice.log1p(tl.load(x + block)))


@triton.jit
def masked_kernel(x, y, wanted, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Copy the first three where a loaded scalar wants it, with vLLM's way to join masks."""
    block = tl.arange(0, SIZE)
    mask = (block < 3) & (tl.load(wanted).to(tl.int64) >= 0)
    tl.store(y + block, tl.load(x + block, mask=mask, other=0.0), mask=mask)


@triton.jit
def argmax_kernel(x, value, index, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The largest element and its place."""
    largest, place = tl.max(tl.load(x + tl.arange(0, SIZE)), axis=0, return_indices=True)
    tl.store(value, largest)
    tl.store(index, place)


@triton.jit
def bfloat16_kernel(x, y, sums, products, larger, tops, dots, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """What bfloat16 computes, element by element, over each row, and as a product of matrices."""
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    at = rows * SIZE + columns
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(sums + at, a + b)
    tl.store(products + at, a * b)
    tl.store(larger + at, (a > b).to(tl.int32))
    tl.store(tops + tl.arange(0, SIZE), tl.max(tl.abs(a), axis=1))
    tl.store(dots + at, tl.dot(a, tl.trans(b)))


@triton.jit
def random_kernel(seed, offset, block_out, scalar_out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Random words as vLLM draws them: a scalar from a seed, then a block from that scalar."""
    block = tl.arange(0, SIZE)
    drawn = tl.randint(tl.load(seed), tl.load(offset))
    tl.store(scalar_out, drawn)
    a, b, c, d = tl.randint4x(drawn, block)
    tl.store(block_out + block, a ^ (b * 3) ^ (c * 5) ^ (d * 7))


@triton.jit
def mixed_kernel(x, y, n, floats, numbers, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Operands of one type and shape and of several: floats of both sizes, integers of both, masks,
    numbers, a column with a row."""
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    at = rows * SIZE + columns
    a, b, c = tl.load(x + at), tl.load(y + at), tl.load(n + rows)
    total = (a + a) * b - 2 + 0.5 * c
    chosen = tl.where((a > b) & (columns != 3), total / (c + 3), b / (b * b + 1))
    tl.store(floats + at, chosen.to(tl.float32) + (b * b).to(tl.float32))
    mixed = ((c % 5) * columns + (at // 3)) ^ (rows | 1)
    tl.store(numbers + at, mixed + (a >= total).to(tl.int32) + (c == 2) * (c - c) + SIZE)


def mends() -> dict[str, Any]:
    """What each mended operation gives."""
    interpreter.mend()
    x = torch.rand(8)
    y = torch.zeros(8)
    log1p_kernel[(1,)](x, y, SIZE=8)
    copied = torch.zeros(4)
    masked_kernel[(1,)](
        torch.tensor([10.0, 20.0, 30.0, 40.0]), copied, torch.tensor([1], dtype=torch.int32), SIZE=4
    )
    nan = float("nan")
    some, some_at = largest(torch.tensor([nan, 1.0, 5.0, nan]))
    none, none_at = largest(torch.full((4,), nan))
    return {
        "log1p_is_numpys": bool(np.array_equal(y.numpy(), np.log1p(x.numpy()))),
        "joined_mask": copied.tolist(),
        "max_of_numbers": some,
        "argmax_of_numbers": some_at,
        "max_of_nan_is_nan": none != none,
        "argmax_of_nan": none_at,
        "bfloat16": bfloat16(),
    }


def bfloat16(size: int = 16) -> dict[str, bool]:
    """Whether the interpreter computes bfloat16 as torch does, each result rounded once."""
    a, b = torch.randn(2, size, size).bfloat16()
    sums, products = torch.zeros_like(a), torch.zeros_like(a)
    larger, dots = torch.zeros(size, size, dtype=torch.int32), torch.zeros(size, size)
    tops = torch.zeros(size, dtype=torch.bfloat16)
    bfloat16_kernel[(1,)](a, b, sums, products, larger, tops, dots, SIZE=size)
    return {
        "sum": torch.equal(sums, a + b),
        "product": torch.equal(products, a * b),
        "larger": torch.equal(larger.bool(), a > b),
        "top": torch.equal(tops, a.abs().amax(1)),
        "dot": torch.allclose(dots, a.float() @ b.float().T, atol=1e-5),
    }


def largest(x: torch.Tensor) -> tuple[float, int]:
    """The interpreted maximum of a block and its index."""
    value, index = torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    argmax_kernel[(1,)](x, value, index, SIZE=len(x))
    return float(value), int(index)


def shortcuts() -> dict[str, Any]:
    """Random words, and sums of mixed operands, before and after the shortcuts are applied,
    compared; and the pages that one kernel maps anew, from wherever in the stack it maps most."""
    interpreter.mend()
    depths = range(0, 200, 4)
    mapped = max(map(pages_mapped, depths))
    long = mixed()
    cases = [(seed, offset) for seed in (0, 1, 7, 2**31, 2**40 + 3, -5) for offset in (0, 1, 4095)]
    slow = [words(seed, offset) for seed, offset in cases]
    speed.apply()
    fast = [words(seed, offset) for seed, offset in cases]
    pairs = [pair for a, b in zip(slow, fast, strict=True) for pair in zip(a, b, strict=True)]
    return {
        "compared": len(pairs),
        "different": sum(a != b for a, b in pairs),
        "mixed": [torch.equal(*pair) for pair in zip(long, mixed(), strict=True)],
        "mapped": [mapped, max(map(pages_mapped, depths))],
        "values": [len(torch.unique(values)) for values in long],
    }


def mixed(size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """The floats and the integers that the mixed kernel gives, the same at each call."""
    x = torch.linspace(-3, 5, size * size)
    y = torch.linspace(4, -4, size * size).bfloat16()
    floats, numbers = torch.zeros(size * size), torch.zeros(size * size, dtype=torch.int64)
    mixed_kernel[(1,)](x, y, torch.arange(-2, size - 2), floats, numbers, SIZE=size)
    return floats.view(torch.int32), numbers


def shapes() -> dict[str, Any]:
    """The shape and type of tensors that Triton makes from scratch, and with shapes remembered."""
    kinds = [tl.int1, tl.float32, tl.pointer_type(tl.bfloat16)]
    slow = [described(kind) for kind in kinds]
    speed.apply()
    return {"slow": slow, "fast": [described(kind) for kind in kinds]}


def pages_mapped(depth: int) -> int:
    """Those that a kernel maps anew when so many functions called each other to launch it."""
    if depth:
        return pages_mapped(depth - 1)
    mixed()  # what is made once is made here
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    mixed()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def described(kind: Any) -> list[str]:
    """What a block and a scalar of this type say of themselves."""
    block = tl.block_type(kind, [tl.constexpr(4), 2])
    made = [
        tl.tensor(None, block),
        tl.tensor(None, kind),
        tl.tensor(None, block.with_element_ty(tl.int8)),
    ]
    told = [(t.type, t.dtype, t.shape, len(t.shape), t.shape.type.types, t.numel) for t in made]
    return [f"{block} {block.numel} {block.shape} {block.mangle()}", *map(str, told)]


def words(seed: int, offset: int) -> list[int]:
    """The scalar and the block that the random kernel gives."""
    block, scalar = torch.zeros(64, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    random_kernel[(1,)](torch.tensor([seed]), torch.tensor([offset]), block, scalar, SIZE=64)
    return [*scalar.tolist(), *block.tolist()]


if __name__ == "__main__":
    print(json.dumps({"mends": mends, "shortcuts": shortcuts, "shapes": shapes}[sys.argv[1]]()))
