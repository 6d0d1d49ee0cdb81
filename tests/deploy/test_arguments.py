"""A list of flags in vLLM's spellings: what is read out of it, and that vLLM reads the same."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from deploy import recipe
from deploy.plan import arguments
from deploy.plan.arguments import ArgumentsError, Given
from deploy.recipe import vocabulary

WORDS = recipe.load().vllm.vocabulary


def read(*words: str) -> Given:
    """What a list gives."""
    return arguments.read(words, WORDS)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("-tp 8", {"tensor-parallel-size": 8}),
        ("-tp=8", {"tensor-parallel-size": 8}),
        ("-qfp8 -n2", {"quantization": "fp8", "nnodes": 2}),
        ("--tensor_parallel_size=8", {"tensor-parallel-size": 8}),
        ("--max-num-batched-tok 16k", {"max-num-batched-tokens": 16_000}),
        ("--max-num-batched-tokens=16K", {"max-num-batched-tokens": 16_384}),
        ("--kv-cache-memory-bytes 1_000", {"kv-cache-memory-bytes": 1000}),
        ("--kv-cache-memory-bytes None", {"kv-cache-memory-bytes": None}),
        ("--max-model-len Auto", {"max-model-len": -1}),
        ("--max-model-len -1", {"max-model-len": -1}),
        ("--moe-backend Triton-Unfused", {"moe-backend": "triton_unfused"}),
        ("-O3", {"optimization-level": "3"}),
        ("-O 0", {"optimization-level": "0"}),
        ("-O=2", {"optimization-level": "2"}),
        ("--no-enforce-eager", {"enforce-eager": False}),
        ("--enforce-eager --no_enforce_eager", {"enforce-eager": False}),
        ("--served-model-name a b --seed 1", {"served-model-name": ["a", "b"], "seed": 1}),
        ("--cudagraph-capture-sizes 1 2", {"cudagraph-capture-sizes": [1, 2]}),
        ("--middleware a --middleware b", {"middleware": ["a", "b"]}),
        ("--seed 1 --seed 2", {"seed": 2}),
        ('--allowed-origins ["x"]', {"allowed-origins": ["x"]}),
        ('--compilation-config {"max_cudagraph_capture_size":1k}', {"compilation-config": {"max_cudagraph_capture_size": 1000}}),
    ],
)  # fmt: skip
def test_every_spelling_gives_its_value(words: str, values: dict[str, Any]) -> None:
    """Short forms, beginnings, underscores, sizes, letters of either case; the last one wins."""
    assert read(*words.split()) == Given(values)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("--attention_config.use_fp4_indexer_cache=False", {"attention-config": {"use_fp4_indexer_cache": "False"}}),
        ("-cc.cudagraph_mode=NONE -cc.mode 3", {"compilation-config": {"cudagraph_mode": "NONE", "mode": 3}}),
        ("-cc.pass_config.enable_sp=true -cc.pass_config.fuse_norm_quant false", {"compilation-config": {"pass_config": {"enable_sp": True, "fuse_norm_quant": False}}}),
        ("-cc.custom_ops+=none,+quant_fp8 -cc.custom_ops+ +rms_norm", {"compilation-config": {"custom_ops": ["none", "+quant_fp8", "+rms_norm"]}}),
        ("-cc.max_cudagraph_capture_size=2k", {"compilation-config": {"max_cudagraph_capture_size": 2000}}),
        ("--speculative-config.num_speculative_tokens=5", {"speculative-config": {"num_speculative_tokens": 5}}),
        ("--hf-overrides.rope.factor 2.5", {"hf-overrides": {"rope": {"factor": 2.5}}}),
        ("-cc.mode=1 --seed 2 -cc.mode=3", {"seed": 2, "compilation-config": {"mode": 3}}),
    ],
)  # fmt: skip
def test_single_keys_of_an_object_are_read(words: str, values: dict[str, Any]) -> None:
    """By dots, with a value beside or joined; a plus adds to a list, numbers may be sizes."""
    given = read(*words.split())
    assert given.values == values
    assert given.keyed == {name for name, value in values.items() if isinstance(value, dict)}
    assert not given.unread


@pytest.mark.parametrize(
    "words",
    ['--compilation-config {"mode":3} -cc.cudagraph_mode=NONE', "--compilation-config.mode=3 -cc.cudagraph_mode=NONE"],
)  # fmt: skip
def test_what_vllm_drops_beside_single_keys_is_told(words: str) -> None:
    """An object of the same flag, wherever it stands, and the keys of another spelling of it."""
    given = read(*words.split())
    assert given.values == {"compilation-config": {"cudagraph_mode": "NONE"}}
    assert given.unread == {"compilation-config"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--max-num 8", "--max-num: got the beginning of several flags; give one of --max-num-batched-tokens, --max-num-scheduled-tokens, --max-num-seqs"),
        ("--max-num-seqs 8 9", "9: got an unknown server flag; vLLM 0.27.1 has no such flag"),
        ("--no-headless", "--no-headless: got an unknown server flag; vLLM 0.27.1 has no such flag"),
        ("--headless=1", "--headless: got '1'; it takes no value: --headless"),
        ("--block-size 16k", "--block-size: got '16k'; give int"),
        ("--max-num-batched-tokens 1.5K", "--max-num-batched-tokens: got '1.5K'; give a size, such as 4096, 16k or 16K"),
        ("--gpu-memory-utilization x", "--gpu-memory-utilization: got 'x'; give float"),
        ("--dtype fp64", "--dtype: got 'fp64'; give one of auto, bfloat16, float, float16, float32, half"),
        ("--max-lora-rank 7", "--max-lora-rank: got '7'; give one of 1, 8, 16, 32, 64, 128, 256, 320, 512"),
        ("-cc.cudagraph_mode", "-cc.cudagraph_mode: got no value; give -cc.cudagraph_mode=VALUE"),
        ("--seed.x=1", "--seed.x: --seed takes no keys"),
        ("--nonsense.x=1", "--nonsense: got an unknown server flag; vLLM 0.27.1 has no such flag"),
        ("--config=x.yaml", arguments.NO_FILE),
        ("--config x.yaml", arguments.NO_FILE),
        ("-- --seed 1", "--: got an unknown server flag; vLLM 0.27.1 has no such flag"),
        ('--compilation-config {"mode":1k}x', """--compilation-config: got '{"mode":1k}x'; give a JSON object"""),
        ("--allowed-origins [", "--allowed-origins: got '['; give a JSON object"),
    ],
)  # fmt: skip
def test_what_vllm_would_refuse_is_one_line(words: str, line: str) -> None:
    """The flag, the value seen, the fix."""
    with pytest.raises(ArgumentsError) as refused:
        read(*words.split())
    assert str(refused.value).split("; did you")[0] == line


def test_an_unknown_key_of_an_object_is_refused_with_those_there_are() -> None:
    """vLLM refuses it too, after minutes; every configuration object says what keys it has."""
    with pytest.raises(ArgumentsError, match="unknown key 'cudagraph_modes'; did you mean") as one:
        read("-cc.cudagraph_modes=NONE")
    assert "; it has backend, " in str(one.value)
    configs = [flag for flag in WORDS.flags.values() if flag.kind == "config"]
    assert len(configs) > 10 and all(flag.keys for flag in configs)


def test_single_keys_lie_over_the_keys_from_before() -> None:
    """An object replaces an object; keys replace keys, inside objects too."""
    under = {"mode": 3, "pass_config": {"enable_sp": True, "fuse_norm_quant": True}}
    keyed = read("-cc.pass_config.enable_sp=false", "-cc.cudagraph_mode=NONE")
    assert keyed.over("compilation-config", under) == {
        "mode": 3,
        "pass_config": {"enable_sp": False, "fuse_norm_quant": True},
        "cudagraph_mode": "NONE",
    }
    whole = read("--compilation-config", '{"mode":0}')
    assert whole.over("compilation-config", under) == {"mode": 0}
    assert keyed.over("compilation-config", None) == keyed.values["compilation-config"]


# --- against vLLM's own parser ----------------------------------------------------------------

# Values of keys that vLLM takes, and ones it does not. Of other keys it checks types that are its
# own business.
KEYS = {
    "compilation-config": {
        "cudagraph_mode": ("NONE", "full_decode_only", "Piecewise", "2", "null"),
        "mode": ("0", "3", "none"),
        "max_cudagraph_capture_size": ("1k", "512"),
        "cudagraph_capture_sizes": ("[1,2]",),
        "no_such_key": ("1",),
    },
    "attention-config": {"use_fp4_indexer_cache": ("False", "true", "0"), "no_such": ("1",)},
    "speculative-config": {"method": ("dspark",), "num_speculative_tokens": ("5", "7", "1k")},
    "hf-overrides": {"rope": ("2.5", "x"), "a_b": ("1K",)},
}
VALUES = {
    "int": ("1", "8", "-1", " 4", "1_0", "+2", "16k", "x", ""),
    "float": ("0.5", "1", "-2", "1e-3", "x"),
    "size": ("4096", "16k", "16K", "1.5k", "1.5K", "2G", "-1", "1_0", "auto", "x"),
    "size-or-auto": ("4096", "16k", "Auto", "-1", "x"),
    "string": ("x", "A-b", "None", "", "a.b", "-x", "a b", "-a b", "x=y"),
    "name": ("aiter", "AITER", "triton-unfused", "auto", "x"),
    "any": ("0,1", "0"),
    "list": ("1", "8", "x", "a=b"),
    "append": ("a.b", "c"),
    "bool": ("true",),
    "switch": ("true",),
}
# Refused here though vLLM takes them, by the tests above; --lora-modules has a grammar of its own.
OURS = {"config", "api-key", "hf-token", "lora-modules"}


def argument_lists(seed: int) -> Iterator[list[str]]:
    """Lists without end: one to four flags, each in any spelling, with values right and wrong."""
    chance = random.Random(seed)
    names = sorted(WORDS.flags.keys() - OURS)
    while True:
        words: list[str] = []
        for _ in range(chance.randint(1, 4)):
            words += one_flag(chance, chance.choice([*names, *KEYS, *KEYS]))
        yield words


def one_flag(chance: random.Random, name: str) -> list[str]:
    """One flag in any spelling with a value of its kind, most often one that vLLM takes."""
    flag = WORDS.flags[name]
    if name == "optimization-level" and chance.random() < 0.7:
        return chance.choice((["-O3"], ["-O", "2"], ["-O=1"], ["-O0"]))
    spelt = chance.choice((f"--{name}", f"--{name.replace('-', '_')}", *flag.aliases * 2))
    if spelt.startswith("--") and chance.random() < 0.1:
        spelt = spelt[: max(8, len(spelt) - chance.randint(1, 3))]
    if flag.kind in ("bool", "switch"):
        no = chance.random() < 0.4
        spelt = spelt.replace("--", "--no-", 1) if no else spelt
        return [spelt] if chance.random() < 0.95 else [f"{spelt}=true"]
    if name in KEYS and chance.random() < 0.6:
        key = chance.choice(sorted(KEYS[name]))
        option, value = f"{spelt}.{key}", chance.choice(KEYS[name][key])
        return [f"{option}={value}"] if chance.random() < 0.5 else [option, value]
    if flag.kind in ("config", "json", "table"):
        texts = ["{}"] if flag.kind == "config" else ["{}", "[", '{"a": 1}']
        texts += ["None"] if flag.kind == "table" or flag.optional else []
        value = chance.choice(texts)
    elif flag.choices and chance.random() < 0.7:
        value = str(chance.choice(flag.choices))
    else:
        value = chance.choice(VALUES[flag.kind])
    if flag.kind == "list" and chance.random() < 0.5:
        return [spelt, value, chance.choice(VALUES["list"])]
    if chance.random() < 0.03:
        return [spelt]
    if len(spelt) == 2 and chance.random() < 0.3:
        return [spelt + value]
    return [f"{spelt}={value}"] if chance.random() < 0.5 else [spelt, value]


SIZES = ("0", "4096", "16k", "16K", "25.6k", "2M", "2m", "1G", "1g", "1.5T", "-1", "auto", "x", "")

# One process reads all of it, because importing vLLM takes longer than reading.
ASK = """
import dataclasses, gc, json, re, sys
gc.disable()  # an import makes no garbage, and looking for it takes long
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser, human_readable_int_or_auto

