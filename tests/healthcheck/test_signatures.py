"""The data file of known log lines, and what is refused in one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from healthcheck.explain import signatures
from healthcheck.explain.signatures import (
    COLUMNS,
    Phase,
    Severity,
    Signature,
    SignatureError,
    fixed_texts,
    load,
)
from tests.support.log_samples import SAMPLES

ROOT = Path(__file__).resolve().parents[2]
HEADER = "\t".join(COLUMNS)
GOOD_ROW = ["a.b", "start", "fatal", "-", r"it broke at (?P<place>\w{1,40})", "mend {place}", "src"]


def _file(folder: Path, *rows: list[str], header: str = HEADER) -> Path:
    path = folder / "some.tsv"
    path.write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n")
    return path


def _with(**changes: str) -> list[str]:
    names = ["id", "phase", "klass", "budget", "regex", "remedy", "source"]
    return [changes.get(name, cell) for name, cell in zip(names, GOOD_ROW, strict=True)]


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


def test_a_sound_file_loads(tmp_path: Path) -> None:
    """Comments and empty lines are passed over, and a row becomes a signature."""
    path = _file(tmp_path, ["# a comment"], [""], GOOD_ROW)
    regex, remedy, source = GOOD_ROW[4:]
    assert load(path) == (
        Signature(
            "a.b",
            Phase.START,
            Severity.FATAL,
            None,
            re.compile(regex),
            remedy,
            source,
            ("it broke at ",),
        ),
    )
    (wait,) = load(_file(tmp_path, _with(klass="transient", budget="90")))
    assert (wait.severity, wait.budget_s) == (Severity.TRANSIENT, 90.0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (GOOD_ROW[:-1], "line 2: 6 columns; it must be 7"),
        (_with(id="ab"), "id 'ab'; it must look like area.what"),
        (_with(phase="pre"), "phase 'pre'; it must be one of create, config, start, serve, any"),
        (_with(klass="bad"), "class 'bad'; it must be one of fatal, retry"),
        (_with(remedy=" "), "a remedy and a source are needed"),
        (_with(regex="it broke (at", remedy="x"), "does not compile"),
        (
            _with(remedy="mend {plaice}"),
            "remedy names {plaice}; it may name these groups of the regex: place",
        ),
        (
            _with(regex=r"it broke (?P<a>x) (?P<b>y)"),
            "remedy names {place}; it may name these groups of the regex: a, b",
        ),
        (_with(regex="it broke"), "it may name these groups of the regex: none"),
        (_with(remedy="mend {place.real}"), "remedy names {place.real}"),
        (_with(remedy="mend {place!r}"), "remedy names {place}"),
        (_with(remedy="mend {place"), "is no template"),
        (_with(budget="5"), "only a transient line has one"),
        (_with(klass="transient"), "a transient line needs whole seconds"),
        (_with(klass="transient", budget="0"), "a transient line needs whole seconds"),
        (_with(regex="it broke .*", remedy="x"), "repeats without an upper bound ('*')"),
        (_with(regex="it broke a+", remedy="x"), "repeats without an upper bound ('+')"),
        (_with(regex="it broke a{3,}", remedy="x"), "repeats without an upper bound ('{3,}')"),
        (_with(regex="it broke a{,}", remedy="x"), "repeats without an upper bound ('{,}')"),
        (_with(regex="it broke a{,401}", remedy="x"), "repeats 401 times; at most 400"),
        (_with(regex="it broke (a|aa){1,9}", remedy="x"), "repeats a group"),
        (_with(regex="(?i)it broke", remedy="x"), "repeats a group or sets flags"),
        (_with(regex=".{0,401}it broke", remedy="x"), "repeats 401 times; at most 400"),
        (_with(regex="it broke .{0,300}a.{0,300}b.", remedy="x"), "can backtrack over 90601 paths"),
        (_with(regex=r"\w{1,9}", remedy="x"), "each alternative needs 5 or more"),
        (_with(regex="it broke|oh", remedy="x"), "found 'oh'"),
    ],
)
def test_a_bad_row_is_refused_in_one_line(tmp_path: Path, row: list[str], message: str) -> None:
    """The refusal names file, line, what was seen and what it must be, in one line."""
    with pytest.raises(SignatureError) as refusal:
        load(_file(tmp_path, row))
    text = str(refusal.value)
    assert message in text
    assert text.startswith("some.tsv line 2")
    assert "\n" not in text


def test_the_same_id_twice_is_refused(tmp_path: Path) -> None:
    """An id names one row."""
    with pytest.raises(SignatureError, match=r"line 3: id 'a.b' is there twice"):
        load(_file(tmp_path, GOOD_ROW, GOOD_ROW))


def test_a_wrong_header_is_refused(tmp_path: Path) -> None:
    """Columns in another order would be read as each other."""
    with pytest.raises(SignatureError, match="the header is 'id regex'; it must be"):
        load(_file(tmp_path, GOOD_ROW, header="id\tregex"))
    (tmp_path / "none.tsv").write_text("# nothing but a comment\n")
    with pytest.raises(SignatureError, match="the header is 'nothing'; it must be"):
        load(tmp_path / "none.tsv")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00"])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    """Neither an empty file nor bytes that are not UTF-8 raise anything but a refusal."""
    path = tmp_path / "some.tsv"
    path.write_bytes(content)
    with pytest.raises(SignatureError):
        load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that is not there is a refusal as well."""
    with pytest.raises(SignatureError, match="cannot be read"):
        load(tmp_path / "none.tsv")


