"""The parser of `vllm serve`, in the installed vLLM; its module has moved between releases."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

_MODULES = tuple(
    f"vllm.entrypoints.{package}.cli_args" for package in ("common", "launchers", "openai")
)


def module() -> Any:
    """The module that has `make_arg_parser` and `validate_parsed_serve_args`.

    Raises ModuleNotFoundError where there is none.
    """
    for name in _MODULES:
        try:
            if find_spec(name):
                return importlib.import_module(name)
        except ModuleNotFoundError:  # its package is not there
            continue
    raise ModuleNotFoundError(f"none of {', '.join(_MODULES)} is in this vLLM")
