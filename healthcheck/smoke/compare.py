"""`smoke compare A B`: what changed from report A to report B, and which way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from healthcheck.judge import Outcome
from healthcheck.judge.acceptance import Acceptance
from healthcheck.smoke.figures import Spread, ratio
from healthcheck.smoke.results import Level, Report
from healthcheck.words import clean

# A speed may differ by this much between two runs of one server before it is called a change.
TOLERANCE = 0.1
_RANK = {Outcome.GOOD: 0, Outcome.UNKNOWN: 1, Outcome.BAD: 2}


class Way(StrEnum):
    """Which way a figure went; SAME is also what chance explains."""

    WORSE = "worse"
    BETTER = "better"
    SAME = "same"
    CHANGED = "changed"  # neither good nor bad by itself


@dataclass(frozen=True)
class Difference:
    """One thing that two reports say differently, or as good as the same."""

    name: str
    before: str
    after: str
    way: Way
    why: str = ""


def compare(a: Report, b: Report) -> list[Difference]:
    """What changed from `a` to `b`, in the order of the report."""
    return [
        *_facts(a, b),
        *_checks(a, b),
        *_acceptance(a.acceptance, b.acceptance),
        *_levels(a, b),
        *_long_prompts(a, b),
    ]


def _facts(a: Report, b: Report) -> Iterator[Difference]:
    for name in ("verdict", "profile", "model", "vllm_version", "max_model_len", "speculates"):
        before, after = getattr(a, name), getattr(b, name)
        if before != after:
            way = Way.CHANGED
            if name == "verdict":
                order = {"good": 0, "unknown": 1, "bad": 2}
                way = Way.WORSE if order[after] > order[before] else Way.BETTER
            yield Difference(name, str(before), str(after), way)


def _checks(a: Report, b: Report) -> Iterator[Difference]:
    earlier = {check.name: check for check in a.checks}
    later = {check.name: check for check in b.checks}
    for name in [*earlier, *(name for name in later if name not in earlier)]:
        old, new = earlier.get(name), later.get(name)
        if old is not None and new is not None and old.outcome is new.outcome:
            continue
        before = old.outcome.value if old else "not asked"
        after = new.outcome.value if new else "not asked"
        if old is None or new is None:
            # A row that is only there when it fails is worse than none.
            bad = new is not None and new.outcome is Outcome.BAD
            way = Way.WORSE if bad else Way.CHANGED
        else:
            way = Way.WORSE if _RANK[new.outcome] > _RANK[old.outcome] else Way.BETTER
        yield Difference(name, before, after, way, new.evidence if new else "")


def _acceptance(a: Acceptance | None, b: Acceptance | None) -> Iterator[Difference]:
    if a is None or b is None:
        if a is not b:
            shown = ["-" if each is None else f"{each.rate:.1%}" for each in (a, b)]
            yield Difference(
                "acceptance", shown[0], shown[1], Way.CHANGED, "one did not measure it"
            )
        return
    for i, (low, high) in enumerate(b.intervals):
        if i >= len(a.intervals):
            break
        old_low, old_high = a.intervals[i]
        way, why = Way.SAME, "the intervals overlap"
        if high < old_low or low > old_high:
            way = Way.WORSE if high < old_low else Way.BETTER
            why = "the intervals do not overlap"
        before = f"{a.per_position[i]:.1%} ({old_low:.1%} to {old_high:.1%})"
        after = f"{b.per_position[i]:.1%} ({low:.1%} to {high:.1%})"
        yield Difference(f"accepted at {i}", before, after, way, why)
    if len(a.intervals) != len(b.intervals):
        yield Difference(
            "draft tokens a step", str(len(a.intervals)), str(len(b.intervals)), Way.CHANGED
        )


def _levels(a: Report, b: Report) -> Iterator[Difference]:
    for new in b.levels:
        old = a.level(new.concurrency)
        if old is not None:
            yield _rates(old, new, judged=not (a.rehearsal or b.rehearsal))
            yield _times("first piece", new.concurrency, old.first_s, new.first_s)
            yield _times("between pieces", new.concurrency, old.gap_s, new.gap_s)


def _rates(old: Level, new: Level, *, judged: bool) -> Difference:
    """The ratio of what each request got."""
    name = f"tokens/s at {new.concurrency}"
    before, after = f"{old.tokens_per_s:.1f}", f"{new.tokens_per_s:.1f}"
    if not old.request_rates or not new.request_rates:
        return Difference(name, before, after, Way.CHANGED, "requests were not answered")
    times, low, high = ratio(new.request_rates, old.request_rates)
    words = f"a request: {times:.2f} times ({low:.2f} to {high:.2f})"
    way = Way.SAME
    if not judged:
        way = Way.SAME if before == after else Way.CHANGED
        words += "; not judged: a rehearsal's kernels are interpreted"
    elif high < 1 - TOLERANCE:
        way = Way.WORSE
    elif low > 1 + TOLERANCE:
        way = Way.BETTER
    elif high < 1 or low > 1:
        words += f", within the tolerance of {TOLERANCE:.0%}"
    return Difference(name, before, after, way, words)


def _times(what: str, concurrency: int, before: Spread, after: Spread) -> Difference:
    """Times are told and not judged: a few requests give no interval for a percentile."""
    same = before == after
    return Difference(
        f"{what} at {concurrency}",
        f"{1000 * before.p50:.0f}/{1000 * before.p99:.0f} ms",
        f"{1000 * after.p50:.0f}/{1000 * after.p99:.0f} ms",
        Way.SAME if same else Way.CHANGED,
        "" if same else "p50/p99, not judged",
    )


def _long_prompts(a: Report, b: Report) -> Iterator[Difference]:
    earlier = {each.prompt_tokens: each for each in a.long_prompts}
    for new in b.long_prompts:
        old = earlier.get(new.prompt_tokens)
        if old is None or (old.found, new.found) not in ((True, False), (False, True)):
            continue
        way = Way.BETTER if new.found else Way.WORSE
        words = {True: "found", False: "missed"}
        name = f"needle in {new.prompt_tokens}"
        yield Difference(name, words[bool(old.found)], words[bool(new.found)], way)


def exit_code(differences: list[Difference]) -> int:
    """1 if anything is worse, else 0."""
    return int(any(each.way is Way.WORSE for each in differences))


def table(a: Report, b: Report, differences: list[Difference]) -> str:
    """The differences for a person."""
    lines = [
        f"A  {a.made_at}  {a.target}  profile {a.profile}, vLLM {a.vllm_version}",
        f"B  {b.made_at}  {b.target}  profile {b.profile}, vLLM {b.vllm_version}",
        "",
    ]
    for each in differences:
        why = f"  ({each.why})" if each.why else ""
        lines.append(f"{each.way.value:8} {each.name}: {each.before} -> {each.after}{why}")
    worse = sum(each.way is Way.WORSE for each in differences)
    better = sum(each.way is Way.BETTER for each in differences)
    verdict = f"{worse} worse, {better} better"
    return "\n".join(
        [*map(clean, lines), "", f"verdict: {verdict if worse or better else 'no difference'}"]
    )
