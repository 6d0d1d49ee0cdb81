"""docker/launch.py: secrets from files, the copy of the log, signals and exit codes."""

import contextlib
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from healthcheck.flights import told
from healthcheck.flights.model import listed
from tests.support.made_flights import tell
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker" / "launch.py"


def module() -> ModuleType:
    """docker/launch.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("launch", FILE)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def launch(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    """launch.py with the entrypoint's own escape to another program."""
    return subprocess.Popen(
        [sys.executable, str(FILE), *arguments],
        env={"PATH": os.environ["PATH"], **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_secret_of_a_file_reaches_the_server(tmp_path: Path) -> None:
    """VLLM_API_KEY_FILE becomes VLLM_API_KEY without the line's end, and is gone itself."""
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    output, _ = launch("env", VLLM_API_KEY_FILE=str(key)).communicate(timeout=60)
    lines = output.splitlines()
    assert "VLLM_API_KEY=s3cret" in lines
    assert not any(line.startswith("VLLM_API_KEY_FILE") for line in lines)


def test_an_empty_secret_sets_nothing() -> None:
    """The null device that compose mounts for an absent secret is no key."""
    output, _ = launch("env", VLLM_API_KEY_FILE="/dev/null").communicate(timeout=60)
    assert "VLLM_API_KEY" not in output


@pytest.mark.parametrize(
    "content", [None, b"two words\n", b"\xff\xfe", b"two\0words", b"two words" * 100_000]
)
def test_a_secret_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A missing file, two words, other bytes than text, a file of megabytes: one line, exit 1."""
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
    process = launch("env", HF_TOKEN_FILE=str(key))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output == ""
    assert len(errors.splitlines()) == 1
    assert f"HF_TOKEN_FILE: {key}" in errors
    assert "two" not in errors


def test_all_output_is_copied_and_the_exit_code_kept(tmp_path: Path) -> None:
    """Both streams reach stdout and the file, to the last byte before the end."""
    log = tmp_path / "new" / "server.log"
    script = "echo out; echo err >&2; printf tail; exit 7"
    process = launch("sh", "-c", script, DSPARK_LOG=str(log))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 7
    assert output == "out\nerr\ntail"
    assert log.read_text() == output


def test_each_start_begins_a_new_file_and_keeps_the_last(tmp_path: Path) -> None:
    """What the run before said is in FILE.1, for the cause of a restart."""
    log = tmp_path / "server.log"
    for word in ("first", "second", "third"):
        launch("echo", word, DSPARK_LOG=str(log)).communicate(timeout=60)
    assert log.read_text() == "third\n"
    assert log.with_name("server.log.1").read_text() == "second\n"


def test_a_full_file_is_rotated(tmp_path: Path) -> None:
    """The copy never holds more than its limit and one block, twice."""
    log = module().LogFile(tmp_path / "log", limit_bytes=10)
    for word in (b"0123456789", b"abc", b"defghijk", b"x"):
        log.write(word)
    assert (tmp_path / "log").read_bytes() == b"x"
    assert (tmp_path / "log.1").read_bytes() == b"abcdefghijk"


def test_a_signal_reaches_the_server_whose_code_counts(tmp_path: Path) -> None:
    """SIGTERM goes to the server, which ends as it likes."""
    script = "trap 'echo drained; exit 3' TERM; echo up; while :; do sleep 0.1; done"
    process = launch("sh", "-c", script, DSPARK_LOG=str(tmp_path / "log"))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert output == "drained\n"
    assert process.returncode == 3


def test_a_server_killed_by_a_signal_ends_as_a_shell_tells_it(tmp_path: Path) -> None:
    """A death by SIGKILL is exit code 137."""
    process = launch("sh", "-c", "kill -KILL $$", DSPARK_LOG=str(tmp_path / "log"))
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL


def test_a_worker_that_outlives_the_server_does_not_keep_the_container(tmp_path: Path) -> None:
    """A process that holds the pipe open after the server's end delays the end by seconds only."""
    script = "sleep 300 & echo $!; exit 5"
    started = time.monotonic()
    process = launch("sh", "-c", script, DSPARK_LOG=str(tmp_path / "log"))
    assert process.stdout is not None
    leftover = int(process.stdout.readline())
    try:
        assert process.wait(timeout=120) == 5
        assert time.monotonic() - started < 120
    finally:
        os.kill(leftover, signal.SIGKILL)


def test_a_log_that_cannot_be_written_is_refused() -> None:
    """A folder that is not writable is told before the server starts."""
    process = launch("env", DSPARK_LOG="/proc/none/server.log")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output == ""
    assert errors.startswith("launch: DSPARK_LOG: /proc/none/server.log: ")
    assert len(errors.splitlines()) == 1


def test_a_log_takes_no_folder_or_device_from_its_place(tmp_path: Path) -> None:
    """Only a file is kept as FILE.1: renaming /dev/null or a folder of data would lose it."""
    folder, pipe = tmp_path / "data", tmp_path / "pipe"
    (folder / "inside").mkdir(parents=True)
    os.mkfifo(pipe)
    for path in (folder, pipe):
        process = launch("env", DSPARK_LOG=str(path))
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output) == (1, "")
        assert errors.startswith(f"launch: DSPARK_LOG: {path}: is there and is no file; give a ")
        assert len(errors.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "pipe"]
    assert (folder / "inside").is_dir()


def test_a_disk_that_fills_up_costs_the_copy_and_no_output(tmp_path: Path) -> None:
    """Where the log can grow no further, all output still reaches stdout, and the code is kept."""
    log = tmp_path / "log"
    script = "for n in 1 2 3 4 5 6; do printf %01000d $n; sleep 0.2; done; exit 7"
    limited = f'ulimit -f 1; exec "{sys.executable}" "{FILE}" sh -c "$SCRIPT"'
    ran = subprocess.run(
        ["sh", "-c", limited],
        env={"PATH": os.environ["PATH"], "DSPARK_LOG": str(log), "SCRIPT": script},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (7, "")
    assert ran.stdout == "".join(f"{n:01000}" for n in range(1, 7))
    assert 0 < log.stat().st_size <= 1024


@contextlib.contextmanager
def no_room_beyond(size_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond a size, as on a full disk: short writes, then errors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_nothing_that_was_written(tmp_path: Path) -> None:
    """However often a write fails: the log keeps all that fitted, and the one before it is kept."""
    now = [0.0]
    path, before = tmp_path / "log", tmp_path / "log.1"
    path.write_bytes(b"the start before")
    log = module().LogFile(path, clock=lambda: now[0])
    log.write(b"0123456789")
    with no_room_beyond(15):
        for _ in range(6):
            log.write(b"abcdefgh")
            now[0] += 60
    assert path.read_bytes() == b"0123456789abcde"
    assert before.read_bytes() == b"the start before"


def test_a_full_file_is_kept_until_there_is_room_for_the_next(tmp_path: Path) -> None:
    """A rotation that cannot write takes the place of nothing, and is made when it can."""
    now = [0.0]
    path, before = tmp_path / "log", tmp_path / "log.1"
    before.write_bytes(b"earlier")
    log = module().LogFile(path, limit_bytes=10, clock=lambda: now[0])
    log.write(b"0123456789")
    with no_room_beyond(0):
        for _ in range(6):
            log.write(b"lost")
            now[0] += 60
        assert (path.read_bytes(), before.read_bytes()) == (b"0123456789", b"earlier")
        assert len(list(tmp_path.iterdir())) == 2
    log.write(b"found")
    assert before.read_bytes() == b"0123456789"
    assert path.read_bytes().endswith(b"found")


def test_a_gap_in_the_copy_is_told_in_it(tmp_path: Path) -> None:
    """After an error the copy pauses, then goes on and says where and why something is missing."""
    now = [0.0]
    launcher = module()
    log = launcher.LogFile(tmp_path / "log", clock=lambda: now[0])
    with no_room_beyond(4):
        log.write(b"before")
    log.write(b"too soon")
    now[0] = launcher.RETRY_S
    log.write(b"after")
    told = b"befo\nlaunch: output is missing here: File too large\nafter"
    assert (tmp_path / "log").read_bytes() == told


def test_a_start_that_wrote_nothing_is_not_kept(tmp_path: Path) -> None:
    """Restarts on a full disk leave FILE.1 what the last server said that could say something."""
    path = tmp_path / "log"
    module().LogFile(path).write(b"why it died")
    for _ in range(3):
        module().LogFile(path)
    assert path.read_bytes() == b""
    assert (tmp_path / "log.1").read_bytes() == b"why it died"


def test_a_reader_that_leaves_ends_no_server(tmp_path: Path) -> None:
    """Output that nobody takes any more still reaches the copy, and the exit code is kept."""
    log = tmp_path / "log"
    process = launch("sh", "-c", "echo up; sleep 0.5; echo more; exit 7", DSPARK_LOG=str(log))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.stdout.close()
    assert process.wait(timeout=60) == 7
    assert log.read_text() == "up\nmore\n"


def test_the_provenance_lies_beside_the_log(tmp_path: Path) -> None:
    """The image's provenance is there for the health service's user, and no unfinished copy is."""
    source = tmp_path / "image" / "provenance.json"
    source.parent.mkdir()
    source.write_text('{"series": 1}')
    source.chmod(0o600)
    folder = tmp_path / "log"
    folder.mkdir()
    module().show_provenance(source, folder)
    assert (folder / "provenance.json").read_text() == '{"series": 1}'
    assert (folder / "provenance.json").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in folder.iterdir()] == ["provenance.json"]


def test_the_provenance_of_another_image_is_taken_away(tmp_path: Path) -> None:
    """A volume that served an image before never shows what that one was made of."""
    log = tmp_path / "server.log"
    stale = tmp_path / "provenance.json"
    stale.write_text("{}")
    process = launch("true", DSPARK_LOG=str(log))
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not stale.exists()


def test_a_provenance_that_cannot_be_copied_costs_no_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is one line on stderr, and nothing is left behind."""
    source = tmp_path / "provenance.json"
    source.write_text("{}")
    (tmp_path / "log" / "provenance.json").mkdir(parents=True)
    module().show_provenance(source, tmp_path / "log")
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["provenance.json"]


def test_a_stuck_server_is_recorded_before_its_end(tmp_path: Path) -> None:
    """SIGTERM reaches a server of which the health service says that it is stuck, after its stacks
    are taken; its code counts as ever."""
    log = tmp_path / "server.log"
    script = "trap 'exit 3' TERM; echo up; while :; do sleep 0.1; done"
    process = launch("sh", "-c", script, DSPARK_LOG=str(log))
    until(told.file(log).parent.exists)
    tell(log)
    until(lambda: listed(tmp_path / "flights"))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert {flight.why for flight in listed(tmp_path / "flights")} == {"NOT_READY", "SIGTERM"}
    assert all(line.startswith("flights: ") for line in errors.splitlines())
