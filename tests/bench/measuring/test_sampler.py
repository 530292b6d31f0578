from __future__ import annotations

from itertools import pairwise

import pytest

from edgepeft.bench.measuring.sampler import Budget, Sample, Schedule, round_orders, sample_rounds
from edgepeft.common.errors import DoesNotFit, EdgepeftError


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeUnit:
    """Takes a fixed time on the fake clock and writes down when it was asked."""

    def __init__(self, name, clock, log, seconds=1.0, fails_at=None):
        self.name, self.clock, self.log, self.seconds, self.fails_at = name, clock, log, seconds, fails_at
        self.steps = 0

    def step(self, batch):
        if self.steps == self.fails_at:
            raise DoesNotFit("too large")
        self.steps += 1
        self.clock.now += self.seconds
        self.log.append((self.name, batch))
        return Sample(self.seconds, 2 * self.seconds)


def run(units, clock, **options):
    settings = {"n_batches": 1, "warmup_batches": [], "rounds": 4, "max_seconds": 1e9, "seed": 0}
    schedule = {name: options.pop(name) for name in list(options) if name in Schedule.__dataclass_fields__}
    return sample_rounds({u.name: u for u in units}, Schedule(**{**settings, **schedule}), clock=clock, **options)


@pytest.fixture
def clock():
    return FakeClock()


def test_every_unit_runs_exactly_once_in_every_round(clock):
    log = []
    run([FakeUnit(name, clock, log) for name in "abc"], clock, rounds=20)
    rounds = [log[i : i + 3] for i in range(0, 60, 3)]
    assert len(log) == 60
    assert all({name for name, _ in one} == set("abc") for one in rounds)


def test_the_order_within_rounds_changes_and_repeats_with_the_seed():
    first, again = list(round_orders("abcd", 30, 5)), list(round_orders("abcd", 30, 5))
    assert first == again
    assert first != list(round_orders("abcd", 30, 6))
    assert {order[0] for order in first} == set("abcd")


def test_all_units_work_on_the_same_batch_in_one_round(clock):
    log = []
    found = run([FakeUnit(name, clock, log) for name in "ab"], clock, rounds=5, n_batches=3)
    assert found["a"].batches == found["b"].batches == [0, 1, 2, 0, 1]
    assert [batch for _, batch in log] == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1]


def test_warm_up_is_kept_apart_from_the_samples(clock):
    log = []
    found = run([FakeUnit("a", clock, log)], clock, rounds=2, n_batches=4, warmup_batches=[3, 0])
    assert log == [("a", 3), ("a", 0), ("a", 0), ("a", 1)]
    assert len(found["a"].warmup) == 2
    assert [sample.seconds for sample in found["a"].samples] == [1.0, 1.0]


def test_no_round_begins_after_the_time_is_up_and_none_is_left_half_done(clock):
    log = []
    units = [FakeUnit("a", clock, log, 1.0), FakeUnit("b", clock, log, 2.0)]
    found = run(units, clock, rounds=100, max_seconds=7.0)
    # Rounds of 3 s begin at 0, 3 and 6; the one that would begin at 9 does not.
    assert len(found["a"].samples) == len(found["b"].samples) == 3


def test_warm_up_does_not_count_against_the_time(clock):
    found = run([FakeUnit("a", clock, [], 5.0)], clock, warmup_batches=[0, 0], rounds=3, max_seconds=10.0)
    assert len(found["a"].samples) == 2


def test_one_round_is_done_however_little_time_there_is(clock):
    assert len(run([FakeUnit("a", clock, [])], clock, max_seconds=0.0)["a"].samples) == 1


def test_rounds_that_belong_together_are_done_together_however_little_time_there_is():
    for seconds, rounds in ((0.0, 3), (3.5, 6), (6.0, 6)):
        clock = FakeClock()
        found = run([FakeUnit("a", clock, [])], clock, rounds=100, max_seconds=seconds, together=3)
        assert len(found["a"].samples) == rounds


def test_a_unit_that_does_not_fit_is_left_out_and_the_others_go_on(clock):
    log = []
    units = [FakeUnit("a", clock, log), FakeUnit("b", clock, log, fails_at=2)]
    found = run(units, clock, rounds=5)
    assert len(found["a"].samples) == 5
    assert len(found["b"].samples) == 2
    assert isinstance(found["b"].failure, DoesNotFit)


def test_progress_ends_at_its_total(clock):
    seen = []
    run([FakeUnit("a", clock, [])], clock, warmup_batches=[0], progress=lambda d, t: seen.append((d, t)))
    assert seen[0] == (0, 5)
    assert seen[-1] == (5, 5)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_that_took_no_time_is_an_error_and_no_sample(clock, seconds):
    class Odd(FakeUnit):
        def step(self, batch):
            return Sample(seconds, 1.0)

    with pytest.raises(EdgepeftError, match="clock"):
        run([Odd("a", clock, [])], clock)


def test_a_clock_that_is_set_back_does_not_prolong_a_run(clock):
    class Jumps(FakeUnit):
        def step(self, batch):
            sample = super().step(batch)
            if self.steps == 3:
                self.clock.now -= 1000.0
            return sample

    found = run([Jumps("a", clock, [], 1.0)], clock, rounds=100, max_seconds=6.0)
    # 1 s a round; the third jumps back and counts as none.
    assert len(found["a"].samples) == 7


def test_measuring_ends_as_soon_as_it_is_enough_but_not_before_the_least(clock):
    asked = []

    def enough(series):
        asked.append(len(series["a"].samples))
        return len(series["a"].samples) >= 12

    found = run([FakeUnit("a", clock, [])], clock, rounds=100, min_rounds=10, enough=enough)
    assert asked == [10, 11, 12]
    assert len(found["a"].samples) == 12
    assert found["a"].enough


