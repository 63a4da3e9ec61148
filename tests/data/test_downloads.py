"""Downloads against a server on this machine: resumed, from the next mirror, verified, never half there."""

import contextlib
import hashlib
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from heatbath.data import downloads
from heatbath.data.downloads import RemoteFile, cache_dir, data_roots, download
from heatbath.data.formats import DataError

CONTENT = np.random.default_rng(0).bytes(1_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Mirror:
    """Serves ``CONTENT``; ``behaviour`` says how well, and ``requests`` what was asked for."""

    def __init__(self, behaviour="good"):
        self.behaviour, self.requests, self.sent = behaviour, [], []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                mirror.requests.append(self.headers.get("Range"))
                mirror.answer(self)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/file.bin"

    def answer(self, handler):
        content, start, status = CONTENT, 0, 200
        asked = handler.headers.get("Range")
        if self.behaviour == "absent":
            handler.send_error(404)
            return
        if self.behaviour == "wrong":
            content = bytes(len(CONTENT))
        if self.behaviour == "long":
            content = CONTENT + b"more"
        if asked and self.behaviour != "no ranges":
            start, status = int(asked.removeprefix("bytes=").removesuffix("-")), 206
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content) - start))
        if status == 206:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.end_headers()
        body = content[start:]
        if self.behaviour == "breaks":
            body = body[: len(body) // 2]
            handler.close_connection = True
        if self.behaviour == "slow":
            time.sleep(0.3)
        self.sent.append(len(body))
        handler.wfile.write(body)


@pytest.fixture
def mirror():
    with contextlib.ExitStack() as stack:

        def start(behaviour="good"):
            made = Mirror(behaviour)
            thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(made.server.server_close)
            stack.callback(made.server.shutdown)
            return made

        yield start


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def remote(*mirrors):
    return RemoteFile(tuple(mirror if isinstance(mirror, str) else mirror.url for mirror in mirrors), 1_000_000, DIGEST)


def test_download(mirror, tmp_path):
    good, heard = mirror(), []
    path = download(remote(good), tmp_path / "new" / "folder", progress=lambda *told: heard.append(told))
    assert path == tmp_path / "new" / "folder" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert heard[-1] == ("file.bin", 1_000_000, 1_000_000)
    assert [done for _, done, _ in heard] == sorted({done for _, done, _ in heard})
    download(remote(good), path.parent)
    assert good.requests == [None], "what is there is not fetched again"


@pytest.mark.parametrize("behaviour", ["good", "no ranges"])
def test_resumed(mirror, tmp_path, behaviour):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:700_000])
    server = mirror(behaviour)
    assert download(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests == ["bytes=700000-"]
    assert server.sent == [300_000 if behaviour == "good" else 1_000_000]


def test_broken_transfers_add_up(mirror, tmp_path):
    """Each of two mirrors breaks off halfway; the third gives the rest."""
    one, two, three = mirror("breaks"), mirror("breaks"), mirror()
    assert download(remote(one, two, three), tmp_path).read_bytes() == CONTENT
    assert (one.sent, two.sent, three.sent) == ([500_000], [250_000], [250_000])


def test_whole_but_not_renamed(mirror, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    server = mirror()
    assert download(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests == []


@pytest.mark.parametrize("leftover", [bytes(700_000), bytes(1_000_000), bytes(2_000_000)])
def test_wrong_leftover_is_given_up(mirror, tmp_path, leftover):
    (tmp_path / "file.bin.part").write_bytes(leftover)
    assert download(remote(mirror()), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("behaviour", ["absent", "wrong", "long"])
def test_next_mirror(mirror, tmp_path, behaviour):
    assert download(remote(mirror(behaviour), mirror()), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("behaviour", "message"), [("absent", "Not Found"), ("wrong", "wrong content"), ("long", "wrong content")]
)
def test_no_mirror_has_it(mirror, tmp_path, behaviour, message):
    server = mirror(behaviour)
    with pytest.raises(DataError, match=message) as caught:
        download(remote(server), tmp_path)
    line = str(caught.value)
    assert line.startswith("cannot download file.bin (")
    assert line.endswith(f"get it from {server.url} and put it in {tmp_path}")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError):
        download(remote(server), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_offline_is_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/file.bin"
        with pytest.raises(DataError, match="Connection refused") as caught:
            download(remote(url), tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("Connection refused") == 1


def test_interrupted_leaves_what_it_has(mirror, tmp_path):
    def interrupt(_name, done, _total):
        if done > 400_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(remote(mirror()), tmp_path, progress=interrupt)
    assert not (tmp_path / "file.bin").exists()
    size = (tmp_path / "file.bin.part").stat().st_size
    assert size > 400_000
    server = mirror()
    assert download(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests == [f"bytes={size}-"]


def test_two_at_once_fetch_once(mirror, tmp_path):
    server, found = mirror("slow"), []
    threads = [threading.Thread(target=lambda: found.append(download(remote(server), tmp_path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == CONTENT for path in found] == [True] * 3
    assert len(server.requests) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "file.bin"]


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(DataError, match=r"cannot write .*taken"):
        download(remote("http://127.0.0.1:9/file.bin"), tmp_path / "taken")


def test_full_disk(mirror, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(downloads.os, "fsync", fail)
    with pytest.raises(DataError, match=r"cannot write .*file.bin: No space left on device"):
        download(remote(mirror()), tmp_path)
    assert not (tmp_path / "file.bin").exists()


def test_roots(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HEATBATH_DATA", raising=False)
    assert data_roots() == [tmp_path / "cache" / "heatbath"]
    monkeypatch.setenv("HEATBATH_DATA", str(tmp_path / "b"))
    assert data_roots(tmp_path / "a") == [tmp_path / "a", tmp_path / "b", tmp_path / "cache" / "heatbath"]
    assert data_roots(tmp_path / "b") == [tmp_path / "b", tmp_path / "cache" / "heatbath"]
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == Path(os.environ["HOME"]) / ".cache" / "heatbath"


def test_a_link_in_the_place_of_a_broken_transfer_is_not_followed(tmp_path):
    (tmp_path / "letter").write_text("dear")
    remote = RemoteFile(("http://127.0.0.1:9/a.bin",), 4, "0" * 64)
    (tmp_path / "a.bin.part").symlink_to(tmp_path / "letter")
    with pytest.raises(DataError, match=r"a\.bin\.part is a link or no file; remove it"):
        download(remote, tmp_path)
    assert (tmp_path / "letter").read_text() == "dear"
