"""Text to token ids and back, and the rule that draws the next token.

Invariant: the next token depends on the model's name, all tokens before it and the sampling key, on nothing else;
so every simulated engine of one model says the same, in whatever batch, after whatever handoff.

A token is a piece of at most five bytes: an optional space and up to four bytes that are no space. Its id is the
piece's bytes as a number with a leading one, so decoding needs no table. Drawn tokens are a space and a four-letter
word: sent back as text, they become the same ids, so a longer conversation hits the cache of a shorter one.
"""

import re
from array import array
from collections.abc import Iterable, Sequence

from xxhash import xxh3_64, xxh3_64_intdigest

EOS = 2
ID_LIMIT = 1 << 63
_PIECE = re.compile(rb" ?[^ ]{1,4}| ")


def _vocabulary() -> tuple[str, ...]:
    consonants, vowels = "bdfghklmnprstvwz", "aeio"
    syllables = [c + v for c in consonants for v in vowels]
    return tuple(f" {first}{second}" for first in syllables for second in syllables)


WORDS = _vocabulary()


def piece_id(piece: bytes) -> int:
    """Return the token id of one piece of 1 to 5 bytes."""
    return int.from_bytes(piece, "big") | 1 << (8 * len(piece))


WORD_IDS = tuple(piece_id(word.encode()) for word in WORDS)


def encode(text: str) -> list[int]:
    """Split `text` into token ids; the ids of a text begin with the ids of any part of it that ends before a space."""
    return [piece_id(piece) for piece in _PIECE.findall(text.encode("utf-8", "replace"))]


def token_bytes(token: int) -> bytes:
    """Return the bytes one token stands for; an id that no text gives stands for a word, EOS for nothing."""
    if token == EOS:
        return b""
    length, odd = divmod(token.bit_length() - 1, 8)
    if odd or not 1 <= length <= 5:
        return WORDS[token % len(WORDS)].encode()
    return (token ^ 1 << (8 * length)).to_bytes(length, "big")


def decode(tokens: Iterable[int]) -> str:
    """Return the text of `tokens`; broken UTF-8 is replaced."""
    return b"".join(map(token_bytes, tokens)).decode("utf-8", "replace")


def seed_of(*parts: object) -> int:
    """Return a 64-bit number that stands for `parts`."""
    return xxh3_64_intdigest("\x1f".join(map(str, parts)).encode())


def block_hashes(tokens: Sequence[int], block_size: int, salt: int) -> list[int]:
    """Return one chained hash per whole block of `tokens`: equal hashes mean an equal prefix up to the block's end."""
    data = array("Q", tokens).tobytes()
    width = 8 * block_size
    hashes = []
    parent = salt
    for start in range(0, len(data) - width + 1, width):
        parent = xxh3_64_intdigest(data[start : start + width], parent)
        hashes.append(parent)
    return hashes


def next_block_hash(block: Sequence[int], parent: int) -> int:
    """Return the chained hash of one more whole block after the block (or salt) hashed to `parent`."""
    return xxh3_64_intdigest(array("Q", block).tobytes(), parent)


class Sampler:
    """Draws one sequence's tokens; `key` is None for greedy decoding, else a number from seed and choice."""

    __slots__ = ("_key", "_mean", "_state")

    def __init__(self, model: str, tokens: Sequence[int], key: int | None, mean_output_tokens: int) -> None:
        self._state = xxh3_64(model.encode(), seed=7)
        self._state.update(array("Q", tokens).tobytes())
        self._key = key
        self._mean = mean_output_tokens

    def draw(self, *, may_end: bool) -> int:
        """Return the next token, EOS (about once in `mean_output_tokens`) only where `may_end`; no state changes."""
        digest = self._state.intdigest()
        if self._key is not None:
            digest = xxh3_64_intdigest(digest.to_bytes(8, "little"), self._key)
        if may_end and (digest >> 32) % self._mean == 0:
            return EOS
        return WORD_IDS[digest & 4095]

    def push(self, token: int) -> None:
        """Take `token` as said: drawn or forced."""
        self._state.update(token.to_bytes(8, "little"))


def logprobs_of(token: int, previous: int, top: int) -> list[tuple[int, float]]:
    """Return `top` + 1 (token, log probability) pairs, the drawn token first, then less likely others."""
    digest = xxh3_64_intdigest(token.to_bytes(8, "little") + previous.to_bytes(8, "little"))
    others = [other for rank in range(1, top + 2) if (other := WORD_IDS[(digest + rank * 977) & 4095]) != token]
    gap = 1.5 + (digest >> 10 & 255) / 512
    return [
        (token, -((digest & 1023) + 1) / 4096),
        *((other, -gap * rank) for rank, other in enumerate(others[:top], 1)),
    ]
