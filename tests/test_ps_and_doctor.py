"""What `spantrace ps` and `spantrace doctor` print in each format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from spantrace import terminal
from spantrace.cli import doctor, ps
from spantrace.tables import markdown, to_csv, to_json
from spantrace.vllm_adapter import servers
from spantrace.vllm_adapter.servers import Member, Server

MEMBERS = [
    Member(10, "api", "vllm serve org/model --port 8123", 1, True),
    Member(11, "engine", "VLLM::EngineCore_DP0", 10, True),
    Member(12, "worker", "VLLM::Worker_TP0", 11, False, "vLLM process 12 does not answer"),
]
SERVER = Server(10, "vllm serve org/model --port 8123", "0.33.0", MEMBERS)


def names(table: str) -> list[str]:
    """The first column of a markdown table."""
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")][2:]


def test_the_first_column_of_markdown_names_the_row() -> None:
    said = markdown(ps.document([SERVER]))
    assert names(said) == ["org/model", "api", "engine DP0", "worker TP0"]
    assert said.startswith("vLLM process 12 does not answer\n")
    assert "| org/model | 10 | 8123 | 0.33.0 |  |" in said


def test_the_model_is_bold_and_says_nothing_of_recording() -> None:
    listed = [line for line in terminal.lines(ps.document([SERVER]), 100, bars=False, cut=False) if line.plain]
    styles = {line.plain.split()[0]: line.style for line in listed}
    assert (styles["org/model"], styles["engine"]) == ("bold", "")
    assert [line.plain.split()[-1] for line in listed[2:]] == ["0.33.0", "-", "yes", "no"]


def test_json_and_csv_call_it_what_the_table_calls_it() -> None:
    (server,) = json.loads(to_json(ps.document([SERVER])))["servers"]
    assert [one["recordable"] for one in server["members"]] == [None, True, False]
    assert server["members"][1] == {
        "pid": 11, "role": "engine", "title": "VLLM::EngineCore_DP0", "parent": 10, "recordable": True,
    }  # fmt: skip
    assert (server["root"], server["port"], server["model"], server["vllm"]) == (10, 8123, "org/model", "0.33.0")
    rows = list(csv.DictReader(io.StringIO(to_csv(ps.document([SERVER])))))
    assert [row["recordable"] for row in rows] == ["", "", "yes", "no"]


def test_without_servers_there_is_a_sentence_and_no_table() -> None:
    none = ps.document([])
    assert [line.plain[:14] for line in terminal.lines(none, 100, bars=False, cut=False)] == ["no vLLM server"]
    assert "|" not in markdown(none)
    assert to_csv(none) == "process,pid,port,vllm,recordable\n"


@pytest.mark.parametrize(
    ("found", "state", "said"),
    [
        ([], "no", "none of this user runs here; start one: spantrace serve"),
        ([SERVER], "ok", "1 vLLM server found here (spantrace ps)"),
        ([SERVER, SERVER], "ok", "2 vLLM servers found here (spantrace ps)"),
    ],
    ids=range(3),
)
def test_doctor_counts_the_servers(
    found: list[Server], state: str, said: str, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "discover", lambda directory: found)
    document = doctor.document(sockets)
    checks = {row.cells["check"]: row for row in document.table.rows}
    assert (checks["servers"].cells["state"], checks["servers"].cells["detail"]) == (state, said)
    assert checks["servers"].style == {"ok": "green", "no": "yellow"}[state]
    assert checks["sockets"].cells["detail"] == f"{sockets} is private"
    assert names(markdown(document)) == [*checks]


def test_doctor_makes_no_directory(tmp_path: Path) -> None:
    missing, file = tmp_path / "missing", tmp_path / "file"
    file.touch()
    rows = {row.cells["check"]: row.cells for row in doctor.document(missing).table.rows}
    assert rows["sockets"]["state"] == "no"
    assert rows["sockets"]["detail"] == f"there is no directory {missing} yet; the first server that uses it makes it"
    assert not missing.exists()
    rows = {row.cells["check"]: row.cells for row in doctor.document(file).table.rows}
    assert (rows["sockets"]["state"], rows["servers"]["state"]) == ("no", "no")
    assert str(rows["servers"]["detail"]).startswith(f"{file} is not a directory; name that of the server's sockets")
