"""The header of a patch, read into data.

It is a DEP-3 header (https://dep-team.pages.debian.net/deps/dep3/) that holds besides, once per
changed file:

    X-Target: vllm/path/of/file.py
    X-Sha256: BEFORE -> AFTER (releases whose file has the hash BEFORE)
    X-Upstream-Probe: KIND ARGUMENT

`X-Sha256` may stand several times under one target, since one patch may fit several releases.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from patches import unified
from patches.patch import HashPair, Patch, Probe, Target

_REQUIRED = ("Description", "Origin", "Last-Update")
_OPTIONAL = ("Bug", "Forwarded", "Applied-Upstream", "Reviewed-by")
_TARGET_FIELDS = ("X-Target", "X-Sha256", "X-Upstream-Probe")
_KNOWN = (*_REQUIRED, *_OPTIONAL, *_TARGET_FIELDS)
_SHA256 = r"[0-9a-f]{64}"
_PAIR = re.compile(rf"({_SHA256}) -> ({_SHA256}) \(([^()]+)\)")
_APPLIED_UPSTREAM = re.compile(r"(\d+(?:\.\d+)+), (https://\S+)")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class HeaderError(ValueError):
    """A header field is wrong; the message lacks the file's name."""


def parse_patch(name: str, content: bytes) -> Patch:
    """A patch file's header and its changes. Raises HeaderError."""
    header, separator, body = content.partition(b"\n---\n")
    if not separator:
        raise HeaderError("no line '---' ends the header")
    fields = _parse_fields(_decode(header))
    plain = dict(fields.plain)
    for required in _REQUIRED:
        if required not in plain:
            raise HeaderError(f"the field {required} is missing")
    if not _DATE.fullmatch(plain["Last-Update"]):
        raise HeaderError(f"Last-Update: {plain['Last-Update']!r} is not a date YYYY-MM-DD")
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
        raise HeaderError(f"the header is not UTF-8 at byte {error.start}") from error


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
            raise HeaderError(f"{name}: unknown field; known: {', '.join(_KNOWN)}")
        if name == "X-Target":
            fields.targets.append(_TargetFields(_target_path(value), [], []))
        elif name in _TARGET_FIELDS:
            if not fields.targets:
                raise HeaderError(f"{name} stands before the first X-Target")
            _add_target_field(fields.targets[-1], name, value)
        elif name in fields.plain:
            raise HeaderError(f"{name}: given twice")
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
            raise HeaderError(f"{line!r} is not a header field")
        fields.append((name, value.strip()))
    return fields


def _target_path(value: str) -> str:
    path = PurePosixPath(value)
    if path.parts[:1] != ("vllm",) or ".." in path.parts or str(path) != value:
        raise HeaderError(f"X-Target: {value!r} is not a plain path below vllm/")
    return value


def _add_target_field(target: _TargetFields, name: str, value: str) -> None:
    if name == "X-Upstream-Probe":
        if target.probes:
            raise HeaderError(f"X-Upstream-Probe: given twice for {target.path}")
        target.probes.append(_parse_probe(value))
        return
    match = _PAIR.fullmatch(value)
    if not match:
        raise HeaderError(
            f"X-Sha256: {value!r} is not 'BEFORE -> AFTER (RELEASES)', two sha256 of 64 hex digits"
        )
    before, after, releases = match.groups()
    if before == after:
        raise HeaderError(f"X-Sha256: before and after are the same hash {before}")
    target.pairs.append(HashPair(before, after, tuple(re.split(r",\s*", releases))))


def _parse_probe(value: str) -> Probe:
    kind, _, argument = value.partition(" ")
    forms = {"class-attribute": r"\w+\.\w+", "text": r".+"}
    if kind not in forms or not re.fullmatch(forms[kind], argument):
        raise HeaderError(
            f"X-Upstream-Probe: {value!r} is neither 'class-attribute CLASS.NAME' nor 'text STRING'"
        )
    return Probe(kind, argument)


def _parse_applied_upstream(value: str | None) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    match = _APPLIED_UPSTREAM.fullmatch(value)
    if not match:
        raise HeaderError(f"Applied-Upstream: {value!r} is not 'VERSION, https://...'")
    return match[1], match[2]


def _targets(
    declared: list[_TargetFields], diffs: dict[str, unified.FileDiff], *, has_upstream: bool
) -> tuple[Target, ...]:
    paths = [fields.path for fields in declared]
    for path in paths:
        if paths.count(path) > 1:
            raise HeaderError(f"X-Target: {path} is declared twice")
        if path not in diffs:
            raise HeaderError(f"X-Target: {path} is declared but the patch does not change it")
    for path in diffs:
        if path not in paths:
            raise HeaderError(f"the patch changes {path}, which no X-Target declares")
    return tuple(_target(fields, diffs[fields.path], has_upstream) for fields in declared)


def _target(fields: _TargetFields, diff: unified.FileDiff, has_upstream: bool) -> Target:
    if not fields.pairs:
        raise HeaderError(f"X-Target: {fields.path} has no X-Sha256")
    if has_upstream and not fields.probes:
        raise HeaderError(f"X-Target: {fields.path} has no X-Upstream-Probe")
    for side in ("before", "after"):
        hashes = [getattr(pair, side) for pair in fields.pairs]
        if len(set(hashes)) != len(hashes):
            raise HeaderError(f"X-Sha256: {fields.path} has the same {side}-hash twice")
    probe = fields.probes[0] if fields.probes else None
    return Target(fields.path, tuple(fields.pairs), probe, diff)
