"""A gap: what one platform lacks and another provides, and how bad that is."""

from dataclasses import dataclass, field
from enum import Enum


class Severity(Enum):
    """How bad a gap is, worst first."""

    CRASH = "crash"
    CRASH_CONDITIONAL = "crash-conditional"
    WRONG_ANSWERS = "wrong-answers"
    NO_CLASS = "no-class"
    STUB = "stub"
    NOT_COMPARED = "not-compared"
    FEATURE_MISSING = "feature-missing"
    PARTLY_PROVIDED = "partly-provided"
    UNRESOLVED = "unresolved"

    @property
    def is_crash(self) -> bool:
        """Whether an AttributeError or TypeError follows when the read is reached."""
        return self in (Severity.CRASH, Severity.CRASH_CONDITIONAL)


@dataclass(frozen=True)
class Gap:
    """One finding. `where` is the reading line and `class_where` the class, as ``path:line``."""

    severity: Severity
    platform: str
    arch: str
    class_name: str
    attribute: str
    reader: str
    where: str
    condition: str
    providers: tuple[str, ...]
    note: str
    class_where: str
    explanation: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def key(self) -> str:
        """What stays the same from release to release: no line numbers."""
        grade = "crash" if self.severity.is_crash else self.severity.value
        return "|".join((grade, self.platform, self.arch, self.attribute, self.reader))
