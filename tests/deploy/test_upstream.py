"""What a move to another vLLM would need: the wheel, what is asked of its sources, and the page."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.recipe import facts, release, vocabulary
from deploy.upstream import names, page, survey, wheel, wordings
from deploy.upstream.__main__ import main
from deploy.upstream.names import Names
from deploy.upstream.probes import Seen
from deploy.upstream.survey import Audit, Survey
from deploy.upstream.wordings import Wordings
from healthcheck.explain import signatures
from patches import faults, series
from patches.apply import PatchStatus
from patches.loadcheck.check import Loaded
from tests.support import vllm_trees

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "deploy/releases/0.33.0.md"


# --- the wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip takes for its only index, as a user's own pip would be set."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for version in ("9.1.0", "9.10.0", "9.11.0rc1"):
        _wheel(folder, version, "Requires-Python: >=9\n")
    return folder


def _wheel(folder: Path, version: str, more: str = "") -> None:
    info = f"vllm-{version}.dist-info"
    made = folder / f"vllm-{version}-cp38-abi3-manylinux_2_31_x86_64.whl"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        archive.writestr("vllm/_C.abi3.so", "no source")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n{more}"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: cp38-abi3-manylinux_2_31_x86_64\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def test_the_newest_release_is_fetched_as_sources(index: Path, tmp_path: Path) -> None:
    """By number, no candidate of a release, whatever Python it asks for; and nothing but sources."""
    found = wheel.fetch(None, tmp_path / "cache")
    assert found == tmp_path / "cache/9.10.0"
    assert sorted(str(p.relative_to(found)) for p in found.rglob("*") if p.is_file()) == [
        "vllm-9.10.0.dist-info/METADATA",
        "vllm/__init__.py",
    ]
    assert [p.name for p in found.parent.iterdir()] == ["9.10.0"]


def test_a_release_that_was_fetched_is_taken_again(index: Path, tmp_path: Path) -> None:
    """By its number it needs no index any more; the newest is asked for each time."""
    found = wheel.fetch("9.1.0", tmp_path / "cache")
    for each in index.iterdir():
        each.unlink()
    assert wheel.fetch("9.1.0", tmp_path / "cache") == found
    with pytest.raises(wheel.WheelError):
        wheel.fetch(None, tmp_path / "cache")


def test_what_cannot_be_fetched_is_one_line(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The requirement, what pip says, and where to look."""
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path / "cache"))
    assert main(["--version", "1.2.3"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("upstream: vllm==1.2.3: cannot be downloaded: No matching distribution")
    assert said.endswith("check pip's index and network (pip config list)")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--version", "1.2", "--tree", "."], "--version: got a tree too; give one of them"),
        (["--version=-r x"], "--version: got '-r x'; give a release's number, as pip does"),
    ],
)
def test_misuse_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is fetched."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_a_version_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing could be said of facts and faults."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    assert main(["--tree", str(tmp_path)]) == 1
    assert "its vLLM does not say its version" in capsys.readouterr().err


# --- wordings


def _tree(folder: Path, text: str) -> Path:
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm/engine.py").write_text(text, "utf-8")
    return folder


def test_a_wording_over_several_lines_stands(tmp_path: Path) -> None:
    """As a source breaks it; one that is gone is named, and of what was in neither nothing is said."""
    texts = [text for s in signatures.load() for text in s.literals]
    kept, gone = (
        "DSpark requires num_speculative_tokens >= dspark_block_size (",
        "EngineCore failed to start.",
    )
    assert {kept, gone} <= set(texts)
    broken = f"raise ValueError(\n    \"{kept[:20]}\"\n    f'{kept[20:]}'\n)\n"
    before = _tree(tmp_path / "before", f'{broken}log("{gone}")\n')
    found = wordings.compare(_tree(tmp_path / "now", broken), before, "9.9")
    assert (found.gone, found.kept) == ((("engine.core_start_failed", gone),), 1)
    assert found.untold == len(texts) - 2


# --- names


def _whole(tmp_path: Path, change: Any) -> Path:
    """The vocabulary of the newest release as one file, changed."""
    known = release.load(release.names()[-1])
    content = vocabulary.content(*(folder / vocabulary.NAME for folder in known.folders))
    change(content)
    file = tmp_path / "vocabulary.json"
    file.write_text(json.dumps(content), "utf-8")
    return file


def _between(tmp_path: Path, change: Any) -> Names:
    return names.between(_whole(tmp_path, change), release.load(release.names()[-1]))


def test_nothing_differs_from_itself(tmp_path: Path) -> None:
    """Neither a name nor what the recipe gives."""
    found = _between(tmp_path, lambda whole: None)
    assert not any([*found.new.values(), *found.gone.values(), found.other, found.unknown])


def test_what_the_recipe_gives_and_the_tree_lacks_is_named(tmp_path: Path) -> None:
    """A flag, a variable and a speculative key that are gone, each by its name."""

    def change(whole: dict[str, Any]) -> None:
        del whole["flags"]["max-num-seqs"]
        whole["environment"].remove("VLLM_ROCM_USE_AITER")
        whole["speculative"].remove("num_speculative_tokens")
        whole["flags"]["a-new-one"] = {"kind": "int"}

    found = _between(tmp_path, change)
    assert found.new["flags"] == ("a-new-one",)
    assert found.gone["flags"] == ("max-num-seqs",)
    assert any(
        line.startswith("--max-num-seqs: got an unknown server flag") for line in found.unknown
    )
    assert "VLLM_ROCM_USE_AITER: the recipe sets it, and nothing reads it" in found.unknown
    assert "speculative-config: num_speculative_tokens: is no key of it" in found.unknown


