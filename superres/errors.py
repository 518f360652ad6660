"""Errors that a user can cause and mend.

Every message is one line that names the offending value and the remedy; the command line prints it without a traceback.
"""


class SuperresError(Exception):
    """Base of all errors raised for bad input rather than for a bug."""


class InvalidInputError(SuperresError):
    """An input (image, array, file or text) cannot be used."""


class ConfigError(SuperresError):
    """An option has a value outside its range, or two options contradict each other."""


class CheckpointError(SuperresError):
    """A checkpoint is missing, damaged, or does not fit the code that reads it."""


class OutputError(SuperresError):
    """A result cannot be written where the user asked for it."""


class ClusterError(SuperresError):
    """A cluster that should do the work cannot be reached, or fails."""


class StoreError(SuperresError):
    """A survey's store is missing, locked, read-only, full or of another schema, or does not hold what is asked for."""
