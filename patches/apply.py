"""Carrying the series on a vLLM tree: judge every file by its hash, then change all or nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.versions import is_at_least
from patches import transaction
from patches.errors import PatchesError
from patches.patch import Patch, Target
from patches.series import Series
from patches.transaction import Change, Step, digest
from patches.tree import Tree, find, read_source
from patches.unified import DiffError

State = Literal["applied", "pending", "upstream", "drifted", "missing"]


@dataclass(frozen=True)
class PatchStatus:
    """What one file of a tree says about one patch.

    applied: the file has the patch. pending: it fits and is not applied. upstream: the tree
    provides the change by itself, the patch can be dropped. drifted: the file is none of the known
    ones. missing: there is no such file. `seen` and `expected` are sha256; `expected` are those
    the patch could start from.
    """

    patch: str
    target: str
    state: State
    detail: str
    seen: str | None
    expected: tuple[str, ...]

    @property
    def carried(self) -> bool:
        """Whether the tree behaves as the patch wants, by the patch or by upstream."""
        return self.state in ("applied", "upstream")

    @property
    def is_bad(self) -> bool:
        """Whether the patch can neither be found in the file nor applied to it."""
        return self.state in ("drifted", "missing")


@dataclass(frozen=True)
class Outcome:
    """What `apply` did: the state it found, and the files it changed with their hash after."""

    tree: Tree
    found: tuple[PatchStatus, ...]
    changed: tuple[tuple[PatchStatus, str], ...]
    rolled_back: int


class RefusedError(PatchesError):
    """The series does not fit the tree. `statuses` are all findings, good and bad."""

    def __init__(self, statuses: Sequence[PatchStatus]) -> None:
        self.statuses = tuple(statuses)
        bad = [
            f"{status.state}: {status.patch}: {status.detail}"
            for status in statuses
            if status.is_bad
        ]
        super().__init__(f"nothing was changed: {'; '.join(bad)}")


def status(root: Path, series: Series) -> list[PatchStatus]:
    """Judge every file of every patch, in series order, and change nothing.

    Raises `TreeError` if `root` holds no vLLM, `InterruptedApplyError` if an earlier run was killed
    half-way and is not rolled back, `PatchesError` if a file cannot be read.
    """
    tree = find(root)
    with transaction.locked(tree.package, exclusive=False):
        transaction.refuse_interrupted(tree.package)
        return list(_Judgement(tree, series).statuses)


def apply(
    root: Path, series: Series, *, reverse: bool = False, step: Step = transaction.no_step
) -> Outcome:
    """Bring the whole series onto the tree, or with `reverse` take it off; all files or none.

    An interrupted earlier run is rolled back first. Raises `RefusedError` if any patch does not
    fit, `TreeError` if `root` holds no vLLM, `PatchesError` if the tree cannot be written; nothing
    is changed then.
    """
    tree = find(root)
    with transaction.locked(tree.package, exclusive=True):
        rolled_back = transaction.recover(tree.package)
        judgement = _Judgement(tree, series)
        if any(status.is_bad for status in judgement.statuses):
            raise RefusedError(judgement.statuses)
        edits = judgement.undone() if reverse else judgement.done()
        changes = [
            Change(tree.path(path), judgement.original[path], content)
            for path, content in edits.contents.items()
        ]
        if changes:
            transaction.replace_all(tree.package, changes, step)
    return Outcome(tree, tuple(judgement.statuses), tuple(edits.steps), rolled_back)


def contents(
    root: Path, series: Series, *, reverse: bool = False
) -> tuple[list[PatchStatus], dict[str, bytes]]:
    """What `apply` finds, and by path what it would write; nothing is written.

    Raises what `apply` raises for a tree that the series does not fit, and what `status` raises.
    """
    tree = find(root)
    with transaction.locked(tree.package, exclusive=False):
        transaction.refuse_interrupted(tree.package)
        judgement = _Judgement(tree, series)
    if any(status.is_bad for status in judgement.statuses):
        raise RefusedError(judgement.statuses)
    edits = judgement.undone() if reverse else judgement.done()
    return list(judgement.statuses), edits.contents


@dataclass(frozen=True)
class _Edits:
    """New contents by path, and the steps that led there with the hash after each."""

    contents: dict[str, bytes]
    steps: list[tuple[PatchStatus, str]]


class _Judgement:
    """The series walked over a tree in memory, each patch seeing what the ones before it leave."""

    def __init__(self, tree: Tree, series: Series) -> None:
        self._tree = tree
        self._pairs = [(patch, target) for patch in series.patches for target in patch.targets]
        self.original: dict[str, bytes] = {}
        self._after: dict[str, bytes] = {}
        self._steps: list[tuple[PatchStatus, str]] = []
        for _, target in self._pairs:
            if (content := self._read(target.path)) is not None:
                self.original[target.path] = content
        self._after.update(self.original)
        found = [self._judge(index) for index in range(len(self._pairs))]
        self.statuses = tuple(_agree(found))

    def done(self) -> _Edits:
        """The edits that apply what is pending."""
        return _Edits(_changed(self.original, self._after), self._steps)

    def undone(self) -> _Edits:
        """The edits that take off what is applied, last patch first."""
        contents = dict(self.original)
        steps: list[tuple[PatchStatus, str]] = []
        for (patch, target), found in reversed(list(zip(self._pairs, self.statuses, strict=True))):
            pair = target.pair_to(digest(contents.get(target.path, b"")))
            if found.state == "applied" and pair is not None:
                content = _edit(patch, target, contents[target.path], pair.before, reverse=True)
                contents[target.path] = content
                steps.append((found, pair.before))
        return _Edits(_changed(self.original, contents), steps)

    def _read(self, path: str) -> bytes | None:
        try:
            return read_source(self._tree.path(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise PatchesError(f"{error.filename}: cannot be read: {error.strerror}") from error

    def _judge(self, index: int) -> PatchStatus:
        patch, target = self._pairs[index]
        content = self._after.get(target.path)
        expected = tuple(pair.before for pair in target.pairs)
        if content is None:
            return self._say(patch, target, "missing", "does not exist", None, expected)
        seen = digest(content)
        upstream = target.probe is not None and target.probe.holds(content)
        if upstream and self._is_in_release(patch):
            detail = f"vLLM {self._tree.version} has it: drop this patch"
            return self._say(patch, target, "upstream", detail, seen, expected)
        if seen in self._hashes_with(index):
            return self._say(patch, target, "applied", "carries the patch", seen, expected)
        if (pair := target.pair_from(seen)) is not None:
            found = self._say(patch, target, "pending", "not applied yet", seen, expected)
            self._after[target.path] = _edit(patch, target, content, pair.after, reverse=False)
            self._steps.append((found, pair.after))
            return found
        if upstream:
            detail = "provides the change by itself: drop this patch"
            return self._say(patch, target, "upstream", detail, seen, expected)
        detail = f"sha256 {seen}, expected {' or '.join(expected)}"
        return self._say(patch, target, "drifted", detail, seen, expected)

    def _is_in_release(self, patch: Patch) -> bool:
        version, since = self._tree.version, patch.upstream_since
        return version is not None and since is not None and is_at_least(version, since)

    def _hashes_with(self, index: int) -> set[str]:
        """The hashes that say the file has this patch: its own, and those later patches lead to."""
        _, own = self._pairs[index]
        hashes = {pair.after for pair in own.pairs}
        for _, later in self._pairs[index + 1 :]:
            if later.path == own.path:
                hashes |= {pair.after for pair in later.pairs if pair.before in hashes}
        return hashes

    def _say(
        self,
        patch: Patch,
        target: Target,
        state: State,
        detail: str,
        seen: str | None,
        expected: tuple[str, ...],
    ) -> PatchStatus:
        where = f"{target.path}: {detail}"
        if state in ("drifted", "missing"):
            releases = ", ".join(release for pair in target.pairs for release in pair.releases)
            version = "" if self._tree.version is None else f" of vLLM {self._tree.version}"
            where = f"{target.path}{version}: {detail}: the patch fits vLLM {releases}"
        return PatchStatus(patch.name, target.path, state, where, seen, expected)


def _changed(before: dict[str, bytes], after: dict[str, bytes]) -> dict[str, bytes]:
    return {path: content for path, content in after.items() if content != before[path]}


def _edit(patch: Patch, target: Target, content: bytes, wanted: str, *, reverse: bool) -> bytes:
    """Apply one file's hunks, and prove the result: the declared hash, and code that compiles."""
    try:
        result = target.diff.apply(content, reverse=reverse)
    except DiffError as error:
        raise PatchesError(f"{patch.name}: {error}, although X-Sha256 says so") from error
    if (seen := digest(result)) != wanted:
        raise PatchesError(
            f"{patch.name}: {target.path}: the result has sha256 {seen}, but X-Sha256 says {wanted}"
        )
    if target.path.endswith(".py"):
        try:
            compile(result, target.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise PatchesError(f"{patch.name}: {target.path}: does not compile: {error}") from error
    return result


def _agree(statuses: list[PatchStatus]) -> list[PatchStatus]:
    """Turn a patch that is upstream in only some of its files into a drifted one."""
    split = {
        found.patch
        for found in statuses
        if found.state == "upstream"
        and any(other.patch == found.patch and other.state == "pending" for other in statuses)
    }
    return [_half_upstream(found) if found.patch in split else found for found in statuses]


def _half_upstream(found: PatchStatus) -> PatchStatus:
    detail = f"{found.detail}; upstream has the patch in some of its files only: refresh it"
    return PatchStatus(found.patch, found.target, "drifted", detail, found.seen, found.expected)
