"""How a method is called, and whether it can be called like that."""

from dataclasses import dataclass

from patches.audit.modules import FunctionNode


@dataclass(frozen=True)
class CallShape:
    """How a method is called; `positional` is None when ``*args`` is passed."""

    positional: int | None
    keywords: tuple[str, ...]
    has_double_star: bool


def signature_problem(method: FunctionNode, call: CallShape) -> str | None:
    """Return why calling a method of an instance in this way raises TypeError; None if not."""
    arguments = method.args
    names = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)][1:]
    if call.positional is not None and call.positional > len(names) and not arguments.vararg:
        return f"takes {len(names)} positional arguments, is given {call.positional}"
    accepted = {*names, *(parameter.arg for parameter in arguments.kwonlyargs)}
    unknown = [name for name in call.keywords if name not in accepted]
    if unknown and not arguments.kwarg:
        return f"does not take the keyword {', '.join(unknown)}"
    if call.positional is None or call.has_double_star:
        return None
    required = names[: len(names) - len(arguments.defaults)] if arguments.defaults else names
    missing = [name for name in required[call.positional :] if name not in call.keywords]
    missing += [
        parameter.arg
        for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None and parameter.arg not in call.keywords
    ]
    return f"is not given {', '.join(missing)}" if missing else None
