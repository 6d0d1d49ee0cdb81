"""What an answer is worth: a list of findings, each good, bad or unknown.

Pure functions of the answer and of the counters before and after it. The rules are those of the
gate: real tokens, finite logprobs that differ, no loop, a draft counter that rose, sampling that is
not argmax, two seeds that give two texts, needles of ever longer prompts that are found, several
answers at once of which each is its own, and a question that is answered.
"""

from healthcheck.judge.answer import ARGMAX_CHANCE, CHANCE, NAN_MESSAGE, Counters, judge
from healthcheck.judge.findings import GRAVITY, QUESTION, Finding, Outcome, Step, missed, worst
from healthcheck.judge.looping import period
from healthcheck.judge.reading import Completion, read
from healthcheck.judge.several import MISSES, PICKED_TOKENS, chance_of, differs, ladder, together

__all__ = [
    "ARGMAX_CHANCE",
    "CHANCE",
    "GRAVITY",
    "MISSES",
    "NAN_MESSAGE",
    "PICKED_TOKENS",
    "QUESTION",
    "Completion",
    "Counters",
    "Finding",
    "Outcome",
    "Step",
    "chance_of",
    "differs",
    "judge",
    "ladder",
    "missed",
    "period",
    "read",
    "together",
    "worst",
]
