"""The report as JUnit XML, as CI systems read it: a testcase a check."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from healthcheck.judge import Outcome
from healthcheck.smoke.results import Report
from healthcheck.words import clean

# A failure is bad; what could not be told is JUnit's error; what was not judged is skipped.
_TAGS = {Outcome.BAD: "failure", Outcome.UNKNOWN: "error"}


def junit(report: Report) -> str:
    """The document as text."""
    outcomes = [check.outcome for check in report.checks]
    counts = {
        "tests": str(len(report.checks) + len(report.left_out)),
        "failures": str(outcomes.count(Outcome.BAD)),
        "errors": str(outcomes.count(Outcome.UNKNOWN)),
        "skipped": str(len(report.left_out)),
        "time": f"{report.timings_s.get('total', 0.0):.3f}",
    }
    root = ET.Element("testsuites", {"name": "smoke", **counts})
    named = {"name": f"smoke {clean(report.profile)}", "hostname": clean(report.target)}
    suite = ET.SubElement(root, "testsuite", {**named, **counts})
    if report.made_at:
        suite.set("timestamp", report.made_at)
    group = f"smoke.{clean(report.profile)}"
    for check in report.checks:
        case = ET.SubElement(suite, "testcase", name=clean(check.name), classname=group)
        case.set("time", f"{check.elapsed_s:.3f}")
        if check.outcome is Outcome.GOOD:
            ET.SubElement(case, "system-out").text = clean(check.evidence)
            continue
        told = ET.SubElement(case, _TAGS[check.outcome], type=check.code or "smoke")
        told.set("message", clean(check.evidence))
        told.text = clean(check.remedy)
    for item in report.left_out:
        case = ET.SubElement(suite, "testcase", name=clean(item.name), classname=group, time="0")
        ET.SubElement(case, "skipped", message=clean(item.why))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'
