"""Reports as a table, as JSON, as SARIF 2.1.0 and as GitHub annotations."""

import json
from collections import Counter

from patches.audit.audit import Report
from patches.audit.gap import Gap, Severity

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES = {
    Severity.CRASH: "Shared code reads an attribute that the class lacks",
    Severity.CRASH_CONDITIONAL: "Under a condition shared code reads an attribute the class lacks",
    Severity.WRONG_ANSWERS: "The answers are not the model's: what one side states the other drops",
    Severity.NO_CLASS: "The platform has no class for the architecture",
    Severity.STUB: "The platform's class only raises",
    Severity.NOT_COMPARED: "The audit's table of shared caches does not fit the tree",
    Severity.FEATURE_MISSING: "A feature that another platform offers is missing",
    Severity.PARTLY_PROVIDED: "The class sets a required attribute only under a condition",
    Severity.UNRESOLVED: "Shared code reads an attribute whose name cannot be told",
}


def as_table(reports: list[Report], *, explain: bool) -> str:
    """Render for people: a block per tree, a line per gap, and how it was found if asked."""
    return "\n".join(line for report in reports for line in _table_lines(report, explain))


def as_json(reports: list[Report]) -> str:
    """Render everything that is known, for programs."""
    data = {"schema": 1, "trees": [_report_data(report) for report in reports]}
    return json.dumps(data, indent=2)


def as_sarif(reports: list[Report]) -> str:
    """Render as a SARIF 2.1.0 log with one run per tree.

    A result lies at the class that lacks the attribute, which is where a fix goes; the reading line
    is a related location.
    """
    data = {
        "$schema": _SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [_sarif_run(report) for report in reports],
    }
    return json.dumps(data, indent=2)


def as_github(reports: list[Report]) -> str:
    """Render as workflow commands, which GitHub Actions shows beside the class."""
    return "\n".join(_github_line(report, gap) for report in reports for gap in report.gaps)


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


def _sarif_run(report: Report) -> dict[str, object]:
    return {
        "tool": {
            "driver": {
                "name": "patches-audit",
                "semanticVersion": "1.0.0",
                "rules": [
                    {"id": severity.value, "shortDescription": {"text": text}}
                    for severity, text in _RULES.items()
                ],
            }
        },
        "properties": {"tree": report.tree, "vllm": report.version},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(report, gap) for gap in report.gaps],
    }


def _sarif_result(report: Report, gap: Gap) -> dict[str, object]:
    related = {**_sarif_location(gap.where), "message": {"text": f"read by {gap.reader}()"}}
    return {
        "ruleId": gap.severity.value,
        "level": _level(report, gap),
        "message": {"text": sentence(gap)},
        "locations": [_sarif_location(gap.class_where)],
        "relatedLocations": [related],
        "partialFingerprints": {"gapKey/v1": gap.key},
    }


def _sarif_location(where: str) -> dict[str, object]:
    path, line = _place(where)
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": path, "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": line},
        }
    }


def _level(report: Report, gap: Gap) -> str:
    if report.fails(gap):
        return "error"
    return "warning" if gap.severity is Severity.FEATURE_MISSING else "note"


def _github_line(report: Report, gap: Gap) -> str:
    path, line = _place(gap.class_where)
    command = _level(report, gap).replace("note", "notice")
    title = f"{gap.severity.value}: {gap.platform} {gap.arch} {gap.attribute}"
    return f"::{command} file={path},line={line},title={_property(title)}::{_data(sentence(gap))}"


def _data(text: str) -> str:
    """Escape the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property of a workflow command."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _place(where: str) -> tuple[str, int]:
    path, _, line = where.rpartition(":")
    return path, int(line)
