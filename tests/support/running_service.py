"""The health service over a real uvicorn, with its real loop, beside a scripted server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import requests
import uvicorn

from deploy.recipe import Health
from healthcheck.client import Client, Secret
from healthcheck.service import app as service
from healthcheck.service.loop import Loop
from healthcheck.service.settings import Settings
from healthcheck.verdict import Policy, State
from tests.support.scripted_server import MODEL, ScriptedServer, scripted_server
from tests.support.waiting import PATIENCE_S, until

# The real loop in real time: states follow each other in seconds, and no answer that a crowded
# machine is slow to give is taken for none.
QUICK = replace(
    Health(),
    scrape_interval_s=0.1,
    probe_timeout_s=PATIENCE_S,
    canary_after_s=0.5,
    canary_timeout_s=PATIENCE_S,
    readiness_budget_s=PATIENCE_S,
    dead_after_s=1.0,
)


@dataclass
class Running:
    """A health service that runs, and the server that it watches."""

    url: str
    loop: Loop
    target: ScriptedServer
    settings: Settings

    def get(self, path: str, **options: object) -> requests.Response:
        """What the service answers to GET; `options` are those of requests."""
        return requests.get(self.url + path, timeout=PATIENCE_S, **options)  # type: ignore[arg-type]

    def wait(self, true: Callable[[], bool]) -> None:
        """Until it holds; fails with the present verdict."""
        until(true, pause_s=0.02, why=lambda: self.loop.snapshot.verdict.line)

    def wait_for(self, *states: State) -> None:
        """Until the verdict is one of these states."""
        self.wait(lambda: self.loop.snapshot.verdict.state in states)


@contextlib.contextmanager
def running(
    token: str | None = None, start: bool = True, health: Health = QUICK
) -> Iterator[Running]:
    """The service's real app on a free port and its loop in its thread, beside a scripted server."""
    with scripted_server() as target:
        policy = Policy(health, MODEL)
        made = Settings(
            "rehearsal",
            target.url,
            policy,
            "127.0.0.1",
            0,
            api_key=Secret("sk-hidden"),
            token=Secret(token) if token else None,
        )
        loop = Loop(Client(target.url), policy, say=lambda _: None)
        sock = service.listen("127.0.0.1", 0)
        server = uvicorn.Server(service.configured(service.app(loop, made)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        if start:
            loop.start()
        try:
            yield Running(f"http://127.0.0.1:{sock.getsockname()[1]}", loop, target, made)
        finally:
            loop.stop()
            server.should_exit = True
            thread.join(PATIENCE_S)
            sock.close()
