"""`python3 -m healthcheck`: run the health service, ask it, test a server, explain a log.

Exit codes: 0 good, 1 bad, 2 could not tell or misused.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from deploy import programs

# `explain` and `flights` run on a bare Python: what the other commands need is imported by them.
if TYPE_CHECKING:
    from healthcheck.client import Client
    from healthcheck.client.answers import Answer

GOOD, BAD, UNKNOWN = 0, 1, 2
PATHS = {"startup": "/startupz", "ready": "/readyz", "live": "/livez/engine"}
# Commands with a command line of their own; their modules are imported when asked for.
ELSEWHERE = {
    "smoke": "look at a server once and judge it",
    "accuracy": "ask a server for answers that can be checked",
    "explain": "name the cause in a server's log",
    "flights": "show what stuck servers were doing",
}
# What a bare Python lacks of them.
NEEDED = ("prometheus_client", "requests", "starlette", "urllib3", "uvicorn")
ASK_S = 5.0
POLL_S = 1.0


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand."""
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] not in NEEDED:
            raise
        fix = "run it with what `python3 -m deploy environment health` prints"
        print(
            f"healthcheck: {e.name} is not installed for {sys.executable}; {fix}", file=sys.stderr
        )
        return UNKNOWN


def _main(argv: list[str]) -> int:
    if argv and argv[0] in ELSEWHERE:
        module = importlib.import_module(f"healthcheck.{argv[0]}")
        return int(module.main(argv[1:]))
    args = _parser().parse_args(argv)
    from deploy.recipe import RecipeError
    from healthcheck.service.settings import SettingsError

    try:
        return int(args.run(args))
    except (SettingsError, RecipeError) as e:
        print(f"healthcheck: {e}", file=sys.stderr)
        return UNKNOWN


def _parser() -> argparse.ArgumentParser:
    from deploy.recipe import switches

    parser = argparse.ArgumentParser(
        prog="python3 -m healthcheck", description=__doc__, allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    beside = switches.health_url(os.environ)

    p = commands.add_parser("serve", help="run the health service", allow_abbrev=False)
    p.add_argument("--profile", default=os.environ.get("DSPARK_PROFILE"), help="recipe profile")
    p.add_argument("--target", help="the vLLM server (default: port of the recipe on this host)")
    p.add_argument("--model", help="the model it must serve (default: of the profile)")
    p.add_argument("--host", default="127.0.0.1", help="address to listen on")
    p.add_argument("--port", type=int, help="port to listen on (default: of the recipe)")
    p.add_argument("--grpc-port", type=int, help="port for grpc.health.v1 (default: none)")
    p.add_argument("--api-key-file", type=Path, help="file with the server's API key")
    p.add_argument("--ca-file", type=Path, help="certificates to trust of an https target, in PEM")
    p.add_argument("--token-file", type=Path, help="file with the token of /, /report and /drain")
    p.add_argument("--log", type=Path, help="the server's log, to name causes")
    p.add_argument("--drain", type=float, help="seconds between SIGTERM and the end")
    p.set_defaults(run=run_serve)

    for name, text in (("check", "ask the health service once"), ("wait", "ask until it is so")):
        p = commands.add_parser(name, help=text, allow_abbrev=False)
        p.add_argument("--for", dest="what", choices=PATHS, default="ready")
        p.add_argument("--url", default=beside, help="the service (default: DSPARK_HEALTH_URL)")
        p.set_defaults(run=run_check)
        if name == "wait":
            p.add_argument("--timeout", type=float, default=600.0, help="seconds to wait at most")
            p.set_defaults(run=run_wait)

    p = commands.add_parser(
        "idle", help="wait until a server has nothing to do", allow_abbrev=False
    )
    p.add_argument("--profile", default=os.environ.get("DSPARK_PROFILE"), help="recipe profile")
    p.add_argument("--target", help="the vLLM server (default: port of the recipe on this host)")
    p.add_argument("--url", default=beside, help="the service (default: DSPARK_HEALTH_URL)")
    p.add_argument("--at-least", type=float, default=10.0, help="seconds to wait in any case")
    p.add_argument("--timeout", type=float, help="seconds at most (default: drain_budget_s)")
    p.set_defaults(run=run_idle)

    for name, text in ELSEWHERE.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def run_serve(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from deploy.recipe import switches
    from healthcheck.service import app as service
    from healthcheck.service import settings

    made = settings.make(
        args.profile,
        target=args.target,
        model=args.model,
        host=args.host,
        port=args.port,
        api_key_file=args.api_key_file,
        ca_file=args.ca_file,
        token_file=args.token_file,
        log=args.log,
        drain_s=settings.DRAIN_S if args.drain is None else args.drain,
        grpc_port=args.grpc_port,
        recipe_file=switches.recipe_file(os.environ),
        speculation=switches.speculation(os.environ),
        environ=os.environ,
    )
    return GOOD if service.serve(made, service.listen(made.host, made.port)) else UNKNOWN


def run_check(args: argparse.Namespace) -> int:
    """One question, one line, one exit code."""
    from healthcheck.client import Client
    from healthcheck.service import settings

    code, line = _ask(Client(settings.url("--url", args.url)), args.what)
    print(line)
    return code


def run_wait(args: argparse.Namespace) -> int:
    """Ask until good or out of time; every change is told on stderr, the last line on stdout."""
    from healthcheck.client import Client
    from healthcheck.service import settings

    client = Client(settings.url("--url", args.url))
    until = time.monotonic() + settings.seconds("--timeout", args.timeout)
    told = ""
    while True:
        code, line = _ask(client, args.what)
        if code == GOOD or time.monotonic() >= until:
            print(line)
            return code
        words = line.split(" (")[0]  # details count seconds
        if words != told:
            print(f"waiting: {line}", file=sys.stderr, flush=True)
            told = words
        time.sleep(min(POLL_S, max(until - time.monotonic(), 0.0)))


def run_idle(args: argparse.Namespace) -> int:
    """Ask until nothing runs or waits; every change is told on stderr, the last line on stdout."""
    from deploy.recipe import switches
    from healthcheck.client import Client
    from healthcheck.service import idle, settings

    recipe_file = switches.recipe_file(os.environ)
    made = settings.make(args.profile, target=args.target, recipe_file=recipe_file)
    budget_s = made.policy.health.drain_budget_s if args.timeout is None else args.timeout
    code, line = idle.wait(
        Client(made.target),
        Client(settings.url("--url", args.url)),
        at_least_s=settings.seconds("--at-least", args.at_least),
        budget_s=settings.seconds("--timeout", budget_s),
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(line)
    return code


def _ask(client: Client, what: str) -> tuple[int, str]:
    from healthcheck.client.answers import Failure

    answer = client.get(f"{PATHS[what]}?verbose", deadline_s=ASK_S, limit_bytes=65536)
    if isinstance(answer, Failure):
        return UNKNOWN, f"UNKNOWN service.unreachable ({answer.detail})"
    return _code(answer), answer.text.split("\n", 1)[0][:500]


def _code(answer: Answer) -> int:
    return {200: GOOD, 503: BAD}.get(answer.status, UNKNOWN)


if __name__ == "__main__":
    programs.run(main)
