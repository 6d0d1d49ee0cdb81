#!/usr/bin/env python3
"""Entrypoint of the image: check the vLLM that is about to run, print the plan, exec it.

    entrypoint.py                      serve the profile named by DSPARK_PROFILE
    entrypoint.py --max-num-seqs 8     the same with extra `vllm serve` flags
    entrypoint.py bash                 anything else runs as given

The variables that it reads are in docker/README.md.
Exit codes before the exec: 1 refused, 2 misused; nothing has been started then.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deploy import plan, recipe
from deploy.addresses import to_bind
from deploy.plan import Plan, PlanError
from deploy.preflight import cli as look
from deploy.recipe import RecipeError, release, switches
from patches import apply, faults, series
from patches.errors import PatchesError
from patches.tree import find

HOME = Path(__file__).resolve().parent.parent


class Refusal(RuntimeError):
    """The server may not start; the message is one line with the command that mends it."""


def main(arguments: Sequence[str]) -> int:
    """Check, plan, print and exec; returns only when refused."""
    if arguments and not arguments[0].startswith("-"):
        return run_as_given(arguments)
    try:
        root = vllm_root()
        notes = choose_release(root)
        made = make_plan(arguments)
        notes += carries_series(root, made)
        preflight(made, arguments)
    except (Refusal, RecipeError, PlanError, PatchesError) as e:
        print(f"entrypoint: {e}", file=sys.stderr)
        return 1
    for line in (
        f"profile {made.profile}, evidence: {made.evidence}",
        f"vLLM at {root}",
        *notes,
        *(f"warning: {w}" for w in made.warnings),
    ):
        print(f"entrypoint: {line}")
    print(made.render("shell"), flush=True)
    os.execve(
        sys.executable,
        made.exec_argv(sys.executable),
        {**os.environ, **made.env, "PYTHONPATH": python_path()},
    )


def python_path() -> str:
    """PYTHONPATH with this folder at its end: vLLM imports what --middleware names."""
    return os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(HOME))))


def preflight(made: Plan, extra: Sequence[str]) -> None:
    """Look at the machine, as DSPARK_PREFLIGHT says. Raises Refusal when a check fails."""
    mode = switches.preflight(os.environ)
    if mode == "off":
        return
    words = ["--profile", made.profile]
    code = look.main([*words, "--note-caches", "--", *extra])
    if code == 0 and mode == "full":
        # A process of its own: vLLM's import and the GPU's context end with it.
        command = [sys.executable, "-m", "deploy", "engine-config", *words, "--", *extra]
        code = subprocess.run(command, cwd=HOME, check=False).returncode
    if code and mode != "warn":
        raise Refusal(
            f"preflight of {made.profile}: exit {code}; mend what fails above, or start all the "
            "same with DSPARK_PREFLIGHT=warn"
        )


def run_as_given(arguments: Sequence[str]) -> int:
    """Become another command, as `docker run IMAGE bash` expects."""
    program = shutil.which(arguments[0])
    if program is None:
        print(
            f"entrypoint: {arguments[0]}: no such command; server flags begin with -",
            file=sys.stderr,
        )
        return 2
    try:
        os.execv(program, list(arguments))
    except OSError as e:  # such as a script that does not say what runs it
        print(f"entrypoint: {program}: {e.strerror}; name a program", file=sys.stderr)
        return 2


def make_plan(extra: Sequence[str]) -> Plan:
    """The plan of the environment's profile. Raises RecipeError, PlanError or Refusal."""
    loaded = recipe.load(switches.recipe_file(os.environ))
    name = os.environ.get("DSPARK_PROFILE")
    if not name:
        raise Refusal(f"DSPARK_PROFILE: is not set; it is one of {', '.join(loaded.profiles)}")
    speculates = switches.speculation(os.environ)
    graphs = switches.graphs(os.environ)
    profile = loaded.profile(name)
    if "host" in profile.serve:
        host = to_bind(str(profile.serve["host"]))
        profile = replace(profile, serve={**profile.serve, "host": host})
    return plan.make(profile, extra, os.environ, speculates, graphs)


def choose_release(root: Path) -> list[str]:
    """Let the vLLM in `root` say which release the plan is for; what to warn of.

    Raises Refusal where RELEASE names another one. One that has no folder is planned for as the
    recipe's default.
    """
    seen = (find(root).version or "").partition("+")[0]
    given = os.environ.get(release.VARIABLE)
    if given and seen and given != seen:
        raise Refusal(f"{release.VARIABLE}: got {given!r}; the vLLM at {root} is {seen}: unset it")
    if seen in release.names():
        os.environ[release.VARIABLE] = seen
    elif not given:
        known = ", ".join(release.names())
        told = f"this vLLM is {seen or 'of unknown release'}, which is none of {known}"
        return [f"warning: {told}: the plan is for the recipe's release"]
    return []


def vllm_root() -> Path:
    """The folder that holds the `vllm` package this interpreter would import, found unimported."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        fix = "run in the image, or `make rehearsal`"
        raise Refusal(f"vllm: is not installed for {sys.executable}; {fix}")
    return Path(next(iter(spec.submodule_search_locations))).parent


def carries_series(root: Path, made: Plan) -> list[str]:
    """What the tree carries of patches/series, a line a patch, and the faults it has left.

    Raises Refusal when the plan is hit by a fault that refuses: that server would die at its start,
    or answer wrongly without a word. What is left otherwise is a warning.
    """
    loaded = series.load()
    found = apply.status(root, loaded)
    left = faults.left(find(root).version, found)
    hit = [f for f in left if f.hits(made.asks, made.longest)]
    fatal = "; ".join(fault.told(made.longest) for fault in hit if fault.refuses)
    if fatal:
        fits = not any(status.is_bad for status in found)
        command = f"cd '{HOME}' && {sys.executable} -m patches apply '{root}'"
        way_out = faults.way_out(loaded, asked=made.asks)
        mend = f"mend it: {command}" if fits else f"no patch fits it: use {way_out}"
        raise Refusal(f"vLLM at {root}: {fatal}; {mend}")
    return [
        *dict.fromkeys(f"{status.patch}: {status.state}" for status in found),
        *(f"warning: serving with {f.sentence()}" for f in hit),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
