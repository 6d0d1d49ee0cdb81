"""Processes that import the vLLM of one tree: what they find around them, and what they answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HOME = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a process ended: its answer, None without a whole one, its exit code, and both in words
    with the last line of what it printed."""

    said: dict[str, Any] | None
    code: int
    why: str


def ask(
    module: str,
    question: Mapping[str, Any],
    environment: Mapping[str, str],
    folder: Path,
    timeout_s: float,
) -> Ended:
    """Run ``python -m MODULE ASKED ANSWERED``, two JSON files in `folder`, with this interpreter.

    Raises subprocess.TimeoutExpired.
    """
    asked, answered = folder / "asked.json", folder / "answered.json"
    answered.unlink(missing_ok=True)
    asked.write_text(json.dumps(question), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-P", "-m", module, str(asked), str(answered)],
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    said: dict[str, Any] | None
    try:
        said = json.loads(answered.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or cut off
        said = None
    last = (ended.stdout.strip().splitlines() or ["no output"])[-1]
    return Ended(said, ended.returncode, f"the process ended with {ended.returncode}: {last}")


def environment(root: Path, environ: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The variables of a process that imports the vLLM below `root`, on a machine without a GPU.

    Caches go to `scratch`, unless `environ` names a place of its own for them.
    """
    paths = [str(root), *filter(None, [environ.get("PYTHONPATH")]), str(_HOME)]
    defaults = {
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "VLLM_CACHE_ROOT": str(scratch / "vllm"),
        "VLLM_CONFIG_ROOT": str(scratch / "config"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "AITER_JIT_DIR": str(scratch / "aiter"),
        # A build without network has no other interface.
        "GLOO_SOCKET_IFNAME": "lo",
        # AITER asks rocminfo, which needs a GPU, unless this names the architecture.
        "GPU_ARCHS": "gfx950",
    }
    return {
        **defaults,
        **environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(scratch),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        # Nothing is compiled; vLLM keeps Triton without a driver when the second is empty
        # (vllm/triton_utils/importing.py).
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
