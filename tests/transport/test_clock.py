"""What an algorithm sees of its neighbours: the right vector from each, round after round. By plan: which messages are
sent, kept, used and thrown away; neighbours that come late or die; and the one rule by which a message is chosen."""

import math
import threading
import time
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sheafgossip.transport.channel import Channel, Channels
from sheafgossip.transport.clock import CONFIRMATION
from sheafgossip.transport.clock_planned import PlannedClock, Rules
from sheafgossip.transport.connections import identity_of
from sheafgossip.transport.control import NeighbourGone, Stop
from sheafgossip.transport.endpoint import NeighbourTimeout, Stopped
from sheafgossip.transport.peers import Peers
from sheafgossip.transport.schedule import Schedule, can_be_used, chosen_round, needed_round
from sheafgossip.transport.stopwatch import Stopwatch

ROUNDS = 300


def vector(*values: float, dtype="float32") -> np.ndarray:
    return np.array(values, dtype=dtype)


def say(network, puppet, *values: float, round: int, phase: int = 0, src: int = 0, dst: int = 1):
    header = network.header(src=src, dst=dst, round=round, phase=phase, shapes=[[0, len(values)]])
    puppet.send_multipart([header, vector(*values).tobytes()])


def test_neighbours_who_do_not_meet_in_every_round_may_be_further_ahead(network):
    slow, fast = network.linked(2, [(0, 1)])
    slow_peers = slow.peers({1: Channel((1,), (1,))}, ahead=8)
    fast_peers = fast.peers({0: Channel((1,), (1,))}, ahead=8, round=9)
    fast_peers.send({0: vector(9)})
    fast_peers.next_round()
    fast_peers.send({0: vector(10)})  # nine ahead: too far
    while not (rejected := slow_peers.rejected()):
        slow_peers.clock.listen(time.monotonic() + 1)
    assert rejected == {"round or phase out of turn": 1}
    slow_peers.clock.begin(9)
    assert slow_peers.exchange({1: vector(0)})[1].tolist() == [9]


ILLEGAL = {  # each twice: the second time its header is known
    "round or phase out of turn": 2 * [{"round": 4}, {"round": 1}, {"round": 0}],
    "wrong shape": 2
    * [
        {"phase": 1},  # this link has one message a round
        {"shapes": [[0, 3]]},
        {"shapes": [[0, 0]]},
        {"shapes": [[0, 1], [0, 1]]},
        {"shapes": []},
        {"round": 3, "shapes": [[0, 1]]},  # ahead of its time, and wrong all the same
    ],
    "wrong dtype": 2 * [{"shapes": [[1, 2]]}, {"shapes": [[3, 2]]}],
}


@pytest.mark.parametrize("reason", ILLEGAL)
def test_a_message_that_the_link_does_not_announce_is_dropped_and_counted(network, reason):
    client, [neighbour] = network.client_of_puppets(1)
    peers = client.peers({0: Channel((2,), (2,))})
    peers.next_round()
    for changed in ILLEGAL[reason]:
        header = {"round": 2, "shapes": [[0, 2]]} | changed
        tensors = [bytes((4, 8, 2, 4)[code] * length) for code, length in header["shapes"]]
        neighbour.send_multipart([network.header(src=0, dst=1, **header), *tensors])
    say(network, neighbour, 1, 2, round=2)
    heard = peers.receive()[0]
    assert heard.tolist() == [1, 2]
    assert peers.rejected() == {reason: len(ILLEGAL[reason])}
    with pytest.raises(ValueError, match="read-only"):
        heard[0] = 2


