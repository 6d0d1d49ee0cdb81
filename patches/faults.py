"""What vLLM answers wrongly with this model on these cards: faults.toml, and what a tree has of it.

The file is the one place that says which release has which fault, whether a plan is hit by it, and
whether such a plan is refused. That a patch of the series mends a fault stands there by its name;
whether a tree carries the patch is the applier's to say.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.recipe import tables
from deploy.recipe.tables import Reader, RecipeError
from deploy.versions import is_within, numbers
from patches.apply import PatchStatus
from patches.errors import FaultsError
from patches.series import Series

FILE = Path(__file__).resolve().parent / "faults.toml"

ANYTHING = "anything"
ASKS = (ANYTHING, "draft", "probabilistic", "adaptive-verification", "aiter-moe", "gfx942")
EFFECTS = ("refuse", "warn")


@dataclass(frozen=True)
class Fault:
    """One fault. `past_tokens`: only sequences of more tokens are hit; None: any length."""

    key: str
    symptom: str
    since: str
    source: str
    asks: str
    effect: str
    right: str | None = None
    patch: str | None = None
    past_tokens: int | None = None

    @property
    def refuses(self) -> bool:
        """Whether a plan that it hits may not start."""
        return self.effect == "refuse"

    def is_in(self, version: str) -> bool:
        """Whether the release `version` has it; a pre-release of the one that mends it has."""
        return is_within(version, self.since, self.right)

    def hits(self, asked: Collection[str], longest: int | None) -> bool:
        """Whether a plan is hit: what it asks for, of ASKS, and its longest sequence in tokens.

        None for a length that is not known, which is taken for too long.
        """
        if self.asks != ANYTHING and self.asks not in asked:
            return False
        return self.past_tokens is None or longest is None or longest > self.past_tokens

    def told(self, longest: int | None) -> str:
        """The key, the symptom and what of the plan it hits, for a refusal."""
        if self.past_tokens is None:
            asked = "" if self.asks == ANYTHING else f" (the plan asks for {self.asks})"
            return f"{self.key}: {self.symptom}{asked}"
        length = "of unknown size" if longest is None else longest
        return (
            f"{self.key}: {self.symptom} (max-model-len is {length}, right to {self.past_tokens})"
        )

    def sentence(self) -> str:
        """The key, the symptom, and where it is right, as one line."""
        since = "in no release yet" if self.right is None else f"from vLLM {self.right} on"
        return f"{self.key}: {self.symptom}; right {since} ({self.source})"


def load(file: Path = FILE) -> tuple[Fault, ...]:
    """Read every fault, in the file's order.

    Raises `FaultsError`, one line, for a file that cannot be read, a field that is missing, unknown
    or of another kind, and a word that is not of ASKS or EFFECTS.
    """
    reader = Reader(file)
    try:
        data = tables.load(file, "a table of faults")
        reader.refuse_unfit("", data)
        found = [reader.read(Fault, k, {"key": k, **reader.table(data, k)}) for k in data]
        for fault in found:
            for name, words in (("asks", ASKS), ("effect", EFFECTS)):
                if (seen := getattr(fault, name)) not in words:
                    fix = f"give one of {', '.join(words)}"
                    raise reader.refusal(f"{fault.key}.{name}", seen, fix)
    except RecipeError as error:
        raise FaultsError(str(error)) from error
    return tuple(found)


def of(version: str, faults: Iterable[Fault] | None = None) -> tuple[Fault, ...]:
    """The faults of a release as it was released, without any patch."""
    return tuple(f for f in (load() if faults is None else faults) if f.is_in(version))


def with_series(version: str, series: Series) -> tuple[Fault, ...]:
    """The faults of a release with the series applied, where that fits it."""
    mends = version in fitting(series)
    return tuple(fault for fault in of(version) if not (mends and fault.patch))


def left(
    version: str | None, statuses: Iterable[PatchStatus], faults: Iterable[Fault] | None = None
) -> tuple[Fault, ...]:
    """The faults that a tree has, by what the applier found in its files.

    A fault with a patch among `statuses` is left unless every file of the patch has it, applied or
    upstream, whatever the release's number: what is not seen to be right is taken for wrong. One
    without is left if the release has it, or does not say which it is.
    """
    carried: dict[str, bool] = {}
    for status in statuses:
        carried[status.patch] = carried.get(status.patch, True) and status.carried
    return tuple(
        fault
        for fault in (load() if faults is None else faults)
        if not carried.get(fault.patch or "", version is not None and not fault.is_in(version))
    )


def fitting(series: Series) -> tuple[str, ...]:
    """The releases that every patch of the series fits, oldest first."""
    releases = [
        {release for pair in target.pairs for release in pair.releases}
        for patch in series.patches
        for target in patch.targets
    ]
    return tuple(sorted(set.intersection(*releases), key=numbers))


def way_out(
    series: Series, faults: Iterable[Fault] | None = None, asked: Collection[str] = ()
) -> str:
    """Where none of the faults is: the releases the series fits, and the first without any.

    A fault that is right in no release yet leaves the latter to plans that do not ask for it, of
    which one is not that has `asked` for it.
    """
    given = tuple(load() if faults is None else faults)
    patched = fitting(series)
    known = [fault.right for fault in given if fault.right is not None]
    never = {fault.asks for fault in given if fault.right is None}
    ways = [f"vLLM {' or '.join(patched)} with the series"] if patched else []
    if known and not never & {ANYTHING, *asked}:
        but = f", but for {' or '.join(sorted(never))}" if never else ""
        ways.append(f"vLLM {max(known, key=numbers)} or later{but}")
    return ", or ".join(ways) or "another release: none is known to be right"
