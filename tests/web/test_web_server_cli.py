"""`regard serve` as a program: its address, its mistakes in one line, and how it stops."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_checks import assert_refused

from regard.cli.serve import name_runs


@contextmanager
def started(*words: object, **environment: str):
    """The program, and the lines it prints until it is ready."""
    command = [sys.executable, "-m", "regard", "serve", *map(str, words), "--port", "0", "--device", "cpu"]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]), **environment}
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and a child inherits that
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    finally:
        signal.signal(signal.SIGHUP, hangup)
    with child as program:
        try:
            yield program, program.stdout.readline().strip()
        finally:
            if program.poll() is None:
                program.kill()


def get(address: str, path: str, **headers: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(urllib.request.Request(address + path, headers=headers), timeout=30) as answer:
        return answer.status, answer.read()


def test_it_serves_until_ctrl_c_and_says_which_run_translates(runs):
    with started(runs["transformer"], runs["bahdanau"], runs["gpt"]) as (program, address):
        assert address.startswith("http://127.0.0.1:")
        assert program.stdout.readline().split() == ["transformer", "transformer,", "en", "to", "it:", "the", "page,",
                                                     "/translate,", "/v1/completions"]  # fmt: skip
        assert "/translate" not in program.stdout.readline(), "of the same languages as the run before it"
        assert program.stdout.readline().split() == ["gpt", "gpt:", "the", "page,", "/v1/completions"]
        status, health = get(address, "/health")
        assert (status, [run["name"] for run in json.loads(health)["runs"]]) == (200, ["transformer", "bahdanau", "gpt"])
        assert b"<title>" in get(address, "/")[1]
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert "server" not in answer.headers
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=30)
    assert program.returncode == 0, "Ctrl-C is how it is stopped"
    which = "/translate from en to it asks transformer, which was named before bahdanau"
    assert errors.splitlines() == [which, "Ctrl-C stops", "stopped"], "requests are not logged"


def test_the_key_of_the_environment_is_needed_and_a_bug_is_one_line_of_the_log(runs, tmp_path):
    """Reading the page fails in a way that nobody foresaw."""
    broken = "import regard.web.server as server\ndef fail(path): raise RuntimeError('secret')\nserver._page_file = fail\n"
    (tmp_path / "sitecustomize.py").write_text(broken)
    paths, key = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]), {"Authorization": "Bearer correct-horse"}
    with started(runs["gpt"], PYTHONPATH=paths, REGARD_API_KEY="correct-horse") as (program, address):
        assert get(address, "/v1/models", **key)[0] == 200
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            get(address, "/v1/models")
        refused.value.close()
        with pytest.raises(urllib.error.HTTPError, match="500") as failed:
            get(address, "/", **key)
        assert json.loads(failed.value.read()) == {"error": "internal error; see the server's log"}
        failed.value.close()
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=30)
    assert "Traceback" not in errors
    assert len([line for line in errors.splitlines() if "RuntimeError" in line]) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_server_that_stops_says_so_to_those_who_wait(runs, tmp_path, number):
    """One client waits for a translation without end, one has sent half of its body."""
    endless = ("import time\nfrom regard.tasks.translation import Translator\n"
               "def translate(self, texts, observers, **more):\n"
               "    while observers[0].wanted: time.sleep(0.01)\n"
               "    return []\n"
               "Translator.translate = translate\n")  # fmt: skip
    (tmp_path / "sitecustomize.py").write_text(endless)
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    with started(runs["transformer"], PYTHONPATH=paths) as (program, address):
        host = address.removeprefix("http://")
        body = json.dumps({"q": "a", "source": "en", "target": "it"}).encode()
        head = ["POST /translate HTTP/1.1", f"Host: {host}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        clients = []
        for sent in (body, body[:-1]):
            clients.append(socket.create_connection(host.split(":"), timeout=30))
            clients[-1].sendall("\r\n".join([*head, "", ""]).encode() + sent)
        while not json.loads(get(address, "/health")[1])["runs"][0]["working"]:
            pass
        program.send_signal(number)
        answers = []
        for client in clients:
            with client, client.makefile("rb") as answer:
                answers.append(answer.read())
        _, errors = program.communicate(timeout=30)
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 5\r\n" in answer.lower()
        assert "shutting down" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert "Traceback" not in errors
    assert len(errors.splitlines()) <= 3, errors
    assert program.returncode == (0 if number == signal.SIGINT else -signal.SIGTERM)


def test_a_port_in_use_names_the_process_and_a_free_port(regard, runs):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = regard("serve", runs["gpt"], "--port", port)
        assert_refused(result, f"port {port} is in use by process {os.getpid()} (", "use --port ")
        free = int(result.err.rpartition("--port ")[2])
        with socket.create_server(("127.0.0.1", free)):
            assert free != port


def test_other_machines_need_a_key(regard, runs, monkeypatch):
    monkeypatch.delenv("REGARD_API_KEY", raising=False)
    assert_refused(regard("serve", runs["gpt"], "--host", "0.0.0.0"), "--host 0.0.0.0", "REGARD_API_KEY", "--api-key")
    assert_refused(regard("serve", runs["gpt"], "--host", "0.0.0.0", "--api-key", "short"), "5 characters")
    assert_refused(regard("serve", runs["gpt"], "--api-key", "schlüssel"), "ASCII")


@pytest.mark.parametrize(("words", "wanted"), [
    (("--host", "no.such.name.invalid"), ("no.such.name.invalid", "127.0.0.1")), (("--host", "203.0.113.7"), ("203.0.113.7",)),
    (("--port", "70000"), ("--port", "65535")), (("--queue", "0"), ("--queue",)), (("--max-text", "0"), ("--max-text",)),
    (("--allow-host", "http://translate.example.org"), ("--allow-host", "without scheme and port")),
])  # fmt: skip
def test_options_that_cannot_be_met_are_refused_in_one_line(regard, runs, words, wanted):
    assert_refused(regard("serve", runs["gpt"], "--api-key", "long-enough", *words), *wanted)


def test_a_folder_that_is_no_run_is_refused_in_one_line(regard, tmp_path):
    assert_refused(regard("serve", tmp_path, "--port", 0), tmp_path)
    assert_refused(regard("serve", tmp_path / "none", "--port", 0), tmp_path / "none")


def test_missing_libraries_are_named_with_their_pip_line(regard, runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert_refused(regard("serve", runs["gpt"]), "pip install fastapi uvicorn prometheus-client")


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    names = name_runs([str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run"), str(tmp_path / "other")])
    assert list(names) == ["a-run", "b-run", "other"]
    alike = name_runs([str(tmp_path / "1" / "a" / "run"), str(tmp_path / "2" / "a" / "run"), str(tmp_path / "3" / "a" / "run")])
    assert list(alike) == ["a-run", "a-run-2", "a-run-3"]
    with pytest.raises(ValueError, match="given twice"):
        name_runs([str(tmp_path / "a"), str(tmp_path / "b" / ".." / "a")])
