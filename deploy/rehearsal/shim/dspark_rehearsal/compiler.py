"""The compiler half of a ``cpu`` Triton backend that never compiles.

Why: Triton's wheel has no code generator for the CPU, and vLLM (vllm/triton_utils/importing.py)
turns Triton off on a CPU platform unless a backend of that name is registered. With
TRITON_INTERPRET=1 no backend is ever asked to compile.
Remove when: Triton's wheel registers a ``cpu`` backend.
"""

from types import ModuleType
from typing import Any, NoReturn

from triton.backends.compiler import BaseBackend, GPUTarget


class InterpretedBackend(BaseBackend):  # type: ignore[misc]  # Triton ships no type information
    """Refuses every request for code."""

    binary_ext = "none"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        """True for the target that `driver.InterpretedDriver` reports."""
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        """Nothing is compiled, so nothing is cached under this name."""
        return "dspark-rehearsal"

    def parse_options(self, _options: dict[str, Any]) -> NoReturn:
        """Raises RuntimeError: this is the first thing a compilation does."""
        raise RuntimeError("the rehearsal has no Triton code generator: set TRITON_INTERPRET=1")

    def add_stages(self, stages: dict[str, Any], options: object, language: object) -> None:
        """There are no stages."""

    def load_dialects(self, context: object) -> None:
        """There are no dialects."""

    def get_module_map(self) -> dict[str, ModuleType]:
        """There are no device libraries."""
        return {}
