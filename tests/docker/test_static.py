"""What the container files say, checked without an engine: one fact, one place."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import recipe
from deploy.containers.variables import HEALTH_UID, base_of, variables
from deploy.recipe import switches
from tests.support import stops

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = [ROOT / "docker/Dockerfile", ROOT / "docker/Dockerfile.healthcheck"]
COMPOSE = ROOT / "deploy/compose.yaml"
REHEARSAL = ROOT / "deploy/compose.rehearsal.yaml"


class _Loader(yaml.SafeLoader):
    """Reads compose's !reset as nothing, and !override as what stands after it."""


_Loader.add_constructor("!reset", lambda _loader, _node: None)
_Loader.add_constructor("!override", lambda loader, node: loader.construct_sequence(node))


def load(path: Path) -> dict[str, Any]:
    """A compose file."""
    loaded: dict[str, Any] = yaml.load(path.read_text(), Loader=_Loader)
    return loaded


def values() -> dict[str, str]:
    """Variables as `make up` would write them on a host with GPUs."""
    loaded = recipe.load()
    return variables(loaded, loaded.profile("mi355x"), {})


def config(environ: dict[str, str], *files: Path) -> subprocess.CompletedProcess[str]:
    """`docker compose config`, which reads files and asks no engine."""
    version = ["docker", "compose", "version"]
    if not shutil.which("docker") or subprocess.run(version, capture_output=True).returncode:
        pytest.skip("docker compose: is not installed; tests marked docker install it")
    chosen = [word for file in files for word in ("--file", str(file))]
    return subprocess.run(
        ["docker", "compose", *chosen, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_an_operator_sets_reaches_server_and_health_service(tmp_path: Path) -> None:
    """The lines of the file that SERVER_ENV names; without one nothing is set."""
    file = tmp_path / "server.env"
    file.write_text("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800\nNCCL_DEBUG=INFO\n")
    for given, count in (({"SERVER_ENV": str(file)}, 2), ({}, 0)):
        ended = config(values() | given, COMPOSE)
        services = json.loads(ended.stdout)["services"]
        for service in ("server", "healthcheck"):
            names = services[service]["environment"].keys()
            assert len({"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "NCCL_DEBUG"} & names) == count


def test_the_servers_base_is_the_recipes_pin() -> None:
    """The Dockerfile's default base is the recipe's image, tag and digest."""
    assert base_of(DOCKERFILES[0]) == recipe.load().vllm.pinned_image


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda p: p.name)
def test_a_base_has_tag_and_digest(dockerfile: Path) -> None:
    """A base is named by tag for people and by digest for machines."""
    assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base_of(dockerfile))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda p: p.name)
def test_a_dockerfile_keeps_to_docker_20_10(dockerfile: Path) -> None:
    """No frontend is pulled, and nothing newer than Docker 20.10's BuildKit is used."""
    text = dockerfile.read_text()
    newer = (r"^#\s*syntax=", r"<<", r"--link\b", r"--chmod", r"--start-interval", r"--exclude")
    assert [word for word in newer if re.search(word, text, re.MULTILINE)] == []
    stages = {m[1] for m in re.finditer(r"^FROM \S+ AS (\S+)", text, re.MULTILINE)}
    used = {m[1] for m in re.finditer(r"(?:--from|from)=([\w-]+)", text)}
    assert used <= stages


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda p: p.name)
def test_an_image_says_what_it_is(dockerfile: Path) -> None:
    """By OCI's labels: of which version and commit, on which base, under which licence."""
    labels = dict(
        re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]+)"', dockerfile.read_text())
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = ("title", "description", "version", "licenses", "vendor", "base.name", "revision")
    assert sorted(labels) == sorted(told)
    assert (labels["version"], labels["licenses"]) == (project["version"], project["license"])
    for service in load(COMPOSE)["services"].values():
        assert service["build"]["args"]["REVISION"] == "${REVISION:-unknown}"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda p: p.name)
def test_a_container_may_start_as_long_as_the_recipe_says(dockerfile: Path) -> None:
    """HEALTHCHECK's start period is the start budget of every profile that runs on a GPU."""
    period = re.search(r"--start-period=(\d+)s", dockerfile.read_text())
    assert period
    budgets = {p.health.start_budget_s for p in recipe.load().profiles.values() if p.gpu}
    assert budgets == {float(period[1])}