class Parser(FlexibleArgumentParser):
    def error(self, message):
        raise ValueError(message)

parser = make_arg_parser(Parser())
PLAIN = vars(parser.parse_args(["MODEL"]))

def told(value):
    if dataclasses.is_dataclass(value):
        return re.sub("engine_id='[^']*'", "", repr(value))  # made anew each time
    try:
        json.dumps(value)
    except TypeError:
        return repr(value)
    return value

def read(words):
    try:
        args = vars(parser.parse_args(["MODEL", *words]))
    except Exception:
        return None
    if args["model_tag"] != "MODEL":
        return None
    return {
        name.replace("_", "-"): told(value)
        for name, value in args.items()
        if name != "model_tag" and value is not PLAIN[name] and told(value) != told(PLAIN[name])
    }

def size(text):
    try:
        return human_readable_int_or_auto(text)
    except Exception:
        return -1

given = json.load(sys.stdin)
args = EngineArgs(model="x", reasoning_parser=given["parser"])
args._set_default_reasoning_config_args()
print("READ" + json.dumps({
    "lists": [[read(raw), ours and read(ours)] for raw, ours in given["lists"]],
    "sizes": [size(text) for text in given["sizes"]],
    "reasoning": {k: v for k, v in vars(args.reasoning_config).items() if not k.startswith("_")},
}))
"""


LISTS = [words for words, _ in zip(argument_lists(20261130), range(3000), strict=False)]
PARSER = recipe.load().profile("mi355x").serve["reasoning-parser"]


@pytest.fixture(scope="module")
def ours() -> list[Given | None]:
    """What each list gives, None where it is refused."""
    given: list[Given | None] = []
    for words in LISTS:
        try:
            given.append(read(*words))
        except ArgumentsError:
            given.append(None)
    return given


@pytest.fixture(scope="module")
def theirs(ours: list[Given | None]) -> dict[str, Any]:
    """What vLLM makes of the lists, and of the words that we make of them."""
    written = [
        given and [word for name, value in given.values.items() for word in arguments.words_of(name, value, WORDS)]
        for given in ours
    ]  # fmt: skip
    lists = list(zip(LISTS, written, strict=True))
    ended = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps({"lists": lists, "sizes": SIZES, "parser": PARSER}),
        env={**os.environ, "VLLM_LOGGING_LEVEL": "CRITICAL"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(ended.stdout.rpartition("READ")[2])  # type: ignore[no-any-return]


@pytest.mark.real
def test_vllm_reads_what_we_read(ours: list[Given | None], theirs: dict[str, Any]) -> None:
    """Of 3,000 made lists: those that it refuses are refused here, the others have its values, and
    the words that we make of these are read as the list itself."""
    taken = 0
    for words, given, (once, again) in zip(LISTS, ours, theirs["lists"], strict=True):
        assert (given is None) == (once is None), (words, given, once)
        if given is None:
            continue
        taken += 1
        assert again == once, (words, given)
        for name, value in given.values.items():
            if WORDS.flags[name].kind not in ("config", "table", "any") and name in once:
                assert once[name] == value, words
    assert len(LISTS) / 3 < taken < len(LISTS) * 0.9


@pytest.mark.real
def test_vllm_reads_a_size_as_we_do(theirs: dict[str, Any]) -> None:
    """Small letters count by 1,000, capitals by 1,024; none where it refuses or chooses itself."""
    read = [vocabulary.size(text) for text in SIZES]
    numbers = [0, 4096, 16_000, 16_384, 25_600, 2 << 20, 2_000_000, 1 << 30, 10**9]
    assert read == [*numbers, None, None, None, None, None]
    assert theirs["sizes"] == [-1 if size is None else size for size in read]


@pytest.mark.real
def test_vllm_makes_the_recipes_reasoning_config_by_itself(theirs: dict[str, Any]) -> None:
    """That of vLLM's own recipes follows from the reasoning-parser that ours names."""
    assert theirs["reasoning"] == {
        "reasoning_parser": PARSER,
        "reasoning_start_str": "",
        "reasoning_end_str": "",
    }
