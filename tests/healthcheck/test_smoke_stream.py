"""Streams as the smoke test reads them: cuts, faults, the moment of each piece, the deadline."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.client import Client, Secret
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.judge import Outcome
from healthcheck.smoke import stream
from healthcheck.smoke.figures import Spread, percentile, ratio
from healthcheck.smoke.stream import Events, Piece, Streamed
from healthcheck.smoke.surface import judge_stream
from tests.support.scripted_server import MODEL, scripted_server

PATH = "/v1/completions"
ASKED = {"model": MODEL, "prompt": "a river", "max_tokens": 16, "temperature": 1.0, "seed": 1}
USAGE = {"prompt_tokens": 3, "completion_tokens": 16, "total_tokens": 19}


@contextlib.contextmanager
def raw_server(*parts: bytes, hang: bool = False) -> Iterator[str]:
    """A server that answers one question with these bytes, and closes or hangs."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                asked = b""
                while not asked.endswith(b"}}"):  # an unread rest would reset the connection
                    asked += connection.recv(65536)
                for part in parts:
                    connection.sendall(part)
                if hang:
                    over.wait(60)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


def head(kind: str = "text/event-stream", status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode()


def event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def test_a_stream_is_read_with_the_moment_of_each_piece() -> None:
    """Text, tokens and usage are those of the whole answer; the pieces come one after another."""
    with scripted_server(pause_s=0.02, key="k") as server:
        seen = stream.ask(Client(server.url, key=Secret("k")), PATH, ASKED, 30.0)
        whole = json.loads(server.complete(ASKED)[1])["choices"][0]["text"]
        sent = server.completions[0]
    assert isinstance(seen, Streamed)
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert seen.text == whole
    assert seen.done and seen.finish_reason == "length" and seen.tokens == 16
    assert [piece.tokens for piece in seen.pieces] == [4, 8, 12, 16]
    assert len(seen.gaps_s) == 3 and min(seen.gaps_s) > 0.01
    assert seen.first_s == seen.pieces[0].at_s >= 0.02


def test_a_streamed_call_is_the_call_of_a_whole_answer() -> None:
    """Parts join by their index, whatever comes between them, and stand beside the content."""
    parts: list[dict[str, object]] = [
        {"role": "assistant", "content": ""},
        {"content": "I "},
        {"tool_calls": [{"index": 1, "function": {"name": "b", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "a"}}]},
        {"content": "look"},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
        {"tool_calls": [{"index": 1, "function": {"name": None, "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    ]
    events = [event(json.dumps({"choices": [{"delta": part}]})) for part in parts]
    with raw_server(head(), *events, event("[DONE]")) as url:
        seen = stream.ask(Client(url), PATH, ASKED, 30.0)
    assert isinstance(seen, Streamed) and seen.done
    assert seen.message["content"] == "I look"
    assert seen.message["tool_calls"] == [
        {"function": {"name": "a", "arguments": '{"x": 1}'}},
        {"function": {"name": "b", "arguments": "{}"}},
    ]
    assert seen.text == 'I look{"x"{}: 1}'


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r\n", codec="utf-8")).filter(bool), max_size=5
    ),
    st.data(),
)
def test_events_are_the_same_in_every_cut(texts: list[str], data: st.DataObject) -> None:
    """Bytes may be cut anywhere, within a letter as well."""
    body = b"".join(f": note\r\nevent: x\ndata: {text}\r\n\r\n".encode() for text in texts)
    events, seen = Events(), []
    while body:
        size = data.draw(st.integers(1, len(body)))
        seen += events.feed(body[:size])
        body = body[size:]
    assert seen == texts


@given(st.binary(max_size=300))
def test_any_bytes_are_events_or_none(body: bytes) -> None:
    """A hostile body raises nothing and gives no more than it holds."""
    assert len("".join(Events().feed(body))) <= len(body)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([head(), event("{")], FailureKind.MALFORMED),
        ([head(), event('{"error": {"message": "boom"}}')], FailureKind.MALFORMED),
        ([head(), event("[" * 100_000)], FailureKind.MALFORMED),
        ([head(), event("[1]")], FailureKind.MALFORMED),
        ([head(), event('{"choices": [{"delta": {"tool_calls": 7}}]}')], FailureKind.MALFORMED),
        ([head(), event('{"choices": [{"delta": {"tool_calls": [7]}}]}')], FailureKind.MALFORMED),
        ([b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nff\r\ndata"], FailureKind.TRUNCATED),
        ([b"SSH-2.0\r\n"], FailureKind.MALFORMED),
        ([], FailureKind.RESET),
        ([head(), b":" + b"x" * (5 << 20)], FailureKind.TOO_LARGE),
    ],
    ids=["cut json", "error", "nested", "no chunk", "no calls", "no call", "truncated", "no http", "closed", "endless"],
)  # fmt: skip
def test_a_broken_stream_is_a_failure_of_its_kind(parts: list[bytes], kind: FailureKind) -> None:
    """Whatever the server sends, it is told apart and raises nothing."""
    with raw_server(*parts) as url:
        seen = stream.ask(Client(url), PATH, ASKED, 30.0)
    assert isinstance(seen, Failure)
    assert seen.kind is kind


def test_an_error_is_an_answer() -> None:
    """A status, or a body that is no stream, is judged as any other answer."""
    with raw_server(head("application/json", "500 Oops"), b'"boom"') as url:
        seen = stream.ask(Client(url), PATH, ASKED, 30.0)
    assert isinstance(seen, Answer)
    assert (seen.status, seen.text) == (500, '"boom"')


@pytest.mark.parametrize("chunked", [True, False])
def test_a_stream_that_hangs_ends_by_its_deadline(chunked: bool) -> None:
    """Also after the first piece, and whether or not the body says where it ends."""
    first = event('{"choices": [{"text": "a"}]}')
    start = head()
    if chunked:
        start = start.replace(b"Connection", b"Transfer-Encoding: chunked\r\nConnection")
        first = b"%x\r\n%s\r\n" % (len(first), first)
    with raw_server(start, first, hang=True) as url:
        seen = stream.ask(Client(url), PATH, ASKED, 0.3)
    assert isinstance(seen, Failure)
    assert seen.kind is FailureKind.TIMEOUT
    assert seen.elapsed_s < 30


def test_nobody_listening_is_refused() -> None:
    """As it is for the other questions."""
    with scripted_server() as server:
        server.down()
        seen = stream.ask(Client(server.url), PATH, ASKED, 5.0)
    assert isinstance(seen, Failure)
    assert seen.kind is FailureKind.REFUSED


def streamed(*moments: float, **fields: object) -> Streamed:
    pieces = tuple(Piece(at, " word", None) for at in moments)
    values = {"usage": USAGE, "done": True, "finish_reason": "length", **fields}
    return Streamed(pieces, elapsed_s=2.0, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "outcome", "code"),
    [
        (streamed(0.5, 1.0, 1.5), Outcome.GOOD, ""),
        (streamed(1.99, 1.995, 1.999), Outcome.UNKNOWN, "stream.buffered"),
        (streamed(0.5, 1.0, done=False), Outcome.BAD, "stream.broken"),
        (streamed(), Outcome.BAD, "stream.broken"),
        (streamed(0.5, 1.0, finish_reason=None), Outcome.BAD, "stream.broken"),
        (streamed(0.5, 1.0, usage=None), Outcome.BAD, "stream.no_usage"),
        (streamed(0.5, 1.0, usage={**USAGE, "completion_tokens": 15}), Outcome.BAD, "usage.wrong"),
        (streamed(0.5, 1.0, usage={**USAGE, "total_tokens": 20}), Outcome.BAD, "usage.wrong"),
        (streamed(0.5, 1.0, usage={**USAGE, "prompt_tokens": "3"}), Outcome.BAD, "usage.wrong"),
    ],
)
def test_a_stream_is_whole_or_its_lack_is_named(
    seen: Streamed, outcome: Outcome, code: str
) -> None:
    """Text, finish_reason, usage that adds up, [DONE]; and pieces that come as they are made."""
    check = judge_stream("stream", seen, 16)
    assert (check.outcome, check.code) == (outcome, code)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_measured_values_in_order(values: list[float]) -> None:
    """Nearest rank: never a figure that nobody saw."""
    spread = Spread.of(values)
    assert spread.count == len(values)
    assert {spread.p50, spread.p90, spread.p99} <= set(values)
    assert min(values) <= spread.p50 <= spread.p90 <= spread.p99 <= max(values)


def test_percentiles_by_hand() -> None:
    """Of 1 to 100 the 50th, 90th and 99th; of nothing none."""
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.9, 0.99)] == [50, 90, 99]
    assert Spread.of([]) == Spread()


def test_a_ratio_has_an_interval_that_repeats() -> None:
    """The same figures give the same interval; equal samples hold 1, far ones do not."""
    near = [9.0, 10.0, 11.0, 10.5, 9.5, 10.2]
    times, low, high = ratio(near, near)
    assert low < times == 1 < high
    assert ratio(near, near) == (times, low, high)
    times, low, high = ratio([2 * n for n in near], near)
    assert times == pytest.approx(2) and 1.5 < low < 2 < high < 2.5
    with pytest.raises(ValueError, match="two samples"):
        ratio([], near)
