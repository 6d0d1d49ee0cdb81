"""The accuracy report as one HTML page, in the look of the smoke test's."""

from __future__ import annotations

from collections.abc import Iterator

from healthcheck import plots
from healthcheck.accuracy.results import Report
from healthcheck.accuracy.score import sees_below
from healthcheck.plots import Column, columns
from healthcheck.smoke.page import document, sheet
from healthcheck.words import escaped


def page(report: Report) -> str:
    """The whole document."""
    return document(
        "Accuracy",
        report,
        ("Scores", _scores(report)),
        ("Needles", _needles(report)),
        ("What it does not see", _limits(report)),
    )


def _scores(report: Report) -> Iterator[str]:
    if not report.scores:
        return
    shown = [
        Column(s.name, s.rate, *s.interval, mark=s.floor, marked="floor") for s in report.scores
    ]
    plot = columns("right answers", "kind of task", shown, _share, 1.0)
    caption = escaped(f"{plots.WHISKERS}; dashed: the floor")
    yield f"<figure>{plot}<figcaption>{caption}</figcaption></figure>"
    yield sheet(
        ("tasks", "right", "answered", "rate", "low", "high", "floor", "seen from below"),
        [
            (
                *(s.name, s.right, s.answered),
                *(_share(x) for x in (s.rate, *s.interval, s.floor)),
                _share(sees_below(s.answered, s.floor)),
            )
            for s in report.scores
        ],
    )


def _needles(report: Report) -> Iterator[str]:
    if not report.needles:
        return
    shown = [Column(f"{n.prompt_tokens / 1000:.3g}k", n.found / n.asked) for n in report.needles]
    plot = columns("needles found", "prompt tokens", shown, _share, 1.0)
    yield f"<figure>{plot}</figure>"
    yield sheet(
        ("prompt tokens", "asked", "found", "at the first try", "took"),
        [
            (n.prompt_tokens, n.asked, n.found, n.found_at_first, f"{n.seconds:.1f} s")
            for n in report.needles
        ],
    )


def _limits(report: Report) -> Iterator[str]:
    items = "".join(f"<li>{escaped(line)}</li>" for line in report.limits())
    yield f"<ul>{items}</ul>"


def _share(rate: float) -> str:
    return f"{rate:.1%}" if rate < 1 else "100%"
