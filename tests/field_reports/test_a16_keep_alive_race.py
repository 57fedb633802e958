"""A16: engines that close idle connections cost nobody anything.

The scenarios are those of `scripts/bench field-reports`, scaled down.
"""

import pytest

from benchmarks.field_reports.a16 import SCENARIOS
from benchmarks.field_reports.case import SMALL, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a16(scenario: Scenario):
    await scenario(SMALL)
