"""Baseline files: gaps that are known, so that only new ones fail."""

import json
from pathlib import Path

from patches.audit.audit import Report
from patches.audit.tree import MisuseError

_SCHEMA = 1


def load(path: Path) -> frozenset[str]:
    """Return the keys of the known gaps. Raises `MisuseError` when the file is not a baseline."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MisuseError(f"--baseline {path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise MisuseError(f"--baseline {path}: not JSON: {error}") from error
    gaps = data.get("gaps") if isinstance(data, dict) else None
    if not isinstance(gaps, list) or data.get("schema") != _SCHEMA:
        raise MisuseError(
            f"--baseline {path}: not a baseline of this audit; make one with --write-baseline"
        )
    keys = [gap.get("key") if isinstance(gap, dict) else None for gap in gaps]
    if not all(isinstance(key, str) for key in keys):
        raise MisuseError(f"--baseline {path}: a gap without a key; make one with --write-baseline")
    return frozenset(str(key) for key in keys)


def write(path: Path, reports: list[Report]) -> None:
    """Write the gaps of all reports as known. Raises `MisuseError` when that is not possible."""
    gaps = {gap.key: gap for report in reports for gap in report.gaps}
    data = {
        "schema": _SCHEMA,
        "vllm": sorted({report.version or "unknown" for report in reports}),
        "gaps": [
            {"key": key, "severity": gaps[key].severity.value, "where": gaps[key].where}
            for key in sorted(gaps)
        ],
    }
    try:
        path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise MisuseError(f"--write-baseline {path}: {error.strerror}") from error
