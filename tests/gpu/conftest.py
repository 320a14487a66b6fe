"""The tests on a GPU see the project's own `optimized` package, whose name a folder of the tests bears as well."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
