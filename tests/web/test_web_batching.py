"""A model's thread: jobs that wait share a batch, unwanted ones leave, an error reaches only its job, nothing is left behind."""

import asyncio
import gc
import random
import threading
import time
import weakref
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field

import pytest
import torch

from regard.data.text.toys import toy_pairs
from regard.decode.fast import CachedDecoder
from regard.tasks.load import load
from regard.web import batching
from regard.web.batching import BatchReport, Job, ModelThread, OutOfTime, QueueFull, ThreadClosed
from regard.web.explorer import ServedRun
from regard.web.server import create_app

SECONDS = 30.0  # of any wait in these tests: they fail, they do not hang


@dataclass
class Gate:
    """Holds the model's thread until it is opened; `reached` is set when the thread is there."""

    reached: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> None:
        self.reached.set()
        assert self.open.wait(SECONDS)


@pytest.fixture
def gate() -> Gate:
    return Gate()


class Doubler:
    """Work that doubles numbers, refuses the negative ones, and keeps the batches."""

    def __init__(self):
        self.batches: list[list[int]] = []

    def __call__(self, jobs):
        self.batches.append([job.item for job in jobs])
        if min(self.batches[-1]) < 0:
            raise ValueError(f"negative among {len(jobs)}")
        return [2 * job.item for job in jobs]


def block_thread(thread: ModelThread, gate: Gate) -> Future:
    """Let the thread wait at the gate."""
    future = thread.run(gate)
    assert gate.reached.wait(SECONDS)
    return future


# Batches


def test_jobs_that_wait_share_a_batch_in_their_order(gate):
    work = Doubler()
    with ModelThread("model", batch=4) as thread:
        block_thread(thread, gate)
        futures = [thread.submit(work, n) for n in range(6)]
        assert thread.depth == 6
        assert thread.busy == 1
        gate.open.set()
        assert [future.result(SECONDS) for future in futures] == [0, 2, 4, 6, 8, 10]
    assert work.batches == [[0, 1, 2, 3], [4, 5]]


