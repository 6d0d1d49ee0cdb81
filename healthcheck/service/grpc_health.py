"""The verdict as grpc.health.v1, for Kubernetes' gRPC probes and for gRPC load balancers.

An extra: it needs grpcio-health-checking. Services are named as the probes: `startup`, `readiness`,
`liveness`; the unnamed one is `readiness`. Watch tells a change at the turn of the loop that brings
it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deploy.addresses import before_port
from healthcheck.service import connections
from healthcheck.service.loop import Loop
from healthcheck.service.settings import SettingsError
from healthcheck.verdict import Surfaces

EXTRA = "pip install 'dspark-rocm[grpc]'"
LIVENESS = "liveness"
THREADS = 4  # a Check is answered from memory, and a Watch holds none
GRACE_S = 1.0

SERVICES: Mapping[str, Callable[[Surfaces], bool]] = {
    "": lambda s: s.ready,
    "startup": lambda s: s.startup,
    "readiness": lambda s: s.ready,
    LIVENESS: lambda s: s.engine_live,
}


class GrpcHealth:
    """A gRPC server over a loop; `port` is the one it listens on."""

    def __init__(self, loop: Loop, host: str, port: int) -> None:
        """Take the port. Raises SettingsError without the extra, or if the port cannot be had."""
        # The library tells a bind that fails in words of its own, beside ours.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            import grpc
            from grpc_health.v1 import health, health_pb2, health_pb2_grpc
        except ImportError as e:
            raise SettingsError(f"--grpc-port: got {port}; needs {e.name}: {EXTRA}") from e
        self._loop = loop
        self._lock = threading.Lock()
        self._told: dict[str, bool] = {}
        self._statuses = {
            True: health_pb2.HealthCheckResponse.SERVING,
            False: health_pb2.HealthCheckResponse.NOT_SERVING,
        }
        self._servicer = _servicer(health, self.refresh)
        # so_reuseport off: two services on one port would answer each other's probes.
        # Who connects and asks nothing is cut, as over HTTP; a Watch asks for as long as it lasts.
        limit_ms = int(1000 * connections.EXCHANGE_S)
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", limit_ms),
            ("grpc.max_connection_idle_ms", limit_ms),
        ]
        self._server = grpc.server(ThreadPoolExecutor(THREADS, "grpc"), options=options)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)
        try:
            self.port: int = self._server.add_insecure_port(f"{before_port(host)}:{port}")
        except RuntimeError as e:
            fix = "it cannot be bound: stop what holds it or give another"
            raise SettingsError(f"--grpc-port: got {port}; {fix}") from e
        self.refresh()

    def start(self) -> None:
        """Answer from now on, and tell watchers of every turn of the loop."""
        self._loop.on_turn(self.refresh)
        self._server.start()

    def stop(self) -> None:
        """Tell every watcher that it is over, then end."""
        self._servicer.enter_graceful_shutdown()
        self._server.stop(GRACE_S).wait()

    def refresh(self) -> None:
        """Take the statuses from the present verdict, as the HTTP probes do."""
        surfaces, turns_on = self._loop.snapshot.verdict.surfaces, self._loop.turns_on
        with self._lock:
            for name, passes in SERVICES.items():
                # A verdict that nobody renews says nothing about now; the engine is not to blame.
                serves = passes(surfaces) if turns_on else name == LIVENESS
                if self._told.get(name) is not serves:
                    self._told[name] = serves
                    self._servicer.set(name, self._statuses[serves])


def _servicer(health: Any, refresh: Callable[[], None]) -> Any:
    class Servicer(health.HealthServicer):  # type: ignore[misc]
        """Looks before it answers: the loop may have stopped since its last turn."""

        def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
            refresh()
            return super().Check(request, context)

    return Servicer()
