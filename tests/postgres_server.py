"""A PostgreSQL server of the tests' own, on a socket in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# initdb refuses root: Debian's package brings this user along.
USER = "postgres"
SETTINGS = (
    "-c",
    "listen_addresses=",
    "-c",
    "fsync=off",
    "-c",
    "shared_buffers=256MB",
)


def find_tools() -> Path:
    """Return the folder of the newest server's tools; without one skip, but not in CI."""
    places = [*Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found := shutil.which("initdb"):
        places.append(Path(found).resolve())
    if not places:
        if os.environ.get("CI") == "true":
            pytest.fail("no initdb in CI: .ci/run installs Debian's package postgresql")
        pytest.skip("no initdb: apt-get install postgresql")
    return max(places, key=lambda path: float(path.parts[-3]) if path.parts[-3].isdigit() else 0)


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server with an empty database; yield its URL, whose password is ``s3cret``."""
    tools = find_tools().parent
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # short: a socket's path has 107 bytes
    if os.geteuid() == 0:
        shutil.chown(folder, USER)
    password = folder / "password"
    password.write_text("s3cret", encoding="utf-8")
    password.chmod(0o644)
    data = folder / "data"
    form = ("-A", "scram-sha-256", "-U", "perf", "-N", f"--pwfile={password}", "-E", "UTF8")
    call(folder, tools / "initdb", "-D", data, *form)
    options = " ".join((*SETTINGS, "-k", str(folder)))
    call(folder, tools / "pg_ctl", "start", "-D", data, "-l", folder / "log", "-w", "-o", options)
    try:
        yield f"postgresql+psycopg://perf:s3cret@/postgres?host={folder}"
    finally:
        call(folder, tools / "pg_ctl", "stop", "-D", data, "-m", "immediate", "-w")
        shutil.rmtree(folder, ignore_errors=True)


def call(folder: Path, *command: str | Path) -> None:
    """Run one of the server's tools as a user who is not root."""
    prefix = ("runuser", "-u", USER, "--") if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*prefix, *map(str, command)],
        cwd=folder,
        env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"},
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server that all tests of a session share."""
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty history, of each kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/history.db"
    made: str = request.getfixturevalue("make_database")()
    return made


@pytest.fixture(scope="session")
def make_database(postgres: str) -> Callable[[], str]:
    """Make an empty database on the server and return its URL."""
    import psycopg

    def make() -> str:
        name = f"db{uuid.uuid4().hex}"
        with psycopg.connect(postgres.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return postgres.replace("/postgres?", f"/{name}?")

    return make
