"""The page of reason codes against the tables that it is made of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from healthcheck import reference
from healthcheck.explain import signatures
from healthcheck.reasons import GARBAGE, REASONS, SMOKE_REASONS, Kind
from healthcheck.symptoms import FAULTS

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_its_tables_say() -> None:
    """The file in the checkout is the one that would be written now."""
    assert reference.main(["--check"]) == 0


def test_every_code_has_its_row_once() -> None:
    """Every reason and every signature stands in one table row."""
    rows = [line.split(" | ")[0] for line in reference.page().splitlines() if line[:3] == "| `"]
    codes = [*REASONS, *SMOKE_REASONS, *[s.id for s in signatures.load()]]
    assert sorted(rows) == sorted(f"| `{code}`" for code in codes)


def test_garbage_is_what_a_model_writes() -> None:
    """Every code that may end a start for a new one is a reason about the model's own answer."""
    assert {REASONS[code].kind for code in GARBAGE} == {Kind.MODEL}


def test_faults_name_reasons_and_patches_that_there_are() -> None:
    """What a fault is seen by is in the table above it, and what mends it is in the series."""
    assert {code for fault in FAULTS for code in fault.codes} <= set(REASONS)
    assert all(fault.codes for fault in FAULTS if "patch 0006" not in fault.mend)
    named = [number for fault in FAULTS for number in re.findall(r"patch (\d{4})", fault.mend)]
    assert named and all(list((ROOT / "patches").glob(f"{number}-*.patch")) for number in named)


def test_an_old_page_is_told_and_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--check exits 1 and names the command for a page that is missing or old."""
    monkeypatch.setattr(reference, "FILE", tmp_path / "REASONS.md")
    assert reference.main(["--check"]) == 1
    assert "python3 -m healthcheck.reference" in capsys.readouterr().out
    assert reference.main([]) == 0 and reference.main(["--check"]) == 0
    assert reference.main(["--chek"]) == 2
