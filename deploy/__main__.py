"""`python3 -m deploy`: plan, preflight, environments, smoke and accuracy test, releases."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys

from deploy import environment, plan, programs, recipe
from deploy.containers import weights
from deploy.containers.compose import HostError
from deploy.environment import SetupError
from deploy.plan import PlanError
from deploy.recipe import Profile, RecipeError, facts, release, switches
from deploy.recipe.release import Release
from deploy.validation import accuracy, smoke
from patches import faults
from patches.audit import aiter
from patches.errors import PatchesError

# Commands with a command line of their own; their modules are imported when asked for.
ELSEWHERE = {
    "preflight": ("deploy.preflight.cli", "look at this machine before a server is started on it"),
    "containers": ("deploy.containers.cli", "build, start, watch and stop the containers here"),
    "evidence": ("deploy.validation.evidence", "write one file of what was seen of a profile here"),
    "engine-config": ("deploy.preflight.engine", "let vLLM itself judge the plan, without weights"),
}
FORMS = ("argv", "env", "json", "shell")


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; 0 done, 1 refused, 2 misused."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in ELSEWHERE:
        module = importlib.import_module(ELSEWHERE[argv[0]][0])
        more = [stand_in] if argv[0] == "containers" else []
        return int(module.main(argv[1:], *more))
    parser = argparse.ArgumentParser(prog="python3 -m deploy", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    p = commands.add_parser("plan", help="print what would run; flags after -- are added")
    p.add_argument("--profile", default=os.environ.get("DSPARK_PROFILE"), help="profile to plan")
    p.add_argument("--format", choices=FORMS, default="shell")
    p.add_argument("extra", nargs="*", metavar="FLAG", help="extra vllm serve flags, after --")
    p.set_defaults(run=run_plan)

    p = commands.add_parser("profiles", help="list the profiles with their evidence")
    p.set_defaults(run=run_profiles)

    p = commands.add_parser("releases", help="what is known of each release of vLLM")
    p.set_defaults(run=run_releases)

    p = commands.add_parser("environment", help="make a locked environment; print its python")
    p.add_argument("name", choices=environment.NAMES)
    p.set_defaults(run=run_environment)

    p = commands.add_parser("weights", help="download the weights and read them through")
    p.add_argument("--profile", default=os.environ.get("DSPARK_PROFILE"), help="what serves them")
    p.set_defaults(run=run_weights)

    p = commands.add_parser("smoke", help="start what is here to test, and test it")
    p.set_defaults(run=run_smoke)

    p = commands.add_parser("accuracy", help="ask a server that runs what can be checked")
    p.add_argument("--profile", default=os.environ.get("DSPARK_PROFILE"), help="what it serves")
    p.add_argument("--url", default="", help="the server (default: the profile's port here)")
    p.set_defaults(run=run_accuracy)

    for name, (_, text) in ELSEWHERE.items():
        commands.add_parser(name, help=text, add_help=False)

    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except (RecipeError, PlanError, SetupError, PatchesError) as e:
        print(f"deploy: {e}", file=sys.stderr)
        return 1


def run_plan(args: argparse.Namespace) -> int:
    """Print the plan in the form asked for; what to know first goes to stderr."""
    profile = _profile(args.profile)
    speculates, graphs = switches.speculation(os.environ), switches.graphs(os.environ)
    made = plan.make(profile, args.extra, os.environ, speculates, graphs)
    print(f"# profile {made.profile}, evidence: {made.evidence}", file=sys.stderr)
    for warning in made.warnings:
        print(f"# warning: {warning}", file=sys.stderr)
    for line in made.memory.lines() if made.memory else ():
        print(f"# {line}", file=sys.stderr)
    for line in holds(profile.vllm) if profile.gpu else ():
        print(f"# {line}", file=sys.stderr)
    print(made.render(args.format))
    return 0


def _profile(name: str | None) -> Profile:
    """The profile of that name, in the recipe that the environment names. Raises RecipeError."""
    loaded = recipe.load(switches.recipe_file(os.environ))
    if not name:
        raise RecipeError(f"--profile: got none; it is one of {', '.join(loaded.profiles)}")
    return loaded.profile(name)


def holds(pinned: Release) -> tuple[str, ...]:
    """What the pinned image holds beside vLLM, and what of it matters."""
    told = f"ROCm {pinned.rocm}, torch {pinned.torch}, Triton {pinned.triton}, AITER {pinned.aiter}"
    if aiter.is_right(pinned.aiter):
        return (f"the image holds {told}",)
    return (
        f"the image holds {told}",
        f"AITER before {aiter.RIGHT} scores pages past 2 GiB as zero ({aiter.SOURCE}): an image "
        "whose vLLM asks it to is not built",
    )


def run_profiles(_args: argparse.Namespace) -> int:
    """One line a profile."""
    for profile in recipe.load(switches.recipe_file(os.environ)).profiles.values():
        print(f"{profile.name:10} {profile.evidence}: {profile.note}")
    return 0


def run_releases(_args: argparse.Namespace) -> int:
    """A paragraph for each release: its image, what that holds, how it differs, what is wrong."""
    chosen = recipe.load().vllm.version
    for version in release.names():
        known = release.load(version)
        print(f"vLLM {version}{' (chosen)' if version == chosen else ''}")
        for name in ("commit", "image", "digest", "rocm", "torch", "triton", "aiter"):
            print(f"  {name:10}{getattr(known, name)}")
        print(f"  {'rehearsal':10}{'yes' if known.rehearsal else 'no vLLM for the CPU'}")
        told = [
            ("fact", key, fact.says) for key, fact in facts.load().items() if fact.holds(version)
        ]
        told += [("fault", f.key, f.symptom) for f in faults.of(version)]
        for kind, key, says in told:
            print(f"  {kind:10}{key}: {says}")
    return 0


def run_environment(args: argparse.Namespace) -> int:
    """Make the environment if it is not there; its interpreter's path is the only stdout."""
    print(environment.ensure(args.name))
    return 0


def run_weights(args: argparse.Namespace) -> int:
    """Fill the hub's cache of this machine, or of the container."""
    return weights.main(_profile(args.profile))


def stand_in() -> dict[str, str]:
    """The rehearsal's base images, made from its environment if this engine has none; by variable.
    Raises HostError."""
    command = [str(environment.ensure("rehearsal")), "-m", "deploy.rehearsal.image"]
    ended = subprocess.run(
        command, cwd=environment.ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if ended.returncode:
        raise HostError("rehearsal: its base image cannot be made; see the line above")
    lines = (line.partition("=") for line in ended.stdout.splitlines())
    return {name: value for name, _, value in lines}


def run_smoke(_args: argparse.Namespace) -> int:
    """Become the smoke test of the server that SMOKE_URL names, or of the rehearsal."""
    return smoke.main()


def run_accuracy(args: argparse.Namespace) -> int:
    """Become the accuracy test of a server that runs."""
    return accuracy.main(_profile(args.profile), args.url)


if __name__ == "__main__":
    programs.run(main)