def test_the_grace_of_a_stop_covers_flight_and_drain() -> None:
    """Compose kills later than a stuck server's stacks are taken and its drain is over."""
    for path, name in ((COMPOSE, "mi355x"), (REHEARSAL, "rehearsal")):
        grace = float(load(path)["services"]["server"]["stop_grace_period"].removesuffix("s"))
        assert grace > stops.signal_s(recipe.load().profile(name))


def test_ports_and_the_user_of_the_health_service_agree() -> None:
    """Ports in compose are the recipe's, and host.py checks files for the image's own user."""
    ports = recipe.load().ports
    services = load(COMPOSE)["services"]
    assert services["server"]["ports"][0].endswith(f":{ports.serve}")
    assert services["healthcheck"]["ports"][0].endswith(f":{ports.health}")
    beside = services["server"]["environment"]["DSPARK_HEALTH_URL"]
    assert beside == f"http://healthcheck:{ports.health}"
    assert switches.health_url({}) == f"http://127.0.0.1:{ports.health}"
    assert f"USER {HEALTH_UID}:{HEALTH_UID}" in DOCKERFILES[1].read_text()


def test_compose_gives_the_server_what_a_gpu_needs() -> None:
    """Devices, shared memory, limits and volumes are there; files are valid."""
    done = config(values(), COMPOSE)
    assert done.returncode == 0, done.stderr
    server = json.loads(done.stdout)["services"]["server"]
    assert {d["source"] for d in server["devices"]} == {"/dev/kfd", "/dev/dri"}
    assert int(server["shm_size"]) >= 16 * 2**30
    assert server["ulimits"] == {"memlock": -1, "stack": 67108864}
    assert server["restart"] == "unless-stopped"
    assert server["init"] is True
    assert {p["host_ip"] for p in server["ports"]} == {"127.0.0.1"}
    cache = json.loads(done.stdout)["volumes"]["cache"]["name"]
    assert recipe.load().vllm.version in cache
    assert "mi355x" in cache


