"""`finaz audit` and `finaz seal`: is everything what was once written, and how that can be told."""

from typing import Any, Final

import click

from deployment.cli.output import answer, facts, json_option, note, table, tell_error, wants_json

EXIT_CLEAN: Final = 0
EXIT_DIFFERENCES: Final = 1
EXIT_COULD_NOT_CHECK: Final = 2

FINDINGS_SHOWN: Final = 50


@click.group()
def audit() -> None:
    """Check the log, the read models and the blobs against the events and their hashes."""


@audit.command(epilog="Example: finaz audit replay --json && echo clean")
@click.option(
    "--direct",
    is_flag=True,
    help="On the database of FINAZ_POSTGRES_DSN itself, without the API: for a restored backup.",
)
@click.option("--report", "file", metavar="FILE", help="Write the report there.")
@json_option
def replay(direct: bool, file: str | None) -> int:
    """Fold every stream from nothing, make every read model again aside, and compare with what is served, at one position.

    Checks the hash chain, the seals and every published artifact too, while writers run. Exit status 0: clean; 1: differences,
    each in the report; 2: could not check. Without --direct it runs as a job, whose last event is the outcome, and needs the scope
    operate; the report is in CAS. With --direct nothing is written to the database; blobs and seals are those of the settings.
    """
    from deployment.auditing import Audited, directly, through_api

    try:
        done: Audited = directly(quiet=wants_json()) if direct else through_api(quiet=wants_json())
        if file is not None:
            done.write(file)
    except Exception as error:  # whatever it was: it could not check, which must not look like an outcome
        tell_error(error, as_json=wants_json())
        return EXIT_COULD_NOT_CHECK
    answer(done.document(), lambda: _show(done.document()))
    return EXIT_CLEAN if done.clean else EXIT_DIFFERENCES


def _show(found: dict[str, Any]) -> None:
    names = ("outcome", "position", "events", "streams", "blobs_checked", "differences", "report", "vouches")
    facts((name.replace("_", " "), found.get(name)) for name in names)
    rows = [
        (one["kind"], one["subject"], one["position"], one["expected"], one["actual"])
        for one in found["findings"][:FINDINGS_SHOWN]
    ]
    if rows:
        table(("kind", "what", "position", "expected", "actual"), rows)
    for line in found["not_checked"]:
        note(f"not checked: {line}")


@click.group()
def seal() -> None:
    """Seal the log's hash chain outside the database; make the key, verify seals."""


@seal.command(epilog="Example: finaz seal key --output seal.pem")
@click.option("--output", "file", metavar="FILE", required=True, help="A new file for the private key.")
@json_option
def key(file: str) -> None:
    """Make a key that seals are signed with. Keep the private one from the database's machine, the public one with the auditors."""
    from pathlib import Path

    from services.adapters.ed25519 import make_key

    made = {"private_key_file": file, "public_key": make_key(Path(file)).public_key}
    answer(made, lambda: facts((name.replace("_", " "), value) for name, value in made.items()))


@seal.command(name="public", epilog="Example: finaz seal public > public.hex")
@click.argument("file", required=False)
@json_option
def public_key(file: str | None) -> None:
    """Print the public key of the key in FILE, for those who verify; by default of the settings' key."""
    from deployment.auditing import known_public_key

    known = known_public_key(file)
    answer({"public_key": known}, lambda: click.echo(known))


@seal.command(name="now", epilog="Example: finaz seal now --json")
@json_option
def seal_now() -> None:
    """Seal what has been appended since the last seal, without waiting for the sealer. Needs the database and the key."""
    from deployment.auditing import sealed_now

    made = sealed_now()
    answer(made, lambda: facts(made.items()))
    if not made["sealed"]:
        note("nothing was appended since the last seal")


@seal.command(epilog="Example: finaz seal verify --public-key public.hex seals/")
@click.argument("folder", required=False)
@click.option("--public-key", "key_file", metavar="FILE", help="The public key; by default that of the settings.")
@json_option
def verify(folder: str | None, key_file: str | None) -> int:
    """Verify the seals in FOLDER by their signatures, numbers and links, offline: no database is asked.

    Without FOLDER, those that the settings keep in a folder or a bucket.
    """
    from deployment.auditing import verified_seals

    found = verified_seals(folder, key_file)

    def human() -> None:
        facts((name, found[name]) for name in ("seals", "last", "position", "chain"))
        if found["problems"]:
            table(("seal", "expected", "actual"), [(p["name"], p["expected"], p["actual"]) for p in found["problems"]])

    answer(found, human)
    return EXIT_CLEAN if not found["problems"] else EXIT_DIFFERENCES
