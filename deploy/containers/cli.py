"""`python3 -m deploy containers`: build, start, watch and stop the containers on this host.

`up` looks for the GPU devices of this host and for what its pip is told of a proxy, takes the rest
from the recipe, writes all of it to build/compose/PROFILE.env and calls `docker compose` with it. A
variable that is already in the environment wins; PASSED lists those that may be.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy import environment, recipe
from deploy.environment import SetupError, mirrors
from deploy.files import SecretError, read_secret, write_whole
from deploy.recipe import Profile, Recipe, RecipeError, switches
from patches import series
from patches.errors import PatchesError

ROOT = Path(__file__).resolve().parents[2]
ENV_FILES = ROOT / "build" / "compose"
STACKS = ROOT / "docker" / "wheels" / "server"
KFD = Path("/dev/kfd")
DRI = Path("/dev/dri")

# The one profile of a rehearsal that has images.
REHEARSAL = "rehearsal"
# The user of docker/Dockerfile.healthcheck.
HEALTH_UID = 65532

# A server that ended this often without ever being ready will not be ready.
RESTARTS = 3
POLL_S = 2.0

SECRETS = ("API_KEY_FILE", "HEALTH_TOKEN_FILE", "HF_TOKEN_FILE", "CA_FILE", "PIP_CONFIG")
READ_BY_HEALTH = ("API_KEY_FILE", "HEALTH_TOKEN_FILE")
# Where a service is published, and the secret without which everybody there may use it.
GUARDS = {"SERVER_BIND": "API_KEY_FILE", "HEALTH_BIND": "HEALTH_TOKEN_FILE"}
PASSED = (
    *SECRETS,
    *("BASE_IMAGE", "HEALTH_BASE_IMAGE", "SERVER_IMAGE", "HEALTH_IMAGE", "COMPILE_PROOF"),
    *("SERVER_BIND", "SERVER_PORT", "HEALTH_BIND", "HEALTH_PORT", "ALLOW_OPEN", "ALLOW_TAG"),
    *("WEIGHTS", "SERVER_ENV", "COMPOSE_PROJECT_NAME", "RELEASE"),
    *("DSPARK_PREFLIGHT", "DSPARK_SPECULATION", "DSPARK_GRAPHS"),
    *("REHEARSAL_FAULT", "REHEARSAL_SITE"),
)

_LOG = "/var/log/dspark-rocm/server.log"
_ARG = re.compile(r"^ARG (?:HEALTH_)?BASE_IMAGE=(\S+)$", re.MULTILINE)


class HostError(RuntimeError):
    """The containers cannot be had here; the message is one line: setting, value seen, fix."""


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; 0 good, 1 refused or not ready, 2 misused."""
    parser = argparse.ArgumentParser(prog="python3 -m deploy containers", description=__doc__)
    parser.add_argument("--profile", default="mi355x", help="profile of the recipe")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, text in (
        ("build", run_build, "build both images, and nothing else"),
        ("up", run_up, "build, start and wait until sampled text was generated"),
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


def run_build(name: str) -> int:
    """Both images, and nothing else; needs an engine and no GPU."""
    profile = recipe.load().profile(name)
    compose, _ = prepared(profile, purpose=".build")
    compose.run("build")
    return 0


def run_up(name: str) -> int:
    """Build unless SERVER_IMAGE names an image, start, and wait."""
    profile = recipe.load().profile(name)
    check_devices(profile)
    compose, image = prepared(profile)
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


def prepared(profile: Profile, *, purpose: str = "") -> tuple[Compose, str]:
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
    done = _run([*command, "--requirement", str(ROOT / "docker" / "py-spy.lock")], capture=True)
    if done.returncode:
        told = done.stderr.strip().splitlines()
        print(
            f"host: py-spy cannot be had ({told[-1] if told else done.returncode}): the image is "
            f"made without it, and of a stuck server no stacks are kept; put its wheel in {folder}",
            file=sys.stderr,
        )


def require_compose() -> None:
    """Raises HostError unless `docker compose` is there, which a client alone does not bring, and
    an engine answers."""
    if _run(["docker", "compose", "version"], capture=True).returncode:
        raise HostError(
            "docker compose: is not installed; install the package docker-compose (Debian 13) or "
            "docker-compose-plugin (Docker's own)"
        )
    asked = _run(["docker", "ps", "--quiet"], capture=True)
    if asked.returncode:
        told = asked.stderr.strip().splitlines()
        raise HostError(f"docker: {told[-1] if told else 'no engine answers'}; start the engine")


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


def variables(loaded: Recipe, profile: Profile, environ: Mapping[str, str]) -> dict[str, str]:
    """What compose.yaml interpolates. Raises HostError for a value that cannot work."""
    kind = "rehearsal-" if profile.is_rehearsal else ""
    version = f"{loaded.vllm.version}-{series.load().sha256[:12]}"
    made = {
        "COMPOSE_PROJECT_NAME": "dspark-rocm",
        "BASE_IMAGE": base_image(profile, environ),
        "HEALTH_BASE_IMAGE": base_of(ROOT / "docker" / "Dockerfile.healthcheck"),
        "SERVER_IMAGE": f"dspark-rocm/server:{kind}{version}",
        "HEALTH_IMAGE": f"dspark-rocm/healthcheck:{kind}{version}",
    }
    made |= given(environ)
    check(made)
    return {
        **made,
        "DSPARK_PROFILE": profile.name,
        "RELEASE": loaded.vllm.version,
        "REVISION": revision(ROOT),
    }


def revision(checkout: Path) -> str:
    """The commit that is built, with `-dirty` where files differ from it; unknown without git."""
    git = [
        "git",
        "-C",
        str(checkout),
        "describe",
        "--always",
        "--abbrev=40",
        "--dirty",
        "--exclude=*",
    ]
    try:
        told = subprocess.run(git, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return told.stdout.strip() or "unknown"


def base_image(profile: Profile, environ: Mapping[str, str]) -> str:
    """The base of the server's image: BASE_IMAGE, else the release's by tag and digest.

    Raises HostError for none and for a tag alone, unless that is said; a rehearsal's base is made
    here, and an image that is not built has none.
    """
    vllm, own = profile.vllm, environ.get("BASE_IMAGE")
    allowed = environ.get("ALLOW_TAG", "")
    if allowed not in ("", "yes"):
        raise HostError(f"ALLOW_TAG: got {allowed!r}; give yes, or leave it unset")
    image = own or vllm.pinned_image or (vllm.image if allowed else None)
    if profile.is_rehearsal or environ.get("SERVER_IMAGE"):
        return image or vllm.image
    if image is None:
        raise HostError(
            f"BASE_IMAGE: is not set, and the digest of {vllm.image} is {vllm.digest} to this"
            f" project; give BASE_IMAGE={vllm.image}@sha256:..., or ALLOW_TAG=yes for the tag alone"
        )
    if "@sha256:" not in image and not allowed:
        fix = f"give {image}@sha256:..., or ALLOW_TAG=yes"
        raise HostError(f"BASE_IMAGE: got {image}, a tag that may be moved; {fix}")
    return image


def given(environ: Mapping[str, str]) -> dict[str, str]:
    """What the user has set of PASSED."""
    return {name: environ[name] for name in PASSED if environ.get(name)}


def check(values: Mapping[str, str]) -> None:
    """Refuse what compose would fail on later, or mount as an empty folder. Raises HostError."""
    try:
        switches.speculation(values)
        switches.preflight(values)
        switches.graphs(values)
        switches.compile_proof(values)
    except RecipeError as e:
        raise HostError(str(e)) from e
    for name, value in values.items():
        if not value.isprintable() or "'" in value:
            fix = "leave quotes, line breaks and what is not UTF-8 out"
            raise HostError(f"{name}: got {value!r}; {fix}")
    for name in (*SECRETS, "SERVER_ENV"):
        if name not in values:
            continue
        path = Path(values[name])
        try:
            if not path.is_absolute() or not path.is_file():
                raise HostError(f"{name}: got {path}; give the absolute path of a file")
            status = path.stat()
        except OSError as e:
            raise HostError(f"{name}: got {path}: {e.strerror}; give a file that is there") from e
        readable = status.st_mode & stat.S_IROTH or status.st_uid == HEALTH_UID
        if name in READ_BY_HEALTH and not readable:
            raise HostError(
                f"{name}: {path} cannot be read by the health service, which is user {HEALTH_UID};"
                f" chown {HEALTH_UID} {path}"
            )
        if name in READ_BY_HEALTH:
            check_secret(name, path)
    check_binds(values)


def check_secret(name: str, path: Path) -> None:
    """Refuse a file without a secret, which would leave its service open. Raises HostError."""
    with contextlib.suppress(OSError):  # another user's: the services look at it
        try:
            if not read_secret(path):
                raise SecretError
        except SecretError as e:
            raise HostError(f"{name}: {path} {e}") from e


def check_binds(values: Mapping[str, str]) -> None:
    """Refuse to publish what is open beyond this host, unless that is said. Raises HostError."""
    allowed = values.get("ALLOW_OPEN", "")
    if allowed not in ("", "yes"):
        raise HostError(f"ALLOW_OPEN: got {allowed!r}; give yes, or leave it unset")
    for name, guard in GUARDS.items():
        value = values.get(name, "127.0.0.1")
        try:
            address = ipaddress.ip_address(value.removeprefix("[").removesuffix("]"))
        except ValueError as e:
            raise HostError(f"{name}: got {value}; give an address of this host") from e
        if not (address.is_loopback or guard in values or allowed):
            raise HostError(
                f"{name}: got {value}, where everybody may use it; give {guard}, or ALLOW_OPEN=yes"
                " if everybody may"
            )


def base_of(dockerfile: Path) -> str:
    """The default base image that a Dockerfile pins."""
    match = _ARG.search(dockerfile.read_text(encoding="utf-8"))
    if match is None:
        raise HostError(f"{dockerfile}: has no ARG BASE_IMAGE=...; add it")
    return match[1]


def stand_in() -> dict[str, str]:
    """The rehearsal's base images, made from its environment if this engine has none."""
    python = environment.ensure("rehearsal")
    ended = subprocess.run(
        [str(python), "-m", "deploy.rehearsal.image"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise HostError("rehearsal: its base image cannot be made; see the line above")
    lines = (line.partition("=") for line in ended.stdout.splitlines())
    return {name: value for name, _, value in lines}


def env_text(values: Mapping[str, str]) -> str:
    """The values as an env file; single quotes keep compose from expanding them."""
    return "".join(f"{name}='{value}'\n" for name, value in values.items())


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


@dataclass(frozen=True)
class Compose:
    """`docker compose` with the files of a profile."""

    profile: Profile
    env_file: Path

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        files = ["compose.yaml", *(["compose.rehearsal.yaml"] if self.profile.is_rehearsal else [])]
        chosen = [word for file in files for word in ("--file", str(ROOT / "deploy" / file))]
        return ["docker", "compose", "--env-file", str(self.env_file), *chosen, *arguments]

    def call(self, *arguments: str) -> int:
        """Run it in the foreground and return its exit code. Raises HostError without docker."""
        return _run(self.command(*arguments)).returncode

    def run(self, *arguments: str) -> None:
        """Run it in the foreground. Raises HostError when it fails."""
        code = self.call(*arguments)
        if code:
            raise HostError(
                f"docker compose {arguments[0]}: ended with {code}; see its lines above"
            )

    def health(self, *arguments: str) -> int:
        """`python3 -m healthcheck` inside the health service."""
        return self.call("exec", "-T", "healthcheck", "python3", "-m", "healthcheck", *arguments)

    def keep_previous(self, image: str) -> None:
        """Name the image that runs now, if it is another one, so that `up` can go back to it."""
        container = self._server()
        if not container:
            return
        running = _read(["docker", "inspect", "--format", "{{.Image}}", container])
        if running != _read(["docker", "inspect", "--format", "{{.Id}}", image]):
            kind = "rehearsal-" if self.profile.is_rehearsal else ""
            _run(["docker", "tag", running, f"dspark-rocm/server:{kind}previous"])

    def wait(self) -> int:
        """Until the health service is ready, the start budget is spent, or the server gave up.

        Every change is told on stderr; a server that ends again and again is explained.
        """
        budget = f"{self.profile.health.start_budget_s:g}"
        container = self._server()
        before = _restarts(container)
        command = self.command(
            *("exec", "-T", "healthcheck", "python3", "-m", "healthcheck", "wait"),
            *("--timeout", budget),
        )
        with subprocess.Popen(command) as waiting:
            while waiting.poll() is None:
                if _restarts(container) - before >= RESTARTS:
                    waiting.terminate()
                    waiting.wait()
                    print(f"host: the server ended {RESTARTS} times; its log says:", flush=True)
                    self.health("explain", f"{_LOG}.1")
                    return 1
                time.sleep(POLL_S)
        return waiting.returncode

    def _server(self) -> str:
        """The id of the server's container, empty when there is none."""
        return _read(self.command("ps", "--all", "--quiet", "server"))


def _restarts(container: str) -> int:
    told = _read(["docker", "inspect", "--format", "{{.RestartCount}}", container])
    return int(told) if told.isdigit() else 0


def _read(command: Sequence[str]) -> str:
    """What a command prints, empty when it fails."""
    return _run(command, capture=True).stdout.strip()


def _run(command: Sequence[str], *, capture: bool = False) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=capture, text=True, check=False)
    except FileNotFoundError as e:
        raise HostError(
            "docker: is not installed; install an engine with its compose plugin"
        ) from e
