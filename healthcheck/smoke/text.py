"""Completions, judged by the rules of the health gate: real text, sampled, through the draft."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from healthcheck.judge import Finding, Outcome, Step, differs, judge
from healthcheck.service import generate
from healthcheck.smoke.results import Check
from healthcheck.smoke.target import Session, Target, fault, refusal, row
from healthcheck.verdict import Want

GREEDY_TOKENS = 24


def warm_up(session: Session) -> Iterator[Check]:
    """The first generation compiles; its text is not judged, only that it comes."""
    if session.generated:
        return
    target = session.target
    limit_s = target.profile.health.warmup_timeout_s
    warm = target.generator.run(_want(target, Step.WARM_UP, limit_s, nonce="warm"), target.model)
    elapsed_s = warm.ended_at - warm.started_at
    silent = [f for f in warm.findings if f.check == "answer"]
    if silent:
        yield row(silent[0], elapsed_s, "first answer")
    else:
        evidence = "the server answers a completion"
        yield Check("first answer", Outcome.GOOD, evidence, elapsed_s)


def sampled(session: Session) -> Iterator[Check]:
    """Two seeds of one prompt side by side, judged as the health gate judges them."""
    target = session.target
    limit_s = target.profile.health.generation_timeout_s
    wants = [
        _want(target, step, limit_s, seed=seed)
        for seed, step in ((1, Step.PROBE), (2, Step.SECOND_SEED))
    ]
    with ThreadPoolExecutor(len(wants)) as pool:
        ran = list(pool.map(lambda want: target.generator.run(want, target.model), wants))
    found: dict[str, tuple[Finding, float]] = {}
    for generation in ran:
        for finding in generation.findings:
            kept = found.get(finding.check)
            if kept is None or _prefer(finding, kept[0]):
                found[finding.check] = (finding, generation.ended_at - generation.started_at)
    yield from (row(finding, elapsed_s) for finding, elapsed_s in found.values())
    first, second = (generation.completion for generation in ran)
    if first is None or second is None:
        return
    yield row(differs(first, second), 0.0)
    if first.tokens and isinstance(first.tokens[0], str):
        session.report.leave_out("token ids", "the server returns none; texts are compared instead")


def greedy(session: Session) -> Iterator[Check]:
    """Temperature 0 is argmax at every token, also where drafts are accepted and rejected."""
    target = session.target
    limit_s = target.profile.health.generation_timeout_s
    want = Want(Step.PROBE, 0, "greedy", 0, GREEDY_TOKENS, limit_s)
    payload = {**target.generator.payload(want, target.model), "temperature": 0.0}
    answer = target.client.post(generate.PATH, payload, deadline_s=limit_s)
    findings, completion = judge(answer, asked_tokens=GREEDY_TOKENS)
    if completion is None:
        yield refusal("temperature 0", answer)
        return
    seen = next(f for f in findings if f.check == "sampling")
    picked, count = (seen.evidence.get(key) for key in ("argmax_tokens", "tokens"))
    if picked is None:
        session.report.leave_out("temperature 0", "the server returns no top logprobs")
    elif picked == count:
        evidence = f"{count} of {count} tokens are the likeliest"
        yield Check("temperature 0", Outcome.GOOD, evidence, answer.elapsed_s)
    else:
        words = f"{picked} of {count} tokens are the likeliest"
        code = "sampling.not_greedy"
        yield fault("temperature 0", Outcome.BAD, code, words, answer.elapsed_s)


def _want(
    target: Target, step: Step, limit_s: float, *, seed: int = 0, nonce: str = "scored"
) -> Want:
    return Want(step, 0, nonce, seed, target.profile.health.gate_tokens, limit_s)


def _prefer(new: Finding, old: Finding) -> bool:
    """A bad finding stands; a conclusive one replaces an inconclusive one."""
    if new.outcome is Outcome.BAD or old.outcome is Outcome.BAD:
        return old.outcome is not Outcome.BAD
    return old.outcome is Outcome.UNKNOWN
