"""The command line: explain a log that is there."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from healthcheck.explain.encodings import UnreadableLogError
from healthcheck.explain.explainer import Explainer, explain_stream
from healthcheck.explain.findings import Explanation
from healthcheck.explain.text import render
from healthcheck.flights import beside as flights

GOOD, BAD, UNREADABLE = 0, 1, 2  # exit codes of the command


def _explain(name: str) -> Explanation:
    explainer = Explainer()
    # Whoever interrupts wants to know what was seen until then.
    with contextlib.suppress(KeyboardInterrupt):
        if name == "-":
            explain_stream(sys.stdin.buffer, explainer)
        else:
            with Path(name).open("rb") as stream:
                explain_stream(stream, explainer)
    return explainer.result()


def _flight(flight: flights.OfLog | None) -> dict[str, object] | None:
    """The stacks' part of the explanation, as plain values."""
    if flight is None:
        return None
    return {"path": str(flight.flight.path), "why": flight.flight.why, "waits": flight.waits}


def _flight_lines(flight: flights.OfLog | None) -> Iterator[str]:
    """The same as lines of text."""
    if flight is None:
        return
    one = flight.flight
    yield ""
    yield f"stacks when it was {one.why} at {one.at:%Y-%m-%d %H:%M:%S} UTC ({one.path.name})"
    yield from (f"  {line}" for line in flight.waits)


def main(argv: list[str]) -> int:
    """The command `explain LOGFILE|-`; returns 0 if no fault was found, 1 if one was, 2 if the log
    cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python3 -m healthcheck explain",
        description="Say what a vLLM log tells about its start, and why it failed.",
    )
    parser.add_argument("log", metavar="LOGFILE", help="the server's log, or - for standard input")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(argv)
    try:
        explanation = _explain(options.log)
    except OSError as e:
        reason = e.strerror or type(e).__name__
        print(
            f"explain: cannot read {options.log!r}: {reason}; give a log file, or - for standard "
            "input",
            file=sys.stderr,
        )
        return UNREADABLE
    except UnreadableLogError as e:
        print(f"explain: cannot read {options.log!r}: {e}", file=sys.stderr)
        return UNREADABLE
    flight = None if options.log == "-" else flights.beside(Path(options.log))
    if options.format == "json":
        page = json.dumps({**explanation.as_dict(), "flight": _flight(flight)}, indent=2)
    else:
        page = "\n".join([render(explanation), *_flight_lines(flight)])
    try:
        print(page, flush=True)
    except BrokenPipeError:  # whoever reads has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BAD if explanation.verdict.is_bad else GOOD
