"""The driver half of the ``cpu`` Triton backend: active only while Triton interprets."""

import os
from collections.abc import Callable
from typing import Any, NoReturn

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class InterpretedDriver(DriverBase):  # type: ignore[misc]  # Triton ships no type information
    """Reports a CPU target; launches nothing, because the interpreter does."""

    @classmethod
    def is_active(cls) -> bool:
        """True only with TRITON_INTERPRET=1: vLLM wants exactly one active driver."""
        return os.environ.get("TRITON_INTERPRET") == "1"

    def get_current_target(self) -> GPUTarget:
        """The one target of `compiler.InterpretedBackend`."""
        return GPUTarget("cpu", 0, 0)

    def get_active_torch_device(self) -> Any:
        """The torch CPU device."""
        import torch

        return torch.device("cpu")

    def get_current_device(self) -> int:
        """There is one device."""
        return 0

    def get_current_stream(self, _device: object = None) -> int:
        """There are no streams."""
        return 0

    def get_benchmarker(self) -> Callable[..., Any]:
        """Triton's own timer."""
        from triton.testing import do_bench

        return do_bench  # type: ignore[no-any-return]

    def map_python_to_cpp_type(self, ty: str) -> NoReturn:
        """Raises NotImplementedError: only a launcher for compiled kernels asks."""
        raise NotImplementedError(ty)
