"""Field reports on routing, replayed on the default profile with this gateway's own dispatches fed back."""

from collections import Counter
from collections.abc import Mapping

import pytest

from gateway.prefix.blocks import block_keys
from gateway.prefix.index import PrefixIndex, share, shares
from scorers.model import EndpointView, RequestView
from scorers.profile import decide
from scorers.registry import build_profile

PROFILE = build_profile(
    {"prefix_cache": 3.0, "queue_depth": 2.0, "kv_usage": 1.0, "lora": 1.0},
    ["healthy", "model_served", "role"],
    "max_score",
)
SERVES = frozenset({"m"})


class Fleet:
    """Endpoints with `slots` places and a fixed service time, whose scraped numbers stay as they are given.

    What is in flight is ended by its due time, so time here is the argument of `send`. What a prompt's endpoints hold
    of it is the real prefix index's to say.
    """

    def __init__(self, *views: EndpointView, slots: int, service_s: Mapping[str, float]) -> None:
        self.views = {view.name: view for view in views}
        self.slots = slots
        self.service_s = service_s
        self.ends: dict[str, list[float]] = {name: [] for name in self.views}
        self.waited_s = 0.0
        self.sent = 0
        self.index = PrefixIndex(20_000)

    def send(self, now_s: float, prompt: bytes = b"") -> str:
        """Route one request, all figures fed as the data plane feeds them; return the endpoint's name."""
        for name, ends in self.ends.items():
            open_ = sum(end > now_s for end in ends)
            self.views[name] = self.views[name]._replace(
                in_flight=open_, sent_since_scrape=len(ends), finished_since_scrape=len(ends) - open_
            )
        self.sent += 1
        index, keys, size = self.index, block_keys(0, prompt), len(prompt)
        matched = index.match(keys)
        longest = max(matched.values(), default=0)
        shared = share(index.shared_bytes(keys, longest), size)
        index.note(keys, longest)
        request = RequestView(
            "m",
            prompt_bytes=size,
            matched=shares(matched, size),
            shared=shared,
            held_blocks=index.held_blocks(),
        )
        chance = self.sent * 0.618034 % 1.0
        name = decide(PROFILE, request, list(self.views.values()), chance).picked or "nobody"
        index.insert(keys, name)
        ends = self.ends[name]
        start_s = max(now_s, ends[-self.slots] if len(ends) >= self.slots else now_s)
        self.waited_s = max(self.waited_s, start_s - now_s)
        ends.append(start_s + self.service_s[name])
        return name


def idle(count: int) -> list[EndpointView]:
    return [EndpointView(f"e{index}", models=SERVES) for index in range(count)]


