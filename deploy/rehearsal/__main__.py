"""``python3 -m deploy.rehearsal``: server, health service, smoke, upgrade."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import programs, recipe
from deploy.containers.compose import HostError
from deploy.environment import SetupError
from deploy.recipe import RecipeError
from deploy.rehearsal.environment import PROFILES, QWEN, check_profile
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.server import serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 is success, 1 a rehearsal that cannot start, 2 a misuse."""
    try:
        return _run(_parser().parse_args(arguments))
    except (RehearsalError, RecipeError, SetupError, HostError) as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, RehearsalError) else 1


def _run(options: argparse.Namespace) -> int:
    if options.command == "serve":
        serve(check_profile(options.profile), options.host, options.port, os.environ)
    return _supervise(options)


def _supervise(options: argparse.Namespace) -> int:
    # The health service's packages are needed here only: the other commands run on bare Python.
    from deploy.rehearsal import rolling, supervisor, upgrade
    from healthcheck.smoke import Files

    name = check_profile(options.profile)
    if options.command == "run":
        return supervisor.run(name, options.port, options.health_port, _say)
    if options.command == "upgrade":
        before, after = upgrade.both(options.before, options.after)
        if options.containers:
            return rolling.run(before, after, _say)
        return upgrade.run(before, after, name, options.out or upgrade.OUT, _say)
    files = Files(options.json, options.junit, options.html)
    logs = options.logs or supervisor.LOGS
    return supervisor.smoke(name, files, _say, options.full, logs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m deploy.rehearsal", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve", help="serve a rehearsal profile in the foreground")
    server.add_argument("--host", help="address to listen on (default: the recipe's)")
    server.add_argument("--port", type=_port, help="port to listen on (default: the recipe's)")
    ports = recipe.load().ports
    both = commands.add_parser("run", help="server and health service in the foreground")
    both.add_argument("--port", type=_port, default=ports.serve, help="port of the server")
    both.add_argument(
        "--health-port", type=_port, default=ports.health, help="port of the health service"
    )
    smoke = commands.add_parser("smoke", help="start both, run the smoke test on them, stop both")
    for kind in ("json", "junit", "html"):
        smoke.add_argument(f"--{kind}", type=Path, help=f"file to write the report to, as {kind}")
    smoke.add_argument("--logs", type=Path, help="folder for logs and a sample of /metrics")
    way = commands.add_parser("upgrade", help="smoke two releases in turn and compare them")
    way.add_argument("--from", dest="before", default="", metavar="VERSION", help="default: ours")
    way.add_argument("--to", dest="after", default="", metavar="VERSION", help="default: newest")
    way.add_argument("--out", type=Path, help="folder for what they leave")
    replaced = "yes: instead replace one by the other and go back, with compose, and count requests"
    way.add_argument("--containers", choices=("", "yes"), default="", help=replaced)
    for served in (server, both, smoke, way):
        served.add_argument("--profile", default=QWEN, help=f"{' or '.join(PROFILES)}")
    size = smoke.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", default=None, help="also what takes minutes")
    size.add_argument("--quick", action="store_false", dest="full", help="what takes seconds")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise RehearsalError(
            f"--port {text}: not a port: give a number from 1 to 65535", exit_code=2
        )
    return int(text)


if __name__ == "__main__":
    programs.run(main)
