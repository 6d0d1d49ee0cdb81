"""Tool calls, whole and streamed: parsed, and nothing of their markup left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from healthcheck.client.answers import Answer, Failure
from healthcheck.client.chat import CHAT, message_of, text_of
from healthcheck.judge import Outcome
from healthcheck.smoke import stream
from healthcheck.smoke.results import Check
from healthcheck.smoke.stream import Streamed
from healthcheck.smoke.surface import PLACE, chat_payload, is_place, judge_stream, limit_s
from healthcheck.smoke.target import Session, fault, refusal
from healthcheck.words import short

TOKENS = 512
QUESTION = "What is the water level of the Elbe now? Use the tool."
# What a parser takes for the syntax of calls, and never a part of one. vLLM issue 53227 and
# PR 54686: of a streamed call the end of a parameter's mark stays in its argument.
MARKUP = ("DSML", "tool▁call", "<tool_call", "<invoke", "</invoke", "<parameter", "</parameter")
CALL_MARKS = ("tool_call", "function_call", *MARKUP)
# The arguments asked for are names and numbers: no brackets of any markup.
ARGUMENT_MARKS = ("<", ">", "｜", *CALL_MARKS)
_FUNCTION = {
    "name": "water_level",
    "description": "The present water level of a river, in centimetres.",
    "parameters": PLACE,
}
TOOL = {"type": "function", "function": _FUNCTION}


@dataclass(frozen=True)
class _Ask:
    """A row: how the tool is offered, and whether the answer is streamed."""

    name: str
    choice: str
    streamed: bool = False


# Only guided decoding, which `required` brings, makes random weights call anything.
_FREE = (_Ask("tools", "auto"), _Ask("tools streamed", "auto", streamed=True))
_GUIDED = (
    _Ask("required tool", "required"),
    _Ask("required tool streamed", "required", streamed=True),
)


def tools(session: Session) -> Iterator[Check]:
    """A tool is offered and asked for; its call has to come parsed, and nothing of its markup."""
    profile = session.target.profile
    if not profile.serve.get("tool-call-parser"):
        session.report.leave_out("tools", "the profile serves without a tool-call parser")
        return
    asks: tuple[_Ask, ...] = (*_FREE, *_GUIDED)
    if not profile.health.known_answers:
        session.report.leave_out("tools", "random weights call no tool of their own accord")
        asks = _GUIDED
    with ThreadPoolExecutor(len(asks)) as pool:
        yield from pool.map(lambda ask: _called(session, ask), asks)


def _called(session: Session, ask: _Ask) -> Check:
    # Later releases hold the arguments of a required call to a schema that is said to be strict.
    tool = {**TOOL, "function": {**_FUNCTION, "strict": True}} if ask in _GUIDED else TOOL
    payload = {
        **chat_payload(session, QUESTION, TOKENS),
        "tools": [tool],
        "tool_choice": ask.choice,
    }
    client = session.target.client
    answer: Streamed | Answer | Failure
    if ask.streamed:
        answer = stream.ask(client, CHAT, payload, limit_s(session))
    else:
        answer = client.post(CHAT, payload, deadline_s=limit_s(session))
    if isinstance(answer, Streamed):
        whole = judge_stream(ask.name, answer, None)
        message = answer.message
        if whole.outcome is Outcome.BAD and not leak(message):
            return whole
        return _judge(ask, message, answer.elapsed_s, _is_cut(session, answer.usage))
    seen = None if ask.streamed else message_of(answer)
    if seen is not None:
        body = answer.json() if isinstance(answer, Answer) else None
        usage = body.get("usage") if isinstance(body, dict) else None
        return _judge(ask, seen, answer.elapsed_s, _is_cut(session, usage))
    if isinstance(answer, Answer) and answer.status == 400 and "tool" in answer.text:
        words = short(answer.text, 160)
        return fault(ask.name, Outcome.BAD, "tools.refused", words, answer.elapsed_s)
    return refusal(ask.name, answer)


def _is_cut(session: Session, usage: object) -> bool:
    """Whether an answer has all the tokens that it may have. Its finish_reason does not tell: vLLM
    says `tool_calls` of many a call that is cut off."""
    counts = usage if isinstance(usage, dict) else {}
    limits = (("completion_tokens", TOKENS), ("total_tokens", session.report.max_model_len))
    return any(
        limit is not None and isinstance(count := counts.get(name), int) and count >= limit
        for name, limit in limits
    )


def _judge(ask: _Ask, message: Mapping[str, Any], took: float, cut: bool) -> Check:
    leaked = leak(message)
    if leaked:
        code, text = leaked
        return fault(ask.name, Outcome.BAD, code, short(text, 80), took)
    if not message.get("tool_calls"):
        outcome = Outcome.BAD if ask in _GUIDED else Outcome.UNKNOWN
        code = "tools.not_required" if ask in _GUIDED else "tools.none"
        words = f"content {short(text_of(message, 'content'), 80)}"
        return fault(ask.name, outcome, code, words, took)
    called = first_call(message)
    if called is None or called[0] != "water_level" or not is_place(called[1]):
        words = short(json.dumps(message["tool_calls"], ensure_ascii=False), 120)
        outcome, code = (Outcome.UNKNOWN, "tools.cut") if cut else (Outcome.BAD, "tools.malformed")
        return fault(ask.name, outcome, code, words, took)
    evidence = f"called water_level with {json.dumps(called[1], ensure_ascii=False)[:80]}"
    return Check(ask.name, Outcome.GOOD, evidence, took)


def leak(message: Mapping[str, Any]) -> tuple[str, str] | None:
    """The code of where a call's markup stands that no parser took out, and that text.

    The arguments are taken to be names and numbers. None if nothing leaked.
    """
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        told = function if isinstance(function, dict) else {}
        for text in (text_of(told, "arguments"), text_of(told, "name")):
            if any(mark in text for mark in ARGUMENT_MARKS):
                return "tools.in_arguments", text
    for name, marks in (
        ("content", CALL_MARKS),
        ("reasoning", MARKUP),
        ("reasoning_content", MARKUP),
    ):
        text = text_of(message, name)
        if any(mark in text for mark in marks):
            return "tools.in_content", text
    return None


def first_call(message: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The name and the arguments of a message's first tool call, None if there is no whole one."""
    try:
        called = message["tool_calls"][0]["function"]
        arguments = json.loads(called["arguments"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return None
    name = called.get("name")
    whole = isinstance(name, str) and isinstance(arguments, dict)
    return (name, arguments) if whole else None
