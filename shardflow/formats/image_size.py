"""Kind, width and height of an encoded image, read from its first bytes without decoding it.

Sources: ITU-T T.81 (JPEG) B.2.2, frame header; W3C PNG 11.2.2, IHDR. Other formats say (0, 0), "not known", as does
anything malformed: the size is a hint for planning a crop, and the decoder has the last word.
"""

from __future__ import annotations

_NO_FRAME = {0xC4, 0xC8, 0xCC}  # DHT, JPG, DAC lie among the SOFn codes


def is_jpeg(payload: memoryview | bytes) -> bool:
    """Return whether an encoded image begins as a JPEG does."""
    return payload[:2] == b"\xff\xd8"


def image_size(payload: memoryview | bytes) -> tuple[int, int]:
    """Return (width, height) in pixels as stored, before any EXIF orientation; (0, 0) when not known."""
    width = height = 0
    if is_jpeg(payload):
        width, height = _jpeg(payload)
    elif payload[:8] == b"\x89PNG\r\n\x1a\n" and payload[12:16] == b"IHDR" and len(payload) >= 24:
        width, height = int.from_bytes(payload[16:20], "big"), int.from_bytes(payload[20:24], "big")
    # A JPEG may give its height behind its first scan (DNL) and say 0 until then.
    return (width, height) if width and height else (0, 0)


def _jpeg(payload: memoryview | bytes) -> tuple[int, int]:
    position = 2
    while position + 9 <= len(payload) and payload[position] == 0xFF:
        marker = payload[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height = int.from_bytes(payload[position + 5 : position + 7], "big")
            return int.from_bytes(payload[position + 7 : position + 9], "big"), height
        if marker == 0xDA:
            break
        position += 2 + int.from_bytes(payload[position + 2 : position + 4], "big")
    return 0, 0
