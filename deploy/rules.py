"""What a plan must satisfy before it may start, and what it should.

The rules hold for vLLM 0.26 to 0.28 and were read in its wheels or in public issues; each names
its source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.recipe import Health, Model

OFF = ("0", "false")


@dataclass(frozen=True)
class Intent:
    """What is about to be started, after every override: flags, speculation, environment."""

    model: Model
    is_rehearsal: bool
    arch: str | None
    vllm_version: str
    serve: Mapping[str, Any]
    speculative: Mapping[str, Any] | None
    env: Mapping[str, str]
    health: Health

    @property
    def is_dspark(self) -> bool:
        """Whether the server drafts with DSpark."""
        return bool(self.speculative) and self.speculative.get("method") == "dspark"  # type: ignore[union-attr]

    @property
    def is_v1_runner(self) -> bool:
        """Whether the V2 model runner is switched off by the environment."""
        return self.env.get("VLLM_USE_V2_MODEL_RUNNER", "").lower() in OFF

    @property
    def cudagraph_mode(self) -> str | None:
        """The graph mode that the flags ask for, None when vLLM chooses."""
        config = self.serve.get("compilation-config")
        mode = config.get("cudagraph_mode") if isinstance(config, dict) else None
        return None if mode is None else str(mode)


@dataclass(frozen=True)
class Finding:
    """A rule's answer: fatal stops the start, otherwise it is a warning. One line of text."""

    rule: str
    fatal: bool
    message: str


def check(intent: Intent) -> list[Finding]:
    """Every rule that has something to say, fatal ones first."""
    found = [f for rule in RULES if (f := rule(intent)) is not None]
    return sorted(found, key=lambda f: not f.fatal)


def v2_runner(intent: Intent) -> Finding | None:
    """DSpark exists in the V2 model runner only (vLLM 0.27.1 source)."""
    if not (intent.is_dspark and intent.is_v1_runner):
        return None
    seen = intent.env["VLLM_USE_V2_MODEL_RUNNER"]
    return Finding(
        "dspark.v2_runner",
        True,
        f"VLLM_USE_V2_MODEL_RUNNER: got {seen!r}; DSpark needs the V2 model runner: unset it",
    )


def pipeline_parallel(intent: Intent) -> Finding | None:
    """DSpark does not support pipeline parallelism (vLLM 0.27.1 source)."""
    size = intent.serve.get("pipeline-parallel-size", 1)
    if not intent.is_dspark or str(size) == "1":
        return None
    return Finding(
        "dspark.pipeline_parallel",
        True,
        f"pipeline-parallel-size: got {size}; DSpark needs 1: use tensor-parallel-size",
    )


def draft_tokens(intent: Intent) -> Finding | None:
    """K under the checkpoint's block is refused to 0.27.1; above it is accepted and useless."""
    block = intent.model.dspark_block_size
    if not intent.is_dspark or block is None or intent.speculative is None:
        return None
    k = intent.speculative.get("num_speculative_tokens")
    if not isinstance(k, int) or isinstance(k, bool) or k < block:
        return Finding(
            "dspark.k_below_block",
            True,
            f"num_speculative_tokens: got {k!r}; the checkpoint's block is {block}: give {block}",
        )
    if k > block:
        return Finding(
            "dspark.k_above_block",
            False,
            f"num_speculative_tokens: got {k}; positions past the block of {block} are never "
            f"accepted: give {block}",
        )
    return None


def draft_model(intent: Intent) -> Finding | None:
    """On 0.27 a `model` key loses the draft's quantization (vLLM issues 51758, 51916).

    A rehearsal's Qwen3 draft is a checkpoint of its own and must be named.
    """
    if intent.is_rehearsal or not intent.is_dspark or intent.speculative is None:
        return None
    if "model" not in intent.speculative or not intent.vllm_version.startswith("0.27."):
        return None
    return Finding(
        "dspark.draft_model",
        True,
        f"speculative model: got {intent.speculative['model']!r}; on vLLM {intent.vllm_version} "
        "the draft then loses its FP8 config (KeyError w13_weight_scale): leave the key out",
    )


def piecewise_on_v1(intent: Intent) -> Finding | None:
    """V1 runner with piecewise graphs: GSM8K 0.94 -> 0.04 on V4 (vLLM PR 51768).

    Without a mode vLLM takes FULL_AND_PIECEWISE, unless it is to run eagerly.
    """
    mode = intent.cudagraph_mode
    if mode is None:
        mode = "NONE" if intent.serve.get("enforce-eager") else "FULL_AND_PIECEWISE"
    if intent.is_rehearsal or not intent.is_v1_runner or "PIECEWISE" not in mode:
        return None
    return Finding(
        "graphs.piecewise_on_v1",
        True,
        f"cudagraph_mode: got {mode!r} with the V1 runner; V4 then answers wrongly (vLLM PR 51768):"
        " unset VLLM_USE_V2_MODEL_RUNNER",
    )


def decode_only_graphs(intent: Intent) -> Finding | None:
    """FULL_DECODE_ONLY with the V2 runner drops accuracy on gfx950 (vLLM issue 52644)."""
    if (
        intent.arch != "gfx950"
        or intent.is_v1_runner
        or intent.cudagraph_mode != "FULL_DECODE_ONLY"
    ):
        return None
    return Finding(
        "graphs.decode_only",
        False,
        "cudagraph_mode: got 'FULL_DECODE_ONLY'; accuracy drops with the V2 runner (vLLM issue "
        "52644): give FULL_AND_PIECEWISE",
    )


def logprobs_mode(intent: Intent) -> Finding | None:
    """The health gate reckons with probabilities; logits under that name hide a greedy sampler."""
    mode = str(intent.serve.get("logprobs-mode", "raw_logprobs"))  # vLLM's default
    if mode.endswith("_logprobs"):
        return None
    return Finding(
        "health.logprobs_mode",
        True,
        f"logprobs-mode: got {mode!r}; the health gate cannot tell sampling by logits: "
        "give raw_logprobs or processed_logprobs",
    )


def stall_budget(intent: Intent) -> Finding | None:
    """The stall budget outlasts vLLM's own bound on a step, or a slow step is called a stall."""
    name = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    seen = intent.env.get(name, "300")  # vLLM's default
    try:
        step_timeout = float(seen)
    except ValueError:
        return Finding("health.stall_budget", True, f"{name}: got {seen!r}; give seconds")
    if intent.health.stall_budget_s > step_timeout:
        return None
    return Finding(
        "health.stall_budget",
        True,
        f"stall_budget_s: got {intent.health.stall_budget_s:g}; {name} is {seen}: give more",
    )


RULES: tuple[Callable[[Intent], Finding | None], ...] = (
    v2_runner,
    pipeline_parallel,
    draft_tokens,
    draft_model,
    piecewise_on_v1,
    decode_only_graphs,
    logprobs_mode,
    stall_budget,
)
