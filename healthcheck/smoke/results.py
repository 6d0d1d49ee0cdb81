"""What a smoke test found: rows, figures, and the JSON that keeps them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from deploy.files import read_text, write_whole
from healthcheck.judge import Outcome
from healthcheck.judge.acceptance import Acceptance
from healthcheck.reasons import remedy
from healthcheck.smoke.figures import Spread

SCHEMA = 2
LIMIT_BYTES = 16 << 20  # a report is 20 kB
VERDICTS = ("good", "bad", "unknown")  # by exit code


class ReportError(ValueError):
    """A file that is not a report of the smoke test; the message is one line."""


@dataclass(frozen=True)
class Check:
    """One row of the report: what was asked, what came of it, the evidence in words."""

    name: str
    outcome: Outcome
    evidence: str
    elapsed_s: float = 0.0
    code: str = ""

    @property
    def remedy(self) -> str:
        """What to do about it, empty for a good row."""
        return remedy(self.code)


@dataclass(frozen=True)
class LeftOut:
    """Something that was not judged, and why. It is no part of the verdict."""

    name: str
    why: str


@dataclass(frozen=True)
class Level:
    """Requests of one concurrency: how many answered, how fast.

    `tokens_per_s` is of all together, from the first request sent to the last token, and
    `request_rates` of each by itself. `first_s` is the time to the first piece of text, `gap_s` the
    time between two pieces (with speculation a piece holds several tokens).
    """

    concurrency: int
    requests: int
    failed: int
    tokens: int
    seconds: float
    tokens_per_s: float
    first_s: Spread
    gap_s: Spread
    tokens_per_piece: float
    request_rates: tuple[float, ...]


@dataclass(frozen=True)
class LongPrompt:
    """One long prompt: its tokens, the seconds to its answer, whether its words were found again
    (None: not judged)."""

    prompt_tokens: int
    seconds: float
    found: bool | None


@dataclass(frozen=True)
class SpeedUp:
    """Tokens per second of a lone request with speculation over those without, with the 95 %
    bootstrap interval of the ratio."""

    against: str
    ratio: float
    low: float
    high: float
    requests: int


@dataclass
class Report:
    """Everything the smoke test found; `write` gives the JSON that users send."""

    target: str
    profile: str
    evidence: str
    model: str
    made_at: str = ""  # UTC, ISO 8601
    vllm_version: str | None = None
    max_model_len: int | None = None
    speculates: bool = True  # what the server was expected to do
    rehearsal: bool = False  # of interpreted kernels, whose speed says nothing
    checks: list[Check] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    acceptance: Acceptance | None = None
    reference: Mapping[str, object] = field(default_factory=dict)
    levels: list[Level] = field(default_factory=list)
    long_prompts: list[LongPrompt] = field(default_factory=list)
    speed_up: SpeedUp | None = None
    timings_s: dict[str, float] = field(default_factory=dict)
    cause: Mapping[str, object] | None = None

    @property
    def exit_code(self) -> int:
        """0 all held, 1 something was bad, 2 it could not tell."""
        outcomes = {check.outcome for check in self.checks}
        if Outcome.BAD in outcomes:
            return 1
        return 2 if Outcome.UNKNOWN in outcomes or not self.checks else 0

    @property
    def verdict(self) -> str:
        """The exit code as a word."""
        return VERDICTS[self.exit_code]

    def leave_out(self, name: str, why: str) -> None:
        """Say once what is not judged."""
        if all(item.name != name for item in self.left_out):
            self.left_out.append(LeftOut(name, why))

    def level(self, concurrency: int) -> Level | None:
        """The figures of one concurrency, None if it was not measured."""
        return next((level for level in self.levels if level.concurrency == concurrency), None)

    def as_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.as_table(), indent=2) + "\n"

    def as_table(self) -> dict[str, Any]:
        """The report as a table for JSON."""
        return {"schema": SCHEMA, "verdict": self.verdict, **asdict(self)}

    def write(self, path: Path) -> None:
        """The report as JSON, atomically. Raises OSError."""
        write_whole(path, self.as_json())


def read(path: Path) -> Report:
    """A report that `write` made. Raises ReportError."""
    try:
        data = json.loads(read_text(path, LIMIT_BYTES))
    except OSError as e:
        raise ReportError(f"{path}: {e.strerror}; give a report of `smoke --json`") from None
    except (ValueError, RecursionError) as e:
        raise ReportError(
            f"{path}: not JSON ({str(e)[:80]}); give a report of `smoke --json`"
        ) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        seen = data.get("schema") if isinstance(data, dict) else None
        raise ReportError(
            f"{path}: schema is {seen!r}, not {SCHEMA}; make it again with this version"
        )
    try:
        return _report(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        detail = f"{type(e).__name__}: {e}"[:120]
        raise ReportError(f"{path}: not a whole report ({detail}); make it again") from None


def _report(data: Mapping[str, Any]) -> Report:
    own = {f.name: data[f.name] for f in fields(Report)}
    own["checks"] = [Check(**{**row, "outcome": Outcome(row["outcome"])}) for row in own["checks"]]
    own["left_out"] = [LeftOut(**row) for row in own["left_out"]]
    own["levels"] = [_level(row) for row in own["levels"]]
    own["long_prompts"] = [LongPrompt(**row) for row in own["long_prompts"]]
    if own["acceptance"] is not None:
        row = own["acceptance"]
        pairs = tuple((float(low), float(high)) for low, high in row["intervals"])
        rates = tuple(float(rate) for rate in row["per_position"])
        own["acceptance"] = Acceptance(**{**row, "per_position": rates, "intervals": pairs})
    if own["speed_up"] is not None:
        own["speed_up"] = SpeedUp(**own["speed_up"])
    made = Report(**own)
    seen = made.acceptance
    if seen is not None and len(seen.per_position) != len(seen.intervals):
        raise ValueError("acceptance has another number of intervals than of positions")
    wrong = _unfit(made)
    if wrong:
        raise ValueError(f"{wrong} is not of its type")
    return made


def _level(row: Mapping[str, Any]) -> Level:
    spreads = {name: Spread(**row[name]) for name in ("first_s", "gap_s")}
    rates = tuple(float(rate) for rate in row["request_rates"])
    return Level(**{**row, **spreads, "request_rates": rates})


def _unfit(made: Any, at: str = "") -> str:
    """The first field that does not hold what its annotation says, empty if all do."""
    for name, hint in get_type_hints(type(made)).items():
        value = getattr(made, name)
        if not _fits(value, hint):
            return f"{at}{name}"
        for each in value if isinstance(value, list) else [value]:
            if is_dataclass(each) and (wrong := _unfit(each, f"{at}{name}.")):
                return wrong
    return ""


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of an annotated type; numbers are finite, and whole ones of 64 bits."""
    origin, of = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return any(_fits(value, option) for option in of)
    if origin is list or (origin is tuple and Ellipsis in of):
        return isinstance(value, origin) and all(_fits(each, of[0]) for each in value)
    if origin is tuple:
        return isinstance(value, tuple) and all(map(_fits, value, of))
    if origin is not None:  # a table by name
        return isinstance(value, dict) and all(_fits(each, of[1]) for each in value.values())
    if hint not in (int, float):
        return isinstance(value, hint)
    if isinstance(value, bool):
        return False
    if hint is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, int) and value.bit_length() < 64
