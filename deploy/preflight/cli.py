"""`python3 -m deploy preflight`: look at this machine before a server is started on it.

Exit codes: 0 nothing fails, 1 something does, 2 misused.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter
from dataclasses import dataclass

from deploy import recipe
from deploy.plan.memory import Memory
from deploy.preflight import checks, facts, start
from deploy.preflight.caches import cache_folders, note_caches
from deploy.preflight.findings import LEVELS, Finding
from deploy.preflight.host import Host
from deploy.programs import Misuse, Parser
from deploy.recipe import Profile, Recipe, RecipeError, switches

FORMS = ("text", "json")


@dataclass(frozen=True)
class Report:
    """Every finding, worst first, the profile they hold for, and what it asks of each card."""

    profile: str | None
    findings: tuple[Finding, ...]
    memory: Memory | None = None

    @property
    def exit_code(self) -> int:
        """1 when a finding stops the start."""
        return int(any(f.level == "fail" for f in self.findings))


def main(argv: list[str], host: Host | None = None) -> int:
    """Run the checks on a machine, this one without another, and print them; the exit code."""
    host = host or Host()
    try:
        args = _parser().parse_args(argv)
        loaded = recipe.load(switches.recipe_file(host.environ))
        name = args.profile or host.environ.get("DSPARK_PROFILE")
        profile = loaded.profile(name) if name else None
        speculates = switches.speculation(host.environ)
        graphs = switches.graphs(host.environ)
    except SystemExit as e:  # --help
        return int(e.code or 0)
    except (Misuse, RecipeError, ValueError, OSError) as e:
        print(f"preflight: {e}", file=sys.stderr)
        return 2
    report = inspect(host, loaded, profile, args.extra, speculates, graphs)
    print(render(report, args.format))
    if args.note_caches and report.exit_code == 0 and report.profile:
        return leave_notes(host, loaded.profile(report.profile))
    return report.exit_code


def inspect(
    host: Host,
    loaded: Recipe,
    profile: Profile | None,
    extra: list[str] | tuple[str, ...] = (),
    speculation: bool = True,
    graphs: bool = False,
) -> Report:
    """Every check that applies; without a profile the one that fits the machine is taken."""
    machine = None
    findings: list[Finding] = []
    if profile is None:
        machine = facts.gather(host)
        profile, picked = checks.pick(machine, loaded)
        findings.append(picked)
    asked = None
    if profile is not None:
        begun = start.gather(host, profile, extra, speculation, graphs)
        if not profile.is_rehearsal:
            findings += checks.machine_findings(machine or facts.gather(host), begun)
        findings += checks.start_findings(begun)
        asked = begun.memory
    ordered = sorted(findings, key=lambda f: LEVELS.index(f.level))
    return Report(profile.name if profile else None, tuple(ordered), asked)


def render(report: Report, form: str) -> str:
    """The report as text for people or JSON for programs."""
    if form == "json":
        table = {
            "profile": report.profile,
            "exit_code": report.exit_code,
            "findings": [dataclasses.asdict(f) for f in report.findings],
            "memory": dataclasses.asdict(report.memory) if report.memory else None,
        }
        return json.dumps(table, indent=2)
    lines: list[str] = []
    for f in report.findings:
        lines.append(f"{f.level:7} {f.check}: {_one_line(f.seen)}")
        if f.level != "ok":
            lines += [f"        why: {_one_line(f.why)}"] if f.why else []
            lines += [f"        fix: {_one_line(f.remedy)}"] if f.remedy else []
    lines += report.memory.lines() if report.memory else []
    counts = Counter(f.level for f in report.findings)
    told = ", ".join(f"{counts[level]} {level}" for level in LEVELS)
    return "\n".join([*lines, f"preflight of {report.profile or 'no profile'}: {told}"])


def leave_notes(host: Host, profile: Profile) -> int:
    """Write into empty caches what they will be made for."""
    try:
        written = note_caches(
            cache_folders(host), profile.vllm_version, profile.gpu.arch if profile.gpu else "cpu"
        )
    except OSError as e:
        print(f"preflight: {e.filename}: {e.strerror}; make it writable", file=sys.stderr)
        return 1
    for folder in written:
        print(f"noted in {folder}: vLLM {profile.vllm_version}")
    return 0


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python3 -m deploy preflight", description=__doc__)
    parser.add_argument("--profile", help="profile to start; default DSPARK_PROFILE, else by card")
    parser.add_argument("--format", choices=FORMS, default="text")
    parser.add_argument(
        "--note-caches",
        action="store_true",
        help="if nothing fails, write into empty caches the release and architecture they are for",
    )
    parser.add_argument("extra", nargs="*", metavar="FLAG", help="extra server flags, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