def tail(number: int, size: int = 800) -> bytes:
    """Return the bytes in which one prompt differs from every other."""
    return (b"%06d " % number) * (size // 7)


# Nothing in common; a front part that all hold already, as a short system prompt or as most of the prompt.
@pytest.mark.parametrize("common", [b"", b"be brief " * 20, b"a long document " * 500])
def test_a22_a_burst_over_frozen_idle_endpoints_spreads_evenly(common):
    fleet = Fleet(*idle(4), slots=100, service_s=dict.fromkeys(["e0", "e1", "e2", "e3"], 5.0))
    for name in fleet.views:
        fleet.index.insert(block_keys(0, common), name)
    picks = Counter(fleet.send(number * 0.0002, common + tail(number)) for number in range(100))
    assert len(picks) == 4
    assert all(25 - 8 <= count <= 25 + 8 for count in picks.values())


def hot_prefix(rate: float, count: int) -> tuple[Counter[str], float]:
    """Send one prefix of 8,000 characters with different tails."""
    fleet = Fleet(*idle(4), slots=8, service_s=dict.fromkeys(["e0", "e1", "e2", "e3"], 1.0))
    picks = Counter(fleet.send(number / rate, b"document" * 1000 + tail(number)) for number in range(count))
    return picks, fleet.waited_s


def test_a14_a_hot_prefix_spreads_as_far_as_its_load_needs():
    picks, waited_s = hot_prefix(rate=20, count=200)
    assert len(picks) >= 3
    assert max(picks.values()) <= 0.45 * 200
    assert waited_s <= 1.0


def test_a14_a_hot_prefix_stays_together_at_low_load():
    picks, _ = hot_prefix(rate=1, count=50)
    assert len(picks) == 1


def test_a08_a_frozen_idle_report_makes_no_favourite():
    busy = [EndpointView(name, models=SERVES, running=running) for name, running in (("b2", 3.0), ("b3", 4.0))]
    silent = EndpointView("b1", models=SERVES, stale=True)
    fleet = Fleet(silent, *busy, slots=8, service_s={"b1": 2.0, "b2": 0.3, "b3": 0.3})
    picks = Counter(fleet.send(index / 6) for index in range(120))
    assert picks["b1"] <= 120 / 3


@pytest.mark.parametrize(("own", "depth"), [(0, 5.0), (2, 5.0), (4, 7.0)])
def test_a08_a_stale_endpoint_counts_as_its_own_and_what_others_have_from_elsewhere(own, depth):
    views = [
        EndpointView("stale", models=SERVES, stale=True, in_flight=own),
        EndpointView("b", models=SERVES, running=4, in_flight=3),
        EndpointView("c", models=SERVES, running=6, in_flight=1),
    ]
    assert decide(PROFILE, RequestView("m"), views, 0.0).terms[1] == [1 - depth / 8, 1 - 4 / 8, 1 - 6 / 8]


def test_a08_a_working_endpoint_without_scrapes_still_gets_its_part():
    views = [EndpointView("silent", models=SERVES, stale=True), EndpointView("b", models=SERVES)]
    fleet = Fleet(*views, slots=8, service_s={"silent": 1.0, "b": 1.0})
    picks = Counter(fleet.send(index / 12) for index in range(120))
    assert 0.3 * 120 <= picks["silent"] <= 0.55 * 120


def test_with_nobody_fresh_own_requests_decide():
    views = [
        EndpointView("a", models=SERVES, stale=True, running=50),
        EndpointView("b", models=SERVES, stale=True, in_flight=1),
    ]
    assert decide(PROFILE, RequestView("m"), views, 0.9).picked == "a"


@pytest.mark.parametrize(("more", "stays"), [(11, True), (13, False)])
def test_the_holder_of_the_whole_prompt_is_left_at_twelve_requests_more(more, stays):
    views = [EndpointView("holder", models=SERVES, running=more), EndpointView("empty", models=SERVES)]
    decision = decide(PROFILE, RequestView("m", matched={"holder": 1.0}), views, 0.0)
    assert (decision.picked == "holder") is stays


def conversations(count: int, turns: int, at_a_time: int) -> tuple[Counter[str], int]:
    """Run conversations with one short system prompt in common; return the picks, and how many turns left home."""
    fleet = Fleet(*idle(4), slots=8, service_s=dict.fromkeys(["e0", "e1", "e2", "e3"], 0.1))
    picks: Counter[str] = Counter()
    moved, now_s = 0, 0.0
    for first in range(0, count, at_a_time):
        home: dict[int, str] = {}
        for turn in range(turns):
            for number in range(first, min(first + at_a_time, count)):
                now_s += 0.1 / at_a_time
                history = b"".join(tail(number * 100 + past) for past in range(turn + 1))
                name = fleet.send(now_s, b"You are a helpful assistant. " * 4 + history)
                picks[name] += 1
                moved += home.setdefault(number, name) != name
    return picks, moved


@pytest.mark.parametrize("at_a_time", [1, 4, 40])
def test_conversations_spread_over_all_and_each_stays_where_it_began(at_a_time):
    picks, moved = conversations(40, 5, at_a_time)
    assert moved <= 0.05 * 200
    assert max(picks.values()) <= 1.5 * 200 / 4
