"""Locked Python environments, made once per machine in a cache folder outside the checkout.

Packages come from the user's own pip configuration (index, mirrors, CA bundle). torch is installed
by version before the lock's other packages, because its builds differ by index; everything else is
pinned by version and hash.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from deploy import recipe
from deploy.recipe import release
from deploy.recipe.release import Release

ROOT = Path(__file__).resolve().parents[2]

#: "health" is what `python3 -m healthcheck` needs and no more; "rehearsal" is vLLM on the CPU, with
#: the tools of the tests.
NAMES = ("health", "rehearsal")

# A third of all code, of which a server imports next to nothing: compiled where it is imported.
_SELDOM = r"/site-packages/(anthropic|mypyc?|numba|pip|torch/testing|transformers/models)/"


class SetupError(RuntimeError):
    """An environment cannot be made; the message is one line that names what, seen and fix."""


@dataclass(frozen=True)
class Lock:
    """What an environment holds: torch as pip names it or empty, lock files, and the disk it needs
    in 10^9 bytes.

    One with a base is laid over that environment: its packages are found first, and the base's
    where it has none.
    """

    torch: str
    files: tuple[Path, ...]
    disk_gb: float
    base: Lock | None = None


def lock(name: str, vllm: Release | None = None) -> Lock:
    """What the environment `name`, of NAMES, holds for a release of vLLM, else for the chosen one.

    Raises SetupError for a release that has no vLLM for the CPU.
    """
    if name == "health":
        return Lock("", (ROOT / "healthcheck/requirements.lock",), disk_gb=0.2)
    vllm = vllm or recipe.load().vllm
    if vllm.rehearsal is None:
        raise SetupError(
            f"release {vllm.version}: has no vLLM for the CPU; rehearse another: RELEASE=VERSION"
        )
    torch = f"torch=={vllm.rehearsal.torch}"
    if vllm.base:
        return Lock(torch, (vllm.lock,), disk_gb=2.0, base=lock(name, release.load(vllm.base)))
    files = (vllm.lock, ROOT / "tests/requirements.lock", ROOT / "docker/py-spy.lock")
    return Lock(torch, files, disk_gb=6.0)


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where big things live: DSPARK_CACHE, else dspark-rocm in XDG_CACHE_HOME, else in ~/.cache.

    Raises SetupError for the ~ of a user that is not there.
    """
    own = environ.get("DSPARK_CACHE")
    folder = own or environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        found = Path(folder).expanduser().absolute()
    except RuntimeError as e:  # ~ of nobody
        raise SetupError(f"cache {folder}: has no home folder; set DSPARK_CACHE to a path") from e
    return found if own else found / "dspark-rocm"


def key(name: str, held: Lock) -> str:
    """Names an environment by its lock files, its base, and the interpreter that made it."""
    below = key(name, held.base) if held.base else ""
    digest = hashlib.sha256(f"{sys.version}{held.torch}{below}".encode())
    for file in held.files:
        digest.update(file.read_bytes())
    return f"{name}-{digest.hexdigest()[:12]}"


def ensure(name: str, vllm: Release | None = None) -> Path:
    """The python of the environment of a release, else of the chosen one; made if it is not there.

    Safe to call from two processes. Raises SetupError when disk or the venv module is missing, or
    pip fails.
    """
    return _ensure(name, lock(name, vllm))


def _ensure(name: str, held: Lock) -> Path:
    base = _ensure(name, held.base) if held.base else None
    folder = cache_dir() / "env" / key(name, held)
    python = folder / "bin" / "python"
    done = folder / ".complete"
    try:
        if done.exists():
            return python
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f"{folder.name}.lock"):
            if done.exists():
                return python
            _require_disk(folder.parent, held.disk_gb)
            _make(name, held, folder, base)
            done.touch()
    except OSError as e:
        where, fix = e.filename or folder.parent, "set DSPARK_CACHE to a writable folder"
        raise SetupError(f"cache {where}: {e.strerror}; {fix}") from e
    return python


def _make(name: str, held: Lock, folder: Path, base: Path | None) -> None:
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)  # a try that was interrupted
    _say(f"making the {name} environment in {folder}")
    try:
        _require_system(held)
        venv = [sys.executable, "-m", "venv", str(folder)]
        _run([*venv, "--without-pip"] if base else venv, "venv")
        python = folder / "bin" / "python"
        pip = [str(base or python), "-m", "pip", "install", "--quiet"]
        pip += ["--disable-pip-version-check"]
        pip += ["--no-compile", "--no-deps"]  # the locks are complete; compiled below, in parallel
        if base:
            own, shared = _packages(folder), _packages(base.parents[1])
            (own / "base.pth").write_text(f"{shared}\n", encoding="utf-8")
            pip += ["--target", str(own)]
        # No package of theirs is in two of them: pip, which uses one core, runs once for each.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            installs = []
            if held.torch and not base:
                _say(f"installing {held.torch} (CPU; about 200 MB to download from a CPU index)")
                installs.append(pool.submit(_run, [*pip, held.torch], held.torch))
            for file in held.files:
                _say(f"installing {file.relative_to(ROOT)}")
                command = [*pip, "--require-hashes", "-r", str(file)]
                installs.append(pool.submit(_run, command, file.name))
        for install in installs:
            install.result()
        compileall = [str(python), "-m", "compileall", "-q", "-j", "0", "-x", _SELDOM]
        compileall.append(str(folder / "lib"))
        # a package may ship templates that are no Python; what does not compile is not imported
        subprocess.run(compileall, stdout=subprocess.DEVNULL, check=False)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _say(f"the {name} environment is ready after {time.monotonic() - started:.0f} s")


def _packages(folder: Path) -> Path:
    """Where an environment has its packages."""
    major, minor = sys.version_info[:2]
    return folder / "lib" / f"python{major}.{minor}" / "site-packages"


def _run(command: list[str], what: str) -> None:
    ended = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if ended.returncode:
        errors = [line for line in ended.stderr.splitlines() if line.strip()]
        told = next((e for e in errors if e.startswith("ERROR")), errors[-1] if errors else "")
        raise SetupError(
            f"{what}: pip ended with {ended.returncode}: {told.removeprefix('ERROR: ')}; "
            "check pip's index and network (pip config list)"
        )


def _require_system(held: Lock) -> None:
    """What pip cannot bring: Debian's venv module, and the NUMA library of vLLM's CPU kernels.

    As root on a Debian they are installed; otherwise the command is told.
    """
    missing = []
    probe = [sys.executable, "-c", "import ensurepip, venv"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        missing.append(f"python3.{sys.version_info.minor}-venv")
    if held.torch and not _loads("libnuma.so.1"):
        missing.append("libnuma1")
    if not missing:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _say(f"installing {' '.join(missing)}")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        apt = ["apt-get", "-qq", "-y", "--no-install-recommends"]
        subprocess.run([*apt, "update"], stdout=sys.stderr, env=env, check=False)
        done = subprocess.run([*apt, "install", *missing], stdout=sys.stderr, env=env, check=False)
        if done.returncode == 0:
            return
    names = " ".join(missing)
    raise SetupError(f"system packages: {names} missing; sudo apt-get install {names}")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _require_disk(folder: Path, needed_gb: float) -> None:
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < needed_gb:
        raise SetupError(
            f"disk at {folder}: {free_gb:.1f} GB free; {needed_gb:g} GB are needed: free some or "
            "set DSPARK_CACHE to another disk"
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)
