"""The command line: explain a log that is there, or follow one that grows."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from healthcheck.explain.encodings import UnreadableLogError
from healthcheck.explain.explainer import Explainer, explain_stream
from healthcheck.explain.findings import Explanation, Verdict
from healthcheck.explain.following import follow
from healthcheck.explain.signatures import SignatureError
from healthcheck.explain.text import render
from healthcheck.flights import beside as flights

GOOD, BAD, UNREADABLE = 0, 1, 2  # exit codes of the command


class Settled:
    """Stops following once the log has told how the start ended and has gone quiet."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer
        self._pause = threading.Event()
        self._lines = -1
        self._settled = False

    def is_set(self) -> bool:
        """Whether the verdict will not change by itself."""
        return self._settled

    def wait(self, timeout: float) -> bool:
        """Wait for `timeout` seconds, then look."""
        self._pause.wait(timeout)
        found = self._explainer.result()
        quiet, self._lines = found.lines == self._lines, found.lines
        over = found.verdict is Verdict.STARTED or bool(found.cause or found.wrappers)
        self._settled = quiet and over
        return self._settled


def _explain(name: str, following: bool) -> Explanation:
    explainer = Explainer()
    # Whoever interrupts wants to know what was seen until then.
    with contextlib.suppress(KeyboardInterrupt):
        if name == "-":
            explain_stream(sys.stdin.buffer, explainer)
        elif following:
            follow(Path(name), explainer, Settled(explainer))
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
    parser.add_argument(
        "--follow", action="store_true", help="wait until the log shows how the start ended"
    )
    options = parser.parse_args(argv)
    try:
        explanation = _explain(options.log, options.follow)
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
    except SignatureError as e:
        print(f"explain: {e}", file=sys.stderr)
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
