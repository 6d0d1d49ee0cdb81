"""The start gate: its steps, the generation it wants next, what a finished one makes of it."""

from __future__ import annotations

from dataclasses import replace

from deploy.recipe import Health
from healthcheck.judge import Outcome, Step, differs, worst
from healthcheck.verdict.memory import GATE, Gate, Generation, Memory, Want

# A context too short for a prompt that is longer than the scored probe's.
SHORTEST_LONG = 512
# A gate that fails is tried again ever more slowly, up to this pause.
GATE_PAUSE_LIMIT_S = 60.0


def gate_steps(longest: int | None, health: Health) -> tuple[Step, ...]:
    """The steps that the budgets ask for and the context has room for."""
    left_out = set()
    if not health.long_prompt_tokens or (longest is not None and longest < SHORTEST_LONG):
        left_out.add(Step.LONG)
    if health.gate_requests < 2:
        left_out.add(Step.AT_ONCE)
    return tuple(step for step in GATE if step not in left_out)


def gate_want(memory: Memory, now: float, health: Health) -> Want | None:
    """The generation of the gate's next step, None while it pauses or is over."""
    gate = memory.gate
    if gate.step is None or now < gate.not_before:
        return None
    step = gate.step
    # Both seeds of a round share a prompt: that they differ is what the second one shows.
    shares = step in (Step.PROBE, Step.SECOND_SEED)
    want = Want(
        step,
        memory.epoch,
        f"{memory.epoch}-{gate.round}" + ("" if shares else f"-{step.value}"),
        seed=2 * gate.round + (2 if step is Step.SECOND_SEED else 1),
        tokens=health.gate_tokens,
        timeout_s=_timeout_s(step, health),
        requests=health.gate_requests if step is Step.AT_ONCE else 1,
    )
    return _long(want, memory.max_model_len, health) if step is Step.LONG else want


def _long(want: Want, longest: int | None, health: Health) -> Want:
    """The long probe in what the context leaves: a quarter of it at most for the answer."""
    if longest is None:
        return replace(want, tokens=health.long_tokens, prompt_tokens=health.long_prompt_tokens)
    tokens = min(health.long_tokens, longest // 4)
    return replace(
        want, tokens=tokens, prompt_tokens=min(health.long_prompt_tokens, longest - tokens)
    )


def gate_limit_s(health: Health) -> float:
    """The longest that one round of the gate can take: every step's time-out."""
    steps = gate_steps(None, health)
    return sum(_timeout_s(step, health) for step in steps)


def _timeout_s(step: Step, health: Health) -> float:
    # Long prompts and batches have kernels of their own to compile.
    compiles = step in (Step.WARM_UP, Step.LONG, Step.AT_ONCE)
    return health.warmup_timeout_s if compiles else health.generation_timeout_s


def gate_after(gate: Gate, generation: Generation, at: float, health: Health) -> Gate:
    """The gate after a generation of its own; what is bad starts the round again."""
    if generation.step is not gate.step:
        return gate
    step, findings = generation.step, generation.findings
    gate = replace(gate, took={**gate.took, step: generation.ended_at - generation.started_at})
    if step is Step.WARM_UP:
        # Its result is ignored: it is there to compile.
        if generation.answered:
            return replace(gate, index=gate.index + 1)
        return replace(gate, not_before=at + health.scrape_interval_s)
    if step is Step.SECOND_SEED and gate.first and generation.completion:
        findings = (*findings, differs(gate.first, generation.completion))
    gate = replace(gate, findings={**gate.findings, step: findings})
    outcome = worst(findings)
    if outcome is Outcome.GOOD:
        first = generation.completion if step is Step.PROBE else gate.first
        done = gate.index + 1 >= len(gate.steps)
        return replace(
            gate, index=gate.index + 1, first=first, failures=0 if done else gate.failures
        )
    failed = outcome is Outcome.BAD
    failures = gate.failures + failed
    pause = min(health.scrape_interval_s * max(failures, 1), GATE_PAUSE_LIMIT_S)
    return replace(
        gate,
        index=gate.steps.index(Step.PROBE),
        round=gate.round + 1,
        failures=failures,
        not_before=at + pause,
        bad=tuple(f for f in findings if f.outcome is Outcome.BAD) if failed else gate.bad,
    )
