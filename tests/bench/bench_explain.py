"""Prints how fast `explain` reads, against a plain loop over the same lines, and its peak memory.

Run: python tests/bench/bench_explain.py [MEGABYTES]
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from healthcheck.explain import Explainer, explain_stream

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


def _write(path: Path, megabytes: int) -> None:
    chunks = [_chunk(random.Random(seed)).encode() for seed in range(20)]
    with path.open("wb") as out:
        out.write(START.encode())
        while out.tell() < megabytes * 1_000_000:
            out.write(chunks[random.randrange(len(chunks))])


def _timed(path: Path, run: object) -> tuple[float, float]:
    assert callable(run)
    wall, cpu = time.monotonic(), time.process_time()
    with path.open("rb") as stream:
        run(stream)
    return time.monotonic() - wall, time.process_time() - cpu


def _plain_loop(stream: object) -> None:
    for line in stream:  # type: ignore[attr-defined]
        line.decode("utf-8", errors="replace")


def _fed_by_line(stream: object) -> None:
    explainer = Explainer()
    for line in stream:  # type: ignore[attr-defined]
        explainer.feed(line.decode("utf-8", errors="replace"))


def main() -> None:
    """Measure on a made-up log of the given size, 256 MB by default."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        _write(path, megabytes)
        plain, plain_cpu = _timed(path, _plain_loop)
        blocks, blocks_cpu = _timed(path, explain_stream)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        small = Path(folder) / "small.log"
        _write(small, max(megabytes // 16, 1))
        by_line, by_line_cpu = _timed(small, _fed_by_line)
    size = megabytes
    print(f"log                 {size} MB")
    print(f"plain line loop     {size / plain:8.1f} MB/s   ({size / plain_cpu:.1f} per CPU second)")
    print(
        f"explain             {size / blocks:8.1f} MB/s   ({size / blocks_cpu:.1f} per CPU second)"
    )
    print(f"ratio to the loop   {blocks_cpu / plain_cpu:8.2f} x its CPU time")
    small_size = max(megabytes // 16, 1)
    print(
        f"fed line by line    {small_size / by_line:8.1f} MB/s   "
        f"({small_size / by_line_cpu:.1f} per CPU second)"
    )
    print(f"peak memory         {peak_mb:8.1f} MB")
    print(f"1 GB would take     {1000 / (size / blocks):8.1f} s")


if __name__ == "__main__":
    main()
