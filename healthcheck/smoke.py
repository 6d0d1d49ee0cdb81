"""`python -m healthcheck smoke URL`: one look at a server, as a table and a JSON report.

It asks what a first user asks (does it listen, write, chat, draft) and judges the answers by the
rules of the health gate. It needs no health service; with `--health URL` that service's verdict is
one more row. Exit code 0: all held. 1: something was bad. 2: it could not tell.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from deploy import recipe
from deploy.recipe import Profile, RecipeError
from healthcheck import exposition, generate
from healthcheck.acceptance import collapsed, wilson
from healthcheck.answers import Answer, Failure
from healthcheck.client import Client, Secret
from healthcheck.exposition import Exposition, Speculation
from healthcheck.generate import Generator
from healthcheck.judge import Finding, Outcome, Step, differs, judge
from healthcheck.reasons import REASONS
from healthcheck.verdict import Policy, Want

SCHEMA = 1
# Rounds of requests, until there are enough drafts to tell a dead draft from bad luck.
ROUNDS = 4
CONCURRENT = 4
ROUND_TOKENS = 96
_POLL_S = 0.5
_MARKS = {Outcome.GOOD: "good", Outcome.BAD: "BAD", Outcome.UNKNOWN: "?"}


@dataclass(frozen=True)
class Check:
    """One row of the report: what was asked, what came of it, the evidence in words."""

    name: str
    outcome: Outcome
    evidence: str
    elapsed_s: float = 0.0
    code: str = ""

    @property
    def remedy(self) -> str:
        """What to do about it, empty for a good row."""
        return REASONS[self.code].remedy if self.code in REASONS else ""


@dataclass(frozen=True)
class Acceptance:
    """Speculation measured here: rates are fractions, `length` is tokens per step (1 + accepted
    per draft), `position_0_interval` Wilson bounds, each one-sided 99 %."""

    drafts: int
    rate: float
    length: float
    per_position: tuple[float, ...]
    position_0_interval: tuple[float, float]

    @classmethod
    def of(cls, counted: Speculation) -> Acceptance | None:
        """The rates of counters, None without a draft."""
        if counted.drafts <= 0 or counted.draft_tokens <= 0:
            return None
        per_position = tuple(n / counted.drafts for n in counted.accepted_at)
        first = counted.accepted_at[0] if counted.accepted_at else 0.0
        return cls(
            drafts=int(counted.drafts),
            rate=counted.accepted / counted.draft_tokens,
            length=1 + counted.accepted / counted.drafts,
            per_position=per_position,
            position_0_interval=wilson(first, counted.drafts),
        )


@dataclass
class Report:
    """Everything the smoke test found; `write` gives the JSON that users send."""

    target: str
    profile: str
    evidence: str
    model: str
    checks: list[Check] = field(default_factory=list)
    acceptance: Acceptance | None = None
    reference: Mapping[str, object] = field(default_factory=dict)
    timings_s: dict[str, float] = field(default_factory=dict)
    vllm_version: str | None = None
    cause: Mapping[str, object] | None = None

    @property
    def exit_code(self) -> int:
        """0 all held, 1 something was bad, 2 it could not tell."""
        outcomes = {check.outcome for check in self.checks}
        if Outcome.BAD in outcomes:
            return 1
        return 2 if Outcome.UNKNOWN in outcomes or not self.checks else 0

    def write(self, path: Path) -> None:
        """The report as JSON, atomically. Raises OSError."""
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "verdict": ("good", "bad", "unknown")[self.exit_code],
            **asdict(self),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)


class Stopped(RuntimeError):
    """The server is gone and will not answer; the message says how it ended."""


@dataclass(frozen=True)
class Target:
    """The server under test and how long to wait for it. `ended` says how it ended, else None."""

    client: Client
    profile: Profile
    model: str
    wait_s: float
    health: Client | None = None
    speculation: bool = True
    ended: Callable[[], str | None] = lambda: None
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)

    @property
    def speculates(self) -> bool:
        """Whether the server drafts; `speculation` is the entrypoint's switch."""
        return self.profile.speculative is not None and self.speculation

    @cached_property
    def generator(self) -> Generator:
        """Asks for generations as the health gate does."""
        policy = Policy(self.profile.health, self.model, self.speculates)
        return Generator(self.client, policy)


