"""What AMD's own tool finds wrong with the cards of this node, where it is installed.

`amdgpuhealth` comes with AMD's device-metrics-exporter and asks the exporter of the node. By its
documentation (docs/integrations/node-health-monitoring.md of ROCm/device-metrics-exporter, commit
afd0fe81, v1.5.2, 2026-08-21) exit code 0 is a value within the threshold, 1 one above it and 2 a
query that failed. By its source a flag that it does not know is exit code 1 too, so the sentence
counts with the code. Unverified on a card.
"""

from __future__ import annotations

import re

from deploy.preflight.facts import Machine
from deploy.preflight.findings import Finding

CROSSED = re.compile(r"(metric \w+|error count \d+) crossed threshold")
SHOWN = 120


def amdgpuhealth(machine: Machine) -> list[Finding]:
    """No finding where it is not installed, and never one that stops a start: it does not say which
    card, and counts since the driver was loaded."""
    if not machine.amdgpuhealth:
        return []
    check = "gpu.amdgpuhealth"
    said = machine.amdgpuhealth
    wrong = [t.text for t in said.values() if t.code == 1 and CROSSED.match(t.text)]
    if wrong:
        return [
            Finding(
                check,
                "warn",
                "; ".join(_short(text) for text in wrong),
                "a card of this node has had errors that it could not correct, since its driver was"
                " loaded: what it computes may be wrong",
                "find it by amd-smi and dmesg, reset it or take another node;"
                " see DsparkNodeGpuUnhealthy in deploy/monitoring/runbook.md",
            )
        ]
    untold = [f"{query}: {_short(told.text)}" for query, told in said.items() if told.code != 0]
    if untold:
        return [Finding(check, "unknown", untold[0])]
    return [Finding(check, "ok", f"{len(said)} queries within their thresholds")]


def _short(text: str) -> str:
    return " ".join(text.split())[:SHOWN]
