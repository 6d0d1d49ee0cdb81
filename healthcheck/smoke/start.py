"""The first rows: does it listen, which vLLM is it, what does its health service say."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from deploy.recipe import facts
from deploy.versions import is_at_least
from healthcheck.client import Client, listing
from healthcheck.client.answers import Answer
from healthcheck.judge import Outcome
from healthcheck.reasons import Note
from healthcheck.smoke.results import Check
from healthcheck.smoke.target import Session, Stopped, fault
from healthcheck.verdict import gate_limit_s

_POLL_S = 0.5
_TELL_S = 5.0


def listening(session: Session) -> Iterator[Check]:
    """Wait until /v1/models lists the model; loading shows itself as a refused connection."""
    target = session.target
    deadline_s = target.profile.health.probe_timeout_s
    began = told = time.monotonic()
    while True:
        answer = target.client.get(
            "/v1/models", deadline_s=deadline_s, limit_bytes=listing.LIMIT_BYTES
        )
        waited = time.monotonic() - began
        if isinstance(answer, Answer):
            yield _models(session, answer, waited)
            break
        if (end := target.ended()) is not None:
            raise Stopped(f"{end} after {waited:.0f} s, before it listened")
        if waited > target.wait_s:
            evidence = f"no answer in {waited:.0f} s: {answer.detail}"
            yield Check("listening", Outcome.BAD, evidence, waited, "start.over_budget")
            break
        if time.monotonic() - told >= _TELL_S:
            told = time.monotonic()
            session.say(f"  ...   waiting for the server, {waited:.0f} s ({answer.kind})")
        time.sleep(_POLL_S)
    session.report.timings_s["listening"] = waited


def _models(session: Session, answer: Answer, waited: float) -> Check:
    wanted = session.target.model
    seen = listing.read(answer, wanted)
    if isinstance(seen, Note):
        return Check("listening", Outcome.UNKNOWN, seen.detail, waited, seen.code)
    if wanted in seen.ids:
        session.report.max_model_len = seen.max_model_len
        return Check("listening", Outcome.GOOD, f"/v1/models lists {wanted}", waited)
    evidence = f"/v1/models lists {', '.join(seen.ids) or 'nothing'}"
    return Check("listening", Outcome.UNKNOWN, evidence, waited, "config.wrong_model")


def version(session: Session) -> Iterator[Check]:
    """Which vLLM it is."""
    target = session.target
    answer = target.client.get("/version", deadline_s=target.profile.health.probe_timeout_s)
    body = answer.json() if isinstance(answer, Answer) else answer
    seen = body.get("version") if isinstance(body, dict) else None
    if not isinstance(seen, str):
        session.report.leave_out("version", "/version gives none")
        return
    session.report.vllm_version = seen
    if re.match(r"\d{1,6}\.\d{1,6}", seen) and not is_at_least(seen, facts.oldest()):
        yield fault("version", Outcome.UNKNOWN, "server.old", f"vLLM {seen}", answer.elapsed_s)
        return
    expected = target.profile.vllm_version
    evidence = f"vLLM {seen}" + ("" if seen == expected else f", the recipe pins {expected}")
    yield Check("version", Outcome.GOOD, evidence, answer.elapsed_s)


def ready(session: Session) -> Iterator[Check]:
    """Wait for the health service's own verdict; a gate that failed is not waited out."""
    if session.target.health is not None:
        check = _await_ready(session, session.target.health)
        session.generated = check.outcome is Outcome.GOOD
        yield check


def _await_ready(session: Session, health: Client) -> Check:
    target = session.target
    budgets = target.profile.health
    limit = gate_limit_s(budgets)
    began = time.monotonic()
    told = ""
    while True:
        answer = health.get("/readyz?verbose", deadline_s=budgets.probe_timeout_s)
        waited = time.monotonic() - began
        detail = " ".join(answer.text.split()) if isinstance(answer, Answer) else answer.detail
        session.report.timings_s["ready"] = session.report.timings_s["listening"] + waited
        if isinstance(answer, Answer) and answer.status == 200:
            return Check("ready", Outcome.GOOD, f"/readyz 200: {detail}", waited)
        if (end := target.ended()) is not None:
            raise Stopped(f"{end} during the gate")
        if waited > limit or "gate.failed" in detail:
            evidence = f"/readyz is not 200: {detail}"
            return Check("ready", Outcome.BAD, evidence, waited, "gate.failed")
        state = detail.split(" since ")[0]  # what follows counts seconds
        if state != told:
            told = state
            session.say(f"  ...   {state}")
        time.sleep(_POLL_S)
