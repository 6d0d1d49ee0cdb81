"""`python3 -m deploy containers`: what it reads of a host, what it refuses, what it gives compose.

The commands run against a `docker` on PATH that writes down how it was called.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import recipe
from deploy.__main__ import main
from deploy.containers import cli as host
from deploy.containers.compose import HostError, run_program
from deploy.containers.variables import HEALTH_UID, READ_BY_HEALTH, variables
from tests.support import in_process

ROOT = Path(__file__).resolve().parents[2]

RUNNING, BUILT = "sha256:running", "sha256:built"
_DOCKER = f"""#!{sys.executable}
import json, os, sys, time
with open(os.environ["CALLS"], "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
words = sys.argv[1:]
if "ps" in words:
    print("container")
if "{{{{.Image}}}}" in words:
    print("{RUNNING}")
if "{{{{.Id}}}}" in words:
    print("{BUILT}")
if "{{{{.RestartCount}}}}" in words:
    print(open(os.environ["CALLS"]).read().count("RestartCount") if "RESTARTS" in os.environ else 0)
if "wait" in words and "RESTARTS" in os.environ:
    time.sleep(600)
if os.environ.get("FAILS") in words:
    sys.exit(int(os.environ.get("CODE", "5")))
if words[:2] == ["compose", "version"]:
    sys.exit(int(os.environ.get("NO_COMPOSE", "0")))
if words[0] == "ps" and "NO_ENGINE" in os.environ:
    sys.exit("Cannot connect to the Docker daemon")
"""


class Host:
    """A checkout of its own, devices that it takes for a GPU's, and a recording `docker`."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        for name in ("deploy", "docker", "patches"):
            ignored = shutil.ignore_patterns("__pycache__", "*.whl")
            shutil.copytree(ROOT / name, self.checkout / name, ignore=ignored)
        self.wheel = self.checkout / "docker" / "wheels" / "server" / "py_spy-1-py3-none-any.whl"
        self.wheel.parent.mkdir(exist_ok=True)
        self.wheel.touch()  # carried over, so that nothing is downloaded
        self._devices = devices(folder, "kfd", "dri/renderD128")
        self._calls = folder / "calls"
        program = folder / "bin" / "docker"
        program.parent.mkdir()
        program.write_text(_DOCKER)
        program.chmod(0o755)
        self._path = f"{program.parent}:{os.environ['PATH']}"

    def run(self, command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """A command for mi355x with these devices."""
        kfd, dri = self._devices
        script = (
            "import sys; from pathlib import Path; from deploy.containers import cli as host, compose;"
            f"host.KFD, host.DRI = Path({str(kfd)!r}), Path({str(dri)!r}); compose.POLL_S = 0.05;"
            "sys.exit(host.main(sys.argv[1:]))"
        )
        return subprocess.run(
            [sys.executable, "-c", script, "--profile", "mi355x", command],
            cwd=self.checkout,
            env={"PATH": self._path, "CALLS": str(self._calls), "PIP_NO_INDEX": "1", **environ},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def calls(self) -> list[list[str]]:
        """How docker was called, compose by what follows its files; not what asks who is there."""
        lines = [json.loads(line) for line in self._calls.read_text().splitlines()]
        asked = (["compose", "version"], ["ps", "--quiet"])
        return [_after_files(line) for line in lines if line not in asked]

    def env_file(self, name: str = "mi355x") -> dict[str, str]:
        """What was written for compose."""
        text = (self.checkout / "build" / "compose" / f"{name}.env").read_text()
        return {n: v.strip("'") for n, _, v in (line.partition("=") for line in text.splitlines())}


def _after_files(words: list[str]) -> list[str]:
    """The words of a compose call from its subcommand on."""
    if words[0] != "compose":
        return words
    last = max(place for place, word in enumerate(words) if word == "--file")
    return words[last + 2 :]


@pytest.fixture
def gpu_host(tmp_path: Path) -> Host:
    """A host with a GPU's devices."""
    return Host(tmp_path)


def made(profile: str = "mi355x", **environ: str) -> dict[str, str]:
    """Variables of a profile with a given environment."""
    loaded = recipe.load()
    return variables(loaded, loaded.profile(profile), environ)


def devices(folder: Path, *names: str) -> tuple[Path, Path]:
    """Files that stand for device nodes."""
    dri = folder / "dri"
    dri.mkdir()
    for name in names:
        (folder / name).touch()
    return folder / "kfd", dri


@pytest.mark.parametrize(
    ("names", "told"),
    [((), "kfd: is not there"), (("kfd",), "renderD*: none is there")],
)
def test_a_missing_device_is_named(tmp_path: Path, names: tuple[str, ...], told: str) -> None:
    """Without a GPU device the refusal says what to load or which profile to use."""
    kfd, dri = devices(tmp_path, *names)
    with pytest.raises(HostError, match="PROFILE=rehearsal") as caught:
        host.look_for(kfd, dri)
    assert told in str(caught.value)


def test_the_environment_wins_over_the_recipe() -> None:
    """An image or port that the user names is used; the rest is the recipe's."""
    values = made(SERVER_IMAGE="mine:1", SERVER_BIND="127.0.0.2", UNKNOWN="x")
    assert values["SERVER_IMAGE"] == "mine:1"
    assert values["SERVER_BIND"] == "127.0.0.2"
    assert values["BASE_IMAGE"] == recipe.load().vllm.pinned_image
    assert "UNKNOWN" not in values


def test_a_base_whose_digest_is_unknown_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The release's image by digest, or yours, or a tag alone if that is said; a rehearsal's base is
    made here, and what is not built needs none."""
    monkeypatch.setenv("RELEASE", "0.32.0")
    image = recipe.load().vllm.image
    with pytest.raises(HostError, match=rf"^BASE_IMAGE: .* give BASE_IMAGE={image}@sha256:"):
        made()
    own = f"mirror/vllm:1@sha256:{'0' * 64}"
    assert made(BASE_IMAGE=own)["BASE_IMAGE"] == own
    assert made(ALLOW_TAG="yes")["BASE_IMAGE"] == image
    assert made(SERVER_IMAGE="mine:1")["SERVER_IMAGE"] == "mine:1"
    assert made("rehearsal", BASE_IMAGE="local:1")["BASE_IMAGE"] == "local:1"
    values = made(BASE_IMAGE=own)
    assert values["RELEASE"] == "0.32.0"
    assert values["SERVER_IMAGE"].startswith("dspark-rocm/server:0.32.0-")


def test_a_variable_that_is_set_and_empty_hides_nothing_from_compose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would win over the file of variables, and the image be another than was built."""
    monkeypatch.setenv("SERVER_IMAGE", "")
    monkeypatch.setenv("HEALTH_IMAGE", "mine:1")
    seen = run_program(["env"], capture=True).stdout.splitlines()
    assert "HEALTH_IMAGE=mine:1" in seen and "SERVER_IMAGE=" not in seen


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {"BASE_IMAGE": "mirror/vllm:1"},
            "BASE_IMAGE: got mirror/vllm:1, a tag that may be moved; give mirror",
        ),
        ({"ALLOW_TAG": "true"}, "ALLOW_TAG: got 'true'; give yes, or leave it unset"),
        ({"DSPARK_SPECULATION": "maybe"}, "DSPARK_SPECULATION: got 'maybe'; give on or off"),
        ({"DSPARK_GRAPHS": "1"}, "DSPARK_GRAPHS: got '1'; give off or on"),
        ({"API_KEY_FILE": "key"}, "API_KEY_FILE: got key; give the absolute path"),
        ({"CA_FILE": "/nowhere/ca.pem"}, "CA_FILE: got /nowhere/ca.pem"),
        ({"WEIGHTS": "it's"}, "WEIGHTS: got"),
        ({"SERVER_ENV": "/nowhere/server.env"}, "SERVER_ENV: got /nowhere/server.env; give the"),
        ({"SERVER_BIND": "0.0.0.0\n"}, "SERVER_BIND: got '0.0.0.0\\n'; leave quotes, line breaks"),
        ({"SERVER_BIND": "localhost"}, "SERVER_BIND: got localhost; give an address of this host"),
        (
            {"SERVER_BIND": "0.0.0.0"},
            "SERVER_BIND: got 0.0.0.0, where everybody may use it; give API",
        ),
        (
            {"SERVER_BIND": "[::]"},
            "SERVER_BIND: got [::], where everybody may use it; give API_KEY",
        ),
        (
            {"HEALTH_BIND": "10.0.0.5"},
            "HEALTH_BIND: got 10.0.0.5, where everybody may use it; give ",
        ),
        ({"HEALTH_BIND": "::1", "ALLOW_OPEN": "1"}, "ALLOW_OPEN: got '1'; give yes, or leave it"),
        ({"WEIGHTS": "/w\udcff"}, "WEIGHTS: got '/w\\udcff'; leave quotes, line breaks and"),
        ({"CA_FILE": f"/{'x' * 300}"}, f"CA_FILE: got /{'x' * 300}: File name too long; give"),
        ({"PIP_CONFIG": "/dev/null"}, "PIP_CONFIG: got /dev/null; give the absolute path"),
    ],
)
def test_a_value_that_cannot_work_is_refused(environ: dict[str, str], told: str) -> None:
    """The setting, the value and the fix, before anything is built."""
    with pytest.raises(HostError) as caught:
        made(**environ)
    assert str(caught.value).startswith(told)


