"""A connection to an engine on another host that is dropped without a word: the run goes on with the same bits."""

import subprocess
import sys
from pathlib import Path

import pytest

import groupwise as gw
from groupwise.engines import Served, TlsAddress
from tests.engines.proxy import Proxy
from tests.faults.small_runs import left_without_recipe
from tests.kill.test_engines import SMALL

pytestmark = pytest.mark.kill

BYTES = 20_000
"""Bytes after which a connection is dropped. The packaged model has 894,080 bytes."""
CONNECTIONS = {"requests": 2, "weights": 3}
"""The numbers of connections: the first one looks whether the engine is there."""


@pytest.mark.parametrize("dropped_one", CONNECTIONS)
def test_an_engine_takes_the_new_connection_of_its_trainer_for_the_dropped_one(
    dropped_one: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 64)
    secret.chmod(0o600)
    words = ["serve", "calculator", "--listen", "127.0.0.1:0", "--secret-file", str(secret)]
    process = subprocess.Popen([sys.executable, "-m", "groupwise", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        address = TlsAddress.parse(process.stdout.readline().split("served at ")[1].partition(";")[0])
        assert address
        with Proxy(address.port, BYTES, CONNECTIONS[dropped_one]) as proxy:
            there = f"127.0.0.1:{proxy.port}#sha256={address.fingerprint}"
            engine = Served(replicas=0, addresses=(there,), deadline=5.0, max_restarts=9)
            dropped = gw.train(
                engine=engine, permissions=gw.Permissions(engine_secret=secret), out=tmp_path / "dropped", **SMALL
            )
            assert proxy.dropped
    finally:
        process.kill()
        process.communicate()
    assert "is lost: it sent nothing for 5 s" in capsys.readouterr().err
    native = gw.train(out=tmp_path / "native", **SMALL)
    assert left_without_recipe(dropped.directory) == left_without_recipe(native.directory)
