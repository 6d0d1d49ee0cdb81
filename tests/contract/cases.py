"""What the contract tests ask of the real AMD class, in one place because one run answers it all."""

from itertools import product
from pathlib import Path
from typing import Any

from patches.loadcheck import tiny
from patches.loadcheck.card import CARDS
from tests.support import tiny_v4, vllm_trees

DRAFT = (0.62, 0.37, 0.01)
"""What the draft predicts. With TARGET it was found, by a search over three-token distributions, to
show shared noise best: the token that is rejected most has a close rival in the draft only."""

TARGET = (0.02, 0.59, 0.39)
"""What the target predicts, so what must come out."""

SAMPLES = 1200
REQUESTS = 200
SEED = 20260801

DSPARK = {
    "method": "dspark",
    "num_speculative_tokens": 5,
    "draft_sample_method": "probabilistic",
}


EFFORTS = (None, "none", "minimal", "low", "medium", "high", "xhigh", "max")
"""What `reasoning_effort` may say; None: the field is not there."""

SWITCHES: tuple[dict[str, bool | None], ...] = (
    {},
    {"thinking": True},
    {"thinking": False},
    {"thinking": None},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": False, "enable_thinking": True},
)
"""What `chat_template_kwargs` may say about thinking."""

_ASK = {"role": "user", "content": "w1"}
_SYSTEM = {"role": "system", "content": "w2"}
_TOOL = {"type": "function", "function": {"name": "w3", "parameters": {"type": "object"}}}
_CALL = {"id": "1", "type": "function", "function": {"name": "w3", "arguments": '{"a": "b"}'}}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [_ASK]},
    "system": {"messages": [_SYSTEM, _ASK]},
    "tools": {"messages": [_ASK], "tools": [_TOOL]},
    "system and tools": {"messages": [_SYSTEM, _ASK], "tools": [_TOOL]},
    "later turn": {
        "messages": [_ASK, {"role": "assistant", "reasoning": "w4", "content": "w5"}, _ASK]
    },
    "tool's answer": {
        "messages": [
            _ASK,
            {"role": "assistant", "reasoning": "w4", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "w6"},
        ],
        "tools": [_TOOL],
    },
}
"""Conversations by name, as far as a request holds them."""

ORACLE = "0.28.0"
"""The first release that encodes chats as the checkpoint of 0731 reads them."""


DRAFT_CACHE = {"block_size": 4, "columns": 10, "queries": 5, "max_model_len": 32}
"""A draft cache whose table is wider than max_model_len needs, as vLLM's are."""

DRAFT_STEPS: dict[str, dict[str, Any]] = {
    "decode": {"positions": [9, 10, 11], "rejected": 0, "blocks": [1, 2, 3, 4, 5]},
    "window": {"positions": list(range(3, 14)), "rejected": 0, "blocks": [0, 0, 6, 7, 8]},
    "rejected": {"positions": list(range(12, 18)), "rejected": 4, "blocks": [9, 10, 11, 12, 13]},
    "end": {"positions": [27, 28], "rejected": 0, "blocks": [0, 0, 0, 0, 0, 14, 15, 16, 17]},
}
"""Requests of one draft step: the positions of their tokens, and the blocks of their table. That of
"end" has a ninth block, which an earlier request left there and which is somebody else's by now."""


NOT_ASKED_OF_PRISTINE = ("lengths gfx942", "native")
"""Retrieval that the unpatched tree fails as it does on the other card."""


def chat_requests() -> dict[tuple[str, int, str | None], dict[str, Any]]:
    """Every effort with every switch and conversation: the key is conversation, switch, effort."""
    requests = {}
    for chat, (number, switch), effort in product(CHATS, enumerate(SWITCHES), EFFORTS):
        said = {} if effort is None else {"reasoning_effort": effort}
        requests[chat, number, effort] = CHATS[chat] | said | {"chat_template_kwargs": switch}
    return requests


