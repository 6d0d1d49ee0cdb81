"""Environment, ports and the plan itself."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.plan import rules
from deploy.preflight.facts.limits import Port
from deploy.preflight.findings import Finding, Unknown
from deploy.preflight.start import Start

# The MXFP4 kernels of vLLM on ROCm take shards in these steps: some backends take the smaller one,
# where the fact mxfp4-padding does not hold (PR 51473).
MXFP4_STEP, MXFP4_SMALL_STEP = 256, 128
# Of a card, and ours: less than that left is told.
MEMORY_TIGHT = 0.05


def vllm_port(environ: Mapping[str, str]) -> Finding:
    """Kubernetes writes NAME_PORT=tcp://... for a Service called `vllm`; vLLM reads VLLM_PORT."""
    check = "env.vllm_port"
    value = environ.get("VLLM_PORT", "0")
    if value.isascii() and value.isdigit():
        return Finding(check, "ok", "VLLM_PORT is not shadowed")
    return Finding(
        check,
        "fail",
        f"VLLM_PORT={value}",
        "vLLM reads it as a port and refuses (vllm/envs.py); Kubernetes sets it for a"
        " Service called vllm",
        "rename the Service, or set enableServiceLinks: false in the pod; else unset it",
    )


def port(seen: Port) -> Finding:
    """The ports may be listened on."""
    check = f"net.{seen.role}_port"
    if isinstance(seen.free, Unknown):
        return Finding(check, "unknown", seen.free.reason)
    if seen.free:
        return Finding(check, "ok", f"{seen.number} is free")
    if seen.role == "health":
        return Finding(
            check,
            "warn",
            f"{seen.number} is taken",
            "by the health service already, or by a stranger it cannot start beside",
            f"see who listens: ss -ltnp 'sport = :{seen.number}'",
        )
    return Finding(
        check,
        "fail",
        f"{seen.number} is taken",
        "the server binds it before it loads, and ends",
        f"end who listens (ss -ltnp 'sport = :{seen.number}'), or add --port N",
    )


def plan_rules(start: Start) -> list[Finding]:
    """The rules of deploy.plan.rules, each with its source."""
    if start.refusal:
        what, _, fix = start.refusal.partition("; ")
        return [Finding("plan.flags", "fail", what, "vLLM's parser would refuse it", fix)]
    spoken = [(rule, f) for rule in rules.RULES if (f := rule(start.intent)) is not None]
    if not spoken:
        return [Finding("plan.rules", "ok", f"{len(rules.RULES)} rules hold")]
    return [
        rule_finding(found, (rule.__doc__ or "").strip().splitlines()[0]) for rule, found in spoken
    ]


def rule_finding(found: rules.Finding, why: str) -> Finding:
    """A plan rule's answer; its message is `what was seen; the fix`."""
    seen, _, remedy = found.message.partition("; ")
    return Finding(f"plan.{found.rule}", "fail" if found.fatal else "warn", seen, why, remedy)


def memory(start: Start) -> list[Finding]:
    """The plan's parts fit into a card, with something left for what only a start tells."""
    asked = start.memory
    if asked is None:
        return []
    check = "plan.memory"
    seen = f"{asked.left / 1e9:.1f} of {asked.budget / 1e9:.1f} GB a card are left"
    seen += " for the KV cache" if asked.share is not None else ""
    why = "activations, RCCL and the runtime are not counted: vLLM measures them at a start"
    remedy = (
        "lower --max-model-len, --max-num-seqs or --max-num-batched-tokens, or serve on more cards"
    )
    unsaid = [name for name in asked.unknown if name != "graphs"]
    if asked.left <= 0:
        return [Finding(check, "fail", f"{seen}: it does not fit", why, remedy)]
    if unsaid:
        return [Finding(check, "unknown", f"{seen}, without {', '.join(unsaid)}", why)]
    if asked.left < MEMORY_TIGHT * asked.card:
        return [Finding(check, "warn", f"{seen}: it is tight", why, remedy)]
    return [Finding(check, "ok", seen)]


def mxfp4_shard(start: Start) -> list[Finding]:
    """Each rank's share of an expert is rounded up to a step of the kernels on ROCm."""
    check = "plan.mxfp4_shard"
    width, ranks = start.intent.model.moe_intermediate_size, start.size("tensor-parallel-size")
    if start.profile.is_rehearsal or width is None:
        return []
    if start.intent.serve.get("enable-expert-parallel"):
        return [Finding(check, "ok", "experts stay whole with expert parallel")]
    pads_all = start.intent.has("mxfp4-padding")
    whose = "each rank's MXFP4 shard" if pads_all else "a rank's MXFP4 shard, by the backend,"
    why = f"vLLM {start.intent.vllm_version} pads {whose} to {MXFP4_STEP} on ROCm (PR 51473)"
    if width % ranks:
        seen = f"moe_intermediate_size {width} does not divide by {ranks} ranks"
        return [Finding(check, "fail", seen, why, "choose a tensor-parallel-size that divides it")]
    shard = width // ranks
    padded = -(-shard // MXFP4_STEP) * MXFP4_STEP
    seen = f"moe_intermediate_size {width} over {ranks} ranks is {shard}"
    if padded == shard:
        return [Finding(check, "ok", f"{seen}, a multiple of {MXFP4_STEP}")]
    if not pads_all and shard % MXFP4_SMALL_STEP == 0:
        small = f"{seen}, a multiple of {MXFP4_SMALL_STEP}, which not every backend takes"
        return [Finding(check, "unknown", small, why)]
    return [
        Finding(
            check,
            "warn",
            f"{seen}, padded to {padded}: {padded / shard - 1:.0%} more memory for experts",
            why,
            f"--tensor-parallel-size {fitting_ranks(width, ranks)}, or --enable-expert-parallel",
        )
    ]


def fitting_ranks(width: int, ranks: int) -> int:
    """The most ranks up to those asked for whose shards need no padding."""
    fitting = [n for n in range(1, ranks) if width % (n * MXFP4_STEP) == 0]
    return max(fitting, default=1)
