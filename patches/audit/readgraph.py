"""What one speculator class reads: the reads, the frames they are in and the calls between them."""

from dataclasses import dataclass, field
from enum import Enum

from patches.audit.callshape import CallShape
from patches.audit.classes import ClassModel
from patches.audit.conditions import AttributePath, Condition, Role
from patches.audit.values import Value

CALL = "forward"
"""What calling a model reads: torch.nn.Module.__call__ runs ``forward``."""


class Kind(Enum):
    """What happens at a read when the attribute is missing."""

    REQUIRED = "required"  # AttributeError
    OPTIONAL = "optional"  # hasattr, getattr with a default, try/except AttributeError
    STORED = "stored"  # shared code sets it: no read, and a provision from then on
    UNRESOLVED = "unresolved"  # getattr with a name that cannot be told


@dataclass(frozen=True)
class Read:
    """One place where shared code reads an attribute of a model."""

    role: Role
    path: AttributePath
    kind: Kind
    where: str
    reader: str
    conditions: tuple[Condition, ...]
    origin: tuple[str, ...] = field(compare=False)
    call: CallShape | None = None


@dataclass(frozen=True)
class Validation:
    """A raise that runs when a model lacks an attribute: shared code refuses it with a message."""

    role: Role
    path: AttributePath
    where: str
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class CallEdge:
    """A call from one frame to another. `soft`: the call stands in a try that catches the read."""

    frame: "Frame"
    conditions: tuple[Condition, ...]
    where: str
    soft: bool


@dataclass(eq=False)
class Frame:
    """What one function reads, with one binding of its arguments."""

    name: str
    reads: list[Read] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    calls: list[CallEdge] = field(default_factory=list)
    returns: "Value" = None


@dataclass
class ReadGraph:
    """Everything one speculator class reads. The roots are the methods the runner may call."""

    speculator: ClassModel
    roots: list[Frame]
    flags: dict[str, list[Condition]]
    """What the class assigns to its own attributes, as truth values."""
    flag_sources: dict[str, set[str]]
    """The constant strings and attribute names in what it assigns: config options, mostly."""
    probes: dict[str, list[Condition]]
    """What an attribute of the class was cleared for lacking: ``try: model.x() except: ...``."""
