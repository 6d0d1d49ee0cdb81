"""The command line of the accuracy test."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from deploy.programs import Parser
from healthcheck.accuracy.page import page
from healthcheck.accuracy.run import run
from healthcheck.smoke.cli import Files, asked_for, finish, name_server, told_as

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
    return told_as("accuracy", lambda: _accuracy(_parser().parse_args(argv)))


def _accuracy(args: argparse.Namespace) -> int:
    files = Files(json=args.json, html=args.html)
    files.check()
    report = run(asked_for(args), args.seed)
    return finish(report, files, partial(page, report), report.limits(), "accuracy")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python3 -m healthcheck accuracy", description=DESCRIPTION)
    name_server(parser, BUDGET_S, "for each kind of task")
    parser.add_argument(
        "--seed", type=int, default=1, help="draws the tasks; two runs of one seed ask the same"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as one HTML page")
    return parser
