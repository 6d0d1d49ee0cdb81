"""`python3 -m healthcheck flights`: the archives that the flight recorder has kept."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from healthcheck.flights.model import FOLDER, Flight, FlightError, flight, listed, load, stacks
from healthcheck.flights.waits import waits_for
from healthcheck.words import one_line

GOOD, UNREADABLE = 0, 2  # exit codes
LOGS = Path("/var/log/dspark-rocm")  # in the containers
TOP = 6  # frames of a process that are shown


def main(argv: Sequence[str]) -> int:
    """The command `flights [DIR]`; returns 0, or 2 for what cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python3 -m healthcheck flights",
        description="List what was recorded of stuck servers, and what each process waited for.",
    )
    log = os.environ.get("DSPARK_LOG")
    parser.add_argument(
        "place",
        metavar="DIR",
        nargs="?",
        type=Path,
        default=Path(log).parent if log else LOGS,
        help=f"the log's folder, or one archive (default: DSPARK_LOG's, else {LOGS})",
    )
    place: Path = parser.parse_args(argv).place
    try:
        found = [flight(place)] if place.is_file() else _in(place)
    except OSError as e:
        print(
            f"flights: {e.filename or place}: {e.strerror}; give the log's folder", file=sys.stderr
        )
        return UNREADABLE
    code = GOOD
    if not found:
        print(f"no flight in {place}: none was recorded")
    for one in found:
        try:
            if one is None:
                raise FlightError(f"{place}: is not named as a flight; give another file")
            page = [f"{one.at:%Y-%m-%d %H:%M:%S} UTC {one.why} {one.code} {one.path}"]
            page += [f"  {line}" for line in _shown(load(one.path))]
        except (FlightError, OSError) as e:
            print(f"flights: {one_line(str(e))}", file=sys.stderr)
            code = UNREADABLE
            continue
        print("\n".join(one_line_kept(line) for line in page))
    return code


def _in(folder: Path) -> list[Flight | None]:
    """The archives of a log's folder, or of the folder of archives itself."""
    if not folder.is_dir():
        raise NotADirectoryError(20, "is no folder and no file", str(folder))
    return [*(listed(folder / FOLDER) or listed(folder))]


def one_line_kept(line: str) -> str:
    """A line fit for a terminal, with its indent."""
    return line[: len(line) - len(line.lstrip())] + one_line(line)


def _shown(content: dict[str, Any]) -> Iterator[str]:
    for stack in stacks(content):
        yield waits_for(stack)
        frames = stack.threads[0].frames if stack.threads else ()
        for frame in frames[:TOP]:
            yield f"    {frame.place}"
        if stack.threads and stack.trouble:
            yield f"    ({stack.trouble})"