def runtime_questions(folder: Path) -> dict[str, dict[str, Any]]:
    """What the series may change, by name; models are written below `folder`."""
    plain = str(tiny.write_plain(folder / "plain", vocab_size=64, block_size=5))
    single = str(tiny.write_plain(folder / "single", vocab_size=8, block_size=1))
    return {
        "load probabilistic": _load(plain, "probabilistic"),
        "load greedy": _load(plain, "greedy"),
        "sample": sample(single, steps=1, batches=SAMPLES // REQUESTS),
        "nan bonus": _nan(3072, step=2, temperature=1.0),
        "nan bonus, last block in part": _nan(2500, step=2, temperature=1.0),
        "nan greedy": _nan(3 * 8192, step=0, temperature=0.0),
        "clamp": {"ask": "clamp", "model": plain},
        "chat": _render(folder),
        "cleared": {"ask": "clear", "page": 1, "pages": 4},
        "draft rows": {"ask": "draft_rows", "requests": list(DRAFT_STEPS.values()), **DRAFT_CACHE},
    }


def configuration_questions(folder: Path) -> dict[str, dict[str, Any]]:
    """What the series does not touch, by name: what vLLM makes of an engine's arguments, and the
    oracle's answers."""
    quantized = str(tiny_v4.write(folder / "quantized"))
    return {
        "model omitted": _configure(quantized),
        "model spelled out": _configure(quantized, model=quantized),
        "fewer than a block": _configure(quantized, num_speculative_tokens=4),
        "more than a block": _configure(quantized, num_speculative_tokens=7),
        "pipeline": _configure(quantized) | {"pipeline_parallel_size": 2},
        "chat of the oracle": _render(folder, release=str(vllm_trees.tree(ORACLE))),
    }


def retrieval_questions(folder: Path) -> dict[str, dict[str, Any]]:
    """What the sparse indexer finds, by name; models are written below `folder`."""
    model = str(tiny.write_plain(folder / "model"))
    single = str(tiny.write_plain(folder / "single", block_size=1))
    lengths = {
        "ask": "retrieve",
        "model": model,
        "prompts": [4096],
        # The first decode has five drafts, the others fewer; all share the prompt's pages.
        "asked": [[0, 4096, 6], [0, 2048, 6], [0, 1024, 4], [0, 4096, 7]],
    }
    small = {"ask": "retrieve", "model": model, "prompts": [512], "top_k": 32, "heads": 2}
    return {
        **{f"lengths {arch}": lengths | {"arch": arch} for arch in CARDS},
        # From page 2143 on, 32 bits do not hold a page's place; 0x80 is NaN on gfx942.
        "far": small
        | {
            "arch": "gfx942",
            "asked": [[0, 512, 6], [0, 509, 6], [0, 512, 7]],
            "first_page": 2143,
            "negative_zero": True,
        },
        # One draft: a request's two queries are one row of q, with a length each; one key is NaN.
        "native": small
        | {
            "arch": "gfx950",
            "model": single,
            "drafts": 1,
            "asked": [[0, 512, 2], [0, 398, 2]],
            "broken": 20,
        },
        # 41 requests of 8 rows each, where 10 * 32 rows have room.
        "budget": small
        | {
            "arch": "gfx950",
            "prompts": [32],
            "asked": [[0, 32, 7]] * 41,
            "top_k": 4,
            "heads": 1,
            "max_model_len": 32,
        },
        "tiled": {"ask": "retrieve_tiled", "arch": "gfx942", "model": model, "length": 160},
    }


def sample(model: str, *, steps: int, batches: int, **changes: Any) -> dict[str, Any]:
    """A question for `batches` times REQUESTS samples."""
    return {
        "ask": "sample",
        "model": model,
        "draft": DRAFT,
        "target": TARGET,
        "steps": steps,
        "requests": REQUESTS,
        "batches": batches,
        "seed": SEED,
        **changes,
    }


def _load(model: str, method: str) -> dict[str, Any]:
    return {"ask": "load", "model": model, "sample_method": method}


def _nan(vocabulary: int, *, step: int, temperature: float) -> dict[str, Any]:
    return {
        "ask": "verify_nan",
        "vocabulary": vocabulary,
        "tokens": (3, 7),
        "nan_step": step,
        "temperature": temperature,
    }


def _render(folder: Path, **changes: Any) -> dict[str, Any]:
    tokenizer = str(tiny_v4.write(folder / "tokenizer"))
    requests = list(chat_requests().values())
    return {"ask": "render", "tokenizer": tokenizer, "requests": requests, **changes}


def _configure(target: str, **changes: Any) -> dict[str, Any]:
    return {"ask": "configure", "model": target, "speculative": DSPARK | changes}