def test_graphs_that_a_profile_has_not_are_refused_before_anything_is_built() -> None:
    """The switch is told off without an engine having been asked."""
    words = ("containers", "--profile", "mi308x", "build")
    environ = {"PATH": "/nowhere", "DSPARK_GRAPHS": "on"}
    ended = in_process.run(main, *words, environ=environ)
    assert (ended.returncode, ended.stdout) == (1, "")
    said = (
        "host: DSPARK_GRAPHS: got 'on'; no public run of mi308x held up with graphs: leave it off"
    )
    assert ended.stderr == f"{said}\n"


def test_what_is_published_beyond_the_host_is_guarded_or_meant(tmp_path: Path) -> None:
    """Each service may be published with its own secret, or with the word that it is open."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o644)
    anywhere = {"SERVER_BIND": "0.0.0.0", "HEALTH_BIND": "::"}
    both = {"API_KEY_FILE": str(secret), "HEALTH_TOKEN_FILE": str(secret)}
    assert anywhere.items() <= made(**anywhere, **both).items()
    assert anywhere.items() <= made(**anywhere, ALLOW_OPEN="yes").items()
    with pytest.raises(HostError, match=r"^HEALTH_BIND: got ::, .* HEALTH_TOKEN_FILE, or ALL"):
        made(**anywhere, API_KEY_FILE=str(secret))


@pytest.mark.parametrize("content", ["", "\n", "two words"])
@pytest.mark.parametrize("name", READ_BY_HEALTH)
def test_a_file_without_a_secret_guards_nothing(name: str, content: str, tmp_path: Path) -> None:
    """An empty key file would leave the server open: it is refused, and its content not shown."""
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o644)
    with pytest.raises(HostError, match="holds no secret") as caught:
        made(**{name: str(path)})
    assert "words" not in str(caught.value)


def test_a_key_that_the_health_service_cannot_read_is_refused(tmp_path: Path) -> None:
    """Compose mounts a secret with its own owner and mode: the remedy is a chown."""
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    key.chmod(0o600)
    with pytest.raises(HostError, match=f"chown {HEALTH_UID} {key}"):
        made(API_KEY_FILE=str(key))
    key.chmod(0o644)
    assert made(API_KEY_FILE=str(key))["API_KEY_FILE"] == str(key)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--profile", "mi400", "up"], "profile: got 'mi400'"),
        (["--profile", "mi325x", "status"], "is not there; make up PROFILE=mi325x writes it"),
        (["--profile", "rehearsal", "weights"], "generated"),
        (["--profile", "rehearsal-amd", "up"], "for no container; make rehearsal PROFILE="),
    ],
)
def test_a_refusal_is_one_line(arguments: list[str], told: str) -> None:
    """Exit code 1, one line on stderr, no traceback."""
    ended = in_process.run(main, "containers", *arguments)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert told in ended.stderr


def test_build_builds_both_images_and_nothing_else(gpu_host: Host) -> None:
    """One call, `build`; what `up` wrote for this host's devices is left alone."""
    ended = gpu_host.run("build")
    assert (ended.returncode, ended.stderr) == (0, "")  # the wheel that lies there is taken
    assert gpu_host.calls() == [["build"]]
    written = gpu_host.env_file("mi355x.build")
    assert written["BASE_IMAGE"] == recipe.load().vllm.pinned_image
    assert not (gpu_host.checkout / "build" / "compose" / "mi355x.env").exists()


