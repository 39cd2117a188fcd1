"""``python -m polyad``: what is done with polyad from a shell."""

from __future__ import annotations

import argparse
import sys

from polyad.cli import warm_up


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the code that the shell gets."""
    parser = argparse.ArgumentParser(prog="python -m polyad", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True)
    for module in (warm_up,):
        module.add_to(commands)
    given = parser.parse_args(arguments)
    return int(given.run(given))


if __name__ == "__main__":
    sys.exit(main())
