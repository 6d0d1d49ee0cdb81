"""What compose is told of this host and by its user, and what of it is refused."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from deploy.containers.compose import ROOT, HostError
from deploy.files import SecretError, read_secret
from deploy.recipe import Profile, Recipe, RecipeError, switches
from patches import series

# The user of docker/Dockerfile.healthcheck.
HEALTH_UID = 65532
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
    *("REHEARSAL_FAULT", "REHEARSAL_SITE", "REHEARSAL_BASE"),
)
_ARG = re.compile(r"^ARG (?:HEALTH_)?BASE_IMAGE=(\S+)$", re.MULTILINE)


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


def env_text(values: Mapping[str, str]) -> str:
    """The values as an env file; single quotes keep compose from expanding them."""
    return "".join(f"{name}='{value}'\n" for name, value in values.items())
