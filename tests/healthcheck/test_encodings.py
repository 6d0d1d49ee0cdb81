"""Logs in other encodings are read, and what is no text is refused by name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from pathlib import Path

import pytest

from healthcheck import explain
from healthcheck.explain import explain_stream
from healthcheck.explain.blocks import Blocks
from healthcheck.explain.encodings import Decoder, UnreadableLogError
from tests.support.log_samples import SAMPLES

LOG = (
    "(APIServer pid=1) INFO 11-30 05:00:00 [a.py:1] non-default args: {'port': 8000}\r\n"
    f"(Worker_TP2 pid=4) ERROR 11-30 05:00:07 [a.py:1] é {SAMPLES['mem.kv_none']}\r\n"
)
ENCODINGS = {
    "UTF-8": LOG.encode(),
    "UTF-8 with its mark": LOG.encode("utf-8-sig"),
    "UTF-16 of PowerShell": LOG.encode("utf-16"),
    "UTF-16, big end first": b"\xfe\xff" + LOG.encode("utf-16-be"),
    "UTF-16 without a mark": LOG.encode("utf-16-le"),
    "UTF-16, big end first, without a mark": LOG.encode("utf-16-be"),
    "UTF-32": LOG.encode("utf-32"),
    "UTF-32 without a mark": LOG.encode("utf-32-be"),
    "Latin-1": LOG.encode("latin-1"),
    "Windows": LOG.encode("cp1252"),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_log_in_another_encoding_is_read(name: str) -> None:
    """Start, cause, process and time are there whatever the file is encoded in."""
    found = explain_stream(io.BytesIO(ENCODINGS[name]))
    assert found.cause is not None
    assert (found.cause.id, found.cause.process) == ("mem.kv_none", "Worker_TP2 pid=4")
    assert (found.cause.seconds, found.lines) == (7.0, 2)


@pytest.mark.parametrize("step", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_log_that_comes_in_pieces_is_the_same(name: str, step: int) -> None:
    """Characters may be cut anywhere, as a pipe or a growing file cuts them."""
    data, blocks = ENCODINGS[name], Blocks()
    whole = b"".join(blocks.add(data[at : at + step]) for at in range(0, len(data), step))
    assert (whole + blocks.rest()).decode(errors="replace").split() == (
        LOG.encode("latin-1" if name in ("Latin-1", "Windows") else "utf-8")
        .decode(errors="replace")
        .split()
    )


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (gzip.compress(LOG.encode()), "compressed by gzip: give what `zcat` makes of it"),
        (bz2.compress(LOG.encode()), "compressed by bzip2"),
        (lzma.compress(LOG.encode()), "compressed by xz"),
        (b"\x28\xb5\x2f\xfd" + bytes(range(99)), "compressed by zstd"),
        (b"LPKSHHRH" + bytes(99), "journal of systemd: give what `journalctl --file`"),
        (b"\x7fELF" + bytes(99), "a program"),
        (LOG.encode("cp037"), "neither UTF-8 nor UTF-16 text"),
        (bytes(range(256)) * 20, "neither UTF-8 nor UTF-16 text"),
        (bytes(4096), "neither UTF-8 nor UTF-16 text"),
    ],
)
def test_what_is_no_text_is_refused_by_name(
    data: bytes, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot be read is exit code 2 and one line, never a log without a fault."""
    path = tmp_path / "server.log"
    path.write_bytes(data)
    assert explain.main([str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"explain: cannot read {str(path)!r}: it is ")
    assert what in printed.err and printed.err.count("\n") == 1


def test_a_refusal_comes_at_the_end_of_a_short_file_too() -> None:
    """What has come is kept until there is enough of it, and judged then."""
    decoder = Decoder()
    assert decoder.add(b"\x1f\x8b\x08") == b""
    assert decoder.pending == b"\x1f\x8b\x08"
    with pytest.raises(UnreadableLogError, match="gzip"):
        decoder.rest()
