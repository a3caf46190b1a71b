"""Never slower, and as fast as the machine permits: the whole policy on simulated machines and texts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.speculation.cost import WIDTHS, CostCurve
from edgedec.speculation.gate import EPSILON
from edgedec.speculation.policy import PLAIN, Policy
from edgedec.types import Candidates
from tests.speculation.world import CURVES, N_MAX, Answer, Cost, Source, answer, chain, cost_of, full_table

MACHINES = sorted(CURVES)

every_machine = pytest.mark.parametrize("machine", MACHINES)


def policy_for(cost: Cost, **options: int) -> Policy:
    """A policy that has measured every width, so that its only errors are about the text."""
    return Policy(CostCurve(full_table(cost)), n_max=N_MAX, **options)


def measured_policy(cost: Cost) -> Policy:
    """A policy that knows what is measured at load."""
    return Policy(CostCurve({n: cost(n) for n in WIDTHS}), n_max=N_MAX)


def bound_ms(n_tokens: int, plain_ms: float) -> float:
    """What an answer may take at worst."""
    return (n_tokens * plain_ms + min(3 * plain_ms, 50.0)) / (1 - EPSILON)


def always_wrong(position: int) -> Candidates:
    return chain(position, 0, N_MAX, score=0.99)


def right_then_wrong(position: int) -> Candidates:
    """Wins trust, then loses it at one depth after the other."""
    return chain(position, N_MAX if position % 400 < 200 else position % 3, N_MAX, score=0.95)


def just_not_worth_it(position: int) -> Candidates:
    """One right node in front of many wrong ones."""
    return chain(position, 1, N_MAX, score=0.97)


def at_random(seed: int) -> Source:
    chance = random.Random(seed)

    def source(position: int) -> Candidates:
        score, match_len = chance.choice([0.3, 0.6, 0.9, 0.99]), chance.choice([1.0, 4.0, 12.0, 40.0])
        return chain(
            position, int(chance.expovariate(0.5)), chance.randrange(N_MAX + 1), score=score, match_len=match_len
        )

    return source


def nothing(position: int) -> Candidates:
    return Candidates("a")


def copying(position: int) -> Candidates:
    return chain(position, N_MAX, N_MAX, score=0.95)


ADVERSARIES: dict[str, Source] = {
    "always wrong": always_wrong,
    "right then wrong": right_then_wrong,
    "just not worth it": just_not_worth_it,
    "at random": at_random(1),
    "nothing": nothing,
}
every_adversary = pytest.mark.parametrize("adversary", sorted(ADVERSARIES))


# ---- never slower


@every_machine
@every_adversary
@pytest.mark.parametrize("plain_ms", [10.0, 200.0])
def test_never_slower(machine: str, adversary: str, plain_ms: float) -> None:
    cost = cost_of(CURVES[machine], plain_ms)
    policy = policy_for(cost)
    for n_tokens in (20, 100, 400):  # the policy learns from one answer to the next, the account does not
        done = answer(policy, cost, ADVERSARIES[adversary], n_tokens)
        assert done.ms <= bound_ms(n_tokens, plain_ms) * (1 + 1e-9)


@st.composite
def staircases(draw: st.DrawFn) -> dict[int, float]:
    """Any curve on which more rows do not cost less: flat stretches, cliffs, anything between."""
    table, ms = {}, 1.0
    for n in range(1, N_MAX + 2):
        table[n] = ms
        ms += draw(st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0, 8.0]))
    return table


@settings(deadline=None, max_examples=40)
@given(staircases(), st.floats(0.5, 300), st.integers(0, 1000), st.integers(1, 300))
def test_never_slower_anywhere(points: dict[int, float], plain_ms: float, seed: int, n_tokens: int) -> None:
    cost = cost_of(points, plain_ms)
    sources = [at_random(seed), at_random(seed + 1), ADVERSARIES[sorted(ADVERSARIES)[seed % len(ADVERSARIES)]]]
    done = answer(policy_for(cost), cost, sources, n_tokens)
    assert done.ms <= bound_ms(n_tokens, plain_ms) * (1 + 1e-9)


@every_machine
@every_adversary
def test_a_wrong_curve_costs_little(machine: str, adversary: str) -> None:
    """The measurement at load took every extra row for half of its price: an underestimate is charged in full, so the
    account is overdrawn by one step at most."""
    cost = cost_of(CURVES[machine])
    policy = Policy(CostCurve({n: (cost(n) + cost(1)) / 2 for n in WIDTHS}), n_max=N_MAX)
    done = answer(policy, cost, ADVERSARIES[adversary], 800)
    worst = max((step.ms for step in done.steps), default=0.0)
    assert done.ms <= bound_ms(800, cost(1)) + worst


@every_machine
@pytest.mark.parametrize("share", [0.005, 0.025, 0.2])
def test_looking_is_not_free(machine: str, share: float) -> None:
    """Drafters that find nothing of use are asked less when asking is dear."""
    cost = cost_of(CURVES[machine])
    for source in (nothing, always_wrong):
        policy = policy_for(cost)
        done = answer(policy, cost, source, 1000, look_ms=share * cost(1))
        assert done.ms <= bound_ms(1000, cost(1)) + share * cost(1)
        assert policy.speedup == pytest.approx(1000 * cost(1) / done.ms, rel=0.001)


@pytest.mark.parametrize("machine", ["cpu", "cuda", "laptop", "metal"])
@every_adversary
def test_noise_does_not_break_the_bound(machine: str, adversary: str) -> None:
    """3 % of the steps take five times as long, all others vary by 5 %. Plain decoding meets the same noise."""
    n_tokens, losses = 1000, []
    for seed in range(3):
        chance = random.Random(seed)

        def stretch(position: int, chance: random.Random = chance) -> float:
            return (5.0 if chance.random() < 0.03 else 1.0) * chance.uniform(0.95, 1.05)

        cost = cost_of(CURVES[machine])
        done = answer(measured_policy(cost), cost, ADVERSARIES[adversary], n_tokens, stretch=stretch)
        plain_ms = cost(1) * (0.97 + 0.03 * 5)
        losses.append(done.ms / bound_ms(n_tokens, plain_ms))
    assert sum(losses) / len(losses) < 1.02


# ---- as fast as the machine permits


@pytest.mark.parametrize("machine", ["cpu f32", "cuda", "laptop"])
def test_noise_costs_no_speed(machine: str) -> None:
    """Now and then a step takes five times as long, with guesses or without: no reason to guess less."""
    cost = cost_of(CURVES[machine])

    def rate(seed: int, share: float) -> float:
        chance = random.Random(seed)
        done = answer(
            measured_policy(cost),
            cost,
            lambda p: chain(p, int(chance.expovariate(1.0)), score=0.6),
            1500,
            stretch=lambda p: 5.0 if chance.random() < share else 1.0,
        )
        return 1 / done.ms_per_token * (1 + 4 * share)

    seeds = range(4)
    assert sum(rate(seed, 0.03) for seed in seeds) > 0.95 * sum(rate(seed, 0.0) for seed in seeds)


def oracle_ms_per_token(cost: Cost) -> float:
    return min(cost(n) / n for n in range(1, N_MAX + 2))


@every_machine
@pytest.mark.parametrize("plain_ms", [2.0, 10.0, 100.0])
def test_a_copying_text_is_as_fast_as_the_best_width(machine: str, plain_ms: float) -> None:
    cost = cost_of(CURVES[machine], plain_ms)
    policy = policy_for(cost)
    done = answer(policy, cost, copying, 2000)
    assert done.after(500).ms_per_token <= oracle_ms_per_token(cost) / 0.95
    assert policy.speedup == pytest.approx(2000 * cost(1) / done.ms, rel=0.01)


@pytest.mark.parametrize("machine", sorted({*MACHINES} - {"linear"}))
def test_the_measured_widths_suffice(machine: str) -> None:
    """Widths in between are estimates until they are used, so the best one may stay unknown."""
    cost = cost_of(CURVES[machine])
    done = answer(measured_policy(cost), cost, copying, 2000)
    assert done.after(500).ms_per_token <= oracle_ms_per_token(cost) / 0.9


@pytest.mark.parametrize(("plain_ms", "n_most"), [(10.0, 4), (100.0, 25), (300.0, 60)])
def test_a_copying_text_is_noticed_early(plain_ms: float, n_most: int) -> None:
    """The slower the model, the smaller the allowance in steps: 50 ms at most."""
    cost = cost_of(CURVES["cpu"], plain_ms)
    done = answer(policy_for(cost), cost, copying, 300)
    assert next(step.position for step in done.steps if step.n_drafted) <= n_most


@every_machine
def test_where_guessing_cannot_pay_there_is_none(machine: str) -> None:
    cost = cost_of(CURVES[machine])
    done = answer(policy_for(cost), cost, nothing, 500)
    assert not any(step.n_drafted for step in done.steps)
    if machine == "linear":
        done = answer(policy_for(cost), cost, copying, 500)
        assert not any(step.n_drafted for step in done.steps)


def test_trees_pay_where_chains_do_not() -> None:
    """Two drafters of which one is right, and nobody knows which."""
    chance = random.Random(1)

    right = [chance.random() < 0.5 for _ in range(1100)]

    def first(position: int) -> Candidates:
        return chain(position, 4 * right[position], 4, source="first")

    def second(position: int) -> Candidates:
        return chain(position, 4 * (not right[position]), 4, source="second")

    cost = cost_of(CURVES["laptop"])
    trees = answer(policy_for(cost, leaves_max=4), cost, [first, second], 1000)
    chains = answer(policy_for(cost), cost, [first, second], 1000)
    assert trees.ms_per_token < 0.8 * chains.ms_per_token
    assert max(step.n_emitted for step in trees.steps) == 5


# ---- change


def first_guess_after(done: Answer, position: int) -> int:
    """Tokens until the first step with guesses."""
    return next(step.position for step in done.after(position).steps if step.n_drafted) - position


def fast_after(done: Answer, position: int) -> int:
    """Tokens until five steps together have nine tenths of the final speed."""
    steps = done.after(position).steps
    final = Answer(steps[len(steps) * 3 // 4 :]).ms_per_token
    return next(
        step.position - position for i, step in enumerate(steps) if Answer(steps[i : i + 5]).ms_per_token < final / 0.9
    )


BAD_TIMES: dict[str, Callable[[random.Random], Source]] = {
    "wrong": lambda chance: lambda p: chain(p, 0),
    "one right": lambda chance: lambda p: chain(p, 1),
    "half wrong": lambda chance: lambda p: chain(p, 2 * (chance.random() < 0.5)),
    "at random": lambda chance: at_random(3),
}


@pytest.mark.parametrize("machine", ["cpu", "cuda", "laptop", "metal"])
@pytest.mark.parametrize("plain_ms", [10.0, 100.0])
@pytest.mark.parametrize("bad_times", sorted(BAD_TIMES))
def test_recovery(machine: str, plain_ms: float, bad_times: str) -> None:
    """300 tokens of bad proposals, all of which teach; then the same kind of proposal is right."""
    cost = cost_of(CURVES[machine], plain_ms)
    bad = BAD_TIMES[bad_times](random.Random(3))
    done = answer(policy_for(cost), cost, lambda p: bad(p) if p < 300 else chain(p, 16), 1300)
    assert first_guess_after(done, 300) <= 60
    assert fast_after(done, 300) <= 170


@pytest.mark.parametrize("machine", ["cpu", "cuda", "laptop", "metal"])
def test_recovery_where_looking_is_dear(machine: str) -> None:
    """Who cannot afford to look learns more slowly, but learns."""
    cost = cost_of(CURVES[machine])
    done = answer(policy_for(cost), cost, lambda p: chain(p, 0 if p < 300 else 16), 1300, look_ms=0.025 * cost(1))
    assert first_guess_after(done, 300) <= 300


@pytest.mark.parametrize("machine", ["cpu f32", "cuda", "laptop"])
def test_a_busy_neighbour_is_forgotten(machine: str) -> None:
    """While everything took three times as long, T(n) was learnt; when that is over, the text is as fast as before."""
    cost = cost_of(CURVES[machine])
    chance = random.Random(1)
    done = answer(
        measured_policy(cost),
        cost,
        lambda p: chain(p, int(chance.expovariate(0.4)), score=0.7),
        5000,
        stretch=lambda p: 3.0 if 1000 <= p < 1600 else 1.0,
    )
    before = Answer([step for step in done.steps if 200 <= step.position < 1000])
    assert done.after(2500).ms_per_token < 1.1 * before.ms_per_token


@pytest.mark.parametrize("machine", ["cpu f32", "cuda", "laptop"])
def test_another_context_length_is_another_baseline(machine: str) -> None:
    """After a long answer, whose steps were three times as dear at its end, a short one is judged by its own steps."""
    cost = cost_of(CURVES[machine])
    policy = measured_policy(cost)
    chance = random.Random(1)

    def source(position: int) -> Candidates:
        return chain(position, int(chance.expovariate(0.25)), score=0.8)

    answer(policy, cost, source, 4000, stretch=lambda p: 1 + p / 2000)
    done = answer(policy, cost, source, 200)
    assert policy.plain_ms == pytest.approx(cost(1))
    assert policy.speedup == pytest.approx(200 * cost(1) / done.ms, rel=0.01)
    assert policy.speedup > 1.2


def test_proposals_that_are_not_used_still_teach() -> None:
    """On this machine a guess has to be nearly certain. The proposals begin as not worth it by their own scores, and
    are right: after a while they are used although their scores have not changed."""
    cost = cost_of(CURVES["metal"])
    done = answer(policy_for(cost), cost, lambda p: chain(p, 8, 8, score=0.6), 400)
    drafted = [step.n_drafted for step in done.steps]
    assert not any(drafted[:4])
    assert all(drafted[-5:])


def test_the_unused_of_two_sources_teaches() -> None:
    cost = cost_of(CURVES["laptop"])

    def worse(p: int) -> Candidates:
        return chain(p, 2, 8, score=0.9, source="worse")

    def better(p: int) -> Candidates:
        return chain(p, 8, 8, score=0.5, source="better")

    alone = answer(policy_for(cost), cost, worse, 600)
    both = answer(policy_for(cost), cost, [worse, better], 600)
    assert both.after(300).ms_per_token < 0.7 * alone.after(300).ms_per_token


# ---- bookkeeping


@every_machine
def test_a_plain_answer_reports_one(machine: str) -> None:
    cost = cost_of(CURVES[machine])
    chance = random.Random(1)
    for stretch in (lambda p: 1.0, lambda p: (5.0 if chance.random() < 0.03 else 1.0) * chance.uniform(0.9, 1.1)):
        policy = policy_for(cost)
        answer(policy, cost, nothing, 300, look_ms=0.005 * cost(1), stretch=stretch)
        assert policy.speedup == pytest.approx(1.0, abs=0.01)


def learn_plain(policy: Policy, ms: float, n: int = 3) -> None:
    for _ in range(n):
        policy.learn([], PLAIN, [0], ms, 0.0)


def test_no_guess_before_the_baseline_is_measured() -> None:
    policy = policy_for(lambda n: 10.0)
    for _ in range(2):  # in every answer
        policy.begin()
        assert policy.choose([copying(0)], N_MAX) == PLAIN
        learn_plain(policy, 10.0, 1)
        assert policy.choose([copying(0)], N_MAX) == PLAIN
        learn_plain(policy, 10.0, 1)
        assert len(policy.choose([copying(0)], N_MAX)) > 0


def test_real_steps_keep_the_curve_true() -> None:
    policy = policy_for(lambda n: 10.0)
    policy.begin()
    learn_plain(policy, 10.0)
    draft = policy.choose([copying(0)], 4)
    for _ in range(3):
        policy.learn([copying(0)], draft, [0, 1, 2, 3, 4], 77.0, 1.0)
    assert policy.cost.predict(5) == 77.0
    policy.learn([copying(0)], PLAIN, [0], 13.5, 0.5)
    assert policy.plain_ms == pytest.approx((3 * 10.0 + 13.0) / 4)


def test_limits_of_a_draft() -> None:
    policy = Policy(CostCurve(full_table(lambda n: 10.0)), n_max=6)
    policy.begin()
    learn_plain(policy, 10.0)
    assert policy.n_max == 6
    assert len(policy.choose([copying(0)], N_MAX)) == 6
    assert len(policy.choose([copying(0)], 4)) == 4
    assert policy.choose([copying(0)], 0) == PLAIN
    assert policy.choose([], N_MAX) == PLAIN
    assert policy.choose([Candidates("a"), Candidates("b")], N_MAX) == PLAIN


def test_a_draft_is_no_wider_than_the_account_allows() -> None:
    policy = Policy(CostCurve(full_table(lambda n: 10.0 + 4.0 * (n - 1))), n_max=N_MAX)
    policy.begin()
    learn_plain(policy, 10.0)
    draft = policy.choose([chain(0, 30, 30, score=1.0)], N_MAX)
    assert len(draft) == 7  # 30 ms of allowance, 4 ms a node, and next to nothing earned yet


def test_a_plain_step_comes_every_now_and_then() -> None:
    cost = cost_of(CURVES["laptop"])
    done = answer(policy_for(cost), cost, copying, 6000)
    plain = [*(i for i, step in enumerate(done.steps) if not step.n_drafted), len(done.steps)]
    gaps = [b - a for a, b in itertools.pairwise(plain)]
    assert max(gaps) <= 65
    assert len(plain) < 0.05 * len(done.steps)


def test_speedup_is_of_this_answer() -> None:
    cost = cost_of(CURVES["flat"])
    policy = policy_for(cost)
    answer(policy, cost, copying, 500)
    assert policy.speedup > 5
    policy.begin()
    assert policy.speedup == 0.0
    answer(policy, cost, nothing, 50)
    assert policy.speedup == pytest.approx(1.0)
