"""Parity: what one platform's model class offers shared runner code and another's does not.

Beyond speculators the data flow of a model is too wide to follow (the runners, loaders and LoRA
code pass it everywhere), so uses are found as text: an attribute of something called a model. That
is enough to say that a feature is missing, never that something crashes.
"""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property

from patches.audit.classes import ClassModel
from patches.audit.gap import Gap, Severity
from patches.audit.registry import Entry, Registry

_SHARED_CODE = (
    "vllm/v1/worker",
    "vllm/model_executor/model_loader",
    "vllm/distributed/eplb",
    "vllm/distributed/elastic_ep",
    "vllm/lora",
)
_SPECULATOR_CODE = "vllm/v1/worker/gpu/spec_decode/"  # its reads are followed, not searched for
_INTERFACES = "vllm.model_executor.models.interfaces"
_TOO_COMMON = frozenset({"model"})  # a word of any code; the data flow follows this attribute
_USE = re.compile(
    r"""
      model (?:_cls|_class)? (?:\(\))? \. (?P<read>[a-z]\w*)
    | \b(?:get|has)attr\( \s* [\w.]*model[\w.]* \s*,\s* ["'](?P<asked>\w+)["']
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class _Use:
    """A place where shared code uses an attribute of a model."""

    is_guarded: bool
    path: str
    offset: int

    @property
    def reader(self) -> str:
        """The module the use is in, without what all have in common."""
        return self.path.removeprefix("vllm/").removesuffix(".py")


@dataclass(frozen=True)
class _Side:
    """One platform's class and what it is compared with."""

    entry: Entry
    platform: str
    model: ClassModel
    siblings: dict[str, ClassModel]


class ParityFinder:
    """Compares the classes of one architecture across platforms."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def gaps(self, entry: Entry) -> Iterator[Gap]:
        """Yield what a platform's class lacks that a sibling offers and shared code uses."""
        models: dict[str, ClassModel] = {}
        for name in self._registry.platforms_of(entry):
            model = self._registry.implementation(entry, name).model
            if model is not None and model.stub_message is None:
                models[name] = model
        for platform, model in models.items():
            if not model.opaque_because:
                siblings = {name: other for name, other in models.items() if name != platform}
                side = _Side(entry, platform, model, siblings)
                explained = yield from self._missing_interfaces(side)
                yield from self._missing_hooks(side, explained)

    def _missing_interfaces(self, side: _Side) -> Generator[Gap, None, set[str]]:
        """Yield the interface classes a sibling has; return the attribute names they explain."""
        own = {cls.key for cls in side.model.mro}
        lacking = {
            cls.key: cls
            for sibling in side.siblings.values()
            for cls in sibling.mro
            if cls.module.name.startswith(_INTERFACES) and cls.key not in own
        }
        explained: set[str] = set()
        for key, interface in sorted(lacking.items()):
            missing = [n for n in interface.public_surface() if side.model.provision(n) is None]
            explained.update(missing)
            if missing:
                holders = [n for n, s in side.siblings.items() if key in {c.key for c in s.mro}]
                use = next((use for name in missing if (use := self._first_use(name))), None)
                note = f"the interface of {', '.join(missing[:3])}"
                name = f"(base) {interface.name}"
                yield self._gap(side, name, use, interface, tuple(holders), note)
        return explained

    def _missing_hooks(self, side: _Side, explained: set[str]) -> Iterator[Gap]:
        """Yield what a sibling's class offers itself, unless an interface explains it."""
        holders: dict[str, list[str]] = {}
        for name, sibling in side.siblings.items():
            for attr in sibling.public_surface():
                holders.setdefault(attr, []).append(name)
        for attr in sorted(holders.keys() - explained - _TOO_COMMON):
            use = self._first_use(attr)
            if use is None or side.model.provision(attr) is not None:
                continue
            provider = side.siblings[holders[attr][0]]
            provision = provider.provision(attr)
            note = f"{provision.kind} of {provision.owner}" if provision else ""
            yield self._gap(side, attr, use, provider, tuple(holders[attr]), note)

    def _gap(
        self,
        side: _Side,
        attribute: str,
        use: _Use | None,
        provider: ClassModel,
        providers: tuple[str, ...],
        note: str,
    ) -> Gap:
        where = self._where(use) if use else provider.where
        explanation = (
            f"read: {where}: found as text, not by data flow",
            *(f"searched: {cls.qualified_name} ({cls.where})" for cls in side.model.mro),
            f"provided by: {provider.qualified_name} ({provider.where})",
        )
        return Gap(
            severity=Severity.FEATURE_MISSING,
            platform=side.platform,
            arch=side.entry.arch,
            class_name=side.model.qualified_name,
            attribute=attribute,
            reader=use.reader if use else "-",
            where=where,
            condition="",
            providers=providers,
            note=note,
            class_where=side.model.where,
            explanation=explanation,
        )

    def _first_use(self, attr: str) -> _Use | None:
        """The use that needs the attribute most: unguarded ones come first."""
        uses = self._uses.get(attr, [])
        return min(uses, key=lambda use: (use.is_guarded, use.path, use.offset), default=None)

    def _where(self, use: _Use) -> str:
        before = (self._registry.index.tree.read(use.path) or "")[: use.offset]
        return f"{use.path}:{before.count(chr(10)) + 1}"

    @cached_property
    def _uses(self) -> dict[str, list[_Use]]:
        tree = self._registry.index.tree
        found: dict[str, list[_Use]] = {}
        for folder in _SHARED_CODE:
            for path in tree.python_files(folder):
                if path.startswith(_SPECULATOR_CODE):
                    continue
                for match in _USE.finditer(tree.read(path) or ""):
                    name = match["read"] or match["asked"]
                    use = _Use(match["asked"] is not None, path, match.end())
                    found.setdefault(name, []).append(use)
        return found
