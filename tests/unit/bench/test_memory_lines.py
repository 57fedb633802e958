"""The lines of the memory and latency benchmarks hold and fail as they should; no two of the prompts are alike."""

from benchmarks.latency.cli import FULL, QUICK, Gaps, Run
from benchmarks.latency.cli import judge as judge_latency
from benchmarks.memory.distinct import Plan, Sample, branching, judge, request
from benchmarks.served import exit_status

PLAN = Plan(unique=40_000, branching=20_000, step=5_000)


def samples(rss_mb: list[float], blocks: list[int], decision_us: list[float]) -> list[Sample]:
    rows = zip(rss_mb, blocks, decision_us, strict=True)
    return [Sample(5_000 * number, *row) for number, row in enumerate(rows)]


def test_memory_that_stays_flat_once_the_index_is_full_holds():
    flat = samples([60, 90, 95, 95, 96, 96], [0, 20_000, 38_000, 37_000, 39_000, 38_500], [0, 50, 50, 55, 50, 60])
    assert [line.held for line in judge(flat, 2, PLAN)] == [True] * 4


def test_each_line_on_distinct_prompts_fails_where_it_must():
    growing = samples(
        [60, 90, 95, 100, 105, 110], [0, 20_000, 39_000, 39_000, 39_000, 39_000], [0, 50, 50, 50, 50, 101]
    )
    assert [line.held for line in judge(growing, 2, PLAN)] == [True, True, False, False]
    beyond = samples([60, 90, 95, 100, 105, 110], [0, 1, 2, 3, 4, 400_000], [0, 50, 50, 50, 50, 50])
    assert [line.held for line in judge(beyond, 2, PLAN)] == [False, False, True, True]
    unknown = samples([60] * 6, [0] * 6, [0, 50, 50, 50, 50, 50])
    assert judge(unknown, 2, PLAN)[0].held is False
    assert exit_status(judge(growing, 2, PLAN)) == 1


def test_prompts_and_sessions_are_all_different_and_have_their_size():
    asked = [request(number) for number in range(50)]
    assert len({one.partition(b"content")[2] for one in asked}) == 50
    assert len({one.partition(b"x-session-id: ")[2].partition(b"\r\n")[0] for one in asked}) == 50
    assert all(4096 < len(one) < 4500 for one in asked)


def test_branching_prompts_leave_the_same_text_at_many_depths():
    bodies = [branching(number).partition(b'"content":"')[2].partition(b'"')[0] for number in range(200)]
    longest = max(bodies, key=len)
    depths = set()
    for body in bodies:
        depth = len(body) - 512
        assert body[:depth] == longest[:depth]
        depths.add(depth)
    assert len(set(bodies)) == 200
    assert len(depths) > 100


def runs(added: list[float]) -> list[Run]:
    return [Run(Gaps(50, 51, 55, 10), Gaps(50, 51 + more, 60, 10), 0.02) for more in added]


def test_the_median_of_what_is_added_decides():
    assert judge_latency(runs([0.5, 9.0, 1.9, 2.0, 0.1]), FULL)[0].held is True
    assert judge_latency(runs([2.1, 0.1, 2.2, 2.3, 0.1]), FULL)[0].held is False
    assert judge_latency(runs([9.0]), QUICK)[0].held is None
