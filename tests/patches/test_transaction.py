"""All or nothing: runs that are killed, refused by the disk, raced, or tampered with."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from patches import series, transaction
from patches.apply import apply, status
from patches.errors import InterruptedApplyError, PatchesError
from patches.series import Series
from tests.support.made_series import MadePatch, sha256, snapshot, write_series, write_tree

A, B, C = "vllm/a.py", "vllm/deep/b.py", "vllm/deep/er/c.py"
OLD, NEW = b"a = 1\nb = 2\n", b"a = 1\nb = 33\n"
DEADLINE_S = 60
UNPRIVILEGED_UID = 65534

STEPS = [
    "staged",
    "journal written",
    "renamed 0",
    "renamed 1",
    "renamed 2",
    "bytecode dropped",
    "committed",
]
HALF_DONE = STEPS[1:-1]

KILLED = """
import os, signal, sys
from pathlib import Path
from patches import series
from patches.apply import apply
root, folder, fatal, reverse = sys.argv[1:]
def step(name):
    if name == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
apply(Path(root), series.load(Path(folder)), reverse=reverse == "yes", step=step)
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Series:
    """A series of two patches over three files in three folders."""
    patches = [
        MadePatch("0001-ab.patch", {A: (OLD, NEW), B: (OLD, NEW)}),
        MadePatch("0002-c.patch", {C: (OLD, NEW)}),
    ]
    return series.load(write_series(tmp_path / "series", patches))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree that series fits."""
    return write_tree(tmp_path / "tree", {A: OLD, B: OLD, C: OLD})


def _killed_at(step: str, root: Path, loaded: Series, *, reverse: bool = False) -> None:
    command = [sys.executable, "-c", KILLED, str(root), str(loaded.folder), step]
    done = subprocess.run(
        [*command, "yes" if reverse else "no"], cwd=series.FOLDER.parent, timeout=DEADLINE_S
    )
    assert done.returncode == -signal.SIGKILL


def _states(root: Path, loaded: Series) -> set[str]:
    return {found.state for found in status(root, loaded)}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_kill_is_never_half_a_series(step: str, reverse: bool, root: Path, loaded: Series) -> None:
    """Killed at any point, a tree is whole, or says that it is not; the next run makes it whole."""
    if reverse:
        apply(root, loaded)
    _killed_at(step, root, loaded, reverse=reverse)
    if step in HALF_DONE:
        with pytest.raises(
            InterruptedApplyError, match=r"interrupted half-way .*: run: python3 -m"
        ):
            status(root, loaded)
    else:
        begun, ended = ("applied", "pending") if reverse else ("pending", "applied")
        assert _states(root, loaded) == {ended if step == "committed" else begun}
    outcome = apply(root, loaded)
    assert outcome.rolled_back == {"renamed 0": 1, "renamed 1": 2}.get(
        step, 3 if step in ("renamed 2", "bytecode dropped") else 0
    )
    assert _states(root, loaded) == {"applied"}
    apply(root, loaded, reverse=True)
    assert {(root / path).read_bytes() for path in (A, B, C)} == {OLD}
    assert not (root / "vllm" / transaction.STAGING).exists()


@pytest.mark.parametrize("step", HALF_DONE)
def test_an_interrupt_takes_back_what_was_begun(step: str, root: Path, loaded: Series) -> None:
    """Ctrl-C in the middle leaves the tree as it was, with nothing staged, and goes on up."""
    before = snapshot(root)

    def interrupt(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply(root, loaded, step=interrupt)
    assert snapshot(root) == before
    assert _states(root, loaded) == {"pending"}


def test_rollback_comes_before_refusal(root: Path, loaded: Series) -> None:
    """After a kill, even a run that then refuses the series leaves no half of the earlier one."""
    _killed_at("renamed 1", root, loaded)
    folder = write_series(
        loaded.folder.parent / "other", [MadePatch("0001-x.patch", {A: (b"x\n", b"y\n")})]
    )
    with pytest.raises(PatchesError, match=r"nothing was changed: drifted"):
        apply(root, series.load(folder))
    assert {(root / path).read_bytes() for path in (A, B, C)} == {OLD}
    assert _states(root, loaded) == {"pending"}


def test_killed_rollback_is_taken_up_again(root: Path, loaded: Series) -> None:
    """A rollback that was itself cut short is finished by the next run."""
    _killed_at("renamed 2", root, loaded)
    (root / A).write_bytes(OLD)  # restored by the rollback that died
    staging = root / "vllm" / transaction.STAGING
    (staging / "1.restored").write_bytes(b"half a fi")  # and this is where it died
    assert apply(root, loaded).rolled_back == 2
    assert _states(root, loaded) == {"applied"}


def test_file_changed_since_the_kill_is_not_overwritten(root: Path, loaded: Series) -> None:
    """If somebody edits a file between kill and rollback, both contents are kept and named."""
    _killed_at("renamed 1", root, loaded)
    (root / B).write_bytes(b"mine\n")
    before = snapshot(root)
    with pytest.raises(PatchesError) as caught:
        apply(root, loaded)
    assert (
        f"sha256 {sha256(b'mine' + chr(10).encode())}, expected {sha256(OLD)} or {sha256(NEW)}"
        in str(caught.value)
    )
    assert snapshot(root) == before


def _in_child(root: Path, act: Callable[[], object]) -> str:
    """Run `act` in a fork without root's rights, in folder `root`, and return its error's text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = "no error"
        try:
            os.chdir(root)
            if os.geteuid() == 0:
                os.setuid(UNPRIVILEGED_UID)
            act()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text


