"""A DeepSeek V4 folder of a few kB: the load check's configuration and a tokenizer, no weights."""

import json
from pathlib import Path

from patches.loadcheck.tiny import CONFIG, VOCABULARY

SPECIAL = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<think>", "</think>")


def write(folder: Path) -> Path:
    """Write config.json, tokenizer.json and tokenizer_config.json; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [*SPECIAL, *(f"w{n}" for n in range(VOCABULARY - len(SPECIAL)))]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": n,
                "content": word,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for n, word in enumerate(SPECIAL)
        ],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: n for n, word in enumerate(words)},
            "unk_token": words[-1],
        },
    }
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    for name, table in (
        ("config.json", CONFIG),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", names),
    ):
        (folder / name).write_text(json.dumps(table), encoding="utf-8")
    return folder