def test_only_jobs_of_the_same_work_and_options_share_a_batch(gate):
    first, second = Doubler(), Doubler()
    with ModelThread("model") as thread:
        block_thread(thread, gate)
        futures = [thread.submit((first, second)[n % 2], n, options=("beam", n // 4)) for n in range(8)]
        gate.open.set()
        assert [future.result(SECONDS) for future in futures] == [2 * n for n in range(8)]
    assert first.batches == [[0, 2], [4, 6]]
    assert second.batches == [[1, 3], [5, 7]]


def test_a_batch_is_bounded_in_cost_and_a_larger_job_runs_alone(gate):
    work = Doubler()
    with ModelThread("model") as thread:
        block_thread(thread, gate)
        half = batching.BATCH_COST // 2
        costs = [half, half, half, batching.BATCH_COST + 1, batching.BATCH_COST + 1]
        futures = [thread.submit(work, n, cost=cost) for n, cost in enumerate(costs)]
        gate.open.set()
        assert [future.result(SECONDS) for future in futures] == [0, 2, 4, 6, 8]
    assert work.batches == [[0, 1], [2], [3], [4]]


def test_a_short_job_does_not_wait_for_all_the_large_ones_before_it(gate):
    work = Doubler()
    with ModelThread("model") as thread:
        block_thread(thread, gate)
        futures = [thread.submit(work, n, cost=17_000) for n in range(11)]
        futures.append(thread.submit(work, 11, cost=10))
        gate.open.set()
        wait(futures, SECONDS)
    assert work.batches[0] == [11]
    assert work.batches[1:] == [[n] for n in range(11)], "jobs of one size keep their order"


def test_short_jobs_delay_a_large_one_for_a_bounded_time():
    large = Job(Doubler(), 0, cost=10**9, submitted=100.0)
    assert large.turn == 100.0 + batching.MAX_DELAY
    assert Job(Doubler(), 0, submitted=100.0 + batching.MAX_DELAY + 0.1).turn > large.turn


def test_functions_run_alone_and_in_their_turn(gate):
    order = []
    with ModelThread("model") as thread:
        block_thread(thread, gate)
        work = Doubler()
        futures = [thread.run(lambda n=n: order.append(n)) for n in range(3)]
        last = thread.submit(lambda jobs: [order.append("job") for _ in jobs], None)
        gate.open.set()
        wait([*futures, last], SECONDS)
    assert order == [0, 1, 2, "job"]
    assert not work.batches


def test_a_batch_is_reported(gate):
    reports: list[BatchReport] = []
    with ModelThread("model", report=reports.append) as thread:
        block_thread(thread, gate)
        work = Doubler()
        futures = [thread.submit(work, n) for n in (1, 2, -3)]
        dropped = thread.submit(work, 4)
        dropped.cancel()
        gate.open.set()
        wait(futures, SECONDS)
    assert [(report.jobs, report.dropped) for report in reports] == [(0, 1), (1, 0), (3, 0)]
    reports = reports[1:]
    assert reports[1].failed == 1
    assert reports[1].name == "model"
    assert len(reports[1].waited) == 3
    assert all(0 <= seconds < SECONDS for seconds in reports[1].waited)


# A full queue


def test_a_full_queue_refuses_and_takes_again_when_there_is_room(gate):
    work = Doubler()
    with ModelThread("model", limit=3) as thread:
        block_thread(thread, gate)
        futures = [thread.submit(work, n) for n in range(3)]
        with pytest.raises(QueueFull, match="3 requests wait for model") as refused:
            thread.submit(work, 3)
        assert refused.value.retry_after >= 1
        futures[1].cancel()  # room for one
        more = thread.submit(work, 4)
        with pytest.raises(QueueFull):
            thread.submit(work, 5)
        gate.open.set()
        assert [futures[0].result(SECONDS), futures[2].result(SECONDS), more.result(SECONDS)] == [0, 4, 8]
    assert work.batches == [[0, 2, 4]]


def test_clients_that_ask_and_leave_do_not_fill_the_memory(gate):
    with ModelThread("model", limit=3) as thread:
        block_thread(thread, gate)
        for n in range(50):
            thread.submit(Doubler(), n).cancel()
            assert thread.depth <= 3
        late = [thread.submit(Doubler(), n, seconds=0.001) for n in range(3)]
        time.sleep(0.002)
        thread.submit(Doubler(), 1)
        for future in late:  # told at once, although the thread is still busy
            with pytest.raises(OutOfTime):
                future.result(0)
        gate.open.set()


def test_a_job_that_is_cancelled_leaves_the_queue_with_its_item_at_once(gate):
    class Upload:
        pass

    gc.disable()  # what is freed is not in a cycle
    try:
        with ModelThread("model") as thread:
            block_thread(thread, gate)
            upload = Upload()
            alive, futures = weakref.ref(upload), [thread.submit(Doubler(), 1), thread.submit(Doubler(), upload)]
            del upload
            futures[1].cancel()
            assert thread.depth == 1
            assert alive() is None
            gate.open.set()
            assert futures[0].result(SECONDS) == 2
    finally:
        gc.enable()


def test_a_job_that_fails_does_not_keep_its_item():
    class Upload:
        pass

    def refuse(jobs):
        try:
            int("x" * len(jobs))
        except ValueError:
            raise ValueError(f"{len(jobs)} corrupt files") from None

    gc.disable()  # what is freed is not in a cycle
    try:
        with ModelThread("model") as thread:
            upload = Upload()
            alive, future = weakref.ref(upload), thread.submit(refuse, upload)
            del upload
            with pytest.raises(ValueError, match="1 corrupt files"):
                future.result(SECONDS)
            assert thread.run(lambda: None).result(SECONDS) is None  # the thread has let go of the batch before
            assert alive() is None
    finally:
        gc.enable()


def test_a_report_that_fails_is_logged_and_does_not_end_the_thread(caplog):
    def report(batch: BatchReport) -> None:
        raise RuntimeError("no metrics")

    with ModelThread("model", report=report) as thread:
        assert [thread.run(lambda n=n: n).result(SECONDS) for n in range(3)] == [0, 1, 2]
    assert [record.getMessage() for record in caplog.records] == ["metrics of model: RuntimeError: no metrics"] * 3


# Jobs that nobody wants


def test_a_cancelled_job_is_never_started(gate):
    work = Doubler()
    with ModelThread("model") as thread:
        block_thread(thread, gate)
        futures = [thread.submit(work, n) for n in range(4)]
        assert futures[0].cancel()
        assert futures[2].cancel()
        gate.open.set()
        assert [futures[1].result(SECONDS), futures[3].result(SECONDS)] == [2, 6]
        with pytest.raises(CancelledError):
            futures[0].result(SECONDS)
    assert work.batches == [[1, 3]]


def test_a_job_that_is_worked_on_learns_that_nobody_wants_it(gate):
    def decode(jobs):
        gate()
        return [job.wanted for job in jobs]

    with ModelThread("model") as thread:
        before = Gate()
        block_thread(thread, before)
        futures = [thread.submit(decode, n) for n in range(2)]
        before.open.set()
        assert gate.reached.wait(SECONDS)
        assert futures[0].cancel()
        gate.open.set()
        assert futures[1].result(SECONDS)
        assert futures[0].cancelled()


def test_time_runs_out_while_waiting_and_while_working(gate):
    with ModelThread("model") as thread:
        block_thread(thread, gate)
        late = thread.submit(Doubler(), 1, seconds=0.01)
        time.sleep(0.02)
        gate.open.set()
        with pytest.raises(OutOfTime, match=r"no answer within 0\.01 seconds"):
            late.result(SECONDS)

        def until_unwanted(jobs: list[Job]):
            while jobs[0].wanted:
                time.sleep(0.001)
            return ["half an answer"]

        with pytest.raises(OutOfTime):
            thread.submit(until_unwanted, 1, seconds=0.02).result(SECONDS)
        assert thread.submit(Doubler(), 2).result(SECONDS) == 4


def test_an_awaiting_task_that_is_cancelled_drops_its_job(gate):
    """As a server does whose client hangs up."""

    async def ask(thread: ModelThread) -> list[int]:
        tasks = [asyncio.ensure_future(asyncio.wrap_future(thread.submit(work, n))) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        gate.open.set()
        return await asyncio.wait_for(asyncio.gather(tasks[0], tasks[2]), SECONDS)

    work = Doubler()
    with ModelThread("model") as thread:
        block_thread(thread, gate)
        assert asyncio.run(ask(thread)) == [0, 4]
    assert work.batches == [[0, 2]]


# Errors


def test_an_error_reaches_only_the_job_that_caused_it(gate):
    work = Doubler()
    with ModelThread("model") as thread:
        block_thread(thread, gate)
        futures = [thread.submit(work, n) for n in (1, -2, 3)]
        gate.open.set()
        assert futures[0].result(SECONDS) == 2
        with pytest.raises(ValueError, match="negative among 1"):
            futures[1].result(SECONDS)
        assert futures[2].result(SECONDS) == 6
        with pytest.raises(ZeroDivisionError):
            thread.run(lambda: 1 // 0).result(SECONDS)
        assert thread.run(lambda: 5).result(SECONDS) == 5
    assert work.batches == [[1, -2, 3], [1], [-2], [3]]


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_batch_that_fails_for_another_reason_than_its_input_is_not_tried_again(gate, error):
    batches = []

    def work(jobs):
        batches.append(len(jobs))
        raise error("out of memory")

    with ModelThread("model") as thread:
        block_thread(thread, gate)
        futures = [thread.submit(work, n) for n in range(3)]
        gate.open.set()
        for future in futures:
            with pytest.raises(error, match="out of memory"):
                future.result(SECONDS)
    assert batches == [3]


def test_too_few_results_are_an_error_and_not_a_silence():
    with ModelThread("model") as thread, pytest.raises(RuntimeError, match="0 results of 1 jobs"):
        thread.submit(lambda jobs: [], 1).result(SECONDS)


# Streams


# The end


def test_a_closed_thread_takes_no_jobs_and_finishes_or_gives_up_those_it_has(gate):
    thread = ModelThread("model")
    block_thread(thread, gate)
    future = thread.submit(Doubler(), 1)
    gate.open.set()
    assert thread.close(finish=True, timeout=SECONDS)
    assert future.result(0) == 2
    with pytest.raises(ThreadClosed, match="shutting down"):
        thread.submit(Doubler(), 2)
    assert thread.close()

    def until_unwanted(jobs):
        running.set()
        while jobs[0].wanted:
            time.sleep(0.001)
        return [None]

    running, thread = threading.Event(), ModelThread("model")
    first, second = thread.submit(until_unwanted, 1), thread.run(lambda: 1)
    assert running.wait(SECONDS)
    assert thread.close(finish=False, timeout=SECONDS)
    for given_up in (first, second):
        with pytest.raises(ThreadClosed):
            given_up.result(0)


def test_a_thread_that_is_busy_says_so_when_closed(gate):
    thread = ModelThread("model")
    block_thread(thread, gate)
    assert not thread.close(timeout=0.01)
    gate.open.set()
    assert thread.close(timeout=SECONDS)


def test_an_interrupt_closes_the_thread(gate):
    futures = []

    def interrupted() -> None:
        with ModelThread("model") as thread:
            block_thread(thread, gate)
            futures.append(thread.submit(Doubler(), 1))
            gate.open.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert futures[0].done()
    assert "model model" not in [running.name for running in threading.enumerate()]


@pytest.mark.parametrize("options", [{"limit": 0}, {"batch": 0}, {"seconds": 0.0}])
def test_senseless_bounds_are_refused(options):
    with pytest.raises(ValueError, match="use 1 or more"):
        ModelThread("model", **options)


# Cores


def test_each_thread_computes_on_its_own_number_of_cores():
    before = torch.get_num_threads()
    with ModelThread("first", cores=3) as first, ModelThread("second", cores=1) as second:
        for _ in range(2):  # torch changes the number of a thread when it is asked for the first time
            assert first.run(torch.get_num_threads).result(SECONDS) == 3
            assert second.run(torch.get_num_threads).result(SECONDS) == 1
    torch.set_num_threads(before)  # of threads to come


def test_models_that_are_served_together_share_the_cores(runs):
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        app = create_app([ServedRun.open(runs[name], name) for name in ("transformer", "gpt")])
        threads = app.state.serving.threads.values()
        assert [thread.run(torch.get_num_threads).result(SECONDS) for thread in threads] == [2, 2]
        app.state.serving.close()
    finally:
        torch.set_num_threads(before)


def test_clients_that_ask_again_after_a_batch_are_gathered_into_the_next(gate, monkeypatch):
    monkeypatch.setattr(batching, "GATHER", SECONDS)  # it ends when as many have come as the last batch had
    work = Doubler()
    with ModelThread("model") as thread:
        block_thread(thread, gate)
        futures = [thread.submit(work, n) for n in range(8)]
        gate.open.set()
        wait(futures, SECONDS)
        again = [thread.submit(work, n) for n in range(8)]
        assert [future.result(SECONDS) for future in again] == [2 * n for n in range(8)]
        alone = thread.submit(work, 9)
        monkeypatch.setattr(batching, "GATHER", 0.001)
        thread.submit(work, 10)
        assert alone.result(SECONDS) == 18
    assert work.batches[:2] == [[*range(8)]] * 2


# Many jobs


def test_a_thousand_jobs_leave_no_futures_and_no_threads_behind():
    class Answer:
        pass

    before, alive = threading.active_count(), []
    with ModelThread("model", limit=1000) as thread:
        futures = [thread.submit(lambda jobs: [Answer() for _ in jobs], n) for n in range(1000)]
        for future in futures:
            alive += [weakref.ref(future), weakref.ref(future.result(SECONDS))]
        futures.clear()
        del future
        thread.run(lambda: None).result(SECONDS)  # the thread is past the last batch
        gc.collect()
        assert not any(ref() for ref in alive)
    assert threading.active_count() == before


def test_random_cancels_and_errors_never_confuse_the_answers():
    source, lock, counts = random.Random(0), threading.Lock(), {"right": 0, "cancelled": 0, "refused": 0, "wrong": 0, "full": 0}

    def client(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            number = chance.randint(-3, 40)
            try:
                future = thread.submit(work, number, options=chance.randint(0, 1))
            except QueueFull:
                with lock:
                    counts["full"] += 1
                time.sleep(0.001)
                continue
            if chance.random() < 0.3:
                time.sleep(chance.random() * 0.002)
                future.cancel()
            try:
                assert future.result(SECONDS) == 2 * number
                what = "right"
            except CancelledError:
                what = "cancelled"
            except ValueError:
                what = "refused" if number < 0 else "wrong"
            with lock:
                counts[what] += 1

    def work(jobs):
        time.sleep(source.random() * 0.002)
        if min(job.item for job in jobs) < 0:
            raise ValueError("negative")
        return [2 * job.item for job in jobs]

    with ModelThread("model", limit=5, batch=3) as thread:
        clients = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
        for one in clients:
            one.start()
        for one in clients:
            one.join(SECONDS)
        assert not any(one.is_alive() for one in clients)
        assert thread.depth == thread.busy == 0 or thread.run(lambda: True).result(SECONDS)
    assert sum(counts.values()) == 480
    assert all(counts[what] for what in ("right", "cancelled", "refused")), counts
    assert not counts["wrong"]


# A real model


@pytest.fixture(scope="module")
def translator(small_run):
    return load(small_run)


def test_texts_that_are_decoded_together_get_the_answers_they_get_alone(translator, gate):
    texts = [source for source, _ in toy_pairs("reverse", "test", 24)]
    alone = [translator.translate([text])[0].text for text in texts]
    batches = []

    def work(jobs):
        batches.append(len(jobs))
        return translator.translate([job.item for job in jobs], observers=jobs)

    with ModelThread("reverse") as thread:
        block_thread(thread, gate)
        futures = [thread.submit(work, text) for text in texts]
        gate.open.set()
        assert [future.result(SECONDS).text for future in futures] == alone
    assert batches == [24]


def test_a_client_that_leaves_frees_its_row_at_the_next_step(translator, gate, monkeypatch):
    rows, step, width = [], CachedDecoder.step, translator.run.decode.beam_size
    monkeypatch.setattr(CachedDecoder, "step", lambda self, token, state: rows.append(len(token)) or step(self, token, state))
    texts, shown = ["a b c d e f", "g h i j k l"], []

    def work(jobs):
        return translator.translate([job.item for job in jobs], observers=jobs)

    with ModelThread("reverse") as thread:
        block_thread(thread, gate)

        def leave(text: str) -> None:  # the client goes away when it has seen two words
            shown.append(text)
            if len(shown) == 2:
                futures[0].cancel()

        futures = [thread.submit(work, texts[0], partial=leave), thread.submit(work, texts[1])]
        gate.open.set()
        assert futures[1].result(SECONDS).text == translator.translate(texts[1:])[0].text
    assert futures[0].cancelled()
    assert len(shown) == 2
    assert rows[:3] == [2 * width, 2 * width, width]
