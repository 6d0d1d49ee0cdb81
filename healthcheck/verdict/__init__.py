"""The state machine: readings in, verdict out.

Pure: `advance` makes the next memory of a memory and a reading, `wants` says which generation it
would like next, `verdict` what a memory amounts to. Time is passed in and is monotonic, in
seconds. Nothing here asks a server or reads a clock. The rules are told in healthcheck/README.md.
"""

from healthcheck.verdict.decide import advance
from healthcheck.verdict.gate import gate_limit_s
from healthcheck.verdict.memory import (
    TEXTS_KEPT,
    UNREAD_TIMES,
    Gate,
    Memory,
    Transition,
    Verdict,
    begin,
    surfaces,
    verdict,
)
from healthcheck.verdict.readings import GATE, Generation, Outstanding, Policy, Reading, Want
from healthcheck.verdict.records import (
    ANSWERS_PER_BAD,
    ANY,
    MOST_DOUBLINGS,
    Alarm,
    EngineMemory,
    Record,
)
from healthcheck.verdict.states import SURFACES, State, Surfaces
from healthcheck.verdict.want import (
    CANARY_JITTER,
    RECHECK_S,
    TEXT_AGES,
    TEXT_LENGTHS,
    needs_listing,
    next_look_s,
    wants,
)

__all__ = [
    "ANSWERS_PER_BAD",
    "ANY",
    "CANARY_JITTER",
    "GATE",
    "MOST_DOUBLINGS",
    "RECHECK_S",
    "SURFACES",
    "TEXTS_KEPT",
    "TEXT_AGES",
    "TEXT_LENGTHS",
    "UNREAD_TIMES",
    "Alarm",
    "EngineMemory",
    "Gate",
    "Generation",
    "Memory",
    "Outstanding",
    "Policy",
    "Reading",
    "Record",
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
    "surfaces",
    "verdict",
    "wants",
]
