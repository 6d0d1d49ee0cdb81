"""Figure: how fast `explain` reads a server's log, against a plain loop over the same lines."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from healthcheck.explain import Explainer, explain_stream
from tests.bench.figure import BenchError, Figure, Goal, Strip
from tests.support.rehearsal_server import REPOSITORY

MEGABYTES = 128
ROUNDS = 3
# Of the contract: a gigabyte in 30 s, in 50 MB of memory above the interpreter's own.
GIGABYTE_GOAL_S = 30.0
MEMORY_GOAL_MB = 50.0

START = """\
(APIServer pid=7) INFO 11-29 13:02:31 [api_utils.py:273] non-default args: {'port': 8000}
(Worker_TP0 pid=9) Loading safetensors checkpoint shards: 100% Completed | 48/48 [00:40<00:00]
(Worker_TP0 pid=9) INFO 11-29 13:03:31 [default_loader.py:430] Loading weights took 40.00 seconds
(APIServer pid=7) INFO:     Application startup complete.
"""
ACCESS = '(APIServer pid=7) INFO:     10.0.{}.{}:{} - "POST /v1/completions HTTP/1.1" 200 OK\n'
COUNTERS = (
    "(APIServer pid=7) INFO 11-29 13:{:02}:{:02} [loggers.py:310] Engine 000: Avg prompt "
    "throughput: {}.9 tokens/s, Avg generation throughput: 8.8 tokens/s, Running: 3 reqs, "
    "Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%\n"
)
DEBUG = (
    "(Worker_TP{} pid=9) DEBUG 11-29 13:{:02}:{:02} [cuda_graph.py:239] replaying a graph on "
    "(FULL,BatchDescriptor(num_tokens=32, num_reqs=32, uniform=True, has_lora=False))\n"
)
ERROR = "(Worker_TP{} pid=9) ERROR 11-29 13:{:02}:{:02} [metrics.py:9] a counter went back: {}\n"


def _chunk(source: random.Random) -> str:
    """About 200 kB of a serving log: access lines, counters, debug lines, some errors."""
    lines = []
    for _ in range(1_500):
        a, b = source.randrange(60), source.randrange(60)
        pick = source.random()
        if pick < 0.6:
            lines.append(ACCESS.format(a, b, source.randrange(65_536)))
        elif pick < 0.8:
            lines.append(COUNTERS.format(a, b, source.randrange(999)))
        elif pick < 0.999:
            lines.append(DEBUG.format(a % 8, a, b))
        else:
            lines.append(ERROR.format(a % 8, a, b, source.randrange(99)))
    return "".join(lines)


def write_log(path: Path, megabytes: int) -> None:
    """A made-up serving log of that size."""
    chunks = [_chunk(random.Random(seed)).encode() for seed in range(20)]
    draw = random.Random(0)
    with path.open("wb") as out:
        out.write(START.encode())
        while out.tell() < megabytes * 1_000_000:
            out.write(draw.choice(chunks))


def _timed(path: Path, run: Callable[[BinaryIO], object]) -> float:
    """CPU seconds: other work on the machine does not show in them."""
    began = time.process_time()
    with path.open("rb") as stream:
        run(stream)
    return time.process_time() - began


def _plain_loop(stream: BinaryIO) -> None:
    for line in stream:
        line.decode("utf-8", errors="replace")


def _fed_by_line(stream: BinaryIO) -> None:
    explainer = Explainer()
    for line in stream:
        explainer.feed(line.decode("utf-8", errors="replace"))


READERS: dict[str, Callable[[BinaryIO], object]] = {
    "plain loop over the lines": _plain_loop,
    "explain, a whole file": explain_stream,
    "explain, followed line by line": _fed_by_line,
}
# VmHWM is of this program alone; ru_maxrss begins at that of the process that started it.
_PEAK = """
import sys
from pathlib import Path
from healthcheck.explain import explain_stream
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM:")) / 1000
before = peak()
with open(sys.argv[1], "rb") as stream:
    explain_stream(stream)
print(peak() - before)
"""


def measure() -> Sequence[Figure]:
    """Every reader over the same log, some rounds in turn."""
    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder) / "server.log", Path(folder) / "small.log"
        write_log(path, MEGABYTES)
        write_log(small, MEGABYTES // 8)
        rates: dict[str, list[float]] = {name: [] for name in READERS}
        for _ in range(ROUNDS):
            for name, run in READERS.items():
                # The slowest reader gets less to read.
                log, size = (small, MEGABYTES // 8) if run is _fed_by_line else (path, MEGABYTES)
                rates[name].append(size / _timed(log, run))
        peak = _peak_mb(path)
    gigabyte = 1000 / max(rates["explain, a whole file"])
    return [
        Figure(
            name="explain",
            title="How fast a server's log is explained",
            how=(
                f"A made-up serving log of {MEGABYTES} MB (access lines, counters, debug lines, "
                f"some errors), {ROUNDS} rounds, by CPU time; reading starts from the page cache."
            ),
            columns=("reader", "MB a CPU second, best", "spread"),
            rows=tuple(
                (name, f"{max(r):.0f}", f"{min(r):.0f} to {max(r):.0f}")
                for name, r in rates.items()
            ),
            plot=Strip(
                "read in a CPU second", "MB", tuple((n, tuple(r)) for n, r in rates.items())
            ),
            goals=(
                Goal("1 GB in <= 30 s", f"{gigabyte:.1f} s", gigabyte <= GIGABYTE_GOAL_S),
                Goal("<= 50 MB for it", f"{peak:.1f} MB", peak <= MEMORY_GOAL_MB),
            ),
            raw={"mb_per_cpu_s": rates, "peak_mb": peak},
        )
    ]


def _peak_mb(path: Path) -> float:
    """What reading adds to the peak memory of a process that does nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"explain: {done.stderr.strip().splitlines()[-1]}; look at healthcheck")
    return float(done.stdout)
