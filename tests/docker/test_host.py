"""`python -m deploy.host`: what it reads of a host, what it refuses, what it gives compose."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import host, recipe

ROOT = Path(__file__).resolve().parents[2]


def made(profile: str = "mi355x", **environ: str) -> dict[str, str]:
    """Variables of a profile with a given environment."""
    loaded = recipe.load()
    return host.variables(loaded, loaded.profile(profile), host.Groups(110, 44), environ)


def devices(folder: Path, *names: str) -> tuple[Path, Path]:
    """Files that stand for device nodes."""
    dri = folder / "dri"
    dri.mkdir()
    for name in names:
        (folder / name).touch()
    return folder / "kfd", dri


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another group")
def test_the_groups_of_the_devices_are_read(tmp_path: Path) -> None:
    """The numeric group of kfd and of the first render node, in that order."""
    kfd, dri = devices(tmp_path, "kfd", "dri/card0", "dri/renderD128")
    os.chown(kfd, -1, 110)
    os.chown(dri / "renderD128", -1, 44)
    assert host.read_groups(kfd, dri) == host.Groups(kfd=110, render=44)


def test_one_group_for_both_stays_distinct(tmp_path: Path) -> None:
    """Compose wants distinct groups: the second is then one that owns nothing."""
    kfd, dri = devices(tmp_path, "kfd", "dri/renderD128")
    assert host.read_groups(kfd, dri).render == host.NO_GROUP


@pytest.mark.parametrize(
    ("names", "told"),
    [((), "kfd: is not there"), (("kfd",), "renderD*: none is there")],
)
def test_a_missing_device_is_named(tmp_path: Path, names: tuple[str, ...], told: str) -> None:
    """Without a GPU device the refusal says what to load or which profile to use."""
    kfd, dri = devices(tmp_path, *names)
    with pytest.raises(host.HostError, match="PROFILE=rehearsal") as caught:
        host.read_groups(kfd, dri)
    assert told in str(caught.value)


def test_the_environment_wins_over_the_recipe() -> None:
    """An image or port that the user names is used; the rest is the recipe's."""
    values = made(SERVER_IMAGE="mine:1", BIND="0.0.0.0", UNKNOWN="x")
    assert values["SERVER_IMAGE"] == "mine:1"
    assert values["BIND"] == "0.0.0.0"
    assert values["BASE_IMAGE"] == recipe.load().vllm.pinned_image
    assert "UNKNOWN" not in values


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"DSPARK_SPECULATION": "maybe"}, "DSPARK_SPECULATION: got 'maybe'; give on or off"),
        ({"API_KEY_FILE": "key"}, "API_KEY_FILE: got key; give the absolute path"),
        ({"CA_FILE": "/nowhere/ca.pem"}, "CA_FILE: got /nowhere/ca.pem"),
        ({"WEIGHTS": "it's"}, "WEIGHTS: got"),
    ],
)
def test_a_value_that_cannot_work_is_refused(environ: dict[str, str], told: str) -> None:
    """The setting, the value and the fix, before anything is built."""
    with pytest.raises(host.HostError) as caught:
        made(**environ)
    assert str(caught.value).startswith(told)


def test_a_key_that_the_health_service_cannot_read_is_refused(tmp_path: Path) -> None:
    """Compose mounts a secret with its own owner and mode: the remedy is a chown."""
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    key.chmod(0o600)
    with pytest.raises(host.HostError, match=f"chown {host.HEALTH_UID} {key}"):
        made(API_KEY_FILE=str(key))
    key.chmod(0o644)
    assert made(API_KEY_FILE=str(key))["API_KEY_FILE"] == str(key)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--profile", "mi400", "up"], "profile: got 'mi400'"),
        (["--profile", "mi325x", "status"], "is not there; make up PROFILE=mi325x writes it"),
        (["--profile", "rehearsal", "weights"], "generated"),
    ],
)
def test_a_refusal_is_one_line(arguments: list[str], told: str) -> None:
    """Exit code 1, one line on stderr, no traceback."""
    ended = subprocess.run(
        [sys.executable, "-m", "deploy.host", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert told in ended.stderr