def run(target: Target) -> Report:
    """Every check in order; a server that never comes up ends the run early, with its row."""
    profile = target.profile
    report = Report(
        target=target.client.base_url,
        profile=profile.name,
        evidence=profile.evidence,
        model=target.model,
        reference=asdict(profile.reference),
    )
    began = time.monotonic()
    try:
        for check in _checks(target, report):
            target.say(f"  {_MARKS[check.outcome]:4}  {check.name}: {check.evidence}")
            report.checks.append(check)
    except Stopped as e:
        report.checks.append(Check("server", Outcome.BAD, f"{e}; its log tells why"))
    report.timings_s["total"] = time.monotonic() - began
    return report


def _checks(target: Target, report: Report) -> Iterator[Check]:
    began = time.monotonic()
    listening = _await_listening(target)
    report.timings_s["listening"] = listening.elapsed_s
    yield listening
    if listening.outcome is not Outcome.GOOD:
        return
    yield _version(target, report)
    if target.health is not None:
        ready = _await_ready(target, target.health)
        report.timings_s["ready"] = time.monotonic() - began
        yield ready
    first = _scrape(target)
    yield _warm_up(target)
    yield from _scored(target)
    yield _chat(target)
    if target.speculates:
        yield _speculation(target, report, first)


def _await_listening(target: Target) -> Check:
    """Wait until /v1/models lists the model; loading shows itself as a refused connection."""
    began = time.monotonic()
    told = began
    while True:
        answer = target.client.get("/v1/models", deadline_s=target.profile.health.probe_timeout_s)
        waited = time.monotonic() - began
        if isinstance(answer, Answer):
            return _models(target, answer, waited)
        if (end := target.ended()) is not None:
            raise Stopped(f"{end} after {waited:.0f} s, before it listened")
        if waited > target.wait_s:
            evidence = f"no answer in {waited:.0f} s: {answer.detail}"
            return Check("listening", Outcome.BAD, evidence, waited, "start.over_budget")
        if time.monotonic() - told >= 5:
            told = time.monotonic()
            target.say(f"  ...   waiting for the server, {waited:.0f} s ({answer.kind})")
        time.sleep(_POLL_S)


def _models(target: Target, answer: Answer, waited: float) -> Check:
    if answer.status in (401, 403):
        evidence = f"/v1/models answers {answer.status}"
        return Check("listening", Outcome.UNKNOWN, evidence, waited, "config.unauthorized")
    body = answer.json()
    rows = body.get("data") if isinstance(body, dict) else None
    ids = [str(row.get("id")) for row in rows or () if isinstance(row, dict)]
    if target.model in ids:
        return Check("listening", Outcome.GOOD, f"/v1/models lists {target.model}", waited)
    evidence = f"/v1/models answers {answer.status} and lists {', '.join(ids) or 'nothing'}"
    return Check("listening", Outcome.UNKNOWN, evidence, waited, "config.wrong_model")


def _version(target: Target, report: Report) -> Check:
    answer = target.client.get("/version", deadline_s=target.profile.health.probe_timeout_s)
    body = answer.json() if isinstance(answer, Answer) else answer
    seen = body.get("version") if isinstance(body, dict) else None
    expected = target.profile.vllm_version
    report.vllm_version = seen if isinstance(seen, str) else None
    if not isinstance(seen, str):
        return Check("version", Outcome.UNKNOWN, "/version gives none", code="server.unknown")
    evidence = f"vLLM {seen}" + ("" if seen == expected else f", the recipe pins {expected}")
    return Check("version", Outcome.GOOD, evidence, answer.elapsed_s)


