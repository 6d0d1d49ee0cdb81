"""What the models of one architecture set in the configuration of their routed experts.

A model hands an option such as ``swiglu_limit`` to the factory of its experts, the factory puts it
into a configuration object, and whichever backend is chosen has to apply it.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from patches.audit.classes import ClassModel
from patches.audit.imports import PackageImports
from patches.audit.platforms import PLATFORMS
from patches.audit.registry import Entry, Registry
from patches.audit.syntax import walk

_LAYERS = "vllm.model_executor.layers.fused_moe"
_IMPORTED = "fused_moe"  # what a file that imports the factory cannot be without
_CONFIG = f"{_LAYERS}.config"
_SET_BY_MODEL = "FusedMoEConfig"
_CARRIED_BY = ("FusedMoEConfig", "FusedMoEQuantConfig")
_TRANSLATIONS = "vllm/model_executor/layers/fused_moe/oracle"
"""Where one configuration's option is put into the other's under another name."""


@dataclass(frozen=True)
class Option:
    """An option that a model sets. `spellings`: the names it has in the configuration objects."""

    name: str
    where: str
    spellings: frozenset[str]


@dataclass(frozen=True)
class Settings:
    """What a model sets; `activation` is None when it cannot be told."""

    options: tuple[Option, ...] = ()
    activation: str | None = None


@dataclass(frozen=True)
class _Call:
    """A call of the experts' factory: the options given, by name, and where each is."""

    options: Mapping[str, str]
    activation: str | None


class ExpertOptions:
    """The options of one tree's models."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._imports = PackageImports(registry.index)
        self._settings: dict[tuple[str, str], Settings] = {}
        self._calls: dict[tuple[str, str], list[_Call]] = {}
        self._spelled: dict[str, frozenset[str]] = {}

    def set_by(self, entry: Entry, model: ClassModel, platform: str) -> Settings:
        """Return what the experts of `model`'s layers are configured with on `platform`."""
        key = (model.module.path, platform)
        if key not in self._settings:
            self._settings[key] = self._settings_of(*key, entry.module)
        return self._settings[key]

    def _settings_of(self, path: str, platform: str, package: str) -> Settings:
        calls = [
            call
            for file in self._imports.reached(path, package)
            for call in self._calls_in(file, platform)
        ]
        where = {name: place for call in calls for name, place in call.options.items()}
        activations = {call.activation for call in calls}
        return Settings(
            tuple(Option(name, where[name], self._spellings(name)) for name in sorted(where)),
            activations.pop() if len(activations) == 1 else None,
        )

    def _calls_in(self, path: str, platform: str) -> list[_Call]:
        key = (path, platform)
        if key not in self._calls:
            text = self._registry.index.tree.read(path) or ""
            may_set = _IMPORTED in text and any(f"{name}=" in text for name in self._optional)
            self._calls[key] = self._factory_calls(path, platform) if may_set else []
        return self._calls[key]

    def _factory_calls(self, path: str, platform: str) -> list[_Call]:
        module = self._registry.index.at(path)
        found = []
        for node in walk(module.body):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            given = {
                keyword.arg: module.where(keyword.value)
                for keyword in node.keywords
                if keyword.arg in self._optional and not isinstance(keyword.value, ast.Constant)
            }
            factory = module.resolve_expression(node.func, PLATFORMS[platform]) if given else None
            if factory is not None and factory.module.name.startswith(f"{_LAYERS}."):
                options = {name: where for name, where in given.items() if name}
                found.append(_Call(options, _activation(node, factory.node)))
        return found

    @cached_property
    def _fields(self) -> Mapping[str, Mapping[str, ast.expr | None]]:
        """The fields of each configuration class, with their defaults."""
        module = self._registry.index.get(_CONFIG)
        return {
            node.name: {
                line.target.id: line.value
                for line in node.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            }
            for node in (module.classes() if module else [])
            if node.name in _CARRIED_BY
        }

    @cached_property
    def _optional(self) -> frozenset[str]:
        """The options that are off unless a model sets them."""
        return frozenset(
            name
            for name, default in self._fields.get(_SET_BY_MODEL, {}).items()
            if isinstance(default, ast.Constant) and not default.value
        )

    def _spellings(self, option: str) -> frozenset[str]:
        """The option's name, and those of the fields that the tree fills with it."""
        if option not in self._spelled:
            passed = re.compile(rf"\b(\w+)={re.escape(option)}\b")
            tree = self._registry.index.tree
            names = {
                name
                for path in tree.python_files(_TRANSLATIONS)
                for name in passed.findall(tree.read(path) or "")
            }
            carried = {name for fields in self._fields.values() for name in fields}
            self._spelled[option] = frozenset({option, *(names & carried)})
        return self._spelled[option]


def _activation(call: ast.Call, factory: ast.AST | None) -> str | None:
    """The activation that a call of the experts' factory asks for, or its default."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "activation"]
    if not given and isinstance(factory, ast.FunctionDef):
        arguments = factory.args
        named = [*arguments.posonlyargs, *arguments.args][::-1]
        by_position = zip(named, arguments.defaults[::-1], strict=False)
        by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        given = [
            default
            for parameter, default in (*by_position, *by_name)
            if parameter.arg == "activation" and default is not None
        ]
    value = given[0] if given else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
