"""The compiler half of the backend; the interpreter never asks it to compile."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from triton.backends import compiler


class InterpreterCompiler(compiler.BaseBackend):
    """Answers what Triton asks while importing kernels, and refuses to compile."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "interpreter"

    def parse_options(self, options: dict[str, Any]) -> NoReturn:
        raise RuntimeError("this Triton backend only interprets: set TRITON_INTERPRET=1")

    def add_stages(self, stages: dict[str, Any], options: object, language: Any) -> NoReturn:
        raise RuntimeError("this Triton backend only interprets: set TRITON_INTERPRET=1")

    def load_dialects(self, context: Any) -> None:
        """There is nothing to load."""

    def get_module_map(self) -> dict[str, ModuleType]:
        return {}
