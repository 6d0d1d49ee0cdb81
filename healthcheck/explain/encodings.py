"""Logs that are no UTF-8: UTF-16 and UTF-32 are read, what no text can be made of is refused."""

from __future__ import annotations

import codecs

HEAD_BYTES = 4096  # by which the encoding is told

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_PACKED = (
    (b"\x1f\x8b", "compressed by gzip: give what `zcat` makes of it"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: give what `zstdcat` makes of it"),
    (b"\xfd7zXZ\x00", "compressed by xz: give what `xzcat` makes of it"),
    (b"BZh", "compressed by bzip2: give what `bzcat` makes of it"),
    (b"\x04\x22\x4d\x18", "compressed by lz4: give what `lz4cat` makes of it"),
    (b"PK\x03\x04", "a zip archive: give the file in it"),
    (b"LPKSHHRH", "a journal of systemd: give what `journalctl --file` prints of it"),
    (b"\x7fELF", "a program"),
)
# Of a text that a program wrote, nearly all is printable; a wrong guess would hide a fault.
LEAST_PRINTABLE = 0.5


class UnreadableLogError(ValueError):
    """The log is no text that can be read; the message says what it is."""


class Decoder:
    """Turns the bytes of a log into UTF-8, whatever encoding they begin in.

    Bytes are kept until there is a line of them, or enough to tell the encoding. Raises
    UnreadableLogError from `add` and `rest` for what is no text.
    """

    def __init__(self) -> None:
        self._head: bytes | None = b""
        self._decoder: codecs.IncrementalDecoder | None = None

    def add(self, data: bytes) -> bytes:
        """What there is of the log in UTF-8 now that `data` has come."""
        if self._head is not None:
            self._head += data
            if len(self._head) < HEAD_BYTES and (b"\n" not in self._head or len(self._head) < 8):
                return b""
            return self._begin()
        return self._decode(data)

    def rest(self) -> bytes:
        """What was kept until the end."""
        if self._head is not None:
            return self._begin()
        return self._decoder.decode(b"", True).encode() if self._decoder else b""

    @property
    def pending(self) -> bytes:
        """What has come and cannot be told yet."""
        return self._head or b""

    def _begin(self) -> bytes:
        data, self._head = self._head or b"", None
        encoding, mark = _encoding(data)
        if encoding != "utf-8":
            self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        data = self._decode(data[mark:])
        _refuse_binary(data[:HEAD_BYTES])
        return data

    def _decode(self, data: bytes) -> bytes:
        if self._decoder is None:
            return data
        return self._decoder.decode(data).encode("utf-8", errors="replace")


def _encoding(data: bytes) -> tuple[str, int]:
    """The encoding of what begins so, and how long its mark is."""
    for begin, what in _PACKED:
        if data.startswith(begin):
            raise UnreadableLogError(f"it is {what}")
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding, len(mark)
    head = data[: HEAD_BYTES // 4 * 4]
    if len(head) >= 8:
        places = [head[at::4].count(0) * 4 / len(head) for at in range(4)]
        empty = tuple(share > LEAST_PRINTABLE for share in places)
        by_place = {
            (False, True, False, True): "utf-16-le",
            (True, False, True, False): "utf-16-be",
            (False, True, True, True): "utf-32-le",
            (True, True, True, False): "utf-32-be",
        }
        if empty in by_place:
            return by_place[empty], 0
    return "utf-8", 0


def _refuse_binary(head: bytes) -> None:
    if not head:
        return
    good = sum(1 for one in head.decode("utf-8", errors="replace") if _is_text(one))
    if good < LEAST_PRINTABLE * len(head.decode("utf-8", errors="replace")):
        raise UnreadableLogError("it is neither UTF-8 nor UTF-16 text: convert it with iconv first")


def _is_text(one: str) -> bool:
    return one in "\t\n\r\x1b\x08" or (one.isprintable() and one != "\ufffd")
