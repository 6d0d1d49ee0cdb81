"""What belongs to one vLLM release: the folder deploy/releases/VERSION, as frozen values.

`release.toml` has the image and what it holds, `vocabulary.json` the names the release knows,
`requirements.lock` the packages of its CPU rehearsal, `metrics.txt` what a server of it once
answered on /metrics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from deploy import tables, vocabulary
from deploy.tables import Reader, RecipeError
from deploy.vocabulary import Vocabulary, nearest

FOLDER = Path(__file__).with_name("releases")
#: What stands for a version that this project has not seen.
UNKNOWN = "unknown"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Rehearsal:
    """What the release's CPU rehearsal takes beside its lock: torch by version."""

    torch: str


@dataclass(frozen=True)
class Release:
    """One vLLM release: its image for ROCm by tag and digest, and what that holds.

    A version is UNKNOWN where this project has not seen it.
    """

    folder: Path
    commit: str
    image: str
    digest: str
    rocm: str
    torch: str
    triton: str
    aiter: str
    rehearsal: Rehearsal

    @property
    def version(self) -> str:
        """The release's number, which is its folder's name."""
        return self.folder.name

    @property
    def pinned_image(self) -> str:
        """Tag and digest together, as docker pulls it."""
        return f"{self.image}@{self.digest}"

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The names that the release knows."""
        return vocabulary.load(self.folder / vocabulary.NAME)

    @property
    def lock(self) -> Path:
        """The packages of its CPU rehearsal."""
        return self.folder / "requirements.lock"

    @property
    def metrics(self) -> Path:
        """A sample of /metrics."""
        return self.folder / "metrics.txt"


def names(folder: Path = FOLDER) -> tuple[str, ...]:
    """The releases there are, oldest first."""
    found = (path.parent.name for path in folder.glob("*/release.toml"))
    return tuple(sorted(found, key=lambda name: [int(n) for n in re.findall(r"\d+", name)]))


@cache
def load(version: str, folder: Path = FOLDER) -> Release:
    """Read and check one release. Raises RecipeError."""
    known = names(folder)
    if version not in known:
        close = nearest(version, known)
        raise RecipeError(f"release: got {version!r}; it is one of {', '.join(known)}{close}")
    file = folder / version / "release.toml"
    reader = Reader(file)
    data = tables.load(file, "a release")
    reader.refuse_unfit("", data)
    rehearsal = reader.read(Rehearsal, "rehearsal", reader.table(data, "rehearsal"))
    made = reader.read(Release, "", {**data, "folder": file.parent, "rehearsal": rehearsal})
    if not _DIGEST.fullmatch(made.digest):
        raise reader.refusal("digest", made.digest, "give sha256: and 64 hex digits")
    seen = made.vocabulary.vllm_version
    if seen != version:
        fix = f"this folder is for {version}: write it again"
        raise Reader(file.parent / vocabulary.NAME).refusal("vllm", seen, fix)
    return made
