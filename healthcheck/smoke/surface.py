"""What clients use of the HTTP surface: chat, thinking, streams, stop strings, usage, schema."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from healthcheck.client.answers import Answer, Failure
from healthcheck.client.chat import CHAT, chat, first_choice, message_of, text_of, thought_of
from healthcheck.judge import Outcome, Step, judge
from healthcheck.service import generate
from healthcheck.smoke import stream
from healthcheck.smoke.results import Check
from healthcheck.smoke.stream import Streamed
from healthcheck.smoke.target import Session, fault, refusal, row
from healthcheck.verdict import Want
from healthcheck.words import short

# Paths of vLLM 0.27.1 that answer a completion, and what each may say to a stranger.
GENERATING = (generate.PATH, "/invocations")
REFUSED = frozenset({401, 403, 404})
TOKENS = 16
STOP_TOKENS = 48
THOUGHT_TOKENS = 512
# One of them comes within a few of the English words that the prompt asks for.
STOPS = ("e", "a", "\n", "1")
# Marks of a thought, which the parser should have taken out of the content.
THOUGHT_MARKS = ("<think>", "</think>")
RIVERS = ("Elbe", "Loire", "Tagus")
# A choice of names: guided decoding ends it, however little the model means by it.
PLACE = {
    "type": "object",
    "properties": {"river": {"type": "string", "enum": list(RIVERS)}},
    "required": ["river"],
    "additionalProperties": False,
}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}}
SCHEMA_TOKENS = 128
BUFFERED_SHARE = 0.02
BUFFERED_LEAST_S = 1.0


def surface(session: Session) -> Iterator[Check]:
    """The short ones side by side, for they spend their time waiting."""
    asked: list[Callable[[Session], list[Check]]] = [
        _chat,
        _chat_stream,
        _stream,
        _stop,
        _schema,
        _key,
    ]
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
    payload = chat_payload(session, "Say a few words about bridges.", TOKENS)
    answer = stream.ask(session.target.client, CHAT, payload, limit_s(session))
    if not isinstance(answer, Streamed):
        return [refusal("chat stream", answer)]
    return [judge_stream("chat stream", answer, None)]


def _stream(session: Session) -> list[Check]:
    want = Want(Step.PROBE, 0, "stream", 0, TOKENS, limit_s(session))
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
    want = Want(Step.PROBE, 0, "stop", 0, STOP_TOKENS, limit_s(session))
    payload = {**target.generator.payload(want, target.model), "stop": list(STOPS)}
    answer = target.client.post(generate.PATH, payload, deadline_s=want.timeout_s)
    body = answer.json() if isinstance(answer, Answer) and answer.status == 200 else None
    choice = first_choice(body)
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


def _schema(session: Session) -> list[Check]:
    """What is asked for by a JSON schema is of it: guided decoding, through the draft."""
    payload = chat_payload(session, "Name a river, as JSON.", SCHEMA_TOKENS)
    payload["response_format"] = _SCHEMA
    answer = session.target.client.post(CHAT, payload, deadline_s=limit_s(session))
    message = message_of(answer)
    if message is None:
        return [refusal("JSON schema", answer)]
    words, took = f"content {short(text_of(message, 'content'))}", answer.elapsed_s
    try:
        told = json.loads(text_of(message, "content"))
    except (ValueError, RecursionError):
        told = None
    if not is_place(told):
        return [fault("JSON schema", Outcome.BAD, "schema.ignored", words, took)]
    return [Check("JSON schema", Outcome.GOOD, words, took)]


def is_place(told: object) -> bool:
    """Whether parsed JSON is of the schema PLACE."""
    return isinstance(told, dict) and list(told) == ["river"] and told["river"] in RIVERS


def _key(session: Session) -> list[Check]:
    """Who does not have the key gets no text, by none of the paths that generate."""
    stranger = session.target.client.stranger
    if stranger is None:
        session.report.leave_out("key", "the server was asked without one")
        return []
    want = Want(Step.PROBE, 0, "key", 0, 1, limit_s(session))
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
    thought = thought_of(message)
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


def _ask_chat(
    session: Session, question: str, tokens: int, *, thinking: bool = False
) -> Answer | Failure:
    payload = chat_payload(session, question, tokens, thinking=thinking)
    return session.target.client.post(CHAT, payload, deadline_s=limit_s(session))


def chat_payload(
    session: Session, question: str, tokens: int, *, thinking: bool = False
) -> dict[str, object]:
    """A chat of one turn; whether it thinks is said, for releases differ in what they take."""
    unlike = f"{question} {secrets.token_hex(8)}"
    return chat(session.target.model, unlike, tokens, seed=9, thinking=thinking)


def limit_s(session: Session) -> float:
    """Seconds that an answer may take."""
    return session.target.profile.health.generation_timeout_s


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f} ms"
