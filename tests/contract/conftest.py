"""One process of the real AMD class per tree answers every question of these tests."""

from pathlib import Path

import pytest

from tests.contract.cases import (
    NOT_ASKED_OF_PRISTINE,
    configuration_questions,
    retrieval_questions,
    runtime_questions,
)
from tests.support.amd_class import Answers, ask_both
from tests.support.once import once


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answers, Answers]:
    """The answers of the pristine tree and of the patched one."""
    folder: Path = tmp_path_factory.mktemp("contract")
    asked = runtime_questions(folder) | retrieval_questions(folder)
    fewer = {
        name: question for name, question in asked.items() if name not in NOT_ASKED_OF_PRISTINE
    }

    def ask() -> tuple[Answers, Answers]:
        return ask_both(folder, pristine=fewer, patched=asked | configuration_questions(folder))

    pristine, patched = once(tmp_path_factory, "contract", ask)
    return pristine, patched


@pytest.fixture
def pristine(both: tuple[Answers, Answers]) -> Answers:
    """What vLLM 0.27.1 says as it was released."""
    return both[0]


@pytest.fixture
def patched(both: tuple[Answers, Answers]) -> Answers:
    """What it says with the series applied."""
    return both[1]