def test_rounds_that_ran_out_were_not_enough(clock):
    assert not run([FakeUnit("a", clock, [])], clock, rounds=5)["a"].enough


def test_warming_up_goes_on_until_steady_and_not_for_ever(clock):
    log = []

    def steady(series):
        return len(series["a"].warmup) >= 4

    units = [FakeUnit("a", clock, log)]
    found = run(units, clock, warmup_batches=[2, 1], n_batches=3, more_warmup=9, is_steady=steady)
    assert [batch for _, batch in log[:4]] == [2, 1, 1, 1]
    assert len(found["a"].warmup) == 4
    never = run([FakeUnit("a", clock, [])], clock, warmup_batches=[0], more_warmup=3, is_steady=lambda series: False)
    assert len(never["a"].warmup) == 4


def test_after_ctrl_c_whole_rounds_are_kept(clock):
    class Stopped(FakeUnit):
        def step(self, batch):
            if self.steps == 3:
                raise KeyboardInterrupt
            return super().step(batch)

    found = run([FakeUnit("a", clock, []), Stopped("b", clock, [])], clock, rounds=10)
    assert len(found["a"].samples) == len(found["b"].samples) == len(found["a"].batches) == 3
    assert found["a"].interrupted
    assert found["b"].interrupted


def test_a_probe_that_is_seldom_takes_part_in_the_first_of_so_many_rounds(clock):
    log = []
    units = [FakeUnit(name, clock, log) for name in ("a", "probe")]
    found = run(units, clock, rounds=7, seldom=["probe"], probe_every=3)
    assert (len(found["a"].samples), len(found["probe"].samples)) == (7, 3)
    rounds_of_the_probe = [sum(name == "a" for name, _ in log[:at]) for at, (n, _) in enumerate(log) if n == "probe"]
    assert all(seen in (r, r + 1) for seen, r in zip(rounds_of_the_probe, (0, 3, 6), strict=True))


def test_ctrl_c_keeps_the_whole_rounds_of_all_but_the_probe(clock):
    class Pressed(FakeUnit):
        def step(self, batch):
            if self.steps == 5:
                raise KeyboardInterrupt
            return super().step(batch)

    units = [FakeUnit("a", clock, []), Pressed("b", clock, []), FakeUnit("probe", clock, [])]
    found = run(units, clock, rounds=9, seldom=["probe"], probe_every=3)
    assert len(found["a"].samples) == len(found["b"].samples) == 5
    assert len(found["probe"].samples) == 2


@pytest.mark.parametrize("names", ["ab", "abc", "abcde"])
def test_nobody_follows_itself_from_one_round_to_the_next(names):
    orders = list(round_orders(names, 200, 3, seldom="a", every=7))
    assert all(before[-1] != after[0] for before, after in pairwise(orders) if len(after) > 1)
    assert [set(order) for order in orders[:8]] == [set(names)] + [set(names) - {"a"}] * 6 + [set(names)]


def test_in_a_round_of_three_everyone_follows_everyone_else():
    orders = [name for order in round_orders("abc", 300, 1) for name in order]
    pairs = [a + b for a, b in pairwise(orders)]
    assert {pair: pairs.count(pair) > 60 for pair in set(pairs)} == dict.fromkeys(
        ("ab", "ac", "ba", "bc", "ca", "cb"), True
    )


def test_a_budget_bounds_warming_up_and_measuring_and_says_what_had_no_time(clock):
    """20 s for steps of 1, 2 and 30 s: the third is begun, since nobody knew, and nothing can follow it."""
    log = []
    units = [FakeUnit("a", clock, log, 1.0), FakeUnit("b", clock, log, 2.0)]
    found = run(units, clock, rounds=100, warmup_batches=[0, 0], budget=Budget(20.0, clock))
    # 6 s of warming up; rounds of 3 s end at 9, 12, 15 and 18.
    assert clock.now == 18.0
    assert [len(one.samples) for one in found.values()] == [4, 4]
    assert not any(one.left_out for one in found.values())
    clock.now = 0.0
    late = [*units, FakeUnit("c", clock, log, 30.0), FakeUnit("d", clock, log, 1.0)]
    found = run(late, clock, rounds=100, warmup_batches=[0, 0], budget=Budget(20.0, clock))
    assert clock.now == 33.0, "one step later than asked, no more"
    assert {name: one.left_out for name, one in found.items()} == dict.fromkeys("abcd", True)


def test_warming_up_leaves_time_for_a_round_of_what_is_warm(clock):
    units = [FakeUnit(name, clock, [], 4.0) for name in "abc"]
    found = run(units, clock, rounds=9, warmup_batches=[0] * 9, budget=Budget(20.0, clock))
    # a and b are warm at 8 s; a third would be at 12 s, and three steps of measuring would end after 20 s.
    assert [len(one.samples) for one in found.values()] == [1, 1, 0]
    assert [one.left_out for one in found.values()] == [False, False, True]
    assert clock.now <= 20.0


def test_a_budget_is_shared_by_what_is_left(clock):
    budget = Budget.of(60.0, clock)
    assert budget.part(2).left_s == 30.0
    clock.now = 10.0
    assert budget.part(1).left_s == 50.0
    assert budget.fits(49.0)
    assert not budget.fits(50.0)
    clock.now = 100.0
    assert budget.left_s == 0.0
    assert not budget.fits(0.0)
    assert Budget.of(None, clock).fits(1e9)
