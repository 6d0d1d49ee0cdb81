"""``python3 -m patches audit TREE...``."""

import argparse
import gc
import sys
from pathlib import Path

from patches.audit import baseline, render, settings
from patches.audit.audit import Report, Scope, audit, introduced, without
from patches.audit.tree import MisuseError, open_tree

OK, GAPS, MISUSE = 0, 1, 2


def main(argv: list[str]) -> int:
    """Audit trees and return the exit code.

    0: no gap of the levels crash or wrong answers, or only ones the baseline knows. 1: such gaps,
    or, in the absolute check of --arch with --platform, no usable class or a cache that cannot be
    compared. 2: the command cannot be carried out.
    """
    arguments = _parser().parse_args(argv)
    # Syntax trees are many small objects that all live to the end; collecting costs a third.
    gc.disable()
    try:
        return _run(arguments)
    except MisuseError as error:
        print(f"audit: {' '.join(str(error).split())}", file=sys.stderr)
        return MISUSE
    finally:
        gc.enable()


def _run(arguments: argparse.Namespace) -> int:
    speculative = settings.given(arguments.speculative_config)
    scope = Scope(arguments.platform, arguments.arch, speculative)
    known = baseline.load(arguments.baseline) if arguments.baseline else frozenset()
    old = audit(open_tree(arguments.since), scope) if arguments.since else None
    reports = [audit(open_tree(tree), scope) for tree in arguments.trees]
    if old is not None:
        reports = [introduced(report, old) for report in reports]
    _warn_of_stale(known, reports)
    reports = [without(report, known) for report in reports]
    text = _render(arguments, reports)
    if text:
        print(text)
    return GAPS if any(report.fails(gap) for report in reports for gap in report.gaps) else OK


def _render(arguments: argparse.Namespace, reports: list[Report]) -> str:
    match arguments.format:
        case "json":
            return render.as_json(reports)
        case "sarif":
            return render.as_sarif(reports)
        case "github":
            return render.as_github(reports)
    return render.as_table(reports, explain=arguments.explain)


def _warn_of_stale(known: frozenset[str], reports: list[Report]) -> None:
    found = {gap.key for report in reports for gap in report.gaps}
    for key in sorted(known - found):
        print(f"audit: the baseline knows a gap that is gone: {key}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m patches audit",
        description="Find attributes that shared vLLM code reads off a draft model and that the "
        "class of some platform lacks, options of a model that a platform's backend drops, and "
        "caches that are written by one layout and read by another. Static: nothing of the tree "
        "is imported.",
    )
    parser.add_argument(
        "trees",
        nargs="+",
        type=Path,
        metavar="TREE",
        help="a wheel file, a folder that holds vllm/ (site-packages, a checkout), or vllm itself",
    )
    parser.add_argument("--platform", metavar="P", help="look at one platform only, such as amd")
    parser.add_argument(
        "--arch",
        metavar="A",
        help="look at one architecture only, such as DSparkDraftModel; with --platform the check "
        "is absolute: what no platform provides is a gap as well",
    )
    parser.add_argument(
        "--speculative-config",
        metavar="JSON",
        help="what the server is given under this name: conditions on its options are decided",
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="earlier report in JSON; its gaps are known",
    )
    parser.add_argument(
        "--since", type=Path, metavar="OLD", help="only gaps that the tree OLD does not have"
    )
    parser.add_argument("--format", choices=("table", "json", "sarif", "github"), default="table")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="say how each gap was found (table; JSON always does)",
    )
    return parser
