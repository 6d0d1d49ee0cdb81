"""The tokenizer of the tiny models: byte-level BPE over a list of common words, written by hand.

Every word of the list is one token together with the space before it; its merges are its own
prefixes. Any other text falls back to bytes, so every prompt can be encoded.
"""

from collections.abc import Sequence
from typing import Any

PAD_ID = 0
STOP_ID = 2
MASK_ID = 3

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
# Byte-level BPE writes the space as this letter (GPT-2's byte table).
_SPACE = "\u0120"
# A multiple of the 64 rows that vLLM pads a vocabulary to, and one block of its sampling kernels.
_SIZE = 1024

_WORDS = tuple(
    """
    able about above across add after again air all almost alone along also always among and
    animal another answer any are area ask away back base bear because become before began
    behind being below best better between big bird black blue boat body book both box boy
    bring brought build but call came can car care carry cat cause change check children city
    clear close cold color come common complete could country course cover cross cry cut dark
    day deep did different direct dog door down draw drive dry during each early earth east
    easy eat end enough even ever every example eye face fact fall family far farm fast father
    feel feet few field figure fill final find fine fire first fish five fly follow food foot
    for force form found four free friend from front full game gave get girl give go gold good
    got great green ground group grow had half hand happen hard has have he head hear heat
    help her here high him his hold home horse hot hour house how hundred idea if in inch
    interest into is island it its just keep kind king knew know land language large last late
    laugh lay lead learn leave left less let letter life light like line list listen little
    live long look low made make man many map me men moon more most my name near new night no
    north not now of off old on one only open or other our out over own part play put rain
    read red rest road rock run same say sea see she side sing sit snow so some song stay sun
    the they time to tree two up was water way we well west what when where white who wind
    with word year you
    """.split()  # noqa: SIM905 - a list literal of words takes a line each
)


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each byte value."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


def _prefixes() -> list[str]:
    """Every prefix of two letters or more of a word with its space; shorter ones merge first."""
    spaced = [_SPACE + word for word in _WORDS]
    prefixes = {word[:length] for word in spaced for length in range(2, len(word) + 1)}
    return sorted(prefixes, key=lambda prefix: (len(prefix), prefix))


def _vocabulary() -> tuple[str, ...]:
    tokens = [*_SPECIAL, *_byte_alphabet(), *_prefixes()]
    tokens += [f"<|reserved_{token}|>" for token in range(len(tokens), _SIZE)]
    return tuple(tokens)


#: Token texts in the order of their ids.
VOCABULARY = _vocabulary()

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def is_word(token: str) -> bool:
    """True for a token that is a whole word of the list with its space."""
    return token.startswith(_SPACE) and token[1:] in _WHOLE_WORDS


_WHOLE_WORDS = frozenset(_WORDS)


def tokenizer_files(model_max_length: int, markup: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The tokenizer's files by name, as JSON values. ``model_max_length`` is in tokens.

    Each text of ``markup`` is one token, in the place of one that is reserved.
    """
    return {
        "tokenizer.json": _tokenizer(markup),
        "tokenizer_config.json": {
            "additional_special_tokens": list(_SPECIAL),
            "bos_token": None,
            "chat_template": _CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": _SPECIAL[STOP_ID],
            "model_max_length": model_max_length,
            "pad_token": _SPECIAL[PAD_ID],
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": None,
        },
        "generation_config.json": {
            "do_sample": True,
            "eos_token_id": STOP_ID,
            "pad_token_id": PAD_ID,
        },
    }


def _tokenizer(markup: Sequence[str]) -> dict[str, Any]:
    vocabulary = [*VOCABULARY[: _SIZE - len(markup)], *markup]
    special = [_added_token(token, vocabulary, special=True) for token in range(len(_SPECIAL))]
    marks = range(_SIZE - len(markup), _SIZE)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [*special, *(_added_token(token, vocabulary) for token in marks)],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": {**byte_level, "use_regex": True},
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: token for token, text in enumerate(vocabulary)},
            "merges": [[prefix[:-1], prefix[-1]] for prefix in _prefixes()],
        },
    }


def _added_token(token: int, vocabulary: Sequence[str], *, special: bool = False) -> dict[str, Any]:
    return {
        "id": token,
        "content": vocabulary[token],
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }
