"""The benchmark of admissions: what it counts as admitted is in the log, and it cleans up behind itself."""

from deployment.bench import admissions


def test_a_small_run_measures_all_that_the_full_one_does() -> None:
    """Admissions and both endpoints that do nothing are measured side by side, and the aim is judged."""
    said: list[str] = []
    found = admissions.run(1, 0.001, said.append)
    assert found["requests"] == admissions.REQUESTS_MIN
    rates = {figure["label"]: figure["value"] for figure in found["figures"] if figure["unit"] == "1/s"}
    assert len(rates) == 3
    assert all(rate > 0 for rate in rates.values())
    (aim,) = found["aims"]
    assert aim["ratio"] > 0
    assert len(said) == 3
