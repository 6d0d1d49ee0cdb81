"""The status page for people: one document, no script, no other file, readable on a phone.

A pure function of the report's data, so that it can show nothing that the report does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from healthcheck import plots
from healthcheck.words import escaped as _text

REFRESH_S = 5
# What a browser may load for this page: nothing but its own style.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--dim:#6b7280;--good:#1a7f37;--warn:#9a6700;
--bad:#b3261e;--bar:#2f6fde;--soft:#8882;--ink:CanvasText;--none:var(--dim);--mark:#d9480f}
@media(prefers-color-scheme:dark){:root{--dim:#9ca3af;--bar:#6ea0ff;--mark:#f0883e}}
*{box-sizing:border-box}
body{font:16px/1.45 system-ui,sans-serif;margin:0 auto;max-width:64rem;padding:1rem}
h1{font-size:1.35rem;margin:.2rem 0 .6rem}h2{font-size:1.05rem;margin:1.6rem 0 .5rem}
.state{padding:.15rem .6rem;border-radius:.4rem;color:#fff;background:var(--bad)}
.pass{background:var(--good)}.warn{background:var(--warn)}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr));gap:.6rem;margin:0}
.facts div{background:var(--soft);border-radius:.4rem;padding:.4rem .6rem}
dt{color:var(--dim);font-size:.8rem}dd{margin:0;overflow-wrap:anywhere}
.reason{border-left:.3rem solid var(--warn);padding:.1rem .7rem;margin:.6rem 0}
.reason.bad{border-color:var(--bad)}.reason.state-kind{border-color:var(--bar)}
.reason p{margin:.15rem 0;overflow-wrap:anywhere}
code{font-size:.9em}small,.dim{color:var(--dim)}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.3rem .5rem .3rem 0;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:break-word}
td:last-child{overflow-wrap:anywhere}th{color:var(--dim);font-weight:400;font-size:.8rem}
.good{color:var(--good)}.bad-text{color:var(--bad);font-weight:600}.unknown{color:var(--warn)}
@media(prefers-color-scheme:dark){.good{color:#4ac26b}.bad-text{color:#ff8a80}
.unknown{color:#d4a72c}}
.start{display:grid;grid-template-columns:minmax(6rem,auto) 1fr auto;gap:.2rem .6rem;
align-items:center}
.track{background:var(--soft);border-radius:.2rem;height:.8rem}
.track i{display:block;height:100%;background:var(--bar);border-radius:.2rem;min-width:2px}
.track i.open{background:repeating-linear-gradient(45deg,var(--bar) 0 6px,#0000 6px 10px)}
.num{text-align:right;font-variant-numeric:tabular-nums}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(20rem,100%),1fr));gap:1rem}
summary{cursor:pointer;font-size:1.05rem;font-weight:600;margin-top:1.6rem}
"""
_PATHS = {
    "health:response": "/health",
    "models:response": "/v1/models",
    "metrics:response": "/metrics",
}
_SETTING = ("setting", "value")
_COLOUR = {"good": "good", "bad": "bad-text", "unknown": "unknown"}


def render(data: Mapping[str, Any]) -> str:
    """The page of a report, as `report.as_json` gives it."""
    state = data["state"]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}">'
        f"<title>{_text(state)} - dspark health</title><style>{_STYLE}{plots.STYLE}</style>"
        f'<h1>dspark health <span class="state {_text(data["status"])}">{_text(state)}</span></h1>'
        + _facts(data)
        + _reasons(data["reasons"])
        + _cause(data["cause"])
        + _start(data["start"])
        + _acceptance(data)
        + _checks(data)
        + _engines(data["engines"])
        + _signs(data["signs"])
        + _flight(data["flight"])
        + _history(data["timeline"])
        + _provenance(data["provenance"])
        + _configuration(data["configuration"])
        + "</html>\n"
    )


def _facts(data: Mapping[str, Any]) -> str:
    age = data["evidence_age_s"]
    facts = [
        ("in this state for", _duration(data["in_state_s"])),
        ("last proof of work", "none yet" if age is None else f"{_duration(age)} ago"),
        ("last turn", f"{data['last_turn_age_s']:.1f} s ago"),
        ("model", data["model"] or "not known yet"),
        ("profile", data["configuration"]["profile"]),
        ("ready for work", "yes" if data["ready"] else "no"),
    ]
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts)
        + "</dl>"
    )


