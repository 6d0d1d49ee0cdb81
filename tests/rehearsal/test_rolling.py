"""What is counted while one release is replaced by another, and the verdict."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from deploy import recipe
from deploy.containers import cli
from deploy.rehearsal import rolling
from deploy.rehearsal.environment import QWEN
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.rolling import Load, Outcome, Phase, Request
from tests.support.waiting import until

PROFILE = recipe.load().profile(QWEN)
STREAM = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
WORD = b'data: {"choices": [{"text": "say", "finish_reason": null}]}\n\n'
LAST = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n'
ABORTED = b'data: {"choices": [{"text": "", "finish_reason": "abort"}]}\n\n'
ERROR = b'data: {"error": {"message": "is shutting down", "code": 500}}\n\n'
DONE = b"data: [DONE]\n\n"
VERSION = b'HTTP/1.0 200 OK\r\n\r\n{"version": "1.2.3+cpu"}'


@contextmanager
def answering(completion: bytes) -> Iterator[int]:
    """The port of a server that says this of a completion, and VERSION else, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        asked = connection.recv(65536)
                        while b"POST" in asked and not asked.endswith(b"}"):
                            asked += connection.recv(65536)
                        connection.sendall(completion if b"POST" in asked else VERSION)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    ("completion", "outcome"),
    [
        (STREAM + WORD + LAST + DONE, Outcome.ANSWERED),
        (STREAM + WORD, Outcome.BROKEN),
        (STREAM + WORD + LAST, Outcome.BROKEN),
        (STREAM + WORD + ABORTED + DONE, Outcome.BROKEN),
        (STREAM + WORD + ERROR + DONE, Outcome.BROKEN),
        (STREAM + ERROR + DONE, Outcome.TURNED_AWAY),
        (b"HTTP/1.0 500 Internal Server Error\r\n\r\nno", Outcome.TURNED_AWAY),
        (b"", Outcome.REFUSED),
    ],
)
def test_how_a_request_ended(completion: bytes, outcome: Outcome) -> None:
    """By what came of it: a word makes it one that must come whole."""
    with answering(completion) as port:
        load = Load(port, PROFILE)
        with load.running():
            seen = until(lambda: load.phase("x").requests)
    assert {each.outcome for each in seen} == {outcome}


def test_nobody_there_is_a_refusal() -> None:
    """And a release that does not say its version is one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    load = Load(port, PROFILE)
    with load.running():
        seen = until(lambda: load.phase("x").requests)
    assert {each.outcome for each in seen} == {Outcome.REFUSED}
    with pytest.raises(RehearsalError, match=r"^the server: says no version \(.*refused"):
        load.served("1.0")


def test_a_release_is_the_one_that_was_started() -> None:
    """Another one that answers at its port is refused; the right one is asked until it has given
    enough answers."""
    with answering(STREAM + WORD + LAST + DONE) as port:
        load = Load(port, PROFILE)
        with load.running():
            assert len(load.served("1.2.3").of(Outcome.ANSWERED)) >= rolling.ANSWERS
            with pytest.raises(RehearsalError, match=r"is vLLM 1\.2\.3\+cpu: 1\.2\.4 was started"):
                load.served("1.2.4")


def phase(*ended: tuple[float, float, Outcome], stopped_at: float | None = 100.0) -> Phase:
    """A replacement in which these were sent, ended, and how."""
    return Phase("to 2.0", [Request(*each) for each in ended], stopped_at)


STEADY = Phase("1.0", [Request(1, 2, Outcome.ANSWERED)])
SAVED = (99.0, 101.0, Outcome.ANSWERED)
AWAY = (100.1, 100.2, Outcome.TURNED_AWAY)
REFUSED = (105.0, 105.1, Outcome.REFUSED)


@pytest.mark.parametrize(
    ("ended", "code", "last"),
    [
        ((SAVED, AWAY, REFUSED), 0, "roll vLLM 1.0 to 2.0: every answer under way at a stop came whole"),
        ((SAVED, (99.0, 103.0, Outcome.BROKEN)), 1, "hold vLLM 1.0 to 2.0: 1 answers broke off that the drain had time for"),
        ((SAVED, (99.0, 113.0, Outcome.BROKEN)), 0, "roll vLLM 1.0 to 2.0: every answer under way at a stop came whole"),
        (((98.0, 99.0, Outcome.ANSWERED), AWAY), 1, "hold vLLM 1.0 to 2.0: no answer was under way at the stop to 2.0"),
    ],
)  # fmt: skip
def test_the_verdict(ended: tuple[tuple[float, float, Outcome], ...], code: int, last: str) -> None:
    """An answer that breaks off within the drain holds; one that takes longer does not, nor does what
    is refused or turned away; a stop at which nothing was under way has shown nothing."""
    told, seen = rolling.verdict([STEADY, phase(*ended)], 12.0)
    assert (seen, told.splitlines()[-1]) == (code, last)


def test_an_answer_that_breaks_off_while_nothing_is_done_holds() -> None:
    """There is no drain then that it could outlast."""
    lost = Phase("2.0", [Request(1, 900, Outcome.BROKEN)])
    assert rolling.verdict([STEADY, phase(SAVED), lost], 12.0)[1] == 1


def test_what_was_counted_is_a_table() -> None:
    """A row for each phase, with the time in which no answer came."""
    told, _ = rolling.verdict(
        [STEADY, phase(SAVED, AWAY, REFUSED, (131.0, 161.0, Outcome.ANSWERED))], 12.0
    )
    rows = [line.split() for line in told.splitlines()[1:3]]
    assert rows[0] == ["1.0", "1", "1", "0", "0", "0", "0", "0", "s"]
    assert rows[1] == ["to", "2.0", "4", "2", "1", "1", "0", "1", "60", "s"]


def test_a_rehearsal_that_runs_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file of variables would be written over, so that `make down` did not find it."""
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho container\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(cli, "ENV_FILES", tmp_path)
    (tmp_path / f"{QWEN}.env").touch()
    with pytest.raises(
        RehearsalError, match="its containers run: make down PROFILE=rehearsal first"
    ):
        rolling.run("1.0", "2.0", print)
