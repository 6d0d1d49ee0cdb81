"""The way from one release to another: what two rehearsals left, compared, and the verdict."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import recipe
from deploy.recipe import release
from deploy.rehearsal import upgrade
from deploy.rehearsal.__main__ import main
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.supervisor import METRICS
from deploy.rehearsal.upgrade import REPORT, Side
from healthcheck.client.exposition import DRAFTS, NEEDED
from healthcheck.judge import Outcome
from healthcheck.smoke.compare import Way
from tests.support.lanes import LANES

# What two real runs left: `make upgrade-rehearsal` of these two, the lines of the logs that warn.
# Metrics are the releases' own samples.
RECORDED = Path(__file__).with_name("upgrade")
BEFORE, AFTER = "0.27.1", "0.32.0"


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Path]:
    """A folder as the rehearsal of a release leaves it."""

    def folder(version: str) -> Path:
        made = tmp_path / version
        shutil.copytree(RECORDED / version, made)
        shutil.copyfile(release.load(version).metrics, made / METRICS)
        return made

    return folder


@pytest.fixture
def sides(recorded: Callable[[str], Path]) -> tuple[Side, Side]:
    """Both releases as they were recorded."""
    return upgrade.read(recorded(BEFORE)), upgrade.read(recorded(AFTER))


def way(before: Side, after: Side, name: str) -> Way | None:
    """Which way one thing went; None: it is not told."""
    return next((d.way for d in upgrade.differ(before, after) if d.name == name), None)


def test_the_recorded_way_is_told(sides: tuple[Side, Side]) -> None:
    """Releases, acceptance by position with intervals, speed as a ratio; new names, new warnings and
    another speed are no reason to stay."""
    told, code = upgrade.verdict(*sides)
    assert code == 0
    assert told.endswith(f"roll vLLM {BEFORE} to {AFTER}: nothing is worse here")
    assert f"vllm_version: {BEFORE} -> {AFTER}" in told
    assert "same     accepted at 0: 79.1% (70.3% to 85.7%) -> 83.4% (75.1% to 89.4%)" in told
    assert "(a request: 0.83 times (0.77 to 0.89); not judged: a rehearsal's kernels" in told
    assert (
        f"changed  metrics: {len(sides[0].metrics)} names -> {len(sides[1].metrics)} names" in told
    )
    assert "changed  log: Reset SSM cache type to float" in told


def test_a_position_that_is_accepted_less_often_holds(sides: tuple[Side, Side]) -> None:
    """Where the intervals are apart."""
    before, after = sides
    seen = after.report.acceptance
    assert seen is not None
    less = replace(
        seen,
        per_position=(*seen.per_position[:4], 0.157),
        intervals=(*seen.intervals[:4], (0.102, 0.233)),
    )
    told, code = upgrade.verdict(
        before, replace(after, report=replace(after.report, acceptance=less))
    )
    assert code == 1
    assert told.endswith(f"hold vLLM {BEFORE} to {AFTER}: accepted at 4")
    assert "worse    accepted at 4: 40.5% (31.6% to 50.1%) -> 15.7% (10.2% to 23.3%)" in told


def test_a_release_that_is_not_good_holds(sides: tuple[Side, Side]) -> None:
    """Also where the one before was no better."""
    bad = [
        replace(c, outcome=Outcome.BAD) if c.name == "chat" else c for c in sides[1].report.checks
    ]
    before, after = (replace(s, report=replace(s.report, checks=bad)) for s in sides)
    told, code = upgrade.verdict(before, after)
    assert code == 1
    assert told.endswith(f"hold vLLM {BEFORE} to {AFTER}: its smoke test is bad")
    told, code = upgrade.verdict(sides[0], after)
    assert (code, told.rpartition(": ")[2]) == (1, "verdict; chat")


def test_a_metric_that_the_health_service_reads_must_stay(sides: tuple[Side, Side]) -> None:
    """Any other that is gone is told; new ones are counted and a few named."""
    before, after = sides
    there = before.metrics & after.metrics
    assert DRAFTS in there
    without = replace(after, metrics=after.metrics - {DRAFTS})
    assert way(before, without, f"metric {DRAFTS}") is Way.WORSE
    other = next(iter(sorted(there - {DRAFTS})))
    without = replace(after, metrics=after.metrics - {other})
    assert way(before, without, f"metric {other}") is Way.CHANGED
    assert way(before, replace(after, metrics=frozenset()), "metrics") is Way.WORSE


@pytest.mark.parametrize(
    ("line", "expected", "why"),
    [
        ("ERROR 11-30 10:00:00 [core.py:12] a thing of step 12 broke", Way.WORSE, "no signature explains it"),
        ("WARNING 11-30 10:00:00 [core.py:12] a thing of step 12 broke", Way.CHANGED, "no signature explains it"),
        ("(EngineCore pid=9) ERROR 11-30 10:00:00 [core.py:12] EngineCore encountered a fatal error 12", Way.CHANGED, "explained by engine.dead"),
        ("INFO 11-30 10:00:00 [core.py:12] a thing of step 12 broke", None, ""),
    ],
)  # fmt: skip
def test_what_the_log_says_anew(
    sides: tuple[Side, Side], line: str, expected: Way | None, why: str
) -> None:
    """An error that nothing explains is worse; what only differs in numbers and paths is the same."""
    before, after = (replace(side, wordings={}) for side in sides)
    told = replace(after, wordings=upgrade.wordings([line]))
    logs = [d for d in upgrade.differ(before, told) if d.name.startswith("log: ")]
    assert [d.way for d in logs] == ([expected] if expected else [])
    assert [d.why for d in logs] == ([why] if why else [])
    again = replace(before, wordings=upgrade.wordings([line.replace("12", "345")]))
    assert not [d for d in upgrade.differ(again, told) if d.name.startswith("log: ")]


@pytest.mark.parametrize("name", [REPORT, "server.log"])
def test_a_rehearsal_that_left_nothing_is_one_line(
    recorded: Callable[[str], Path], name: str
) -> None:
    """A start that failed leaves no report; the log is named."""
    folder = recorded(AFTER)
    (folder / name).unlink()
    with pytest.raises(RehearsalError) as refused:
        upgrade.read(folder)
    assert str(folder / name) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--from", "9.9"], 1, "rehearsal: FROM: got '9.9'; it is one of "),
        (["--to", "9.9"], 1, "rehearsal: TO: got '9.9'; it is one of "),
        (["--from", AFTER, "--to", AFTER], 2, f"rehearsal: TO: {AFTER}: is what is left: give another of "),
    ],
)  # fmt: skip
def test_a_way_that_is_none_is_refused(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is made or started."""
    assert main(["upgrade", *words]) == code
    assert capsys.readouterr().err.startswith(said)


def test_without_words_it_is_the_way_to_the_newest() -> None:
    """From the recipe's release."""
    assert upgrade.both("", "") == (recipe.load().vllm.version, LANES[-1].version)


@pytest.mark.prove
@pytest.mark.real
def test_the_real_way_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two real servers, each in its own environment, one after the other. All that may be worse is
    the acceptance of single positions, which goes with the texts that were drawn."""
    code = main(["upgrade", "--out", str(tmp_path)])
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert re.fullmatch(
        r"roll vLLM .*|hold vLLM [\d.]+ to [\d.]+: accepted at \d(; accepted at \d)*", last
    )
    assert code == last.startswith("hold ")
    for version in (recipe.load().vllm.version, LANES[-1].version):
        left = upgrade.read(tmp_path / version)
        assert (left.report.verdict, left.report.vllm_version) == ("good", version)
        assert left.metrics >= NEEDED
