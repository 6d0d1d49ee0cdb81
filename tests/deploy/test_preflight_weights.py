"""The weights on disk: names, sizes and headers, without reading a weight."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy import recipe
from deploy.preflight import cli
from deploy.preflight.host import Host
from deploy.preflight.weights import Weights, read_weights
from tests.support import recorded_hosts
from tests.support.recorded_hosts import HUB, Tree

LOADED = recipe.load()
PROFILE = LOADED.profile("mi355x")


def snapshot(root: Path) -> Path:
    """A whole snapshot in a real folder; returns the snapshot's own."""
    return recorded_hosts.weights(Tree(root))


def read(root: Path) -> Weights:
    """The weights as this machine sees them."""
    found = read_weights(Host({"HF_HUB_CACHE": str(root / HUB)}), PROFILE.model, {})
    assert isinstance(found, Weights)
    return found


def findings(root: Path, **environ: str) -> dict[str, tuple[str, str, str]]:
    """Level, what was seen and remedy of each weights check, on the real file system."""
    host = Host({"HF_HUB_CACHE": str(root / HUB), **environ})
    report = cli.inspect(host, LOADED, PROFILE)
    return {
        f.check: (f.level, f.seen, f.remedy)
        for f in report.findings
        if f.check.startswith("weights.")
    }


def test_whole_files_agree_with_their_headers(tmp_path: Path) -> None:
    """Size, header and index fit together."""
    snapshot(tmp_path)
    found = read(tmp_path)
    assert isinstance(found.shards, tuple)
    assert [shard.is_whole for shard in found.shards] == [True] * 3
    assert findings(tmp_path)["weights.shards"][0] == "ok"


def header(text: bytes) -> bytes:
    """A file of a header and nothing else."""
    return struct.pack("<Q", len(text)) + text


Damage = Callable[[Path], object]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: f.unlink(), "is missing"),
        (lambda f: f.write_bytes(f.read_bytes()[:-1]), "bytes of"),
        (lambda f: f.write_bytes(f.read_bytes() + b"x"), "bytes of"),
        (lambda f: f.write_bytes(f.read_bytes()[:20]), "ends inside its header"),
        (lambda f: f.write_bytes(b""), "does not begin as a safetensors file"),
        (lambda f: f.write_bytes(b"version https://git-lfs"), "does not begin as a safetensors"),
        (lambda f: f.write_bytes(header(b"[]")), "not a JSON object"),
        (lambda f: f.write_bytes(header(b"[" * 100_000)), "not a JSON object"),
        (lambda f: f.write_bytes(header(b'{"a":{"data_offsets":[0]}}')), "without data_offsets"),
        (lambda f: f.write_bytes(header(b'{"a":7}')), "without data_offsets"),
        (lambda f: f.write_bytes(recorded_hosts.safetensors({"other": 16})), "lacks layers.2.weight"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_with_the_command_that_replaces_it(
    tmp_path: Path, damage: Damage, told: str
) -> None:
    """Cut, grown, empty, an LFS pointer, another file's content."""
    file = next(snapshot(tmp_path).glob("model-00002-*"))
    damage(file)
    level, seen, remedy = findings(tmp_path)["weights.shards"]
    assert level == "fail"
    assert told in seen
    assert "1 of 3 files" in seen
    assert f"hf download {PROFILE.model.id} {file.name}" in remedy
    assert "--force-download" in remedy


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 7}}', '{"weight_map": {"a": "../b"}}'],
)  # fmt: skip
def test_an_index_without_sense_fails(tmp_path: Path, text: str) -> None:
    """What it places nowhere, or outside of the folder, is not followed."""
    folder = snapshot(tmp_path)
    (folder / "model.safetensors.index.json").write_text(text)
    level, seen, _ = findings(tmp_path)["weights.shards"]
    assert level == "fail"
    assert "model.safetensors.index.json" in seen


def test_another_revision_does_not_do(tmp_path: Path) -> None:
    """The snapshots that are there are named."""
    folder = snapshot(tmp_path)
    folder.rename(folder.with_name("0123abc"))
    level, seen, remedy = findings(tmp_path)["weights.revision"]
    assert level == "fail"
    assert "there is 0123abc" in seen
    assert f"--revision {PROFILE.revision}" in remedy


def test_an_online_start_downloads_so_that_it_is_a_warning(tmp_path: Path) -> None:
    """Only an offline start stops on missing weights."""
    assert findings(tmp_path, HF_HUB_OFFLINE="0")["weights.revision"][0] == "warn"
    assert findings(tmp_path)["weights.revision"][0] == "fail"


def test_the_disk_must_hold_what_is_missing(tmp_path: Path) -> None:
    """The room is that of the file system under the cache, which need not exist yet."""
    real = Host().disk(str(tmp_path)).free
    level, seen, _ = findings(tmp_path / "not" / "there")["weights.disk"]
    assert (level == "ok") == (real >= (PROFILE.model.weights_bytes or 0))
    assert "167 GB" in seen


def test_download_dir_is_where_the_weights_are_sought(tmp_path: Path) -> None:
    """vLLM's flag wins over the hub's variables."""
    snapshot(tmp_path)
    report = cli.inspect(
        Host({"HF_HUB_CACHE": str(tmp_path / "elsewhere")}),
        LOADED,
        PROFILE,
        ["--download-dir", str(tmp_path / HUB)],
    )
    levels = {f.check: f.level for f in report.findings}
    assert levels["weights.revision"] == "ok"


def test_no_weight_is_read(tmp_path: Path) -> None:
    """A sparse terabyte behind a header is judged by its size alone."""
    folder = snapshot(tmp_path)
    file = next(folder.glob("model-00001-*"))
    size = 1 << 40
    text = json.dumps({"layers.1.weight": {"data_offsets": [0, size]}}).encode()
    with file.open("wb") as out:
        out.write(header(text))
        out.truncate(8 + len(text) + size)
    assert findings(tmp_path)["weights.shards"][0] == "ok"
