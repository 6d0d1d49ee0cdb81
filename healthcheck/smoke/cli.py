"""The command line of the smoke test."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from deploy import recipe
from deploy.files import why_not_writable, write_whole
from deploy.programs import Misuse, Parser
from deploy.recipe import RecipeError, facts, switches
from healthcheck.client import Client
from healthcheck.service import settings
from healthcheck.service.settings import SettingsError
from healthcheck.smoke import compare, results
from healthcheck.smoke.junit import junit
from healthcheck.smoke.page import page
from healthcheck.smoke.results import Report, ReportError
from healthcheck.smoke.run import OPTIONAL, run
from healthcheck.smoke.target import BUDGET_S, Target
from healthcheck.smoke.terminal import has_colour, table

DESCRIPTION = f"""\
Look once at a vLLM server ({facts.oldest()} or later): does it listen, write, chat, stream, stop,
sample and draft as it should, and how fast. It needs no health service; with --health that
service's verdict is one more row. Rows that hold are "good"; exit code 0: all held, 1: something
was bad, 2: it could not tell, or misuse. What was not judged is told, with the reason, and is no
part of the verdict.
"""
EPILOG = f"""\
Against a CPU rehearsal the default is what takes seconds. Left to --full there:
{", ".join(OPTIONAL)} (1, 4 and 16 at once). Everywhere else all of
it is asked for, unless --quick; long prompts and each concurrency stay within --budget.

`smoke compare A B` shows what changed from one JSON report to another: acceptance counts as changed
where the 99 % Wilson intervals do not overlap, a speed where the interval of its ratio is more than
{compare.TOLERANCE:.0%} away. Exit code 0: nothing is worse, 1: something is, 2: not two reports.
"""


@dataclass(frozen=True)
class Files:
    """Where reports go, None for nowhere."""

    json: Path | None = None
    junit: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        """Refuse what cannot be written before a test of minutes is run. Raises Misuse."""
        for option, path in self.named():
            blocked = why_not_writable(path)
            if blocked:
                raise Misuse(f"--{option} {path}: {blocked}; give a file that can be written")

    def named(self) -> list[tuple[str, Path]]:
        """The options that were given, with their paths."""
        given = (("json", self.json), ("junit", self.junit), ("html", self.html))
        return [(option, path) for option, path in given if path is not None]


def main(argv: list[str]) -> int:
    """The command; 0 all held, 1 something was bad, 2 could not tell or misused."""
    if argv[:1] == ["compare"]:
        return told_as("smoke", lambda: _compare(argv[1:]))
    return told_as("smoke", lambda: _smoke(argv))


def told_as(name: str, test: Callable[[], int]) -> int:
    """The exit code of a test; what ends it before a report is one line."""
    try:
        return test()
    except (Misuse, RecipeError, SettingsError, ReportError) as e:
        print(f"{name}: {' '.join(str(e).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted; no report is written", file=sys.stderr)
        return 130


def _smoke(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    files = Files(args.json, args.junit, args.html)
    files.check()
    target = asked_for(args)
    health = None if args.health is None else settings.url("--health", args.health)
    target = replace(
        target,
        health=None if health is None else target.client.at(health),
        full=args.full,
        without=frozenset(args.without),
        baseline=None if args.baseline is None else results.read(args.baseline),
    )
    return finish(run(target), files)


def asked_for(args: argparse.Namespace) -> Target:
    """The server that the options of `name_server` name. Raises RecipeError, SettingsError."""
    profile = recipe.load(switches.recipe_file(os.environ)).profile(args.profile)
    return Target(
        client=Client(
            settings.url("URL", args.url),
            connect_timeout_s=profile.health.connect_timeout_s,
            key=settings.secret("--api-key-file", args.api_key_file),
            authorities=settings.authorities(args.ca_file),
        ),
        profile=profile,
        model=args.model or profile.served_model_name,
        wait_s=args.wait if args.wait is not None else profile.health.start_budget_s,
        speculation=args.speculation == "on",
        budget_s=args.budget,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python3 -m healthcheck smoke",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    name_server(parser, BUDGET_S, "for the long prompts, and for each concurrency")
    parser.add_argument("--health", metavar="URL", help="health service whose verdict to include")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--full", action="store_true", default=None, help="all of it, against a rehearsal too"
    )
    size.add_argument(
        "--quick", action="store_false", dest="full", help="what takes seconds, on any server"
    )
    parser.add_argument(
        "--without", action="append", default=[], choices=OPTIONAL, help="leave a part out"
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="JSON report of one without speculation"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write it as JUnit XML")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as one HTML page")
    return parser


def name_server(parser: argparse.ArgumentParser, budget_s: float, of_what: str) -> None:
    """Add the options that name a server and how it is asked."""
    parser.add_argument("url", metavar="URL", help="the server, e.g. http://127.0.0.1:8000")
    parser.add_argument(
        "--profile",
        default=os.environ.get("DSPARK_PROFILE", "mi355x"),
        help="the recipe's profile to judge by (default: DSPARK_PROFILE, else mi355x)",
    )
    parser.add_argument("--model", help="served model name (default: the profile's)")
    parser.add_argument("--api-key-file", type=Path, help="file that holds the server's API key")
    parser.add_argument("--ca-file", type=Path, help="certificates to trust of https, in PEM")
    parser.add_argument("--wait", type=_seconds, metavar="S", help="seconds to wait for the server")
    parser.add_argument(
        "--speculation",
        choices=("on", "off"),
        default="on" if switches.speculation(os.environ) else "off",
        help="off: the server is meant to serve without a draft (default: DSPARK_SPECULATION)",
    )
    parser.add_argument(
        "--budget",
        type=_seconds,
        default=budget_s,
        metavar="S",
        help=f"seconds {of_what} (default: %(default).0f)",
    )


def _compare(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="python3 -m healthcheck smoke compare",
        description="Show what changed from report A to report B. Exit code 1: something is worse.",
    )
    parser.add_argument("a", metavar="A", type=Path, help="the earlier JSON report")
    parser.add_argument("b", metavar="B", type=Path, help="the later one")
    args = parser.parse_args(argv)
    a, b = results.read(args.a), results.read(args.b)
    differences = compare.compare(a, b)
    print(compare.table(a, b, differences))
    return compare.exit_code(differences)


def finish(
    report: Report,
    files: Files,
    html: Callable[[], str] | None = None,
    notes: Sequence[str] = (),
    name: str = "smoke",
) -> int:
    """Print the table and notes, write the files where asked; returns the exit code. `html` makes
    the page of another report than the smoke test's."""
    print(table(report, colour=has_colour(sys.stdout)), flush=True)
    for note in notes:
        print(f"note: {note}")
    made: dict[str, Callable[[], str]] = {
        "json": report.as_json,
        "junit": partial(junit, report),
        "html": html or partial(page, report),
    }
    for option, path in files.named():
        try:
            write_whole(path, made[option]())
        except OSError as e:
            print(f"{name}: --{option} {path}: {e.strerror}; give a writable file", file=sys.stderr)
            return 2
        print(f"report: {path}")
    return report.exit_code


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= recipe.MOST_S:
        raise argparse.ArgumentTypeError(f"got {text!r}; give seconds from 0 to {recipe.MOST_S:g}")
    return value
