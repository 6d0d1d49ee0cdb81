"""Fetching the weights: what is asked of the hub, and what is believed of the files."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import recipe
from deploy.containers.weights import WeightsError, verify
from tests.support import recorded_hosts
from tests.support.recorded_hosts import Tree

ROOT = Path(__file__).resolve().parents[2]
PROFILE = recipe.load().profile("mi355x")


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A snapshot as the hub's cache lays it: links to blobs that are named by their digests."""
    folder = recorded_hosts.weights(Tree(tmp_path))
    blobs = folder.parents[1] / "blobs"
    blobs.mkdir()
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        large = path.suffix == ".safetensors"
        blob = blobs / (hashlib.sha256(data).hexdigest() if large else git)
        path.replace(blob)
        path.symlink_to(os.path.relpath(blob, folder))
    return folder


def environ_of(snapshot: Path) -> dict[str, str]:
    """The variable by which the cache is found."""
    return {"HF_HUB_CACHE": str(snapshot.parents[2])}


def flip(path: Path) -> None:
    """Change the last byte and keep the size."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.resolve().write_bytes(data)


def test_whole_weights_are_believed(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every file has the digest of its name, and every shard the tensors of the index."""
    assert verify(PROFILE, environ_of(snapshot)) == snapshot
    assert "3 shards, every byte as the hub has it" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "config.json"])
def test_a_changed_byte_is_found_and_the_file_is_fetched_anew(snapshot: Path, name: str) -> None:
    """Size and header tell nothing of it; what differs goes, so that the next run brings it."""
    flip(snapshot / name)
    with pytest.raises(
        WeightsError, match=rf"^{name}: not what the hub has, and removed; run this"
    ):
        verify(PROFILE, environ_of(snapshot))
    assert not (snapshot / name).is_symlink()
    assert len(list((snapshot.parents[1] / "blobs").iterdir())) == len(list(snapshot.iterdir()))


def test_a_link_without_its_blob_is_removed(snapshot: Path) -> None:
    """As after a volume that was filled up to its end."""
    (snapshot / "config.json").resolve().unlink()
    with pytest.raises(WeightsError, match=r"^config.json: not what the hub has"):
        verify(PROFILE, environ_of(snapshot))
    assert not (snapshot / "config.json").is_symlink()


def test_a_shard_that_never_came_is_named(snapshot: Path) -> None:
    """The index asks for it, whatever else is there."""
    (snapshot / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"^model-00003-of-00003\.safetensors: missing, or not"):
        verify(PROFILE, environ_of(snapshot))


def test_a_file_without_a_digest_is_not_believed(snapshot: Path) -> None:
    """Only the hub's cache tells what a file should be."""
    path = snapshot / "config.json"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=r"config\.json: is no link to a blob"):
        verify(PROFILE, environ_of(snapshot))


def test_no_snapshot_is_said(tmp_path: Path) -> None:
    """A cache without the pinned revision."""
    with pytest.raises(WeightsError, match=r"at 7872f01b1d1f\w+ is not in"):
        verify(PROFILE, {"HF_HUB_CACHE": str(tmp_path)})


HF = """#!/bin/sh
echo "$HF_HUB_OFFLINE $*" > "$TOLD"
exit "$CODE"
"""


def run(folder: Path, snapshot: Path, code: int, profile: str = "mi355x") -> list[str]:
    """`python3 -m deploy weights` with a stand-in for the hub's program; code and last line."""
    program = folder / "hf"
    program.write_text(HF)
    program.chmod(0o755)
    environ = {**os.environ, **environ_of(snapshot), "DSPARK_PROFILE": profile}
    environ |= {"PATH": f"{folder}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    environ |= {"TOLD": str(folder / "told"), "CODE": str(code)}
    command = [sys.executable, "-m", "deploy", "weights"]
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    return [str(ended.returncode), *(ended.stderr or ended.stdout).splitlines()[-1:]]


def test_the_hub_is_asked_for_the_pinned_revision(tmp_path: Path, snapshot: Path) -> None:
    """Online for this one command, whatever the server's environment says; then all is read."""
    code, line = run(tmp_path, snapshot, 0)
    assert code == "0" and line.endswith(str(snapshot))
    told = (tmp_path / "told").read_text().split()
    assert told == ["0", "download", PROFILE.model.id, "--revision", PROFILE.revision]


def test_a_download_that_fails_is_no_success(tmp_path: Path, snapshot: Path) -> None:
    """Whole as the files may be: the hub's program did not end well, and the next run goes on."""
    code, line = run(tmp_path, snapshot, 3)
    assert code == "1" and line.startswith(
        "weights: hf download: ended with 3; see its lines above"
    )


def test_a_rehearsal_has_no_weights_to_fetch(tmp_path: Path, snapshot: Path) -> None:
    """Its models are generated."""
    code, line = run(tmp_path, snapshot, 0, "rehearsal")
    assert code == "1" and "are generated; there is no download" in line
    assert not (tmp_path / "told").exists()