def test_an_image_without_py_spy_is_said(gpu_host: Host, tmp_path: Path) -> None:
    """Where pip cannot have its wheel the image is built all the same; another wheel than the
    lock's is not taken."""
    gpu_host.wheel.unlink()
    ended = gpu_host.run("build")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (0, 1)
    assert ended.stderr.startswith("host: py-spy cannot be had (ERROR")
    other = tmp_path / "py_spy-0.4.3-py3-none-any.whl"
    other.write_bytes(b"another")
    ended = gpu_host.run("build", PIP_FIND_LINKS=str(tmp_path))
    assert ended.returncode == 0
    assert "py-spy cannot be had" in ended.stderr
    assert list((gpu_host.checkout / "docker" / "wheels").rglob("*.whl")) == []


def test_up_builds_keeps_the_running_image_and_starts(gpu_host: Host) -> None:
    """An image that is replaced stays as `previous`; the wait is the health service's."""
    assert gpu_host.run("up").returncode == 0
    calls = gpu_host.calls()
    assert calls[0] == ["build"]
    tag = calls.index(["tag", RUNNING, "dspark-rocm/server:previous"])
    start = calls.index(["up", "--detach", "--no-build"])
    assert 0 < tag < start
    assert any("wait" in call for call in calls[start:])


def test_going_back_builds_nothing_and_keeps_what_to_go_back_to(gpu_host: Host) -> None:
    """SERVER_IMAGE names the image that starts; `previous` is not taken from it."""
    assert gpu_host.run("up", SERVER_IMAGE="dspark-rocm/server:previous").returncode == 0
    calls = gpu_host.calls()
    assert calls[0] == ["up", "--detach", "--no-build"]
    assert not any(call[0] == "tag" for call in calls)
    assert gpu_host.env_file()["SERVER_IMAGE"] == "dspark-rocm/server:previous"


