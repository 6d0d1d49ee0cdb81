"""The HTTP surfaces. Handlers read the stored verdict; none of them asks the server anything."""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import hmac
import json
import math
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from deploy.addresses import EVERYWHERE, before_port, to_bind
from healthcheck.client import Client, Secret
from healthcheck.flights.newest import Flights
from healthcheck.service import page, report
from healthcheck.service.cause import Log
from healthcheck.service.connections import BACKLOG, LONGEST_HEAD_BYTES, Connection
from healthcheck.service.grpc_health import GrpcHealth
from healthcheck.service.loop import Loop
from healthcheck.service.provenance import Provenance
from healthcheck.service.settings import Settings, SettingsError
from healthcheck.service.snapshot import Snapshot
from healthcheck.service.teller import Teller
from healthcheck.service.voice import flush, to_stderr
from healthcheck.signs.file import Beside
from healthcheck.verdict import Surfaces
from healthcheck.worker import Worker

GRACE_S = 5  # for answers under way when the service stops
HUNG_S = 60.0  # that the loop may hang, beyond the longest turn, before the service ends
FLUSH_S = 1.0  # for the last lines on stderr
_NO_STORE = {"Cache-Control": "no-store"}
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="dspark health", Bearer', **_NO_STORE}
_BEARER_ONLY = {"WWW-Authenticate": "Bearer", **_NO_STORE}
_STOPPED = "service.loop_stopped\n"


