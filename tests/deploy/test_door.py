"""The door: with a key, all paths but the open ones ask for it, whatever the request looks like."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from deploy import plan, recipe
from deploy.door import KEY, NAME, OPEN, Door, Receive, Scope, Send

BEARER = [(b"authorization", b"Bearer sk-right")]


async def _inside(scope: Scope, receive: Receive, send: Send) -> None:
    """The application behind the door."""
    await send({"type": "inside"})


def knock(**scope: object) -> MutableMapping[str, Any]:
    """The first thing that is sent in answer to a request."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asked = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], **scope}
    asyncio.run(Door(_inside)(asked, receive, send))
    return sent[0]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-right")


@pytest.mark.parametrize(
    "path",
    ["/invocations", "/scale_elastic_ep", "/tokenize", "/docs", "/", "", "/v1/models",
     "/health/", "/health/../invocations", "//health", "/Health", "/metrics/x", "/healthz"],
)  # fmt: skip
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer sk-wrong")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Basic sk-right")],
        [(b"authorization", b"sk-right")],
        [(b"authorization", b"Bearer \xff")],
        [(b"authorization", b"Bearer sk-wrong"), *BEARER],
    ],
)
def test_a_stranger_is_refused(path: str, headers: list[tuple[bytes, bytes]]) -> None:
    """Without the right key first, every other path is 401."""
    answer = knock(path=path, headers=headers)
    assert (answer["type"], answer["status"]) == ("http.response.start", 401)


@pytest.mark.parametrize(
    "scope",
    [
        {"headers": BEARER},
        {"headers": [(b"Authorization", b"bearer sk-right")]},
        {"path": "/health"},
        {"path": "/metrics", "method": "GET"},
        {"path": "/served/version", "root_path": "/served"},
        {"method": "OPTIONS"},
        {"type": "lifespan"},
        {"type": "websocket", "headers": BEARER},
    ],
)
def test_who_has_the_key_or_asks_an_open_path_passes(scope: dict[str, object]) -> None:
    """The key as Bearer, an open path below any root path, a preflight, the server's own start."""
    assert knock(**scope) == {"type": "inside"}


def test_a_socket_of_a_stranger_is_closed() -> None:
    """A WebSocket without the key is never accepted."""
    assert knock(type="websocket", path="/v1/realtime")["type"] == "websocket.close"


def test_without_a_key_there_is_no_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """The door refuses to stand open: it is not made without a key, and the plan leaves it out."""
    monkeypatch.delenv(KEY)
    with pytest.raises(RuntimeError, match="VLLM_API_KEY: is not set"):
        Door(_inside)
    profile = recipe.load().profile("mi355x")
    assert "--middleware" not in plan.make(profile).argv
    assert plan.make(profile, environ={KEY: "sk-right"}).argv[-2:] == ("--middleware", NAME)


def test_a_users_middleware_stands_behind_the_door() -> None:
    """Both are given to vLLM, the door last, which makes it the outermost."""
    profile = recipe.load().profile("mi355x")
    argv = plan.make(profile, ["--middleware", "their.own"], {KEY: "sk-right"}).argv
    given = [argv[i + 1] for i, word in enumerate(argv) if word == "--middleware"]
    assert given == ["their.own", NAME]


def test_the_open_paths_are_few() -> None:
    """A path is opened on purpose: what probes and Prometheus read, and nothing that takes work."""
    assert {"/health", "/metrics", "/version"} == OPEN
