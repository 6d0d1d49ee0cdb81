"""What is kept of a machine, of preflight's findings and of the tests' reports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.preflight import cli as preflight
from deploy.preflight import facts
from deploy.preflight.facts.reading import read_word
from deploy.preflight.findings import Unknown
from deploy.preflight.host import Host
from deploy.recipe import Profile

GOOD, BAD, UNKNOWN, NOT_APPLICABLE = "good", "bad", "unknown", "not applicable"
OUTCOMES = (GOOD, BAD, UNKNOWN)  # by exit code
RELEASE = re.compile(r"[\w.+~-]{1,64}")  # of a kernel
# What preflight finds of a machine whose server runs already says nothing against it.
WHILE_SERVING = ("gpu.vram", "net.serve_port", "net.health_port")


class EvidenceError(RuntimeError):
    """Evidence cannot be gathered; the message is one line: what, seen, fix."""


def verdict(outcomes: Sequence[str]) -> str:
    """The worst of the outcomes that apply."""
    for outcome in (BAD, UNKNOWN):
        if outcome in outcomes:
            return outcome
    return GOOD if GOOD in outcomes else UNKNOWN


def machine_part(host: Host) -> dict[str, Any]:
    """Cards, driver and ROCm; None for what could not be read."""
    machine = facts.gather(host)
    gpus = () if isinstance(machine.gpus, Unknown) else machine.gpus.found
    cards = [
        {
            "card": gpu.card,
            "arch": _known(gpu.arch),
            "compute_units": _known(gpu.compute_units),
            "memory_bytes": _known(gpu.memory),
            "partition": _known(gpu.partition),
        }
        for gpu in gpus
    ]
    return {
        "gpus": cards,
        "driver": _known(machine.driver),
        "rocm": _known(machine.rocm),
        "kernel": _known(read_word(host, "/proc/sys/kernel/osrelease", RELEASE)),
    }


def _known(fact: object) -> object:
    return None if isinstance(fact, Unknown) else fact


def preflight_part(report: preflight.Report) -> list[dict[str, Any]]:
    """Every finding: check, level, what was seen. What the running server causes is marked."""
    return [
        {
            "check": finding.check,
            "level": NOT_APPLICABLE if finding.check in WHILE_SERVING else finding.level,
            "seen": finding.seen,
        }
        for finding in report.findings
    ]


def smoke_part(report: Mapping[str, Any]) -> dict[str, Any]:
    """The smoke test's verdict, rows and figures. Raises EvidenceError for what is no report."""
    kept = ("schema", "vllm_version", "max_model_len", "speculates", "acceptance", "reference")
    figures = ("levels", "long_prompts", "timings_s", "left_out")
    return _part("smoke", report, (*kept, *figures))


def accuracy_part(profile: Profile, report: Mapping[str, Any]) -> dict[str, Any]:
    """The accuracy test's verdict, rows and scores, with what they do not see; of real weights
    nothing is good without either scores or needles. Raises EvidenceError."""
    kept = ("schema", "seed", "scores", "needles", "limits", "timings_s", "left_out")
    part = _part("accuracy", report, kept)
    if not isinstance(part["scores"], list) or not isinstance(part["needles"], list):
        raise no_report("accuracy", "no scores or needles")
    if not profile.is_rehearsal and not (part["scores"] and part["needles"]):
        part["outcome"] = verdict([part["outcome"], UNKNOWN])
    return part


def _part(name: str, report: Mapping[str, Any], kept: Sequence[str]) -> dict[str, Any]:
    """What the tests' reports have in common, and the fields that are kept of one."""
    outcome, rows = report.get("verdict"), report.get("checks")
    if outcome not in OUTCOMES or not isinstance(rows, list):
        raise no_report(name, f"verdict {outcome!r}")
    of_rows = ("name", "outcome", "code", "evidence", "elapsed_s")
    return {
        "outcome": outcome,
        **{field: report.get(field) for field in kept},
        "checks": [{field: r.get(field) for field in of_rows} for r in rows if isinstance(r, dict)],
    }


def no_report(name: str, has: str) -> EvidenceError:
    """The refusal of a report that is none."""
    return EvidenceError(f"{name}: its report has {has}; run python3 -m healthcheck {name} alone")
