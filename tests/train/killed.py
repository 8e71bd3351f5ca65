"""A server that runs `regard` in forked children and ends them at a chosen moment.

torch is imported once; each order, a line of JSON on standard input, is then a fork away:

    args     arguments of `regard`
    log      the file that standard output and error go to
    cache    XDG_CACHE_HOME
    call     the child counts its calls that write to a disk, and ends at this one, counted from 0:
    how      "before" the call, "torn" in the middle of it, or with an error because the disk is "full"
    step     or: in this step of training the child gets the signal
    after    or: this many seconds after its start the child gets the signal
    signal   9 (SIGKILL) unless given

The answer, a line too, has the exit status (negative: the signal), the seconds it took and, by name, the calls made.
"""

import errno
import importlib
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

WRITES = ("os.fsync", "os.replace", "os.link", "shutil.rmtree", "Path.unlink", "Path.mkdir", "Path.write_text", "save_file")

TEMPORARY = r"(?<=^\.[0-9a-f]{24})\..*"  # what `mkdtemp` put behind the name of an encoded corpus


def import_for_training() -> None:
    """Import what any training imports on its way, so that no forked child need do so, which takes it longer than training."""
    import gc

    from regard.tasks import read_run

    for name in ("regard.cli", "regard.cli.train", "regard.train.loop", "regard.train.resume", "regard.interop.weights",
                 "torch._dynamo", "torch.utils.tensorboard", "sacrebleu", "rich.status", "rich._emoji_codes"):  # fmt: skip
        importlib.import_module(name)
    read_run("reverse")  # knows all tasks and families, whose modules it imports
    gc.freeze()  # a child that collects garbage would copy the memory that it shares with this process


def serve() -> None:
    import torch

    torch.set_num_threads(1)
    import_for_training()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        began = time.monotonic()
        if not (child := os.fork()):
            answers.close()
            _obey(order)
        if "after" in order:
            time.sleep(order["after"])
            os.kill(child, order.get("signal", signal.SIGKILL))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        calls = Path(order["log"]).with_suffix(".calls")
        print(json.dumps({
            "status": status,
            "seconds": time.monotonic() - began,
            "calls": calls.read_text().splitlines() if calls.exists() else [],
        }), file=answers, flush=True)  # fmt: skip


def _obey(order: dict) -> None:
    """Be the child."""
    from regard.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["XDG_CACHE_HOME"] = order["cache"]
    out = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = ["regard", *order["args"]]
    _count_writes(order)
    if "step" in order:
        _signal_in_step(order["step"], order.get("signal", signal.SIGKILL))
    code = 70
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _count_writes(order: dict) -> None:
    """Wrap all functions that write, so that each call is recorded and one of them is the last."""
    from regard.train import checkpoint

    calls = open(Path(order["log"]).with_suffix(".calls"), "w", buffering=1)  # noqa: SIM115, it is open as long as the child lives
    made = 0

    def wrap(name, real):
        def called(*given, **named):
            nonlocal made
            number, made = made, made + 1
            what = given[1 if name in ("os.replace", "os.link", "save_file") else 0]
            what = os.readlink(f"/proc/self/fd/{what}") if name == "os.fsync" else what
            what = Path(what).name.replace(str(os.getpid()), "PID")
            calls.write(f"{name} {re.sub(TEMPORARY, '.PART', what)}\n")
            if number == order.get("call"):
                _end(order.get("how", "before"), order.get("signal", signal.SIGKILL), name, real, given)
            return real(*given, **named)

        return called

    for name in WRITES:
        module, _, key = name.rpartition(".")
        owner = {"os": os, "shutil": shutil, "Path": Path, "": checkpoint}[module]
        setattr(owner, key, wrap(name, getattr(owner, key)))


def _end(how: str, number: int, name: str, real, given) -> None:
    """Leave the disk as a kill, a power cut or a full disk would in the middle of this call."""
    if how == "torn" and name == "os.fsync" and not os.path.isdir(f"/proc/self/fd/{given[0]}"):
        os.truncate(f"/proc/self/fd/{given[0]}", os.fstat(given[0]).st_size // 2)  # what was not flushed is lost
    if how != "before" and name == "save_file":
        real(*given)
        os.truncate(given[1], os.stat(given[1]).st_size // 2)
    if how == "torn" and name == "shutil.rmtree" and os.path.isdir(given[0]):
        for file in sorted(os.listdir(given[0]))[:1]:
            os.unlink(os.path.join(given[0], file))
    if how == "full" and name in ("save_file", "os.fsync", "Path.mkdir", "Path.write_text"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if how != "full":
        os.kill(os.getpid(), number)


def _signal_in_step(last: int, number: int) -> None:
    from regard.train import loop

    real = loop.learning_rate

    def learning_rate(step, *rest):
        if step == last:
            os.kill(os.getpid(), number)
        return real(step, *rest)

    loop.learning_rate = learning_rate


if __name__ == "__main__":
    serve()
