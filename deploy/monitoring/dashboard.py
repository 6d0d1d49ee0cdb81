"""The Grafana dashboard as code: `python3 -m deploy.monitoring.dashboard` writes dashboard.json.

One row a question: is it serving, does the draft pay, is there room, how long do people wait, are
the nodes' cards well.
Panels ask recorded series where rules.yaml has them, so that dashboard and alerts cannot disagree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy import recipe
from deploy.recipe import Recipe

FILE = Path(__file__).with_name("dashboard.json")
SOURCE = {"type": "prometheus", "uid": "prometheus"}
COLUMNS = 24  # of Grafana's grid
HEIGHT = 8
CHOSEN = 'instance=~"$instance"'
NODE = 'hostname=~"$node"'
CARD = "{{hostname}} {{gpu_id}}"


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the legend of its series."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel. `kind` and `unit` are Grafana's names; `limits` are lines drawn across it."""

    title: str
    about: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    limits: tuple[float, ...] = ()
    maximum: float | None = None


@dataclass(frozen=True)
class Row:
    """Panels under one heading, side by side."""

    title: str
    panels: tuple[Panel, ...]


def rows(loaded: Recipe) -> tuple[Row, ...]:
    """What is shown, with the recipe's limits and reference figures drawn in."""
    health = next(iter(loaded.profiles.values())).health
    first_reference = loaded.reference.acceptance_position_0
    return (
        Row(
            "Is it serving",
            (
                Panel(
                    "State",
                    "The state of the health service; READY and DEGRADED take traffic.",
                    (Query(f"dspark_health_state{{{CHOSEN}}} == 1", "{{state}}"),),
                    kind="state-timeline",
                ),
                Panel(
                    "Reasons",
                    "Reason codes of the present state; the runbook and /report explain them.",
                    (Query(f"dspark_health_reason{{{CHOSEN}}} == 1", "{{code}}"),),
                    kind="state-timeline",
                ),
                Panel(
                    "Probes",
                    "Time of the last answer of each question the service asks.",
                    (Query(f"probe_duration_seconds{{{CHOSEN}}}", "{{probe}}"),),
                    unit="s",
                ),
                Panel(
                    "Evidence",
                    "Time since proof of work, and for how long work has waited without a step.",
                    (
                        Query(f"dspark_health_evidence_age_seconds{{{CHOSEN}}}", "evidence"),
                        Query(f"dspark_health_stuck_seconds{{{CHOSEN}}}", "stuck"),
                    ),
                    unit="s",
                    limits=(health.readiness_budget_s, health.stall_budget_s),
                ),
            ),
        ),
        Row(
            "Does the draft pay",
            (
                Panel(
                    "Acceptance by position",
                    f"Accepted per draft. Lines: floor, ceiling, and position 0 of "
                    f"{loaded.reference.source} ({first_reference:.0%}).",
                    (
                        Query(
                            f"dspark:acceptance:ratio15m{{{CHOSEN}}}",
                            "engine {{engine}}, position {{position}}",
                        ),
                    ),
                    unit="percentunit",
                    limits=(health.acceptance_floor, first_reference, health.acceptance_ceiling),
                    maximum=1,
                ),
                Panel(
                    "First position with its bounds",
                    "99 % Wilson bounds: alerts compare these with floor and ceiling.",
                    (
                        Query(f"dspark:acceptance_first:upper15m{{{CHOSEN}}}", "upper"),
                        Query(f"dspark:acceptance_first:lower15m{{{CHOSEN}}}", "lower"),
                    ),
                    unit="percentunit",
                    limits=(health.acceptance_floor, health.acceptance_ceiling),
                    maximum=1,
                ),
                Panel(
                    "Tokens a step",
                    f"1 + accepted per draft. Line: {loaded.reference.source}.",
                    (Query(f"dspark:acceptance:length15m{{{CHOSEN}}}", "engine {{engine}}"),),
                    limits=(loaded.reference.acceptance_length,),
                ),
            ),
        ),
        Row(
            "Is there room",
            (
                Panel(
                    "Requests",
                    "Running and waiting.",
                    (
                        Query(f"vllm:num_requests_running{{{CHOSEN}}}", "running {{engine}}"),
                        Query(f"vllm:num_requests_waiting{{{CHOSEN}}}", "waiting {{engine}}"),
                    ),
                ),
                Panel(
                    "KV cache",
                    "The part of the cache in use.",
                    (Query(f"vllm:kv_cache_usage_perc{{{CHOSEN}}}", "engine {{engine}}"),),
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    "Preemptions",
                    "Requests thrown out of the cache, to be computed again.",
                    (
                        Query(
                            f"rate(vllm:num_preemptions_total{{{CHOSEN}}}[$__rate_interval])",
                            "engine {{engine}}",
                        ),
                    ),
                    unit="reqps",
                ),
                Panel(
                    "Prefix cache",
                    "Prompt tokens found in the cache, of those looked for.",
                    (
                        Query(
                            f"rate(vllm:prefix_cache_hits_total{{{CHOSEN}}}[$__rate_interval])"
                            f" / rate(vllm:prefix_cache_queries_total{{{CHOSEN}}}"
                            "[$__rate_interval])",
                            "engine {{engine}}",
                        ),
                    ),
                    unit="percentunit",
                    maximum=1,
                ),
            ),
        ),
        Row(
            "How long do people wait",
            (
                Panel(
                    "Tokens",
                    "Prompt and generated tokens a second.",
                    (
                        _rate("vllm:prompt_tokens_total", "prompt {{engine}}"),
                        _rate("vllm:generation_tokens_total", "generated {{engine}}"),
                    ),
                ),
                _quantiles("Time to first token", "vllm:time_to_first_token_seconds"),
                _quantiles("Between tokens", "vllm:inter_token_latency_seconds"),
                _quantiles("Whole request", "vllm:e2e_request_latency_seconds"),
            ),
        ),
        Row(
            "Are the cards well (where AMD's device-metrics-exporter is scraped)",
            (
                Panel(
                    "Healthy cards",
                    "1: AMD's exporter finds nothing wrong; 0: unhealthy.",
                    (Query(f"dspark:gpu:health{{{NODE}}}", CARD),),
                    kind="state-timeline",
                ),
                Panel(
                    "Errors not corrected",
                    "Errors that ECC could not correct; AFID: the number of the last RAS event.",
                    (
                        Query(f"dspark:gpu:uncorrected{{{NODE}}}", f"{CARD}, errors"),
                        Query(f"dspark:gpu:afid{{{NODE}}}", f"{CARD}, AFID"),
                    ),
                ),
                Panel(
                    "Slowed down",
                    "The part of the time in which heat, or the limit of power, held a card back.",
                    (
                        Query(f"dspark:gpu:hot_percent{{{NODE}}}", f"{CARD}, heat"),
                        Query(
                            '{__name__=~"(amd_)?gpu_violation_ppt_residency_percentage", '
                            f"{NODE}}}",
                            f"{CARD}, power",
                        ),
                    ),
                    unit="percent",
                    maximum=100,
                ),
                Panel(
                    "XGMI",
                    "Bytes a second that a card sends to the others.",
                    (
                        Query(
                            "1000 * sum by (hostname, gpu_id) (rate("
                            f'{{__name__=~"(amd_)?gpu_xgmi_link_tx", {NODE}}}'
                            "[$__rate_interval]))",
                            CARD,
                        ),
                    ),
                    unit="Bps",
                ),
            ),
        ),
    )