def _await_ready(target: Target, health: Client) -> Check:
    """Wait for the health service's own verdict; a gate that failed is not waited out."""
    budgets = target.profile.health
    limit = budgets.warmup_timeout_s + 2 * budgets.generation_timeout_s
    began = time.monotonic()
    told = ""
    while True:
        answer = health.get("/readyz?verbose", deadline_s=budgets.probe_timeout_s)
        waited = time.monotonic() - began
        detail = " ".join(answer.text.split()) if isinstance(answer, Answer) else answer.detail
        if isinstance(answer, Answer) and answer.status == 200:
            return Check("ready", Outcome.GOOD, f"/readyz 200: {detail}", waited)
        if (end := target.ended()) is not None:
            raise Stopped(f"{end} during the gate")
        if waited > limit or "gate.failed" in detail:
            return Check(
                "ready", Outcome.BAD, f"/readyz is not 200: {detail}", waited, "gate.failed"
            )
        state = detail.split(" since ")[0]  # what follows counts seconds
        if state != told:
            told = state
            target.say(f"  ...   {state}")
        time.sleep(_POLL_S)


def _warm_up(target: Target) -> Check:
    """The first generation compiles; its text is not judged, only that it comes."""
    limit_s = target.profile.health.warmup_timeout_s
    warm = target.generator.run(_want(target, Step.WARM_UP, limit_s, nonce="warm"), target.model)
    elapsed_s = warm.ended_at - warm.started_at
    silent = [f for f in warm.findings if f.check == "answer"]
    if silent:
        return _check(silent[0], elapsed_s, "first answer")
    return Check("first answer", Outcome.GOOD, "the server answers a completion", elapsed_s)


def _scored(target: Target) -> Iterator[Check]:
    """Two seeds of one prompt, judged as the health gate judges them."""
    limit_s = target.profile.health.generation_timeout_s
    ran = [
        target.generator.run(_want(target, step, limit_s, seed=seed), target.model)
        for seed, step in ((1, Step.PROBE), (2, Step.SECOND_SEED))
    ]
    found: dict[str, tuple[Finding, float]] = {}
    for generation in ran:
        for finding in generation.findings:
            kept = found.get(finding.check)
            if kept is None or _prefer(finding, kept[0]):
                found[finding.check] = (finding, generation.ended_at - generation.started_at)
    yield from (_check(finding, elapsed_s) for finding, elapsed_s in found.values())
    first, second = (generation.completion for generation in ran)
    if first is not None and second is not None:
        yield _check(differs(first, second), 0.0)


def _want(
    target: Target, step: Step, limit_s: float, *, seed: int = 0, nonce: str = "scored"
) -> Want:
    return Want(step, 0, nonce, seed, target.profile.health.gate_tokens, limit_s)


def _prefer(new: Finding, old: Finding) -> bool:
    """A bad finding stands; a conclusive one replaces an inconclusive one."""
    if new.outcome is Outcome.BAD or old.outcome is Outcome.BAD:
        return old.outcome is not Outcome.BAD
    return old.outcome is Outcome.UNKNOWN


def _chat(target: Target) -> Check:
    """A chat answer has text in `content` or in `reasoning`."""
    request = {
        "model": target.model,
        "messages": [
            {"role": "user", "content": f"Say a few words about rivers. {secrets.token_hex(8)}"}
        ],
        "max_tokens": 16,
        "temperature": 1.0,
        "seed": 9,
    }
    budget = target.profile.health.generation_timeout_s
    answer = target.client.post("/v1/chat/completions", request, deadline_s=budget)
    findings, completion = judge(answer, asked_tokens=1, scored=False)
    bad = [f for f in findings if f.outcome is Outcome.BAD and f.check == "real tokens"]
    if completion is None or bad:
        return _check((bad or list(findings))[0], answer.elapsed_s, "chat")
    shown = " ".join(completion.text.split())[:40]
    return Check("chat", Outcome.GOOD, f"answered {shown!r}", answer.elapsed_s)


