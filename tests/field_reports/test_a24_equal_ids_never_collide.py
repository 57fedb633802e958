"""A24: equal ids of clients never collide in an engine.

The scenarios are those of `scripts/bench field-reports`, scaled down.
"""

import pytest

from benchmarks.field_reports.a24 import SCENARIOS
from benchmarks.field_reports.case import SMALL, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a24(scenario: Scenario):
    await scenario(SMALL)
