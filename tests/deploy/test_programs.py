"""The edges of every program: output that fails, an interrupt, file names that are not UTF-8."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "words",
    [
        ("deploy", "profiles"),
        ("deploy", "plan", "--profile", "mi355x"),
        ("deploy", "preflight", "--profile", "mi355x"),
        ("healthcheck", "check", "--url", "http://127.0.0.1:1"),
        ("patches", "show"),
    ],
    ids=" ".join,
)
def test_a_reader_that_has_had_enough_sees_no_traceback(words: tuple[str, ...]) -> None:
    """What `| head` closes early ends as SIGPIPE ends a program: 141, and nothing on stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        ran = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert ran.returncode == 141
    assert [line for line in ran.stderr.splitlines() if not line.startswith("# ")] == []


def test_output_without_room_is_one_line() -> None:
    """Standard output on a full disk: exit code 1, and what was wrong."""
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "deploy", "profiles"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    line = "output: No space left on device; make room or name another file\n"
    assert (ran.returncode, ran.stderr) == (1, line)


def test_a_name_that_is_not_utf_8_is_printed_as_it_was_given() -> None:
    """A path of other bytes comes out of the plan byte for byte, in a strict locale too."""
    name = b"/t/\xff.jinja"
    ran = subprocess.run(
        [sys.executable, "-m", "deploy", "plan", "--profile", "mi355x", "--format", "argv", "--",
         "--chat-template", name],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert name in ran.stdout.splitlines()


def test_an_interrupt_is_quiet() -> None:
    """Ctrl-C is exit code 130 and no traceback."""
    script = (
        "import time; from deploy import programs\n"
        "def main(): print('up', flush=True); time.sleep(600); return 0\n"
        "programs.run(main)"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "up\n"
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=120)
    assert (program.returncode, errors) == (130, "")