def test_read_only_tree_gives_one_line(root: Path, loaded: Series) -> None:
    """A tree that may not be written can be checked; applying says which folder refused."""
    before = snapshot(root)
    for folder in (root, root / "vllm", root / "vllm/deep", root / "vllm/deep/er"):
        folder.chmod(0o555)
    text = _in_child(root, lambda: apply(Path(), loaded))
    assert _in_child(root, lambda: status(Path(), loaded)) == "no error"
    for folder in (root, root / "vllm", root / "vllm/deep", root / "vllm/deep/er"):
        folder.chmod(0o755)
    assert text == ("PatchesError: vllm/.dspark-patches: Permission denied: nothing was changed")
    assert snapshot(root) == before


def test_folder_that_refuses_half_way_rolls_back(root: Path, loaded: Series) -> None:
    """If the second file's folder cannot be written, the first file gets its old content back."""
    before = snapshot(root)
    (root / "vllm").chmod(0o777)
    (root / "vllm/deep").chmod(0o555)
    text = _in_child(root, lambda: apply(Path(), loaded))
    (root / "vllm/deep").chmod(0o755)
    assert text == "PatchesError: vllm/deep/b.py: Permission denied: nothing was changed"
    assert snapshot(root) == before


def test_full_disk_gives_one_line(root: Path, loaded: Series) -> None:
    """A write that fails part-way leaves the tree as it was."""
    before = snapshot(root)

    def with_little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(OLD), len(OLD)))
        apply(Path(), loaded)

    (root / "vllm").chmod(0o777)
    text = _in_child(root, with_little_room)
    assert text == "PatchesError: vllm: File too large: nothing was changed"
    assert snapshot(root) == before


def test_two_runs_at_once_do_not_meet(root: Path, loaded: Series) -> None:
    """Several processes that apply the same series at once all succeed, and it is applied once."""
    command = [sys.executable, "-c", KILLED, str(root), str(loaded.folder), "never", "no"]
    runs = [subprocess.Popen(command, cwd=series.FOLDER.parent) for _ in range(4)]
    assert [run.wait(DEADLINE_S) for run in runs] == [0, 0, 0, 0]
    assert _states(root, loaded) == {"applied"}


