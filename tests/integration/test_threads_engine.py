"""--engine threads: all clients in the launcher's own process, where prints and a debugger work, with the same bits."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable

import psutil
import pytest

from .conftest import CLI, RunFolder, heeding_signals
from .test_repeats_to_the_bit import CONFIG, MODELS
from .test_scenarios import ASYNCHRONOUS, LOSS_AND_CRASH, STRAGGLERS, assert_same

THREADS = ("--engine", "threads")
PLAIN = CONFIG.format(seed=1, model=MODELS["cnn"]).replace("= 800", "= 200").replace("clients = 8", "clients = 5")
CONFIGS = {
    "d-psgd": re.sub(r"\[algorithm\](.|\n)*?\[check", '[algorithm]\nname = "d-psgd"\n[check', PLAIN).replace(
        "reduced_clients = 0.5\n", ""
    ),
    "sheaf-fmtl": PLAIN,
    "a server": """
clients = 6
rounds = 8
[algorithm]
name = "fedavg"
fraction = 0.5
[checkpoints]
every = 4
""",
    "a plan with faults": STRAGGLERS.format(rounds=20, time=ASYNCHRONOUS, links=LOSS_AND_CRASH),
    "tcp with keys": CONFIG.format(seed=1, model=MODELS["logistic"]) + '[transport]\nprotocol = "tcp"\nkeys = true\n',
}
SMALL = """
clients = 4
rounds = {rounds}
[topology]
kind = "ring"
[algorithm]
name = "added"
"""
ROUND = """
client.learn()
answer = 40
if peers.round == 1:
    {body}
    print("client", client.node, "has", answer)
peers.exchange(dict.fromkeys(client.neighbours, client.theta))
"""


def payload_and_states(run: RunFolder) -> tuple:
    states = {path.name: run.states(int(path.name[-6:])) for path in sorted((run.path / "state").iterdir())}
    flat = {
        (round, node, name): array.tobytes()
        for round, nodes in states.items()
        for node, arrays in nodes.items()
        for name, array in arrays.items()
    }
    return flat, run.payload()


@pytest.mark.parametrize("name", CONFIGS)
def test_models_messages_and_bytes_are_those_of_processes(run, name):
    processes, threads = run(CONFIGS[name]), run(CONFIGS[name], *THREADS)
    assert payload_and_states(threads) == payload_and_states(processes)
    assert_same(threads, processes)
    own = threads.rows("SELECT DISTINCT pid FROM node WHERE role IN ('client', 'server', 'launcher')")
    assert len(own) == 1
    assert len(processes.rows("SELECT DISTINCT pid FROM node WHERE role = 'client'")) > 1


def test_what_belongs_to_a_process_is_unknown_of_a_thread(run):
    folder = run(CONFIGS["a server"], *THREADS)
    assert folder.rows("SELECT count(*) FROM resource JOIN node USING (node) WHERE role <> 'collector'") == [(0,)]
    assert folder.rows("SELECT count(*) FROM work WHERE part = 'io'") == [(0,)]
    assert folder.rows("SELECT DISTINCT peak_rss, cpu_s FROM client_total") == [(None, None)]
    table = subprocess.run([*CLI, "summary", "--all", folder.path], capture_output=True, text=True, timeout=60)
    unknown = [line for line in table.stdout.splitlines() if "memory" in line or "CPU" in line]
    assert len(unknown) >= 5
    assert all(re.search(r"│\s+–\s+│$", line) for line in unknown)


@pytest.fixture
def begin(tmp_path, with_round) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts a run whose clients do this in their first round."""

    def begin(body: str, rounds: int = 3, **options: object) -> subprocess.Popen[bytes]:
        environment = with_round(ROUND.format(body=body))
        (tmp_path / "mine.toml").write_text(SMALL.format(rounds=rounds))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | options
        command = [*CLI, "run", "mine.toml", "--out", "run", *THREADS]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            preexec_fn=heeding_signals,
            **pipes,
        )

    return begin


def test_what_an_algorithm_prints_comes_out_and_the_logs_tell_what_clients_say_themselves(begin, tmp_path):
    process = begin("pass")
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert sorted(re.findall(rb"client \d has 40", said)) == [b"client %d has 40" % node for node in range(4)]
    assert "parameters" in (tmp_path / "run/log/node-0002.log").read_text()
    assert b"client 2: " not in said


def test_an_exception_is_told_with_its_cause_and_ends_the_run_with_1(begin):
    process = begin("answer = answer / (client.node - 2)")
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 1, said
    assert b"client 2 failed in round 1: Traceback" in said
    assert b"answer = answer / (client.node - 2)" in said
    assert b"ZeroDivisionError" in said


def test_a_client_that_exits_is_told_and_the_others_do_not_wait_for_it(begin):
    process = begin("client.node == 2 and exit(5)")
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 1, said
    assert b"client 2 ended in round 1 with exit status 1" in said


