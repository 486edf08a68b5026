"""Changes to bytes and numbers that parsers have stumbled over."""

from __future__ import annotations

from random import Random

# As they may stand in a field of text, short ones first; whole numbers, fractions, exponents, and what float() takes.
NUMBERS = (
    "0", "1", "-1", "2", "7", "-0", "1e", "nan", "inf", "-inf", "1e-4", "1e-9", "1e-300", "5e-324", "1e9", "1e18",
    "1e300", "1e308", "1e999", "-1e308", "1e-45", "0.1", "0.003", "1e-2", "1e5", "1e6", "0x10", "1_0", "+5", "1,5",
    "1.", ".5", "32767", "-32768", "65536", "8388607", "99999999", "-9999999", "12345678", "1e999999", "", " ", "\0",
    "\xb2", "1 2", "--1", "None", "true", "[]", "1/3", "9" * 8,
)  # fmt: skip


def flip_bits(content: bytes, rng: Random, times: int = 1) -> bytes:
    """Single bits turned, anywhere."""
    changed = bytearray(content)
    for _ in range(times if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def set_bytes(content: bytes, rng: Random, times: int = 1) -> bytes:
    """Single bytes replaced by random ones."""
    changed = bytearray(content)
    for _ in range(times if changed else 0):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def move_piece(content: bytes, rng: Random) -> bytes:
    """A piece left out, repeated in place, or copied to elsewhere."""
    start = rng.randrange(len(content) + 1)
    stop = min(len(content), start + rng.choice((1, 2, 8, 16, 80, 256, 1024)))
    piece, to = content[start:stop], rng.randrange(len(content) + 1)
    way = rng.randrange(3)
    if way == 0:
        return content[:start] + content[stop:]
    if way == 1:
        return content[:stop] + piece * rng.randrange(1, 4) + content[stop:]
    return content[:to] + piece + content[to + len(piece) :]


def truncate(content: bytes, rng: Random) -> bytes:
    """What is left of a file that was cut off."""
    return content[: rng.randrange(len(content) + 1)]


def change_bytes(content: bytes, rng: Random) -> bytes:
    """One of the changes above."""
    way = rng.randrange(4)
    if way == 0:
        return flip_bits(content, rng, rng.choice((1, 2, 8)))
    if way == 1:
        return set_bytes(content, rng, rng.choice((1, 2, 8, 64)))
    return move_piece(content, rng) if way == 2 else truncate(content, rng)
