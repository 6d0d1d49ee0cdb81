"""What clients use of the HTTP surface: chat, thinking, streams, stop strings, usage, tools."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from healthcheck import generate
from healthcheck.answers import Answer, Failure
from healthcheck.judge import Outcome, Step, judge
from healthcheck.smoke import stream
from healthcheck.smoke.results import Check
from healthcheck.smoke.stream import Streamed
from healthcheck.smoke.target import Session, fault, refusal, row
from healthcheck.verdict import Want
from healthcheck.words import short

CHAT = "/v1/chat/completions"
# Paths of vLLM 0.27.1 that answer a completion, and what each may say to a stranger.
GENERATING = (generate.PATH, "/invocations")
REFUSED = frozenset({401, 403, 404})
TOKENS = 16
STOP_TOKENS = 48
THOUGHT_TOKENS = 512
TOOL_TOKENS = 512
# One of them comes within a few of the English words that the prompt asks for.
STOPS = ("e", "a", "\n", "1")
# Marks of thoughts and calls that a parser should have taken out of the content.
THOUGHT_MARKS = ("<think>", "</think>")
CALL_MARKS = ("tool_call", "function_call", "DSML", "tool▁call", "<invoke")
BUFFERED_SHARE = 0.02
BUFFERED_LEAST_S = 1.0
_TOOL = {
    "type": "function",
    "function": {
        "name": "water_level",
        "description": "The present water level of a river, in centimetres.",
        "parameters": {
            "type": "object",
            "properties": {"river": {"type": "string", "description": "name of the river"}},
            "required": ["river"],
        },
    },
}


def surface(session: Session) -> Iterator[Check]:
    """The short ones side by side, for they spend their time waiting."""
    asked: list[Callable[[Session], list[Check]]] = [_chat, _chat_stream, _stream, _stop, _key]
    with ThreadPoolExecutor(len(asked)) as pool:
        for checks in pool.map(lambda ask: ask(session), asked):
            yield from checks


def _chat(session: Session) -> list[Check]:
    """A chat answer has text in `content` or in `reasoning`."""
    answer = _ask_chat(session, "Say a few words about rivers.", TOKENS)
    findings, completion = judge(answer, asked_tokens=1, exactly=False, scored=False)
    bad = [f for f in findings if f.outcome is Outcome.BAD and f.check == "real tokens"]
    if completion is None or bad:
        return [row((bad or list(findings))[0], answer.elapsed_s, "chat")]
    evidence = f"answered {short(completion.text)}"
    return [Check("chat", Outcome.GOOD, evidence, answer.elapsed_s)]


def _chat_stream(session: Session) -> list[Check]:
    payload = _chat_payload(session, "Say a few words about bridges.", TOKENS)
    answer = stream.ask(session.target.client, CHAT, payload, _limit_s(session))
    if not isinstance(answer, Streamed):
        return [refusal("chat stream", answer)]
    return [judge_stream("chat stream", answer, None)]


def _stream(session: Session) -> list[Check]:
    want = Want(Step.PROBE, 0, "stream", 0, TOKENS, _limit_s(session))
    target = session.target
    payload = target.generator.payload(want, target.model)
    answer = stream.ask(target.client, generate.PATH, payload, want.timeout_s)
    if not isinstance(answer, Streamed):
        return [refusal("stream", answer)]
    return [judge_stream("stream", answer, TOKENS)]


def judge_stream(name: str, seen: Streamed, asked: int | None) -> Check:
    """Whether a stream is whole: text, usage at the end, [DONE]; and `asked` tokens, if set."""
    took = seen.elapsed_s
    counted = seen.usage.get("completion_tokens") if seen.usage else None
    words = f"{len(seen.pieces)} pieces, {counted} tokens in usage, first after {_ms(seen.first_s)}"
    if not seen.done or not seen.text or seen.finish_reason is None:
        lacks = [
            lack
            for lack, there in (
                ("[DONE]", seen.done), ("text", seen.text), ("finish_reason", seen.finish_reason)
            )
            if not there
        ]  # fmt: skip
        return fault(name, Outcome.BAD, "stream.broken", f"{words}; no {', no '.join(lacks)}", took)
    if counted is None:
        return fault(name, Outcome.BAD, "stream.no_usage", words, took)
    if (asked is not None and counted != asked) or not _adds_up(seen.usage):
        return fault(name, Outcome.BAD, "usage.wrong", f"{words}; asked for {asked}", took)
    spread = seen.pieces[-1].at_s - seen.pieces[0].at_s
    if len(seen.pieces) > 2 and took > BUFFERED_LEAST_S and spread < BUFFERED_SHARE * took:
        return fault(name, Outcome.UNKNOWN, "stream.buffered", words, took)
    return Check(name, Outcome.GOOD, words, took)


def _stop(session: Session) -> list[Check]:
    """A text ends before its stop string, and its usage adds up."""
    target = session.target
    want = Want(Step.PROBE, 0, "stop", 0, STOP_TOKENS, _limit_s(session))
    payload = {**target.generator.payload(want, target.model), "stop": list(STOPS)}
    answer = target.client.post(generate.PATH, payload, deadline_s=want.timeout_s)
    body = answer.json() if isinstance(answer, Answer) and answer.status == 200 else None
    choice = _first_choice(body)
    if not isinstance(body, dict) or choice is None:
        return [refusal("stop", answer)]
    text, reason = str(choice.get("text")), choice.get("finish_reason")
    words = f"finish_reason {reason}, text {short(text)}"
    held = any(stop in text for stop in STOPS)
    took = answer.elapsed_s
    if held:
        check = fault("stop", Outcome.BAD, "stop.ignored", words, took)
    elif reason != "stop":
        check = fault("stop", Outcome.UNKNOWN, "stop.not_seen", words, took)
    else:
        words += f", stop_reason {choice.get('stop_reason')!r}"
        check = Check("stop", Outcome.GOOD, words, took)
    return [check, _usage(body.get("usage"), STOP_TOKENS)]


def _usage(usage: object, most: int) -> Check:
    if isinstance(usage, dict) and _adds_up(usage) and 0 < usage["completion_tokens"] <= most:
        words = (
            f"{usage['prompt_tokens']} prompt and {usage['completion_tokens']} completion tokens"
        )
        return Check("usage", Outcome.GOOD, words)
    return fault("usage", Outcome.BAD, "usage.wrong", str(usage)[:120])


def _adds_up(usage: Mapping[str, Any] | None) -> bool:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    counts = [(usage or {}).get(name) for name in names]
    if not all(isinstance(count, int) for count in counts):
        return False
    prompt, completion, total = (int(count or 0) for count in counts)
    return prompt > 0 and completion > 0 and prompt + completion == total


def _key(session: Session) -> list[Check]:
    """Who does not have the key gets no text, by none of the paths that generate."""
    stranger = session.target.client.stranger
    if stranger is None:
        session.report.leave_out("key", "the server was asked without one")
        return []
    want = Want(Step.PROBE, 0, "key", 0, 1, _limit_s(session))
    payload = session.target.generator.payload(want, session.target.model)
    asked = {path: stranger.post(path, payload, deadline_s=want.timeout_s) for path in GENERATING}
    took = sum(answer.elapsed_s for answer in asked.values())
    unclear = next((a for a in asked.values() if isinstance(a, Failure)), None)
    statuses = {path: a.status for path, a in asked.items() if isinstance(a, Answer)}
    words = "without the key " + ", ".join(f"{p} {status}" for p, status in statuses.items())
    if not set(statuses.values()) <= REFUSED:
        return [fault("key", Outcome.BAD, "key.not_asked", words, took)]
    if unclear is not None:
        return [refusal("key", unclear)]
    return [Check("key", Outcome.GOOD, words, took)]


def reasoning(session: Session) -> Iterator[Check]:
    """A thought is asked for and has to come in its own field."""
    parser = session.target.profile.serve.get("reasoning-parser")
    if not parser:
        session.report.leave_out("reasoning", "the profile serves without a reasoning parser")
        return
    answer = _ask_chat(
        session,
        "How many bridges cross a river with three islands in a row? Think first.",
        THOUGHT_TOKENS,
        thinking=True,
    )
    message = message_of(answer)
    if message is None:
        yield refusal("reasoning", answer)
        return
    thought = text_of(message, "reasoning") or text_of(message, "reasoning_content")
    content = text_of(message, "content")
    took = answer.elapsed_s
    if any(mark in content for mark in THOUGHT_MARKS):
        words = f"content {short(content)}"
        yield fault("reasoning", Outcome.BAD, "reasoning.in_content", words, took)
    elif thought:
        yield Check("reasoning", Outcome.GOOD, f"thought {short(thought)}", took)
    else:
        words = f"content {short(content)}"
        yield fault("reasoning", Outcome.UNKNOWN, "reasoning.none", words, took)


def tools(session: Session) -> Iterator[Check]:
    """A tool is offered and asked for; its call has to come parsed."""
    if not session.target.profile.serve.get("tool-call-parser"):
        session.report.leave_out("tools", "the profile serves without a tool-call parser")
        return
    question = "What is the water level of the Elbe now? Use the tool."
    answer = _ask_chat(session, question, TOOL_TOKENS, tools=[_TOOL], tool_choice="auto")
    message = message_of(answer)
    if message is None:
        if isinstance(answer, Answer) and answer.status == 400 and "tool" in answer.text:
            words = short(answer.text, 160)
            yield fault("tools", Outcome.BAD, "tools.refused", words, answer.elapsed_s)
        else:
            yield refusal("tools", answer)
        return
    yield _called(message, answer.elapsed_s)


def _called(message: Mapping[str, Any], took: float) -> Check:
    content = text_of(message, "content")
    if not message.get("tool_calls"):
        code, outcome = (
            ("tools.in_content", Outcome.BAD) if leaks(message) else ("tools.none", Outcome.UNKNOWN)
        )
        return fault("tools", outcome, code, f"content {short(content, 80)}", took)
    called = first_call(message)
    if called is None or called[0] != "water_level" or not isinstance(called[1].get("river"), str):
        words = short(json.dumps(message["tool_calls"], ensure_ascii=False), 120)
        return fault("tools", Outcome.BAD, "tools.malformed", words, took)
    evidence = f"called water_level with {json.dumps(called[1], ensure_ascii=False)[:80]}"
    return Check("tools", Outcome.GOOD, evidence, took)


def leaks(message: Mapping[str, Any]) -> bool:
    """Whether marks of a call stand in the content, where no parser took them out."""
    return any(mark in text_of(message, "content") for mark in CALL_MARKS)


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


def _ask_chat(
    session: Session, question: str, tokens: int, *, thinking: bool = False, **more: object
) -> Answer | Failure:
    payload = {**_chat_payload(session, question, tokens, thinking=thinking), **more}
    return session.target.client.post(CHAT, payload, deadline_s=_limit_s(session))


def _chat_payload(
    session: Session, question: str, tokens: int, *, thinking: bool = False
) -> dict[str, object]:
    """A chat of one turn; whether it thinks is said, for releases differ in what they take."""
    return {
        "model": session.target.model,
        "messages": [{"role": "user", "content": f"{question} {secrets.token_hex(8)}"}],
        "max_tokens": tokens,
        "temperature": 1.0,
        "seed": 9,
        "chat_template_kwargs": {"thinking": thinking, "enable_thinking": thinking},
    }


def message_of(answer: Answer | Failure) -> Mapping[str, Any] | None:
    """The message of a chat answer, None of anything else."""
    body = answer.json() if isinstance(answer, Answer) and answer.status == 200 else None
    message = (_first_choice(body) or {}).get("message")
    return message if isinstance(message, dict) else None


def _first_choice(body: object) -> Mapping[str, Any] | None:
    choices = body.get("choices") if isinstance(body, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def text_of(message: Mapping[str, Any], name: str) -> str:
    """A field of a message, empty if it is no text."""
    value = message.get(name)
    return value if isinstance(value, str) else ""


def _limit_s(session: Session) -> float:
    return session.target.profile.health.generation_timeout_s


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f} ms"
