"""The forms in which collectors hand on a server's lines, each a function of place and line."""

from __future__ import annotations

import json
from collections.abc import Callable

Form = Callable[[int, str], str]


def _clock(at: int) -> str:
    return f"05:{at // 60:02}:{at % 60:02}"


def _iso(at: int, zone: str = "Z") -> str:
    return f"2026-11-30T{_clock(at)}.123456789{zone}"


def _whole_syslog(at: int, line: str) -> str:
    return f"Nov 30 {_clock(at)} gpu-1 dspark-rocm-server-1/3f2c9a1b7d55[981]: {line}"


def _record(**values: object) -> str:
    return json.dumps(values, ensure_ascii=False)


# What the collector's own documentation shows of its output; the host, pod and unit are ours.
FORMS: dict[str, Form] = {
    "nothing": lambda _, line: line,
    "journald, short": lambda at, line: f"Nov 30 {_clock(at)} gpu-1 dspark[4711]: {line}",
    "journald, docker driver": _whole_syslog,
    "journald, short-precise": lambda at, line: (
        f"Nov 30 {_clock(at)}.104321 gpu-1 dspark[4711]: {line}"
    ),
    "journald, short-iso": lambda at, line: (
        f"2026-11-30T{_clock(at)}+0000 gpu-1 dspark[4711]: {line}"
    ),
    "journald, short-iso-precise": lambda at, line: (
        f"2026-11-30T{_clock(at)}.104321+00:00 gpu-1 dspark[4711]: {line}"
    ),
    "journald, short-full": lambda at, line: (
        f"Mon 2026-11-30 {_clock(at)} UTC gpu-1 dspark[4711]: {line}"
    ),
    "journald, with-unit": lambda at, line: (
        f"Mon 2026-11-30 {_clock(at)} UTC gpu-1 dspark.service[4711]: {line}"
    ),
    "journald, short-unix": lambda at, line: f"{1796014800 + at}.104321 gpu-1 dspark[4711]: {line}",
    "journald, short-monotonic": lambda at, line: (
        f"[{98 + at:5}.104321] gpu-1 dspark[4711]: {line}"
    ),
    "journald, short-delta": lambda at, line: (
        f"[{98 + at:5}.104321 <    1.000000 >] gpu-1 dspark[4711]: {line}"
    ),
    "journald, verbose": lambda at, line: (
        f"Mon 2026-11-30 {_clock(at)}.104321 UTC [s=3f;i=2{at};b=9c]\n    PRIORITY=6\n"
        f"    MESSAGE={line}\n    _PID=4711"
    ),
    "journald, json": lambda at, line: _record(
        PRIORITY="6", MESSAGE=line, _PID="4711", __REALTIME_TIMESTAMP=str((1796014800 + at) * 10**6)
    ),
    "journald, json of colours": lambda at, line: _record(
        MESSAGE=list(f"\x1b[36m{line}\x1b[0m".encode()), _PID="4711"
    ),
    "journald, json-sse": lambda _, line: f"data: {_record(MESSAGE=line, _PID='4711')}\n",
    "journald, json-pretty": lambda _, line: (
        f'{{\n\t"PRIORITY" : "6",\n\t"MESSAGE" : {json.dumps(line)},\n\t"_PID" : "4711"\n}}'
    ),
    "docker logs -t": lambda at, line: f"{_iso(at)} {line}",
    "docker, json-file": lambda at, line: _record(log=f"{line}\n", stream="stderr", time=_iso(at)),
    "compose": lambda _, line: f"server-1     | {line}",
    "compose with times": lambda at, line: f"server-1  | {_iso(at)} {line}",
    "swarm": lambda _, line: f"dspark_server.1.x3k9ab21z@node-1    | {line}",
    "syslog, RFC 5424": lambda at, line: f"<30>1 {_iso(at)} gpu-1 3f2c9a1b7d55 981 - - {line}",
    "CRI": lambda at, line: f"{_iso(at)} stderr F {line}",
    "kubectl --timestamps": lambda at, line: f"{_iso(at)} {line}",
    "kubectl --prefix": lambda _, line: f"[pod/dspark-6d9f-abcde/server] {line}",
    "kubectl, both": lambda at, line: f"[pod/dspark-6d9f-abcde/server] {_iso(at)} {line}",
    "stern": lambda _, line: f"dspark-mi355x-6d9f-abcde server {line}",
    "stern of two pods": lambda at, line: (
        f"dspark-mi355x-6d9f-{'ab' if at % 2 else 'cd'} server {line}"
    ),
    "kail": lambda _, line: f"default/dspark-6d9f-abcde[server]: {line}",
    "Loki": lambda at, line: f'{_iso(at)} {{app="dspark", pod="dspark-6d9f"}} {line}',
    "Loki, jsonl": lambda at, line: _record(
        labels={"app": "dspark"}, line=line, timestamp=_iso(at)
    ),
    "Loki, exported": lambda at, line: f"{(1796014800 + at) * 10**9}\t{_iso(at)}\t{line}",
    "Google": lambda at, line: _record(textPayload=line, timestamp=_iso(at)),
    "Google, fields": lambda at, line: _record(jsonPayload={"message": line}, timestamp=_iso(at)),
    "Google, pretty": lambda at, line: (
        f'  {{\n    "textPayload": {json.dumps(line)},\n    "timestamp": "{_iso(at)}"\n  }},'
    ),
    "AWS, tail": lambda at, line: f"2026-11-30T{_clock(at)}.123000+00:00 server/dspark/7c9e {line}",
    "AWS, events": lambda at, line: _record(timestamp=(1796014800 + at) * 1000, message=line),
    "Azure": lambda at, line: _record(
        TimeGenerated=_iso(at), LogMessage=line, PodName="dspark-6d9f"
    ),
    "CSV": lambda at, line: f'"{_iso(at)}","gpu-1","dspark","{line.replace(chr(34), chr(34) * 2)}"',
    "fluent-bit": lambda at, line: (
        f"[{at}] kube.dspark: [{1796014800 + at}.104321000, {_record(log=line, stream='stderr')}]"
    ),
    "tee of a shell": lambda _, line: f"+ {line}",
    "an unheard-of one": lambda at, line: f"~~ {at:04} ~~ node=gpu-1 ~~ {line}",
    "swarm in journald": lambda at, line: _whole_syslog(at, f"dspark.1.x3k9@node-1    | {line}"),
    "json-file in CRI": lambda at, line: (
        f"{_iso(at)} stderr F {_record(log=line, stream='stderr')}"
    ),
    "CRI in json": lambda at, line: _record(message=f"{_iso(at)} stderr F {line}", host="gpu-1"),
    "json in journald": lambda at, line: _whole_syslog(
        at, _record(log=f"{line}\n", stream="stderr")
    ),
}
