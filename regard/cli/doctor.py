"""The verb `doctor`: is this machine ready, and what would make it better?

Each check is isolated: one that fails is a line of the report, and the others still run.  All that needs torch runs in child
processes, for a broken installation can kill a process.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from regard.cli.options import Json
from regard.data.files import cache_folder
from regard.data.machine import existing_parent, free_disk, read_memory
from regard.data.terminal import printable
from regard.data.units import format_size
from regard.shipped import shipped_models
from regard.version import VERSION

__all__ = ["Check", "doctor"]

CPU_TORCH = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cpu"
PYTHON = (3, 11)
EXTRAS = {"hub": ("huggingface_hub",), "tables": ("openpyxl", "pyarrow"), "documents": ("docx",),
          "serve": ("fastapi", "uvicorn", "prometheus_client")}  # modules by extra  # fmt: skip
PROJECTS = {"docx": "python-docx", "prometheus_client": "prometheus-client"}  # what pip calls a module, if it is another name
SHORT = 2_000_000_000  # bytes of free disk below which trainings may fail
TIMEOUT = 180  # seconds for a child process

Fast = Annotated[bool, typer.Option("--fast", help="Skip the self-test and the probes of reduced precision.")]


class Check(NamedTuple):
    """One line of the report; only `failed` makes the exit code 1."""

    name: str
    status: Literal["ok", "note", "failed"]
    found: str
    advice: str = ""


def doctor(fast: Fast = False, json_: Json = False) -> None:
    """Check this machine: versions, device, disk, data sets, extras, and a self-test; with advice.

    Exit code 0 if everything needed works, 1 if a check has failed.

    regard doctor
    """
    found = []
    for check in _checks(fast):
        found.append(check)
        if not json_:
            print(f"{check.status:6}  {printable(f'{check.name}: {check.found}', keep='')}")
            if check.advice:
                print(f"        → {printable(check.advice, keep='')}")
            sys.stdout.flush()
    healthy = all(check.status != "failed" for check in found)
    if json_:
        print(json.dumps({"healthy": healthy, "checks": [check._asdict() for check in found]}))
    if not healthy:
        raise typer.Exit(1)


def _checks(fast: bool) -> Iterator[Check]:
    """All checks in turn; children that take seconds run beside the others."""
    from regard.cli.selftest import DTYPES

    with ExitStack() as children:
        device = children.enter_context(_Child("regard.cli.selftest", "device"))
        int8 = children.enter_context(_Child("regard.decode.precision", start=not fast))
        probes = {dtype: children.enter_context(_Child("regard.cli.selftest", dtype, start=not fast)) for dtype in DTYPES}
        quick = {"python": _python, "packages": _packages, "extras": _extras, "memory": _memory, "disk": _disk,
                 "data sets": _data_sets, "models": _models}  # fmt: skip
        for name, check in quick.items():
            yield from _isolated(name, check)
        yield from _isolated("torch", lambda: _torch(device))
        if not fast:
            yield from _isolated("int8", lambda: _int8(int8))
            for dtype, probe in probes.items():
                yield from _isolated(dtype, partial(_reduced, dtype, probe))
            with _Child("regard.cli.selftest", "attention", "train", "translate") as trial:
                yield from _isolated("self-test", lambda: _self_test(trial))


def _isolated(name: str, check: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """The lines of a check, or one that says how it failed."""
    try:
        yield from check()
    except Exception as error:
        yield Check(name, "failed", f"the check failed: {type(error).__name__}: {error}")


# --- the installation


def _python() -> Iterator[Check]:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, regard {VERSION}"
    good = sys.version_info[:2] >= PYTHON
    yield Check("python", "ok" if good else "failed", found, "" if good else f"use Python {'.'.join(map(str, PYTHON))} or newer")


def _packages() -> Iterator[Check]:
    """The packages that regard needs, against the versions in its metadata."""
    wanted = [need for need in importlib.metadata.requires("regard") or [] if "extra ==" not in need]
    versions, bad = [], []
    for need in wanted:
        name, _, least = need.partition(";")[0].strip().partition(">=")
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            bad.append((need, f"{name} is missing"))
            continue
        versions.append(f"{name} {version}")
        if least and _numbers(version) < _numbers(least):
            bad.append((need, f"{name} {version} is older than {least}"))
    yield Check("packages", "ok", ", ".join(versions))
    for need, text in bad:
        yield Check("packages", "failed", text, f"pip install --upgrade {shlex.quote(need.partition(';')[0].strip())}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))


def _extras() -> Iterator[Check]:
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if missing:
            install = " ".join(["pip install", *(PROJECTS.get(module, module) for module in missing)])
            yield Check(f"extra {extra}", "note", f"{' and '.join(missing)} not installed", install)
        else:
            yield Check(f"extra {extra}", "ok", "installed")


def _torch(child: "_Child") -> Iterator[Check]:
    """The device, and a torch that was built for another one."""
    about = json.loads(child.result())["device"]
    gpus, cuda = about["gpus"], about["cuda"]
    yield Check("torch", "ok", f"{about['version']} on {', '.join(gpus) or about['device']}, float32, {about['instructions']}")
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if cuda and not gpus and driver:
        yield Check("gpu", "note", f"a GPU driver is installed, but torch for CUDA {cuda} finds no GPU", "update the driver")
    elif cuda and not gpus:
        packages = {dist.metadata["Name"] for dist in importlib.metadata.distributions()}
        wheels = sum(str(name).lower().startswith(("nvidia-", "triton")) for name in packages)
        found = f"torch is built for CUDA {cuda} (with {wheels} packages of several gigabytes), and this machine has no GPU"
        advice = f"install the smaller CPU-only torch: {CPU_TORCH}; then its nvidia-* packages and triton may be uninstalled"
        yield Check("gpu", "note", found, advice)
    elif driver and not cuda and about["device"] == "cpu":
        yield Check("gpu", "note", "this machine has a GPU driver, torch is CPU-only", "pip install --force-reinstall torch")
    yield _threads(about["threads"])


def _threads(threads: int) -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    advice, quota = "", _cpu_quota()
    if quota and threads > quota:
        advice = f"the container may use {quota:g} cores: set OMP_NUM_THREADS={max(1, round(quota))}"
    elif threads < cores // 2:
        advice = f"training may use {cores} cores: set OMP_NUM_THREADS={cores}, or leave it unset"
    return Check("threads", "note" if advice else "ok", f"{threads} of torch, {cores} cores", advice)


def _cpu_quota() -> float:
    """Cores that a container may use; 0 if there is no limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0.0
    return 0.0 if limit == "max" else int(limit) / int(period)


