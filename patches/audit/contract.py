"""What shared code reads off a draft class, as a list to hold the running class against."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patches.audit.classes import UNKNOWN, ClassModel
from patches.audit.conditions import DRAFT
from patches.audit.gaps import GapFinder
from patches.audit.liveness import LiveRead, provides
from patches.audit.modules import ModuleIndex
from patches.audit.readgraph import Kind
from patches.audit.registry import Registry
from patches.audit.tree import MisuseError, SourceTree

_ON_CLASS = frozenset({"class attribute", "method", "property"})


@dataclass(frozen=True)
class Item:
    """One attribute. `path` is dotted, `where` the line that reads it, `condition` when it is read.

    `on_class` tells that the class itself must have it, before an instance is made: its own, or
    what no source gives. `value` is the constant that the source gives the attribute, `UNKNOWN` for
    all but JSON's own constants.
    """

    path: str
    where: str
    condition: str
    is_required: bool
    on_class: bool
    value: object = UNKNOWN

    def as_data(self) -> dict[str, Any]:
        """The item as plain data; ``value`` is left out when it is not known."""
        data = {
            "path": self.path,
            "where": self.where,
            "condition": self.condition,
            "is_required": self.is_required,
            "on_class": self.on_class,
        }
        return data if self.value is UNKNOWN else {**data, "value": self.value}


@dataclass(frozen=True)
class Contract:
    """What the class of `arch` on `platform` must have, and that class's name by the sources."""

    arch: str
    platform: str
    class_name: str
    items: tuple[Item, ...]


def contract(
    tree: SourceTree, arch: str, platform: str, speculative: Mapping[str, object] | None = None
) -> Contract:
    """Collect the contract of one draft architecture on one platform.

    Required are the attributes that a reachable line reads without a guard; `speculative` is the
    configuration that decides what is reachable, as far as it is known. Those that are read
    with a default are listed when the source gives them a constant. Raises `MisuseError` when the
    tree has no such class, or no speculator that is known to drive it.
    """
    registry = Registry(ModuleIndex(tree))
    entry = registry.drafts.get(arch)
    if entry is None:
        raise MisuseError(f"{tree.label}: its registry names no draft {arch}")
    implementation = registry.implementation(entry, platform)
    if implementation.model is None:
        raise MisuseError(f"{arch} on {platform}: {implementation.missing_because}")
    reads = GapFinder(registry, speculative).draft_reads(entry, implementation)
    if not reads:
        raise MisuseError(f"{arch}: no speculator of this tree is known to drive it")
    items = tuple(_items(implementation.model, reads))
    return Contract(arch, platform, implementation.model.qualified_name, items)


def _items(model: ClassModel, reads: list[LiveRead]) -> list[Item]:
    """One item an attribute: the required read under the fewest conditions, else an optional."""
    found: dict[str, Item] = {}
    for live in sorted(reads, key=lambda live: len(live.conditions)):
        if live.read.role != DRAFT or live.kind not in (Kind.REQUIRED, Kind.OPTIONAL):
            continue
        item = _item(model, live)
        known = found.get(item.path)
        if known is None or (item.is_required and not known.is_required):
            found[item.path] = item
    return [item for item in found.values() if item.is_required or item.value is not UNKNOWN]


def _item(model: ClassModel, live: LiveRead) -> Item:
    path = live.read.path
    on_class = len(path) == 1 and _is_on_class(model, path[0])
    return Item(
        ".".join(path),
        live.read.where,
        " and ".join(condition.text for condition in live.conditions),
        live.kind is Kind.REQUIRED,
        on_class,
        _constant(model, path[0]) if on_class else UNKNOWN,
    )


def _is_on_class(model: ClassModel, name: str) -> bool:
    provision = model.provision(name)
    if provision is None:
        return provides(model, (name,)) is False
    return provision.kind in _ON_CLASS


def _constant(model: ClassModel, name: str) -> object:
    value = model.constant(name)
    return value if value is None or isinstance(value, bool | int | float | str) else UNKNOWN