def _reasons(reasons: Sequence[Mapping[str, str]]) -> str:
    if not reasons:
        return ""
    rows = []
    for reason in reasons:
        look = {"state": "state-kind", "server": "bad", "model": "bad"}.get(reason["kind"], "")
        detail = f"<p><small>{_text(reason['detail'])}</small></p>" if reason["detail"] else ""
        rows.append(
            f'<div class="reason {look}"><p><code>{_text(reason["code"])}</code> '
            f"{_text(reason['meaning'])}</p>{detail}<p>{_text(reason['remedy'])}</p></div>"
        )
    return "<h2>Why</h2>" + "".join(rows)


def _cause(cause: Mapping[str, str] | None) -> str:
    if cause is None:
        return ""
    return (
        '<h2>Cause, from the server\'s log</h2><div class="reason bad">'
        f"<p><code>{_text(cause['id'])}</code></p><p>{_text(cause['headline'])}</p>"
        f"<p>{_text(cause['remedy'])}</p><p><small>{_text(cause['source'])}</small></p></div>"
    )


def _start(start: Sequence[Mapping[str, Any]]) -> str:
    """The stages of the start as bars, each as long as it took."""
    known = [row["seconds"] for row in start if row["seconds"] is not None]
    if not start:
        return ""
    longest = max([*known, 0.001])
    rows = []
    for row in start:
        seconds, percent = row["seconds"], row["progress_percent"]
        share = 100 * (seconds or 0.0) / longest
        open_ = "" if row["done"] else ' class="open"'
        told = "" if seconds is None else f"{seconds:.1f} s"
        if percent is not None and not row["done"]:
            told += f" ({percent} %)"
        title = f' title="{_text(row["detail"])}"' if row["detail"] else ""
        rows.append(
            f"<span{title}>{_text(row['stage'])}</span>"
            f'<span class="track"><i{open_} style="width:{share:.1f}%"></i></span>'
            f'<span class="num">{_text(told)}</span>'
        )
    return f'<h2>Start</h2><div class="start">{"".join(rows)}</div>'


def _acceptance(data: Mapping[str, Any]) -> str:
    floor = data["configuration"]["budgets"]["acceptance_floor"]
    parts = []
    for name, engine in data["engines"].items():
        window, total = engine["last_window"], engine["speculation"]
        seen = window or total
        if seen is None or not seen["per_position"]:
            continue
        since = "last window of traffic" if window else "since the engine's start, probes included"
        title = f"engine {name}" if len(data["engines"]) > 1 else "accepted per draft"
        caption = (
            f"{seen['drafts']} drafts, {since}; {seen['length']:.2f} tokens a step, "
            f"{seen['rate']:.0%} of draft tokens; {plots.WHISKERS}; "
            f"dashed: the floor of the first position, {floor:.0%}"
        )
        rates = seen["per_position"]
        marks = [floor, *[None] * (len(rates) - 1)]
        plot = plots.by_position(title, rates, seen["intervals"], marks, "floor")
        parts.append(f"<figure>{plot}<figcaption>{_text(caption)}</figcaption></figure>")
    if not parts:
        return ""
    return f'<h2>Acceptance by draft position</h2><div class="plots">{"".join(parts)}</div>'


def _checks(data: Mapping[str, Any]) -> str:
    rows: list[tuple[str, str, str]] = []
    for name, results in data["checks"].items():
        for r in results:
            told = f"{r['observedValue'] * 1000:.0f} ms, {_duration(r['age_s'])} ago"
            outcome = {"pass": "good", "fail": "bad"}[r["status"]]
            rows.append((_PATHS.get(name, name), outcome, told))
    last = data["last_generation"]
    if last is not None:
        told = f"{last['duration_s']:.1f} s, {_duration(last['age_s'])} ago"
        rows.append((f"last generation ({last['step']})", last["outcome"], told))
    for step, findings in data["gate"]["findings"].items():
        rows.append((f"gate: {step}", *_summary(findings)))
    return _table("Checks", ("check", "outcome", "evidence"), rows, marked=1) + _evidence(data)


