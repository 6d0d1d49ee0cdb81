"""Publishing a folder in the cache: complete or absent."""

from pathlib import Path

import pytest

from deploy.environment import cache_dir
from deploy.rehearsal.cache import publish
from deploy.rehearsal.errors import RehearsalError


def write_one(folder: Path) -> None:
    """A build of one file."""
    (folder / "file").write_text("built")


def test_published_folder_is_reused(tmp_path: Path) -> None:
    """The second call returns the first one's folder without building."""
    folder = publish(tmp_path / "made" / "key", write_one)
    publish(folder, lambda _: pytest.fail("built again"))
    assert (folder / "file").read_text() == "built"


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    """A build that raises half-way publishes nothing and leaves no unfinished folder."""

    def fail(folder: Path) -> None:
        write_one(folder)
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        publish(tmp_path / "key", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_leftover_of_a_killed_builder_is_removed(tmp_path: Path) -> None:
    """What a killed builder left is no obstacle and is gone after the next build."""
    (tmp_path / ".unfinished-dead").mkdir()
    (tmp_path / ".unfinished-dead" / "file").write_text("half")
    publish(tmp_path / "key", write_one)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "key"]


def test_unwritable_place_is_one_clear_line(tmp_path: Path) -> None:
    """A cache below a file is refused with the folder, the reason and the setting to change."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RehearsalError, match=r"file/made: Not a directory: .*DSPARK_CACHE"):
        publish(tmp_path / "file" / "made" / "key", write_one)


def test_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    """ENOSPC in the middle of a build names the cache folder; nothing is published."""
    with pytest.raises(RehearsalError, match=r"No space left on device: free some disk space"):
        publish(tmp_path / "key", lambda _: Path("/dev/full").write_text("x"))
    assert not (tmp_path / "key").exists()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DSPARK_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, Path("/a/b")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/dspark-rocm")),
        ({"XDG_CACHE_HOME": ""}, Path.home() / ".cache" / "dspark-rocm"),
        ({}, Path.home() / ".cache" / "dspark-rocm"),
    ],
)
def test_cache_folder_follows_the_environment(environ: dict[str, str], expected: Path) -> None:
    """DSPARK_CACHE wins over XDG_CACHE_HOME, which wins over ~/.cache."""
    assert cache_dir(environ) == expected
