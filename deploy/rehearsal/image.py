"""``python3 -m deploy.rehearsal.image``: the stand-in for the ROCm image, made of this environment.

A Debian root with Python, vLLM for the CPU (unpatched: the real Dockerfile applies the series to
it), what the health service imports, the shim and the tiny models. The other packages, 2 GB, and
vLLM's extension modules stay where they are and are mounted when a container runs, those of the
release's own environment and those of the one below it. The root is pulled, or made by mmdebstrap
where no registry answers. stdout is what compose needs to know, as lines of an env file.

With the word ``whole`` nothing is made but, of the images that `make build PROFILE=rehearsal` left,
those for a node that has none of this host's folders; stdout is their names.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from deploy import recipe
from deploy.containers import cli as host
from deploy.containers.compose import HostError
from deploy.containers.variables import variables
from deploy.environment import cache_dir
from deploy.rehearsal.environment import SHIM
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.models import CONTENT_DIGEST, HEALTHY, publish_models
from deploy.rehearsal.tree import find_installed, publish_tree

REPOSITORY = "dspark-rocm/rehearsal-base"
ROOT_REPOSITORY = "dspark-rocm/rehearsal-root"

#: Debian's release by the Python it ships: the packages here are built for one Python.
SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
#: libnuma1 is what vLLM's CPU kernels need; python3-venv brings pip to the health image's build.
PACKAGES = ("ca-certificates", "libgomp1", "libnuma1", "libstdc++6", "python3", "python3-venv")

HOME = PurePosixPath("/opt/rehearsal")
#: Where compose.rehearsal.yaml mounts the packages of this environment and of the one that it is
#: laid over. They come last on the path, so that the image's vLLM is found before the unpatched.
SITE, BASE = HOME / "site", HOME / "base"
_PATH_FILE = "rehearsal.pth"
_HEALTH_LOCK = Path(__file__).parents[2] / "healthcheck" / "requirements.lock"
_NEEDED_BYTES = 1_000_000_000
_NEEDED_WHOLE_BYTES = 5_000_000_000

#: What a cluster's nodes are given, named by deploy/k8s/overlays/rehearsal.
SERVER_ON_NODES = "dspark-rocm/server:rehearsal"
HEALTH_ON_NODES = "dspark-rocm/healthcheck:rehearsal"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the image unless it is there, and print what compose needs; with `whole` those for
    nodes, and print their names. 1 if one cannot be made, 2 for another word."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words not in ([], ["whole"]):
        print(f"rehearsal: {' '.join(words)}: give `whole` or nothing", file=sys.stderr)
        return 2
    try:
        if words:
            print("\n".join(make_whole(os.environ)))
            return 0
        variables = {
            "BASE_IMAGE": ensure(),
            "HEALTH_BASE_IMAGE": ensure_root(),
            "REHEARSAL_SITE": site_packages(),
            "REHEARSAL_BASE": base_packages(),
        }
    except (RehearsalError, HostError) as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, RehearsalError) else 1
    for name, value in variables.items():
        print(f"{name}={value}")
    return 0


def ensure() -> str:
    """The name of the stand-in image, made if this engine has none. Raises RehearsalError."""
    version = find_installed().version
    name = f"{REPOSITORY}:{version}-{_key()}"
    if not _has(name):
        root = ensure_root()
        _require_disk()
        _say(f"making {name}")
        _commit(root, name)
        _remove_older(f"{REPOSITORY}:{version}-*", name)
    return name


def make_whole(environ: Mapping[str, str]) -> tuple[str, str]:
    """The names of server and health service for a cluster's nodes, which mount nothing of a host:
    this engine's images, the server's with the packages that are mounted elsewhere inside.

    Raises RehearsalError, and HostError for a variable that names an image and cannot.
    """
    loaded = recipe.load()
    built = variables(loaded, loaded.profile(host.REHEARSAL), environ)
    for name in (built["SERVER_IMAGE"], built["HEALTH_IMAGE"]):
        if not _has(name):
            raise RehearsalError(f"{name}: this engine has none: make build PROFILE=rehearsal")
    _require_disk(_NEEDED_WHOLE_BYTES)
    container = _docker("create", built["SERVER_IMAGE"]).stdout.decode().strip()
    try:
        for packages, place in {base_packages(): BASE, site_packages(): SITE}.items():
            _docker("cp", f"{packages}/.", f"{container}:{place}")
        _docker("commit", container, SERVER_ON_NODES)
    finally:
        _docker("rm", "--force", container, check=False)
    _docker("tag", built["HEALTH_IMAGE"], HEALTH_ON_NODES)
    return SERVER_ON_NODES, HEALTH_ON_NODES


def _remove_older(pattern: str, name: str) -> None:
    """Images of older shims, series or code only take disk; one that is in use stays."""
    listed = _docker("images", "--format", "{{.Repository}}:{{.Tag}}", pattern)
    for image in listed.stdout.decode().split():
        if image != name:
            _docker("image", "rm", image, check=False)


def ensure_root() -> str:
    """The name of a small Debian image with Python. Raises RehearsalError."""
    suite = SUITES.get(sys.version_info[:2])
    if suite is None:
        known = " or ".join(f"{major}.{minor}" for major, minor in SUITES)
        raise RehearsalError(
            f"python: {sys.version.split()[0]} made this environment, and no Debian root has it: "
            f"make it with Python {known}"
        )
    name = (
        f"{ROOT_REPOSITORY}:{suite}-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]}"
    )
    if not _has(name):
        _docker("ps", "--quiet")  # without an engine, nothing below can work
        if not _from_registry(suite, name):
            _bootstrap(suite, name)
        _remove_older(ROOT_REPOSITORY, name)
    return name


def _from_registry(suite: str, name: str) -> bool:
    """Whether the root could be made from the registry's Debian; False where none answers."""
    image = f"debian:{suite}-slim"
    if _docker("pull", "--quiet", image, check=False).returncode:
        _say(f"{image}: no registry gives it")
        return False
    packages = " ".join(PACKAGES)
    dockerfile = (
        f"FROM {image}\nRUN apt-get update && apt-get install -y --no-install-recommends"
        f" {packages} && rm -rf /var/lib/apt/lists/*\n"
    )
    _docker("build", "--quiet", "--tag", name, "-", stdin=dockerfile.encode())
    return True