# --- memory, disk, data


def _memory() -> Iterator[Check]:
    if memory := read_memory():
        yield Check("memory", "ok", f"{format_size(memory.available)} of {format_size(memory.total)} free")


def _disk() -> Iterator[Check]:
    for name, folder in (("cache", cache_folder()), ("runs", Path("runs").absolute())):
        try:
            yield _disk_of(name, folder)
        except OSError as error:
            yield Check(name, "failed", f"{folder}: {error.strerror or error}", "check the path and its permissions")


def _disk_of(name: str, folder: Path) -> Check:
    parent, free = existing_parent(folder), free_disk(folder)
    found = f"{folder}, {format_size(free)} free"
    if name == "cache" and folder.is_dir():
        found += f", {format_size(_folder_size(folder))} used; it can be deleted at any time"
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        where = "set XDG_CACHE_HOME to another folder" if name == "cache" else "choose another folder, or use --out"
        return Check(name, "failed", f"{found}, {parent} is not a folder that you may write to", where)
    advice = "free some space, or use another disk" if free < SHORT else ""
    return Check(name, "note" if advice else "ok", found, advice)


def _folder_size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:  # deleted since
                continue
    return total


def _data_sets() -> Iterator[Check]:
    from regard.data.sources import SOURCES, download_size, is_present

    own = os.environ.get("REGARD_DATA", "")
    if own and not Path(own).is_dir():
        yield Check("data sets", "failed", f"REGARD_DATA={own} is not a folder", "correct it, or unset it")
    found = sorted(filter(is_present, SOURCES))
    sizes = {name: download_size(name) for name in SOURCES if name not in found}
    missing = [f"{name} ({format_size(size)})" if size else name for name, size in sizes.items()]
    others = f"; downloaded when first used: {', '.join(missing)}" if missing else ""
    yield Check("data sets", "ok", (", ".join(found) or "none yet") + others)


