"""The patch series as data: what each patch changes, from which hash to which, and until when.

A patch states all of this in its own DEP-3 header, so no other file repeats it. Beyond the fields
of DEP-3 (https://dep-team.pages.debian.net/deps/dep3/) a header holds, once per changed file:

    X-Target: vllm/path/of/file.py
    X-Sha256: BEFORE -> AFTER (releases whose file has the hash BEFORE)
    X-Upstream-Probe: KIND ARGUMENT

`X-Sha256` may stand several times under one target, since one patch may fit several releases.
"""

import ast
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from patches import unified
from patches.errors import SeriesError

FOLDER = Path(__file__).resolve().parent
SERIES_FILE = "series"

_REQUIRED = ("Description", "Origin", "Last-Update")
_OPTIONAL = ("Bug", "Forwarded", "Applied-Upstream", "Reviewed-by")
_TARGET_FIELDS = ("X-Target", "X-Sha256", "X-Upstream-Probe")
_KNOWN = (*_REQUIRED, *_OPTIONAL, *_TARGET_FIELDS)
_SHA256 = r"[0-9a-f]{64}"
_PAIR = re.compile(rf"({_SHA256}) -> ({_SHA256}) \(([^()]+)\)")
_APPLIED_UPSTREAM = re.compile(r"(\d+(?:\.\d+)+), (https://\S+)")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class HashPair:
    """sha256 of a target before and after the patch, and the releases that ship `before`."""

    before: str
    after: str
    releases: tuple[str, ...]


@dataclass(frozen=True)
class Probe:
    """A question to a file's text that is true once upstream carries the change.

    Kinds: ``class-attribute CLASS.NAME`` (the class body assigns NAME) and ``text STRING`` (the
    file contains it).
    """

    kind: str
    argument: str

    def holds(self, content: bytes) -> bool:
        """Whether `content` carries the change; False for text that is not Python."""
        if self.kind == "text":
            return self.argument.encode() in content
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):
            return False
        return _assigns_class_attribute(tree, *self.argument.rsplit(".", 1))

    def __str__(self) -> str:
        return f"{self.kind} {self.argument}"


@dataclass(frozen=True)
class Target:
    """One file a patch changes. `path` is relative to the folder that holds ``vllm/``."""

    path: str
    pairs: tuple[HashPair, ...]
    probe: Probe | None
    diff: unified.FileDiff

    def pair_from(self, sha256: str) -> HashPair | None:
        """The pair whose before-hash is `sha256`."""
        return next((pair for pair in self.pairs if pair.before == sha256), None)

    def pair_to(self, sha256: str) -> HashPair | None:
        """The pair whose after-hash is `sha256`."""
        return next((pair for pair in self.pairs if pair.after == sha256), None)


@dataclass(frozen=True)
class Patch:
    """One patch file. `upstream_since` is the first vLLM release that carries the change."""

    name: str
    sha256: str
    description: str
    origin: str
    last_update: str
    upstream_since: str | None
    upstream_url: str | None
    targets: tuple[Target, ...]

    @property
    def remove_when(self) -> str:
        """When to drop the patch, as a phrase."""
        if self.upstream_since is None:
            return "upstream carries an equivalent (none known)"
        return f"the pin reaches vLLM >= {self.upstream_since}"


@dataclass(frozen=True)
class Series:
    """The patches of one folder, in the order they apply."""

    folder: Path
    patches: tuple[Patch, ...]

    @property
    def sha256(self) -> str:
        """One hash over the names and contents of all patches, for provenance."""
        lines = "".join(f"{patch.sha256}  {patch.name}\n" for patch in self.patches)
        return hashlib.sha256(lines.encode()).hexdigest()


def load(folder: Path | None = None) -> Series:
    """Read and validate the series of `folder` (default: the one this package ships).

    Raises `SeriesError`, one line, if a listed patch is absent or malformed, a patch file is not
    listed, a patch changes a file it does not declare, or the hashes of two patches contradict.
    """
    folder = folder or FOLDER
    names = _read_names(folder)
    strays = sorted({path.name for path in folder.glob("*.patch")} - set(names))
    if strays:
        raise SeriesError(
            f"{folder / strays[0]}: not listed in {SERIES_FILE}: add its name or delete it"
        )
    patches = tuple(_read_patch(folder / name) for name in names)
    _check_chains(folder, patches)
    return Series(folder, patches)


