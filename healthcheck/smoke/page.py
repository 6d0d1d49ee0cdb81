"""The report as one HTML page with its plots: no other file, no script, light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from healthcheck import plots
from healthcheck.judge import Outcome
from healthcheck.judge.acceptance import Acceptance
from healthcheck.plots import Column, columns
from healthcheck.smoke.results import Report
from healthcheck.smoke.terminal import MARKS, VERDICTS
from healthcheck.words import escaped as _e

_STYLE = """
:root{color-scheme:light dark;--good:#1a7f37;--bad:#b3261e;--unknown:#8a5a00;--none:#6e7781;
--bar:#4a78c2;--ink:#1f2328;--mark:#d9480f;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--good:#2ea043;--bad:#e5534b;--unknown:#bf8700;
--none:#8b949e;--bar:#5b8bd8;--ink:#e6edf3;--mark:#f0883e;--paper:#0d1117}}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:70rem;padding:1rem;color:var(--ink);
background:var(--paper);overflow-wrap:anywhere}
h1{font-size:1.4rem;margin:.5rem 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.badge{display:inline-block;white-space:nowrap;padding:.05rem .55rem;border-radius:.4rem;color:#fff;
background:#57606a;font-size:.9rem}
.good{background:var(--good)}.bad{background:var(--bad)}.unknown{background:var(--unknown)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:0}dd{margin:0}
dt{color:var(--none)}
.rows{list-style:none;margin:0;padding:0}
.rows li{display:grid;grid-template-columns:6.5rem 10.5rem 1fr 4rem;gap:.2rem .8rem;padding:.4rem 0;
border-bottom:1px solid #8884;align-items:start}
.rows .badge{justify-self:start}.rows b{font-weight:600}.took{text-align:right;color:var(--none)}
.fix{display:block;color:var(--none)}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(20rem,100%),1fr));gap:1rem}
.scroll{overflow-x:auto;margin-top:.7rem}table{border-collapse:collapse}
th,td{text-align:right;padding:.25rem .7rem .25rem 0;border-bottom:1px solid #8884;
overflow-wrap:normal;white-space:nowrap}th:first-child,td:first-child{text-align:left}
@media(max-width:45rem){.rows li{grid-template-columns:6.5rem 1fr 4rem}
.rows p{grid-column:1/-1;grid-row:2}}
.rows p{margin:0}
"""


def page(report: Report) -> str:
    """The whole document."""
    return document(
        "Smoke test",
        report,
        ("Speculation", _speculation(report)),
        ("Speed", _speed(report)),
        ("Long prompts", _long_prompts(report)),
    )


def document(title: str, report: Report, *sections: tuple[str, Iterator[str]]) -> str:
    """A document of what every report has, then of sections by their titles; one without parts is
    left out."""
    verdict = VERDICTS[report.exit_code]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_e(report.verdict)} - {_e(title.lower())} of {_e(report.target)}</title>"
        f"<style>{_STYLE}{plots.STYLE}</style></head><body>"
        f'<h1>{_e(title)} <span class="badge {report.verdict}">{_e(verdict)}</span></h1>'
        + _facts(report)
        + "".join(_cause(report))
        + _section("Checks", _rows(report))
        + "".join(_section(name, parts) for name, parts in sections)
        + "</body></html>\n"
    )


def _section(title: str, parts: Iterator[str]) -> str:
    body = "".join(parts)
    return f"<h2>{_e(title)}</h2>{body}" if body else ""


def _facts(report: Report) -> str:
    expected = "with a draft" if report.speculates else "without a draft"
    facts = [
        ("server", report.target),
        ("made", report.made_at.replace("T", " ").replace("+00:00", " UTC")),
        ("profile", f"{report.profile} ({report.evidence})"),
        ("model", f"{report.model}, {expected}"),
        ("vLLM", report.vllm_version or "not told"),
        ("context", f"{report.max_model_len} tokens" if report.max_model_len else "not told"),
        ("took", ", ".join(f"{k} {v:.1f} s" for k, v in report.timings_s.items())),
    ]
    return "<dl>" + "".join(f"<dt>{_e(k)}</dt><dd>{_e(v)}</dd>" for k, v in facts) + "</dl>"


def _cause(report: Report) -> Iterator[str]:
    if report.cause is None:
        return
    yield f"<h2>Cause, from the server's log: {_e(report.cause.get('id'))}</h2><ul>"
    told = report.cause.get("evidence")
    for item in told if isinstance(told, (list, tuple)) else ():
        yield f"<li>line {_e(item['line_number'])}: <code>{_e(item['text'])}</code></li>"
    yield f"</ul><p>{_e(report.cause.get('remedy') or '')}</p>"


def _rows(report: Report) -> Iterator[str]:
    yield '<ul class="rows">'
    for check in report.checks:
        fix = ""
        if check.outcome is not Outcome.GOOD:
            code = f"{check.code}: " if check.code else ""
            fix = f'<span class="fix">{_e(code + check.remedy)}</span>'
        took = f"{check.elapsed_s:.1f} s" if check.elapsed_s >= 0.05 else ""
        mark = {"?": "unknown"}.get(MARKS[check.outcome], MARKS[check.outcome])
        yield (
            f'<li><span class="badge {check.outcome.value}">{mark}</span><b>{_e(check.name)}</b>'
            f'<p>{_e(check.evidence)}{fix}</p><span class="took">{took}</span></li>'
        )
    for item in report.left_out:
        yield (
            f'<li><span class="badge">not judged</span><b>{_e(item.name)}</b>'
            f'<p>{_e(item.why)}</p><span class="took"></span></li>'
        )
    yield "</ul>"


def _speculation(report: Report) -> Iterator[str]:
    seen = report.acceptance
    if seen is not None:
        yield f'<div class="plots">{_acceptance_plot(seen, report)}</div>'
        yield f"<p>{_against(seen, report)}</p>"
    if report.speed_up is not None:
        gain = report.speed_up
        yield (
            f"<p>A lone request: {gain.ratio:.2f} times the tokens per second of "
            f"{_e(gain.against)}, which has no draft (95 % bootstrap interval {gain.low:.2f} to "
            f"{gain.high:.2f}, {gain.requests} requests).</p>"
        )


def _acceptance_plot(seen: Acceptance, report: Report) -> str:
    rates = seen.per_position
    marks = [_number(report, f"acceptance_position_{i}") for i in range(len(rates))]
    plot = plots.by_position("accepted per draft", rates, seen.intervals, marks)
    caption = f"{seen.drafts} drafts; {plots.WHISKERS}"
    if any(mark is not None for mark in marks):
        caption += f"; dashed: {_e(report.reference.get('source', 'reference'))}"
    return f"<figure>{plot}<figcaption>{caption}</figcaption></figure>"


def _against(seen: Acceptance, report: Report) -> str:
    words = f"{seen.rate:.1%} of all draft tokens, {seen.length:.2f} tokens a step"
    rate, length = (_number(report, f"acceptance_{name}") for name in ("rate", "length"))
    if rate is None or length is None:
        return words
    source = _e(report.reference.get("source", "the reference"))
    return f"{words}; {source}: {rate:.1%} and {length:.2f}, of its own model and workload."


def _number(report: Report, name: str) -> float | None:
    value = report.reference.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _speed(report: Report) -> Iterator[str]:
    levels = report.levels
    if not levels:
        return
    first = [
        Column(str(v.concurrency), v.first_s.p50, v.first_s.p50, v.first_s.p99) for v in levels
    ]
    gaps = [Column(str(v.concurrency), v.gap_s.p50, v.gap_s.p50, v.gap_s.p99) for v in levels]
    rates = [Column(str(v.concurrency), v.tokens_per_s) for v in levels]
    at, whiskers = "requests at once", "columns: median; whiskers: up to the 99th percentile"
    shown = (
        (columns("time to the first piece", at, first, _time), whiskers),
        (
            columns("time between pieces", at, gaps, _time),
            f"{whiskers}; a piece is a step's tokens",
        ),
        (
            columns("tokens per second, together", at, rates, _rate),
            "of all requests",
        ),
    )
    yield '<div class="plots">'
    for plot, caption in shown:
        yield f"<figure>{plot}<figcaption>{_e(caption)}</figcaption></figure>"
    yield "</div>"
    heads = ("at once", "answered", "tokens/s", "first p50", "p90", "p99", "gap p50", "p90", "p99")
    yield sheet(
        (*heads, "tokens a piece"),
        [
            (
                v.concurrency,
                f"{v.requests - v.failed}/{v.requests}",
                f"{v.tokens_per_s:.1f}",
                *(_time(t) for s in (v.first_s, v.gap_s) for t in (s.p50, s.p90, s.p99)),
                f"{v.tokens_per_piece:.2f}",
            )
            for v in levels
        ],
    )


def _long_prompts(report: Report) -> Iterator[str]:
    words = {None: "not judged", True: "found", False: "missed"}
    rows = [
        (each.prompt_tokens, f"{each.seconds:.1f} s", words[each.found])
        for each in report.long_prompts
    ]
    if rows:
        yield sheet(("prompt tokens", "answered in", "its words"), rows)


def sheet(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of the page."""
    head = "".join(f"<th>{_e(cell)}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{_e(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _rate(per_second: float) -> str:
    return f"{per_second:.0f}" if per_second >= 100 else f"{per_second:.3g}"


def _time(seconds: float) -> str:
    """Seconds in the unit that gives few digits; no more of them than were measured."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
