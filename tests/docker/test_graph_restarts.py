"""docker/graph_restarts.py: a start that writes garbage is ended for a new one, a few times."""

import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from deploy import recipe
from deploy.rehearsal.supervisor import free_port
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "tests" / "support" / "garbage_server.py"

sys.path.insert(0, str(ROOT / "docker"))
graph_restarts = importlib.import_module("graph_restarts")

# launch.py itself, with a scripted server in the entrypoint's place and short pauses.
LAUNCH = f"""
import sys
from pathlib import Path
sys.path[:0] = [{str(ROOT / "docker")!r}]
import graph_restarts, launch
graph_restarts.POLL_S, graph_restarts.SETTLE_S = 0.05, 0.2
launch.ENTRYPOINT = Path({str(SERVER)!r})
sys.exit(launch.main(sys.argv[1:]))
"""


@dataclass
class Pair:
    """A launcher above a server that is watched by a real health service."""

    launcher: subprocess.Popen[str]
    health: str
    folder: Path

    @property
    def starts(self) -> int:
        """How often the server was started."""
        file = self.folder / "starts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    @property
    def verdict(self) -> tuple[int, str]:
        """Status and words of /startupz."""
        answer = requests.get(f"{self.health}/startupz", timeout=PATIENCE_S)
        return answer.status_code, answer.text

    def end(self) -> tuple[int, str]:
        """Exit code and stderr after a SIGTERM."""
        self.launcher.terminate()
        _, errors = self.launcher.communicate(timeout=PATIENCE_S)
        return self.launcher.returncode, errors


@contextlib.contextmanager
def pair(folder: Path, garbage: int, limit: int = 3, **environ: str) -> Iterator[Pair]:
    """Both processes, with quick budgets; the server writes garbage in its first starts."""
    text = recipe.FILE.read_text("utf-8")
    for setting, value in (("scrape_interval_s", 0.1), ("graph_restarts", limit)):
        text = re.sub(rf"^{setting} = \S+", f"{setting} = {value}", text, count=1, flags=re.M)
    file = folder / "recipe.toml"
    file.write_text(text)
    serve, health = free_port(), free_port()
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "DSPARK_PROFILE": "rehearsal",
        "DSPARK_RECIPE": str(file),
        "DSPARK_HEALTH_URL": f"http://127.0.0.1:{health}",
        **environ,
    }
    service = [sys.executable, "-m", "healthcheck", "serve", "--model", "tiny"]
    service += ["--target", f"http://127.0.0.1:{serve}", "--port", str(health)]
    server = ["--", str(serve), str(folder / "starts"), str(garbage)]
    with (
        subprocess.Popen(service, cwd=ROOT, env=env, stderr=subprocess.DEVNULL) as watcher,
        subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *server],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as launcher,
    ):
        try:
            yield Pair(launcher, f"http://127.0.0.1:{health}", folder)
        finally:
            launcher.terminate()
            watcher.kill()


def is_up(it: Pair) -> bool:
    """Whether the health service answers."""
    with contextlib.suppress(requests.ConnectionError):
        return bool(it.verdict)
    return False


def test_a_start_that_writes_garbage_is_ended_for_one_that_writes_text(tmp_path: Path) -> None:
    """The gate reads one token over and over, the server is started once more, and serves."""
    log = tmp_path / "server.log"
    with pair(tmp_path, 1, DSPARK_GRAPHS="on", DSPARK_LOG=str(log)) as it:
        until(lambda: is_up(it))
        until(lambda: it.verdict[0] == 200)
        assert it.starts == 2
        code, errors = it.end()
    assert code == 0
    assert errors.splitlines() == [
        "launch: graphs gave garbage (text.one_token): ending start 1 of at most 4 for a new one"
    ]
    # each start has a log of its own
    assert log.read_text() == "server: start 2\n"
    assert log.with_name("server.log.1").read_text() == "server: start 1\n"


def test_after_the_last_start_the_server_is_left_unready(tmp_path: Path) -> None:
    """Garbage in every start: they are counted, the last one stays, and the way out is told."""
    with pair(tmp_path, 9, limit=1, DSPARK_GRAPHS="on") as it:
        until(lambda: it.starts == 2)
        until(lambda: is_up(it))
        assert it.launcher.stderr is not None
        lines = [it.launcher.stderr.readline() for _ in range(2)]
        assert "ending start 1 of at most 2 for a new one" in lines[0]
        assert lines[1] == (
            "launch: graphs gave garbage in 2 starts: serve with DSPARK_GRAPHS=off\n"
        )
        status, words = it.verdict
        assert (status, words.split()[:2]) == (503, ["SMOKE", "text.one_token"])
        assert it.launcher.poll() is None
        assert it.end() == (0, "")
    assert it.starts == 2


