"""vLLM on ROCm with a card that is not there: the compile proof's stand-ins, in one place.

- `amdsmi`: answers with the architecture, so that vLLM's own ROCm platform is the real one;
- Triton's driver: says which architecture to compile for, and launches nothing;
- torch's answer to how many compute units the card has;
- AITER and vLLM's extension modules are as if not installed: wrappers of vLLM's Triton kernels call
  neither, AITER builds modules when it is imported, and a machine without ROCm has none of them.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from patches.loadcheck.card import Card

_WAVE = 64
_ABSENT = ("aiter", "vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C", "vllm._rocm_C")


def stand(card: Card) -> None:
    """Let vLLM and Triton of this process take `card` for present; before anything of vLLM."""
    absent = dict.fromkeys(_ABSENT)  # None: importing it raises ModuleNotFoundError
    sys.modules |= {**absent, "amdsmi": _amdsmi(card)}  # type: ignore[dict-item]
    torch: Any = importlib.import_module("torch")
    found = SimpleNamespace(
        name=card.arch, gcnArchName=card.arch, multi_processor_count=card.compute_units
    )
    torch.cuda.get_device_properties = lambda *_: found
    driver: Any = importlib.import_module("triton.runtime.driver").driver
    driver.set_active(_driver(card))
    backends: Any = importlib.import_module("triton.backends").backends
    # vLLM keeps Triton with one driver that is active (vllm/triton_utils/importing.py).
    object.__setattr__(backends["amd"], "driver", type(driver.active))
    platforms: Any = importlib.import_module("vllm.platforms")
    platforms._current_platform = importlib.import_module("vllm.platforms.rocm").RocmPlatform()


def _driver(card: Card) -> Any:
    """Triton's view of a card: what to compile for. A launch would find nothing to call."""
    base: Any = importlib.import_module("triton.backends.driver").DriverBase
    target: Any = importlib.import_module("triton.backends.compiler").GPUTarget
    properties = {
        "max_shared_mem": card.lds_bytes,
        "multiprocessor_count": card.compute_units,
        "warpSize": _WAVE,
    }

    class Driver(base):  # type: ignore[misc]  # Triton has no types here
        utils = SimpleNamespace(get_device_properties=lambda _device: properties)

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> Any:
            return target("hip", card.arch, _WAVE)

        def get_active_torch_device(self) -> Any:
            return importlib.import_module("torch").device("meta")

        def map_python_to_cpp_type(self, name: str) -> str:
            return name

        def get_benchmarker(self) -> Any:
            return lambda call, **_: (call(), [1.0] * 3)[1]

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, _device: int | None = None) -> int:
            return 0

        def set_current_device(self, _device: int) -> None:
            """There is one."""

        def get_empty_cache_for_benchmark(self) -> None:
            """Nothing is measured."""

        def clear_cache(self, _cache: Any) -> None:
            """Nor kept."""

    return Driver()


def _amdsmi(card: Card) -> ModuleType:
    """The AMD library, as far as vLLM's platform asks it (vllm/platforms/rocm.py)."""
    module: Any = ModuleType("amdsmi")
    module.AmdSmiException = type("AmdSmiException", (Exception,), {})
    module.AmdSmiMemoryType = SimpleNamespace(VRAM=0)
    module.amdsmi_init = module.amdsmi_shut_down = lambda: None
    module.amdsmi_get_processor_handles = lambda: [0]
    module.amdsmi_get_gpu_asic_info = lambda _handle: {
        "target_graphics_version": card.arch,
        "device_id": "0x0",
        "market_name": card.arch,
    }
    for name in ("gpu_device_uuid", "gpu_memory_total"):
        setattr(module, f"amdsmi_get_{name}", lambda *_: 0)
    module.amdsmi_topo_get_link_type = lambda *_: {"hops": 1, "type": 2}
    module.amdsmi_topo_get_numa_node_number = lambda _handle: 0
    found: ModuleType = module
    return found
