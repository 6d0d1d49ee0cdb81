"""The start gate: its steps, the generation it wants next, what a finished one makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deploy.recipe import Health
from healthcheck.judge import (
    MISSES,
    Finding,
    Outcome,
    Step,
    differs,
    ladder,
    missed,
    prompts,
    question,
    worst,
)
from healthcheck.verdict.memory import Gate, Memory, begin
from healthcheck.verdict.readings import GATE, Generation, Want

# A context too short for a prompt that is longer than the scored probe's.
SHORTEST_LONG = 512
# vLLM 0.27.1 has a Triton kernel for top_k and top_p, which it takes from eight rows on
# (v1/sample/ops/topk_topp_sampler.py): those of two requests, each with three drafts or more.
TOP_P_REQUESTS = 2
# How often what sampling alone can miss is asked for: missed each time it is bad.
TRIES = {Step.LONG: MISSES, Step.QUESTION: 3}
# A gate that fails is tried again ever more slowly, up to this pause.
GATE_PAUSE_LIMIT_S = 60.0


def planned(memory: Memory, health: Health) -> Gate:
    """The gate with the steps that the budgets ask for, the context has room for and the engines
    need."""
    longest = memory.max_model_len
    room = None if longest is None else longest - _long_tokens(longest, health)
    too_short = longest is not None and longest < SHORTEST_LONG
    rungs = () if too_short else prompts.rungs(health.long_prompt_tokens, room)
    left_out = set() if rungs else {Step.LONG}
    if not memory.ranks:
        left_out.add(Step.EVERY_ENGINE)
    if not health.known_answers or (longest is not None and longest < question.CONTEXT):
        left_out.add(Step.QUESTION)
    if health.gate_requests < 2:
        left_out.add(Step.AT_ONCE)
    steps = tuple(s for s in GATE if s not in left_out)
    return replace(memory.gate, steps=steps, rungs=rungs)


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
    if step is Step.EVERY_ENGINE:
        want = replace(want, requests=len(memory.ranks), ranks=memory.ranks)
    elif step is Step.TOP_P:
        want = replace(
            want,
            tokens=max(health.gate_tokens // 2, 1),
            prompt_tokens=few_tokens(memory.max_model_len, health),
            requests=TOP_P_REQUESTS,
        )
    elif step is Step.QUESTION:
        want = _again(replace(want, tokens=question.TOKENS), gate)
    elif step is Step.LONG:
        want = _long(want, gate, memory.max_model_len, health)
    # Behind others' work each may take as long as the first.
    return replace(want, timeout_s=health.warmup_timeout_s) if memory.busy else want


def few_tokens(longest: int | None, health: Health) -> int:
    """The length of a short prompt in whose words the answer must go on; 0 if there is no room for
    it or the model understands none."""
    too_short = longest is not None and longest < SHORTEST_LONG
    return 0 if too_short or not health.known_answers else prompts.A_FEW_TOKENS


def _long(want: Want, gate: Gate, longest: int | None, health: Health) -> Want:
    """The next long prompt; only the last one's answer is long as well."""
    tokens = _long_tokens(longest, health)
    if gate.rung + 1 < len(gate.rungs):
        tokens = min(health.gate_tokens, tokens)
    prompt_tokens = gate.rungs[gate.rung]
    return _again(
        replace(
            want,
            nonce=f"{want.nonce}-{prompt_tokens}",
            tokens=tokens,
            timeout_s=health.generation_timeout_s if gate.misses else want.timeout_s,
            prompt_tokens=prompt_tokens,
        ),
        gate,
    )


def _again(want: Want, gate: Gate) -> Want:
    """What may be asked several times, in other words and with another seed each time."""
    return replace(want, nonce=f"{want.nonce}-{gate.misses + 1}", seed=want.seed + gate.misses)


def _long_tokens(longest: int | None, health: Health) -> int:
    """A long answer: a quarter of the context at most."""
    return health.long_tokens if longest is None else min(health.long_tokens, longest // 4)


def gate_limit_s(health: Health) -> float:
    """The longest that one round of the gate can take: every question's time-out."""
    steps = planned(begin(0.0), health).steps
    rungs = len(health.long_prompt_tokens)
    short = sum(
        TRIES.get(step, 1) * _timeout_s(step, health) for step in steps if step is not Step.LONG
    )
    again = (TRIES[Step.LONG] - 1) * health.generation_timeout_s
    return short + rungs * (_timeout_s(Step.LONG, health) + again)


def _timeout_s(step: Step, health: Health) -> float:
    # Long prompts, batches and other ways to sample have kernels of their own to compile.
    compiles = step not in (Step.PROBE, Step.SECOND_SEED, Step.QUESTION)
    return health.warmup_timeout_s if compiles else health.generation_timeout_s


def gate_after(gate: Gate, generation: Generation, at: float, health: Health) -> Gate:
    """The gate after a generation of its own; what is bad starts the round again."""
    if generation.step is not gate.step:
        return gate
    step, findings = generation.step, generation.findings
    took = generation.ended_at - generation.started_at
    if gate.rung or gate.misses:
        took += gate.took[step]
    gate = replace(gate, took={**gate.took, step: took})
    if step is Step.WARM_UP:
        # Its result is ignored: it is there to compile.
        if generation.answered:
            return replace(gate, index=gate.index + 1)
        return replace(gate, not_before=at + health.scrape_interval_s)
    if step is Step.SECOND_SEED and gate.first and generation.completion:
        findings = (*findings, differs(gate.first, generation.completion))
    if step is Step.LONG:
        findings = ladder(findings, gate.rungs[: gate.rung], gate.rungs[gate.rung])
    gate = replace(gate, findings={**gate.findings, step: findings})
    if (next_one := _next_try(gate, step, findings)) is not None:
        return next_one
    outcome = worst(findings)
    gate = replace(gate, rung=0, misses=0)
    # Who does not answer the question tells nothing by it: only a wrong answer holds the gate.
    if outcome is Outcome.GOOD or (step is Step.QUESTION and outcome is Outcome.UNKNOWN):
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


def _next_try(gate: Gate, step: Step, findings: Sequence[Finding]) -> Gate | None:
    """The gate where its step is not over: another try at what was missed, or a longer prompt."""
    if missed(findings) and gate.misses + 1 < TRIES[step]:
        return replace(gate, misses=gate.misses + 1)
    climbs = step is Step.LONG and worst(findings) is Outcome.GOOD
    if climbs and gate.rung + 1 < len(gate.rungs):
        return replace(gate, rung=gate.rung + 1, misses=0)
    return None
