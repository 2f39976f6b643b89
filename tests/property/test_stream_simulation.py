"""The seeded simulation of workers, broker, database clock and rivals: thousands of histories, and faults that it must find."""

from collections import Counter
from itertools import count, islice

import pytest

from domain.market.records import encode_event
from tests.support.stream_simulation import Simulation, failing, main
from tests.support.stream_world import BrokenInvariantError, Mutant, Topic, value_of

HISTORIES = 10_000
BLOCK = 1_000
"""Histories of one test, so that several processes share them."""

MUTANT_HISTORIES_MAX = 500
"""A planted fault must show within so many histories."""


@pytest.mark.parametrize("block", range(HISTORIES // BLOCK))
def test_no_history_breaks_an_invariant(block: int) -> None:
    """Tokens monotone, no effect by an overtaken owner, nothing lost or counted twice, watermarks and offsets never back,
    outputs equal to the batch: in every history. `python -m tests.support.stream_simulation` runs more.
    """
    broken = [f"seed {seed}: {error!r}" for seed, error in failing(range(block * BLOCK, (block + 1) * BLOCK))]
    assert broken == []


@pytest.mark.parametrize("mutant", [mutant for mutant in Mutant if mutant is not Mutant.NONE])
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    """The simulation can fail: without the fence, with forgotten identities, with other offsets, it names a seed that breaks."""
    found = list(islice(failing(range(MUTANT_HISTORIES_MAX), mutant), 1))
    assert found, f"no history of {MUTANT_HISTORIES_MAX} shows that {mutant.value}"
    seed, first = found[0]
    with pytest.raises(type(first)) as again:
        Simulation(seed, mutant).run()
    assert str(again.value) == str(first)
    Simulation(seed).run()


def test_the_fence_and_the_dedupe_are_found_missing_by_the_oracle_itself() -> None:
    """Not only because some other check stumbles over what follows."""
    for mutant in (Mutant.FENCE, Mutant.DEDUPE):
        errors = (error for _, error in failing(count(), mutant))
        assert any(isinstance(error, BrokenInvariantError) for error in islice(errors, 5))


def test_histories_have_in_them_what_they_are_for() -> None:
    """Takeovers, retries, every treatment: a simulation of nothing would hold for ever."""
    seen = Counter[str]()
    for seed in range(200):
        simulation = Simulation(seed)
        simulation.run()
        seen.update(simulation.happened())
    assert {name for name, times in seen.items() if times >= 20} >= {
        *("takeovers", "crashes", "refused", "lost answers", "retries", "commits"),
        *("consumed", "revised", "late", "filtered", "omitted", "duplicates_skipped", "absent"),
    }


def test_records_are_those_of_the_market() -> None:
    """The short way of writing them gives the bytes of the long one."""
    for seed in range(20):
        simulation = Simulation(seed)
        for event in Topic.arrivals(simulation.dice):
            assert value_of(event) == encode_event(event)


def test_the_command_says_which_seeds_break(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 1 and the seed for a planted fault, 0 for none."""
    monkeypatch.setattr("sys.argv", ["simulation", "--histories", "60", "--mutant", "FENCE"])
    assert main() == 1
    assert "seed " in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["simulation", "--histories", "5"])
    assert main() == 0
    assert "5 histories, 0 broken" in capsys.readouterr().out
