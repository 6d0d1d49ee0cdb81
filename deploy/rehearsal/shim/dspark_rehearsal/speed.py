"""Shortcuts through the interpreter of Triton 3.9.0 that leave every result as it is.

A rehearsal spends nearly all of its time in Triton's interpreter. Each shortcut says why it is
safe. Remove one when the pinned Triton no longer does the work twice, or no longer has the name.
"""

import functools
import math
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import random
from triton.runtime import interpreter

_applied = False

_ROOM = 1 << 17
"""Slots of 8 bytes that a frame asks for: its piece has twice as many, for those below it."""


def apply() -> None:
    """Apply all shortcuts, once in a process."""
    global _applied
    if _applied:
        return
    _applied = True
    _switch_language_once()
    _skip_overflow_checks()
    _remember_dtypes()
    _draw_philox_in_numpy()
    _remember_shapes()
    _call_builtins_at_once()
    _leave_what_is_alike()
    _know_plain_values()
    _give_frames_room()


def _switch_language_once() -> None:
    """Keep triton.language switched to interpretation instead of switching it for every call.

    Why it is safe: the interpreter switches back only so that compiled kernels can run in the same
    process, and a rehearsal compiles none. Each switch walks all members of triton.language.
    """
    switch = interpreter._patch_lang
    seen: set[str] = set()
    switched: set[frozenset[int]] = set()

    def switch_once(kernel: Any) -> Any:
        if kernel.__module__ not in seen:
            seen.add(kernel.__module__)
            languages = frozenset(
                id(value) for value in kernel.__globals__.values() if value in (tl, tl.core)
            )
            if languages not in switched:
                switched.add(languages)
                switch(kernel)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = switch_once


def _skip_overflow_checks() -> None:
    """Leave out the 64-bit recomputation of every integer sum and product.

    Why it is safe: it only feeds an assertion that the interpreter, not in debug mode, drops.
    """
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.interpreter_builder.options = options


def _remember_dtypes() -> None:
    """Look up the numpy type of a scalar type once.

    Why it is safe: scalar types are constants. The lookup builds its whole table on every call.
    """
    look_up = interpreter._get_np_dtype
    remembered = functools.cache(look_up)

    def remembering(kind: Any) -> Any:
        # Only plain scalars can be hashed; the lookup of a block is that of its scalar.
        kind = kind.scalar if isinstance(kind, tl.block_type) else kind
        return remembered(kind) if type(kind) is tl.dtype else look_up(kind)

    interpreter._get_np_dtype = remembering


def _remember_shapes() -> None:
    """Make the shape of a tensor, as Triton's constants, once for all tensors that have it.

    Why it is safe: a shape is made of its numbers alone and is never changed. Made anew, with the
    type of each of its numbers, it is a third of all the time of an interpreted kernel.
    """
    original = tl.block_type.__init__

    @functools.cache
    def of_tensor(numbers: tuple[int, ...]) -> tuple[Any, Any]:
        shape = tl.core.tuple([tl.constexpr(number) for number in numbers])
        return shape, tl.constexpr(math.prod(numbers))

    @functools.cache
    def of_block(numbers: tuple[int, ...]) -> tuple[Any, int, str]:
        block = tl.block_type.__new__(tl.block_type)
        original(block, tl.int1, list(numbers))
        return block.shape, block.numel, str(block.shape)

    def make_tensor(tensor: Any, handle: Any, type: Any) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
        tensor.shape, tensor.numel = of_tensor(tuple(type.shape) if type.is_block() else ())

    def make_block(block: Any, element_ty: Any, shape: Any) -> None:
        numbers = tuple(n.value if type(n) is tl.constexpr else n for n in shape)
        if not numbers or any(type(number) is not int for number in numbers):
            original(block, element_ty, shape)
            return
        block.element_ty = element_ty
        block.shape, block.numel, written = of_block(numbers)
        block.name = f"<{written}, {element_ty}>"

    tl.tensor.__init__ = make_tensor
    tl.block_type.__init__ = make_block