def _bootstrap(suite: str, name: str) -> None:
    if shutil.which("mmdebstrap") is None:
        raise RehearsalError(
            f"debian:{suite}-slim: cannot be pulled and mmdebstrap is not installed: reach a "
            "registry, or apt-get install mmdebstrap"
        )
    _say(f"making a Debian {suite} root with mmdebstrap")
    options = [
        f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "locale", "man")
    ]
    options += ["--dpkgopt=force-unsafe-io", "--variant=essential"]
    # Merged from the start, as in Debian's own images: bookworm's usrmerge would bring all of Perl.
    options += ["--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr"]
    command = ["mmdebstrap", "--quiet", *options, f"--include={','.join(PACKAGES)}", suite, "-"]
    with tempfile.TemporaryFile() as told:
        # In a session of its own: when it fails, it hangs up on its whole process group.
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=told, start_new_session=True
        ) as made:
            try:
                _docker("import", "-", name, stdin=made.stdout)
            except BaseException:  # Ctrl-C as well, which does not reach another session
                made.terminate()
                raise
        if made.returncode:
            _docker("image", "rm", name, check=False)
            told.seek(0)
            sys.stderr.buffer.write(told.read())
            raise RehearsalError(f"mmdebstrap: ended with {made.returncode}: see its words above")


def _commit(root: str, name: str) -> None:
    variables = {"PYTHONPATH": HOME / "shim", "REHEARSAL_HOME": HOME / "models" / HEALTHY}
    changes = [f"--change=ENV {key}={value}" for key, value in variables.items()]
    container = _docker("create", root, "true").stdout.decode().strip()
    try:
        copy = subprocess.Popen(["docker", "cp", "-", f"{container}:/"], stdin=subprocess.PIPE)
        with copy:
            assert copy.stdin is not None
            try:
                with tarfile.open(fileobj=copy.stdin, mode="w|", dereference=True) as archive:
                    archive.addfile(*_path_file())
                    for source, place in _contents():
                        archive.add(source, str(place), filter=_slim)
            except BrokenPipeError:
                pass  # docker says why, and its exit code is looked at
        if copy.returncode:
            raise RehearsalError(f"docker cp: ended with {copy.returncode}: is the disk full?")
        _docker("commit", *changes, container, name)
    finally:
        _docker("rm", "--force", container, check=False)


