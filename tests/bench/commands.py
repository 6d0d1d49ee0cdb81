"""Figure: what the README's two commands take, with nothing set up and with all of it."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from deploy.environment import cache_dir
from tests.bench.figure import BenchError, Figure, Goal, Strip
from tests.support.rehearsal_server import REPOSITORY


@dataclass(frozen=True)
class Command:
    """A `make` target and how often it is run. `cold` gives it an empty cache, `goal_s` is for the
    median; one that `fails` does so on purpose."""

    name: str
    target: str
    goal_s: float
    runs: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)
    cold: bool = False
    fails: bool = False


COMMANDS = (
    Command("make test", "test", 480.0),
    Command("make smoke-test, nothing set up", "smoke-test", 180.0, cold=True),
    Command("make smoke-test", "smoke-test", 60.0, 3),
    Command(
        "make smoke-test, a start that fails",
        "smoke-test",
        20.0,
        3,
        {"REHEARSAL_FAULT": "drop-draft-attribute"},
        fails=True,
    ),
)


def run(command: Command) -> float:
    """Seconds that one run takes. Raises BenchError if it ends in another way than it should."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("SMOKE_", "REHEARSAL_"))}
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as empty:
        environ = {**keep, **command.environ}
        if command.cold:
            environ["DSPARK_CACHE"] = empty
        began = time.monotonic()
        ended = subprocess.run(
            ["make", command.target], cwd=REPOSITORY, env=environ, capture_output=True, text=True
        )
        took = time.monotonic() - began
    if bool(ended.returncode) != command.fails:
        said = (ended.stdout + ended.stderr).strip().splitlines() or ["nothing"]
        raise BenchError(f"{command.name}: exit code {ended.returncode}; it ends: {said[-1]}")
    return took


def measure(run: Callable[[Command], float] = run) -> Sequence[Figure]:
    """Every command in turn, as often as it says."""
    took = [(one, tuple(run(one) for _ in range(one.runs))) for one in COMMANDS]
    seen = [(one, statistics.median(times), times) for one, times in took]
    return [
        Figure(
            name="commands",
            title="What the two commands take",
            how="Wall time of the commands of the README on a machine without a GPU, one after the "
            "other. With nothing set up the cache is empty but for pip's own.",
            columns=("command", "runs", "median", "all"),
            rows=tuple(
                (one.name, str(one.runs), f"{median:.0f} s", ", ".join(f"{t:.0f}" for t in times))
                for one, median, times in seen
            ),
            plot=Strip("wall time", "s", tuple((one.name, times) for one, times in took)),
            goals=tuple(
                Goal(f"{one.name} <= {one.goal_s:.0f} s", f"{median:.0f} s", median <= one.goal_s)
                for one, median, _ in seen
            ),
            raw={one.name: list(times) for one, times in took},
        )
    ]