def test_weights_come_before_the_first_up(gpu_host: Host) -> None:
    """On a fresh host the image is built, and what fetches them runs in it beside any server's log;
    the profile is the container's own."""
    assert gpu_host.run("weights").returncode == 0
    build, download = gpu_host.calls()
    assert build == ["build", "server"]
    assert download[0] == "run"
    assert "DSPARK_LOG=" in download
    assert download[-5:] == ["server", "python3", "-m", "deploy", "weights"]


def test_a_docker_without_compose_is_told(gpu_host: Host) -> None:
    """The client alone does not bring compose: one line, before anything is written."""
    ended = gpu_host.run("up", NO_COMPOSE="1")
    assert ended.returncode == 1
    assert ended.stderr.startswith("host: docker compose: is not installed; install ")
    assert len(ended.stderr.splitlines()) == 1
    assert not (gpu_host.checkout / "build").exists()


def test_an_engine_that_does_not_answer_is_told(gpu_host: Host) -> None:
    """A client alone starts nothing: one line, before anything is built or written."""
    ended = gpu_host.run("up", NO_ENGINE="1")
    assert ended.returncode == 1
    assert ended.stderr == "host: docker: Cannot connect to the Docker daemon; start the engine\n"
    assert not (gpu_host.checkout / "build").exists()


def test_a_server_that_ends_again_and_again_is_explained(gpu_host: Host) -> None:
    """After three restarts the wait ends with 1, and the last run's log is explained."""
    ended = gpu_host.run("up", RESTARTS="1")
    assert ended.returncode == 1
    assert "host: the server ended 3 times; its log says:" in ended.stdout
    last = gpu_host.calls()[-1]
    assert last[-2:] == ["explain", "/var/log/dspark-rocm/server.log.1"]


def test_a_service_that_never_gets_ready_is_the_exit_code_of_up(gpu_host: Host) -> None:
    """What the health service's own `wait` ends with, `up` ends with."""
    assert gpu_host.run("up", FAILS="wait", CODE="1").returncode == 1


@pytest.mark.parametrize(("command", "fails"), [("up", "build"), ("up", "up"), ("down", "down")])
def test_a_step_of_compose_that_fails_ends_the_command(
    gpu_host: Host, command: str, fails: str
) -> None:
    """One line names the step and its code; nothing after it is called."""
    if command == "down":
        assert gpu_host.run("up").returncode == 0
    ended = gpu_host.run(command, FAILS=fails)
    assert ended.returncode == 1
    assert ended.stderr == f"host: docker compose {fails}: ended with 5; see its lines above\n"
    assert fails in gpu_host.calls()[-1]


def test_status_logs_and_down_ask_compose_of_what_runs(gpu_host: Host) -> None:
    """With the variables that `up` wrote; `status` ends as the health service's check does."""
    assert gpu_host.run("up").returncode == 0
    for command, code, last in (
        ("status", 1, ["check", "--for", "ready"]),
        ("logs", 0, ["logs", "--follow", "--tail", "200"]),
        ("down", 0, ["down"]),
    ):
        assert gpu_host.run(command, FAILS="check", CODE="1").returncode == code
        assert gpu_host.calls()[-1][-len(last) :] == last


def test_a_host_without_docker_is_told(gpu_host: Host) -> None:
    """No client on PATH: one line with what to install."""
    ended = gpu_host.run("build", PATH="/nonexistent")
    assert ended.returncode == 1
    assert ended.stderr.startswith("host: docker: is not installed; install an engine")
    assert len(ended.stderr.splitlines()) == 1
