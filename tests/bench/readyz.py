"""Figure: /readyz beside a bare starlette route of the same process, with the loop running."""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from healthcheck.client import Client
from healthcheck.service import app as service
from healthcheck.service import settings
from healthcheck.service.loop import Loop
from tests.bench.figure import BenchError, Figure, Goal, Strip
from tests.support.rehearsal_server import REPOSITORY
from tests.support.scripted_server import MODEL, scripted_server

ROUNDS = 12
ROUND_S = 1.0
CONNECTIONS = 8
PATHS = ("/readyz", "/bare")


@contextlib.contextmanager
def both_routes() -> Iterator[int]:
    """The port of the service's own application with one bare route more; ready."""
    with scripted_server() as target:
        made = settings.make("mi355x", target=target.url, model=MODEL)
        loop = Loop(Client(target.url), made.policy, say=lambda _: None)
        app = service.app(loop, made)

        async def bare(_: Request) -> PlainTextResponse:
            return PlainTextResponse("READY\n", 200, {"Cache-Control": "no-store"})

        # Beside /readyz: routes are tried in order.
        at = next(i for i, r in enumerate(app.routes) if getattr(r, "path", "") == "/readyz")
        app.router.routes.insert(at, Route("/bare", bare))
        sock = service.listen("127.0.0.1", 0)
        server = uvicorn.Server(service.configured(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        loop.start()
        try:
            ends = time.monotonic() + 60
            while not loop.snapshot.verdict.surfaces.ready:
                if time.monotonic() > ends:
                    raise BenchError(f"not ready in 60 s: {loop.snapshot.verdict.line}")
                time.sleep(0.05)
            yield sock.getsockname()[1]
        finally:
            loop.stop()
            server.should_exit = True
            thread.join(30)
            sock.close()


def hammer(port: int, path: str, seconds: float) -> list[float]:
    """Seconds that each answer took, over kept-alive connections that ask one after another.

    Raises BenchError for an answer that is not 200.
    """
    times: list[list[float]] = [[] for _ in range(CONNECTIONS)]
    wrong: list[bytes] = []
    over = time.perf_counter() + seconds

    def ask(took: list[float]) -> None:
        request = f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (began := time.perf_counter()) < over:
                sock.sendall(request)
                answer = _whole_answer(sock)
                took.append(time.perf_counter() - began)
                if not answer.startswith(b"HTTP/1.1 200"):
                    wrong.append(answer[:80])
                    return

    threads = [threading.Thread(target=ask, args=(t,)) for t in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise BenchError(f"{path}: answered {wrong[0]!r}, not 200; run it on an idle machine")
    return [t for took in times for t in took]


def _whole_answer(sock: socket.socket) -> bytes:
    """One answer, head and body, however it is cut into packets."""
    answer = b""
    while True:
        answer += sock.recv(65536)
        head, ended, body = answer.partition(b"\r\n\r\n")
        if ended:
            length = head.lower().partition(b"content-length:")[2].split(b"\r", 1)[0]
            if len(body) >= int(length):
                return answer


def _from_outside(port: int, path: str) -> tuple[float, float]:
    """Answers a second and the 99th percentile in milliseconds, asked by another process."""
    command = [sys.executable, "-m", "tests.bench.readyz", str(port), path]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(done.stderr.strip().splitlines()[-1])
    rate, p99 = done.stdout.split()
    return float(rate), float(p99)


def measure() -> Sequence[Figure]:
    """Both routes in turn, the order of each pair changing."""
    rates: dict[str, list[float]] = {p: [] for p in PATHS}
    p99s: dict[str, list[float]] = {p: [] for p in PATHS}
    cpu_us: dict[str, list[float]] = {p: [] for p in PATHS}
    with both_routes() as port:
        _from_outside(port, "/bare")  # warm
        for index in range(ROUNDS):
            for path in PATHS if index % 2 else reversed(PATHS):
                used = time.process_time()
                rate, p99 = _from_outside(port, path)
                cpu_us[path].append(1e6 * (time.process_time() - used) / (rate * ROUND_S))
                rates[path].append(rate)
                p99s[path].append(p99)
    ready, bare = PATHS
    by_rate = [a / b for a, b in zip(rates[ready], rates[bare], strict=True)]
    by_cpu = [b / a for a, b in zip(cpu_us[ready], cpu_us[bare], strict=True)]
    by_p99 = [b / a for a, b in zip(p99s[ready], p99s[bare], strict=True)]
    rate, cpu, tail = (statistics.median(of) for of in (by_rate, by_cpu, by_p99))
    rows = [
        (
            path,
            f"{statistics.median(rates[path]):,.0f} /s",
            f"{min(rates[path]):,.0f} to {max(rates[path]):,.0f} /s",
            f"{statistics.median(p99s[path]):.1f} ms",
            f"{statistics.median(cpu_us[path]):.0f} us",
        )
        for path in PATHS
    ]
    return [
        Figure(
            name="readyz",
            title="/readyz beside a bare starlette route",
            how=(
                f"{ROUNDS} pairs of rounds of {ROUND_S:.0f} s on {CONNECTIONS} kept-alive "
                "connections from another process; both routes stand in the same application and "
                "process, with the loop turning. A ratio is of one pair. Answers a second and p99 "
                "swing with all else that runs on the machine; CPU time of the serving process for "
                "an answer does less."
            ),
            columns=("route", "answers, median", "spread", "p99, median", "CPU an answer, median"),
            rows=tuple(rows),
            plot=Strip(
                "/readyz relative to the bare route, 1 is as good",
                "",
                (
                    ("answers a second", tuple(by_rate)),
                    ("answers a CPU second", tuple(by_cpu)),
                    ("1 / p99", tuple(by_p99)),
                ),
                goal=0.9,
                goal_label="goal 0.9",
            ),
            goals=(
                Goal(">= 0.9 of the bare route's answers a second", f"{rate:.2f}", rate >= 0.9),
                Goal(">= 0.9 of its answers a CPU second", f"{cpu:.2f}", cpu >= 0.9),
                Goal(">= 0.9 by p99", f"{tail:.2f}", tail >= 0.9),
            ),
            raw={"answers_per_s": rates, "p99_ms": p99s, "cpu_us": cpu_us},
        )
    ]


def main() -> None:
    """The asking side: `PORT PATH`; prints answers a second and p99 in milliseconds."""
    port, path = int(sys.argv[1]), sys.argv[2]
    try:
        took = sorted(hammer(port, path, ROUND_S))
    except (BenchError, OSError) as e:
        sys.exit(str(e))
    print(len(took) / ROUND_S, 1000 * took[int(0.99 * (len(took) - 1))])


if __name__ == "__main__":
    main()