def _speculation(target: Target, report: Report, first: Exposition | Failure) -> Check:
    """Draft enough, several requests at once, that acceptance is a figure and not a chance.

    Counted since `first`, so that the drafts of the checks before this one count as well.
    """
    budgets = target.profile.health
    began = time.monotonic()
    before = first.speculation() if isinstance(first, Exposition) else None
    if before is None:
        return Check(
            "acceptance", Outcome.BAD, "no counters of speculation", code="speculation.absent"
        )
    counted = Speculation()
    for round_number in range(ROUNDS):
        _generate_at_once(target, round_number)
        latest = _scrape(target)
        after = latest.speculation() if isinstance(latest, Exposition) else None
        if after is None:
            evidence = "/metrics could not be read"
            return Check("acceptance", Outcome.UNKNOWN, evidence, code="metrics.unavailable")
        counted = after.since(before)
        if counted.drafts >= budgets.acceptance_window_drafts:
            break
    elapsed_s = time.monotonic() - began
    acceptance = Acceptance.of(counted)
    report.acceptance = acceptance
    if acceptance is None:
        evidence = f"{counted.drafts:.0f} drafts"
        return Check("acceptance", Outcome.BAD, evidence, elapsed_s, "speculation.not_drafting")
    low, high = acceptance.position_0_interval
    evidence = (
        f"{acceptance.rate:.1%} of {counted.draft_tokens:.0f} draft tokens, length "
        f"{acceptance.length:.2f}, position 0 {low:.0%} to {high:.0%}"
    )
    if high < budgets.acceptance_floor:
        evidence += f", under {budgets.acceptance_floor:.0%}"
        return Check("acceptance", Outcome.BAD, evidence, elapsed_s, "acceptance.low")
    if collapsed(counted) is Outcome.BAD:
        return Check("acceptance", Outcome.BAD, evidence, elapsed_s, "acceptance.collapsed")
    if low > budgets.acceptance_ceiling:
        return Check("acceptance", Outcome.UNKNOWN, evidence, elapsed_s, "acceptance.high")
    if acceptance.drafts < budgets.acceptance_window_drafts:
        evidence += f", only {acceptance.drafts} drafts"
        return Check("acceptance", Outcome.UNKNOWN, evidence, elapsed_s, "acceptance.insufficient")
    return Check("acceptance", Outcome.GOOD, evidence, elapsed_s)


def _generate_at_once(target: Target, round_number: int) -> None:
    """Requests side by side, each with a prompt of its own."""
    limit_s = target.profile.health.generation_timeout_s
    wants = [
        Want(Step.PROBE, 0, f"round-{round_number}-{i}", i, ROUND_TOKENS, limit_s)
        for i in range(CONCURRENT)
    ]

    def ask(want: Want) -> Answer | Failure:
        payload = target.generator.payload(want, target.model)
        return target.client.post(generate.PATH, payload, deadline_s=limit_s)

    with ThreadPoolExecutor(CONCURRENT) as pool:
        list(pool.map(ask, wants))


def _scrape(target: Target) -> Exposition | Failure:
    deadline_s = target.profile.health.probe_timeout_s
    return exposition.read(target.client.get("/metrics", deadline_s=deadline_s))


def _check(finding: Finding, elapsed_s: float, name: str | None = None) -> Check:
    words = ", ".join(f"{k}={_short(v)}" for k, v in finding.evidence.items())
    if finding.outcome is not Outcome.GOOD and finding.code in REASONS:
        words = f"{REASONS[finding.code].meaning}" + (f" ({words})" if words else "")
    code = "" if finding.outcome is Outcome.GOOD else finding.code
    return Check(name or finding.check, finding.outcome, words or "held", elapsed_s, code)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def table(report: Report, width: int | None = None) -> str:
    """The report for a person: every check with its evidence, then speculation and timings."""
    width = width or shutil.get_terminal_size((100, 24)).columns
    names = max((len(c.name) for c in report.checks), default=5)
    indent = " " * (6 + names + 2)
    lines = [f"{report.target}  profile {report.profile} ({report.evidence})", ""]
    for check in report.checks:
        text = check.evidence
        if check.outcome is not Outcome.GOOD:
            text += f" [{check.code}]" if check.code else ""
            text += f"; {check.remedy}" if check.remedy else ""
        took = f"  {check.elapsed_s:.1f} s" if check.elapsed_s >= 0.05 else ""
        wrapped = textwrap.wrap(text + took, max(20, width - len(indent))) or [""]
        lines.append(f"{_MARKS[check.outcome]:6}{check.name:{names}}  {wrapped[0]}")
        lines += [indent + rest for rest in wrapped[1:]]
    if report.acceptance is not None:
        lines += ["", *_acceptance_lines(report.acceptance, report.reference)]
    if report.cause is not None:
        lines += ["", *_cause_lines(report.cause)]
    timings = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.timings_s.items())
    verdict = ("all held", "something is BAD", "could not tell")[report.exit_code]
    return "\n".join([*lines, "", f"timings: {timings}", f"verdict: {verdict}"])