def _read_names(folder: Path) -> tuple[str, ...]:
    path = folder / SERIES_FILE
    names: list[str] = []
    for number, line in enumerate(_read(path).decode("utf-8", "replace").splitlines(), 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        if name in names:
            raise SeriesError(f"{path}: line {number}: {name} is listed twice")
        if "/" in name or not name.endswith(".patch"):
            raise SeriesError(f"{path}: line {number}: {name!r} is not the name of a .patch file")
        if not (folder / name).is_file():
            raise SeriesError(f"{path}: line {number}: {name} does not exist in {folder}")
        names.append(name)
    if not names:
        raise SeriesError(f"{path}: lists no patch")
    return tuple(names)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SeriesError(f"{path}: cannot be read: {error.strerror}") from error


def _read_patch(path: Path) -> Patch:
    content = _read(path)
    try:
        return _parse_patch(path.name, content)
    except (_HeaderError, unified.DiffError) as error:
        raise SeriesError(f"{path}: {error}") from error


class _HeaderError(ValueError):
    """A header field is wrong; the message lacks the file's name."""


def _parse_patch(name: str, content: bytes) -> Patch:
    header, separator, body = content.partition(b"\n---\n")
    if not separator:
        raise _HeaderError("no line '---' ends the header")
    fields = _parse_fields(_decode(header))
    plain = dict(fields.plain)
    for required in _REQUIRED:
        if required not in plain:
            raise _HeaderError(f"the field {required} is missing")
    if not _DATE.fullmatch(plain["Last-Update"]):
        raise _HeaderError(f"Last-Update: {plain['Last-Update']!r} is not a date YYYY-MM-DD")
    since, url = _parse_applied_upstream(plain.get("Applied-Upstream"))
    diffs = {diff.path: diff for diff in unified.parse(body)}
    return Patch(
        name=name,
        sha256=hashlib.sha256(content).hexdigest(),
        description=plain["Description"],
        origin=plain["Origin"],
        last_update=plain["Last-Update"],
        upstream_since=since,
        upstream_url=url,
        targets=_targets(fields.targets, diffs, has_upstream=since is not None),
    )


def _decode(header: bytes) -> str:
    try:
        return header.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _HeaderError(f"the header is not UTF-8 at byte {error.start}") from error


@dataclass(frozen=True)
class _TargetFields:
    path: str
    pairs: list[HashPair]
    probes: list[Probe]


@dataclass(frozen=True)
class _Fields:
    plain: dict[str, str]
    targets: list[_TargetFields]


def _parse_fields(header: str) -> _Fields:
    fields = _Fields({}, [])
    for name, value in _unfold(header):
        if name not in _KNOWN:
            raise _HeaderError(f"{name}: unknown field; known: {', '.join(_KNOWN)}")
        if name == "X-Target":
            fields.targets.append(_TargetFields(_target_path(value), [], []))
        elif name in _TARGET_FIELDS:
            if not fields.targets:
                raise _HeaderError(f"{name} stands before the first X-Target")
            _add_target_field(fields.targets[-1], name, value)
        elif name in fields.plain:
            raise _HeaderError(f"{name}: given twice")
        else:
            fields.plain[name] = value
    return fields


def _unfold(header: str) -> list[tuple[str, str]]:
    """Join continuation lines (they start with a space; ' .' is an empty line)."""
    fields: list[tuple[str, str]] = []
    for line in header.splitlines():
        if line.startswith(" ") and fields:
            name, value = fields[-1]
            text = line[1:]
            fields[-1] = (name, value + "\n" + ("" if text == "." else text))
            continue
        name, colon, value = line.partition(":")
        if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name):
            raise _HeaderError(f"{line!r} is not a header field")
        fields.append((name, value.strip()))
    return fields


