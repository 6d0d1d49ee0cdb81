"""What the file of vital signs holds, and the reading of it, which trusts nothing.

Times are seconds of the host's monotonic clock, which containers of one host share.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

NAME = "signs.json"
SCHEMA = 1
# Between two looks at the processes. A look that is dear comes more rarely (writer.py).
INTERVAL_S = 2.0
LIMIT_BYTES = 256 * 1024
# Of each kind, in the file; a server of eight cards has some twenty processes.
MOST = 256
LONGEST_WORD = 80
BIGGEST = 1e18  # of any number: bytes of a whole cluster
OTHERS = "others"
ENGINE_CORE = "EngineCore"
_ENGINE = (ENGINE_CORE, "Worker")

T = TypeVar("T")


@dataclass(frozen=True)
class Process:
    """One process of the server by vLLM's own title, or all the rest together as `others`.

    `state` is the kernel's letter for its main thread, seen without a break `since`. `still_since`:
    it has slept, without CPU and without a page read from disk; None if it has not.
    """

    name: str
    pid: int
    state: str
    since: float
    still_since: float | None
    cpu_s: float
    threads: int
    rss_bytes: int

    @property
    def of_engine(self) -> bool:
        """Without it no step is made: an engine core or a worker."""
        return self.name.startswith(_ENGINE)

    @property
    def stopped(self) -> bool:
        """By a signal, seen so at two looks: a debugger that looks in passes."""
        return self.state == "T"


@dataclass(frozen=True)
class Compiler:
    """Compilers of one name at work below the server: since when, and their CPU seconds so far."""

    name: str
    since: float
    cpu_s: float


@dataclass(frozen=True)
class Card:
    """One GPU as sysfs shows it; None for what it does not show.

    `busy_at`: it was last seen at work. Errors are those counted since the server's start.
    """

    name: str
    busy_percent: int | None
    busy_at: float | None
    used_bytes: int | None
    total_bytes: int | None
    uncorrected: int | None
    corrected: int | None
    xgmi: int | None


@dataclass(frozen=True)
class Ended:
    """A process that has ended; neither code nor signal where its parent was quicker to ask.

    `by_oom`: the kernel killed one of the container for want of memory in that moment.
    """

    name: str
    pid: int
    at: float
    exit_code: int | None = None
    signal: str | None = None
    by_oom: bool = False

    @property
    def how(self) -> str:
        """The end in a few words."""
        if self.by_oom:
            return f"{self.signal or 'killed'} by the kernel, out of memory"
        if self.signal is not None:
            return self.signal
        return "in an unknown way" if self.exit_code is None else f"exit code {self.exit_code}"


@dataclass(frozen=True)
class Signs:
    """One look at the server's processes.

    `cards` are empty on a machine without an AMD GPU, and None where there is one whose work cannot
    be read. `ended` holds the last ones, those of earlier starts too.
    """

    at: float
    started: float
    boot: str
    processes: tuple[Process, ...] = ()
    compilers: tuple[Compiler, ...] = ()
    cards: tuple[Card, ...] | None = ()
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    oom_kills: int | None = None
    ended: tuple[Ended, ...] = ()

    def engine(self, key: str) -> tuple[Process, ...]:
        """The processes of the engine that /metrics calls `key`; of a lone one, all there are."""
        mine = tuple(p for p in self.processes if p.of_engine)
        if sum(p.name.startswith(ENGINE_CORE) for p in mine) < 2:
            return mine
        return tuple(p for p in mine if f"DP{key}" in p.name.split("_"))


def dump(signs: Signs) -> str:
    """The file's text."""
    return json.dumps({"schema": SCHEMA, **asdict(signs)}, allow_nan=False)


def load(raw: bytes) -> Signs | None:
    """The signs in a file's bytes; None for anything that the writer would not have written."""
    if len(raw) > LIMIT_BYTES:
        return None
    try:
        table = json.loads(raw)
        if not isinstance(table, dict) or table.pop("schema", None) != SCHEMA:
            return None
        return _record(Signs, table)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _record(kind: type[T], table: object) -> T:
    """A dataclass of exactly these fields. Raises TypeError, ValueError or KeyError."""
    if not isinstance(table, Mapping) or len(table) != len(fields(kind)):  # type: ignore[arg-type]
        raise TypeError
    hints = get_type_hints(kind)
    return kind(**{name: _value(hint, table[name]) for name, hint in hints.items()})


def _value(hint: Any, value: object) -> Any:
    if get_origin(hint) is types.UnionType:
        return None if value is None else _value(get_args(hint)[0], value)
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or len(value) > MOST:
            raise TypeError
        return tuple(_record(get_args(hint)[0], each) for each in value)
    if hint is float and type(value) in (int, float):
        value = float(value)  # type: ignore[arg-type]
    if type(value) is not hint:
        raise TypeError
    if isinstance(value, str) and not (value.isprintable() and len(value) <= LONGEST_WORD):
        raise ValueError
    if isinstance(value, float | int) and not (math.isfinite(value) and abs(value) < BIGGEST):
        raise ValueError
    return value