def _acceptance_lines(seen: Acceptance, reference: Mapping[str, object]) -> Iterable[str]:
    source = str(reference.get("source", "reference"))
    rows = [
        ("acceptance rate", f"{seen.rate:.1%}", reference.get("acceptance_rate")),
        ("acceptance length", f"{seen.length:.2f}", reference.get("acceptance_length")),
        *(
            (
                f"accepted at {i}",
                f"{rate:.1%}",
                reference.get(f"acceptance_position_{i}"),
            )
            for i, rate in enumerate(seen.per_position)
        ),
    ]
    yield f"{'speculation':20}{'here':>8}  {source:>14}"
    for name, here, published in rows:
        if isinstance(published, float):
            theirs = f"{published:.2f}" if published > 1 else f"{published:.1%}"
        else:
            theirs = "-"
        yield f"{name:20}{here:>8}  {theirs:>14}"


def _cause_lines(cause: Mapping[str, object]) -> Iterable[str]:
    yield f"cause: {cause.get('id')} in {cause.get('process') or 'the log'}"
    for evidence in cause.get("evidence", ()):  # type: ignore[attr-defined]
        yield f"  line {evidence['line_number']}: {evidence['text']}"
    for key in ("remedy", "source"):
        if cause.get(key):
            yield f"  {key}: {cause[key]}"


def main(argv: list[str]) -> int:
    """The command line; 0 all held, 1 something was bad, 2 could not tell or misused."""
    parser = argparse.ArgumentParser(prog="python -m healthcheck smoke", description=__doc__)
    parser.add_argument("url", help="the vLLM server, e.g. http://127.0.0.1:8000")
    parser.add_argument("--profile", default=os.environ.get("DSPARK_PROFILE", "mi355x"))
    parser.add_argument("--model", help="served model name (default: the profile's)")
    parser.add_argument("--api-key-file", type=Path, help="file that holds the server's API key")
    parser.add_argument("--health", metavar="URL", help="health service whose verdict to include")
    parser.add_argument("--wait", type=float, metavar="S", help="seconds to wait for the server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here too")
    args = parser.parse_args(argv)
    try:
        profile = recipe.load().profile(args.profile)
        key = Secret(args.api_key_file.read_text("utf-8").strip()) if args.api_key_file else None
    except RecipeError as e:
        print(f"smoke: {e}", file=sys.stderr)
        return 2
    except OSError as e:
        print(f"smoke: --api-key-file {args.api_key_file}: {e.strerror}", file=sys.stderr)
        return 2
    if not args.url.startswith(("http://", "https://")):
        print(f"smoke: URL: got {args.url!r}; give http://HOST:PORT", file=sys.stderr)
        return 2
    connect_s = profile.health.connect_timeout_s
    target = Target(
        client=Client(args.url, connect_timeout_s=connect_s, key=key),
        profile=profile,
        model=args.model or profile.served_model_name,
        wait_s=args.wait if args.wait is not None else profile.health.start_budget_s,
        health=Client(args.health, connect_timeout_s=connect_s) if args.health else None,
        speculation=os.environ.get("DSPARK_SPECULATION", "on") != "off",
    )
    return finish(run(target), args.json)


def finish(report: Report, path: Path | None) -> int:
    """Print the table, write the JSON where asked; returns the exit code."""
    print(table(report), flush=True)
    if path is not None:
        try:
            report.write(path)
        except OSError as e:
            print(f"smoke: --json {path}: {e.strerror}; give a writable file", file=sys.stderr)
            return 2
        print(f"report: {path}")
    return report.exit_code