def test_reader_waits_for_a_writer(root: Path, loaded: Series) -> None:
    """A check during an apply sees the tree before or after it, never between."""
    renaming, go_on = threading.Event(), threading.Event()

    def pause(name: str) -> None:
        if name == "renamed 0":
            renaming.set()
            assert go_on.wait(DEADLINE_S)

    writer = threading.Thread(target=apply, args=(root, loaded), kwargs={"step": pause})
    writer.start()
    assert renaming.wait(DEADLINE_S)
    seen: list[set[str]] = []
    reader = threading.Thread(target=lambda: seen.append(_states(root, loaded)))
    reader.start()
    reader.join(0.3)
    assert seen == []
    go_on.set()
    writer.join(DEADLINE_S)
    reader.join(DEADLINE_S)
    assert seen == [{"applied"}]


def test_lock_that_is_never_released_is_reported(
    root: Path, loaded: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs with the lock does not hang the next one for ever."""
    monkeypatch.setattr(transaction, "_LOCK_WAIT_S", 0.2)
    with (
        transaction.locked(root / "vllm", exclusive=True),
        pytest.raises(PatchesError, match=r"another process has been patching it for"),
    ):
        apply(root, loaded)


@pytest.mark.parametrize("linked", ["vllm", "vllm/deep"])
def test_a_folder_that_is_a_link_is_not_entered(
    linked: str, root: Path, loaded: Series, tmp_path: Path
) -> None:
    """What lies behind a link is another tree: one line names both, and neither is changed."""
    elsewhere = tmp_path / "elsewhere"
    shutil.move(root / linked, elsewhere)
    (root / linked).symlink_to(elsewhere)
    before = snapshot(elsewhere)
    with pytest.raises(PatchesError) as caught:
        apply(root, loaded)
    assert str(caught.value).startswith(
        f"{root / linked}: is a link to {elsewhere}: nothing was changed: "
    )
    assert snapshot(elsewhere) == before
    assert _states(root, loaded) == {"pending"}


def _journal(root: Path, **changed: object) -> Path:
    """Plant a journal that would put `evil` in the place of A, with some fields changed."""
    staging = root / "vllm" / transaction.STAGING
    staging.mkdir(mode=0o755)
    (staging / "0.old").write_bytes(b"evil")
    entry = {"path": "a.py", "backup": "0.old", "old": sha256(b"evil"), "new": sha256(OLD)}
    journal = staging / "journal.json"
    journal.write_text(json.dumps([{**entry, **changed}]))
    return journal


def _plant_behind_link(root: Path) -> None:
    _journal(root, path="link/victim.py")
    (root / "vllm/link").symlink_to(root.parent)


def _plant_linked_backup(root: Path) -> None:
    backup = _journal(root).with_name("0.old")
    backup.unlink()
    backup.symlink_to("../../../evil")


def _plant_linked_folder(root: Path) -> None:
    staging = _journal(root).parent
    staging.rename(root.parent / "staging")
    staging.symlink_to(root.parent / "staging")


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (lambda root: _journal(root, path="../../victim.py"), "is not a journal of this program"),
        (lambda root: _journal(root, path=f"{root.parent}/victim.py"), "is not a journal of this"),
        (lambda root: _journal(root, backup="../../../evil"), "is not a journal of this program"),
        (lambda root: _journal(root, old="x"), "is not a journal of this program"),
        (lambda root: _journal(root, old="0" * 64), "is not the content that its journal states"),
        (lambda root: _journal(root).write_text("{}"), "is not a journal of this program"),
        (lambda root: _journal(root).write_text("[" * 100_000), "is not a journal of this program"),
        (_plant_behind_link, "vllm/link: is a link to "),
        (_plant_linked_backup, "0.old: is a link: cannot roll back"),
        (_plant_linked_folder, ".dspark-patches: is no file or folder of this program"),
        (lambda root: _journal(root).chmod(0o666), "can be written by others (mode 0666)"),
        (lambda root: _journal(root).parent.chmod(0o777), "can be written by others (mode 0777)"),
    ],
    ids=["above", "absolute", "backup", "no hash", "other hash", "no list", "deep", "linked path",
         "linked backup", "linked folder", "open file", "open folder"],
)  # fmt: skip
def test_a_planted_journal_is_not_followed(
    plant: Callable[[Path], object], told: str, root: Path, loaded: Series, tmp_path: Path
) -> None:
    """A journal about files outside, of other contents, or that others may write, changes none."""
    for name, content in (("victim.py", OLD), ("evil", b"evil")):
        (tmp_path / name).write_bytes(content)
    plant(root)
    with pytest.raises(PatchesError) as caught:
        apply(root, loaded)
    assert told in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert (tmp_path / "victim.py").read_bytes() == OLD
    assert {(root / path).read_bytes() for path in (A, B, C)} == {OLD}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
@pytest.mark.parametrize("name", ["", "journal.json"], ids=["folder", "journal"])
def test_a_strangers_journal_is_not_followed(name: str, root: Path, loaded: Series) -> None:
    """What neither the tree's owner, root nor this user wrote is refused with its owner's number;
    what the tree's owner left is rolled back."""
    _killed_at("renamed 1", root, loaded)
    planted = root / "vllm" / transaction.STAGING / name
    os.chown(planted, UNPRIVILEGED_UID, -1)
    told = rf"belongs to user {UNPRIVILEGED_UID}, who owns neither the tree nor this run: nothing"
    with pytest.raises(PatchesError, match=told):
        apply(root, loaded)
    os.chown(root / "vllm", UNPRIVILEGED_UID, -1)
    assert apply(root, loaded).rolled_back == 2


def test_no_umask_lets_others_write_the_journal(root: Path, loaded: Series) -> None:
    """Killed under a umask that forbids nothing, a run is rolled back all the same."""
    mask = os.umask(0)
    try:
        _killed_at("renamed 1", root, loaded)
    finally:
        os.umask(mask)
    assert apply(root, loaded).rolled_back == 2


def test_the_rollback_needs_no_room(root: Path, loaded: Series) -> None:
    """On a disk that takes no further byte the old files come back all the same."""
    before = snapshot(root)

    def fill(name: str) -> None:
        if name == "renamed 1":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            raise OSError(errno.ENOSPC, "No space left on device", "x")

    for folder in (root / "vllm", root / "vllm/deep", root / "vllm/deep/er"):
        folder.chmod(0o777)
    text = _in_child(root, lambda: apply(Path(), loaded, step=fill))
    assert text == "PatchesError: x: No space left on device: nothing was changed"
    assert snapshot(root) == before


def test_a_rollback_that_is_refused_is_one_line_and_is_made_later(
    root: Path, loaded: Series
) -> None:
    """If the old files cannot be had back, the line says so, the journal stays, and the next run
    restores them."""
    deep = root / "vllm/deep"

    def refuse(name: str) -> None:
        if name == "renamed 1":
            Path("vllm/deep").chmod(0o555)
            raise OSError(errno.EIO, "Input/output error", "x")

    for folder in (root / "vllm", deep, deep / "er"):
        folder.chmod(0o777)
        if os.geteuid() == 0:
            os.chown(folder, UNPRIVILEGED_UID, -1)
    text = _in_child(root, lambda: apply(Path(), loaded, step=refuse))
    deep.chmod(0o755)
    assert text.startswith("PatchesError: x: Input/output error; vllm/deep/b.py: Permission denied")
    assert text.endswith("cannot roll back an interrupted apply: mend that, then run: "
                         "python3 -m patches apply .")  # fmt: skip
    assert "nothing was changed" not in text
    with pytest.raises(InterruptedApplyError):
        status(root, loaded)
    assert apply(root, loaded).rolled_back >= 1
    assert _states(root, loaded) == {"applied"}


def test_an_error_after_the_commit_does_not_deny_it(
    root: Path, loaded: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk fails once the journal is gone, the tree has the series and the line says it."""
    journal = root / "vllm" / transaction.STAGING / "journal.json"
    really = os.fsync

    def fsync(descriptor: int) -> None:
        if (root / C).read_bytes() == NEW and not journal.exists():
            raise OSError(errno.EIO, "Input/output error")
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(PatchesError, match=r"Input/output error: the tree is whole, but the disk"):
        apply(root, loaded)
    assert _states(root, loaded) == {"applied"}
    assert not journal.parent.exists()
