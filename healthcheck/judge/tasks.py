"""Generated tasks whose answer is a whole number: drawn by a seed, so that two runs ask the same.

No model has them by heart, and each is asked in fewer than PICKED_TOKENS tokens, so that what they
tell is told apart from the needles: how well it reckons and reads, not how far back it looks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from healthcheck.judge.numbers import ASK, number_of, numbers_of

CHAIN_STEPS = (10, 20, 40)
ROOMS = 40
_MOST = 9999  # of a chain's totals
_NAMES = (
    *("Abara", "Brandt", "Castro", "Dlamini", "Eriksen", "Farah", "Goto", "Haas", "Ivanova"),
    *("Jansen", "Kowal", "Lopez", "Mensah", "Nowak", "Okafor", "Petrov", "Quist", "Rossi"),
    *("Silva", "Tanaka", "Urban", "Vega", "Weiss", "Xu", "Yilmaz", "Zhou", "Amari", "Bello"),
    *("Costa", "Duarte", "Engel", "Fischer", "Gruber", "Horvat", "Ito", "Juarez", "Keller"),
    *("Lund", "Moreau", "Novak"),
)


@dataclass(frozen=True)
class Task:
    """One question, the number that answers it, and the tokens that an answer may have."""

    prompt: str
    answer: int
    most_tokens: int = 512

    def is_right(self, text: str) -> bool:
        """Whether a text ends in the number."""
        return number_of(text) == self.answer

    def is_told(self, text: str) -> bool:
        """Whether the number stands anywhere in a text."""
        return self.answer in numbers_of(text)


def arithmetic(draw: random.Random) -> Task:
    """A word problem of three or four steps with numbers of two to four digits."""
    question, answer = draw.choice(_PROBLEMS)(draw)
    return Task(ASK.format(question=question), answer)


def chain(draw: random.Random, steps: int | None = None) -> Task:
    """Ten, twenty or forty sums, or as many as `steps`, each on the total of the one before: one
    slip loses the answer.

    What is a little worse at every token is the more worse here, the longer the chain.
    """
    steps = steps or draw.choice(CHAIN_STEPS)
    total = start = draw.randint(200, 900)
    lines = []
    for number in range(1, steps + 1):
        words, total = _step(draw, total)
        lines.append(f"{number}. {words}")
    question = (
        f"Begin with {start} and do these {steps} steps in order, each with the total of the one "
        "before. Write every step's number and total on a line of its own.\n" + "\n".join(lines)
    )
    return Task(ASK.format(question=question), total, most_tokens=2048)


def recall(draw: random.Random) -> Task:
    """A table of forty rooms in which one row leads to another, whose number is asked for."""
    rooms = draw.sample(range(100, 1000), ROOMS)
    guests = draw.sample(_NAMES, ROOMS)
    keys = draw.sample(range(100_000, 1_000_000), ROOMS)
    after = draw.sample(rooms, ROOMS)
    rows = [
        f"Room {room}: guest {guest}, key {key}, mail goes to room {mail}."
        for room, guest, key, mail in zip(rooms, guests, keys, after, strict=True)
    ]
    asked = draw.randrange(ROOMS)
    question = (
        "\n".join(rows) + f"\n\nThe mail of guest {guests[asked]} goes to a room. What is the "
        "number of that room's key?"
    )
    return Task(ASK.format(question=question), keys[rooms.index(after[asked])])


def make(kind: Callable[[random.Random], Task], seed: int, count: int) -> tuple[Task, ...]:
    """So many tasks of a kind; the same seed gives the same ones, fewer are the first of more."""
    return tuple(kind(random.Random(f"{kind.__name__}/{seed}/{at}")) for at in range(count))


def _step(draw: random.Random, total: int) -> tuple[str, int]:
    """One step of a chain and the total after it, which stays from 0 to _MOST."""
    number = draw.randint(11, 389)
    steps = [
        (f"add {number}", total + number),
        (f"take away {number}", total - number),
        ("multiply by 2", 2 * total),
        ("multiply by 3", 3 * total),
    ]
    if total % 2 == 0:
        steps.append(("divide by 2", total // 2))
    return draw.choice([step for step in steps if 0 <= step[1] <= _MOST])


def _market(draw: random.Random) -> tuple[str, int]:
    boxes, each, broken = draw.randint(12, 48), draw.randint(14, 36), draw.randint(15, 95)
    price, rent = draw.randint(3, 19), draw.randint(25, 180)
    return (
        f"A farm brings {boxes} boxes of {each} eggs to the market. {broken} eggs are broken, the "
        f"others are sold at {price} cents each, and the stall costs {rent} cents. How many cents "
        "are left after the stall is paid?",
        (boxes * each - broken) * price - rent,
    )


def _tank(draw: random.Random) -> tuple[str, int]:
    start, pump, leak = draw.randint(150, 900), draw.randint(35, 95), draw.randint(4, 28)
    first, second = draw.randint(6, 35), draw.randint(3, 20)
    return (
        f"A tank holds {start} litres. For {first} minutes a pump brings {pump} litres a minute "
        f"while {leak} litres a minute leak out. Then the pump stops, and the leak goes on for "
        f"another {second} minutes. Nothing runs over. How many litres are in the tank at the end?",
        start + first * (pump - leak) - min(second * leak, start + first * (pump - leak)),
    )


def _orchard(draw: random.Random) -> tuple[str, int]:
    rows, trees, felled = draw.randint(14, 60), draw.randint(12, 45), draw.randint(2, 6)
    hit, planted = draw.randint(5, rows - 2), draw.randint(3, 9)
    return (
        f"An orchard has {rows} rows of {trees} trees. A storm fells {felled} trees in each of "
        f"{hit} rows. In each of the other rows {planted} young trees are planted. How many trees "
        "stand now?",
        rows * trees - hit * felled + (rows - hit) * planted,
    )


def _workshop(draw: random.Random) -> tuple[str, int]:
    of, faulty = draw.randint(5, 12), draw.randint(1, 3)
    people, hours, days = draw.randint(3, 14), draw.randint(6, 9), draw.randint(4, 12)
    made = people * hours * days * of  # each makes `of` an hour
    return (
        f"{people} people work {hours} hours a day in a workshop, and each makes {of} lamps an "
        f"hour. Of every {of} lamps {faulty} are faulty. How many good lamps do they make in "
        f"{days} days?",
        made - made // of * faulty,
    )


def _journey(draw: random.Random) -> tuple[str, int]:
    fast, slow = draw.randint(65, 120), draw.randint(12, 28)
    ride, cycle, rest = draw.randint(3, 9), draw.randint(2, 7), draw.randint(20, 140)
    whole = fast * ride + slow * cycle + rest
    return (
        f"A journey is {whole} kilometres long. Mira rides {ride} hours in a train at {fast} "
        f"kilometres an hour and cycles {cycle} hours at {slow} kilometres an hour. How many "
        "kilometres are left?",
        rest,
    )


def _shares(draw: random.Random) -> tuple[str, int]:
    times, own, given = draw.randint(3, 9), draw.randint(45, 240), draw.randint(12, 40)
    return (
        f"Oya has {times} times as many stamps as Ben, who has {own}. She gives him {given}, sells "
        f"{given + 7} to a shop, and then buys {own - 9} new ones. How many stamps more than Ben "
        "has she now?",
        times * own - given - (given + 7) + (own - 9) - (own + given),
    )


_PROBLEMS: Sequence[Callable[[random.Random], tuple[str, int]]] = (
    *(_market, _tank, _orchard, _workshop, _journey, _shares),
)
