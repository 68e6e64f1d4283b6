"""Prompts drawn from a seed: exact length, and different in every request."""

import hashlib
import json
import random
from array import array
from collections.abc import Sequence

# Short common words, most of them one token in common vocabularies when a blank precedes them. Length in tokens is
# never assumed from this: the server's usage says what it was.
_TEXT = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city community name president team minute idea kid body information back parent face
others level office door health person art war history party result change morning reason research girl guy moment air
teacher force education foot boy age policy process music market sense nation plan college interest death experience
effect use class control field development role effort rate heart drug show leader light voice wife whole police mind
price report decision son view relationship town road arm difference value building action season society tax director
position player record paper space ground form event official matter center couple site project activity star table
need court oil situation cost industry figure street image phone data picture practice piece land product doctor wall
worker news test movie north love step support technology baby computer type attention film source truth
"""
WORDS = tuple(_TEXT.split())

SPELT = 4
"""Tokens at the start of a prompt that spell its index."""


def mix_seed(*parts: str | int) -> int:
    """Return a seed made of all ``parts`` (machine, round, sweep, level, repeat, …): another part, other prompts."""
    text = json.dumps([str(part) for part in parts]).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def draw_prompt(seed: int, index: int, length: int, vocabulary: tuple[int, int]) -> list[int]:
    """Return prompt ``index`` of a seed: ``length`` token ids from ``vocabulary[0]`` up to ``vocabulary[1] - 1``.

    The first ids spell the ``index`` in base (vocabulary size), each digit shifted by a number drawn from the seed; the
    rest are random. So two prompts of one seed differ, and in the first token already until the vocabulary is used up:
    a server that caches prefixes finds none, however short the prompts are.
    """
    low, high = vocabulary
    size = high - low
    rng = random.Random(mix_seed(seed, index))
    ids = [low + value % size for value in array("I", rng.randbytes(4 * length))]
    shifts = random.Random(mix_seed(seed, "shifts"))
    rest = index
    for place in range(min(length, SPELT)):
        rest, digit = divmod(rest, size)
        ids[place] = low + (digit + shifts.getrandbits(31)) % size
    return ids


def draw_prompts(seed: int, n: int, length: int, vocabulary: tuple[int, int]) -> list[list[int]]:
    """Return ``n`` different prompts of ``length`` token ids each; see :func:`draw_prompt`."""
    return [draw_prompt(seed, index, length, vocabulary) for index in range(n)]


def draw_text(seed: int, index: int, words: int) -> str:
    """Return text prompt ``index`` of a seed: ``words`` words; the first ones spell ``index``, so that no two agree."""
    return " ".join(WORDS[token] for token in draw_prompt(seed, index, words, (0, len(WORDS))))


def encode_prompt(prompt: Sequence[int] | str) -> bytes:
    """Return a prompt as JSON."""
    if isinstance(prompt, str):
        return json.dumps(prompt).encode()
    return ("[" + ",".join(map(str, prompt)) + "]").encode()
