"""The vital signs as the report and the metrics show them; ages are in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from healthcheck.signs.model import Signs


def as_json(signs: Signs | None, now: float) -> dict[str, Any] | None:
    """The signs of the last turn, None where they are not seen."""
    if signs is None:
        return None
    return {
        "age_s": now - signs.at,
        "processes": [
            {
                **{k: v for k, v in asdict(p).items() if k not in ("since", "still_since")},
                "in_state_s": now - p.since,
                "asleep_s": None if p.still_since is None else now - p.still_since,
            }
            for p in signs.processes
        ],
        "compilers": [
            {"name": c.name, "for_s": now - c.since, "cpu_s": c.cpu_s} for c in signs.compilers
        ],
        "cards": None if signs.cards is None else [_card(asdict(c)) for c in signs.cards],
        "memory_bytes": signs.memory_bytes,
        "memory_limit_bytes": signs.memory_limit_bytes,
        "oom_kills": signs.oom_kills,
        "ended": [
            {"name": e.name, "pid": e.pid, "how": e.how, "age_s": now - e.at} for e in signs.ended
        ],
    }


def _card(card: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in card.items() if k != "busy_at"}


def metrics(signs: Signs | None, now: float) -> Iterator[Metric]:
    """The same as Prometheus families; none where they are not seen."""
    if signs is None:
        return
    yield GaugeMetricFamily("dspark_signs_age_seconds", "Age of the signs", value=now - signs.at)
    cpu = CounterMetricFamily("dspark_process_cpu_seconds", "CPU time", labels=["process"])
    rss = GaugeMetricFamily("dspark_process_resident_bytes", "Memory", labels=["process"])
    # Workers have one name until they know their ranks, and a series is there once.
    for name in dict.fromkeys(p.name for p in signs.processes):
        of = [p for p in signs.processes if p.name == name]
        cpu.add_metric([name], sum(p.cpu_s for p in of))
        rss.add_metric([name], sum(p.rss_bytes for p in of))
    yield cpu
    yield rss
    errors = GaugeMetricFamily(
        "dspark_gpu_uncorrected_errors", "Since the server's start", labels=["card"]
    )
    for card in signs.cards or ():
        if card.uncorrected is not None:
            errors.add_metric([card.name], card.uncorrected)
    yield errors
