"""The data file of known log lines, and what is refused in one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from string import Formatter

import pytest

from healthcheck.explain.signatures import Severity, fixed_texts, load
from tests.support.log_samples import SAMPLES
from tests.support.regex_dialect import MOST_PATHS, SHORTEST_LITERAL, paths

ROOT = Path(__file__).resolve().parents[2]


def test_every_shipped_signature_has_a_sample_that_only_wrappers_share() -> None:
    """Each signature matches its own sample line, and no two causes claim the same line."""
    shipped = {signature.id: signature for signature in load()}
    assert shipped.keys() == SAMPLES.keys()
    for name, line in SAMPLES.items():
        hits = [other for other, signature in shipped.items() if signature.pattern.search(line)]
        assert hits == [name]


def test_fixed_texts_are_in_every_matching_line() -> None:
    """The text searched for first is in each sample, so the filter loses no line."""
    for signature in load():
        assert any(text in SAMPLES[signature.id] for text in signature.literals), signature.id


def test_only_transient_lines_have_a_budget() -> None:
    """A wait has seconds it may last; nothing else has."""
    for signature in load():
        assert (signature.budget_s is not None) == (signature.severity is Severity.TRANSIENT)


def test_the_real_class_of_the_rehearsal_is_known_too() -> None:
    """The missing attribute is named for any DSpark class, not only for the AMD one."""
    line = (
        "AttributeError: 'Qwen3DSparkForCausalLM' object has no attribute 'draft_id_to_target_id'"
    )
    hits = [signature.id for signature in load() if signature.pattern.search(line)]
    assert hits == ["dspark.missing_d2t_attr"]


def test_every_row_keeps_to_the_rules_of_its_file() -> None:
    """Ids are told apart and look like area.what; a remedy names groups of its own regex alone; a
    regex is in the dialect, cannot be tried in too many ways, and has fixed text to be found by."""
    ids = [signature.id for signature in load()]
    assert len(set(ids)) == len(ids)
    for one in load():
        assert re.fullmatch(r"[a-z]\w*(\.\w+)+", one.id)
        assert one.remedy.strip(), one.id
        assert one.source.strip(), one.id
        fields = [f for f in Formatter().parse(one.remedy) if f[1] is not None]
        assert all(field in one.pattern.groupindex for _, field, _, _ in fields), one.id
        assert not any(spec or conversion for _, _, spec, conversion in fields), one.id
        assert paths(one.pattern.pattern) <= MOST_PATHS, one.id
        assert all(len(t) >= SHORTEST_LITERAL and t.isascii() for t in one.literals), one.id


def test_fixed_text_stops_at_what_may_be_absent() -> None:
    """An optional character does not belong to the text that must be there."""
    assert fixed_texts(r"colour?s of the (?:rainbow)?s") == ("s of the ",)
    assert fixed_texts(r"first one|the second") == ("first one", "the second")
    assert fixed_texts(r"it broke a{,5}b") == ("it broke ",)
    assert fixed_texts(r"a\.b\(c\) \d{1,3}") == ("a.b(c) ",)
    assert fixed_texts("12345") == ("12345",)


def test_the_dialect_counts_and_refuses() -> None:
    """The ways to try one start are the lengths of each repetition that more than one lets go on,
    times two for each bar in a group; what has no bound is not in it."""
    assert paths(r"it broke a{1,400}b") == 1
    assert paths(r"it broke (a|b|c)\d{1,3}x{2,3}\d") == 24
    for regex in ("it broke .*", "it broke a{3,}", "it broke (a|aa){1,9}", "it broke a{2,5}?b"):
        with pytest.raises(ValueError, match="repeats"):
            paths(regex)


ADVERSARY = """
import json, sys
from healthcheck.explain.signatures import load
samples, length, count = json.load(sys.stdin), 16_384, 0
for signature in load():
    print(signature.id, flush=True)
    sample = samples[signature.id]
    lines = [sample[:cut] * (length // cut + 1) for cut in range(1, len(sample) + 1, 3)]
    for text in signature.literals:
        for filler in ("a", "'", "(", "0", " ", "DSpark", "w1_weight", "/", ".", "gfx9", text[-1]):
            lines.append(text + filler * length)
            lines.append((text + filler * 50) * (length // 50))
            lines.append(filler * 1_000 + (text + filler * 300) * (length // 300))
    for line in lines:
        signature.pattern.search(line[:length])
"""


def test_no_signature_can_be_made_to_backtrack_for_long() -> None:
    """Thousands of hostile lines of full length are searched in minutes, where one regex that
    backtracks without bound would need years."""
    run = subprocess.run(
        [sys.executable, "-c", ADVERSARY],
        input=json.dumps(SAMPLES),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert run.stdout.split() == list(SAMPLES)
