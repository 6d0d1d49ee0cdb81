"""Word problems with whole numbers as answers, and how an answer is graded.

The problems were written for this project, in the manner of a grade-school test, so that no model
has them by heart. A server that samples or attends wrongly fails most of them while its text still
reads well: vLLM PR 51768 saw GSM8K fall from 0.94 to 0.04 on a server that answered 200 throughout.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

ASK = (
    "{question}\n\nThink in short steps. End with one line of the form `Answer: N`, where N is the "
    "number alone."
)
_NUMBER = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?")
_ANSWER = re.compile(r"answer[^\w-]{0,10}", re.IGNORECASE)


@dataclass(frozen=True)
class Problem:
    """A question and the number that answers it."""

    name: str
    question: str
    answer: int

    @property
    def prompt(self) -> str:
        """The question as it is put to a server."""
        return ASK.format(question=self.question)


PROBLEMS = (
    Problem(
        "rope",
        "A sailor cuts a 90-metre rope into 7 pieces of 8 metres each and gives half of what is "
        "left to the harbour master. How many metres does he keep of the remainder?",
        17,
    ),
    Problem(
        "beehives",
        "Ines owns 14 beehives. Each gave 9 jars of honey in June and 6 jars in August. She kept "
        "25 jars and sold the rest at 4 euros a jar. How many euros did she take?",
        740,
    ),
    Problem(
        "tram",
        "A tram leaves the depot empty. At the first stop 23 people get on, at the second 11 get "
        "on and 8 get off, at the third half of those aboard get off and 5 get on. How many people "
        "are aboard now?",
        18,
    ),
    Problem(
        "printer",
        "One printer makes 24 pages a minute and another 16. They start together on a job of 1,000 "
        "pages. How many minutes do they need?",
        25,
    ),
    Problem(
        "orchard",
        "An orchard has 18 rows of 15 trees. A storm fells one tree in every row but the last "
        "three, which lose two each. How many trees still stand?",
        249,
    ),
    Problem(
        "tickets",
        "A grown-up's ticket costs 12 dollars and a child's costs 7. A school pays 403 dollars for "
        "4 grown-ups and some children, and 5 dollars of it are a booking fee. How many children "
        "go?",
        50,
    ),
    Problem(
        "well",
        "A snail climbs a wall of 20 metres. Each day it climbs 5 metres, each night it slides "
        "back 2. On which day does it reach the top?",
        6,
    ),
    Problem(
        "loom",
        "A weaver makes 3 scarves in 4 hours. She works 8 hours a day, 5 days a week, and 2 of "
        "every 15 scarves are faulty. How many good scarves does she make in a week?",
        26,
    ),
    Problem(
        "library",
        "A library has 1,260 books. Two fifths are novels, a third of the others are atlases, and "
        "the rest are biographies. How many biographies are there?",
        504,
    ),
    Problem(
        "tank",
        "A tank of 480 litres is a quarter full. A pump brings 45 litres a minute and a leak takes "
        "9 litres a minute. After how many minutes is it full?",
        10,
    ),
    Problem(
        "stamps",
        "Oya has three times as many stamps as Ben. She gives him 30 and then both have the same "
        "number. How many stamps have they together?",
        120,
    ),
    Problem(
        "bakery",
        "A bakery sells rolls at 60 cents, or 10 rolls for 5 dollars. A cafe needs 48 rolls and "
        "buys them as cheaply as it can, no roll more. How many cents does it pay?",
        2480,
    ),
)
# Of 12, at 0.94 each (the healthy server of vLLM PR 51768) fewer than 9 are right once in 230 runs;
# at 0.04 each (the broken one) 9 are right never.
NEEDED = 9


def number_of(text: str) -> float | None:
    """The number that a text gives as its answer: the one behind the last "Answer", else the last
    one there is; None without any."""
    marks = list(_ANSWER.finditer(text))
    if marks and (found := _NUMBER.search(text, marks[-1].end())):
        return _value(found[0])
    numbers = _NUMBER.findall(text)
    return _value(numbers[-1]) if numbers else None


def is_right(problem: Problem, text: str) -> bool:
    """Whether the text ends in the problem's number."""
    return number_of(text) == problem.answer


def _value(text: str) -> float | None:
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None
