"""A13: a loading engine gets no request.

The scenarios are those of `scripts/bench field-reports`, scaled down.
"""

import pytest

from benchmarks.field_reports.a13 import SCENARIOS
from benchmarks.field_reports.case import SMALL, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a13(scenario: Scenario):
    await scenario(SMALL)
