"""The smoke test's reports: JSON and back, JUnit, the page; the terminal; two reports compared."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from healthcheck import smoke
from healthcheck.client.exposition import Speculation
from healthcheck.judge import Outcome
from healthcheck.judge.acceptance import Acceptance
from healthcheck.plots import Column, columns
from healthcheck.reasons import REASONS, SMOKE_REASONS, remedy
from healthcheck.smoke import compare, results, terminal
from healthcheck.smoke.compare import Way
from healthcheck.smoke.figures import Spread
from healthcheck.smoke.junit import junit
from healthcheck.smoke.page import page
from healthcheck.smoke.results import Check, Level, LongPrompt, Report, SpeedUp
from tests.support.scripted_server import MODEL, scripted_server

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<script>alert('x')</script>&\"\x00\x1b[31m\ud800 ]]>"


def acceptance(drafts: int, *accepted: int) -> Acceptance:
    """Measured acceptance, by position."""
    counted = Speculation(drafts, drafts * len(accepted), sum(accepted), accepted)
    made = Acceptance.of(counted)
    assert made is not None
    return made


def level(concurrency: int, rate: float) -> Level:
    """Eight requests of about this many tokens per second."""
    rates = tuple(rate * (1 + n / 100) for n in range(-4, 4))
    times = Spread(8, 1.0 / rate, 1.2 / rate, 1.5 / rate)
    return Level(concurrency, 8, 0, 768, 768 / rate, rate, times, times, 3.2, rates)


def report(**fields: Any) -> Report:
    """A good report with every figure."""
    values: dict[str, Any] = {
        "target": "http://h:8000",
        "profile": "mi355x",
        "evidence": "unverified",
        "model": "m",
        "made_at": "2026-01-02T03:04:05+00:00",
        "vllm_version": "0.27.1",
        "max_model_len": 8192,
        "checks": [Check("chat", Outcome.GOOD, "held", 0.3)],
        "acceptance": acceptance(400, 290, 220, 170),
        "reference": {"source": "vLLM PR 51145", "acceptance_position_0": 0.73},
        "levels": [level(1, 50.0), level(4, 150.0)],
        "long_prompts": [LongPrompt(1000, 0.5, True), LongPrompt(7000, 1.5, None)],
        "speed_up": SpeedUp("http://plain", 1.5, 1.4, 1.6, 8),
        "timings_s": {"listening": 0.1, "total": 9.0},
    }
    return Report(**{**values, **fields})


BAD = (
    Check("chat", Outcome.BAD, f"answered {HOSTILE}", 1.25, "text.empty"),
    Check(HOSTILE, Outcome.UNKNOWN, HOSTILE, 0.0, "generation.timeout"),
    Check("stop", Outcome.GOOD, HOSTILE),
)


def hostile() -> Report:
    """A report whose every text is an attack on the page or the XML."""
    made = report(checks=list(BAD), target=HOSTILE, model=HOSTILE, vllm_version=HOSTILE)
    made.leave_out(HOSTILE, HOSTILE)
    made.cause = {
        "id": HOSTILE,
        "remedy": HOSTILE,
        "evidence": [{"line_number": 3, "text": HOSTILE}],
    }
    return made


# --- JSON


def test_a_report_comes_back_from_its_json(tmp_path: Path) -> None:
    """Every row and figure; `compare` reads what `--json` wrote."""
    path = tmp_path / "report.json"
    made = report()
    made.leave_out("speed-up", "none")
    made.write(path)
    assert results.read(path) == made


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "schema is None, not 2"),
        ('{"schema": 1}', "schema is 1, not 2"),
        ('{"schema": 2}', "not a whole report (KeyError"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    """File, what is wrong, the fix; exit 2."""
    path = tmp_path / "other.json"
    path.write_text(text, "utf-8")
    assert smoke.main(["compare", str(path), str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"smoke: {path}: ") and why in printed.err
    assert len(printed.err.splitlines()) == 1 and printed.out == ""


def _with(place: tuple[str | int, ...], value: object) -> str:
    """A good report's JSON with one value replaced."""
    data: Any = json.loads(report().as_json())
    inner = data
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("target",), None),
        (("max_model_len",), "8192"),
        (("max_model_len",), 10**30),
        (("checks", 0, "elapsed_s"), "0.1"),
        (("checks", 0, "elapsed_s"), float("nan")),
        (("checks", 0, "name"), ["chat"]),
        (("checks", 0, "outcome"), "splendid"),
        (("acceptance", "rate"), float("inf")),
        (("acceptance", "per_position"), [0.5]),
        (("acceptance", "intervals"), [[0.1, 0.2, 0.3]] * 3),
        (("levels", 0, "concurrency"), True),
        (("levels", 0, "first_s", "p99"), "slow"),
        (("levels", 0, "request_rates"), ["fast"]),
        (("levels", 0, "request_rates", 0), 10**400),
        (("long_prompts", 0, "found"), "yes"),
        (("speed_up", "ratio"), None),
        (("timings_s",), [1.0]),
        (("timings_s", "total"), "long"),
        (("reference",), "PR 51145"),
        (("cause",), "no idea"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_a_report_with_a_value_of_another_kind_is_refused_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    place: tuple[str | int, ...],
    value: object,
) -> None:
    """A figure that is text, NaN or a table is told when the file is read; exit 2."""
    path, good = tmp_path / "other.json", tmp_path / "good.json"
    path.write_text(_with(place, value), "utf-8")
    report().write(good)
    for pair in ([str(path), str(good)], [str(good), str(path)]):
        assert smoke.main(["compare", *pair]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith(f"smoke: {path}: not a whole report (")
        assert len(printed.err.splitlines()) == 1 and printed.out == ""


def test_a_report_without_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """/dev/zero is read no further than a report can be long."""
    assert smoke.main(["compare", "/dev/zero", "/dev/zero"]) == 2
    assert capsys.readouterr().err.startswith("smoke: /dev/zero: File too large; give a report")


def test_every_code_has_one_reason() -> None:
    """Each code in the source stands in one of the two tables, with a remedy; none in both."""
    assert not set(SMOKE_REASONS) & set(REASONS)
    families = {code.split(".")[0] for code in SMOKE_REASONS}
    told = set()
    for folder in ("smoke", "accuracy"):
        for source in (ROOT / "healthcheck" / folder).glob("*.py"):
            told |= set(re.findall(r'"([a-z]+\.[a-z_]+)"', source.read_text("utf-8")))
    used = {code for code in told if code.split(".")[0] in families}
    assert set(SMOKE_REASONS) <= used
    assert all(remedy(code) for code in used)


# --- JUnit


def test_junit_has_a_testcase_a_check() -> None:
    """Bad is a failure, unknown an error, not judged is skipped; the counts agree."""
    made = hostile()
    root = ET.fromstring(junit(made))
    suite = root.find("testsuite")
    assert suite is not None
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    cases = suite.findall("testcase")
    assert [case[0].tag for case in cases] == ["failure", "error", "system-out", "skipped"]
    assert cases[0].get("time") == "1.250"
    failure = cases[0][0]
    assert failure.get("type") == "text.empty" and failure.text == BAD[0].remedy
    assert "<script>" in (failure.get("message") or "")


# --- the page


class Outline(HTMLParser):
    """Which tags a page opens, closes and loads from."""

    VOID = frozenset({"meta", "line", "rect", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("made", [report(), hostile(), Report("t", "p", "e", "m")], ids=["good", "hostile", "empty"])  # fmt: skip
def test_the_page_is_one_whole_file_that_loads_nothing(made: Report) -> None:
    """No script, no address, every tag closed, every text escaped; light and dark, for a phone."""
    text = page(made)
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert not {"script", "img", "link", "iframe", "object"} & set(outline.tags)
    assert outline.addresses == [] and "url(" not in text and "@import" not in text
    assert "<script" not in text and "\x00" not in text and "\x1b" not in text
    text.encode("utf-8")
    assert "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text


def test_the_page_shows_every_figure() -> None:
    """Rows, acceptance with intervals and reference, times and rates by concurrency, needles."""
    text = page(report())
    for svg in re.findall(r"<svg.*?</svg>", text):
        ET.fromstring(svg)
    titles = re.findall(r'<text class="title"[^>]*>([^<]*)', text)
    assert titles == [
        "accepted per draft", "time to the first piece", "time between pieces",
        "tokens per second, together",
    ]  # fmt: skip
    assert text.count('class="whisker"') == 3 + 2 + 2
    assert text.count('class="mark"') == 1
    assert "vLLM PR 51145" in text
    assert "1.50 times" in text and "1.40 to" in text
    assert "7000" in text and "not judged" in text


def test_a_column_stands_at_its_value() -> None:
    """Half of the axis is half of the height; the whisker's ends and the mark are on scale."""
    svg = columns("t", "x", [Column("a", 0.5, 0.25, 0.75, 0.5), Column("b", 1.0)], str, 1.0)
    root = ET.fromstring(svg)
    half, full = (float(r.get("height", 0)) for r in root.iter("rect"))
    assert half == pytest.approx(full / 2)
    bottom = float(next(root.iter("rect")).get("y", 0)) + half
    whisker, mark = (p.get("d", "") for p in root.iter("path"))
    low, high = (float(n) for n in re.findall(r"^M[\d.]+ ([\d.]+)V([\d.]+)", whisker)[0])
    assert bottom - low == pytest.approx(full / 4, abs=0.2)
    assert bottom - high == pytest.approx(full * 3 / 4, abs=0.2)
    assert float(mark.split()[1].split("h")[0]) == pytest.approx(bottom - half, abs=0.2)


@pytest.mark.parametrize("value", [0.0, 1e-6, 0.003, 9.99, 12345.0])
def test_an_axis_ends_above_its_highest_value(value: float) -> None:
    """From microseconds to thousands, and for nothing at all."""
    ET.fromstring(columns("t", "x", [Column("a", value)], lambda v: f"{v:.3g}"))


# --- the terminal


@pytest.mark.parametrize(
    ("terminal_there", "environ", "live", "colour"),
    [
        (True, {"TERM": "xterm"}, True, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True, True),
        (True, {"TERM": "dumb"}, False, False),
        (True, {"TERM": "xterm", "CI": "true"}, False, False),
        (False, {"TERM": "xterm"}, False, False),
    ],
)
def test_what_a_terminal_gets(
    terminal_there: bool, environ: dict[str, str], live: bool, colour: bool
) -> None:
    """A rewritten line needs a terminal that is no CI; NO_COLOR takes the colour away."""
    stream = io.StringIO()
    stream.isatty = lambda: terminal_there  # type: ignore[method-assign]
    assert terminal.is_live(stream, environ) is live
    assert terminal.has_colour(stream, environ) is colour


def test_the_status_line_fits_and_fills() -> None:
    """Cut to the width, full only at the end."""
    assert terminal.bar(0, 4, "chat", 3.2, 80) == "[--------------------] 1/4 chat 3 s"
    assert terminal.bar(2, 4, "chat", 3.2, 80).startswith("[##########----------] 3/4")
    assert len(terminal.bar(2, 4, "a long name of a part", 3.2, 30)) == 29


def test_the_table_shows_a_servers_texts_as_text() -> None:
    """No escape sequence and no half character of a server reaches a terminal; the cause is told."""
    told = terminal.table(hostile(), width=200)
    told.encode()
    assert "\x1b" not in told
    assert "\x00" not in told
    assert "cause: " in told
    assert "  line 3: " in told


def test_the_table_has_colour_only_where_asked() -> None:
    """The same words either way."""
    made = report(checks=list(BAD[:1]))
    plain, coloured = terminal.table(made, 100), terminal.table(made, 100, colour=True)
    assert "\x1b[31;1mBAD" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    assert "\x1b" not in plain
    plain.encode("utf-8")


def test_a_terminal_sees_a_line_that_is_rewritten(tmp_path: Path) -> None:
    """On a pseudo-terminal the status line is there and cleared before every row and at the end."""
    keep = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR")}
    leader, follower = pty.openpty()
    seen = bytearray()

    def read() -> None:
        try:
            while more := os.read(leader, 65536):
                seen.extend(more)
        except OSError:
            return  # the other end is closed

    reader = threading.Thread(target=read)
    reader.start()
    with scripted_server() as server:
        command = [sys.executable, "-m", "healthcheck", "smoke", server.url]
        command += ["--profile", "rehearsal", "--model", MODEL]
        ended = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=follower, timeout=120,
            env={**keep, "TERM": "xterm"}, check=False,
        )  # fmt: skip
    os.close(follower)
    reader.join()
    os.close(leader)
    text = seen.decode()
    assert ended.returncode == 0
    assert re.search(r"\r\x1b\[K\[#+-+\] \d+/8 surface", text)
    assert text.count("\n") == ended.stdout.decode().count("\ngood")
    assert text.endswith("\r\x1b[K")
    assert b"\x1b" not in ended.stdout


def test_no_terminal_gets_plain_lines() -> None:
    """A log holds the rows and no control character."""
    with scripted_server() as server:
        command = [sys.executable, "-m", "healthcheck", "smoke", server.url]
        command += ["--profile", "rehearsal", "--model", MODEL]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0
    assert ended.stderr.splitlines()[0].startswith("  good  listening")
    assert "\x1b" not in ended.stdout + ended.stderr and "\r" not in ended.stderr


# --- two reports


def ways(a: Report, b: Report) -> dict[str, Way]:
    """Which way each thing went."""
    return {each.name: each.way for each in compare.compare(a, b)}


def test_a_report_does_not_differ_from_itself() -> None:
    """No row but those that say so; exit 0."""
    differences = compare.compare(report(), report())
    assert {each.way for each in differences} == {Way.SAME}
    assert compare.exit_code(differences) == 0
    assert "verdict: no difference" in compare.table(report(), report(), differences)


def test_acceptance_differs_where_the_intervals_do_not_overlap() -> None:
    """A drop that chance explains is the same; one that it does not is worse, the rise better."""
    before = report()
    after = report(acceptance=acceptance(400, 280, 120, 230))
    seen = ways(before, after)
    assert seen["accepted at 0"] is Way.SAME
    assert seen["accepted at 1"] is Way.WORSE
    assert seen["accepted at 2"] is Way.BETTER
    few = report(acceptance=acceptance(12, 8, 4, 6))
    assert ways(before, few)["accepted at 1"] is Way.SAME


@pytest.mark.parametrize(
    ("rate", "way"), [(30.0, Way.WORSE), (46.0, Way.SAME), (54.0, Way.SAME), (80.0, Way.BETTER)]
)
def test_a_speed_differs_beyond_the_tolerance(rate: float, way: Way) -> None:
    """A tenth is what two runs of one server may differ by."""
    seen = ways(report(), report(levels=[level(1, rate)]))
    assert seen["tokens/s at 1"] is way
    assert "tokens/s at 4" not in seen


def test_the_speed_of_a_rehearsal_is_told_and_not_judged() -> None:
    """Interpreted kernels on a shared CPU are slow by chance."""
    slow = report(levels=[level(1, 10.0)], rehearsal=True)
    assert ways(report(rehearsal=True), slow)["tokens/s at 1"] is Way.CHANGED


def test_rows_and_needles_have_a_direction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From good to bad is worse and exit 1, back again is better and exit 0."""
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    report().write(a)
    bad = Check("chat", Outcome.BAD, "nothing", 0.1, "text.empty")
    missed = [LongPrompt(1000, 0.5, False), LongPrompt(7000, 1.5, True)]
    report(checks=[bad], long_prompts=missed, vllm_version="0.28.0", acceptance=None).write(b)
    assert smoke.main(["compare", str(a), str(b)]) == 1
    told = capsys.readouterr().out
    assert re.search(r"^worse +verdict: good -> bad", told, re.MULTILINE)
    assert re.search(r"^worse +chat: good -> bad +\(nothing\)", told, re.MULTILINE)
    assert re.search(r"^worse +needle in 1000: found -> missed", told, re.MULTILINE)
    assert re.search(r"^changed +vllm_version: 0.27.1 -> 0.28.0", told, re.MULTILINE)
    assert re.search(r"^changed +acceptance: .* -> -", told, re.MULTILINE)
    assert "needle in 7000" not in told
    assert smoke.main(["compare", str(b), str(a)]) == 0
    assert re.search(r"^better +chat: bad -> good", capsys.readouterr().out, re.MULTILINE)


def test_a_row_that_appears_is_worse_only_if_it_is_bad() -> None:
    """A part that was not asked before is a change; a server that ended is not."""
    ended = Check("server", Outcome.BAD, "ended")
    tools = Check("tools", Outcome.GOOD, "called")
    seen = ways(report(), replace(report(), checks=[*report().checks, ended, tools]))
    assert (seen["server"], seen["tools"]) == (Way.WORSE, Way.CHANGED)
