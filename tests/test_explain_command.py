"""What one asks `spantrace explain` for wrongly gets one sentence and an exit code, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from spantrace.cli.main import run
from spantrace.errors import EXIT_BAD_INPUT
from spantrace.vllm_adapter import servers

WRONG = [
    (["explain"], "Missing argument 'SERVER | built-in'"),
    (["explain", ":1"], "Missing option '--span'"),
    (["explain", ":1", "--span", "slow"], "no span is called 'slow'; choose from cycle, schedule"),
    (["explain", ":1", "--span", "sample"], "nothing listens on port 1 here; start the server, or name its pid"),
    (["explain", ":1", "--span", "sample", "-o", "a.txt"], "a.txt is neither .speedscope.json nor .html"),
    (
        ["explain", ":1", "--span", "sample", "-o", "there.html"],
        "there.html exists; choose another name or add",
    ),
    (["explain", ":1", "--span", "sample", "-o", "b.html", "--only", "gpu"], "leave --only gpu or -o out"),
    (["explain", ":1", "--span", "sample", "--samples", "0"], "0 is not in the range 1<=x<=1000000"),
    (["explain", ":1", "--span", "sample", "--cycles", "1001"], "1001 is not in the range 1<=x<=1000"),
    (["explain", ":1", "--span", "sample", "--seconds", "nan"], "nan is no finite number"),
    (["explain", ":1", "--span", "sample", "--only", "disk"], "'disk' is not one of"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_one_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(servers, "discover", lambda directory: [])
    Path("there.html").write_text("mine")
    assert run(arguments) == EXIT_BAD_INPUT
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err
    assert [path.name for path in tmp_path.iterdir()] == ["there.html"]
    assert Path("there.html").read_text() == "mine"
