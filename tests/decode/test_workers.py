"""`map_in_threads`: every job once, one core each, and the thread counts restored at the end."""

import threading
import time

import pytest
import torch

from regard.decode.workers import map_in_threads


def threads() -> list[object]:
    """Count torch's threads: here, in a new thread, and in the libraries it calls."""
    found: list[object] = [torch.get_num_threads()]
    new = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    new.start()
    new.join()
    return found + [line.strip() for line in torch.__config__.parallel_info().splitlines() if "max_threads" in line]


@pytest.fixture(autouse=True)
def three_cores():
    """A count that differs from one and from this machine's."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [1, 2, 4, 9])
@pytest.mark.parametrize("jobs", [[], [5], [3, 1, 2], list(range(40)), [7] * 6])
def test_every_job_runs_once_and_is_paired_with_its_result(workers, jobs):
    done: list[int] = []

    def work(job: int) -> int:
        done.append(job)
        return job * job

    before = threads()
    found = list(map_in_threads(work, jobs, workers))
    assert sorted(found) == sorted((job, job * job) for job in jobs)
    assert sorted(done) == sorted(jobs)
    assert threads() == before


def test_results_come_in_order_of_completion():
    first_came = threading.Event()

    def work(job: str) -> bool:
        return job == "quick" or first_came.wait(10)  # the slow one ends only after the quick one is returned

    found = map_in_threads(work, ["slow", "quick"], 2)
    assert next(found) == ("quick", True)
    first_came.set()
    assert list(found) == [("slow", True)]


def test_several_workers_run_in_parallel_on_one_core_each():
    together = threading.Barrier(2, timeout=10)

    def work(job: int) -> tuple[int, int]:
        together.wait()  # passes two at a time
        return torch.get_num_threads(), threading.get_ident()

    results = [result for _, result in map_in_threads(work, range(6), 2)]
    assert {cores for cores, _ in results} == {1}
    idents = {ident for _, ident in results}
    assert len(idents) == 2
    assert threading.get_ident() not in idents


def test_one_worker_runs_lazily_in_this_thread_with_all_cores():
    started: list[int] = []

    def work(job: int) -> tuple[int, int]:
        started.append(job)
        return torch.get_num_threads(), threading.get_ident()

    found = map_in_threads(work, [1, 2, 3], 1)
    assert next(found) == (1, (3, threading.get_ident()))
    assert started == [1]
    assert len(list(found)) == 2


class Slow:
    """Slow work; job 0 may fail."""

    def __init__(self, fails: bool):
        self.fails, self.started, self.ended = fails, [], []

    def __call__(self, job: int) -> int:
        self.started.append(job)
        if job == 0 and self.fails:
            self.ended.append(job)
            raise ZeroDivisionError("of job 0")
        time.sleep(0.02)
        self.ended.append(job)
        return job

    def is_over(self) -> None:
        """Every started job has ended, and no other starts."""
        assert sorted(self.started) == sorted(self.ended)
        before = len(self.started)
        assert before < 100
        time.sleep(0.03)
        assert len(self.started) == before


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_and_restores_the_thread_counts(workers):
    before, work = threads(), Slow(fails=True)
    with pytest.raises(ZeroDivisionError, match="of job 0"):
        list(map_in_threads(work, range(100), workers))
    work.is_over()
    assert threads() == before


@pytest.mark.parametrize("workers", [1, 2])
def test_a_consumer_that_stops_early_restores_the_thread_counts(workers):
    before, work = threads(), Slow(fails=False)
    found = map_in_threads(work, range(100), workers)
    next(found)
    found.close()
    work.is_over()
    assert threads() == before


def test_a_second_call_meanwhile_runs_in_its_own_thread_and_a_later_one_in_a_pool():
    def where(job: int) -> int:
        return threading.get_ident()

    def apart() -> bool:
        return threading.get_ident() not in {ident for _, ident in map_in_threads(where, range(6), 2)}

    before = threads()
    first = map_in_threads(where, range(6), 2)
    next(first)
    assert {ident for _, ident in map_in_threads(where, range(6), 2)} == {threading.get_ident()}
    first.close()
    assert threads() == before
    assert apart()
    with pytest.raises(ZeroDivisionError):
        list(map_in_threads(Slow(fails=True), range(6), 2))
    assert apart()  # after an error as well
    assert threads() == before


def test_the_thread_counts_differ_while_a_pool_runs():
    """Otherwise the tests above could not fail."""
    before = threads()
    found = map_in_threads(lambda job: job, [1, 2, 3], 2)
    next(found)
    assert threads() != before
    found.close()
    assert threads() == before
