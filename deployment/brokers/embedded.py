"""The embedded broker: `noida-db`, one small program from PyPI that speaks Kafka's protocol, for demos and machines without a JVM.

What must stay true: the program itself is run, not its Python wrapper (killing the wrapper leaves the broker running); it listens
on loopback, with its other protocols off. It is no place for what must last: it writes its state about once a second, so a crash of
the machine, or a SIGKILL, can lose what it has acknowledged. A reader notices (`RECOVERY_BLOCKED`: the journal is beyond the end of
the log). What it can and can't do: `docs/decisions/brokers-for-one-machine.md`.
"""

import importlib.util
import os
from importlib import metadata
from pathlib import Path

from deployment.brokers.process import HOST, BrokerProcess, EmbeddedBrokerError, Ports, Recipe

DISTRIBUTION = "noida-db"


def embedded_broker(folder: Path | str | None = None, *, users: Path | None = None) -> BrokerProcess:
    """An embedded broker, not started yet; without a folder, temporary. Raises `EmbeddedBrokerError` if it isn't installed."""
    program = _program()
    recipe = Recipe(
        name=f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}",
        ports=1,
        prepare=lambda _, __: (),
        command=lambda folder, ports: _command(program, folder, ports),
    )
    return BrokerProcess(recipe, folder, users=users)


def _command(program: Path, folder: Path, ports: Ports) -> list[str]:
    place = ["--data-dir", str(folder / "data"), "--host", HOST, "--only", "kafka", "--kafka-port", str(ports[0])]
    return [str(program), "start", *place]


def _program() -> Path:
    """The program, found without importing the package that brings it, and made executable as its own wrapper does."""
    found = importlib.util.find_spec("noida_db")
    if found is None or not found.submodule_search_locations:
        raise EmbeddedBrokerError(
            f"the package {DISTRIBUTION} is not installed",
            expected="pip install 'finaz-runtime[embedded]', or a broker's address in FINAZ_KAFKA_BOOTSTRAP",
        )
    program = Path(found.submodule_search_locations[0]) / DISTRIBUTION
    if not os.access(program, os.X_OK):
        program.chmod(0o755)
    return program