def _summary(findings: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The worst outcome of a step, and what it is about."""
    for outcome in ("bad", "unknown"):
        found = [f for f in findings if f["outcome"] == outcome]
        if found:
            return outcome, "; ".join(f"{f['check']}: {_words(f['evidence'])}" for f in found)
    return "good", ", ".join(f["check"] for f in findings)


def _evidence(data: Mapping[str, Any]) -> str:
    rows = [
        (f"{step}: {f['check']}", f["outcome"], _words(f["evidence"]))
        for step, findings in data["gate"]["findings"].items()
        for f in findings
    ]
    return _folded("Evidence of the start gate", ("check", "outcome", "evidence"), rows, marked=1)


def _engines(engines: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (
            name,
            f"{e['running']:.0f} / {e['waiting']:.0f}",
            "?" if e["cache_usage"] is None else f"{e['cache_usage']:.1%}",
            f"{e['prompt_tokens']:.0f} / {e['generation_tokens']:.0f}",
            f"{_duration(e['moved_s_ago'])} ago",
            _duration(e["stuck_s"]) if e["stuck_s"] else "no",
        )
        for name, e in engines.items()
    ]
    head = ("engine", "running / waiting", "KV in use", "tokens in / out", "last step", "stuck")
    return _table("Engines", head, rows)


def _signs(signs: Mapping[str, Any] | None) -> str:
    """Processes, cards and ends, where the server's own signs are seen."""
    if signs is None:
        return ""
    processes = [
        (
            f"{p['name']} ({p['pid']})" if p["pid"] else p["name"],
            f"{p['state']} for {_duration(p['in_state_s'])}",
            "no" if p["asleep_s"] is None else f"for {_duration(p['asleep_s'])}",
            _duration(p["cpu_s"]),
            f"{p['rss_bytes'] / 2**30:.1f} GiB",
        )
        for p in signs["processes"]
    ]
    compilers = [
        (c["name"], f"for {_duration(c['for_s'])}", _duration(c["cpu_s"]))
        for c in signs["compilers"]
    ]
    cards = [
        tuple(_word(c[k]) for k in ("name", "busy_percent", "uncorrected", "corrected", "xgmi"))
        for c in signs["cards"] or ()
    ]
    ended = [
        (f"{e['name']} ({e['pid']})", e["how"], f"{_duration(e['age_s'])} ago")
        for e in reversed(signs["ended"])
    ]
    return (
        _table("Processes", ("process", "state", "asleep", "CPU", "memory"), processes)
        + _table("Compilers at work", ("compiler", "at work", "CPU"), compilers)
        + _table("Cards", ("card", "busy %", "uncorrected", "corrected", "XGMI"), cards)
        + _table("Processes that ended", ("process", "how", "when"), ended)
    )


def _flight(flight: Mapping[str, str] | None) -> str:
    rows = [tuple(flight[k] for k in ("at", "why", "reason", "path"))] if flight else []
    return _table("Last flight of a stuck server", ("when", "for", "reason", "archive"), rows)


def _history(timeline: Sequence[Mapping[str, Any]]) -> str:
    rows = [(f"{_duration(t['age_s'])} ago", t["state"], t["reason"]) for t in reversed(timeline)]
    return _table("States so far", ("when", "state", "first reason"), rows)


def _provenance(provenance: Mapping[str, Any] | None) -> str:
    if provenance is None:
        return ""
    return _folded("The image's vLLM and patches", _SETTING, list(_flat(provenance)))


def _configuration(configuration: Mapping[str, Any]) -> str:
    return _folded("Configuration in effect", _SETTING, list(_flat(configuration)))


def _folded(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], marked: int | None = None
) -> str:
    if not rows:
        return ""
    table = _table("", head, rows, marked)
    return f"<details><summary>{_text(title)}</summary>{table}</details>"


def _flat(values: object, path: str = "") -> Iterable[tuple[str, str]]:
    """Nested values as rows of a dotted name and a word."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from _flat(value, f"{path}.{number}")
    else:
        yield path, _word(values)


def _table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], marked: int | None = None
) -> str:
    if not rows:
        return ""
    body = []
    for row in rows:
        cells = []
        for column, cell in enumerate(row):
            look = f' class="{_COLOUR.get(cell, "")}"' if column == marked else ""
            cells.append(f"<td{look}>{_text(cell)}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    heading = f"<h2>{_text(title)}</h2>" if title else ""
    names = "".join(f"<th>{_text(name)}</th>" for name in head)
    return f"{heading}<table><tr>{names}</tr>{''.join(body)}</table>"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _words(values: Mapping[str, object]) -> str:
    return ", ".join(f"{k} {_word(v)}" for k, v in values.items())


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " ".join(_word(v) for v in value) or "none"
    if value is None:
        return "none"
    return str(value)
