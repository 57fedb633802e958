"""A05: large bodies pass up to the limit; over it 413, early.

The scenarios are those of `scripts/bench field-reports`, scaled down.
"""

import pytest

from benchmarks.field_reports.a05 import SCENARIOS
from benchmarks.field_reports.case import SMALL, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a05(scenario: Scenario):
    await scenario(SMALL)
