"""The vLLM servers of this machine: their processes, what each is, and which one a target names."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from spantrace.control import ask, processes
from spantrace.directories import pid_inside, refuse_unusable
from spantrace.errors import SpantraceError, no_process
from spantrace.frames import Frame
from spantrace.vllm_adapter import command_line
from spantrace.vllm_adapter.deaf import why_deaf
from spantrace.vllm_adapter.seen import ancestors_of, described, listening, unasked
from spantrace.vllm_adapter.targets import port_of

ROLES = {
    "VLLM::EngineCore": "engine",
    "VLLM::Worker": "worker",
    "VLLM::APIServer": "api",
    "VLLM::DPCoordinator": "other",
}
MOST_PIDS = 1 << 22
"""Linux gives no greater pid."""


@dataclass(frozen=True)
class Member:
    """One process of a server; `reachable` says whether its control socket answers, `why` what keeps it from that."""

    pid: int
    role: str
    title: str
    parent: int | None
    reachable: bool
    why: str = ""

    @property
    def place(self) -> str:
        """Its place among those of its role, such as "DP0 TP1", by vLLM's title; empty where it is the only one."""
        title = self.title.split()[0] if self.title.startswith("VLLM::") else ""
        return title.partition("_")[2].replace("_", " ")

    def is_named(self, pid: int) -> bool:
        """Whether that is its pid, here or in its container."""
        return pid in (self.pid, pid_inside(self.pid))


@dataclass(frozen=True)
class Server:
    """A root process and its descendants; `command` is what the root was started with."""

    root: int
    command: str
    vllm: str
    members: list[Member] = field(default_factory=list)

    def of_role(self, role: str) -> list[Member]:
        """The members of one role: api, engine or worker."""
        return [member for member in self.members if member.role == role]

    def engines(self) -> dict[str, int]:
        """The pid of each engine by a name for it, such as dp0."""
        engines = self.of_role("engine")
        return {engine.place.lower() or f"engine{number}": engine.pid for number, engine in enumerate(engines)}

    def port(self) -> int | None:
        """The port of `--port`, or vLLM's default 8000, as far as the command tells."""
        return command_line.port(self.command)

    def model(self) -> str:
        """The model that the command names, "-" where it names none."""
        return command_line.model(self.command)

    def short_name(self) -> str:
        """What to call a recording of it: the last part of its model's name."""
        return Path(model).name if (model := self.model()) != "-" else "vllm"

    def method(self) -> str | None:
        """The method of speculation that the command names; None where it leaves that to vLLM."""
        return command_line.method(self.command)


def role_of(title: str) -> str:
    """What a process is by the title that vLLM gives it; "api" for one without such a title."""
    return next((role for prefix, role in ROLES.items() if title.startswith(prefix)), "api")


def discover(directory: Path) -> list[Server]:
    """Every server with a control socket in `directory`, and every vLLM without one that this user can see.

    SpantraceError where `directory` is something else, or closed to this user.
    """
    refuse_unusable(directory)
    answers = [answer for pid in processes(directory) if (answer := _describe(directory, pid))]
    families: dict[int, list[Frame]] = {}
    for answer in answers:
        families.setdefault(_root(answer), []).append(answer)
    known = {answer["pid"] for answer in answers}
    for process in unasked(known):
        families.setdefault(_root(process), []).append(process)
    servers = [_server(root, members, directory) for root, members in sorted(families.items())]
    return [server for server in servers if server.of_role("engine") or any(m.reachable for m in server.members)]


def find(target: str, directory: Path) -> Server:
    """The server that `target` (":PORT", a URL of this machine or a pid) names; SpantraceError with the reason."""
    servers = discover(directory)
    if target.isdecimal():
        return _by_pid(int(target), servers)
    port = port_of(target)
    root, heard = _listener(port)
    for server in servers:
        if root is not None and root in {server.root, *(member.pid for member in server.members)}:
            return server
    if root is None and len(same := [server for server in servers if server.port() == port]) == 1:
        return same[0]
    if root is None and not heard:
        raise SpantraceError(f"nothing listens on port {port} here; start the server, or name its pid (spantrace ps)")
    if root is None:
        raise SpantraceError(
            f"port {port} belongs to another user or a container; record as that user, or inside (--dir, shared)"
        )
    raise SpantraceError(
        f"port {port} belongs to {described(root)}, which is no vLLM server that spantrace can see; try spantrace ps"
    )


