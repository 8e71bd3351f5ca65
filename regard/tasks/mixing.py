"""`data.mix`: which data a fine-tuned run mixes in, so that it does not forget the old while it learns the new.

A part is a run folder (its training data), a file or a named set.  Its validation data is evaluated and scored beside the own.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.config import Run, Tables, TaskSpec, build, read_tables
from regard.data.sources import SOURCES
from regard.data.text.config import TextData, parse_mix
from regard.data.text.mixture import MixPart
from regard.data.text.toys import TOYS
from regard.run_folder import RunFolder
from regard.tasks.metrics import Score
from regard.tasks.task import ScoreOptions, Task

__all__ = ["advise_mixing", "mix_parts", "require_mixable", "score_mixed", "training_data"]

MAX_RUNS = 16  # that mix one another in, or start from one another


def require_mixable(tables: Tables, task: str, tasks: Mapping[str, TaskSpec]) -> None:
    """Refuse `data.mix` in a task whose data has no such key; the key alone would be called unknown."""
    data = tables.get("data", {})
    if task in tasks and isinstance(data, dict) and "mix" in data and not hasattr(tasks[task].data, "mix"):
        raise ValueError(f"data.mix is for sentence pairs and labelled texts; task {task} cannot mix data: put the old and the "
                         f"new data into one folder or file")  # fmt: skip


def mix_parts(run: Run) -> list[MixPart]:
    """The data to mix in; a run that mixes in others itself brings them along, with their part of its share."""
    return list(_parts(run.data, run.task, 1.0, 0))


def _parts(data: TextData, task: str, whole: float, depth: int) -> Iterator[MixPart]:
    if depth > MAX_RUNS:
        raise ValueError(f"data.mix={data.mix} leads through more than {MAX_RUNS} runs; give files instead")
    for name, share in parse_mix(data.mix):
        files = RunFolder.find(name)
        if files.run.exists():
            old_task, old = _read_data(files.run)
            if old_task != task or old is None:
                raise ValueError(f"data.mix: {name} was trained on task {old_task}, this run on {task}; mix in a run of the same")
            own = 1 - sum(inner for _, inner in parse_mix(old.mix))
            yield MixPart(name, dataclasses.replace(old, mix="", max_len=data.max_len), whole * share * own)
            inner = dataclasses.replace(old, max_len=data.max_len)
            yield from _parts(inner, task, whole * share, depth + 1)
        elif name in (*SOURCES, *TOYS):
            pair = data.pair if name in SOURCES and data.pair in SOURCES[name].pairs else ""
            yield MixPart(name, dataclasses.replace(data, source=name, pair=pair, train="", valid="", mix=""), whole * share)
        else:
            if Path(name).is_dir():
                raise ValueError(f"data.mix: {name} is a folder without run.toml; give a run folder, a file or a named set")
            file = dataclasses.replace(data, source="", pair="", text="raw", prefixed=False, train=name, valid="", mix="")
            yield MixPart(name, file, whole * share)


def _read_data(file: Path) -> tuple[str, TextData | None]:
    """The task of a run.toml, and its [data] if that is text."""
    return _text_data(read_tables(file, (), {})[1])


def _text_data(tables: Tables) -> tuple[str, TextData | None]:
    data, task = tables.get("data", {}), str(tables.get("task", ""))
    known = {field.name for field in dataclasses.fields(TextData)}
    return task, build("data", TextData, data) if {*data} <= known else None


def advise_mixing(run: Run) -> str:
    """What to tell of a run that fine-tunes another on other data, which it may forget."""
    file = RunFolder.find(run.init).run if run.init and not run.data.mix else None
    if file is None or not file.exists():
        return ""
    task, data = _read_data(file)
    same = data is not None and (data.source, data.train) == (run.data.source, run.data.train)
    if task != run.task or data is None or same or not (data.source or data.train):
        return ""
    return (f"fine-tuning may forget what {run.init} has learned; data.mix={run.init}:0.5 mixes its training data in, "
            f"data.mix={run.init}:0 shows its validation loss")  # fmt: skip


def training_data(run: Run) -> Iterator[TextData]:
    """The text that a run has been trained on: its own, what it mixes in, and that of the runs it started from."""
    yield dataclasses.replace(run.data, mix="")
    yield from (part.data for part in mix_parts(run) if part.share)
    for tables in earlier_runs(run.init):
        task, data = _text_data(tables)
        if task == run.task and data is not None and (data.source or data.train):  # an imported run has no data
            yield dataclasses.replace(data, mix="")
            yield from (part.data for part in _parts(data, task, 1.0, 0) if part.share)


def earlier_runs(init: str) -> Iterator[Tables]:
    """The tables of the run that was started from, of the one which that started from, and so on, as far as they are there."""
    for _ in range(MAX_RUNS):
        if not init or not (file := RunFolder.find(init).run).exists():
            return
        _, tables = read_tables(file, (), {})
        yield tables
        init = str(tables.get("init", ""))


def score_mixed(task: Task[Any, Any, Any, Any], predictor: Any, options: ScoreOptions) -> list[Score]:
    """The scores on the validation data of what was mixed in; each name starts with the part's."""
    run, scores = predictor.run, []
    for part in mix_parts(run) if getattr(run.data, "mix", "") else ():
        there = dataclasses.replace(predictor, run=dataclasses.replace(run, data=part.data))
        try:
            found = task.score(there, "valid", options)
        except ValueError:  # no validation data, as was reported before training
            continue
        scores += [score._replace(name=f"{part.name}: {score.name}") for score in found]
        started_here = run.init and Path(run.init).resolve() == Path(part.name).resolve()
        before = _final_scores(RunFolder.find(part.name).log) if started_here else {}
        if (main := found[0]).name in before:
            scores.append(Score(f"{part.name}: {main.name} before", before[main.name], f"from the log of {part.name}", main.unit))
    return scores


def _final_scores(log: Path) -> dict[str, float]:
    """The scores in the last line of a run's log, by name."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    try:
        values = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return values if isinstance(values, dict) and "final_loss" in values else {}
