"""The command line of the accuracy test."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploy.files import write_whole
from deploy.recipe import RecipeError
from healthcheck.accuracy.page import page
from healthcheck.accuracy.results import Report
from healthcheck.accuracy.run import run
from healthcheck.service.settings import SettingsError
from healthcheck.smoke.cli import Files, Misuse, Parser, asked_for, name_server
from healthcheck.smoke.terminal import has_colour, table

DESCRIPTION = """\
Ask a server that runs for answers that can be checked: word problems, chains of sums, look-ups in a
table, needles in prompts as long as it holds, tool calls, and GSM8K where lm_eval and its data are
here. About 550 requests and minutes on a card. Exit code 0: all held, 1: something was bad, 2: it
could not tell, or misuse. What was not judged is told, with the reason, and is no part of the
verdict.
"""
BUDGET_S = 900.0


def main(argv: list[str]) -> int:
    """The command; 0 all held, 1 something was bad, 2 could not tell or misused."""
    try:
        args = _parser().parse_args(argv)
        files = Files(json=args.json, html=args.html)
        files.check()
        target, _ = asked_for(args)
        return _finish(run(target, args.seed), files)
    except (Misuse, RecipeError, SettingsError) as e:
        print(f"accuracy: {' '.join(str(e).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("accuracy: interrupted; no report is written", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python3 -m healthcheck accuracy", description=DESCRIPTION, allow_abbrev=False
    )
    name_server(parser, BUDGET_S, "for each kind of task")
    parser.add_argument(
        "--seed", type=int, default=1, help="draws the tasks; two runs of one seed ask the same"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as one HTML page")
    return parser


def _finish(report: Report, files: Files) -> int:
    print(table(report, colour=has_colour(sys.stdout)), flush=True)
    for line in report.limits():
        print(f"note: {line}")
    made = {"json": Report.as_json, "html": page}
    for option, path in files.named():
        try:
            write_whole(path, made[option](report))
        except OSError as e:
            text = f"--{option} {path}: {e.strerror}; give a writable file"
            print(f"accuracy: {text}", file=sys.stderr)
            return 2
        print(f"report: {path}")
    return report.exit_code
