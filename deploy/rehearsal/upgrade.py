"""The way from one release to another, rehearsed: the same requests to both, one after the other.

Each release runs in its own environment; what it leaves (smoke report, metrics, log) is compared.
The machine is shared and kernels are interpreted: acceptance and answers are judged, speed is told.
Containers are `rolling`'s.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy import environment, recipe
from deploy.recipe import release
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.supervisor import METRICS, ROOT
from healthcheck.client.exposition import NEEDED
from healthcheck.explain import signatures
from healthcheck.explain.lines import parse
from healthcheck.smoke import compare, results
from healthcheck.smoke.compare import Difference, Way
from healthcheck.smoke.results import Report, ReportError

OUT = ROOT / "build" / "upgrade"
REPORT = "report.json"

_LOUD = ("WARNING", "ERROR", "CRITICAL")
# What differs from run to run of one server: numbers, addresses, paths, what was asked.
_RUN = re.compile(r"0x[0-9a-f]+|/[\w./-]+|\d+(\.\d+)?|'[^']*'")
LONGEST = 160
"""Characters of a wording that are compared and shown."""


@dataclass(frozen=True)
class Side:
    """What a release left: its report, the names of its metrics, and the wordings of its log that
    warn, each with its level and the signature that knows it, or none."""

    report: Report
    metrics: frozenset[str]
    wordings: Mapping[str, tuple[str, str]]


def both(before: str, after: str) -> tuple[str, str]:
    """The releases to rehearse: by default the chosen one, and the newest that can be rehearsed.

    Raises RecipeError for a release that is not known, RehearsalError for one that cannot be
    rehearsed and for the same twice.
    """
    can = [name for name in release.names() if release.load(name).rehearsal]
    before, after = before or recipe.load().vllm.version, after or can[-1]
    for setting, name in (("FROM", before), ("TO", after)):
        if release.load(name, setting=setting).rehearsal is None:
            raise RehearsalError(
                f"{setting}: {name}: has no vLLM for the CPU: give one of {', '.join(can)}", 2
            )
    if before == after:
        raise RehearsalError(
            f"TO: {after}: is what is left: give another of {', '.join(can)}", exit_code=2
        )
    return before, after


def run(before: str, after: str, profile: str, out: Path, say: Callable[[str], None]) -> int:
    """Rehearse both, print what changed and the verdict: 0 nothing speaks against it, 1 something.

    Raises RehearsalError where one could not be rehearsed, SetupError where its environment cannot
    be made.
    """
    sides = [_rehearsed(name, profile, out / name, say) for name in (before, after)]
    told, code = verdict(*sides)
    print(told)
    return code


def verdict(before: Side, after: Side) -> tuple[str, int]:
    """What changed, for a person, and the exit code: 1 if anything is worse or the later release is
    not good by itself."""
    differences = differ(before, after)
    worse = [each.name for each in differences if each.way is Way.WORSE]
    if after.report.exit_code and "verdict" not in worse:
        worse.insert(0, f"its smoke test is {after.report.verdict}")
    names = f"vLLM {before.report.vllm_version} to {after.report.vllm_version}"
    end = f"hold {names}: {'; '.join(worse)}" if worse else f"roll {names}: nothing is worse here"
    return f"{compare.table(before.report, after.report, differences)}\n{end}", int(bool(worse))


def differ(before: Side, after: Side) -> list[Difference]:
    """What changed in reports, metrics and logs."""
    found = compare.compare(before.report, after.report)
    return [*found, *_metrics(before.metrics, after.metrics), *_logs(before, after)]


def read(folder: Path) -> Side:
    """What a rehearsal left in a folder. Raises RehearsalError where it left no report."""
    try:
        report = results.read(folder / REPORT)
        text = (folder / METRICS).read_text("utf-8") if (folder / METRICS).exists() else ""
        log = (folder / "server.log").read_text("utf-8", errors="replace")
    except ReportError as error:
        raise RehearsalError(f"{error}: see {folder / 'server.log'}") from error
    except OSError as error:
        raise RehearsalError(f"{error.filename}: {error.strerror}: rehearse it again") from error
    # Every sample's name: what a query or an alert is written with.
    metrics = frozenset(re.findall(r"^([a-zA-Z_:][\w:]*)[ {]", text, re.MULTILINE))
    return Side(report, metrics, wordings(log.splitlines()))


def wordings(lines: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The wordings of a log that warn, without what differs from run to run, each with its level
    and the id of the signature that knows the line, empty for none."""
    known = signatures.load()
    found: dict[str, tuple[str, str]] = {}
    for line in lines:
        said = parse(line)
        wording = _RUN.sub("…", said.text)[:LONGEST].strip()
        if said.level in _LOUD and wording and wording not in found:
            by = next((each.id for each in known if each.pattern.search(said.text)), "")
            found[wording] = (said.level, by)
    return found


def _metrics(before: frozenset[str], after: frozenset[str]) -> list[Difference]:
    if not before or not after:
        return [Difference("metrics", _had(before), _had(after), Way.WORSE, "names were not read")]
    found = []
    for name in sorted(before - after):
        needed = name in NEEDED
        why = "the health service reads it" if needed else "dashboards of yours may read it"
        found.append(Difference(f"metric {name}", "there", "gone", _way(needed), why))
    if new := sorted(after - before):
        found.append(Difference("metrics", _had(before), _had(after), Way.CHANGED, _few(new)))
    return found


def _logs(before: Side, after: Side) -> list[Difference]:
    """What the later release says and the earlier one did not. An error that nothing explains is
    worse; what is not said any more is no news."""
    return [
        Difference(
            f"log: {wording}",
            "not said",
            level,
            _way(level != "WARNING" and not by),
            f"explained by {by}" if by else "no signature explains it",
        )
        for wording, (level, by) in after.wordings.items()
        if wording not in before.wordings
    ]


def _way(is_worse: bool) -> Way:
    return Way.WORSE if is_worse else Way.CHANGED


def _had(names: frozenset[str]) -> str:
    return f"{len(names)} names"


def _few(names: Sequence[str]) -> str:
    more = f", and {len(names) - 8} more" if len(names) > 8 else ""
    return f"new: {', '.join(names[:8])}{more}"


def _rehearsed(version: str, profile: str, folder: Path, say: Callable[[str], None]) -> Side:
    """Run the smoke test of a release in its own environment, and read what it left."""
    python = environment.ensure("rehearsal", release.load(version))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT).unlink(missing_ok=True)
    say(f"rehearsing vLLM {version} (logs in {folder})")
    words = ["smoke", "--profile", profile, "--logs", str(folder), "--json", str(folder / REPORT)]
    ended = subprocess.run(
        [str(python), "-m", "deploy.rehearsal", *words],
        cwd=ROOT,
        env={**os.environ, release.VARIABLE: version},
        check=False,
    )
    if ended.returncode == 130:
        raise KeyboardInterrupt
    return read(folder)
