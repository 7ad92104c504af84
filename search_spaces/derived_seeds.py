"""Seeds hashed from names and numbers, equal on all machines and versions, so that resumed studies repeat draws.

    derived_seed       32 bits of BLAKE2b       suggestions, faults of simulated trials
    fresh_seed         31 bits of SHA-256       trainings of `automl confirm`
    derived_uniform    a number from [0, 1)     decisions by chance

Existing seeds must not change, hence several algorithms. Trainings have seeds of their own (`trainers.data.seeds`).
"""

import hashlib
import random


def derived_seed(*parts: int | str) -> int:
    """Returns a 32-bit seed from names and numbers; their order matters."""
    return _first_bits(hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=4).digest(), 32)


def fresh_seed(*parts: int | str) -> int:
    """Returns a 31-bit seed from names and numbers, unrelated to `derived_seed` of the same parts."""
    return _first_bits(hashlib.sha256(" ".join(map(str, parts)).encode()).digest(), 31)


def derived_uniform(*parts: int | str) -> float:
    """Returns a number in [0, 1), evenly distributed over names and numbers."""
    return random.Random(" ".join(map(str, parts))).random()


def _first_bits(digest: bytes, bits: int) -> int:
    return int.from_bytes(digest, "big") >> (8 * len(digest) - bits)
