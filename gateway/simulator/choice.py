"""One choice of an answer: a job's tokens as text, cut at stop strings, held back while a stop string may begin."""

from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Sequence

from gateway.simulator.asked import Asked
from gateway.simulator.job import Job
from gateway.simulator.tokens import EOS, token_bytes

_decoder = getincrementaldecoder("utf-8")


class Choice:
    """The text of one job. `text` is all that may be shown so far, `shown` how many characters of it were."""

    __slots__ = (
        "_decoder",
        "_hold",
        "asked",
        "finish_reason",
        "index",
        "job",
        "new_tokens",
        "said",
        "shown",
        "stop",
        "text",
    )

    def __init__(self, index: int, job: Job, asked: Asked) -> None:
        self.index = index
        self.job = job
        self.finish_reason: str | None = None
        self.stop: str | int | None = None
        self.text = ""
        self.shown = 0
        self.said = 0
        self.new_tokens: list[int] = []
        self.asked = asked
        self._decoder: IncrementalDecoder | None = None
        self._hold = max(map(len, asked.stop), default=1) - 1

    def feed(self, tokens: Sequence[int]) -> bool:
        """Take new tokens and the job's end; return True if a stop string ended the choice before its job ended."""
        self.said += len(tokens)
        self.new_tokens += tokens
        stop_token = self.job.stop_token
        shown = [token for token in tokens if token not in (EOS, stop_token)]
        self.text += self._decode(b"".join(map(token_bytes, shown)))
        if self.asked.stop and self._cut():
            return self.job.finish_reason is None
        self.finish_reason = self.job.finish_reason
        self.stop = stop_token
        return False

    def delta(self) -> str:
        """Return the text to be shown now, and count it as shown."""
        end = len(self.text) if self.finish_reason is not None else len(self.text) - self._hold
        start, self.shown = self.shown, max(end, self.shown)
        return self.text[start : self.shown]

    def take_tokens(self) -> list[int]:
        """Return the tokens fed since the last call."""
        taken, self.new_tokens = self.new_tokens, []
        return taken

    def _decode(self, data: bytes) -> str:
        if self._decoder is None:
            if data.isascii():
                return data.decode()
            self._decoder = _decoder("replace")
        return self._decoder.decode(data)

    def _cut(self) -> bool:
        found = [(at, stop) for stop in self.asked.stop if (at := self.text.find(stop, self.shown)) >= 0]
        if not found:
            return False
        at, stop = min(found)
        self.text = self.text[: at + len(stop) if self.asked.keep_stop else at]
        self.finish_reason, self.stop = "stop", stop
        return True