def _call_builtins_at_once() -> None:
    """Hand the interpreter to a function of Triton's language without rebuilding its arguments.

    Why it is safe: the same function gets the same arguments, without a check of one of them.
    """
    semantic = interpreter.interpreter_semantic

    def patch(obj: Any, name: str, member: Any, _builder: Any, scope: Any) -> None:
        function = getattr(member, "__wrapped__", member)

        @functools.wraps(function, updated=())
        def called(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return function(*args, **kwargs)

        scope.set_attr(obj, name, called)

    interpreter._patch_attr = patch


def _leave_what_is_alike() -> None:
    """Leave two operands of one type uncast, and two of one shape as they are.

    Why it is safe: Triton returns the same two, after it has held each against every type there is.
    A remembered shape is the same object. Pointers, numbers, and what is divided take the long way.
    """
    semantic: Any = type(interpreter.interpreter_semantic)
    check, broadcast = semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value

    def broadcast_unlike(self: Any, lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(self, lhs, rhs)

    @functools.wraps(check)
    def check_unlike(
        self: Any,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        tensors = type(lhs) is tl.tensor and type(rhs) is tl.tensor
        if tensors and type(lhs.dtype) is tl.dtype and lhs.dtype == rhs.dtype and not div_or_mod:
            return broadcast_unlike(self, lhs, rhs)
        return check(self, lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)

    semantic.binary_op_type_checking_impl = check_unlike
    semantic.broadcast_impl_value = broadcast_unlike


def _know_plain_values() -> None:
    """Tell by its type what no constant wraps, and by itself what equals itself.

    Why it is safe: the long way asks three and more questions about the same value, whose answer
    follows from its type, and compares names of scalar types, of which there is one object each.
    """
    unwrap, equals = tl.core._unwrap_if_constexpr, tl.dtype.__eq__
    plain = frozenset({tl.tensor, tl.dtype, tl.block_type, int, float, bool, str, type(None)})
    integers = frozenset(tl.dtype.SINT_TYPES + tl.dtype.UINT_TYPES)

    def unwrap_wrapped(value: Any) -> Any:
        kind = type(value)
        if kind is tl.constexpr:
            return value.value
        return value if kind in plain else unwrap(value)

    tl.core._unwrap_if_constexpr = unwrap_wrapped
    tl.dtype.__eq__ = lambda self, other: self is other or equals(self, other)
    tl.dtype.is_int = lambda self: self.name in integers


def _give_frames_room() -> None:
    """Run each kernel above a megabyte of stack for the frames of Python's functions.

    Why it is safe: it is where frames lie, and not what they do. CPython 3.11 keeps them in pieces
    of 16 KiB (Python/pystate.c, push_chunk): where a piece ends, each call below maps another one
    and gives it back as it returns, and a kernel calls a hundred thousand times from one depth.
    """
    launch = interpreter.GridExecutor.__call__

    def launch_with_room(*args: Any, **kwargs: Any) -> Any:
        return launch(*args, **kwargs)

    roomy = launch_with_room.__code__.replace(co_stacksize=_ROOM)
    launch_with_room.__code__ = roomy
    interpreter.GridExecutor.__call__ = launch_with_room


def _draw_philox_in_numpy() -> None:
    """Compute Philox-4x32, the source of all of vLLM's sampling noise, by numpy directly.

    Why it is safe: it is exact integer arithmetic with one right answer, and a test compares it
    with the interpreted kernel. Interpreted, it takes most of the sampling kernel's time.
    """
    interpreted = random.philox_impl

    def philox_impl(
        c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, n_rounds: Any = 10
    ) -> tuple[Any, ...]:
        counters, keys = (c0, c1, c2, c3), (k0, k1)
        alike = all(counter.type == c0.type for counter in counters)
        if c0.dtype != tl.uint32 or not alike or any(key.type.is_block() for key in keys):
            return interpreted(*counters, *keys, n_rounds)  # type: ignore[no-any-return]
        words = philox_4x32(
            [counter.handle.data for counter in counters],
            [key.handle.data for key in keys],
            int(getattr(n_rounds, "value", n_rounds)),
        )
        return tuple(
            tl.tensor(interpreter.TensorHandle(word, tl.uint32), c0.type) for word in words
        )

    random.philox_impl = philox_impl


def philox_4x32(counters: list[Any], keys: list[Any], rounds: int) -> list[Any]:
    """Philox-4x32 (Salmon et al., SC 2011) on uint32 arrays: four counters and two keys."""
    c0, c1, c2, c3 = counters
    k0, k1 = keys
    for _ in range(rounds):
        high_a, low_a = _wide_product(0xD2511F53, c0)
        high_b, low_b = _wide_product(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0 = k0 + np.uint32(0x9E3779B9)
        k1 = k1 + np.uint32(0xBB67AE85)
    return [c0, c1, c2, c3]


def _wide_product(factor: int, words: Any) -> tuple[Any, Any]:
    """The high and the low 32 bits of a product of 32-bit words."""
    product = words.astype(np.uint64) * np.uint64(factor)
    return (product >> np.uint64(32)).astype(np.uint32), product.astype(np.uint32)
