"""The job of deploy/slurm: its figures are the recipe's, and a real Slurm runs it, with a stand-in for
Apptainer, around the CPU rehearsal and a scripted server in vLLM's place."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from deploy import recipe
from deploy.environment import cache_dir
from deploy.rehearsal.supervisor import free_port
from tests.support import stops
from tests.support.documents import ROOT
from tests.support.log_samples import SAMPLES
from tests.support.slurm import OneNode, one_node
from tests.support.waiting import PATIENCE_S, until

JOB = ROOT / "deploy/slurm/dspark.sbatch"
TEXT = JOB.read_text("utf-8")
RECIPE = recipe.load()


# --- figures


def test_times_are_those_of_the_recipe() -> None:
    """The signal comes early enough for the last answer and the server's own drain, the health
    service stays as long, and a start has its whole budget."""
    (before,) = map(float, re.findall(r"^#SBATCH --signal=B:TERM@(\d+)$", TEXT, re.MULTILINE))
    (stays,) = map(float, re.findall(r"--drain (\d+)", TEXT))
    (start,) = map(float, re.findall(r"--timeout (\d+)", TEXT))
    for profile in RECIPE.profiles.values():
        if not profile.is_rehearsal:
            whole = stops.hook_s(stalled=False, profile=profile) + stops.signal_s(profile)
            assert before == stays > whole
            assert start == profile.health.start_budget_s


def test_the_job_repeats_no_flag_no_port_and_no_model() -> None:
    """How to serve stands in the recipe."""
    flags = {f"--{name}" for name in RECIPE.vllm.vocabulary.flags} - {"--host"}
    assert not flags & set(re.findall(r"--[\w-]+", TEXT))
    for value in (RECIPE.ports.serve, RECIPE.ports.health, RECIPE.profile("mi355x").model.id):
        assert str(value) not in TEXT


def test_folders_are_where_the_image_looks() -> None:
    """Every path inside that is bound is one of the compose file's mounts or secrets."""
    compose = (ROOT / "deploy/compose.yaml").read_text("utf-8")
    inside = re.findall(r'--bind "\$\w+:(/[\w/-]+)', TEXT)
    assert len(inside) == 5
    for path in inside:
        assert path in compose, path


@pytest.mark.parametrize(
    "missing", ["DSPARK_PROFILE", "WEIGHTS", "CACHE", "API_KEY_FILE", "HEALTH_TOKEN_FILE"]
)
def test_a_job_without_what_it_needs_says_so(missing: str, tmp_path: Path) -> None:
    """One line that names the variable and what to give; nothing is started."""
    names = ("DSPARK_PROFILE", "WEIGHTS", "CACHE", "API_KEY_FILE", "HEALTH_TOKEN_FILE")
    given = {name: "x" for name in names if name != missing}
    ended = subprocess.run(
        ["bash", JOB],
        env={**given, "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode != 0
    assert re.fullmatch(rf".*: {missing}: name a .*\n", ended.stderr)
    assert not list(tmp_path.iterdir())


# --- a real Slurm


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNode]:
    """One node, whose `apptainer` is the stand-in."""
    folder = tmp_path_factory.mktemp("slurm")
    programs = folder / "bin"
    programs.mkdir()
    stand_in = programs / "apptainer"
    stand_in.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)}"
        ' -m tests.support.apptainer_stand_in "$@"\n'
    )
    stand_in.chmod(0o755)
    with one_node(folder) as made:
        path = f"{programs}:{made.environ['PATH']}"
        yield OneNode(folder, {**made.environ, "PATH": path})


class Job:
    """A job that was submitted, with the server of `program`, which serves `model`, in it."""

    def __init__(self, cluster: OneNode, folder: Path, program: Path, model: str = "tiny") -> None:
        self.cluster, self.folder = cluster, folder
        self.logs = folder / "logs"
        self.server, self.health = free_port(), free_port()
        settings = folder / "settings.json"
        quick = re.sub(
            r"^scrape_interval_s = \S+",
            "scrape_interval_s = 0.2",
            recipe.FILE.read_text(),
            count=1,
            flags=re.M,
        )
        (folder / "recipe.toml").write_text(quick)
        (folder / "key").write_text("k\n")
        (folder / "token").write_text("t\n")
        for name in ("weights", "cache"):
            (folder / name).mkdir()
        settings.write_text(
            json.dumps(
                {
                    "server": self.server,
                    "health": self.health,
                    "starts": str(folder / "starts"),
                    "recipe": str(folder / "recipe.toml"),
                    "program": str(program),
                    "model": model,
                    "cards": CARDS,
                }
            )
        )
        self.number = cluster.submit(
            f"--output={folder / 'job.out'}",
            str(JOB),
            DSPARK_PROFILE="rehearsal",
            WEIGHTS=str(folder / "weights"),
            CACHE=str(folder / "cache"),
            API_KEY_FILE=str(folder / "key"),
            HEALTH_TOKEN_FILE=str(folder / "token"),
            LOGS=str(self.logs),
            ROCR_VISIBLE_DEVICES=CARDS,  # as Slurm sets it where it knows cards
            STAND_IN=str(settings),
        )

    def over(self) -> dict[str, str]:
        """What is said of the job once it has ended, and its health service with it."""
        ended = self.cluster.until(self.number, "COMPLETED", "FAILED", "CANCELLED")
        with socket.socket() as asked:
            assert asked.connect_ex(("127.0.0.1", self.health)) == errno.ECONNREFUSED
        return ended

    @property
    def said(self) -> str:
        """The job's output so far."""
        file = self.folder / "job.out"
        return file.read_text() if file.exists() else ""

    def until_said(self, words: str, within_s: float = PATIENCE_S) -> None:
        """Wait for words in its output."""
        until(
            lambda: words in self.said,
            within_s=within_s,
            why=lambda: self.said + self.cluster.logs(),
        )


