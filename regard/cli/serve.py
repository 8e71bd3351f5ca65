"""The verb that serves runs: the explorer page, and the APIs that programs ask."""

import errno
import logging
import os
import re
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.io import note, show_progress, write
from regard.cli.options import Device, Precision
from regard.shipped import find_run, shipped_models
from regard.web.memory import bound_memory

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from regard.web.explorer import ServedRun

__all__ = ["name_runs", "serve", "server_config"]

LISTENING = "0A"  # state of a socket in /proc/net/tcp
MIN_KEY = 8  # characters of an API key
NEXT_PORTS = 100  # that are tried when one is in use
BYTES_PER_CHARACTER = 12  # of JSON that writes each character as two escapes


# fmt: off
Runs = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", show_default=False,
    help="Run folders, such as runs/multi30k, or models that ship with regard.  [default: all models that ship with it]")]
Host = Annotated[str, typer.Option(
    help="Address to bind to; if other machines can reach it, --api-key is required.")]
Port = Annotated[int, typer.Option(help="Port to bind to; 0 takes one that is free.", min=0, max=65535)]
ApiKey = Annotated[str, typer.Option(
    envvar="REGARD_API_KEY", show_default=False,
    help="Key that requests must send; better in the environment, since `ps` shows options.")]
Queue = Annotated[int, typer.Option(help="Requests that may wait for a model; more are answered with 429.", min=1)]
MaxText = Annotated[int, typer.Option(help="Most characters of the texts of a request.", min=1, max=10_000_000)]
AllowHost = Annotated[list[str], typer.Option(
    metavar="NAME", show_default=False,
    help="Another name of this server, such as a DNS alias or a proxy's; may be given several times.")]
# fmt: on


def serve(runs: Runs = None, host: Host = "127.0.0.1", port: Port = 8000, api_key: ApiKey = "", queue: Queue = 128,
          max_text: MaxText = 20_000, allow_host: AllowHost = [], device: Device = "auto",  # noqa: B006
          precision: Precision = "float32") -> int:  # fmt: skip
    """Serve runs: a page that shows their answers and attention, and APIs compatible with LibreTranslate's and OpenAI's.

    regard serve

    regard serve runs/phrasebook

    REGARD_API_KEY=… regard serve runs/phrasebook runs/shakespeare-gpt --host 0.0.0.0 --port 8080
    """
    bound_memory()
    try:
        import uvicorn

        from regard.web.explorer import ServedRun
        from regard.web.security import Limits, is_loopback
        from regard.web.server import Settings, create_app
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "regard":
            raise
        why = f"regard serve needs the package {missing.name}: pip install fastapi uvicorn prometheus-client"
        raise ValueError(why) from None

    if not is_loopback(host) and not api_key:
        raise ValueError(f"--host {host} lets other machines ask this server; set REGARD_API_KEY, or give --api-key")
    if api_key and (len(api_key) < MIN_KEY or not api_key.isascii() or not api_key.isprintable() or " " in api_key):
        raise ValueError(f"an API key of {len(api_key)} characters; use {MIN_KEY} or more ASCII letters, digits and signs")
    for name in allow_host:
        if not re.fullmatch(r"[a-zA-Z0-9_.-]+", name):
            raise ValueError(f"--allow-host {name!r}; give a name without scheme and port, such as translate.example.org")
    names = name_runs(runs or _all_shipped())
    listener = bind(host, port)  # before the models are loaded: a port in use is known at once
    with listener:
        served = list[ServedRun]()
        # In a thread that ends: OpenMP's threads stay with the thread that computed first, and would make those of the models
        # more than there are cores.
        with ThreadPoolExecutor(1) as loader, show_progress("loading runs", total=len(names)) as count:
            for number, (name, folder) in enumerate(names.items()):
                count(number, 0)
                served.append(loader.submit(ServedRun.open, folder, name, device, precision).result())
        limits = Limits(text=max_text, body=max(Limits().body, BYTES_PER_CHARACTER * max_text + (1 << 16)))
        settings = Settings(host, listener.getsockname()[1], api_key, queue, names=tuple(allow_host), limits=limits)
        app = create_app(served, settings)
        _log_to_stderr()
        _announce(served, host, settings.port)
        _stop_at_hangup()
        try:
            uvicorn.Server(server_config(app)).run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises it again when all requests have ended: it is how a server is meant to stop
            note("stopped")
    return 0