def _target_path(value: str) -> str:
    path = PurePosixPath(value)
    if path.parts[:1] != ("vllm",) or ".." in path.parts or str(path) != value:
        raise _HeaderError(f"X-Target: {value!r} is not a plain path below vllm/")
    return value


def _add_target_field(target: _TargetFields, name: str, value: str) -> None:
    if name == "X-Upstream-Probe":
        if target.probes:
            raise _HeaderError(f"X-Upstream-Probe: given twice for {target.path}")
        target.probes.append(_parse_probe(value))
        return
    match = _PAIR.fullmatch(value)
    if not match:
        raise _HeaderError(
            f"X-Sha256: {value!r} is not 'BEFORE -> AFTER (RELEASES)', two sha256 of 64 hex digits"
        )
    before, after, releases = match.groups()
    if before == after:
        raise _HeaderError(f"X-Sha256: before and after are the same hash {before}")
    target.pairs.append(HashPair(before, after, tuple(re.split(r",\s*", releases))))


def _parse_probe(value: str) -> Probe:
    kind, _, argument = value.partition(" ")
    forms = {"class-attribute": r"\w+\.\w+", "text": r".+"}
    if kind not in forms or not re.fullmatch(forms[kind], argument):
        raise _HeaderError(
            f"X-Upstream-Probe: {value!r} is neither 'class-attribute CLASS.NAME' nor 'text STRING'"
        )
    return Probe(kind, argument)


def _parse_applied_upstream(value: str | None) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    match = _APPLIED_UPSTREAM.fullmatch(value)
    if not match:
        raise _HeaderError(f"Applied-Upstream: {value!r} is not 'VERSION, https://...'")
    return match[1], match[2]


def _targets(
    declared: list[_TargetFields], diffs: dict[str, unified.FileDiff], *, has_upstream: bool
) -> tuple[Target, ...]:
    paths = [fields.path for fields in declared]
    for path in paths:
        if paths.count(path) > 1:
            raise _HeaderError(f"X-Target: {path} is declared twice")
        if path not in diffs:
            raise _HeaderError(f"X-Target: {path} is declared but the patch does not change it")
    for path in diffs:
        if path not in paths:
            raise _HeaderError(f"the patch changes {path}, which no X-Target declares")
    return tuple(_target(fields, diffs[fields.path], has_upstream) for fields in declared)


def _target(fields: _TargetFields, diff: unified.FileDiff, has_upstream: bool) -> Target:
    if not fields.pairs:
        raise _HeaderError(f"X-Target: {fields.path} has no X-Sha256")
    if has_upstream and not fields.probes:
        raise _HeaderError(f"X-Target: {fields.path} has no X-Upstream-Probe")
    for side in ("before", "after"):
        hashes = [getattr(pair, side) for pair in fields.pairs]
        if len(set(hashes)) != len(hashes):
            raise _HeaderError(f"X-Sha256: {fields.path} has the same {side}-hash twice")
    probe = fields.probes[0] if fields.probes else None
    return Target(fields.path, tuple(fields.pairs), probe, diff)


def _check_chains(folder: Path, patches: tuple[Patch, ...]) -> None:
    """Refuse hashes that lead back: a file's state must say which patches it carries."""
    seen: dict[str, set[str]] = {}
    for patch in patches:
        for target in patch.targets:
            earlier = seen.setdefault(target.path, set())
            before = {pair.before for pair in target.pairs}
            for pair in target.pairs:
                if pair.after in earlier | before:
                    raise SeriesError(
                        f"{folder / patch.name}: X-Sha256: {pair.after} is the hash after this"
                        f" patch and also a hash before it of {target.path}"
                    )
            earlier |= before | {pair.after for pair in target.pairs}


def _assigns_class_attribute(tree: ast.Module, class_name: str, attribute: str) -> bool:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.name != class_name:
            continue
        for statement in node.body:
            if isinstance(statement, ast.Assign):
                names: list[ast.expr] = statement.targets
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                names = [statement.target]
            else:
                continue
            if any(isinstance(name, ast.Name) and name.id == attribute for name in names):
                return True
    return False
