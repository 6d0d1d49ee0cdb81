"""An explanation as a page for people."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck.explain.findings import Explanation, Finding
from healthcheck.explain.startup import Stage, Startup
from healthcheck.explain.traces import Frame


def render(explanation: Explanation) -> str:
    """The explanation as lines of text: verdict first, then cause, timeline and the rest."""
    return "\n".join(_lines(explanation))


def _lines(found: Explanation) -> Iterator[str]:
    yield f"{found.verdict.upper()}: {found.headline}"
    if found.cause:
        yield ""
        yield from _cause(found.cause)
    if found.startup:
        yield ""
        yield from startup_lines(found.startup)
    others = [one for one in found.findings if one.id != (found.cause and found.cause.id)]
    yield from _list("other causes seen", others)
    yield from _list("consequences, not causes", found.wrappers)
    yield from _list("waits", [one for one in found.waits if one.state != "ended"])
    yield from _list("warnings", found.warnings)
    unknown = found.exceptions[1:] if found.cause and found.cause.id == "unclassified" else ()
    if unknown:
        yield ""
        yield "other exceptions that no signature knows"
        for seen in unknown:
            yield f"  line {seen.line_number} {seen.process}: {seen.text}"
    if found.first_error and not found.cause:
        yield ""
        yield f"first error line: {found.first_error.line_number}: {found.first_error.text}"
    if found.earlier_attempts:
        yield ""
        yield "earlier starts in this log"
        for attempt in found.earlier_attempts:
            yield f"  to line {attempt.last_line}: {attempt.verdict} {attempt.cause}".rstrip()


def _cause(cause: Finding) -> Iterator[str]:
    where = cause.process or "a line without a process name"
    yield f"cause    {cause.id} ({cause.source})"
    yield f"remedy   {cause.remedy}"
    yield f"from     {where}, line {cause.line_number}{_at(cause.seconds)}, seen {cause.count} x"
    if cause.state:
        yield f"state    {cause.state}{_age(cause)}"
    for evidence in cause.evidence:
        yield f"line     {evidence.line_number}: {evidence.text}"
    yield from (_frame(frame) for frame in cause.frames[-4:])


def _frame(frame: Frame) -> str:
    code = f": {frame.code}" if frame.code else ""
    return f"frame    {frame.file}:{frame.line} {frame.function}{code}"


def startup_lines(startup: Startup) -> Iterator[str]:
    """A start as a table: when each stage began, how long it took, how far it is, and its line."""
    yield "timeline (seconds from the first line of the start)"
    yield f"  {'stage':<8} {'began':>8} {'took':>8}"
    yield from (_stage(stage) for stage in startup.stages)


def _stage(stage: Stage) -> str:
    began = "?" if stage.began_s is None else f"{stage.began_s:.1f}"
    took = "?" if stage.seconds is None else f"{stage.seconds:.1f}"
    percent = "" if stage.progress_percent is None else f"{stage.progress_percent} %"
    state = "" if stage.done else "not finished: "
    return f"  {stage.name:<8} {began:>8} {took:>8} {percent:>5}  {state}{stage.detail}".rstrip()


def _list(title: str, findings: list[Finding] | tuple[Finding, ...]) -> Iterator[str]:
    if findings:
        yield ""
        yield title
        for one in findings:
            state = f" {one.state}{_age(one)}" if one.state else ""
            where = f" {one.process}" if one.process else ""
            yield f"  line {one.line_number}{where} {one.id}{state}: {one.remedy}"


def _at(seconds: float | None) -> str:
    return "" if seconds is None else f", after {seconds:.1f} s"


def _age(finding: Finding) -> str:
    return "" if finding.waited_s is None else f", {finding.waited_s:.0f} s without progress"
