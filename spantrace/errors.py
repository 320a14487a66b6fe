"""The one exception that reaches a user, and the exit codes of every command."""

from __future__ import annotations

EXIT_GATE_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_NOT_COMPARABLE = 3
PTRACE = "run as its user, as root, or with CAP_SYS_PTRACE (in a container: --cap-add SYS_PTRACE)"
"""What to do where a process may not be looked into."""


def no_process(pid: int) -> str:
    """That there is no such process."""
    return f"there is no process {pid}; try spantrace ps"


class SpantraceError(Exception):
    """Say in one sentence what happened and what to do; `exit_code` is the process's exit status."""

    def __init__(self, message: str, exit_code: int = EXIT_BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code
