"""The AMD DSpark draft inside vLLM on a CPU: dispatch, configuration, speculator.

Real are vLLM's argument parser, engine configuration, registry, platform dispatch, loader,
speculator and the draft class of the AMD platform. Not real: weights (dummy), the GPU, kernels.
Call `stand_on_cpu` before anything imports vLLM; the rest in any order.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ARCHITECTURE = "DSparkDraftModel"
_PACKAGE = "vllm.models.deepseek_v4"


class _NoEvent:
    """Stands for torch.cuda.Event, which cannot be made without a GPU; none is recorded."""


def stand_on_cpu() -> None:
    """Make vLLM take the CPU for its platform, as a machine that builds images has no GPU.

    A ROCm build would find no platform at all there and refuse to build a configuration.
    """
    import torch

    torch.cuda.Event = _NoEvent
    torch.accelerator.empty_cache = lambda: None
    platforms: Any = importlib.import_module("vllm.platforms")
    if not platforms.current_platform.is_cpu():
        cpu = importlib.import_module("vllm.platforms.cpu")
        platforms._current_platform = cpu.CpuPlatform()
    # vLLM inspects a model's class in a process of its own, which would look for a platform again.
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda inspect: inspect()
    _import_rocm_platform()


def dispatch_to_amd() -> None:
    """Let vLLM's own platform dispatch choose again, as it does on ROCm.

    What the package imports is imported as on the CPU first; only the choice is made again.
    """
    package = importlib.import_module(_PACKAGE)
    for name in ("dspark", "mtp"):
        importlib.import_module(f"{_PACKAGE}.amd.{name}")
    platform = type(importlib.import_module("vllm.platforms").current_platform)
    original = platform.is_rocm
    platform.is_rocm = lambda _: True
    try:
        importlib.reload(package)
    finally:
        platform.is_rocm = original


def _import_rocm_platform() -> None:
    """Import vllm/platforms/rocm.py, which AMD's modules of later releases do when they are.

    It asks for the GPU's architecture; and for a library of operators, of which the wheel for the
    CPU holds several, by instruction set: a second registration of the same ones ends the process.
    Where it cannot be imported, whatever needs it says so itself.
    """
    import torch

    if importlib.util.find_spec("vllm._C_AVX2"):
        importlib.import_module("vllm._custom_ops")  # which loads the one for this CPU
        sys.modules.setdefault("vllm._C", types.ModuleType("vllm._C"))
    card = types.SimpleNamespace(gcnArchName="gfx950", multi_processor_count=256, major=9, minor=5)
    original = torch.cuda.get_device_properties
    torch.cuda.get_device_properties = lambda *_: card
    try:
        with contextlib.suppress(Exception):
            importlib.import_module("vllm.platforms.rocm")
    finally:
        torch.cuda.get_device_properties = original


def registered_class() -> Any:
    """The class that vLLM's registry gives for the DSpark draft."""
    registry = importlib.import_module("vllm.model_executor.models.registry")
    return registry.ModelRegistry.models[ARCHITECTURE].load_model_cls()


def engine_config(model: str, speculative: dict[str, Any], **arguments: Any) -> Any:
    """The engine configuration of a model folder without weights or tokenizer."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=model,
        tokenizer=model,
        skip_tokenizer_init=True,
        load_format="dummy",
        max_model_len=128,
        max_num_batched_tokens=2048,
        enforce_eager=True,
        speculative_config=speculative,
        **arguments,
    ).create_engine_config()


@contextlib.contextmanager
def speculator(
    model: str, speculative: dict[str, Any], requests: int = 4
) -> Iterator[tuple[Any, Any]]:
    """The speculator that vLLM makes for an unquantized model, and a target for its draft.

    `speculator.load_model(target)` then loads the draft.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.v1.worker.gpu.spec_decode import init_speculator

    config = engine_config(model, speculative, dtype="float32", max_num_seqs=requests)
    config.cache_config.cache_dtype = "fp8_ds_mla"  # what the AMD attention turns "fp8" into
    with set_current_vllm_config(config):
        _start_process_group()
        # Later releases hand it the runner's request states too, which a load does not read.
        wanted = inspect.signature(init_speculator).parameters
        made = init_speculator(config, torch.device("cpu"), *[None] * (len(wanted) - 2))
        text = config.model_config.hf_config
        yield made, _target(text.vocab_size, text.hidden_size)


def _target(vocab_size: int, hidden_size: int) -> Any:
    """What a draft shares with the target model: embedding and lm_head, all zero."""
    from torch import nn
    from vllm.model_executor.layers import vocab_parallel_embedding as layers

    target: Any = nn.Module()
    target.model = nn.Module()
    target.model.embed_tokens = layers.VocabParallelEmbedding(vocab_size, hidden_size)
    target.lm_head = layers.ParallelLMHead(vocab_size, hidden_size)
    nn.init.zeros_(target.model.embed_tokens.weight)
    nn.init.zeros_(target.lm_head.weight)
    return target


def _start_process_group() -> None:
    from vllm.distributed import parallel_state

    if parallel_state.model_parallel_is_initialized():
        return
    rendezvous = Path(tempfile.mkdtemp()) / "rendezvous"
    parallel_state.init_distributed_environment(1, 0, f"file://{rendezvous}", 0, backend="gloo")
    parallel_state.ensure_model_parallel_initialized(1, 1)