class _FromSnapshot(Collector):
    """Gives Prometheus the present snapshot at each scrape."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        yield from report.metrics(self._loop.snapshot, self._loop.clock(), self._loop.turns_on)


def app(loop: Loop, settings: Settings) -> Starlette:
    """The application over a loop, which runs elsewhere."""
    registry = CollectorRegistry()
    registry.register(_FromSnapshot(loop))

    def probe(passes: Callable[[Surfaces], bool], needs_loop: bool) -> Callable[..., object]:
        told: tuple[Snapshot, bool, Response] | None = None

        def answer(snapshot: Snapshot, stopped: bool, text: str) -> Response:
            passed = not needs_loop if stopped else passes(snapshot.verdict.surfaces)
            status = 200 if passed else 503
            return PlainTextResponse(_STOPPED + text if stopped else text, status, _NO_STORE)

        async def handler(request: Request) -> Response:
            nonlocal told
            snapshot = loop.snapshot
            # A verdict that nobody renews says nothing about now, and kills no engine.
            stopped = not loop.turns_on
            if request.scope["query_string"] and "verbose" in request.query_params:
                return answer(snapshot, stopped, report.verbose(snapshot, loop.clock()))
            # One answer a turn is made, and sent to all who ask.
            if told is None or told[0] is not snapshot or told[1] is not stopped:
                codes = " ".join(n.code for n in snapshot.verdict.notes)
                text = f"{snapshot.verdict.state.value} {codes}".rstrip() + "\n"
                told = (snapshot, stopped, answer(snapshot, stopped, text))
            return told[2]

        return handler

    async def livez(request: Request) -> Response:
        on = loop.turns_on
        text = "ok\n" if on else _STOPPED
        if "verbose" in request.query_params:
            text += f"turn {loop.snapshot.turns}, {loop.turn_age_s:.1f} s ago\n"
        return PlainTextResponse(text, 200 if on else 503, _NO_STORE)

    async def show_report(request: Request) -> Response:
        refused = _refused(request, settings.token)
        if refused is not None:
            return refused
        body = json.dumps(report.as_json(loop.snapshot, settings, loop.clock()), allow_nan=False)
        return Response(body, headers=_NO_STORE, media_type="application/health+json")

    async def show_page(request: Request) -> Response:
        refused = _refused(request, settings.token)
        if refused is not None:
            return refused
        data = report.as_json(loop.snapshot, settings, loop.clock())
        headers = {**_NO_STORE, "Content-Security-Policy": page.POLICY}
        return HTMLResponse(page.render(data), headers=headers)

    async def show_metrics(_: Request) -> Response:
        headers = {**_NO_STORE, "Content-Type": CONTENT_TYPE_LATEST}
        return Response(generate_latest(registry), headers=headers)

    async def drain(request: Request) -> Response:
        refused = _refused_drain(request, settings.token)
        if refused is not None:
            return refused
        loop.drain()
        return PlainTextResponse("draining\n", 202, _NO_STORE)

    made = Starlette(
        routes=[
            Route("/startupz", probe(lambda s: s.startup, needs_loop=True)),
            Route("/readyz", probe(lambda s: s.ready, needs_loop=True)),
            Route("/livez", livez),
            Route("/livez/engine", probe(lambda s: s.engine_live, needs_loop=False)),
            Route("/report", show_report),
            Route("/metrics", show_metrics),
            Route("/drain", drain, methods=["POST"]),
            Route("/", show_page),
        ]
    )
    made.router.redirect_slashes = False  # would send a client to whatever Host it was told
    return made


def configured(application: Starlette) -> uvicorn.Config:
    """How uvicorn runs the application: within limits that keep the probes answered."""
    return uvicorn.Config(
        application,
        http=Connection,
        ws="none",
        h11_max_incomplete_event_size=LONGEST_HEAD_BYTES,
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )


def _refused(
    request: Request, token: Secret | None, challenge: Mapping[str, str] = _CHALLENGE
) -> Response | None:
    """The refusal of a request without the token, None if it may pass."""
    if token is None:
        return None
    basic = challenge is _CHALLENGE
    given = _credentials(request.headers.get("authorization", ""), basic=basic)
    if given and hmac.compare_digest(given.encode(), token.reveal().encode()):
        return None
    return PlainTextResponse("a token is needed\n", 401, challenge)


def _refused_drain(request: Request, token: Secret | None) -> Response | None:
    """The refusal of what ends the service's work: never open, never from a web page.

    A browser adds the password it knows to what another site's page sends; these headers are its.
    """
    if token is None:
        fix = "start the service with --token-file, or send it SIGTERM"
        return PlainTextResponse(f"draining needs a token: {fix}\n", 403, _NO_STORE)
    if "origin" in request.headers or "sec-fetch-site" in request.headers:
        return PlainTextResponse("draining is not for web pages\n", 403, _NO_STORE)
    return _refused(request, token, _BEARER_ONLY)


def _credentials(header: str, *, basic: bool) -> str:
    """The token of a Bearer header or, with `basic`, a Basic one's password, as browsers send."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if basic and scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(value.strip(), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
        return decoded.partition(":")[2]
    return ""


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: a drain comes first here. It ends at `stops_at`, in
    monotonic seconds, and when the loop cannot go on."""

    def __init__(self, config: uvicorn.Config, loop: Loop) -> None:
        super().__init__(config)
        self._loop = loop
        self._hung_since: float | None = None
        self.stops_at = math.inf
        self.lost = False

    async def on_tick(self, counter: int) -> bool:
        """Asked ten times a second: whether to end."""
        now = time.monotonic()
        # Counted by its own ticks: after the process was paused the loop gets time to turn.
        self._hung_since = None if self._loop.turns_on else self._hung_since or now
        hung = self._hung_since is not None and now - self._hung_since > HUNG_S
        self.lost = self.lost or hung or self._loop.over
        return self.lost or now >= self.stops_at or await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; `::` takes IPv4 too. Raises SettingsError in one line if the port cannot be
    had."""
    host = to_bind(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if host == EVERYWHERE:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        host.encode("idna")  # bind raises TypeError for a name that cannot be looked up
        sock.bind((host, port))
        sock.listen(128)
    except (OSError, OverflowError, UnicodeError) as e:
        sock.close()
        if isinstance(e, OSError) and e.errno == errno.EADDRINUSE:
            fix = "the port is in use: stop what holds it or give another --port"
            raise SettingsError(f"--port: got {port}; {fix}") from e
        reason = e.strerror if isinstance(e, OSError) else str(e)
        fix = f"cannot listen there ({reason}): give another --host or --port"
        raise SettingsError(f"--host, --port: got {host}, {port}; {fix}") from e
    return sock


def serve(settings: Settings, sock: socket.socket) -> bool:
    """Run loop and server until SIGTERM (unready, drain, stop) or SIGINT (stop). Returns False if
    the loop ended by itself or hangs, so that whatever runs the service starts it again.

    Raises SettingsError if the gRPC port or a thread cannot be had.
    """
    client = Client(
        settings.target,
        connect_timeout_s=settings.policy.health.connect_timeout_s,
        key=settings.api_key,
        authorities=settings.authorities,
    )
    files = Worker("files")
    log = Log(settings.log, files) if settings.log else None
    provenance = Provenance(settings.log, files) if settings.log else None
    signs = Beside(settings.log) if settings.log else None
    flights = Flights(settings.log, files) if settings.log else None
    loop = Loop(
        client, settings.policy, log=log, provenance=provenance, signs=signs, flights=flights
    )
    if settings.log:
        loop.on_turn(Teller(settings.log, lambda: loop.snapshot, files, to_stderr).turn)
    server = _Server(configured(app(loop, settings)), loop)
    grpc = (
        GrpcHealth(loop, to_bind(settings.host), settings.grpc_port) if settings.grpc_port else None
    )

    def on_signal(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT or loop.draining:
            server.should_exit = True
            return
        loop.drain()
        server.stops_at = time.monotonic() + settings.drain_s
        to_stderr(f"health: draining for {settings.drain_s:g} s, then stopping")

    before = {s: signal.signal(s, on_signal) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        try:
            loop.start()
        except RuntimeError as e:
            raise SettingsError(f"no thread can be started ({e}); raise the limit of pids") from e
        address, port = sock.getsockname()[:2]

        to_stderr(f"health: http://{before_port(address)}:{port} watches {settings.target}")
        if grpc is not None:
            grpc.start()
            to_stderr(f"health: grpc.health.v1 on port {grpc.port}")
        server.run(sockets=[sock])
    finally:
        loop.stop()
        if grpc is not None:
            grpc.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
        flush(FLUSH_S)
    return not server.lost