@pytest.mark.parametrize(
    ("before", "after", "is_other"),
    [
        ({"kind": "int"}, {"kind": "size"}, True),
        ({"kind": "bool"}, {"kind": "switch", "aliases": ["--disable-x"]}, False),
        ({"kind": "string", "choices": ["a", "b"]}, {"kind": "string", "choices": ["a"]}, True),
        ({"kind": "string", "choices": ["a"]}, {"kind": "string", "choices": ["a", "b"]}, False),
        ({"kind": "string", "choices": ["a"]}, {"kind": "string"}, False),
        ({"kind": "config", "keys": ["a", "b"]}, {"kind": "config", "keys": ["b"]}, True),
        ({"kind": "int", "aliases": ["-x"]}, {"kind": "int"}, True),
        ({"kind": "list", "of": "int"}, {"kind": "list"}, True),
    ],
)
def test_a_flag_takes_other_values_where_one_is_lost(
    before: dict[str, Any], after: dict[str, Any], is_other: bool
) -> None:
    """More values, keys or spellings are no difference for who wrote the earlier ones."""
    assert names._other(before, after) is is_other


def test_the_release_before_is_compared_with() -> None:
    """The newest older one; of the oldest, the newest there is."""
    known = ("9.1.0", "9.9.0", "9.10.0")
    assert [survey.base_of(v, known) for v in ("9.11.0", "9.10.0", "9.1.0")] == [
        *("9.10.0", "9.9.0", "9.10.0")
    ]


# --- needs and page


SOUND = Survey(
    version="9.9.0",
    is_known=True,
    statuses=(PatchStatus("0001-x.patch", "vllm/x.py", "upstream", "has it", None, ()),),
    faults=(),
    audit=Audit((), ()),
    load=Loaded("loaded", None, "C", ("a",), ("a",)),
    names=Names("9.8.0", {"flags": ()}, {"flags": ()}, (), ()),
    facts=(Seen("k", True, True),),
    wordings=Wordings("9.8.0", (), 3, 2),
)
FAULT = faults.load()[0]
_BAD = PatchStatus("0002-y.patch", "vllm/y.py", "drifted", "sha256", None, ())


def test_a_sound_release_that_is_known_needs_nothing() -> None:
    """And the page says so."""
    assert SOUND.needs() == ()
    assert "Nothing that sources tell." in page.page(SOUND)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"is_known": False}, "a folder deploy/releases/9.9.0"),
        ({"statuses": (_BAD,)}, "patch 0002 does not fit: read what became of it"),
        ({"statuses": (replace(_BAD, state="missing"),)}, "patch 0002 has lost its file: read what became of it"),
        ({"statuses": (replace(_BAD, state="pending"),)}, "the series is carried: 0002"),
        ({"faults": (FAULT,)}, f"it is still wrong (refused where a plan is hit): {FAULT.key}"),
        ({"faults": (replace(FAULT, effect="warn"),)}, f"it is still wrong (warned of where a plan is hit): {FAULT.key}"),
        ({"audit": Audit(("lacks a",), ("b",))}, "close the gap: lacks a"),
        ({"audit": "no class"}, "the audit could not be made: no class"),
        ({"load": "C lacks a"}, "the draft class cannot serve: C lacks a"),
        ({"load": Loaded("imported", "no op", "C", (), ("a",))}, "the draft was imported here and no more: check it in the image"),
        ({"names": "no parser"}, "names could not be asked: no parser"),
        ({"names": replace(SOUND.names, unknown=("--x: gone",))}, "the recipe: --x: gone"),  # type: ignore[type-var]
        ({"facts": (Seen("k", True, False),)}, "facts.toml: k: holds no more in 9.9.0: until"),
        ({"facts": (Seen("k", False, True),)}, "facts.toml: k: holds in 9.9.0, and the table says it does not"),
        ({"facts": (Seen("k", True, None, "f.py is not there"),)}, "facts.toml: k: cannot be told: f.py is not there"),
        ({"wordings": "no vLLM"}, "wordings could not be compared: no vLLM"),
        ({"wordings": Wordings("9.8.0", (("a.b", "x"),), 1, 1)}, "signatures.tsv: 1 of the wordings stood in 9.8.0 and stand no more: see whether a new one is to be added"),
    ],
)  # fmt: skip
def test_whatever_is_found_is_to_be_done(change: dict[str, Any], line: str) -> None:
    """Each finding by itself makes one line, on the page too."""
    made = replace(SOUND, **change)
    assert made.needs() == (line,)
    assert "Nothing that sources tell." not in page.page(made)


def test_a_fault_that_a_pending_patch_mends_is_told_once() -> None:
    """The series is to be carried; the fault goes with it."""
    carried = PatchStatus(FAULT.patch or "", "vllm/x.py", "pending", "", None, ())
    assert replace(SOUND, statuses=(carried,), faults=(FAULT,)).needs() == (
        f"the series is carried: {carried.patch[:4]}",
    )


def test_the_page_that_is_kept_has_every_fact_and_patch() -> None:
    """A row of each, in order: a table that grew makes it stale."""
    rows = [
        line.split("|")[1].strip() for line in KEPT.read_text("utf-8").splitlines() if "|" in line
    ]
    told = [row for row in rows if row not in ("patch", "fact", "---")]
    wanted = [patch.name[:4] for patch in series.load().patches for _ in patch.targets]
    assert told == [*wanted, *facts.load()]


@pytest.mark.prove
def test_the_page_that_is_kept_is_what_the_command_writes(tmp_path: Path) -> None:
    """`make watch-upstream VERSION=0.33.0`, with the same sources, gives it to the letter."""
    made = tmp_path / "page.md"
    assert main(["--tree", str(vllm_trees.tree("0.33.0")), "--out", str(made)]) == 0
    assert made.read_text("utf-8") == KEPT.read_text("utf-8")
