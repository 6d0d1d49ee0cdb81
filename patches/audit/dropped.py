"""Options of the routed experts that a backend leaves out although the op it calls takes them.

An op takes an option as a parameter with a default that leaves it off. The backend is accused when
its call does not pass the parameter and nothing that it runs reads the option: then nobody applies
what the model asked for.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from patches.audit.backends import ENTRY, Backend, Backends, Step
from patches.audit.calls import Function
from patches.audit.gap import Gap, Severity
from patches.audit.options import ExpertOptions, Option
from patches.audit.registry import Entry, Registry
from patches.audit.syntax import last_name, names_in

_Spellings = frozenset[str]


@dataclass
class _Drop:
    """A call that leaves an option out, and the backends that make it and do not read it."""

    call: ast.Call
    op: Function
    parameter: str
    step: Step
    makers: list[Backend] = field(default_factory=list)


class DroppedOptions:
    """Finds the dropped options of one tree."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._options = ExpertOptions(registry)
        self._backends = Backends(registry)
        self._drops: dict[tuple[str, _Spellings, str | None], list[_Drop]] = {}
        self._filled: dict[_Spellings, dict[str, set[str]]] = {}

    def gaps(self, entry: Entry, only_on: str | None = None) -> Iterator[Gap]:
        """Yield what backends of a platform drop that the platform's model of `entry` sets.

        `only_on` leaves out all platforms but that one.
        """
        for platform in self._registry.platforms_of(entry):
            if only_on not in (None, platform):
                continue
            model = self._registry.implementation(entry, platform).model
            if model is None or model.stub_message is not None:
                continue
            settings = self._options.set_by(entry, model, platform)
            for option in settings.options:
                for drop in self._dropped(platform, option.spellings, settings.activation):
                    yield _gap(entry, platform, drop, option)

    def _dropped(self, platform: str, spellings: _Spellings, activation: str | None) -> list[_Drop]:
        key = (platform, spellings, activation)
        if key not in self._drops:
            self._drops[key] = self._search(platform, spellings, activation)
        return self._drops[key]

    def _search(self, platform: str, spellings: _Spellings, activation: str | None) -> list[_Drop]:
        found: dict[int, _Drop] = {}
        filled = self._filled_by_name(spellings)
        for backend in self._backends.on(platform):
            if not backend.takes(activation) or backend.reads(spellings):
                continue
            for step in backend.steps:
                for call, op in self._backends.calls_in(platform, step.function):
                    names = spellings.union(filled.get(last_name(call.func), ()))
                    left_out = names.intersection(op.left_out(call))
                    if left_out:
                        drop = _Drop(call, op, min(left_out), step)
                        found.setdefault(id(call), drop).makers.append(backend)
        return list(found.values())

    def _filled_by_name(self, spellings: _Spellings) -> dict[str, set[str]]:
        """The parameters that some backend fills with the option, by the name of what it calls."""
        if spellings not in self._filled:
            filled: dict[str, set[str]] = {}
            for called, parameter, values in self._keywords:
                if not spellings.isdisjoint(values):
                    filled.setdefault(called, set()).add(parameter)
            self._filled[spellings] = filled
        return self._filled[spellings]

    @cached_property
    def _keywords(self) -> list[tuple[str, str, set[str]]]:
        """What is called in the backends' code, with which keyword, filled from which names."""
        return [
            (last_name(call.func), keyword.arg, names_in(keyword.value))
            for call in self._backends.all_calls
            for keyword in call.keywords
            if keyword.arg is not None
        ]


def _gap(entry: Entry, platform: str, drop: _Drop, option: Option) -> Gap:
    called = ast.unparse(drop.call.func)
    default = ast.unparse(drop.op.defaults()[drop.parameter])
    where = drop.step.function.module.where(drop.call)
    first = drop.makers[0].model
    return Gap(
        severity=Severity.WRONG_ANSWERS,
        platform=platform,
        arch=entry.arch,
        class_name=first.qualified_name,
        attribute=option.name,
        reader=drop.step.function.name,
        where=where,
        condition=f"the experts are {' or '.join(maker.model.name for maker in drop.makers)}",
        providers=(),
        note=f"{called}() at {where} is not given {drop.parameter}, which it takes "
        f"(default {default}); the model sets {option.name} at {option.where}",
        class_where=first.where,
        explanation=(
            f"set: {option.where}: {option.name}",
            *(f"way: {line}" for line in drop.step.way),
            f"op: {drop.op.where}: {called}({drop.parameter}={default})",
            *(
                f"searched for {', '.join(sorted(option.spellings))}: "
                f"{maker.model.qualified_name} and {len(maker.steps)} functions its {ENTRY}() runs"
                for maker in drop.makers
            ),
        ),
    )
