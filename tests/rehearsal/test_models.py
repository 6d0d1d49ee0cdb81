"""The tiny models: the same bytes everywhere, published all at once."""

import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy import recipe
from deploy.rehearsal import models
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.tokenizer import STOP_ID, VOCABULARY, is_word

REPOSITORY = Path(__file__).resolve().parents[2]
TENSOR_BYTES = {"BF16": 2}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, built once for this module."""
    return models.publish_models(tmp_path_factory.mktemp("models"))


def header(model: Path) -> dict[str, Any]:
    """The safetensors header of a model folder, checked to describe exactly the bytes there are."""
    content = (model / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    tensors: dict[str, Any] = json.loads(content[8 : 8 + length])
    del tensors["__metadata__"]
    end = 0
    for tensor in tensors.values():
        start, stop = tensor["data_offsets"]
        assert start == end
        assert stop - start == math.prod(tensor["shape"]) * TENSOR_BYTES[tensor["dtype"]]
        end = stop
    assert 8 + length + end == len(content)
    return tensors


def test_bytes_match_the_recorded_digest(tmp_path: Path) -> None:
    """A build gives the recorded bytes, whatever the machine, the Python and the hash seed."""
    models.build_models(tmp_path)
    assert models.content_digest(tmp_path) == models.CONTENT_DIGEST


def test_another_hash_seed_and_locale_give_the_same_folder(tmp_path: Path, published: Path) -> None:
    """The command in a process with other settings publishes the same folder name."""
    environ = {**os.environ, "PYTHONHASHSEED": "12345", "LC_ALL": "C", "TZ": "Asia/Tokyo"}
    assert run_models(tmp_path, environ).stdout.strip() == str(tmp_path / published.name)


def test_digest_sees_names_and_bytes(tmp_path: Path) -> None:
    """Moving bytes from one file to its neighbour changes the digest."""
    (tmp_path / "a").write_bytes(b"xy")
    (tmp_path / "b").write_bytes(b"z")
    before = models.content_digest(tmp_path)
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").write_bytes(b"yz")
    assert models.content_digest(tmp_path) != before


def test_changed_content_is_refused_and_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that does not give the expected bytes leaves no folder behind."""
    monkeypatch.setattr(models, "CONTENT_DIGEST", "f" * 64)
    with pytest.raises(RehearsalError, match="expected f+"):
        models.publish_models(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_every_variant_has_a_readable_target_and_draft(published: Path) -> None:
    """All weight files are well-formed and hold one value per element of their config's shapes."""
    for variant in models.VARIANTS:
        for name, head in (("target", "lm_head.weight"), ("draft", "markov_head.markov_w2.weight")):
            folder = published / variant / name
            config = json.loads((folder / "config.json").read_text())
            assert header(folder)[head]["shape"] == [config["vocab_size"], config["hidden_size"]]


def test_draft_block_is_what_the_recipe_drafts(published: Path) -> None:
    """The rehearsal drafts as many tokens per step as production does."""
    speculative = recipe.load().profile("rehearsal").speculative
    assert speculative is not None
    config = json.loads((published / models.HEALTHY / "draft" / "config.json").read_text())
    assert config["block_size"] == speculative["num_speculative_tokens"]


def test_context_is_long_enough_for_the_recipe(published: Path) -> None:
    """The models have a position for every token that the recipe lets a request use."""
    profile = recipe.load().profile("rehearsal")
    config = json.loads((published / models.HEALTHY / "target" / "config.json").read_text())
    assert config["max_position_embeddings"] >= profile.serve["max-model-len"]


def test_faulty_targets_differ_in_one_tensor_only(published: Path) -> None:
    """Each weight fault is in one tensor: one NaN in the final norm, or an lm_head of zeros."""
    healthy = tensors(published / models.HEALTHY / "target")
    nan = tensors(published / models.NAN_WEIGHTS / "target")
    dead = tensors(published / models.DEAD_LM_HEAD / "target")
    assert [name for name in healthy if nan[name] != healthy[name]] == ["model.norm.weight"]
    assert nan["model.norm.weight"][:2] == b"\xc0\x7f"
    assert [name for name in healthy if dead[name] != healthy[name]] == ["lm_head.weight"]
    assert not any(dead["lm_head.weight"])


def tensors(model: Path) -> dict[str, bytes]:
    """Tensor name -> its bytes."""
    content = (model / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    values = content[8 + length :]
    described = header(model)
    return {name: values[slice(*entry["data_offsets"])] for name, entry in described.items()}


def test_vocabulary_is_a_bijection_of_words_and_bytes() -> None:
    """Every token text is unique, all bytes are there, and the end of an answer is no word."""
    assert len(set(VOCABULARY)) == len(VOCABULARY) == 1024
    assert sum(map(is_word, VOCABULARY)) > 200
    assert not is_word(VOCABULARY[STOP_ID])


def test_tokenizer_reads_back_any_text(published: Path) -> None:
    """Words are one token each; any other text survives the way through its bytes."""
    tokenizers = pytest.importorskip("tokenizers")
    path = published / models.HEALTHY / "target" / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    assert len(tokenizer.encode(" good day for a long letter").ids) == 6
    for text in ("the water is", "def f(x):\n\treturn x", "naïve 日本 🙂", " good<|im_end|>"):
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_builders_at_the_same_time_agree(tmp_path: Path) -> None:
    """Three builders started together all succeed, name one folder, and leave nothing else."""
    command = models_command(tmp_path)
    builders = [
        subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    printed = {builder.communicate(timeout=120)[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert len(printed) == 1
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [Path(printed.pop())]


def run_models(out: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the command that builds the models; it must succeed."""
    return subprocess.run(
        models_command(out),
        cwd=REPOSITORY,
        env=environ,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )


def models_command(out: Path) -> list[str]:
    """The command line that builds the models in ``out``."""
    publish = "from deploy.rehearsal.models import publish_models as p; print(p(Path(sys.argv[1])))"
    return [sys.executable, "-c", f"import sys; from pathlib import Path; {publish}", str(out)]