LEGAL = vector(1, 2).tobytes()
REJECTED = [  # frames after the header, and why they are dropped
    ([], "malformed header"),
    ([LEGAL, LEGAL], "malformed header"),
    ([b""], "wrong shape"),
    ([LEGAL[:4]], "wrong shape"),
    ([LEGAL[:-1]], "wrong shape"),
    ([LEGAL + b"0"], "wrong shape"),
    ([LEGAL + LEGAL], "wrong shape"),
]


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize(("frames", "reason"), REJECTED)
def test_the_very_header_that_is_waited_for_makes_no_other_frames_legal(network, frames, reason, keys):
    client, [neighbour] = network.client_of_puppets(1, keys=keys)
    peers = client.peers({0: Channel((2,), (2,))})
    peers.send({0: vector(0, 0)})  # from now on it knows the headers of such messages
    neighbour.send_multipart([network.header(src=0, dst=1, round=1, shapes=[[0, 2]]), *frames])
    say(network, neighbour, 1, 2, round=1)
    heard = peers.receive()[0]
    assert heard.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        heard[0] = 2
    assert peers.rejected() == {reason: 1}


def test_a_header_that_is_waited_for_is_dropped_where_another_neighbour_sends_it(network):
    client, puppets = network.client_of_puppets(2)
    peers = client.peers({j: Channel((1,), (1,)) for j in (0, 1)})
    peers.send(dict.fromkeys((0, 1), vector(0)))
    say(network, puppets[1], 9, round=1, src=0, dst=2)
    say(network, puppets[1], 2, round=1, src=1, dst=2)
    assert peers.receive([1])[1].tolist() == [2]
    assert peers.rejected() == {"wrong source or destination": 1}
    say(network, puppets[0], 1, round=1, src=0, dst=2)
    assert peers.receive([0])[0].tolist() == [1]


def test_a_message_that_is_there_or_was_taken_already_is_dropped_and_counted_once(network):
    client, [neighbour] = network.client_of_puppets(1)
    peers = client.peers({0: Channel((1, 1), (1, 1))})
    say(network, neighbour, 3, round=2)  # one round ahead, so that it is still there when it is repeated
    say(network, neighbour, 9, round=2)
    say(network, neighbour, 1, round=1)
    assert peers.receive()[0].tolist() == [1]
    say(network, neighbour, 9, round=1)
    say(network, neighbour, 2, round=1, phase=1)
    assert peers.receive()[0].tolist() == [2]
    assert [peers.rejected(), peers.rejected()] == [{"round or phase out of turn": 2}, {}]
    peers.next_round()
    assert peers.receive()[0].tolist() == [3]


@pytest.mark.parametrize(
    "wrong", [vector(1, 2, 3), vector(1), vector(1, 2, dtype="float64"), vector(1, 2).reshape(1, 2)], ids=str
)
def test_sending_what_was_not_announced_raises_value_error_and_sends_nothing(network, wrong):
    client, [first, _] = network.client_of_puppets(2)
    peers = client.peers({j: Channel((2,), (2,)) for j in (0, 1)})
    with pytest.raises(ValueError, match=r"vector 1 to client 1 in round 1 is announced as float32 \(2,\)"):
        peers.send({0: vector(1, 2), 1: wrong})
    assert first.poll(50) == 0
    assert peers.next_round().sent == {}
    peers.send({0: vector(1, 2)})
    with pytest.raises(ValueError, match="vector 2 to client 0 in round 2 is one more than announced"):
        peers.send({0: vector(1, 2)})


def test_the_launcher_is_heard_while_a_neighbour_sends_without_end(network):
    client, [flooding, _] = network.client_of_puppets(2)
    peers, heard = client.peers({j: Channel((1,), (1,)) for j in (0, 1)}), threading.Event()

    def flood() -> None:
        end = time.monotonic() + 100
        while not heard.is_set() and time.monotonic() < end:
            say(network, flooding, 1, round=1, dst=2)

    def wait() -> None:
        threading.Timer(0.1, client.launcher.send, [Stop("Ctrl-C")]).start()
        with pytest.raises(Stopped, match="Ctrl-C"):
            peers.receive()
        heard.set()

    began = time.monotonic()
    network.in_parallel(flood, wait)
    assert time.monotonic() - began < 50
    assert peers.rejected()["round or phase out of turn"] > 0


