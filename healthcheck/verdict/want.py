"""What to ask of the server next, and when to look again."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from deploy.recipe import Health
from healthcheck.judge import Step
from healthcheck.verdict import vitals
from healthcheck.verdict.gate import few_tokens, gate_want
from healthcheck.verdict.memory import UNREAD_TIMES, Memory
from healthcheck.verdict.readings import Policy, Want
from healthcheck.verdict.records import ANY
from healthcheck.verdict.states import State

# A look sooner than the scrape interval, where one more reading can settle the matter: three of
# them are over well inside the 10 s in which a killed engine has to show.
RECHECK_S = 1.0
CANARY_JITTER = 0.2
# Where the signs show that an engine lives, a canary need not: it is asked for its text, as much
# more rarely and for more tokens, of which one answer shows a sampler that turned greedy.
TEXT_AGES = 2
TEXT_LENGTHS = 3
# An engine that sleeps beside work has so long before it is asked, in seconds.
SUSPECT_S = 4.0


def wants(memory: Memory, now: float, policy: Policy) -> Want | None:
    """The generation to start now, None for none. Never more than one at a time."""
    if memory.outstanding is not None or memory.transport.bad:
        return None
    health = policy.health
    match memory.state:
        case State.SMOKE:
            return gate_want(memory, now, health)
        case State.STALLED:
            return _canary(memory, _suspect(memory), health)
        case State.NOT_READY if _owes(memory) and _rested(memory, now, health):
            return _recovery_want(memory, health)
        case State.READY | State.DEGRADED:
            due = _due(memory, now, health)
            return None if due is None else _scored_if_idle(memory, due, now, health)
    return None


def next_look_s(memory: Memory, policy: Policy) -> float:
    """Seconds until the next reading is due."""
    interval = policy.health.scrape_interval_s
    soon = min(RECHECK_S, interval)
    unsettled = (
        memory.state is State.SMOKE
        or (memory.state is State.LOADING and memory.gone_since is not None)
        or (memory.transport.bad and not memory.transport.raised)
        or any(not r.raised and not all(r.judged) for r in memory.records.values())
        or (memory.state is State.NOT_READY and memory.recovery_good > 0)
        or (memory.state in (State.READY, State.DEGRADED) and vitals.suspicious(memory))
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
    if memory.busy or memory.outstanding is not None or memory.keys != (ANY,):
        return health.scrape_interval_s
    return -_late_s(memory, ANY, now, health)


def needs_listing(memory: Memory) -> bool:
    """Whether the next reading should say what the server serves."""
    return memory.state in (State.LOADING, State.DEAD)


def _recovery_want(memory: Memory, health: Health) -> Want:
    """A short generation; behind queued work it may take as long as a gate's."""
    by_acceptance = health.acceptance_effect == "not-ready" and any(
        engine.drafts_badly for engine in memory.engines.values()
    )
    tokens = health.gate_tokens if by_acceptance else health.canary_tokens
    return replace(_canary(memory, _suspect(memory), health, Step.RECOVERY), tokens=tokens)


def _canary(memory: Memory, key: str, health: Health, step: Step = Step.CANARY) -> Want:
    """A few tokens; beside others' work they may take as long as a gate's."""
    timeout = health.generation_timeout_s if memory.busy else health.canary_timeout_s
    nonce = f"{memory.epoch}-{step.value}-{memory.generations}"
    for_text = step is Step.CANARY and vitals.alive(memory, key)
    tokens = health.canary_tokens * (TEXT_LENGTHS if for_text else 1)
    want = Want(step, memory.epoch, nonce, memory.generations, tokens, timeout)
    rank = memory.ranks.get(key)
    return want if rank is None else replace(want, engine=key, rank=rank)


def _scored_if_idle(memory: Memory, key: str, now: float, health: Health) -> Want:
    """A canary, or where its engine has been idle and was judged in full too long ago, a generation
    that will be: eight tokens do not show that an answer is garbage, and the first one after a
    while of idleness may be."""
    record, moved_at = memory.record(key), memory.step_of(key)
    canary = _canary(memory, key, health)
    rested = moved_at is not None and now - moved_at >= health.canary_after_s * (1 - CANARY_JITTER)
    lately = now - record.scored_at < health.idle_check_after_s
    if not rested or lately or record.doubted or not _is_visible(memory, now, health):
        return canary
    return replace(
        _canary(memory, key, health, Step.IDLE),
        tokens=health.gate_tokens,
        timeout_s=health.generation_timeout_s,
        prompt_tokens=few_tokens(memory.max_model_len, health),
    )


