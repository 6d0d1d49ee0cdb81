"""The README against what it speaks of."""

import re
from pathlib import Path

import pytest

from deploy import recipe
from tests.support.documents import DOCUMENTS, GUIDES, ROOT


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    """Every relative link of every document is a file of the checkout, and its anchor a heading."""
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", document.read_text("utf-8"))
    for target, anchor in links:
        path = document.parent / target if target else document
        assert path.exists(), f"{document.name}: {target}"
        assert not anchor or anchor in anchors(path), f"{document.name}: {target}#{anchor}"


@pytest.mark.parametrize(
    "document",
    [path for path in GUIDES if path != ROOT / "README.md"],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_a_page_begins_with_whom_it_is_for(document: Path) -> None:
    """The first sentence below the title; the README is for everybody."""
    text = re.sub(r"^<!--.*?-->\n", "", document.read_text("utf-8"))
    title, _, rest = text.partition("\n\n")
    assert title.startswith("# ")
    assert rest.startswith("For those who ")


def anchors(document: Path) -> set[str]:
    """What GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", document.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_each_claim_is_seen_by_a_test_or_left_to_a_card() -> None:
    """What a rehearsal or the compile proof shows names its test; what none shows says how a card
    would, and no card has shown anything yet."""
    section = (ROOT / "README.md").read_text("utf-8").split("| claim |")[1].split("\n\n")[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in section.splitlines()[2:]]
    assert len(rows) > 10
    for claim, *shown, card, seen_by in rows:
        assert card in ("", "again", "only there"), claim
        if any(shown):
            assert re.fullmatch(r"\[\w+\.py\]\(tests/[\w/]+\.py\)", seen_by), claim
            assert card != "only there", claim
        else:
            assert card == "only there" and seen_by.startswith("`make "), claim


def test_the_hardware_table_is_the_recipes() -> None:
    """Each profile has its row; an unverified one says so."""
    readme = (ROOT / "README.md").read_text("utf-8")
    for profile in recipe.load().profiles.values():
        row = re.search(rf"^\| `{profile.name}` \|.*$", readme, re.MULTILINE)
        assert row is not None, profile.name
        if profile.gpu is not None:
            assert (
                f"{profile.gpu.count} x {profile.gpu.name.removeprefix('AMD Instinct ')}" in row[0]
            )
            assert profile.gpu.arch in row[0]
            assert ("unverified" in row[0]) == (profile.evidence == recipe.UNVERIFIED)