def test_who_repeats_itself_without_end_does_not_keep_a_client_from_missing_another(network):
    client, [repeating, _] = network.client_of_puppets(2)
    peers, missed = client.peers({j: Channel((1,), (1,)) for j in (0, 1)}, timeout=0.5), threading.Event()

    def repeat() -> None:
        for _ in range(2000):
            say(network, repeating, 1, round=1, dst=2)
            if missed.wait(0.005):  # sooner than it looks for anything else
                return
        client.launcher.send(Stop("it has not missed anybody"))

    def wait() -> None:
        with pytest.raises(NeighbourTimeout, match="client 1 sent nothing"):
            peers.receive()
        missed.set()

    network.in_parallel(repeat, wait)
    assert peers.rejected()["round or phase out of turn"] > 10


def test_messages_that_come_sooner_than_they_are_looked_at_do_not_keep_a_wait_from_ending(network, monkeypatch):
    client, _ = network.client_of_puppets(1)
    peers, come = client.peers({0: Channel((1,), (1,))}, timeout=0.05), iter(range(1_000_000))
    monkeypatch.setattr(peers.clock, "listen", lambda until: next(come) >= 0)  # of none that is waited for
    with pytest.raises(NeighbourTimeout, match="client 0 sent nothing"):
        peers.receive()
    peers.clock.timeout = 600
    peers.clock._wait_for([(0, 1, 0)], ends=lambda: 0.0)  # raises nothing


def test_silent_neighbours_are_named_with_the_round_and_waiting_for_them_is_wall_time_without_cpu_time(network):
    client, [first, _, _] = network.client_of_puppets(3)
    began = time.monotonic()
    client.endpoint.stopwatch = watch = Stopwatch("maps")
    peers = client.peers({j: Channel((1,), (1,)) for j in range(3)}, timeout=0.3)
    peers.next_round()
    say(network, first, 1, round=2, src=0, dst=3)
    start = time.monotonic()
    with pytest.raises(NeighbourTimeout, match=r"client 1, 2 sent nothing for 0\.3 s in round 2"):
        peers.receive()
    asked = time.monotonic() - start
    spent, in_all = watch.read(), time.monotonic() - began
    assert 0.299 <= asked < 5
    assert spent["waiting"].cpu_s == 0
    assert 0.25 <= spent["waiting"].elapsed_s <= asked
    assert spent["exchange"].cpu_s < 0.03  # blocked in the kernel, not turning in circles
    assert spent["exchange"].elapsed_s <= in_all - spent["waiting"].elapsed_s


def schedule(neighbours=(1,), rounds=ROUNDS, **changed) -> Schedule:
    """One message a round and neighbour; by default all are sent, and each is used in its own round."""
    shape = rounds, 1, len(neighbours)
    arrays = {field.name: np.zeros(rounds) for field in fields(Schedule)}
    arrays |= dict.fromkeys(("copies", "to_life", "comes", "into_life"), np.ones(shape, np.uint8))
    own_round = np.broadcast_to(np.arange(1, rounds + 1, dtype=np.int32)[:, None, None], shape)
    arrays |= {"uses": own_round, "needed": own_round, "keep": np.zeros(shape, np.int32), "delays": np.zeros(shape)}
    arrays |= {"again": np.zeros(shape, np.uint8)}
    arrays |= {"neighbours": np.array(neighbours), "shows": np.zeros((rounds, len(neighbours)), np.uint8)}
    arrays |= dict.fromkeys(("backlog", "backlog_in"), np.zeros(len(neighbours), np.int32))
    arrays |= {"under_way_s": np.zeros(len(neighbours))}
    arrays |= {name: np.asarray(values).reshape(shape) for name, values in changed.items()}
    for (round, phase, place), used in np.ndenumerate(arrays["uses"]):
        if used:
            arrays["keep"][used - 1, phase, place] = round + 1
    return Schedule(**arrays)


def peers_of(client, plan: Schedule, may_be_quiet: bool = False, **rules) -> Peers:
    channels = {int(j): Channel((1,), (1,), may_be_quiet=may_be_quiet) for j in plan.neighbours}
    node = client.endpoint.node
    peers = Peers(PlannedClock(client.endpoint, Channels(node, channels, "f4"), 10, plan, Rules(**rules)))
    peers.clock.begin(1)
    return peers