def _models() -> Iterator[Check]:
    """The models that ship with this installation."""
    found = shipped_models()
    if not found:
        yield Check("models", "note", "none ships with this installation", "train one: regard train phrasebook")
        return
    sizes = (f"{name} ({format_size(_folder_size(folder))})" for name, folder in found.items())
    yield Check("models", "ok", f"{', '.join(sizes)}; `regard models` describes them")


# --- what runs in children


def _int8(child: "_Child") -> Iterator[Check]:
    try:
        child.result()
    except ChildProcessError as error:
        yield Check("int8", "note", f"--precision int8 does not run on this machine ({error})", "use float32, the default")
    else:
        yield Check("int8", "ok", "--precision int8 runs on this machine")


def _reduced(dtype: str, child: "_Child") -> Iterator[Check]:
    """Whether this machine multiplies in a reduced precision, of which regard itself makes no use."""
    from regard.cli.selftest import MULTIPLY_ERROR

    try:
        error = json.loads(child.result())[dtype]["error"]
    except ChildProcessError as failure:
        yield Check(dtype, "note", f"products in {dtype} do not run on this machine ({failure})", "use float32, the default")
        return
    if error <= MULTIPLY_ERROR:
        yield Check(dtype, "ok", f"products in {dtype} run on this machine; regard computes in float32")
    else:
        yield Check(dtype, "note", f"products in {dtype} are wrong by {error:.2g} on this machine", "use float32, the default")


def _self_test(child: "_Child") -> Iterator[Check]:
    from regard.cli.selftest import ATTENTION_ERROR

    found = json.loads(child.result())
    difference, trial = found["attention"]["difference"], found["train"]
    good = difference <= ATTENTION_ERROR
    yield Check("attention", "ok" if good else "failed", f"fused and explicit differ by {difference:.1e} at most",
                "" if good else "torch computes wrongly here; install another version of it")  # fmt: skip
    learned = trial["loss"] < trial["first_loss"] and trial["right"] >= trial["of"] / 2
    yield Check("training", "ok" if learned else "failed",
                f"loss {trial['first_loss']:.2f} → {trial['loss']:.2f} in {trial['seconds']} s; the model copies "
                f"{trial['right']} of {trial['of']} sequences",
                "" if learned else "a toy model does not learn; install another version of torch")  # fmt: skip
    for name, done in found["translate"].items():
        yield Check("translation", "ok" if done["right"] else "failed",
                    f"{name}: {done['source']} → {done['answer'] or 'no answer'}, in {done['milliseconds']} ms",
                    "" if done["right"] else "wrong: a file of the model is damaged; install regard again")  # fmt: skip


class _Child:
    """A child process that runs a module of regard, started at once and waited for when its result is asked for."""

    def __init__(self, module: str, *words: str, start: bool = True):
        self.command = [sys.executable, "-P", "-W", "ignore", "-m", module, *words]  # -P: a torch.py in this folder must not run
        self.start = start
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "_Child":
        if self.start:
            paths = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")  # the package may be a clone, not installed
            env = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            self.process = subprocess.Popen(self.command, env=env, stdin=null, stdout=pipe, stderr=pipe, text=True)  # noqa: S603
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def result(self) -> str:
        """What it has printed; a `ChildProcessError` says why it failed."""
        assert self.process is not None
        try:
            out, err = self.process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise ChildProcessError(f"no answer in {TIMEOUT} seconds") from None
        if code := self.process.returncode:
            lines = err.strip().splitlines()
            how = f"its process was ended: {signal.strsignal(-code)}" if code < 0 else f"its process ended with {code}"
            raise ChildProcessError(lines[-1] if lines else how)
        return out
