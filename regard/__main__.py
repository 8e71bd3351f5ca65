"""`python -m regard` is the `regard` command."""

import sys
from os.path import dirname, realpath

if __name__ == "__main__":
    # `-m` puts the current folder first on sys.path; a torch.py there must not run, unless the folder is our own clone
    if not sys.flags.safe_path and realpath(sys.path[0]) != dirname(dirname(realpath(__file__))):
        del sys.path[0]
    from regard.cli import command

    raise SystemExit(command())
