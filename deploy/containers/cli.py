"""`python3 -m deploy containers`: build, start, watch and stop the containers on this host.

`up` looks for the GPU devices of this host and for what its pip is told of a proxy, takes the rest
from the recipe, writes all of it to build/compose/PROFILE.env and calls `docker compose` with it. A
variable that is already in the environment wins; PASSED lists those that may be.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from deploy import recipe
from deploy.containers.compose import ROOT, Compose, HostError, require_compose, run_program
from deploy.containers.variables import check, env_text, given, variables
from deploy.environment import SetupError, mirrors
from deploy.files import write_whole
from deploy.recipe import Profile, RecipeError, switches
from patches.errors import PatchesError

ENV_FILES = ROOT / "build" / "compose"
STACKS = ROOT / "docker" / "wheels" / "server"
KFD = Path("/dev/kfd")
DRI = Path("/dev/dri")

# The one profile of a rehearsal that has images.
REHEARSAL = "rehearsal"

StandIn = Callable[[], Mapping[str, str]]


def main(argv: list[str], stand_in: StandIn = dict) -> int:
    """Run one subcommand; 0 good, 1 refused or not ready, 2 misused. `stand_in` makes the base
    images of a rehearsal and says their variables; without it the environment has to."""
    parser = argparse.ArgumentParser(prog="python3 -m deploy containers", description=__doc__)
    parser.add_argument("--profile", default="mi355x", help="profile of the recipe")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, text in (
        ("build", partial(run_build, stand_in), "build both images, and nothing else"),
        ("up", partial(run_up, stand_in), "build, start and wait until sampled text was generated"),
        ("down", run_down, "stop and remove both containers; volumes stay"),
        ("logs", run_logs, "follow both logs"),
        ("status", run_status, "say what runs and whether it is ready"),
        ("weights", run_weights, "download the recipe's weights into the volume"),
    ):
        commands.add_parser(name, help=text).set_defaults(run=run)
    args = parser.parse_args(argv)
    try:
        return int(args.run(args.profile))
    except (HostError, RecipeError, SetupError, PatchesError) as e:
        print(f"host: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def run_build(stand_in: StandIn, name: str) -> int:
    """Both images, and nothing else; needs an engine and no GPU."""
    profile = recipe.load().profile(name)
    compose, _ = prepared(profile, stand_in, ".build")
    compose.run("build")
    return 0


def run_up(stand_in: StandIn, name: str) -> int:
    """Build unless SERVER_IMAGE names an image, start, and wait."""
    profile = recipe.load().profile(name)
    check_devices(profile)
    compose, image = prepared(profile, stand_in)
    if not os.environ.get("SERVER_IMAGE"):
        compose.run("build")
        compose.keep_previous(image)
    compose.run("up", "--detach", "--no-build")
    return compose.wait()


def run_down(name: str) -> int:
    """Health service first, then the server, which drains."""
    found(name).run("down")
    return 0


def run_logs(name: str) -> int:
    """Both logs until interrupted."""
    return found(name).call("logs", "--follow", "--tail", "200")


def run_status(name: str) -> int:
    """The containers, and the health service's own word; its exit code."""
    compose = found(name)
    compose.run("ps", "--all")
    return compose.health("check", "--for", "ready")


def run_weights(name: str) -> int:
    """The only command that reaches a model hub; the server itself is offline. Runs `python3 -m
    deploy weights` in the server's image."""
    profile = recipe.load().profile(name)
    if profile.is_rehearsal:
        raise HostError(f"profile: got {name}, whose models are generated; there is no download")
    check_devices(profile)
    compose, _ = prepared(profile)
    if not os.environ.get("SERVER_IMAGE"):
        compose.run("build", "server")
    # No log of its own: it would take the place of that of a server that runs meanwhile.
    alone = ("run", "--rm", "--no-deps", "--env", "DSPARK_LOG=")
    return compose.call(*alone, "server", "python3", "-m", "deploy", "weights")


def prepared(profile: Profile, stand_in: StandIn = dict, purpose: str = "") -> tuple[Compose, str]:
    """Compose with the variables of this host and environment, and the name of the server's image.

    The variables are written to the profile's env file; `purpose` names another one. Raises
    HostError where compose, a value or the rehearsal's base cannot be had, and RecipeError for
    graphs where the profile has no mode of them.
    """
    environ = dict(os.environ)
    if profile.is_rehearsal and profile.name != REHEARSAL:
        run = f"make rehearsal PROFILE={profile.name}"
        raise HostError(f"profile: got {profile.name}, which is for no container; {run}")
    check(given(environ))  # before minutes of work
    if switches.graphs(environ):
        _ = profile.chosen_graphs
    require_compose()
    if profile.is_rehearsal:
        environ = {**stand_in(), **environ}
    values = variables(recipe.load(), profile, {**mirrors.found(environ, ENV_FILES), **environ})
    if not environ.get("SERVER_IMAGE"):
        fetch_stacks()
    return Compose(profile, write(profile, values, purpose)), values["SERVER_IMAGE"]


def fetch_stacks(folder: Path = STACKS) -> None:
    """The wheel of py-spy for the server's image, by pip, unless it is there. Without it the image
    is made all the same, which is said."""
    if any(folder.glob("*.whl")):
        return
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--require-hashes", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    done = run_program(
        [*command, "--requirement", str(ROOT / "docker" / "py-spy.lock")], capture=True
    )
    if done.returncode:
        told = done.stderr.strip().splitlines()
        print(
            f"host: py-spy cannot be had ({told[-1] if told else done.returncode}): the image is "
            f"made without it, and of a stuck server no stacks are kept; put its wheel in {folder}",
            file=sys.stderr,
        )


def check_devices(profile: Profile) -> None:
    """Raises HostError that names the device that is missing; a rehearsal opens none."""
    if not profile.is_rehearsal:
        look_for(KFD, DRI)


def look_for(kfd: Path, dri: Path) -> None:
    """Raises HostError for the first device node that is not there."""
    fix = "load the amdgpu driver (modprobe amdgpu), or `make up PROFILE=rehearsal` without a GPU"
    if not kfd.exists():
        raise HostError(f"{kfd}: is not there; {fix}")
    if not any(dri.glob("renderD*")):
        raise HostError(f"{dri}/renderD*: none is there; {fix}")


def write(profile: Profile, values: Mapping[str, str], purpose: str = "") -> Path:
    """The env file of a profile, whole or not at all."""
    path = ENV_FILES / f"{profile.name}{purpose}.env"
    write_whole(path, env_text(values))
    return path


def found(name: str) -> Compose:
    """Compose with what `up` wrote. Raises HostError when it never ran."""
    profile = recipe.load().profile(name)
    path = ENV_FILES / f"{profile.name}.env"
    if not path.exists():
        raise HostError(f"{path}: is not there; make up PROFILE={name} writes it")
    require_compose()
    return Compose(profile, path)