def test_a_sender_waits_when_its_window_is_full_and_goes_on_when_half_of_it_is_confirmed(network):
    """300 messages of 4 bytes, a window of 128: the receiver, which uses only the last, confirms each 64 it takes."""
    first, second = network.linked(2, [(0, 1)])
    fast = peers_of(first, schedule(uses=[0] * ROUNDS))
    slow = peers_of(second, schedule((0,), uses=[ROUNDS] + [0] * (ROUNDS - 1)))

    def run_ahead() -> float:
        for round in range(1, ROUNDS + 1):
            fast.exchange({1: vector(round)})
            fast.next_round()
        return time.monotonic()

    def sleep_then_listen() -> float:
        time.sleep(0.5)
        woken = time.monotonic()
        assert slow.receive()[0].tolist() == [ROUNDS]
        return woken

    done, woken = network.in_parallel(run_ahead, sleep_then_listen)
    assert done > woken  # it could not have sent them all before
    assert second.endpoint.sent[CONFIRMATION][0].messages == ROUNDS // 64


def test_who_is_quiet_says_so_without_a_vector_and_may_hear_one_all_the_same(network):
    clients = network.linked(2, [(0, 1)])
    first, second = (peers_of(clients[i], schedule((1 - i,), 3), may_be_quiet=True) for i in (0, 1))

    def play(peers: Peers, *sent: dict) -> list[tuple]:
        """(what is heard, messages of the round's traffic, which are used), round by round."""
        told = []
        for vectors in sent:
            heard = peers.exchange({j: vector(vectors[j]) for j in vectors}, quiet=set(peers.neighbours) - {*vectors})
            closed = peers.next_round()
            told.append((heard, len(closed.sent), [use.used for use in closed.used]))
        return told

    told, told_there = network.in_parallel(
        lambda: play(first, {}, {}, {1: 3}), lambda: play(second, {}, {0: 2}, {0: 4})
    )
    assert told == [({}, 0, [None]), ({1: 2}, 0, [2]), ({1: 4}, 1, [3])]
    assert told_there == [({}, 0, [None]), ({}, 1, [None]), ({0: 3}, 1, [3])]


def test_one_end_may_be_quiet_where_the_other_speaks_and_what_says_so_is_taken_in(network):
    """150 times, more than may be under way without a word of confirmation."""
    clients, rounds = network.linked(2, [(0, 1)]), 150
    first, second = (peers_of(clients[i], schedule((1 - i,), rounds), may_be_quiet=True) for i in (0, 1))

    def play(peers: Peers, vectors: dict, senders: list, quiet: list) -> list[dict]:
        heard = []
        for _ in range(rounds):
            heard.append(peers.exchange(vectors, senders, quiet=quiet))
            peers.next_round()
        return heard

    told, told_there = network.in_parallel(
        lambda: play(first, {1: vector(7)}, [], []), lambda: play(second, {}, [0], [0])
    )
    assert told == [{}] * rounds
    assert told_there == [{0: 7}] * rounds
    assert clients[0].endpoint.sent[CONFIRMATION][1].messages == 2  # those without a vector are no traffic
    assert first.memory_bytes() == second.memory_bytes() == 0


def test_who_must_not_be_quiet_is_not_taken_for_it(network):
    first, second = network.linked(2, [(0, 1)])
    peers = peers_of(first, schedule(rounds=1))
    second.endpoint.send([0], round=1, phase=0, tensors=())
    second.endpoint.send([0], round=1, phase=0, tensors=(vector(5),))
    assert peers.exchange({1: vector(0)})[1].tolist() == [5]
    assert peers.rejected() == {"wrong shape": 1}


