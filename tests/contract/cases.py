"""What the contract tests ask of the real AMD class, in one place because one run answers it all."""

from pathlib import Path
from typing import Any

from patches.loadcheck import tiny
from tests.support import tiny_v4

DRAFT = (0.62, 0.37, 0.01)
"""What the draft predicts. With TARGET it was found, by a search over three-token distributions, to
show shared noise best: the token that is rejected most has a close rival in the draft only."""

TARGET = (0.02, 0.59, 0.39)
"""What the target predicts, so what must come out."""

SAMPLES = 1200
REQUESTS = 200
SEED = 20260801

DSPARK = {
    "method": "dspark",
    "num_speculative_tokens": 5,
    "draft_sample_method": "probabilistic",
}


def runtime_questions(folder: Path) -> dict[str, dict[str, Any]]:
    """What the series may change, by name; models are written below `folder`."""
    plain = str(tiny.write_plain(folder / "plain", vocab_size=64, block_size=5))
    single = str(tiny.write_plain(folder / "single", vocab_size=8, block_size=1))
    return {
        "load probabilistic": _load(plain, "probabilistic"),
        "load greedy": _load(plain, "greedy"),
        "sample": sample(single, steps=1, batches=SAMPLES // REQUESTS),
        "nan bonus": _nan(3072, step=2, temperature=1.0),
        "nan bonus, last block in part": _nan(2500, step=2, temperature=1.0),
        "nan greedy": _nan(3 * 8192, step=0, temperature=0.0),
        "clamp": {"ask": "clamp", "model": plain},
    }


def configuration_questions(folder: Path) -> dict[str, dict[str, Any]]:
    """What vLLM makes of an engine's arguments, by name; the series does not touch it."""
    quantized = str(tiny_v4.write(folder / "quantized"))
    return {
        "model omitted": _configure(quantized),
        "model spelled out": _configure(quantized, model=quantized),
        "fewer than a block": _configure(quantized, num_speculative_tokens=4),
        "more than a block": _configure(quantized, num_speculative_tokens=7),
        "pipeline": _configure(quantized) | {"pipeline_parallel_size": 2},
    }


def sample(model: str, *, steps: int, batches: int, **changes: Any) -> dict[str, Any]:
    """A question for `batches` times REQUESTS samples."""
    return {
        "ask": "sample",
        "model": model,
        "draft": DRAFT,
        "target": TARGET,
        "steps": steps,
        "requests": REQUESTS,
        "batches": batches,
        "seed": SEED,
        **changes,
    }


def _load(model: str, method: str) -> dict[str, Any]:
    return {"ask": "load", "model": model, "sample_method": method}


def _nan(vocabulary: int, *, step: int, temperature: float) -> dict[str, Any]:
    return {
        "ask": "verify_nan",
        "vocabulary": vocabulary,
        "tokens": (3, 7),
        "nan_step": step,
        "temperature": temperature,
    }


def _configure(target: str, **changes: Any) -> dict[str, Any]:
    return {"ask": "configure", "model": target, "speculative": DSPARK | changes}
