"""--engine threads: all clients in the launcher's own process, where prints and a debugger work, with the same bits."""

import os
import re
import subprocess
from collections.abc import Callable

import pytest

from foreign import sheafgossip
from runs import Going, assert_same, in_a_terminal, run_here_again, small

from .test_repeats_to_the_bit import LOGISTIC

THREADS = ("--engine", "threads")
PDB = {"PYTHONBREAKPOINT": ""}  # Ray, in other tests, sets its own
ROUND = """
client.learn()
answer = 40
if peers.round == 1:
    {body}
    print("client", client.node, "has", answer)
peers.exchange(dict.fromkeys(client.neighbours, client.theta))
"""


def test_what_belongs_to_a_process_is_unknown_of_a_thread(run_in_threads):
    folder = run_in_threads('clients = 4\nrounds = 4\n[algorithm]\nname = "fedavg"\nfraction = 0.5')
    assert folder.rows("SELECT count(*) FROM resource JOIN node USING (node) WHERE role <> 'collector'") == [(0,)]
    assert folder.rows("SELECT count(*) FROM work WHERE part = 'io'") == [(0,)]
    assert folder.rows("SELECT DISTINCT peak_rss, cpu_s FROM client_total") == [(None, None)]
    _, table, _ = sheafgossip("summary", "--all", folder.path)
    unknown = [line for line in table.splitlines() if "memory" in line or "CPU" in line]
    assert len(unknown) >= 5
    assert all(re.search(r"│\s+–\s+│$", line) for line in unknown)


@pytest.fixture
def debug(begin, tmp_path, with_round) -> Callable[..., Going]:
    """Starts a run whose clients do this in their first round."""

    def debug(body: str, rounds: int = 3, **options: object) -> Going:
        own = with_round(ROUND.format(body=body))
        (tmp_path / "mine.toml").write_text(small(own, rounds=rounds, algorithm=""))
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": False} | options
        return begin("run", "mine.toml", "--out", "run", *THREADS, cwd=tmp_path, env=os.environ | PDB, **pipes)

    return debug


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "answer /= client.node - 2",
            rb"client 2 failed in round 1: ZeroDivisionError: .*: answer /= client.node - 2\)",
        ),
        (
            "client.node == 2 and exit(5)",
            rb"client 2 failed in round 1: SystemExit: 5 .*: client.node == 2 and exit\(5\)",
        ),
    ],
)
def test_an_exception_is_told_with_its_cause_and_ends_the_run_with_1(debug, body, said):
    code, printed = debug(body).end()
    assert code == 1, printed
    assert re.search(said, printed)


def test_a_debugger_stops_one_client_after_the_other_and_takes_its_commands_from_a_pipe(debug, tmp_path):
    code, said = debug("breakpoint()").end(typed=b"p 'I am', client.node\nanswer = 41\nc\n" * 4)
    assert code == 0, said
    assert sorted(re.findall(rb"\('I am', (\d)\)", said)) == [b"0", b"1", b"2", b"3"]
    assert sorted(re.findall(rb"client (\d) has 41", said)) == [b"0", b"1", b"2", b"3"]  # what an algorithm prints
    assert set(re.findall(rb"\(Pdb (client \d)\)", said)) == {b"client %d" % node for node in range(4)}
    assert "parameters" in (tmp_path / "run/log/node-0002.log").read_text()  # and what clients say themselves
    assert b"client 2: " not in said


@pytest.mark.parametrize("last", [b"q\n", b""], ids=["quit", "end of input"])
def test_who_leaves_the_debugger_ends_the_run_as_ctrl_c_does(debug, last):
    code, said = debug("breakpoint()").end(typed=b"n\n" + last)
    assert code == 130, said
    assert b"Traceback" not in said


@pytest.mark.parametrize(("typed", "code"), [([("650", "c\n")], 0), ([("650", "\x03")], 130)])
def test_in_a_terminal_a_client_is_looked_at_and_goes_on_or_ctrl_c_ends_the_run(tmp_path, with_round, typed, code):
    """All processes have ended when nobody has the terminal open any more."""
    own = with_round(ROUND.format(body="client.node == 3 and __import__('pdb').set_trace()"))
    (tmp_path / "mine.toml").write_text(small(own, algorithm=""))
    typed = [("client 3) ", "p client.theta.size\n"), *typed]  # others may print between the prompt's "(" and the rest
    words = ("run", tmp_path / "mine.toml", "--out", tmp_path / "run", *THREADS)
    ended, written = in_a_terminal(*words, typed=typed, **PDB)
    assert (ended, ("finished" in written)) == (code, not code), written


@pytest.mark.parametrize("body", ["__import__('time').sleep(600)", "exec('while True: pass')", "input()", "pass"])
def test_ctrl_c_ends_a_run_whatever_its_clients_do(debug, body):
    going = debug("print('at it'); " + body, rounds=100_000)
    while b"at it" not in going.process.stdout.readline():
        assert going.process.poll() is None
    going.signal()
    code, said = going.end()
    assert code == 130, said
    assert going.folder.rows("SELECT kind FROM event WHERE kind = 'interrupt'")


def test_a_run_of_processes_is_taken_up_by_threads_and_ends_with_the_same_bits(
    run_in_processes, run_in_threads, tmp_path
):
    whole, broken = run_in_threads(LOGISTIC), run_in_processes(LOGISTIC).copy(tmp_path / "run")
    broken.cut_after(5)
    run_here_again(broken, "threads")
    assert_same(whole, broken)
    _, table, _ = sheafgossip("summary", "--all", broken.path)
    assert re.search(r"CPU of all clients, s\s+│\s+–", table)  # of a part it is not known


@pytest.mark.parametrize(
    ("options", "variable", "cause"),
    [
        ((), "born@node-0001=kill", "SHEAFGOSSIP_FAILPOINTS"),
        (("--set", "measuring.kernel=true", "--set", "transport.protocol=tcp"), "", "measuring.kernel = true"),
    ],
)
def test_what_only_a_process_has_is_refused_in_a_line(tmp_path, monkeypatch, options, variable, cause):
    monkeypatch.setenv("SHEAFGOSSIP_FAILPOINTS", variable)
    (tmp_path / "mine.toml").write_text(small(algorithm="local"))
    code, _, said = sheafgossip("run", tmp_path / "mine.toml", "--out", tmp_path / "run", *THREADS, *options)
    assert (code, said.count("\n")) == (2, 1)
    assert cause in said
    assert not (tmp_path / "run").exists()