def _contents() -> Iterator[tuple[Path, PurePosixPath]]:
    """What goes where in the image."""
    cache = cache_dir(os.environ)
    yield publish_models(cache / "models"), HOME / "models"
    yield SHIM, HOME / "shim"
    packages = _packages()
    for entry in publish_tree(cache, patched=False).iterdir():
        yield entry, packages / entry.name
    for entry in sorted(_health_packages()):
        yield entry, packages / entry.name


def _path_file() -> tuple[tarfile.TarInfo, io.BytesIO]:
    content = f"{SITE}\n{BASE}\n".encode()
    member = tarfile.TarInfo(str(_packages() / _PATH_FILE))
    member.size = len(content)
    return member, io.BytesIO(content)


def _packages() -> PurePosixPath:
    """Where Debian's Python looks for packages that are not Debian's."""
    major, minor = sys.version_info[:2]
    return PurePosixPath(f"/usr/local/lib/python{major}.{minor}/dist-packages")


def _health_packages() -> set[Path]:
    """The top entries of what the health service imports: ROCm's image has them by vLLM."""
    entries: set[Path] = set()
    for line in _HEALTH_LOCK.read_text(encoding="utf-8").splitlines():
        name, pinned, _ = line.partition("==")
        if pinned:
            installed = importlib.metadata.distribution(name)
            tops = {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}
            entries |= {Path(str(installed.locate_file(top))) for top in tops}
    return {entry for entry in entries if entry.exists()}


def _slim(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A file of root's; an extension module of vLLM, 450 MB of them, as a link to the mounted."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    path = PurePosixPath("/", member.name)
    vllm = _packages() / "vllm"
    if member.isfile() and path.suffix == ".so" and path.is_relative_to(vllm):
        member.type, member.size = tarfile.SYMTYPE, 0
        member.linkname = str(SITE / path.relative_to(_packages()))
    return member


def site_packages() -> Path:
    """Where this environment keeps vLLM."""
    return find_installed().package.parent


def base_packages() -> Path:
    """Where torch lies, and all that this environment leaves to the one that it is laid over;
    `site_packages` where it is laid over none."""
    return Path(str(importlib.metadata.distribution("torch").locate_file("")))


def _key() -> str:
    """Names the image by all that is in it."""
    tree = publish_tree(cache_dir(os.environ), patched=False)
    digest = hashlib.sha256(f"{sys.version_info[:2]}{tree.name}{CONTENT_DIGEST}".encode())
    shim = sorted(p for p in SHIM.rglob("*") if p.is_file() and p.suffix != ".pyc")
    for file in (Path(__file__), _HEALTH_LOCK, *shim):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _require_disk(needed: int = _NEEDED_BYTES) -> None:
    place = _docker("info", "--format", "{{.DockerRootDir}}").stdout.decode().strip()
    folder = Path(place) if Path(place).is_dir() else Path("/")
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise RehearsalError(
            f"disk at {folder}: {free // 10**6} MB free, {needed // 10**6} MB needed: "
            "docker system prune, or free some disk space"
        )


def _has(image: str) -> bool:
    return _docker("image", "inspect", image, check=False).returncode == 0


def _docker(
    *arguments: str, stdin: bytes | IO[bytes] | None = None, check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    """Run docker; with `check`, RehearsalError tells its last line."""
    given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    try:
        ended = subprocess.run(["docker", *arguments], capture_output=True, check=False, **given)
    except FileNotFoundError as error:
        raise RehearsalError("docker: is not installed: install an engine and its CLI") from error
    if check and ended.returncode:
        told = ended.stderr.decode(errors="replace").strip().splitlines()
        raise RehearsalError(f"docker {arguments[0]}: {told[-1] if told else ended.returncode}")
    return ended


def _say(text: str) -> None:
    print(f"rehearsal: {text}", file=sys.stderr, flush=True)


__all__: Sequence[str] = ("ensure", "ensure_root", "main", "make_whole", "site_packages")

if __name__ == "__main__":
    sys.exit(main())
