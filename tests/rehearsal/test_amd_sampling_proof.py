"""What is sampled through the AMD draft in the real engine follows what the target says alone.

Seen on both FP8 formats. The checkpoint throws dice (tests/support/dice.py). What is right at each
token is asked of a server without the draft, which is handed the answer as a prompt. That draft and
verifier share no noise is too small a matter for so few tokens: tests/contract/test_sampling.py
sees it. Run by `make prove`.
"""

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from statistics import stdev

import pytest

from patches.loadcheck.card import CARDS
from tests.contract.cases import DRAFT, TARGET
from tests.contract.test_sampling import FAULT, SOUND
from tests.support import dice
from tests.support.amd_server import AmdServer
from tests.support.chi_square import p_value, power
from tests.support.figures import show

pytestmark = [pytest.mark.real, pytest.mark.prove, pytest.mark.timeout(3 * 3600)]

REQUESTS = 12  # at once
TOLD_AT_ONCE = 4  # whole prompts: a step that takes them all may outlast the engine's patience
FLAGS = ("--max-num-seqs", str(REQUESTS))
PROMPT = 12
LENGTH, SHORT = 40, 22
"""Tokens of an answer at temperature 1, and at 2, which is told from 1 by fewer."""


@dataclass(frozen=True)
class Answer:
    """A prompt and the tokens sampled after it."""

    prompt: list[int]
    said: list[int]


@dataclass(frozen=True)
class Sample:
    """Answers at a temperature, with the target's own log probabilities at each of their tokens."""

    answers: list[Answer]
    told: list[list[Mapping[int, float]]]

    def p_value(self, temperature: float) -> float:
        """The chance of these answers if they were sampled at this temperature."""
        seen: Counter[int] = Counter()
        for answer, told in zip(self.answers, self.told, strict=True):
            seen += dice.counts(answer.prompt, answer.said, told, temperature)
        return p_value([seen[n] for n in range(len(TARGET))], TARGET)


@pytest.fixture(scope="module", params=CARDS)
def samples(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Sample]:
    """Answers of a server with the draft, and what one without it says of them."""
    arch = request.param
    folder = tmp_path_factory.mktemp("sampling")
    home = dice.write(folder / "home")
    answers: dict[str, list[Answer]] = {}
    with AmdServer(folder / "drafted", home, arch=arch, flags=FLAGS) as server:
        answers["temperature 1"] = sampled(server, LENGTH, 1.0)
        check_acceptance(server)
        answers["temperature 2"] = sampled(server, SHORT, 2.0)
    with AmdServer(folder / "plain", home, arch=arch, flags=FLAGS, speculation=False) as server:
        found = {name: Sample(said, told(server, said)) for name, said in answers.items()}
    for name, sample in found.items():
        fits = ", ".join(f"at {t:g} p={sample.p_value(t):.3g}" for t in (0.5, 1.0, 2.0))
        count = sum(len(answer.said) for answer in sample.answers)
        show(request, [f"{arch} {name}: {count} tokens, {fits}"])
    return found


def test_the_samples_are_strong_enough() -> None:
    """Each temperature taken for another shows with a chance above 95 %, were TARGET all there is."""
    at = {t: _tempered(t) for t in (0.5, 1.0, 2.0)}
    assert power(REQUESTS * LENGTH, at[0.5], at[1.0], FAULT) > 0.95
    assert power(REQUESTS * SHORT, at[1.0], at[2.0], FAULT) > 0.95


@pytest.mark.parametrize(("name", "temperature"), [("temperature 1", 1.0), ("temperature 2", 2.0)])
def test_what_is_sampled_follows_the_target(
    name: str, temperature: float, samples: dict[str, Sample]
) -> None:
    """Through the draft, at temperature 1 and 2."""
    assert samples[name].p_value(temperature) > SOUND


@pytest.mark.parametrize(("name", "temperature"), [("temperature 1", 0.5), ("temperature 2", 1.0)])
def test_another_temperature_does_not_fit(
    name: str, temperature: float, samples: dict[str, Sample]
) -> None:
    """What was sampled at one temperature is no sample of another."""
    assert samples[name].p_value(temperature) < FAULT


def test_what_is_right_depends_on_what_was_said_before(samples: dict[str, Sample]) -> None:
    """The target says after the same word this and that: it had to be asked at each token."""
    sample = samples["temperature 1"]
    likely = [
        dice.shares(at, before, 1.0)[1]
        for answer, told in zip(sample.answers, sample.told, strict=True)
        for (before, _), at in zip(pairwise([answer.prompt[-1], *answer.said]), told, strict=True)
    ]
    assert stdev(likely) > 0.01


def sampled(server: AmdServer, tokens: int, temperature: float) -> list[Answer]:
    """Answers to prompts of their own, all at once."""

    def ask(n: int) -> Answer:
        prompt = dice.words(PROMPT, n)
        got = server.complete(
            prompt=prompt,
            max_tokens=tokens,
            temperature=temperature,
            seed=n,
            return_token_ids=True,
            timeout=3 * 3600,
        )
        assert got.status_code == 200, f"{got.text}\n{server.log_end()}"
        return Answer(prompt, got.json()["choices"][0]["token_ids"])

    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(ask, range(REQUESTS)))


def told(server: AmdServer, answers: list[Answer]) -> list[list[Mapping[int, float]]]:
    """What a server without the draft says of each answer, token by token."""

    def ask(answer: Answer) -> list[Mapping[int, float]]:
        got = server.complete(
            prompt=[*answer.prompt, *answer.said], max_tokens=1, prompt_logprobs=5, timeout=3 * 3600
        )
        assert got.status_code == 200, f"{got.text}\n{server.log_end()}"
        found = got.json()["choices"][0]["prompt_logprobs"][len(answer.prompt) :]
        return [{int(token): one["logprob"] for token, one in at.items()} for at in found]

    with ThreadPoolExecutor(TOLD_AT_ONCE) as pool:
        return list(pool.map(ask, answers))


def check_acceptance(server: AmdServer) -> None:
    """As many first drafts are accepted as both distributions have in common."""
    counted = server.counters()
    rate = counted["accepted_tokens_per_pos_total:0"] / counted["drafts_total"]
    expected = sum(map(min, DRAFT, TARGET))
    assert abs(rate - expected) < 0.1, counted


def _tempered(temperature: float) -> list[float]:
    weights = [share ** (1 / temperature) for share in TARGET]
    return [weight / sum(weights) for weight in weights]
