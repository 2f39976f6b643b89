"""The benchmark of rebuilds at a tiny scale: it runs to the end and reports its fields. Nothing here looks at a time."""

from deployment.bench import projections


def test_rebuilds_and_writers_are_measured() -> None:
    """Each projection has a bare and a rebuilt figure and an aim; the writers have theirs, undisturbed and beside rebuilds."""
    answer = projections.run(1, 0.01, lambda sentence: None)
    labels = [figure["label"] for figure in answer["figures"]]
    assert labels[: 2 * len(projections.NAMES)] == [
        f"{name}, {what}" for name in projections.NAMES for what in ("read bare", "rebuilt")
    ]
    assert all(figure["value"] > 0 for figure in answer["figures"])
    assert [aim["aim"] for aim in answer["aims"]] == ["≥ 0.3"] * len(projections.NAMES) + ["≥ 0.9"]
    assert answer["events"] >= projections.EVENTS_MIN