def _doubted(memory: Memory) -> str | None:
    """Whose answer did not come or was bad: first who is silent, then who was asked longest ago."""
    records = {k: r for k, r in memory.records.items() if r.doubted or r.raised}
    return min(
        records,
        key=lambda k: (records[k].unanswered_since is None, records[k].asked_at),
        default=None,
    )


def _suspect(memory: Memory) -> str:
    """Who is to be asked of a server that is down: who is doubted, or stuck, or drafts badly, or
    else who was asked longest ago."""
    doubted = _doubted(memory)
    if doubted is not None:
        return doubted
    stuck = {n: e.stuck_for(memory.at) for n, e in memory.engines.items() if e.unmoved}
    if stuck:
        return max(stuck, key=stuck.__getitem__)
    drafts_badly = [key for key in memory.keys if key != ANY and memory.engines[key].drafts_badly]
    if drafts_badly:
        return drafts_badly[0]
    return min(memory.keys, key=lambda key: memory.record(key).asked_at)


def _owes(memory: Memory) -> bool:
    """An engine that is out has answers to give yet."""
    return not memory.recovery_generation or _doubted(memory) is not None


def _rested(memory: Memory, now: float, health: Health) -> bool:
    """The last generation ended an interval ago: what is down is asked at the pace of looks."""
    last = memory.last_generation
    return last is None or now - last.ended_at >= health.scrape_interval_s


def _is_visible(memory: Memory, now: float, health: Health) -> bool:
    """The scheduler was seen so lately that what it showed may still hold."""
    return memory.sampled_at is not None and now - memory.sampled_at < health.canary_after_s


def _due(memory: Memory, now: float, health: Health) -> str | None:
    """Who is to get a canary now: whoever is in doubt, for one more answer settles whether it was
    chance, or whose time is over for longest."""
    doubted = _doubted(memory)
    if doubted is not None:
        return doubted
    late = {key: _late_s(memory, key, now, health) for key in memory.keys}
    latest = max(late, key=late.__getitem__)
    return latest if late[latest] >= 0 else None


def _late_s(memory: Memory, key: str, now: float, health: Health) -> float:
    """Seconds by which an engine's canary is late, below 0 if it is not due.

    That another one works proves nothing about it. Asked again no sooner than after the same time:
    where the server chooses by itself, the answer may be another engine's.
    """
    record = memory.record(key)
    engines = [memory.engines[key]] if key in memory.engines else [*memory.engines.values()]
    since_asked = now - max(record.asked_at, record.read_at)
    if not math.isfinite(since_asked):
        return since_asked  # who was gone, and is back
    alive, visible = vitals.alive(memory, key), _is_visible(memory, now, health)
    if not visible or not any(e.work_since is not None for e in engines):
        # A living engine may still be stuck: its steps are counted, or its answers have to tell.
        if alive and visible and memory.uncounted_since is None:
            return since_asked - TEXT_AGES * _canary_age(memory, health)
        step = memory.proven_at if key == ANY else memory.step_of(key)
        since_step = now - step if step is not None else since_asked
        return min(since_asked, since_step) - _canary_age(memory, health)
    # Steps prove progress and not sense: of a busy engine a text is read now and then; more rarely
    # where a canary would wait, behind other work or behind a long prefill.
    at_once = any(e.writes for e in engines) and not any(e.sample.waiting for e in engines)
    age = health.evidence_max_age_s * (1 if at_once else UNREAD_TIMES)
    if alive and at_once:
        age = min(TEXT_AGES * health.canary_after_s, age)
    # Who is stuck has half the budget left to say that only /metrics is; who sleeps has less.
    stuck = max(e.stuck_for(now) for e in engines)
    half = health.readiness_budget_s / 2
    patience = min(SUSPECT_S, half) if vitals.suspect(memory, key) else half
    return max(since_asked - age, min(stuck, since_asked) - patience)


def _canary_age(memory: Memory, health: Health) -> float:
    """The age of evidence at which a canary is sent."""
    # Deterministic for a memory, different for each canary and each service.
    draw = random.Random(memory.jitter_seed * 1_000_003 + memory.generations).uniform(-1, 1)
    return health.canary_after_s * (1 + CANARY_JITTER * draw)
