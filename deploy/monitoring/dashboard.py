"""The Grafana dashboard as code: `python3 -m deploy.monitoring.dashboard` writes dashboard.json.

One row a question: is it serving, does the draft pay, is there room, how long do people wait, are
the nodes' cards well.
Panels ask recorded series where rules.yaml has them, so that dashboard and alerts cannot disagree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
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
ENGINE = "engine {{engine}}"


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
    return (
        _row("Is it serving", *_serving(loaded)),
        _row("Does the draft pay", *_draft(loaded)),
        _row("Is there room", *_room()),
        _row("How long do people wait", *_waits()),
        _row("Are the cards well (where AMD's device-metrics-exporter is scraped)", *_cards()),
    )


def _serving(loaded: Recipe) -> Iterator[Panel]:
    health = next(iter(loaded.profiles.values())).health
    yield _panel(
        "State",
        "The state of the health service; READY and DEGRADED take traffic.",
        Query(f"dspark_health_state{{{CHOSEN}}} == 1", "{{state}}"),
        kind="state-timeline",
    )
    yield _panel(
        "Reasons",
        "Reason codes of the present state; the runbook and /report explain them.",
        Query(f"dspark_health_reason{{{CHOSEN}}} == 1", "{{code}}"),
        kind="state-timeline",
    )
    yield _panel(
        "Probes",
        "Time of the last answer of each question the service asks.",
        _series("probe_duration_seconds", "{{probe}}"),
        unit="s",
    )
    yield _panel(
        "Evidence",
        "Time since proof of work, and for how long work has waited without a step.",
        _series("dspark_health_evidence_age_seconds", "evidence"),
        _series("dspark_health_stuck_seconds", "stuck"),
        unit="s",
        limits=(health.readiness_budget_s, health.stall_budget_s),
    )


def _draft(loaded: Recipe) -> Iterator[Panel]:
    health, reference = next(iter(loaded.profiles.values())).health, loaded.reference
    first = reference.acceptance_position_0
    yield _panel(
        "Acceptance by position",
        f"Accepted per draft. Lines: floor, ceiling, and position 0 of {reference.source} "
        f"({first:.0%}).",
        _series("dspark:acceptance:ratio15m", "engine {{engine}}, position {{position}}"),
        unit="percentunit",
        limits=(health.acceptance_floor, first, health.acceptance_ceiling),
        maximum=1,
    )
    yield _panel(
        "First position with its bounds",
        "99 % Wilson bounds: alerts compare these with floor and ceiling.",
        _series("dspark:acceptance_first:upper15m", "upper"),
        _series("dspark:acceptance_first:lower15m", "lower"),
        unit="percentunit",
        limits=(health.acceptance_floor, health.acceptance_ceiling),
        maximum=1,
    )
    yield _panel(
        "Tokens a step",
        f"1 + accepted per draft. Line: {reference.source}.",
        _series("dspark:acceptance:length15m", ENGINE),
        limits=(reference.acceptance_length,),
    )


def _room() -> Iterator[Panel]:
    yield _panel(
        "Requests",
        "Running and waiting.",
        _series("vllm:num_requests_running", "running {{engine}}"),
        _series("vllm:num_requests_waiting", "waiting {{engine}}"),
    )
    yield _panel(
        "KV cache",
        "The part of the cache in use.",
        _series("vllm:kv_cache_usage_perc", ENGINE),
        unit="percentunit",
        maximum=1,
    )
    yield _panel(
        "Preemptions",
        "Requests thrown out of the cache, to be computed again.",
        Query(_rate("vllm:num_preemptions_total"), ENGINE),
        unit="reqps",
    )
    hits, asked = _rate("vllm:prefix_cache_hits_total"), _rate("vllm:prefix_cache_queries_total")
    yield _panel(
        "Prefix cache",
        "Prompt tokens found in the cache, of those looked for.",
        Query(f"{hits} / {asked}", ENGINE),
        unit="percentunit",
        maximum=1,
    )


def _waits() -> Iterator[Panel]:
    yield _panel(
        "Tokens",
        "Prompt and generated tokens a second.",
        Query(_rate("vllm:prompt_tokens_total"), "prompt {{engine}}"),
        Query(_rate("vllm:generation_tokens_total"), "generated {{engine}}"),
    )
    yield _quantiles("Time to first token", "vllm:time_to_first_token_seconds")
    yield _quantiles("Between tokens", "vllm:inter_token_latency_seconds")
    yield _quantiles("Whole request", "vllm:e2e_request_latency_seconds")


def _cards() -> Iterator[Panel]:
    yield _panel(
        "Healthy cards",
        "1: AMD's exporter finds nothing wrong; 0: unhealthy.",
        Query(f"dspark:gpu:health{{{NODE}}}", CARD),
        kind="state-timeline",
    )
    yield _panel(
        "Errors not corrected",
        "Errors that ECC could not correct; AFID: the number of the last RAS event.",
        Query(f"dspark:gpu:uncorrected{{{NODE}}}", f"{CARD}, errors"),
        Query(f"dspark:gpu:afid{{{NODE}}}", f"{CARD}, AFID"),
    )
    power = f'{{__name__=~"(amd_)?gpu_violation_ppt_residency_percentage", {NODE}}}'
    yield _panel(
        "Slowed down",
        "The part of the time in which heat, or the limit of power, held a card back.",
        Query(f"dspark:gpu:hot_percent{{{NODE}}}", f"{CARD}, heat"),
        Query(power, f"{CARD}, power"),
        unit="percent",
        maximum=100,
    )
    sent = f'rate({{__name__=~"(amd_)?gpu_xgmi_link_tx", {NODE}}}[$__rate_interval])'
    yield _panel(
        "XGMI",
        "Bytes a second that a card sends to the others.",
        Query(f"1000 * sum by (hostname, gpu_id) ({sent})", CARD),
        unit="Bps",
    )


def _row(title: str, *panels: Panel) -> Row:
    return Row(title, panels)


def _panel(title: str, about: str, *queries: Query, **look: Any) -> Panel:
    return Panel(title, about, queries, **look)


def _series(name: str, legend: str) -> Query:
    return Query(f"{name}{{{CHOSEN}}}", legend)


def _rate(counter: str) -> str:
    return f"rate({counter}{{{CHOSEN}}}[$__rate_interval])"


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
            panels.append(_drawn(panel, len(panels) + 1, place))
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


def _drawn(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
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