def _stop_at_hangup() -> None:
    """A terminal that closes stops the server as SIGTERM does, not amid its answers; under nohup it goes on."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def server_config(app: "FastAPI") -> "uvicorn.Config":
    """How the app is served over HTTP; the tests serve it so too."""
    import uvicorn

    from regard.web.connections import BoundedProtocol

    return uvicorn.Config(app, http=BoundedProtocol, ws="none", lifespan="on", log_config=None, access_log=False,
                          server_header=False, proxy_headers=False, timeout_graceful_shutdown=3)  # fmt: skip


def _all_shipped() -> list[str]:
    """The names of the models that ship with this installation."""
    if not (names := [*shipped_models()]):
        raise ValueError("no run was given, and no models ship with this installation; give a run folder: regard serve RUN")
    return names


def name_runs(folders: list[str]) -> dict[str, Path]:
    """A name for each run: that of its folder; of two alike also that of the folder around it."""
    paths = [find_run(folder) for folder in folders]
    found = dict[str, Path]()
    alike = [path.resolve().name for path in paths]
    for path in paths:
        resolved = path.resolve()
        if any(resolved == other.resolve() for other in found.values()):
            raise ValueError(f"{path} was given twice; give it once")
        name = resolved.name if alike.count(resolved.name) == 1 else f"{resolved.parent.name}-{resolved.name}"
        name, number = name or "run", 2
        while name in found:
            name, number = f"{name.removesuffix(f'-{number - 1}')}-{number}", number + 1
        found[name] = path
    return found


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at that address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise ValueError(f"--host {host!r} is not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()  # who connects while the models are loaded waits for them
    except OSError as error:
        listener.close()
        raise ValueError(_bind_error(error, host, port)) from None
    return listener


def _bind_error(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use by {_holder(port)}; use --port {_free_port(host, port)}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} may be used by root only; use --port {_free_port(host, 8000)}"
    return f"cannot bind to --host {host} --port {port} ({error.strerror}); use 127.0.0.1, or 0.0.0.0 for all addresses"


def _holder(port: int) -> str:
    """The process that listens on a port, as far as Linux tells us."""
    inodes = set[str]()
    for table in ("tcp", "tcp6"):
        try:
            rows = Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        cells = [row.split() for row in rows]
        inodes |= {f"socket:[{row[9]}]" for row in cells if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port}
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        with suppress(OSError):  # of another user, or it has ended
            if any(_links_to(link, inodes) for link in (process / "fd").iterdir()):
                command = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
                return f"process {process.name} ({command})"
    return f"another process (ss -ltnp 'sport = {port}' may name it)"


def _links_to(link: Path, names: set[str]) -> bool:
    try:
        return os.readlink(link) in names
    except OSError:  # a file that was closed meanwhile
        return False


def _free_port(host: str, port: int) -> int:
    """The next port that is free."""
    for other in range(port + 1, min(port + NEXT_PORTS, 65535)):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((host, other))
            except OSError:
                continue
            return other
    return 0


def _log_to_stderr() -> None:
    """Errors of the server are lines like other errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("regard: %(message)s"))
    for name, level in (("uvicorn", logging.ERROR), ("regard.serve", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def _announce(runs: "list[ServedRun]", host: str, port: int) -> None:
    """The address, and what each run answers."""
    from regard.tasks.translation import Translator
    from regard.web.languages import directions_of
    from regard.web.openai_api import abilities

    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    write(f"http://{shown}:{port}")
    width = max(len(run.name) for run in runs)
    first = dict[tuple[str, str], str]()  # the run that /translate asks for a direction
    notes = list[str]()
    for run in runs:
        predictor = run.predictor
        directions = directions_of(predictor.run) if isinstance(predictor, Translator) else []
        apis = {"complete": "/v1/completions", "embed": "/v1/embeddings"}
        asked = [direction for direction in directions if first.setdefault(direction[:2], run.name) == run.name]
        notes += [f"/translate from {one.source} to {one.target} asks {first[one[:2]]}, which was named before {run.name}"
                  for one in directions if one not in asked]  # fmt: skip
        addresses = ["the page", *(["/translate"] if asked else []), *(apis[ability] for ability in abilities(run))]
        languages = "".join(f", {direction.source} to {direction.target}" for direction in directions)
        write(f"  {run.name:{width}}  {predictor.run.family}{languages}: {', '.join(addresses)}", sep="")
    sys.stdout.flush()  # also into a pipe: who has started the server waits for its address
    for line in notes:
        note(line)
    note("Ctrl-C stops")
