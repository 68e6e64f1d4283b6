"""Errors meant for the person at the terminal."""


class SweepError(Exception):
    """One clear sentence: what was expected, what was found, where, and what to do.

    Doors and rule scripts print it as ``error: …`` and exit with a non-zero status; no traceback is shown.
    """
