"""Known gaps: those of an earlier report in JSON, so that only new ones fail."""

import json
from pathlib import Path

from patches.audit.tree import MisuseError


def load(path: Path) -> frozenset[str]:
    """Return the keys of the gaps in a report. Raises `MisuseError` for a file that is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return frozenset(str(gap["key"]) for tree in data["trees"] for gap in tree["gaps"])
    except OSError as error:
        raise MisuseError(f"--baseline {path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        fix = "make one with --format json"
        raise MisuseError(f"--baseline {path}: not a report of this audit: {fix}") from error
