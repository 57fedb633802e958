"""The one home of time and chance: all else takes them from here, so that tests and simulator can hold them."""

import random
import time

monotonic_s = time.monotonic
wall_s = time.time
# Ties between equal endpoints, and ids that must differ but may be guessed: no secret depends on it.
_random = random.Random()  # noqa: S311 - see above; seeded by the system
chance = _random.random
chance_bits = _random.getrandbits
