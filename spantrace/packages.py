"""Other packages: those that came with spantrace under names that somebody else may use too, and optional ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from spantrace.errors import SpantraceError


def refuse_stranger(package: str) -> None:
    """Stop if another distribution's top-level `package` shadows the one that came with spantrace."""
    ours = Path(__file__).resolve().parents[1] / package
    spec = find_spec(package)
    found = None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent
    if found != ours:
        raise SpantraceError(f"the package {package!r} found is {found}, not {ours}; install spantrace in its own venv")


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Import within this what the extra `name` installs; SpantraceError, for `what` needs it, where that fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing == __package__:
            raise
        raise SpantraceError(f"{what} needs {missing}; pip install 'spantrace[{name}]'") from error
    except Exception as error:  # as where a package's generated code is newer than the protobuf beside it
        upgrade = f"pip install --upgrade 'spantrace[{name}]'"
        raise SpantraceError(f"{what} needs packages that do not fit together here ({error}); {upgrade}") from error
