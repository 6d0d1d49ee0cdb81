"""The state machine: readings in, verdict out.

Pure: `advance` makes the next memory of a memory and a reading, `wants` says which generation it
would like next, `verdict` what a memory amounts to. Time is passed in and is monotonic, in
seconds. Nothing here asks a server or reads a clock.

Hysteresis. Three bad verdicts in a row leave READY, two good ones, one of them a generation,
return to it. A time-out is no verdict at all: only a budget without any sign of progress is one.
"""

from healthcheck.verdict.decide import advance
from healthcheck.verdict.gate import gate_limit_s
from healthcheck.verdict.memory import (
    GATE,
    SURFACES,
    Alarm,
    EngineMemory,
    Gate,
    Generation,
    Memory,
    Outstanding,
    Policy,
    Reading,
    State,
    Surfaces,
    Transition,
    Verdict,
    Want,
    begin,
    verdict,
)
from healthcheck.verdict.want import CANARY_JITTER, RECHECK_S, needs_listing, next_look_s, wants

__all__ = [
    "CANARY_JITTER",
    "GATE",
    "RECHECK_S",
    "SURFACES",
    "Alarm",
    "EngineMemory",
    "Gate",
    "Generation",
    "Memory",
    "Outstanding",
    "Policy",
    "Reading",
    "State",
    "Surfaces",
    "Transition",
    "Verdict",
    "Want",
    "advance",
    "begin",
    "gate_limit_s",
    "needs_listing",
    "next_look_s",
    "verdict",
    "wants",
]
