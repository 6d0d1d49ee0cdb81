"""What a plan must satisfy before it may start, and what it should.

The rules were read in vLLM's wheels or in public issues; each names its source. Which release does
what is asked of `deploy.recipe.facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.recipe import Health, Model, budgets, facts, vocabulary
from patches import faults, series

OFF = ("0", "false")
# What vLLM takes without a mode, by optimization level (0.27.1, config/vllm.py).
DEFAULT_GRAPHS = "FULL_AND_PIECEWISE"
LEVEL_GRAPHS: Mapping[str, str] = {"0": "NONE", "1": "PIECEWISE"}
# The modes that may also be given as a number (0.27.1, config/compilation.py).
GRAPHS_BY_NUMBER: Mapping[object, str] = {0: "NONE", 1: "PIECEWISE", 2: "FULL"}
# What its server takes without a size on a card of 70 GiB or more (0.27.1, engine/arg_utils.py).
DEFAULT_SIZES: Mapping[str, int] = {"max-num-batched-tokens": 8192, "max-num-seqs": 1024}


@dataclass(frozen=True)
class Intent:
    """What is about to be started, after every override: flags, speculation, environment.

    `health` are the budgets beside this server, `recipes_health` are the recipe's.
    """

    model: Model
    is_rehearsal: bool
    arch: str | None
    vllm_version: str
    serve: Mapping[str, Any]
    speculative: Mapping[str, Any] | None
    env: Mapping[str, str]
    health: Health
    recipes_health: Health

    @property
    def is_dspark(self) -> bool:
        """Whether the server drafts with DSpark."""
        return bool(self.speculative) and self.speculative.get("method") == "dspark"  # type: ignore[union-attr]

    @property
    def is_v1_runner(self) -> bool:
        """Whether the V2 model runner is switched off by the environment."""
        return self.env.get("VLLM_USE_V2_MODEL_RUNNER", "").lower() in OFF

    def has(self, fact: str) -> bool:
        """Whether a fact of `deploy.recipe.facts` holds in the release that is to be started."""
        return facts.holds(fact, self.vllm_version)

    @property
    def graph_mode(self) -> str | None:
        """The mode of graphs as vLLM reads it: a name in capitals, None for what is no name."""
        if self.serve.get("enforce-eager"):
            return "NONE"  # whatever mode stands beside it
        config = self.serve.get("compilation-config")
        mode = config.get("cudagraph_mode") if isinstance(config, dict) else None
        if mode is None:
            if self.arch == "gfx950" and self.has("eager-on-gfx950"):
                return "NONE"
            level = str(self.serve.get("optimization-level"))
            return LEVEL_GRAPHS.get(level, DEFAULT_GRAPHS)
        if isinstance(mode, str):
            return mode.upper()
        return GRAPHS_BY_NUMBER.get(mode) if isinstance(mode, int) else None

    @property
    def longest(self) -> int | None:
        """The most tokens a sequence may have: prompt and answer; None where only a start tells."""
        given = self.serve.get("max-model-len", self.model.max_position_embeddings)
        return vocabulary.size(given)

    @property
    def asks(self) -> frozenset[str]:
        """What of `patches.faults.ASKS` the plan asks for, its card among it."""
        draft = self.speculative or {}
        asked = {
            "draft": bool(draft),
            "probabilistic": draft.get("draft_sample_method") == "probabilistic",
            "adaptive-verification": bool(draft.get("enable_adaptive_verification")),
            "aiter-moe": self._has_aiter_experts,
            "gfx942": self.arch == "gfx942",
        }
        return frozenset(name for name, is_asked in asked.items() if is_asked)

    @property
    def _has_aiter_experts(self) -> bool:
        """As vLLM chooses for MXFP4 experts of DeepSeek V4 (0.27.1, fused_moe/oracle/mxfp4.py)."""
        backend = self.serve.get("moe-backend", "auto")
        if backend == "auto":  # then the same setting of --kernel-config stands
            named = (self.serve.get("kernel-config") or {}).get("moe_backend", backend)
            backend = str(named).lower().replace("-", "_")
        aiter = self.env.get("VLLM_ROCM_USE_AITER", "0").lower() not in OFF
        return backend == "aiter" or (backend == "auto" and aiter and self.arch == "gfx950")

    def size(self, flag: str) -> int | None:
        """A size in whatever spelling, vLLM's own where none is given; None for what is none."""
        return vocabulary.size(self.serve.get(flag, DEFAULT_SIZES.get(flag)))


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
    """DSpark exists in the V2 model runner only (vllm/config/vllm.py)."""
    name, check = "VLLM_USE_V2_MODEL_RUNNER", "dspark.v2_runner"
    if not intent.is_dspark:
        return None
    if intent.is_v1_runner:
        seen = intent.env[name]
        return Finding(
            check, True, f"{name}: got {seen!r}; DSpark needs the V2 model runner: unset it"
        )
    if intent.is_rehearsal or intent.env.get(name) or not intent.has("v1-on-rocm"):
        return None
    return Finding(
        check,
        True,
        f"{name}: is not set; for this model on ROCm vLLM {intent.vllm_version} takes the V1 model"
        " runner, which has no DSpark: set it to 1",
    )


