"""`python3 -m healthcheck` as its users run it: processes, exit codes, one-line messages."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import requests

from deploy.rehearsal.supervisor import free_port
from healthcheck.__main__ import main
from tests.support import in_process
from tests.support.scripted_server import MODEL, ScriptedServer, scripted_server
from tests.support.waiting import PATIENCE_S, until

REPOSITORY = Path(__file__).parents[2]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "healthcheck", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S
    )


@contextlib.contextmanager
def serving(target: ScriptedServer, port: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    options = ["--profile", "rehearsal", "--target", target.url, "--model", MODEL]
    process = subprocess.Popen(
        command("serve", *options, "--port", str(port), *more),
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "DSPARK_PROFILE"},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_serve_wait_check_and_drain() -> None:
    """wait ends with 0 when ready, check agrees, SIGTERM is unready first, then exit 0."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with scripted_server() as target, serving(target, port, "--drain", "10") as process:
        waited = run("wait", "--timeout", f"{PATIENCE_S:g}", "--url", url)
        assert (waited.returncode, waited.stdout) == (0, "READY\n")
        for what in ("startup", "ready", "live"):
            assert run("check", "--for", what, "--url", url).returncode == 0
        by_environment = subprocess.run(
            command("check"),
            cwd=REPOSITORY,
            env={**os.environ, "DSPARK_HEALTH_URL": url},
            timeout=PATIENCE_S,
        )
        assert by_environment.returncode == 0
        process.send_signal(signal.SIGTERM)
        until(lambda: requests.get(f"{url}/readyz", timeout=PATIENCE_S).status_code == 503)
        assert process.poll() is None
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert "draining for 10 s" in errors
        assert "Traceback" not in errors


def test_interrupt_stops_at_once_and_quietly() -> None:
    """Ctrl-C ends the service with 0 and no traceback, without waiting out a drain."""
    port = free_port()
    with scripted_server() as target, serving(target, port, "--drain", "1000") as process:
        assert process.stderr is not None
        assert "watches" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert "Traceback" not in errors


def test_check_says_bad_with_its_reason() -> None:
    """A server that refuses is exit 1 and one line that holds state and reason."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with scripted_server() as target:
        target.down()
        with serving(target, port):
            # 2 while the service itself is not up
            checked = until(
                lambda: run("check", "--for", "ready", "--url", url),
                good=lambda said: said.returncode == 1,
            )
            waited = run("wait", "--timeout", "1", "--url", url)
    assert waited.returncode == checked.returncode == 1
    assert checked.stdout.startswith("LOADING start.waiting (server.refused)")
    assert checked.stdout.count("\n") == 1


def test_no_health_service_is_could_not_tell() -> None:
    """Nothing on the port is exit 2, not 1."""
    result = run("check", "--url", f"http://127.0.0.1:{free_port()}")
    assert result.returncode == 2
    assert result.stdout.startswith("UNKNOWN service.unreachable")
    assert "Traceback" not in result.stderr


def test_misuse_is_two_and_one_line() -> None:
    """A port in use, an unknown profile, bad addresses, a wait without end: one line, exit 2."""
    with scripted_server() as target:
        taken = in_process.run(
            main,
            *("serve", "--profile", "rehearsal", "--target", target.url),
            *("--port", str(target.port)),
        )
    profile = in_process.run(main, "serve", "--profile", "nothing")
    address = in_process.run(main, "check", "--url", "nowhere")
    nobody = in_process.run(
        main, "serve", "--profile", "rehearsal", "--host", "ü" * 70, "--port", "0"
    )
    never = in_process.run(main, "wait", "--timeout", "nan")
    for result, word in (
        *((taken, "--port"), (profile, "profile"), (address, "--url")),
        *((nobody, "--host"), (never, "--timeout: got nan")),
    ):
        assert result.returncode == 2
        assert word in result.stderr
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""


def test_grpc_is_served_beside_http_where_asked_for() -> None:
    """--grpc-port names a second port, which is told; one that is taken is one line and exit 2."""
    port, second = free_port(), free_port()
    with scripted_server() as target:
        with serving(target, port, "--grpc-port", str(second), "--drain", "0") as it:
            assert it.stderr is not None
            # The lines of its turns may come before; without it the test's time is over.
            while it.stderr.readline() != f"health: grpc.health.v1 on port {second}\n":
                assert it.poll() is None
            it.send_signal(signal.SIGTERM)
            it.communicate(timeout=PATIENCE_S)
            assert it.returncode == 0
        with serving(target, port, "--grpc-port", str(target.port)) as taken:
            _, errors = taken.communicate(timeout=PATIENCE_S)
    assert taken.returncode == 2
    assert errors.startswith(f"healthcheck: --grpc-port: got {target.port}; it cannot be bound")
    assert len(errors.splitlines()) == 1


def test_the_key_file_opens_the_server(tmp_path: Path) -> None:
    """With the server's key in a file the gate passes; the key shows nowhere in the output."""
    port = free_port()
    key = tmp_path / "key"
    key.write_text("sk-of-the-test\n")
    options = ("--api-key-file", str(key))
    with scripted_server(key="sk-of-the-test") as target, serving(target, port, *options) as it:
        url = f"http://127.0.0.1:{port}"
        assert run("wait", "--timeout", f"{PATIENCE_S:g}", "--url", url).returncode == 0
        it.send_signal(signal.SIGINT)
        _, errors = it.communicate(timeout=PATIENCE_S)
    assert "sk-of-the-test" not in errors


def test_other_commands_are_loaded_when_asked_for() -> None:
    """`explain --help` is explain's own help, not this parser's."""
    result = run("explain", "--help")
    assert result.returncode == 0
    assert "explain" in result.stdout
    assert main(["check", "--url", "x"]) == 2


def test_a_log_is_explained_by_a_bare_python() -> None:
    """Where none of the service's packages is installed, `explain` and the help still run, and
    other commands name the Python that has them."""
    missing = ("requests", "prometheus_client", "starlette", "uvicorn", "urllib3")
    blocked = f"import sys; sys.modules.update(dict.fromkeys({missing!r})); "
    program = blocked + "from healthcheck.__main__ import main; sys.exit(main())"
    log = "tests/healthcheck/data/log-missing-d2t.log"
    smoke, check = ["smoke", "compare", "a", "b"], ["check", "--url", "http://127.0.0.1:1"]
    for arguments, code in ((smoke, 2), (check, 2), (["explain", log], 1), (["--help"], 0)):
        ran = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert ran.returncode == code, ran.stderr
        if code == 2:
            assert ran.stderr.count("\n") == 1
            assert "python3 -m deploy environment health" in ran.stderr
    assert "explain" in ran.stdout
