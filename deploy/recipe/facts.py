"""What differs between releases of vLLM: releases/facts.toml, which rules and preflight ask.

What a release answers wrongly is `patches.faults`; what belongs to one release, `release`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from deploy.recipe import tables
from deploy.recipe.tables import Reader
from deploy.versions import is_within, numbers

FILE = Path(__file__).parents[1] / "releases" / "facts.toml"


@dataclass(frozen=True)
class Fact:
    """What holds in the releases from `since` to before `until`; None: in none yet no more."""

    says: str
    since: str
    source: str
    until: str | None = None

    def holds(self, version: str) -> bool:
        """Whether it is so in the release `version`."""
        return is_within(version, self.since, self.until)


@cache
def load(file: Path = FILE) -> Mapping[str, Fact]:
    """Every fact by its key, in the file's order. Raises RecipeError."""
    reader = Reader(file)
    data = tables.load(file, "a table of facts")
    reader.refuse_unfit("", data)
    return {key: reader.read(Fact, key, reader.table(data, key)) for key in data}


def oldest() -> str:
    """The oldest release that the table speaks of."""
    return min((fact.since for fact in load().values()), key=numbers)


def holds(key: str, version: str) -> bool:
    """Whether the fact `key` holds in the release `version`. KeyError for none of that key."""
    return load()[key].holds(version)
