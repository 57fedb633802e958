"""The routes of the inference API: for each, where its body names the model, what of it is the prompt, how errors look.

Invariant: what `find` does not know never reaches an engine. A path outside the table passes only if each of its
segments is plain, so that no server behind an engine's address can read another path out of it than was checked here.
"""

import re
from dataclasses import dataclass
from typing import Literal

from gateway.errors import Style

ModelIn = Literal["member", "form", "either", "nowhere"]


# What an engine puts before, around or into the prompt.
_SEED = ("model", "cache_salt", "tools", "chat_template", "chat_template_kwargs", "documents")


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of inference request.

    `kind` is a token for receipts, one of `KINDS`. `model_in` says where the body names its model: in a JSON member, in
    a field of multipart/form-data, in whichever of the two its content type tells, or nowhere. The prompt is the first
    member of `prompt` that is there, after those of `front` (a system prompt, a query); `prompt` is empty where nothing
    is left in a KV cache. Two prompts share nothing where members of `seed` differ. `two_hop` is whether two hops can
    serve it at all. `style` is how its errors look.
    """

    kind: str
    prompt: tuple[str, ...] = ()
    front: tuple[str, ...] = ()
    seed: tuple[str, ...] = _SEED
    two_hop: bool = False
    style: Style = "openai"
    model_in: ModelIn = "member"

    @property
    def may_be_form(self) -> bool:
        """Whether the content type has a say in how the body is read."""
        return self.model_in != "member"


_ANY_PROMPT = ("messages", "prompt", "input")
RESPONSES = Route("responses", ("input",), front=("instructions",))
_PAIR_SEED = ("model", "cache_salt")
_RERANK = Route("rerank", ("documents",), front=("query",), seed=_PAIR_SEED)
_SCORE = Route(
    "score", ("text_2", "documents", "items", "data_2"), front=("text_1", "queries", "data_1"), seed=_PAIR_SEED
)
_AUDIO = Route("audio", model_in="form")

POSTED: dict[str, Route] = {
    "/v1/chat/completions": Route("chat", _ANY_PROMPT, two_hop=True),
    "/v1/completions": Route("completions", ("prompt", "messages", "input"), two_hop=True),
    "/v1/responses": RESPONSES,
    "/v1/messages": Route("messages", ("messages",), front=("system",), style="anthropic"),
    "/v1/messages/count_tokens": Route("count_tokens", style="anthropic"),
    "/v1/embeddings": Route("embeddings", ("input", "messages")),
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/rerank": _RERANK,
    "/v1/score": _SCORE,
    "/score": _SCORE,
    "/pooling": Route("pooling", ("input", "messages")),
    "/classify": Route("classify", ("input", "messages")),
    "/tokenize": Route("tokenize"),
    "/detokenize": Route("detokenize"),
    "/v1/audio/transcriptions": _AUDIO,
    "/v1/audio/translations": _AUDIO,
}
"""The paths that take POST, each with its route."""

RESPONSE_BY_ID = Route("response_by_id", model_in="nowhere")
OTHER = Route("other", _ANY_PROMPT, model_in="either")
_OTHER_MESSAGES = Route("other", _ANY_PROMPT, front=("system",), style="anthropic", model_in="either")

KINDS = frozenset(route.kind for route in (*POSTED.values(), RESPONSE_BY_ID, OTHER))

# A segment is never empty, "." or "..", and holds no escape: what was percent-encoded twice still has its "%" here.
_SEGMENT = r"[A-Za-z0-9_~-][A-Za-z0-9._~:@-]*"
_OTHER_PATH = re.compile(rf"/v1(?:/{_SEGMENT})+")
_RESPONSE_PATH = re.compile(rf"/v1/responses/({_SEGMENT})")
_CANCEL_PATH = re.compile(rf"/v1/responses/({_SEGMENT})/cancel")
# They change what an engine serves, or let it load from where a client says: an operator's business, not a client's.
_NEVER = re.compile(r"/(?:un)?load_lora_adapters?(?:/|$)", re.IGNORECASE)


def find(method: str, path: str) -> Route | None:
    """Return the route of a request, or None for what is no inference: the edges answer that.

    `method` is in capitals, `path` percent-decoded once.
    """
    if method == "POST":
        return POSTED.get(path) or _posted(path)
    if method in {"GET", "DELETE"} and path.startswith("/v1/responses/") and _RESPONSE_PATH.fullmatch(path):
        return RESPONSE_BY_ID
    return None


def response_id(path: str) -> str:
    """Return the id in a path whose route is `RESPONSE_BY_ID`."""
    return path.split("/", 4)[3]


def style_of(path: str) -> Style:
    """Return how errors look on a path, served or not."""
    return "anthropic" if path == "/v1/messages" or path.startswith("/v1/messages/") else "openai"


def _posted(path: str) -> Route | None:
    """Return the route of a POST that is not in the table."""
    if not _OTHER_PATH.fullmatch(path) or _NEVER.search(path) or path == "/v1/models" or path.startswith("/v1/models/"):
        return None
    if _CANCEL_PATH.fullmatch(path):
        return RESPONSE_BY_ID
    return _OTHER_MESSAGES if style_of(path) == "anthropic" else OTHER
