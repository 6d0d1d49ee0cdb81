"""What belongs to one vLLM release: the folder deploy/releases/VERSION, as frozen values.

`release.toml` has the image and what it holds, `vocabulary.json` the names the release knows,
`requirements.lock` the packages of its CPU rehearsal, `metrics.txt` what a server of it once
answered on /metrics, `recipe.toml`, if there is one, what profiles differ in on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from deploy.recipe import tables, vocabulary
from deploy.recipe.tables import Reader, RecipeError
from deploy.recipe.vocabulary import Vocabulary
from deploy.versions import numbers

FOLDER = Path(__file__).parents[1] / "releases"
#: What stands for a version that this project has not seen.
UNKNOWN = "unknown"
#: Of the environment: the release that is taken instead of the recipe's.
VARIABLE = "RELEASE"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Rehearsal:
    """What the release's CPU rehearsal takes beside its lock: torch by version."""

    torch: str


@dataclass(frozen=True)
class Release:
    """One vLLM release: its image for ROCm by tag and digest, and what that holds.

    A version is UNKNOWN where this project has not seen it. `base` is the release that has what the
    folder leaves out, `rehearsal` None where no vLLM for the CPU is to be had.
    """

    folder: Path
    commit: str
    image: str
    digest: str
    rocm: str
    torch: str
    triton: str
    aiter: str
    rehearsal: Rehearsal | None = None
    base: str | None = None

    @property
    def version(self) -> str:
        """The release's number, which is its folder's name."""
        return self.folder.name

    @property
    def pinned_image(self) -> str | None:
        """Tag and digest together, as docker pulls it; None where the digest is unknown."""
        return None if self.digest == UNKNOWN else f"{self.image}@{self.digest}"

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The names that the release knows."""
        return vocabulary.load(*(folder / vocabulary.NAME for folder in self.folders))

    @property
    def folders(self) -> tuple[Path, ...]:
        """Its folder, after those that it is based on."""
        if self.base is None:
            return (self.folder,)
        return (*load(self.base, self.folder.parent).folders, self.folder)

    @property
    def lock(self) -> Path:
        """The packages of its CPU rehearsal."""
        return self.folder / "requirements.lock"

    @property
    def recipe(self) -> Path:
        """What is laid over the recipe for it; not there where nothing differs. No base's counts:
        what an older release needs, a later one may not."""
        return self.folder / "recipe.toml"

    @property
    def metrics(self) -> Path:
        """A sample of /metrics."""
        return self.folder / "metrics.txt"


def names(folder: Path = FOLDER) -> tuple[str, ...]:
    """The releases there are, oldest first."""
    found = (path.parent.name for path in folder.glob("*/release.toml"))
    return tuple(sorted(found, key=numbers))


@cache
def load(version: str, folder: Path = FOLDER, setting: str = "release") -> Release:
    """Read and check one release; `setting` is what named it. Raises RecipeError."""
    known = names(folder)
    if version not in known:
        fix = f"it is one of {', '.join(known)}; deploy/releases/README.md tells how to add one"
        raise RecipeError(f"{setting}: got {version!r}; {fix}")
    file = folder / version / "release.toml"
    reader = Reader(file)
    data = tables.load(file, "a release")
    reader.refuse_unfit("", data)
    given: dict[str, Any] = {**data, "folder": file.parent}
    if "rehearsal" in data:
        given["rehearsal"] = reader.read(Rehearsal, "rehearsal", reader.table(data, "rehearsal"))
    made = reader.read(Release, "", given)
    if made.digest != UNKNOWN and not _DIGEST.fullmatch(made.digest):
        fix = f"give sha256: and 64 hex digits, or {UNKNOWN}"
        raise reader.refusal("digest", made.digest, fix)
    if made.base and (made.base not in known or known.index(made.base) >= known.index(version)):
        older = ", ".join(known[: known.index(version)]) or "none is there"
        raise reader.refusal("base", made.base, f"name an older release: {older}")
    seen = made.vocabulary.vllm_version
    if seen != version:
        fix = f"this folder is for {version}: write it again"
        raise Reader(file.parent / vocabulary.NAME).refusal("vllm", seen, fix)
    return made