@pytest.mark.parametrize(("silence", "expected"), [("stale", {1: 1}), ("skip", {})])
def test_of_a_neighbour_that_has_died_the_last_vector_is_used_or_none(network, silence, expected):
    first, second = network.linked(2, [(0, 1)])
    peers = peers_of(first, schedule(rounds=2), silence=silence)
    other = peers_of(second, schedule((0,), uses=[0, 0], rounds=2))
    other.send({0: vector(1)})
    assert peers.exchange({1: vector(0)})[1].tolist() == [1]
    peers.next_round()
    network.end(second)
    first.launcher.send(NeighbourGone(1, 1, died=True))
    began = time.monotonic()
    assert peers.exchange({1: vector(0)}) == expected
    assert time.monotonic() - began < 5
    assert [use.used for use in peers.next_round().used] == [1 if expected else None]


def test_messages_for_after_a_checkpoint_are_kept_until_no_checkpoint_needs_them(network):
    """Every 5 rounds; the neighbour uses the messages of rounds 4 and 7 in rounds 12 and 9."""
    first, _ = network.linked(2, [(0, 1)])
    needed = [0, 0, 0, 12, 0, 0, 9, *[0] * 13]
    peers = peers_of(first, schedule(uses=[0] * 20, rounds=20, needed=needed), checkpoint_every=5)
    stored = {}
    for round in range(1, 16):
        peers.exchange({1: vector(round)})
        if round % 5 == 0:
            stored[round] = peers.clock.stored(round)
            peers.clock.forget(round)
        peers.next_round()
    assert stored == {5: {"sent.1.4.0": 4}, 10: {"sent.1.4.0": 4}, 15: {}}


def test_a_client_ends_only_when_all_that_is_planned_has_come(network):
    first, second = network.linked(2, [(0, 1)])
    leaving = peers_of(first, schedule(uses=[0] * 3, rounds=3))
    other = peers_of(second, schedule((0,), 3, uses=[0] * 3))

    def send_slowly() -> float:
        for round in range(1, 4):
            time.sleep(0.1)
            last = time.monotonic()
            other.exchange({0: vector(round)})
            other.next_round()
        return last

    def drain() -> float:
        leaving.clock.drain(1, 0)
        return time.monotonic()

    sent, drained = network.in_parallel(send_slowly, drain)
    assert drained >= sent


def test_a_neighbour_that_has_begun_its_next_incarnation_meanwhile_is_answered(network):
    """It crashed when this client had just been told where it was."""
    client = network.client(1)
    client.endpoint.presence.latecomers = frozenset({0})
    second = network.puppet(client, identity_of(0, 2))
    second.send(network.header(src=0, dst=1))
    client.connect({0: "never used"})
    assert second.recv_multipart()
    assert client.endpoint.presence.linked == {0: 2}


@pytest.mark.parametrize("identity", [b"node-0000.2", b"node-0007.2", b"node-0002.2", b"node-0000.x", b"unknown"])
def test_who_is_not_awaited_is_not_let_in_later_either(network, identity):
    """0 is no latecomer here, 7 no neighbour, 2 would have to be connected to."""
    client, _ = network.client_of_puppets(1)
    client.endpoint.presence.latecomers = frozenset({2})
    unknown = network.puppet(client, identity)
    unknown.send(network.header(src=0, dst=1))
    client.receive_nothing_until("unknown peer")
    assert client.endpoint.presence.linked == {0: 1}


@given(
    st.sets(st.integers(1, 8)),
    st.integers(1, 8),
    st.sampled_from([0, 1, 3, math.inf]),
    st.sampled_from(["skip", "stale"]),
)
def test_what_is_waited_for_or_used_is_as_fresh_as_the_rule_says_and_stored(arrived, round, staleness, silence):
    freshest = max(arrived, default=0)
    ends_the_wait = [each >= needed_round(round, staleness) for each in range(9)]
    assert ends_the_wait == [each >= round - staleness for each in range(9)]
    used = chosen_round(round, freshest, round in arrived, staleness, silence)
    if staleness == 0:
        assert used == (round if round in arrived else freshest if silence == "stale" else 0)
    else:
        assert used == (freshest if freshest >= round - staleness or silence == "stale" else 0)
    for now in range(1, round + 1):
        stored = {each for each in arrived if can_be_used(each, now, freshest, staleness)}
        assert used in stored | {0}
        assert stored <= ({freshest} | {each for each in arrived if each >= now} if staleness == 0 else {freshest})
