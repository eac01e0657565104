"""The agent's store, asked by torch's own TCPStore client with every method it has."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from jobs import TOOL

SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of the store of a job whose only worker does nothing."""
    folder: Path = tmp_path_factory.mktemp("store")
    command = [TOOL, "run", "--log-dir", str(folder), "--no-python", "sh", "-c", "echo port $MASTER_PORT; sleep 1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("[0] port "), line
    yield int(line.split()[-1])
    process.terminate()
    process.wait(timeout=30)


def client(port: int) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=10))


@pytest.fixture
def store(port: int) -> dist.TCPStore:
    return client(port)


def test_set_get_check_delete(store: dist.TCPStore) -> None:
    store.set("a", "value")
    store.set("binary", b"\x00\xff".decode("latin1"))
    assert store.get("a") == b"value"
    assert store.check(["a"])
    assert not store.check(["a", "missing"])
    assert store.delete_key("a")
    assert not store.delete_key("a")


def test_add_and_counts(store: dist.TCPStore) -> None:
    before = store.num_keys()
    assert store.add("counter", 5) == 5
    assert store.add("counter", -7) == -2
    assert store.get("counter") == b"-2"
    assert store.num_keys() == before + 1
    assert "counter" in store.list_keys()


def test_compare_set(store: dist.TCPStore) -> None:
    assert store.compare_set("c", "x", "y") == b"x"
    assert store.compare_set("c", "", "y") == b"y"
    assert store.compare_set("c", "y", "z") == b"z"
    assert store.compare_set("c", "y", "w") == b"z"


def test_append_and_multi(store: dist.TCPStore) -> None:
    store.append("list", "1")
    store.append("list", "22")
    store.multi_set(["m1", "m2"], ["x", "yy"])
    assert store.multi_get(["m1", "m2", "list"]) == [b"x", b"yy", b"122"]
    assert store.has_extended_api()


def test_wait_for_a_key_of_another_client(store: dist.TCPStore, port: int) -> None:
    def later() -> None:
        time.sleep(0.2)
        client(port).set("awaited", "x")

    thread = threading.Thread(target=later)
    thread.start()
    store.wait(["awaited"], timedelta(seconds=10))
    thread.join()
    assert store.get("awaited") == b"x"


def test_a_wait_times_out_and_the_client_goes_on(store: dist.TCPStore) -> None:
    with pytest.raises(dist.DistStoreError, match="wait timeout"):
        store.wait(["never"], timedelta(milliseconds=200))
    store.set("after", "1")
    assert store.get("after") == b"1"


def test_queues(store: dist.TCPStore) -> None:
    assert store.queue_len("q") == 0
    store.queue_push("q", "first")
    store.queue_push("q", "second")
    assert store.queue_len("q") == 2
    assert store.queue_pop("q") == b"first"
    assert store.queue_pop("q") == b"second"
    with pytest.raises(dist.QueueEmptyError):
        store.queue_pop("q", False)


def test_barrier(store: dist.TCPStore, port: int) -> None:
    store.barrier("alone", 1, SECOND)
    others = [threading.Thread(target=lambda: client(port).barrier("three", 3, timedelta(seconds=10))) for _ in "ab"]
    for thread in others:
        thread.start()
    store.barrier("three", 3, timedelta(seconds=10))
    for thread in others:
        thread.join(timeout=10)
        assert not thread.is_alive()
    with pytest.raises(dist.DistStoreError, match="barrier timeout"):
        store.barrier("lonely", 2, timedelta(milliseconds=200))
    store.set("after-barrier", "1")


def test_clone_prefix_and_large_values(store: dist.TCPStore) -> None:
    prefix = dist.PrefixStore("inner", store.clone())
    large = "v" * 4_000_000
    prefix.set("large", large)
    assert store.get("inner/large") == large.encode()


def test_an_add_to_text_costs_only_that_client(store: dist.TCPStore, port: int) -> None:
    store.set("text", "no number")
    with pytest.raises(dist.DistNetworkError):
        client(port).add("text", 1)
    assert store.get("text") == b"no number"


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x0d\x01\x02\x03\x04", b"\x00" * 5])
def test_strangers_are_refused_and_disturb_nobody(store: dist.TCPStore, port: int, garbage: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
        stranger.sendall(garbage)
        assert stranger.recv(100) == b""
    store.set("undisturbed", "x")
    assert store.get("undisturbed") == b"x"


def test_a_silent_connection_is_closed(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=15) as stranger:
        assert stranger.recv(1) == b""
