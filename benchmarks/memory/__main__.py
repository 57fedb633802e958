"""Run the memory benchmark as `python -m benchmarks.memory`."""

import signal
import sys

from benchmarks.memory.cli import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, so that what was started is ended
    sys.exit(main())
