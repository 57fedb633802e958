"""The one home of time and chance: all else takes them from here, so that tests and simulator can hold them."""

import random
import time

monotonic_s = time.monotonic
wall_s = time.time
chance = random.Random().random  # noqa: S311 - ties between equal endpoints, no secret depends on it