def test_compose_takes_as_much_from_both_services_as_kubernetes() -> None:
    """Both drop all capabilities and gain none; what the server needs back is listed; the health
    service has the memory that its pod's container has, and both a number of processes."""
    services = load(COMPOSE)["services"]
    pods = yaml.safe_load((ROOT / "deploy/k8s/base/deployment.yaml").read_text())["spec"]
    pod = pods["template"]["spec"]
    (health,), (server,) = pod["initContainers"], pod["containers"]
    for name, container in (("healthcheck", health), ("server", server)):
        capabilities = container["securityContext"]["capabilities"]
        assert services[name]["cap_drop"] == capabilities["drop"] == ["ALL"]
        assert "no-new-privileges:true" in services[name]["security_opt"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert services[name]["pids_limit"] > 0
    # There the key is a variable, and the weights are read only.
    needed = server["securityContext"]["capabilities"]["add"]
    assert services["server"]["cap_add"] == [*needed, "DAC_OVERRIDE"]
    assert "cap_add" not in services["healthcheck"]
    limits = health["resources"]["limits"]["memory"]
    assert services["healthcheck"]["mem_limit"] == limits.removesuffix("i").lower()
    assert "memory" not in server["resources"].get("limits", {})
    assert "mem_limit" not in services["server"]


def test_compose_alone_needs_a_profile_and_nothing_else() -> None:
    """On a host with Docker alone the profile's name is enough; without it compose says so. What is
    built, mounted and started is then what `make up` writes: the same volumes, the Dockerfiles' own
    bases, the recipe's own release."""
    missing = config({}, COMPOSE)
    assert missing.returncode != 0
    assert "name a profile of deploy/recipe.toml, as in DSPARK_PROFILE=mi355x" in missing.stderr
    plain, made = (config(environ, COMPOSE) for environ in ({"DSPARK_PROFILE": "mi355x"}, values()))
    assert plain.returncode == made.returncode == 0, plain.stderr + made.stderr
    alone, by_make = json.loads(plain.stdout), json.loads(made.stdout)
    assert alone["volumes"] == by_make["volumes"]
    assert alone["secrets"] == by_make["secrets"]
    for name, service in alone["services"].items():
        args = service["build"].pop("args")
        assert not {"BASE_IMAGE", "HEALTH_BASE_IMAGE"} & args.keys()
        assert args["RELEASE"] == service["environment"]["RELEASE"] == ""
        same = by_make["services"][name]
        for each in (service, same):
            del each["image"], each["environment"]["RELEASE"]
            each["build"].pop("args", None)
        assert service == same


@pytest.mark.parametrize(
    ("environ", "certificates", "configuration"),
    [
        ({}, "/dev/null", "/dev/null"),
        ({"SSL_CERT_FILE": "/c", "PIP_CONFIG_FILE": "/p"}, "/c", "/p"),
        ({"SSL_CERT_FILE": "/c", "PIP_CERT": "/d"}, "/d", "/dev/null"),
        ({"PIP_CERT": "/d", "CA_FILE": "/e", "PIP_CONFIG": "/q"}, "/e", "/q"),
    ],
)
def test_compose_alone_takes_what_pip_takes(
    environ: dict[str, str], certificates: str, configuration: str
) -> None:
    """The certificates and the configuration file that pip's own variables name, unless ours do."""
    done = config({"DSPARK_PROFILE": "mi355x", **environ}, COMPOSE)
    files = {name: s["file"] for name, s in json.loads(done.stdout)["secrets"].items()}
    assert (files["ca"], files["pip"]) == (certificates, configuration)


def test_the_rehearsal_takes_off_what_a_small_machine_refuses() -> None:
    """Laid over, the override leaves no device, group or limit, no capability but the one that reads
    another user's key, and the same service."""
    environ = {**values(), "REHEARSAL_SITE": "/site", "DSPARK_PROFILE": "rehearsal"}
    done = config(environ, COMPOSE, REHEARSAL)
    assert done.returncode == 0, done.stderr
    server = json.loads(done.stdout)["services"]["server"]
    for taken in ("devices", "ulimits"):
        assert not server.get(taken)
    assert (server["cap_drop"], server["cap_add"]) == (["ALL"], ["DAC_OVERRIDE"])
    assert server["security_opt"] == ["no-new-privileges:true"]
    assert server["build"]["dockerfile"] == "docker/Dockerfile"


def test_nothing_but_the_product_enters_a_build() -> None:
    """The ignore file shuts out everything and lets the product's own files in by name."""
    lines = (ROOT / ".dockerignore").read_text().split("\n")
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "**"
    allowed = {r.removeprefix("!") for r in rules if r.startswith("!")}
    assert not {a for a in allowed if "rehearsal" in a or a.startswith(("tests", ".git"))}
    assert "deploy" not in allowed


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", "--no-color", *map(str, DOCKERFILES)],
        ["yamllint", "--strict", "--config-data", "{extends: default, rules: {line-length: "
         "{max: 140}, document-start: disable, braces: {max-spaces-inside: 1}, comments: "
         "{min-spaces-from-content: 1}, truthy: {check-keys: false}}}", str(COMPOSE),
         str(REHEARSAL)],
    ],
    ids=["hadolint", "yamllint"],
)  # fmt: skip
def test_container_files_are_lint_free(command: list[str]) -> None:
    """The linters of Dockerfiles and YAML have nothing to say."""
    tool = Path(sys.executable).with_name(command[0])
    assert tool.exists(), f"{command[0]}: is not in this environment"
    done = subprocess.run([str(tool), *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_shell_in_dockerfiles_is_lint_free(tmp_path: Path) -> None:
    """ShellCheck has nothing to say about the RUN lines."""
    tool = Path(sys.executable).with_name("shellcheck")
    assert tool.exists(), "shellcheck: is not in this environment"
    for dockerfile in DOCKERFILES:
        text = re.sub(r"\\\n", "", re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.M))
        for number, line in enumerate(re.findall(r"^RUN (.*)$", text, re.MULTILINE)):
            script = tmp_path / f"{dockerfile.name}-{number}.sh"
            script.write_text("#!/bin/sh\n" + re.sub(r"--mount=\S+", "", line).strip() + "\n")
            done = subprocess.run([str(tool), str(script)], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout
