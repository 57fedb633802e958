"""Run the soak benchmark as `python -m benchmarks.soak`."""

import signal
import sys

from benchmarks.soak.cli import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, so that what was started is ended
    sys.exit(main())
