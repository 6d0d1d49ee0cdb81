"""What to ask of the server next, and when to look again."""

from __future__ import annotations

import random
from dataclasses import replace

from deploy.recipe import Health
from healthcheck.judge import Step
from healthcheck.verdict.gate import few_tokens, gate_want
from healthcheck.verdict.memory import Memory, Policy, State, Want

# A look sooner than the scrape interval, where one more reading can settle the matter: three of
# them are over well inside the 10 s in which a killed engine has to show.
RECHECK_S = 1.0
CANARY_JITTER = 0.2


def wants(memory: Memory, now: float, policy: Policy) -> Want | None:
    """The generation to start now, None for none. Never more than one at a time."""
    if memory.outstanding is not None or memory.transport.bad:
        return None
    health = policy.health
    match memory.state:
        case State.SMOKE:
            return gate_want(memory, now, health)
        case State.STALLED:
            return _for_engine(_canary(memory, health), memory, memory.unanswered_by)
        case State.NOT_READY if not memory.recovery_generation and _rested(memory, now, health):
            return _for_engine(_recovery_want(memory, health), memory, _doubted(memory))
        case State.READY | State.DEGRADED:
            if _canary_is_due(memory, now, health):
                due = _for_engine(_canary(memory, health), memory, _doubted(memory))
                return _scored_if_idle(due, memory, now, health)
            idle = _idle_engine(memory, now, health)
            if idle is None:
                return None
            due = _for_engine(_canary(memory, health), memory, idle)
            return _scored_if_idle(due, memory, now, health)
    return None


def next_look_s(memory: Memory, policy: Policy) -> float:
    """Seconds until the next reading is due."""
    interval = policy.health.scrape_interval_s
    soon = min(RECHECK_S, interval)
    unsettled = (
        memory.state is State.SMOKE
        or (memory.state is State.LOADING and memory.gone_since is not None)
        or (memory.transport.bad and not memory.transport.raised)
        or (memory.generation.bad and not memory.generation.raised)
        or (memory.state is State.NOT_READY and memory.recovery_good > 0)
    )
    if unsettled:
        return soon
    if memory.state not in (State.READY, State.DEGRADED):
        return interval
    return min(interval, max(soon, _next_budget_s(memory, policy.health)))


def _next_budget_s(memory: Memory, health: Health) -> float:
    """Seconds until the budget ends that would change the verdict or ask for a canary."""
    now = memory.at
    stuck = memory.stuck_for(now)
    if stuck:
        return health.readiness_budget_s - stuck
    age = memory.evidence_age_s(now)
    if age is None or memory.busy or memory.outstanding is not None:
        return health.scrape_interval_s
    return _canary_age(memory, health) - age


def needs_listing(memory: Memory) -> bool:
    """Whether the next reading should say what the server serves."""
    return memory.state in (State.LOADING, State.DEAD)


def _recovery_want(memory: Memory, health: Health) -> Want:
    """A short generation; behind queued work it may take as long as a gate's."""
    timeout = health.generation_timeout_s if memory.busy else health.canary_timeout_s
    by_acceptance = health.acceptance_effect == "not-ready" and any(
        engine.drafts_badly for engine in memory.engines.values()
    )
    tokens = health.gate_tokens if by_acceptance else health.canary_tokens
    return _want(memory, Step.RECOVERY, tokens, timeout)


def _want(memory: Memory, step: Step, tokens: int, timeout_s: float) -> Want:
    nonce = f"{memory.epoch}-{step.value}-{memory.generations}"
    return Want(step, memory.epoch, nonce, memory.generations, tokens, timeout_s)


def _canary(memory: Memory, health: Health) -> Want:
    """A few tokens; beside others' work they may take as long as a gate's."""
    timeout = health.generation_timeout_s if memory.busy else health.canary_timeout_s
    return _want(memory, Step.CANARY, health.canary_tokens, timeout)