def test_without_graphs_nothing_is_ended(tmp_path: Path) -> None:
    """Garbage is then no matter of luck: the server is left for its reason to be seen."""
    with pair(tmp_path, 9) as it:
        until(lambda: is_up(it))
        until(lambda: "gate.failed" in it.verdict[1])
        time.sleep(1)
        assert (it.starts, it.end()) == (1, (0, ""))


# --- one start


def watched(
    script: str, *verdicts: str | None, limit: int = 3, grace_s: float = 30.0
) -> tuple[bool, list[str], int]:
    """A shell script under watch while the health service says one thing after another.

    Whether it is to be started again, what was said, and its exit code.
    """
    said: list[str] = []
    asked = 0

    def ask() -> list[str] | None:
        nonlocal asked
        words = verdicts[min(asked, len(verdicts) - 1)]
        asked += 1
        return None if words is None else words.split()

    restarts = graph_restarts.Restarts(ask, limit, grace_s, said.append)
    server = subprocess.Popen(["sh", "-c", script], process_group=0)
    with restarts.watching(server):
        # Asked again after the last verdict, so that it has been acted on or passed over.
        until(lambda: bool(said) or asked > len(verdicts) + 1)
        if not said:
            server.terminate()
        server.wait(PATIENCE_S)
    return restarts.again(threading.Event()), said, server.returncode


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses."""
    monkeypatch.setattr(graph_restarts, "POLL_S", 0.02)
    monkeypatch.setattr(graph_restarts, "SETTLE_S", 0.0)


GARBAGE = "SMOKE text.garbage gate.failed"


@pytest.mark.parametrize(
    ("verdicts", "ends"),
    [
        (("LOADING server.refused", GARBAGE), True),
        ((None, "SMOKE gate.running", None, GARBAGE), True),
        (("SMOKE engine.new", "SMOKE numerics.nan text.loop gate.failed"), True),
        (("LOADING server.refused", "SMOKE gate.running"), False),
        # what a new process would not mend, or what is no verdict on what it wrote
        (("LOADING start.waiting", "SMOKE server.error gate.failed"), False),
        (("LOADING start.waiting", "SMOKE text.needle_missed_past_2048 gate.failed"), False),
        (("LOADING start.waiting", "SMOKE gate.running generation.timeout"), False),
        (("LOADING start.waiting", "NOT_READY text.garbage"), False),
        # of the start before, as long as nothing else was said
        ((GARBAGE, GARBAGE), False),
        ((None, GARBAGE, None, GARBAGE), False),
        ((GARBAGE, "LOADING server.refused", GARBAGE), True),
    ],
)
def test_what_ends_a_start_is_garbage_that_its_own_gate_read(
    verdicts: tuple[str | None, ...], ends: bool
) -> None:
    """Words of the health service decide, and those about the process before do not count."""
    again, said, code = watched("exec sleep 600", *verdicts)
    assert (again, len(said)) == (ends, ends)
    assert code == -signal.SIGTERM


def test_a_server_that_does_not_end_is_killed_with_what_it_leaves(tmp_path: Path) -> None:
    """After the grace SIGKILL, and a worker that would hold the card's memory goes too."""
    worker = tmp_path / "worker"
    script = f"sleep 600 & echo $! > {worker}; trap '' TERM; while :; do sleep 0.1; done"
    again, _, code = watched(script, "LOADING server.refused", GARBAGE, grace_s=0.5)
    assert (again, code) == (True, -signal.SIGKILL)
    until(lambda: not running(int(worker.read_text())))


def running(pid: int) -> bool:
    """Whether a process is there that has not ended."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_who_wants_to_stop_gets_no_new_start() -> None:
    """A SIGTERM between two starts is the end."""
    restarts = graph_restarts.Restarts(lambda: None, 3, 1.0, lambda _: None)
    restarts._is_ending = True
    stopping = threading.Event()
    assert restarts.again(stopping)
    stopping.set()
    assert not restarts.again(stopping)
