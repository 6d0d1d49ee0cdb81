"""Reports as a table and as JSON."""

import json
from collections import Counter

from patches.audit.audit import Report
from patches.audit.gap import Gap, Severity


def as_table(reports: list[Report], *, explain: bool) -> str:
    """Render for people: a block per tree, a line per gap, and how it was found if asked."""
    return "\n".join(line for report in reports for line in _table_lines(report, explain))


def as_json(reports: list[Report]) -> str:
    """Render everything that is known, for programs."""
    data = {"schema": 1, "trees": [_report_data(report) for report in reports]}
    return json.dumps(data, indent=2)


def sentence(gap: Gap) -> str:
    """Say a gap in one sentence."""
    if gap.severity in (Severity.NO_CLASS, Severity.STUB, Severity.NOT_COMPARED):
        return f"{gap.class_name} on {gap.platform}: {gap.note}"
    if gap.severity is Severity.WRONG_ANSWERS:
        return f"{gap.class_name} on {gap.platform} if {gap.condition}: {gap.note}"
    text = f"{gap.class_name} on {gap.platform} lacks {gap.attribute}, used at {gap.where}"
    if gap.severity is Severity.PARTLY_PROVIDED:
        text = f"{gap.class_name} on {gap.platform} may lack {gap.attribute}, used at {gap.where}"
    elif gap.attribute.endswith("()"):
        text = f"{gap.class_name} on {gap.platform}: {gap.attribute} as called at {gap.where}"
    if gap.condition:
        text += f" if {gap.condition}"
    if gap.note:
        text += f" ({gap.note})"
    provided = f"; provided on {', '.join(gap.providers)}" if gap.providers else ""
    return text + provided


def _table_lines(report: Report, explain: bool) -> list[str]:
    counts = Counter(gap.severity for gap in report.gaps)
    summary = ", ".join(f"{counts[s]} {s.value}" for s in Severity if counts[s]) or "no gaps"
    scope = f"{report.scope.arch or 'all'} on {report.scope.platform or 'all platforms'}"
    version = f" (vLLM {report.version})" if report.version else ""
    lines = [f"{report.tree}{version}: {scope}: {report.architectures} compared: {summary}"]
    for gap in report.gaps:
        lines.append(f"  {gap.severity.value:17} {gap.platform:6} {gap.arch}: {sentence(gap)}")
        if explain:
            lines += [f"      {step}" for step in gap.explanation]
    lines += [f"  note: {note}" for note in report.notes]
    return lines


def _report_data(report: Report) -> dict[str, object]:
    return {
        "tree": report.tree,
        "version": report.version,
        "platform": report.scope.platform,
        "arch": report.scope.arch,
        "speculative_config": report.scope.speculative,
        "architectures": report.architectures,
        "gaps": [_gap_data(report, gap) for gap in report.gaps],
        "notes": list(report.notes),
    }


def _gap_data(report: Report, gap: Gap) -> dict[str, object]:
    return {
        "severity": gap.severity.value,
        "fails": report.fails(gap),
        "platform": gap.platform,
        "arch": gap.arch,
        "class": gap.class_name,
        "class_where": gap.class_where,
        "attribute": gap.attribute,
        "reader": gap.reader,
        "where": gap.where,
        "condition": gap.condition or None,
        "providers": list(gap.providers),
        "note": gap.note or None,
        "key": gap.key,
        "explanation": list(gap.explanation),
    }
