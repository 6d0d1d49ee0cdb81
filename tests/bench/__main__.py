"""`python3 -m tests.bench`: measure what the documents state, and write them.

Every figure goes as a plot and into results.json in the folder, and all of them into the page
FIGURES.md beside it. What is not measured in a run stays as it was.

Exit codes: 0 all measured, 1 something could not be measured, 2 misused.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench import (
    canary_cost,
    commands,
    document,
    engine,
    explain_log,
    figure,
    footprint,
    month,
    readyz,
    side_by_side,
)
from tests.bench.figure import BenchError, Figure
from tests.bench.machine import Watch
from tests.bench.watched import Watched, real_server
from tests.support.rehearsal_server import REPOSITORY

FOLDER = REPOSITORY / "healthcheck/figures"
PAGE = "FIGURES.md"
RESULTS = "results.json"

# They start servers of their own and take a quarter of an hour.
COMMANDS: dict[str, Callable[[], Sequence[Figure]]] = {"commands": commands.measure}
# By name, in the order in which they run. Nothing beside them must be heavy.
ALONE: dict[str, Callable[[], Sequence[Figure]]] = {
    "canary-cost": canary_cost.measure,
    "explain": explain_log.measure,
    "readyz": readyz.measure,
    "footprint": footprint.measure,
    "month": month.measure,
    "faults": month.measure_faults,
    "peers-scripted": side_by_side.measure_scripted,
}
# These share one real server; the last one ends it.
REAL: dict[str, Callable[[Watched], Sequence[Figure]]] = {
    "gate": lambda w: [engine.gate(w)],
    "throughput": lambda w: [engine.throughput(w)],
    "detection": lambda w: [engine.detection(w)],
    "peers-real": side_by_side.measure_real,
}
ORDER = (
    "detection",
    "peers-real",
    "peers-scripted",
    "month",
    "faults",
    "gate",
    "throughput",
    "readyz",
    "footprint",
    "canary-cost",
    "explain",
    "commands",
)


def main(argv: list[str] | None = None) -> int:
    """Measure, write, and print what was seen."""
    args = _parser().parse_args(argv)
    asked = args.only or [*COMMANDS, *ALONE, *REAL]
    if args.cheap:
        asked = [name for name in asked if name in ALONE]
    results = args.out / RESULTS
    try:
        known = figure.load(results)
    except BenchError as e:
        print(f"bench: {e}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)

    def keep(made: Sequence[Figure], machine: str) -> None:
        """Written after each: an interrupted run loses nothing, nor does one beside it."""
        known.update(figure.load(results))
        for one in made:
            known[one.name] = figure.stamped(one, machine)
            _tell(known[one.name])
        figure.save(results, known)

    failed = _measure(asked, keep) if not args.render else []
    document.write(known, args.out, args.out.parent / PAGE, ORDER)
    for line in failed:
        print(f"bench: {line}", file=sys.stderr)
    return 1 if failed else 0


def _measure(asked: Sequence[str], keep: Callable[[Sequence[Figure], str], None]) -> list[str]:
    """Run what was asked for; a figure that fails does not stop the rest."""
    failed: list[str] = []

    def one(name: str, run: Callable[[], Sequence[Figure]], watch: Watch | None = None) -> None:
        print(f"bench: {name} ...", file=sys.stderr, flush=True)
        watch = watch or Watch()
        try:
            keep(run(), watch.said())
        except (BenchError, AssertionError) as e:
            failed.append(f"{name}: {str(e).splitlines()[0]}")

    for name, run in (COMMANDS | ALONE).items():
        if name in asked:
            one(name, run)
    real = [name for name in REAL if name in asked]
    if real:
        print("bench: starting a real server ...", file=sys.stderr, flush=True)
        with contextlib.ExitStack() as stack:
            starting = Watch()
            try:
                server = stack.enter_context(real_server())
            except (BenchError, AssertionError) as e:
                return [*failed, f"the real server: {str(e).splitlines()[0]}"]
            for name in real:
                # The gate was passed in the start.
                one(
                    name,
                    functools.partial(REAL[name], server),
                    starting if name == "gate" else None,
                )
    return failed


def _tell(one: Figure) -> None:
    print(f"\n{one.title}\n{document.table(one.columns, one.rows)}")
    for goal in one.goals:
        print(f"goal {goal.wanted}: {goal.seen}, {document.MET[goal.met]}")
    print(one.machine, flush=True)


def _parser() -> argparse.ArgumentParser:
    names = [*COMMANDS, *ALONE, *REAL]
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.bench", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--only", nargs="+", choices=names, help="figures to measure")
    parser.add_argument("--cheap", action="store_true", help="leave out what needs a real server")
    parser.add_argument("--render", action="store_true", help="measure nothing, write it again")
    parser.add_argument(
        "--out", type=Path, default=FOLDER, help=f"folder; {PAGE} is written beside it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