def engine_and_workers(server: Server, pid: int | None = None) -> tuple[list[Member], Member]:
    """The workers and the engine to record; SpantraceError with the true reason where that is impossible."""
    workers, engine = those_of(server, pid)
    deaf = [member for member in [engine, *workers] if not member.reachable]
    if deaf:
        raise SpantraceError(deaf[0].why)
    return workers, engine


def those_of(server: Server, pid: int | None = None) -> tuple[list[Member], Member]:
    """The workers and the engine, reachable or not; SpantraceError where there is not one engine, or not one named."""
    engines = [m for m in server.of_role("engine") if pid is None or m.is_named(pid)] or server.of_role("engine")
    if not engines:
        raise SpantraceError(
            f"process {server.root} has no engine process of its own (an in-process LLM, or still starting); "
            "spantrace records servers: vllm serve"
        )
    if len(engines) > 1:
        pids = ", ".join(str(engine.pid) for engine in engines)
        raise SpantraceError(f"this server has {len(engines)} engines (data parallel); name one by its pid: {pids}")
    engine = engines[0]
    return [member for member in server.of_role("worker") if member.parent == engine.pid], engine


def roles(server: Server, pid: int | None = None) -> dict[int, str]:
    """The processes to record, each pid with its role, the engine last; SpantraceError as `engine_and_workers`."""
    workers, engine = engine_and_workers(server, pid)
    return {**{worker.pid: "worker" for worker in workers}, engine.pid: "engine"}


def _describe(directory: Path, pid: int) -> Frame | None:
    """What a process says of itself, its pids those that it and its ancestors have here; None where it says nothing."""
    try:
        answer = ask(directory, pid, {"type": "describe"})
        if answer.get("type") != "description":
            return None
        return answer if answer["pid"] == pid else {**answer, "pid": pid, "ancestors": ancestors_of(pid)}
    except (SpantraceError, psutil.Error):
        return None


def _root(process: Frame) -> int:
    """The topmost ancestor that is vLLM itself, else the process."""
    chain = [
        process["pid"],
        *(parent["pid"] for parent in process["ancestors"] if command_line.is_vllm(parent["title"])),
    ]
    return int(chain[-1])


def _server(root: int, members: list[Frame], directory: Path) -> Server:
    titles = {parent["pid"]: parent["title"] for member in members for parent in member["ancestors"]}
    titles |= {member["pid"]: member["title"] for member in members}
    versions = [member["vllm"] for member in members if member.get("vllm")]
    listed = [
        Member(
            member["pid"],
            role_of(member["title"]),
            member["title"].strip(),
            member["ancestors"][0]["pid"] if member["ancestors"] else None,
            not member.get("deaf"),
            why_deaf(member["pid"], directory) if member.get("deaf") else "",
        )
        for member in sorted(members, key=lambda member: member["pid"])
    ]
    return Server(root, titles[root].strip(), versions[0] if versions else "", listed)


def _by_pid(pid: int, servers: list[Server]) -> Server:
    for server in servers:
        if pid in {server.root, *(member.pid for member in server.members)}:
            return server
    for server in servers:
        if pid == pid_inside(server.root) or any(member.is_named(pid) for member in server.members):
            return server
    if pid < MOST_PIDS and psutil.pid_exists(pid):
        raise SpantraceError(f"process {pid} is no vLLM server that spantrace can see; try spantrace ps")
    raise SpantraceError(no_process(pid))


def _listener(port: int) -> tuple[int | None, bool]:
    """The topmost vLLM process of those that listen on `port`, or the listener itself; and whether anybody does.

    Whose socket it is shows only for this user's processes.
    """
    pids = listening(port)
    for pid in filter(None, pids):
        with contextlib.suppress(psutil.Error):
            return _root({"pid": pid, "ancestors": ancestors_of(pid)}), True
    return None, bool(pids)
