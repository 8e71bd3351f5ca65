"""How long work reports to the user: the types of its callbacks."""

from collections.abc import Callable

__all__ = ["Progress", "Report"]

Report = Callable[[str], None]  # prints one line
Progress = Callable[[str, int], None]  # (what is being done, how many are done)
