"""The table of facts: each held against the file of vLLM that it names, in every release."""

from pathlib import Path

import pytest

from deploy.recipe import facts
from deploy.recipe.tables import RecipeError
from deploy.upstream import probes
from tests.support.vllm_trees import SHA256, tree

RELEASES = [version for version in SHA256 if version >= "0.26.0"]


def test_every_fact_has_a_probe() -> None:
    """None is taken on trust."""
    assert probes.PROBES.keys() == facts.load().keys()


@pytest.mark.parametrize("version", RELEASES)
def test_the_sources_of_a_release_say_what_the_table_says(version: str) -> None:
    """Each probe on the real file, in the releases that have the fact and in those that do not."""
    assert [seen for seen in probes.look(tree(version), version) if not seen.agrees] == []


def test_what_a_release_moved_cannot_be_told(tmp_path: Path) -> None:
    """A file that is gone, and a passage that is, are no fact and no end of one."""
    layout = tmp_path / facts.load()["mxfp4-padding"].source
    layout.parent.mkdir(parents=True)
    layout.write_text("def elsewhere(): ...", "utf-8")
    found = {seen.key: seen for seen in probes.look(tmp_path, "99.0")}
    assert not any(seen.agrees for seen in found.values())
    assert {seen.seen for seen in found.values()} == {None}
    assert found["json-logs"].why == "vllm/logger.py is not there"
    assert found["mxfp4-padding"].why.endswith("mxfp4.py no longer rounds up to 256 on ROCm")


def test_a_fact_begins_and_ends_with_a_release() -> None:
    """From `since` on, before `until`, pre-releases and builds of a release included."""
    fact = facts.Fact("s", since="0.26.0", until="0.28.0", source="f")
    held = [
        v
        for v in ("0.25.1", "0.26.0", "0.27.1+rocm723", "0.28.0rc1", "0.28.0", "1.0")
        if fact.holds(v)
    ]
    assert held == ["0.26.0", "0.27.1+rocm723", "0.28.0rc1"]
    assert facts.Fact("s", since="0.26.0", source="f").holds("9.9")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1", "a: got 1; give a table"),
        ("[a]\nsays = 's'\nsource = 'f'", "a.since: is missing; add it"),
        ("[a]\nsays = 's'\nsince = 1", "a.since: got 1; give a str"),
        ("[a]\nsays = 's'\nsince = '0.1'\nsource = 'f'\nuntill = '0.2'", "a.untill: got '0.2'; no such key; did you mean until?"),
    ],
)  # fmt: skip
def test_a_bad_table_is_refused_with_one_line(tmp_path: Path, text: str, line: str) -> None:
    """The file, the key, the value seen, the fix."""
    file = tmp_path / "facts.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(RecipeError) as refused:
        facts.load(file)
    assert str(refused.value).startswith(f"{file}: {line}")