def pipeline_parallel(intent: Intent) -> Finding | None:
    """DSpark did not support pipeline parallelism at first; no public run on MI cards has it."""
    size, check = intent.serve.get("pipeline-parallel-size", 1), "dspark.pipeline_parallel"
    if not intent.is_dspark or str(size) == "1":
        return None
    seen = f"pipeline-parallel-size: got {size}"
    if intent.has("pipeline-parallel-refused"):
        return Finding(check, True, f"{seen}; DSpark needs 1: use tensor-parallel-size")
    return Finding(check, False, f"{seen}; no public run drafts with it: use tensor-parallel-size")


def draft_tokens(intent: Intent) -> Finding | None:
    """K under the checkpoint's block was refused at first; past it drafts are hardly accepted."""
    block = intent.model.dspark_block_size
    if not intent.is_dspark or block is None or intent.speculative is None:
        return None
    k = intent.speculative.get("num_speculative_tokens")
    if not isinstance(k, int) or isinstance(k, bool) or k < block:
        is_refused = not isinstance(k, int) or k < 1 or intent.has("k-below-block-refused")
        return Finding(
            "dspark.k_below_block",
            is_refused,
            f"num_speculative_tokens: got {k!r}; the checkpoint's block is {block}: give {block}",
        )
    if k > block:
        return Finding(
            "dspark.k_above_block",
            False,
            f"num_speculative_tokens: got {k}; positions past the block of {block} are hardly "
            f"accepted: give {block}",
        )
    return None


def draft_model(intent: Intent) -> Finding | None:
    """A `model` key once lost the draft's quantization (vLLM issues 51758, 51916).

    A rehearsal's Qwen3 draft is a checkpoint of its own and must be named.
    """
    if intent.is_rehearsal or not intent.is_dspark or intent.speculative is None:
        return None
    if "model" not in intent.speculative or not intent.has("draft-model-key"):
        return None
    return Finding(
        "dspark.draft_model",
        True,
        f"speculative model: got {intent.speculative['model']!r}; on vLLM {intent.vllm_version} "
        "the draft then loses its FP8 config (KeyError w13_weight_scale): leave the key out",
    )


def draft_slots(intent: Intent) -> Finding | None:
    """DSpark took K - 1 slots a sequence off the batch at first (vllm/config/vllm.py)."""
    batch, seqs = intent.size("max-num-batched-tokens"), intent.size("max-num-seqs")
    k = (intent.speculative or {}).get("num_speculative_tokens")
    if not intent.is_dspark or not intent.has("draft-slots-per-sequence"):
        return None
    if batch is None or seqs is None or not isinstance(k, int):
        return None
    taken = (k - 1) * seqs
    if batch > taken:
        return None
    return Finding(
        "dspark.slots",
        True,
        f"max-num-batched-tokens: got {batch}; the draft takes {k - 1} for each of {seqs} sequences"
        f" and leaves none: give more than {taken}, or a smaller max-num-seqs",
    )