CARDS = "0,1,2,3"
SERVER = ROOT / "tests/support/garbage_server.py"


def test_a_job_is_ready_by_its_own_step_and_ends_unready_first(
    cluster: OneNode, tmp_path: Path
) -> None:
    """The step says READY, the batch script alone gets the signal, the health service turns unready
    before the server ends, and the job has ended well."""
    job = Job(cluster, tmp_path, SERVER)
    job.until_said("dspark: ready on ")
    assert cluster.show(job.number)["JobState"] == "RUNNING"
    assert (job.logs / "server.log").read_text() == "server: start 1\n"
    assert (job.logs / "signs.json").exists()
    cluster.run("scancel", "--batch", "--signal=TERM", job.number)
    ended = job.over()
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), job.said
    draining, idle = job.said.index("DRAINING"), job.said.index("idle: ")
    assert draining < idle


REHEARSED = f"""import os, sys
os.environ["DSPARK_CACHE"] = {str(cache_dir(os.environ))!r}
serve = ["-m", "deploy.rehearsal", "serve", "--port", sys.argv[2]]
os.execv(sys.executable, [sys.executable, *serve])
"""


@pytest.mark.real
@pytest.mark.timeout(1800)
def test_real_vllm_passes_its_gate_in_a_job(cluster: OneNode, tmp_path: Path) -> None:
    """The CPU rehearsal through the image's own launcher: the gate samples text through the draft,
    and the step is ready; told to stop, the engine ends with the job."""
    program = tmp_path / "rehearsed.py"
    program.write_text(REHEARSED)
    job = Job(cluster, tmp_path, program, RECIPE.profile("rehearsal").served_model_name)
    job.until_said("dspark: ready on ", within_s=1500)
    asked = {"Authorization": "Bearer t"}
    told = requests.get(f"http://127.0.0.1:{job.health}/report", headers=asked, timeout=60).json()
    checks = {c["check"]: c["outcome"] for c in told["gate"]["findings"]["probe"]}
    assert checks["real tokens"] == checks["sampling"] == checks["drafting"] == "good"
    cluster.run("scancel", "--batch", "--signal=TERM", job.number)
    ended = job.over()
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), job.said
    with socket.socket() as gone:
        assert gone.connect_ex(("127.0.0.1", job.server)) == errno.ECONNREFUSED


def test_a_server_that_does_not_come_up_fails_the_job_with_its_cause(
    cluster: OneNode, tmp_path: Path
) -> None:
    """It ends before it was ready: explained out of its log, not started again."""
    program = tmp_path / "broken.py"
    program.write_text(f"print({SAMPLES['dspark.wrong_runner']!r})\nraise SystemExit(1)\n")
    job = Job(cluster, tmp_path, program)
    ended = job.over()
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "1:0"), job.said
    assert ended["Restarts"] == "0"
    assert re.search(r"^cause +dspark.wrong_runner\b", job.said, re.MULTILINE)


def test_a_server_that_was_ready_and_ends_is_put_into_the_queue_again(
    cluster: OneNode, tmp_path: Path
) -> None:
    """vLLM leaves with exit code 0 when its engine dies; the job begins anew."""
    job = Job(cluster, tmp_path, SERVER)
    job.until_said("dspark: ready on ")
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(SERVER) in words and str(tmp_path / "starts") in words:
            process.terminate()
    again = until(
        lambda: cluster.show(job.number),
        good=lambda shown: shown["Restarts"] == "1",
        why=lambda: job.said + cluster.logs(),
    )
    assert again["JobState"] in ("PENDING", "COMPLETING", "RUNNING")