def test_fixed_text_stops_at_what_may_be_absent() -> None:
    """An optional character does not belong to the text that must be there."""
    assert fixed_texts(r"colour?s of the (?:rainbow)?s") == ("s of the ",)
    assert fixed_texts(r"first one|the second") == ("first one", "the second")
    assert fixed_texts(r"it broke a{,5}b") == ("it broke ",)
    assert fixed_texts(r"a\.b\(c\) \d{1,3}") == ("a.b(c) ",)
    assert fixed_texts("12345") == ("12345",)
    with pytest.raises(SignatureError, match="needs 5 or more ASCII"):
        fixed_texts("1234")


@pytest.mark.parametrize(
    ("rest", "paths"),
    [
        (r"a{2,5}", 1),  # nothing follows that could fail
        (r"a{1,400}", 1),
        (r"a|the other", 1),  # alternatives of the whole are tried one after the other
        (r"(a)b|then (other)", 1),
        (r"a{2,5}b", 1),  # one length only lets what follows be tried
        (r"(a{2,5})b", 1),
        (r"\d{2,5}b", 1),
        (r"\.{2,5}b", 1),  # a dot that is escaped is a dot
        (r"a{2,5}a", 4),
        (r"(a{2,5})a", 4),
        (r"\d{2,5}7", 4),
        (r".{2,5}b", 4),
        (r"a{2,5}\d", 4),  # what follows is not looked into
        (r"[ab]{2,5}c?", 4),  # what follows may be absent
        (r"[ab]{2,5}c?c", 8),
        (r"a{5}\d", 1),
        (r"a{,5}\d", 6),
        (r"a?\d", 2),
        (r"(?:abc)?d", 2),
        (r"(?:abc|d)?d", 4),
        (r"(a|b)\d", 2),
        (r"(a|b|c)\d{1,3}x{2,3}\d", 24),
    ],
)
def test_the_work_of_a_regex_is_counted(
    monkeypatch: pytest.MonkeyPatch, rest: str, paths: int
) -> None:
    """The ways to try one start are the lengths of each repetition that more than one lets go on,
    times two for each bar in a group."""
    monkeypatch.setattr(signatures, "MOST_PATHS", paths)
    fixed_texts(f"it broke {rest}")
    monkeypatch.setattr(signatures, "MOST_PATHS", paths - 1)
    with pytest.raises(SignatureError) as refusal:
        fixed_texts(f"it broke {rest}")
    regex = f"it broke {rest}"
    assert str(refusal.value).startswith(f"regex {regex!r} can backtrack over {paths} paths")


@pytest.mark.parametrize("regex", ["it broke a{2,5}?b", "it broke a{2}{3}", "*it broke"])
def test_a_repetition_of_nothing_plain_is_refused(regex: str) -> None:
    """Lazy and stacked repetitions, and one of nothing, are not in the dialect."""
    with pytest.raises(SignatureError) as refusal:
        fixed_texts(regex)
    assert str(refusal.value).startswith(f"regex {regex!r} repeats a group or sets flags")


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
