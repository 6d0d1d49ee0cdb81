"""The parts of the accuracy test in their order."""

from __future__ import annotations

from functools import partial

from healthcheck.accuracy.ask import KINDS, call_rows, kind_rows
from healthcheck.accuracy.gsm8k import gsm8k_rows
from healthcheck.accuracy.needles import needle_rows
from healthcheck.accuracy.results import Report
from healthcheck.smoke import start, text
from healthcheck.smoke.run import LISTENING, Part, begun, through
from healthcheck.smoke.target import Target


def run(target: Target, seed: int) -> Report:
    """Every part in order; a server that never comes up ends the run early, with its row."""
    report = begun(Report, target, seed=seed)
    parts = (
        Part(LISTENING, start.listening),
        Part("version", start.version),
        Part("first answer", text.warm_up),
        *(Part(kind.name, partial(kind_rows, kind, report)) for kind in KINDS),
        Part("needles", partial(needle_rows, report)),
        Part("tool calls", partial(call_rows, report)),
        Part("GSM8K", partial(gsm8k_rows, report)),
    )
    through(parts, target, report)
    return report
