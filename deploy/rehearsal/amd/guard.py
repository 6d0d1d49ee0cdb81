"""Kernels that a ROCm build of vLLM has and this machine has not: listed, or the end of the step.

vLLM reaches its compiled kernels through namespaces of ``torch.ops`` and AITER's by importing them.
Here each name is either real (a kernel of vLLM's CPU build, or an operator that vLLM wrote in
Python), or a substitute of the table, or an error of one line.
"""

import importlib.abc
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

#: The namespaces that vLLM's sources name.
NAMESPACES = (
    "_C",
    "_C_cache_ops",
    "_C_custom_ar",
    "_moe_C",
    "_qutlass_C",
    "_rocm_C",
    "aiter",
    "vllm",
)

_LIST_IT = "neither real here nor listed in deploy/rehearsal/amd/substitutes.py"


class NotListed(AttributeError):
    """A kernel was asked for that nothing stands for; an AttributeError, so that ``hasattr`` of an
    absent operator stays false."""


class AiterNotListed(RuntimeError):
    """The same of a module of AITER; no ImportError, which vLLM takes for permission to go on."""


def close(listed: Mapping[str, Callable[..., Any]]) -> None:
    """Let every kernel be real or of ``listed``, whose keys are ``namespace.name``."""
    for name in NAMESPACES:
        own = {
            key.removeprefix(f"{name}."): value
            for key, value in listed.items()
            if key.startswith(f"{name}.")
        }
        setattr(torch.ops, name, _Namespace(name, getattr(torch.ops, name), own))
    sys.meta_path.insert(0, _NoAiter())


class _Namespace:
    """A namespace of operators, closed."""

    def __init__(self, name: str, real: Any, listed: Mapping[str, Callable[..., Any]]) -> None:
        self._name, self._real, self._listed = name, real, listed

    def __getattr__(self, name: str) -> Any:
        if name in self._listed:
            return self._listed[name]
        found = getattr(self._real, name, None)
        if name.startswith("__"):
            return getattr(self._real, name)
        if found is None or not _runs_here(f"{self._name}::{name}"):
            raise NotListed(f"torch.ops.{self._name}.{name}: {_LIST_IT}")
        return found


def _runs_here(operator: str) -> bool:
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator, "CPU"))


class _NoAiter(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: Any = None) -> None:
        if fullname.partition(".")[0] == "aiter":
            raise AiterNotListed(f"import {fullname}: {_LIST_IT}")