def _scored_if_idle(canary: Want, memory: Memory, now: float, health: Health) -> Want:
    """A canary as it is, or where its engine has been idle and was judged in full too long ago, a
    generation that will be: eight tokens do not show that an answer is garbage, and the first one
    after a while of idleness may be."""
    engine = memory.engines.get(canary.engine) if canary.engine else None
    moved_at = memory.progress_at if engine is None else engine.moved_at
    rested = moved_at is not None and now - moved_at >= health.canary_after_s * (1 - CANARY_JITTER)
    scored_at = memory.scored_at.get(canary.engine)
    lately = scored_at is not None and now - scored_at < health.idle_check_after_s
    in_doubt = memory.generation.bad or memory.unanswered_since is not None
    if not rested or lately or in_doubt or not _is_visible(memory, now, health):
        return canary
    return replace(
        canary,
        step=Step.IDLE,
        nonce=f"{memory.epoch}-{Step.IDLE.value}-{memory.generations}",
        tokens=health.gate_tokens,
        timeout_s=health.generation_timeout_s,
        prompt_tokens=few_tokens(memory.max_model_len, health),
    )


def _doubted(memory: Memory) -> str | None:
    """The engine that is silent, wrote what was bad, or is stuck; None if it is none of several."""
    last = memory.last_generation
    if memory.unanswered_by is not None:
        return memory.unanswered_by
    if memory.generation.bad and last is not None and last.engine is not None:
        return last.engine
    stuck = {n: e.stuck_for(memory.at) for n, e in memory.engines.items() if e.unmoved}
    return max(stuck, key=stuck.__getitem__, default=None)


def _rested(memory: Memory, now: float, health: Health) -> bool:
    """The last generation ended an interval ago: what is down is asked at the pace of looks."""
    last = memory.last_generation
    return last is None or now - last.ended_at >= health.scrape_interval_s


def _for_engine(want: Want, memory: Memory, engine: str | None) -> Want:
    rank = _ranks(memory).get(engine) if engine is not None else None
    return want if rank is None else replace(want, engine=engine, rank=rank)


def _ranks(memory: Memory) -> dict[str, int]:
    """Each engine's place among the server's, which is what the header X-data-parallel-rank takes;
    empty where there is no choice."""
    numbers = sorted((n for n in memory.engines if n.isascii() and n.isdigit()), key=int)
    if len(numbers) < 2 or len(numbers) < len(memory.engines):
        return {}
    return {name: rank for rank, name in enumerate(numbers)}


def _is_visible(memory: Memory, now: float, health: Health) -> bool:
    """The scheduler was seen so lately that what it showed may still hold."""
    return memory.sampled_at is not None and now - memory.sampled_at < health.canary_after_s


def _idle_engine(memory: Memory, now: float, health: Health) -> str | None:
    """The engine among several that has been idle and unasked for longest, if for too long.

    That another one works proves nothing about it. Asked again no sooner than after the same time:
    where the server chooses by itself, the answer may be another engine's.
    """
    if not _is_visible(memory, now, health):
        return None
    ages = {
        name: now - max(memory.engines[name].moved_at, memory.engines[name].asked_at)
        for name in _ranks(memory)
        if memory.engines[name].work_since is None
    }
    oldest = max(ages, key=ages.__getitem__, default=None)
    wanted = oldest is not None and ages[oldest] >= _canary_age(memory, health)
    return oldest if wanted else None


def _unread_for_long(memory: Memory, now: float, health: Health) -> bool:
    """No text has been judged for long, tokens flow, and nothing waits: a canary is answered soon,
    and under traffic without end it is the only one to read what is written."""
    last = memory.last_generation
    flows = any(e.writes for e in memory.engines.values())
    waiting = any(e.sample.waiting for e in memory.engines.values())
    old = last is not None and now - last.ended_at >= health.evidence_max_age_s
    return old and flows and not waiting


def _canary_age(memory: Memory, health: Health) -> float:
    """The age of evidence at which a canary is sent."""
    # Deterministic for a memory, different for each canary and each service.
    draw = random.Random(memory.jitter_seed * 1_000_003 + memory.generations).uniform(-1, 1)
    return health.canary_after_s * (1 + CANARY_JITTER * draw)


def _canary_is_due(memory: Memory, now: float, health: Health) -> bool:
    if memory.generation.bad:
        return True  # one more settles whether it was chance
    asked = memory.engines.get(memory.unanswered_by) if memory.unanswered_by else None
    if asked is not None and asked.work_since is None:
        return True  # the others' work is no answer
    if memory.busy and _is_visible(memory, now, health):
        # Steps prove progress, and the stuck clock runs on them; what is written they do not.
        return _unread_for_long(memory, now, health)
    if memory.unanswered_since is not None:
        return True  # the question stands until it is answered
    age = memory.evidence_age_s(now)
    return age is None or age >= _canary_age(memory, health)