def piecewise_on_v1(intent: Intent) -> Finding | None:
    """V1 runner with piecewise graphs: GSM8K 0.94 -> 0.04 on V4 (vLLM PR 51768)."""
    mode = intent.graph_mode
    if intent.is_rehearsal or not intent.is_v1_runner or "PIECEWISE" not in (mode or ""):
        return None
    return Finding(
        "graphs.piecewise_on_v1",
        True,
        f"cudagraph_mode: got {mode!r} with the V1 runner; V4 then answers wrongly (vLLM PR 51768):"
        " unset VLLM_USE_V2_MODEL_RUNNER",
    )


def graphs(intent: Intent) -> Finding | None:
    """No mode of graphs is shown safe on the image's ROCm (ROCm/clr 279; vLLM 52150, 52644).

    52644: FULL_DECODE_ONLY lost accuracy on gfx950; FULL_AND_PIECEWISE shares its pools (PR 52646).
    """
    mode = intent.graph_mode
    if intent.is_rehearsal or mode in ("NONE", None):
        return None
    return Finding(
        "graphs.choice",
        False,
        f"cudagraph_mode: got {mode!r}, and on ROCm 7.2.0 to 7.2.3 about one process in five"
        " replays graphs into garbage for all its life (ROCm/clr issue 279); NONE is right: to"
        " choose graphs give DSPARK_GRAPHS=on, which ends a start whose gate fails by garbage for"
        " a new one",
    )


def indexer_keys(intent: Intent) -> Finding | None:
    """Whether MXFP4 keys of the indexer find less than FP8 ones was not looked at."""
    if intent.arch != "gfx950" or not intent.has("indexer-mxfp4"):
        return None
    config = intent.serve.get("attention-config")
    given = config.get("indexer_kv_dtype", "auto") if isinstance(config, Mapping) else "auto"
    if given not in ("auto", "mxfp4"):
        return None
    return Finding(
        "attention.indexer_keys",
        False,
        f"attention-config.indexer_kv_dtype: got {given!r}; the indexer's keys are then MXFP4, of"
        " which this project has no figures: give fp8",
    )


def known_faults(intent: Intent) -> Finding | None:
    """What a release answers wrongly and the series does not mend (patches/faults.toml).

    Of the release: whether a tree carries the series is the entrypoint's to see.
    """
    if intent.is_rehearsal:
        return None
    loaded = series.load()
    left = faults.with_series(intent.vllm_version, loaded)
    hit = [fault for fault in left if fault.hits(intent.asks, intent.longest)]
    told = [fault for fault in hit if fault.refuses] or hit
    if not told:
        return None
    return Finding(
        "vllm.faults",
        told[0].refuses,
        f"vLLM {intent.vllm_version}: {', and '.join(f.told(intent.longest) for f in told)};"
        f" use {faults.way_out(loaded, asked=intent.asks)}",
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
    check, name, budget = "health.stall_budget", budgets.STEP_TIMEOUT, intent.health.stall_budget_s
    seconds = budgets.step_timeout_s(intent.env)
    if budget <= seconds:
        message = f"stall_budget_s: got {budget:g}; {name} is {seconds}: give more"
        return Finding(check, True, message)
    return None


def grown_budgets(intent: Intent) -> Finding | None:
    """The health service grows its budgets with the server's time-outs, where it is given these."""
    own, grown = intent.recipes_health, intent.health
    if own == grown:
        return None
    if grown.stall_budget_s > own.stall_budget_s:
        name, budget = budgets.STEP_TIMEOUT, f"stall budget is {grown.stall_budget_s:g}"
    else:
        name, budget = budgets.READY_TIMEOUT, f"start budget is {grown.start_budget_s:g}"
    return Finding(
        "health.grown_budgets",
        False,
        f"{name}: got {intent.env[name]}; the {budget} s then, and the health service has to be"
        " given the same variable",
    )


RULES: tuple[Callable[[Intent], Finding | None], ...] = (
    v2_runner,
    pipeline_parallel,
    draft_tokens,
    draft_model,
    draft_slots,
    piecewise_on_v1,
    graphs,
    indexer_keys,
    known_faults,
    logprobs_mode,
    stall_budget,
    grown_budgets,
)
