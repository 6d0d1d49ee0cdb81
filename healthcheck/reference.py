"""Every code that a verdict or an explained log can give, as one page: REASONS.md.

`python3 -m healthcheck.reference` writes it, `--check` only says whether it is what it would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from healthcheck.explain import signatures
from healthcheck.explain.signatures import Severity
from healthcheck.reasons import REASONS, SMOKE_REASONS, Kind, Reason
from healthcheck.symptoms import FAULTS

FILE = Path(__file__).with_name("REASONS.md")

_KINDS = {
    Kind.SERVER: "The server",
    Kind.MODEL: "What the model writes",
    Kind.SPECULATION: "Speculation",
    Kind.CONFIGURATION: "Configuration",
    Kind.UNKNOWN: "What could not be told",
    Kind.STATE: "The ordinary course of things",
}
_SEVERITIES = {
    Severity.FATAL: "a cause",
    Severity.RETRY: "a cause that may be gone at the next try",
    Severity.TIMEOUT: "something took too long",
    Severity.EXTERNAL: "somebody stopped the server",
    Severity.TRANSIENT: "ordinary, a cause if it outlasts its budget",
    Severity.WARN: "worth knowing, stops nothing",
    Severity.WRAPPER: "a consequence: the cause is on another line",
    Severity.BENIGN: "looks bad, means nothing",
}
_HEAD = """# Reason codes

For those who read a code.
Written by `python3 -m healthcheck.reference` from the tables that the service itself reads. The
first part is what a verdict says (`/readyz?verbose`, `/report`, the status page, the label `code`
of `dspark_health_reason`), and the known faults of the pinned vLLM behind it; then what only the
smoke test says, and what the explanation of a server's log says (`python3 -m healthcheck explain
LOGFILE`, `cause` in `/report`).
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *_verdict(), *_log()])


def _verdict() -> Iterator[str]:
    yield "## What a verdict says\n"
    for kind, title in _KINDS.items():
        yield f"### {title}\n"
        yield from _reasons(r for r in REASONS.values() if r.kind is kind)
    yield "## Known faults, by what one sees\n"
    yield from _table(
        ("fault", "seen", "codes", "reported", "mended by"),
        [
            (f.name, f.seen, ", ".join(f"`{c}`" for c in f.codes) or "none", f.sources, f.mend)
            for f in FAULTS
        ],
    )
    yield "## What only the smoke test and the accuracy test say\n"
    yield from _reasons(SMOKE_REASONS.values())


def _reasons(rows: Iterable[Reason]) -> Iterator[str]:
    cells = [(f"`{r.code}`", r.meaning, r.remedy) for r in rows]
    yield from _table(("code", "meaning", "what to do"), cells)


def _log() -> Iterator[str]:
    yield "## What the server's log says\n"
    shipped = signatures.load()
    for severity, title in _SEVERITIES.items():
        rows = [s for s in shipped if s.severity is severity]
        if not rows:
            continue
        yield f"### {title[0].upper()}{title[1:]}\n"
        yield from _table(
            ("code", "seen at", "what to do", "source"),
            [(f"`{s.id}`", _when(s.phase.value, s.budget_s), s.remedy, s.source) for s in rows],
        )


def _when(phase: str, budget_s: float | None) -> str:
    return phase if budget_s is None else f"{phase}, after {budget_s:g} s"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def main(argv: Sequence[str]) -> int:
    """Write or check; exit code 1 if the page is not up to date, 2 if misused."""
    if list(argv) not in ([], ["--check"]):
        print(f"reference: got {' '.join(argv)}; give --check or nothing", file=sys.stderr)
        return 2
    text = page()
    if not argv:
        FILE.write_text(text, encoding="utf-8")
        return 0
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{FILE.name}: is not what its tables say; run python3 -m healthcheck.reference")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
