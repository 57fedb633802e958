"""Plugins are found by file name, and a wrong setting is told with the nearest right one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import scorers.load
from scorers.load.queue_depth import QueueDepth
from scorers.model import EndpointView, RequestView
from scorers.profile import decide
from scorers.registry import FOLDERS, SettingError, build_profile, plugin_names

PLUGIN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class ByLabel:
    label: str = "zone"
    least: int = 1

    def score(self, request, candidates):
        return [float(len(endpoint.labels.get(self.label, "")) >= self.least) for endpoint in candidates]
"""


@pytest.fixture
def one_more_file(tmp_path: Path) -> Iterator[None]:
    """Add the scorer `by_label` by nothing but a file in a folder of load scorers."""
    (tmp_path / "by_label.py").write_text(PLUGIN)
    scorers.load.__path__.append(str(tmp_path))
    yield
    scorers.load.__path__.remove(str(tmp_path))
    sys.modules.pop("scorers.load.by_label", None)


@pytest.mark.usefixtures("one_more_file")
def test_a_new_file_is_a_new_scorer_with_its_own_parameters():
    assert "by_label" in plugin_names("scorers")
    profile = build_profile({"by_label": {"weight": 1, "label": "rack", "least": 2}}, [], "max_score")
    views = [EndpointView("a", labels={"rack": "r1"}), EndpointView("b", labels={"zone": "z1"})]
    assert decide(profile, RequestView("m"), views, 0.9).totals == (1.0, 0.0)


@pytest.mark.usefixtures("one_more_file")
@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [("label", 3, "str"), ("label", None, "str"), ("least", 1.5, "int"), ("least", True, "int")],
)
def test_each_parameter_has_the_type_its_file_says(key, value, kind):
    with pytest.raises(SettingError, match=f"by_label.{key}: must be {kind}, not {value!r}"):
        build_profile({"by_label": {"weight": 1, key: value}}, [], "max_score")


def test_every_plugin_is_known_by_its_file_name():
    assert plugin_names("scorers") == ("in_flight", "kv_usage", "lora", "prefix_cache", "queue_depth")
    assert plugin_names("filters") == ("healthy", "model_served", "role")
    assert plugin_names("picker") == ("max_score",)


def test_every_plugin_can_be_made_from_its_name_alone():
    profile = build_profile(dict.fromkeys(plugin_names("scorers"), 1), plugin_names("filters"), "max_score")
    assert tuple(entry.name for entry in profile.scorers) == plugin_names("scorers")
    assert tuple(entry.name for entry in profile.filters) == plugin_names("filters")


def test_no_two_scorer_folders_share_a_name():
    assert len(FOLDERS["scorers"]) == 2
    assert len(set(plugin_names("scorers"))) == len(plugin_names("scorers")) == 5


def test_order_and_weights_are_the_configured_ones():
    profile = build_profile({"queue_depth": 2, "prefix_cache": {"weight": 0.5}}, ["role", "healthy"], "max_score")
    assert [(entry.name, entry.weight) for entry in profile.scorers] == [("queue_depth", 2.0), ("prefix_cache", 0.5)]
    assert [entry.name for entry in profile.filters] == ["role", "healthy"]


def test_parameters_reach_the_scorer():
    profile = build_profile({"queue_depth": {"weight": 1, "full_at": 32}}, [], "max_score")
    assert profile.scorers[0].scorer == QueueDepth(full_at=32)


@pytest.mark.parametrize(
    ("scorers", "filters", "picker", "path", "nearest"),
    [
        ({"prefix_cash": 1}, [], "max_score", ("scorers", "prefix_cash"), "prefix_cache"),
        ({"zzz": 1}, [], "max_score", ("scorers", "zzz"), None),
        ({}, ["healty"], "max_score", ("filters", "healty"), "healthy"),
        ({}, [], "maxscore", ("picker",), "max_score"),
        ({"queue_depth": {"weight": 1, "ful_at": 3}}, [], "max_score", ("scorers", "queue_depth", "ful_at"), "full_at"),
        ({"kv_usage": {"weight": 1, "full_at": 3}}, [], "max_score", ("scorers", "kv_usage", "full_at"), None),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(scorers, filters, picker, path, nearest):
    with pytest.raises(SettingError) as caught:
        build_profile(scorers, filters, picker)
    assert (caught.value.path, caught.value.nearest) == (path, nearest)
    assert nearest is None or f"did you mean '{nearest}'?" in str(caught.value)


@pytest.mark.parametrize("weight", [-1, True, "3", None, float("nan"), float("inf")])
def test_a_weight_is_a_finite_number_of_zero_or_more(weight):
    with pytest.raises(ValueError, match=r"scorers\.kv_usage: weight must be"):
        build_profile({"kv_usage": weight}, [], "max_score")
    with pytest.raises(ValueError, match=r"scorers\.kv_usage\.weight: weight must be"):
        build_profile({"kv_usage": {"weight": weight}}, [], "max_score")


@pytest.mark.parametrize("full_at", ["8", True, None, [8], float("nan")])
@pytest.mark.parametrize("name", ["queue_depth", "in_flight"])
def test_a_parameter_of_the_wrong_type_is_refused(name, full_at):
    with pytest.raises(SettingError, match="full_at: must be float"):
        build_profile({name: {"weight": 1, "full_at": full_at}}, [], "max_score")


@pytest.mark.parametrize("full_at", [0, -1.5])
@pytest.mark.parametrize("name", ["queue_depth", "in_flight"])
def test_a_parameter_out_of_range_is_refused(name, full_at):
    with pytest.raises(SettingError, match=f"{name}: full_at must be greater than 0"):
        build_profile({name: {"weight": 1, "full_at": full_at}}, [], "max_score")


SILENT = """
from dataclasses import dataclass

@dataclass(frozen=True)
class ByLabel:
    def score(self, request, candidates):
        return None
"""


def test_several_scorers_may_have_nothing_to_say(tmp_path: Path):
    (tmp_path / "by_label.py").write_text(SILENT)
    scorers.load.__path__.append(str(tmp_path))
    try:
        profile = build_profile({"lora": 1.0, "queue_depth": 2.0, "by_label": 3.0}, [], "max_score")
    finally:
        scorers.load.__path__.remove(str(tmp_path))
        sys.modules.pop("scorers.load.by_label", None)
    decision = decide(profile, RequestView("m"), [EndpointView("a")], 0.0)
    assert (decision.scorers, decision.weights, decision.totals) == (("queue_depth",), (2.0,), (2.0,))
