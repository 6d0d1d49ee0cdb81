"""What this package raises, and how it tells what others raise.

Every message is one line: the thing, what was seen, the fix.
"""


class PatchesError(Exception):
    """The command failed; nothing in the tree was changed by it unless the message says so."""


class SeriesError(PatchesError):
    """The series or one of its patch files is malformed."""


class FaultsError(PatchesError):
    """faults.toml is malformed."""


class TreeError(PatchesError):
    """ROOT is not a folder that holds a vLLM tree."""


class InterruptedApplyError(PatchesError):
    """An earlier run was killed half-way; its journal is still beside the tree's files."""


def on_one_line(error: BaseException) -> str:
    """An error that is not of this package: its type and its message."""
    return " ".join(f"{type(error).__name__}: {error}".split())
