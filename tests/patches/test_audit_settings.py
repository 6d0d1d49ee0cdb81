"""Conditions on options of the speculative configuration, decided by what a server is given."""

from pathlib import Path

import pytest

from patches.audit.audit import Scope, audit
from patches.audit.tree import MisuseError, open_tree
from tests.support import audit_trees

CONFIG = """
class SpeculativeConfig:
    option: bool = False
    kind: str = "standard"
    top: int | None = Field(ge=1, default=None)
    later: bool = False
    elsewhere: bool = False
    made: list = field(default_factory=list)

    def __post_init__(self):
        self.later = True
"""
OUTSIDE = """
def finish(speculative_config):
    speculative_config.elsewhere = True
"""
CRASH, MISSING = "crash-conditional", "feature-missing"
READ = "if {test}:\n    self.model.wanted"


def severity(root: Path, propose: str, given: dict[str, object] | None) -> tuple[str, str]:
    """The severity and the note of the one gap of AMD's class in a small tree."""
    audit_trees.tree(root, propose)
    audit_trees.write(root, "vllm/config/speculative.py", CONFIG)
    audit_trees.write(root, "vllm/config/vllm.py", OUTSIDE)
    report = audit(open_tree(root), Scope("amd", speculative=given))
    (gap,) = [gap for gap in report.gaps if gap.attribute == "wanted"]
    return gap.severity.value, gap.note


@pytest.mark.parametrize(
    ("test", "given", "expected"),
    [
        ("self.speculative_config.option", None, CRASH),
        ("self.speculative_config.option", {}, MISSING),
        ("self.speculative_config.option", {"option": False}, MISSING),
        ("self.speculative_config.option", {"option": True}, "crash"),
        ("batch.speculative_config.option and batch", {"option": True}, CRASH),
        ("not self.speculative_config.option", {}, "crash"),
        ("self.speculative_config.kind == 'other'", {}, MISSING),
        ("self.speculative_config.kind == 'other'", {"kind": "other"}, "crash"),
        ("self.speculative_config.kind == 'other'", {"kind": ["other"]}, MISSING),
        ("self.speculative_config.kind in ('standard', 'other')", {}, "crash"),
        ("self.speculative_config.kind != 'standard'", {}, MISSING),
        ("self.speculative_config.kind not in ('standard', 'other')", {}, MISSING),
        ("self.speculative_config.kind < 'other'", {}, CRASH),
        ("self.speculative_config.top is not None", {}, MISSING),
        ("self.speculative_config.top is not None", {"top": 3}, "crash"),
        ("self.speculative_config.top is None", {"top": 3}, MISSING),
        ("self.speculative_config.made", {}, CRASH),
        ("self.speculative_config.later", {}, CRASH),
        ("self.speculative_config.later", {"later": False}, CRASH),
        ("self.speculative_config.elsewhere", {}, CRASH),
        ("self.speculative_config.unheard_of", {}, CRASH),
        ("self.other_config.option", {}, CRASH),
    ],
)
def test_an_option_has_its_value_or_its_default(
    tmp_path: Path, test: str, given: dict[str, object] | None, expected: str
) -> None:
    """Given or default, unless vLLM's configuration sets it or the default is made at run time."""
    assert severity(tmp_path / "tree", READ.format(test=test), given)[0] == expected


def test_an_option_that_the_speculator_keeps_is_decided(tmp_path: Path) -> None:
    """What the speculator copies into an attribute of its own is known by it; the note says why."""
    propose = "self.on = self.speculative_config.option\n" + READ.format(test="self.on and batch")
    assert severity(tmp_path / "open", propose, None) == (CRASH, "")
    assert severity(tmp_path / "off", propose, {}) == (
        MISSING,
        "option is not configured and is False at vllm/config/speculative.py:3",
    )
    assert severity(tmp_path / "given", propose, {"option": False}) == (
        MISSING,
        "option is configured as False",
    )
    assert severity(tmp_path / "on", propose, {"option": True}) == (CRASH, "")


def test_two_options_are_told_apart(tmp_path: Path) -> None:
    """A read is put down to the option that keeps it out of reach, not to another one."""
    propose = "if self.speculative_config.kind == 'other':\n    batch.run()\n"
    propose += READ.format(test="self.speculative_config.option")
    note = severity(tmp_path / "tree", propose, {})[1]
    assert note.startswith("option is not configured")


def test_an_option_that_the_tree_does_not_have_is_refused(tmp_path: Path) -> None:
    """A name that vLLM would refuse decides nothing: it is misuse, with a hint."""
    with pytest.raises(MisuseError, match=r"^--speculative-config optoin: not an option of .*"):
        severity(tmp_path / "tree", "self.model.wanted", {"optoin": True})
