"""`python3 -m deploy evidence`: one file that says what was seen of a profile on this machine.

Preflight, the smoke test and the accuracy test. The file holds no host name, address, path or key,
so that it can be sent to this project, where it fills the profile's row of the README. Exit codes:
0 all held, 1 something did not, 2 it could not be told, or misuse.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

from deploy import environment, recipe
from deploy.addresses import http_parts
from deploy.environment import SetupError
from deploy.files import SecretError, read_secret, why_not_writable, write_whole
from deploy.preflight import checks, facts
from deploy.preflight import cli as preflight
from deploy.preflight.host import Host
from deploy.programs import Misuse, Parser
from deploy.recipe import Profile, Recipe, RecipeError
from deploy.redaction import Redaction
from deploy.validation.accuracy import WAIT_S
from deploy.validation.parts import (
    OUTCOMES,
    UNKNOWN,
    EvidenceError,
    accuracy_part,
    machine_part,
    no_report,
    preflight_part,
    smoke_part,
    verdict,
)
from deploy.validation.row import HEADER, row

SCHEMA = 2
OUT = environment.ROOT / "build" / "evidence.json"
LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Target:
    """A running server and the profile that it is held against. `key` is never written."""

    profile: Profile
    url: SplitResult
    model: str
    key_file: Path | None = None
    key: str = ""

    @property
    def is_local(self) -> bool:
        """Whether the server listens on this machine, so that preflight speaks of its host."""
        return self.url.hostname in LOCAL


# Runs the test of that name (`smoke`, `accuracy`) on a target and returns its JSON report.
Tester = Callable[[str, Target], Mapping[str, Any]]


def gather(target: Target, host: Host, loaded: Recipe, test: Tester) -> dict[str, Any]:
    """The evidence as a table for JSON. Raises EvidenceError."""
    looked = preflight.inspect(host, loaded, target.profile)
    parts = {
        "smoke": smoke_part(test("smoke", target)),
        "accuracy": accuracy_part(target.profile, test("accuracy", target)),
    }
    profile = target.profile
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "dspark-rocm evidence",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": verdict([part["outcome"] for part in parts.values()]),
        "profile": {
            "name": profile.name,
            "model": None if profile.is_rehearsal else profile.model.id,
            "revision": None if profile.is_rehearsal else profile.revision,
            "vllm": profile.vllm_version,
            # What the recipe pins; the server's own version stands in the smoke test's part.
            "pinned_image_digest": None if profile.is_rehearsal else profile.vllm.digest,
            "speculative": None if profile.is_rehearsal else profile.speculative,
        },
        "machine": machine_part(host) if target.is_local else None,
        "preflight": preflight_part(looked) if target.is_local else None,
        **parts,
    }
    found["row"] = row(found, profile)
    clean = redaction(target, host).clean(found)
    if not isinstance(clean, dict):
        raise TypeError("a table stays a table")
    return clean


def run_test(name: str, target: Target) -> Mapping[str, Any]:
    """A test in its locked environment; its table goes to the terminal."""
    return test_with(str(environment.ensure("health")), name, target)


def test_with(python: str, name: str, target: Target) -> Mapping[str, Any]:
    """A test run by an interpreter that has what it needs. Raises EvidenceError."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.json"
        command = [python, "-m", "healthcheck", name, target.url.geturl()]
        command += ["--profile", target.profile.name, "--model", target.model, "--json", str(file)]
        command += ["--wait", f"{WAIT_S:.0f}"]
        if target.key_file:
            command += ["--api-key-file", str(target.key_file)]
        code = subprocess.run(command, cwd=environment.ROOT, stdout=sys.stderr, check=False)
        try:
            report = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            raise EvidenceError(
                f"{name}: ended with code {code.returncode} and wrote no report; see its lines"
            ) from None
    if not isinstance(report, dict):
        raise no_report(name, "no table")
    return report


def redaction(target: Target, host: Host) -> Redaction:
    """What is known of this machine and this server, to be taken out."""
    names = (host.hostname(), platform.node(), target.url.hostname or "")
    # A host may be called as its cards are.
    return Redaction.of(names, [target.key], kept=(target.profile.name, *LOCAL))


def main(argv: Sequence[str] | None = None, test: Tester = run_test) -> int:
    """Gather, write, and print the row."""
    try:
        args = _parser().parse_args(argv)
        host = Host()
        loaded = recipe.load()
        target = _target(args, host, loaded)
        blocked = why_not_writable(args.out)
        if blocked:
            raise EvidenceError(f"--out {args.out}: {blocked}; give a file that can be written")
        found = gather(target, host, loaded, test)
        write_whole(args.out, json.dumps(found, indent=2) + "\n")
    except SystemExit as e:  # --help
        return int(e.code or 0)
    except (Misuse, EvidenceError, RecipeError, SetupError, OSError) as e:
        print(f"evidence: {' '.join(str(e).split())}", file=sys.stderr)
        return OUTCOMES.index(UNKNOWN)
    except KeyboardInterrupt:
        print("evidence: interrupted; nothing is written", file=sys.stderr)
        return 130
    _say(f"{target.profile.name} is {found['verdict']}; written to {args.out}: read it, send it")
    print(f"{HEADER}\n{found['row']}")
    return OUTCOMES.index(found["verdict"])


def _target(args: argparse.Namespace, host: Host, loaded: Recipe) -> Target:
    name = args.profile or host.environ.get("DSPARK_PROFILE")
    profile = loaded.profile(name) if name else checks.pick(facts.gather(host), loaded)[0]
    if profile is None:
        raise EvidenceError(
            "--profile: none was given and no card here fits one; it is one of "
            f"{', '.join(loaded.profiles)}"
        )
    url = args.url or f"http://127.0.0.1:{profile.ports.serve}"
    parts = http_parts(url)
    if parts is None or parts.username or parts.password:
        raise EvidenceError(f"--url: got {url!r}; give http://HOST:PORT of a running server")
    key = _key(args.api_key_file) if args.api_key_file else ""
    model = args.model or profile.served_model_name
    return Target(profile, parts, model, args.api_key_file and args.api_key_file.absolute(), key)


def _key(path: Path) -> str:
    try:
        key = read_secret(path)
    except OSError as e:
        raise EvidenceError(f"--api-key-file {path}: {e.strerror}; give a readable file") from e
    except SecretError as e:
        raise EvidenceError(f"--api-key-file {path}: {e}") from e
    if not key:
        raise EvidenceError(f"--api-key-file {path}: no key in it; give a file with one line")
    return key


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python3 -m deploy evidence", description=__doc__)
    parser.add_argument("--profile", help="what is served; default DSPARK_PROFILE, else by card")
    parser.add_argument("--url", help="the running server; default: the profile's port here")
    parser.add_argument("--model", help="served model name; default: the profile's")
    key_file = os.environ.get("API_KEY_FILE")  # as `make up` takes it
    parser.add_argument(
        "--api-key-file",
        type=Path,
        default=Path(key_file) if key_file else None,
        help="file that holds the server's API key; default API_KEY_FILE",
    )
    parser.add_argument("--out", type=Path, default=OUT, help="default: build/evidence.json")
    return parser


def _say(text: str) -> None:
    print(f"evidence: {text}", file=sys.stderr, flush=True)
