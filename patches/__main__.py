"""``python3 -m patches``: apply the series to a vLLM tree, show it, audit it, load its draft class,
compile its kernels for the cards."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import programs
from patches import apply, faults, series, show
from patches.audit import settings
from patches.errors import PatchesError, TreeError
from patches.loadcheck import check
from patches.loadcheck.inside import LEVELS
from patches.tree import find

OK, FAILED, MISUSE = 0, 1, 2

_ROOT_HELP = "the folder that holds vllm/ (site-packages or a checkout), or the vllm folder itself"


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: done, or nothing to do. 1: the series does not fit, the tree cannot be written, with --check
    it is not fully carried, or its draft class cannot serve. 2: the command line is wrong or ROOT
    holds no vLLM. 130: interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] in (["audit"], ["compile"]):  # options of their own, which argparse would claim
            return int(importlib.import_module(f"patches.{argv[0]}.cli").main(argv[1:]))
        return _run(_parser().parse_args(argv))
    except KeyboardInterrupt:
        return _fail(
            "interrupted: the tree carries all of the series or none: see --check",
            programs.INTERRUPTED,
        )


def _run(arguments: argparse.Namespace) -> int:
    try:
        loaded = series.load()
        if arguments.command == "show":
            return _show(loaded, arguments.root, arguments.format)
        if arguments.command == "loadcheck":
            return _load_check(loaded, arguments)
        if arguments.check:
            return _check(loaded, arguments.root)
        return _apply(loaded, arguments.root, reverse=arguments.reverse)
    except apply.RefusedError as error:
        return _refused(error.statuses, loaded, arguments.root, "nothing was changed")
    except TreeError as error:
        return _fail(str(error), MISUSE)
    except PatchesError as error:
        return _fail(str(error), FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m patches", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    apply_parser = commands.add_parser("apply", help="bring the series onto a tree: all or nothing")
    apply_parser.add_argument("root", type=Path, metavar="ROOT", help=_ROOT_HELP)
    mode = apply_parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 unless the tree carries it all"
    )
    mode.add_argument("--reverse", action="store_true", help="take the series off again")

    show_parser = commands.add_parser("show", help="say what the series is, and what ROOT carries")
    show_parser.add_argument("root", type=Path, nargs="?", metavar="ROOT", help=_ROOT_HELP)
    show_parser.add_argument("--format", choices=("text", "json"), default="text")

    load_parser = commands.add_parser(
        "loadcheck", help="let vLLM load the AMD draft class of ROOT, without GPU or weights"
    )
    load_parser.add_argument("root", type=Path, metavar="ROOT", help=_ROOT_HELP)
    load_parser.add_argument("--format", choices=("text", "json"), default="text")
    load_parser.add_argument(
        "--at-least", choices=LEVELS, default=LEVELS[0], help="exit 1 if the check gets less far"
    )

    load_parser.add_argument(
        "--speculative-config",
        metavar="JSON",
        help="what the server is given under this name (default: the recipe's)",
    )

    commands.add_parser("audit", help="find what shared code reads and a platform's class lacks")
    commands.add_parser(
        "compile", help="compile the path's Triton kernels for the cards, without one"
    )
    return parser


def _show(loaded: series.Series, root: Path | None, form: str) -> int:
    data = show.provenance(loaded, root)
    proven = show.built()
    if proven is not None:
        data["build"] = proven
    print(show.as_json(data) if form == "json" else show.as_text(data), flush=True)
    return OK


def _load_check(loaded: series.Series, arguments: argparse.Namespace) -> int:
    given = settings.given(arguments.speculative_config)
    # Imported late: the other commands need nothing of the recipe.
    tables = [given] if given else importlib.import_module("deploy.recipe").load().drafts
    found = check.check_each(arguments.root, loaded, tables)
    print(show.as_json(found.as_data()) if arguments.format == "json" else found.sentence())
    if not found.reached(arguments.at_least):
        return _fail(f"load check: {found.level}, asked for {arguments.at_least}", FAILED)
    return OK


def _check(loaded: series.Series, root: Path) -> int:
    statuses = apply.status(root, loaded)
    if any(status.is_bad for status in statuses):
        return _refused(statuses, loaded, root, "not carried")
    _say_states(statuses)
    _say_left(statuses, root)
    if not all(status.carried for status in statuses):
        return _fail(f"not carried: run: python3 -m patches apply {root}", FAILED)
    return OK


def _apply(loaded: series.Series, root: Path, *, reverse: bool) -> int:
    outcome = apply.apply(root, loaded, reverse=reverse)
    if outcome.rolled_back:
        print(f"rolled back {outcome.rolled_back} file(s) of an interrupted run")
    verb = "removed" if reverse else "applied"
    for status, sha256 in outcome.changed:
        print(f"{verb}: {status.patch}: {status.target} is now {sha256}")
    changed = {status.patch for status, _ in outcome.changed}
    for status in outcome.found:
        if status.patch not in changed:
            print(f"nothing to do: {status.patch}: {_nothing(status, reverse)}")
    if not reverse:
        _say_left(apply.status(root, loaded), root)
    return OK


def _refused(
    statuses: Sequence[apply.PatchStatus], loaded: series.Series, root: Path, outcome: str
) -> int:
    """Say of a tree that the series does not fit what it has, lacks and answers wrongly."""
    version = find(root).version
    _say_states(statuses)
    for fault in faults.left(version, statuses):
        print(f"still wrong: {fault.sentence()}")
    bad = sorted({status.patch.partition("-")[0] for status in statuses if status.is_bad})
    verb = "does" if len(bad) == 1 else "do"
    way_out = faults.way_out(loaded)
    if version is not None and version.partition("+")[0] in faults.fitting(loaded):
        way_out = f"vLLM {version} as it was released"
    of = "of unknown release" if version is None else version
    return _fail(
        f"{outcome}: {', '.join(bad)} {verb} not fit this vLLM {of}: use {way_out}", FAILED
    )


def _say_states(statuses: Sequence[apply.PatchStatus]) -> None:
    for status in statuses:
        print(f"{status.state}: {status.patch}: {status.detail}")


def _say_left(statuses: Sequence[apply.PatchStatus], root: Path) -> None:
    version = find(root).version
    left = faults.left(version, statuses)
    for fault in left:
        print(f"still wrong: {fault.sentence()}")
    of = f"vLLM {version or 'of unknown release'}"
    if all(status.state == "upstream" for status in statuses):
        print(f"nothing to carry: {of} has every change of the series")
    elif not left:
        print(f"nothing is left: {of} has none of the known faults")


def _nothing(status: apply.PatchStatus, reverse: bool) -> str:
    return f"{status.target}: not applied" if reverse and not status.carried else status.detail


def _fail(message: str, code: int) -> int:
    print(f"patches: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    programs.run(main)