def _rate(counter: str, legend: str) -> Query:
    return Query(f"rate({counter}{{{CHOSEN}}}[$__rate_interval])", legend)


def _quantiles(title: str, histogram: str) -> Panel:
    queries = tuple(
        Query(
            f"histogram_quantile({q}, sum by (le) "
            f"(rate({histogram}_bucket{{{CHOSEN}}}[$__rate_interval])))",
            f"{q:.0%}",
        )
        for q in (0.5, 0.95, 0.99)
    )
    return Panel(title, "Half, 95 % and 99 % of requests are below.", queries, unit="s")


def dashboard(loaded: Recipe) -> dict[str, Any]:
    """The whole dashboard, as Grafana reads it from a file."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows(loaded):
        panels.append(_heading(row, len(panels) + 1, top))
        width = COLUMNS // len(row.panels)
        for column, panel in enumerate(row.panels):
            place = {"x": column * width, "y": top + 1, "w": width, "h": HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, place))
        top += HEIGHT + 1
    return {
        "uid": "dspark",
        "title": "DSpark serving",
        "tags": ["dspark", "vllm"],
        "schemaVersion": 39,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                _variable("instance", "label_values(up, instance)"),
                _variable("node", "label_values(dspark:gpu:health, hostname)"),
            ]
        },
        "panels": panels,
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "label": name,
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _heading(row: Row, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": row.title, "gridPos": place, "panels": []}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.limits:
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        steps += [{"color": "orange", "value": limit} for limit in sorted(panel.limits)]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        defaults["custom"] = {"thresholdsStyle": {"mode": "dashed"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def render(loaded: Recipe) -> str:
    """The dashboard's file, byte for byte."""
    return json.dumps(dashboard(loaded), indent=1) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the file where Grafana is given it; --check only compares."""
    if list(arguments) not in ([], ["--check"]):
        print(f"dashboard: got {' '.join(arguments)}; give nothing or --check", file=sys.stderr)
        return 2
    text = render(recipe.load())
    if arguments:
        same = FILE.exists() and FILE.read_text(encoding="utf-8") == text
        if not same:
            fix = "python3 -m deploy.monitoring.dashboard"
            print(f"dashboard: {FILE.name} is not what its code says; run {fix}", file=sys.stderr)
        return 0 if same else 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
