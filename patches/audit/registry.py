"""vLLM's model registry: which class an architecture names, and what it is on each platform."""

import ast
from dataclasses import dataclass
from functools import cached_property

from patches.audit.classes import ClassLibrary, ClassModel
from patches.audit.modules import Module, ModuleIndex
from patches.audit.platforms import PLATFORMS, Platform
from patches.audit.tree import REGISTRY, MisuseError

_DRAFT_TABLE = "_SPECULATIVE_DECODING_MODELS"
_MODEL_PACKAGE = "vllm.model_executor.models"


@dataclass(frozen=True)
class Entry:
    """One line of the registry: `class_name` of `module` serves the architecture `arch`."""

    arch: str
    module: str
    class_name: str


@dataclass(frozen=True)
class Implementation:
    """What an architecture is on one platform: a class, or the reason why there is none."""

    platform: str
    model: ClassModel | None
    missing_because: str = ""


class Registry:
    """The registry of one tree and the class libraries of its platforms."""

    def __init__(self, index: ModuleIndex) -> None:
        self.index = index
        self._module = index.at(REGISTRY)
        self._libraries: dict[str, ClassLibrary] = {}

    @cached_property
    def drafts(self) -> dict[str, Entry]:
        """The draft architectures, by name."""
        found = self._table(_DRAFT_TABLE)
        if not found:
            raise MisuseError(f"{self.index.tree.label}: {REGISTRY} has no {_DRAFT_TABLE} table")
        return found

    @cached_property
    def targets(self) -> dict[str, Entry]:
        """All other architectures, by name."""
        found: dict[str, Entry] = {}
        for name in self._module.names():
            if name.startswith("_") and name.endswith("_MODELS") and name != _DRAFT_TABLE:
                found.update(self._table(name))
        return found

    def library(self, platform: str) -> ClassLibrary:
        """The classes of the tree as they are on `platform`."""
        if platform not in self._libraries:
            self._libraries[platform] = ClassLibrary(PLATFORMS[platform])
        return self._libraries[platform]

    def platforms_of(self, entry: Entry) -> list[str]:
        """The platforms that have a folder of their own in the package of `entry`, if any."""
        return [name for name in PLATFORMS if self.index.is_package(f"{entry.module}.{name}")]

    def is_forked(self, entry: Entry) -> bool:
        """Whether platforms have code of their own for this architecture."""
        return len(self.platforms_of(entry)) > 1

    def implementation(self, entry: Entry, platform: str) -> Implementation:
        """Return what `entry` is on `platform`."""
        module = self.index.get(entry.module)
        if module is None:
            return Implementation(platform, None, f"{entry.module} is not in the tree")
        refused = module.refused_on(PLATFORMS[platform])
        if refused is not None:
            return Implementation(platform, None, f"importing {entry.module} raises {refused}")
        model = self._dispatched(module, entry, PLATFORMS[platform])
        if model is None:
            return Implementation(
                platform, None, f"{entry.module} binds no class {entry.class_name} on {platform}"
            )
        return Implementation(platform, model)

    def _dispatched(self, module: Module, entry: Entry, platform: Platform) -> ClassModel | None:
        found = module.resolve(entry.class_name, platform)
        if found is not None and isinstance(found.node, ast.ClassDef):
            return self.library(platform.name).model(found.module, found.node)
        return None

    def _table(self, name: str) -> dict[str, Entry]:
        found = self._module.resolve(name, PLATFORMS["nvidia"])
        if found is None or not isinstance(found.node, ast.Dict):
            return {}
        entries = {}
        for key, value in zip(found.node.keys, found.node.values, strict=True):
            match key, value:
                case (
                    ast.Constant(value=str() as arch),
                    ast.Tuple(
                        elts=[ast.Constant(value=str() as place), ast.Constant(value=str() as cls)]
                    ),
                ):
                    module = place if place.startswith("vllm.") else f"{_MODEL_PACKAGE}.{place}"
                    entries[arch] = Entry(arch, module, cls)
        return entries