def test_a_debugger_stops_one_client_after_the_other_and_takes_its_commands_from_a_pipe(begin):
    process = begin("breakpoint()")
    said, _ = process.communicate(b"p 'I am', client.node\nanswer = 41\nc\n" * 4, timeout=100)
    assert process.returncode == 0, said
    assert sorted(re.findall(rb"\('I am', (\d)\)", said)) == [b"0", b"1", b"2", b"3"]
    assert said.count(b" has 41") == 4
    assert set(re.findall(rb"\(Pdb (client \d)\)", said)) == {b"client %d" % node for node in range(4)}


@pytest.mark.parametrize("last", [b"q\n", b""], ids=["quit", "end of input"])
def test_who_leaves_the_debugger_ends_the_run_as_ctrl_c_does(begin, last):
    process = begin("breakpoint()")
    said, _ = process.communicate(b"n\n" + last, timeout=100)
    assert process.returncode == 130, said
    assert b"Traceback" not in said


class Terminal:
    """What a user sees and types."""

    def __init__(self, begin: Callable[..., subprocess.Popen[bytes]], body: str, **options: int):
        self.ours, theirs = pty.openpty()
        self.process = begin(body, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, **options)
        os.close(theirs)
        self.said = b""

    def until(self, text: bytes) -> None:
        while text not in self.said:
            self.said += os.read(self.ours, 1 << 16)  # at its end OSError: what was awaited has not come
        self.said = self.said.partition(text)[2]

    def type(self, text: bytes) -> None:
        os.write(self.ours, text)

    def to_the_end(self) -> int:
        try:
            while more := os.read(self.ours, 1 << 16):
                self.said += more
        except OSError:  # nobody has it open any more
            pass
        os.close(self.ours)
        return self.process.wait(timeout=100)


def test_in_a_terminal_a_client_is_looked_at_and_goes_on(begin):
    terminal = Terminal(begin, "client.node == 3 and __import__('pdb').set_trace()")
    terminal.until(b"(Pdb client 3) ")
    terminal.type(b"p client.theta.size\n")
    terminal.until(b"650")
    terminal.type(b"c\n")
    assert terminal.to_the_end() == 0
    assert b"finished" in terminal.said


def test_ctrl_c_in_the_debugger_ends_the_run_and_leaves_the_terminal_as_it_was(begin):
    terminal = Terminal(begin, "client.node == 3 and breakpoint()")
    terminal.until(b"(Pdb client 3) ")
    processes = [psutil.Process(terminal.process.pid), *psutil.Process(terminal.process.pid).children(recursive=True)]
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.to_the_end() == 130
    assert psutil.wait_procs(processes, timeout=10)[1] == []


@pytest.mark.parametrize("body", ["__import__('time').sleep(600)", "exec('while True: pass')", "input()", "pass"])
def test_ctrl_c_ends_a_run_whatever_its_clients_do(begin, tmp_path, body):
    process = begin("print('at it'); " + body, rounds=100_000)
    assert process.stdout
    while b"at it" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 130, said
    assert RunFolder(tmp_path / "run").rows("SELECT kind FROM event WHERE kind = 'interrupt'")


def test_a_run_of_processes_is_taken_up_by_threads_and_ends_with_the_same_bits(run, start, monkeypatch):
    text = CONFIG.format(seed=1, model=MODELS["logistic"]).replace("rounds = 12", "rounds = 40")
    whole = run(text)
    monkeypatch.setenv("SHEAFGOSSIP_FAILPOINTS", "state renamed@node-0000=delay 0.3")
    going = start(text)
    going.until_round(8)
    going.process.send_signal(signal.SIGINT)
    assert going.end(60)[0] == 130
    monkeypatch.delenv("SHEAFGOSSIP_FAILPOINTS")
    done = subprocess.run(
        [*CLI, "resume", str(going.folder.path), *THREADS], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert payload_and_states(going.folder) == payload_and_states(whole)
    assert re.search(r"CPU of all clients, s\s+│\s+–", done.stdout)  # of a part it is not known


@pytest.mark.parametrize(
    ("options", "variables", "cause"),
    [
        ((), {"SHEAFGOSSIP_FAILPOINTS": "born@node-0001=kill"}, "SHEAFGOSSIP_FAILPOINTS"),
        (("--set", "measuring.kernel=true", "--set", "transport.protocol=tcp"), {}, "measuring.kernel = true"),
    ],
)
def test_what_only_a_process_has_is_refused_in_a_line(tmp_path, options, variables, cause):
    (tmp_path / "mine.toml").write_text(SMALL.format(rounds=1).replace("added", "local"))
    done = subprocess.run(
        [*CLI, "run", "mine.toml", *THREADS, *options],
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert cause in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()
