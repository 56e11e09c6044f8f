"""Exchange by plan: which messages are sent, kept, used and thrown away; and neighbours that come late or die."""

import time

import numpy as np
import pytest

from sheafgossip.transport.channel import Channel, Channels
from sheafgossip.transport.clock_planned import PlannedClock
from sheafgossip.transport.clock_scheduled import Rules
from sheafgossip.transport.control import NeighbourCame, NeighbourDied, Place
from sheafgossip.transport.outgoing import CONFIRMATION
from sheafgossip.transport.peers import Peers
from sheafgossip.transport.presence import identity_of
from sheafgossip.transport.schedule import Schedule

ROUNDS = 300


def schedule(neighbours=(1,), *, uses=None, copies=None, comes=None, rounds=ROUNDS) -> Schedule:
    """One message a round and neighbour; by default all are sent, and each is used in its own round."""
    shape = rounds, 1, len(neighbours)
    own_round = np.broadcast_to(np.arange(1, rounds + 1, dtype=np.int32)[:, None, None], shape)
    uses = own_round if uses is None else np.asarray(uses, np.int32).reshape(shape)
    ones = np.ones(shape, np.uint8)
    keep = np.zeros(shape, np.int32)
    for round, phase, place in np.ndindex(shape):
        if uses[round, phase, place]:
            keep[uses[round, phase, place] - 1, phase, place] = round + 1
    times = np.arange(rounds, dtype=float)
    return Schedule(
        neighbours=np.array(neighbours, np.int32),
        uses=uses,
        copies=ones if copies is None else np.asarray(copies, np.uint8).reshape(shape),
        to_life=ones,
        needed=own_round,
        comes=ones if comes is None else np.asarray(comes, np.uint8).reshape(shape),
        into_life=ones,
        keep=keep,
        delays=np.zeros(shape),
        start=times,
        end=times + 1,
        compute=np.ones(rounds),
        idle=np.zeros(rounds),
        waited_for=np.full(rounds, -1, np.int32),
        deadlines=np.zeros(rounds, np.uint8),
        shows=np.zeros((rounds, len(neighbours)), np.uint8),
        shown_at=np.full(rounds, np.nan),
        backlog=np.zeros(len(neighbours), np.int32),
        backlog_in=np.zeros(len(neighbours), np.int32),
    )


def peers_of(client, plan: Schedule, may_be_quiet: bool = False, **rules) -> Peers:
    channels = {int(j): Channel((1,), (1,), may_be_quiet=may_be_quiet) for j in plan.neighbours}
    node = client.endpoint.node
    peers = Peers(PlannedClock(client.endpoint, Channels(node, channels, "f4"), 10, plan, Rules(**rules)))
    peers.clock.begin(1)
    return peers


def value(number: float) -> np.ndarray:
    return np.array([number], dtype="f4")


def test_each_round_uses_the_message_that_the_plan_names_or_none(network):
    """Client 0 uses, of its neighbour's rounds 1 to 4: none, then 3, then 3 again, then 4."""
    first, second = network.linked(2, [(0, 1)])
    ahead = peers_of(second, schedule((0,), uses=[0] * 4, rounds=4))
    for round in range(1, 5):
        assert ahead.exchange({0: value(round)}) == {}
        ahead.next_round()
    peers = peers_of(first, schedule(uses=[0, 3, 3, 4], rounds=4))
    heard = []
    for _ in range(4):
        heard.append({j: vector.tolist() for j, vector in peers.exchange({1: value(0)}).items()})
        heard.append([use[1:] for use in peers.next_round().used])
    assert heard == [{}, [(1, None)], {1: [3]}, [(1, 3)], {1: [3]}, [(1, 3)], {1: [4]}, [(1, 4)]]
    assert peers.memory_bytes() == 0


def test_what_the_plan_loses_is_not_sent_and_what_it_doubles_is_sent_twice(network):
    first, second = network.linked(2, [(0, 1)])
    sender = peers_of(first, schedule(uses=[0] * 3, copies=[1, 0, 2], rounds=3))
    traffic = []
    for round in range(1, 4):
        sender.exchange({1: value(round)})
        traffic += [(round, sent.messages) for sent in sender.next_round().sent.values()]
    assert traffic == [(1, 1), (3, 2)]
    rounds = [second.receive().round for _ in range(3)]
    assert rounds == [1, 3, 3]


def test_a_sender_waits_when_its_window_is_full_and_goes_on_when_half_of_it_is_confirmed(network):
    """300 messages of 4 bytes, a window of 128: the receiver, which uses only the last, confirms each 64 it takes."""
    first, second = network.linked(2, [(0, 1)])
    fast = peers_of(first, schedule(uses=[0] * ROUNDS))
    slow = peers_of(second, last_only())

    def run_ahead() -> float:
        for round in range(1, ROUNDS + 1):
            fast.exchange({1: value(round)})
            fast.next_round()
        return time.monotonic()

    def sleep_then_listen() -> tuple[float, list[float]]:
        time.sleep(0.5)
        woken = time.monotonic()
        return woken, slow.receive()[0].tolist()

    done, (woken, heard) = network.in_parallel(run_ahead, sleep_then_listen)
    assert heard == [ROUNDS]
    assert done > woken  # it could not have sent them all before
    messages, wire_bytes = slow.beside(CONFIRMATION)[0]
    assert messages == ROUNDS // 64
    assert wire_bytes > 0


def last_only() -> Schedule:
    """The first round uses the neighbour's last message."""
    return schedule((0,), uses=[ROUNDS] + [0] * (ROUNDS - 1))


def test_unconfirmed_messages_are_no_concern_where_clients_keep_step(network):
    first, second = network.linked(2, [(0, 1)])
    fast = peers_of(first, schedule(uses=[0] * ROUNDS), bounded=False)
    for round in range(1, ROUNDS + 1):
        fast.exchange({1: value(round)})
        fast.next_round()
    assert [second.receive().round for _ in range(ROUNDS)] == list(range(1, ROUNDS + 1))


def test_who_is_quiet_says_so_without_a_vector_and_may_hear_one_all_the_same(network):
    first, second = network.linked(2, [(0, 1)])
    one, other = (
        peers_of(client, schedule((1 - node,), rounds=3), may_be_quiet=True)
        for node, client in enumerate((first, second))
    )

    def both_quiet_then_one_then_none() -> list[dict]:
        return [
            one.exchange({}, quiet={1}),
            step(one),
            one.exchange({}, quiet={1}),
            step(one),
            one.exchange({1: value(3)}),
        ]

    def both_quiet_then_none() -> list[dict]:
        rounds = [other.exchange({}, quiet={0}), step(other), other.exchange({0: value(2)}), step(other)]
        return [*rounds, other.exchange({0: value(4)})]

    def step(peers: Peers) -> tuple[int, list[int | None]]:
        closed = peers.next_round()
        return len(closed.sent), [use.used for use in closed.used]

    heard, heard_there = network.in_parallel(both_quiet_then_one_then_none, both_quiet_then_none)
    assert heard[::2] == [{}, {1: [2]}, {1: [4]}]
    assert heard_there[::2] == [{}, {}, {0: [3]}]
    assert heard[1:4:2] == [(0, [None]), (0, [2])]
    assert heard_there[1:4:2] == [(0, [None]), (1, [None])]
    assert one.beside(CONFIRMATION)[1][0] == 2  # messages without a vector are no traffic
    assert one.memory_bytes() == other.memory_bytes() == 0


def test_who_must_not_be_quiet_is_not_taken_for_it(network):
    first, second = network.linked(2, [(0, 1)])
    peers = peers_of(first, schedule(rounds=1))
    second.endpoint.send([0], round=1, phase=0, tensors=())
    second.endpoint.send([0], round=1, phase=0, tensors=(value(5),))
    assert peers.exchange({1: value(0)})[1].tolist() == [5]
    assert peers.rejected() == {"wrong shape": 1}


@pytest.mark.parametrize(("silence", "expected"), [("stale", {1: [1.0]}), ("skip", {})])
def test_of_a_neighbour_that_has_died_the_last_vector_is_used_or_none(network, silence, expected):
    first, second = network.linked(2, [(0, 1)])
    peers = peers_of(first, schedule(rounds=2), silence=silence)
    other = peers_of(second, schedule((0,), uses=[0, 0], rounds=2))
    other.send({0: value(1)})
    assert peers.exchange({1: value(0)})[1].tolist() == [1]
    peers.next_round()
    network.end(second)
    first.launcher.send(NeighbourDied(1))
    began = time.monotonic()
    assert {j: vector.tolist() for j, vector in peers.exchange({1: value(0)}).items()} == expected
    assert time.monotonic() - began < 5
    assert [use.used for use in peers.next_round().used] == [1 if expected else None]


def test_messages_for_after_a_checkpoint_are_kept_until_no_checkpoint_needs_them(network):
    """Every 5 rounds; the neighbour uses the messages of rounds 4 and 7 in rounds 12 and 9."""
    first, _ = network.linked(2, [(0, 1)])
    plan = schedule(uses=[0] * 20, rounds=20)
    needed = np.zeros((20, 1, 1), np.int32)
    needed[3], needed[6] = 12, 9
    plan = Schedule(**{name: getattr(plan, name) for name in plan.__dataclass_fields__} | {"needed": needed})
    peers = peers_of(first, plan, checkpoint_every=5)
    stored = {}
    for round in range(1, 16):
        peers.exchange({1: value(round)})
        if round % 5 == 0:
            stored[round] = {name: vector.tolist() for name, vector in peers.clock.stored.state(round).items()}
            peers.clock.stored.forget(round)
        peers.next_round()
    assert stored == {5: {"sent.1.4.0": [4]}, 10: {"sent.1.4.0": [4]}, 15: {}}


def test_a_client_ends_only_when_all_that_is_planned_has_come(network):
    first, second = network.linked(2, [(0, 1)])
    leaving = peers_of(first, schedule(uses=[0] * 3, rounds=3))
    other = peers_of(second, schedule((0,), uses=[0] * 3, rounds=3))

    def send_slowly() -> float:
        for round in range(1, 4):
            time.sleep(0.1)
            last = time.monotonic()
            other.exchange({0: value(round)})
            other.next_round()
        return last

    def drain() -> float:
        leaving.clock.drain(1, 0)
        return time.monotonic()

    sent, drained = network.in_parallel(send_slowly, drain)
    assert drained >= sent


# -- neighbours that come later ----------------------------------------------------------------------------------------


def test_a_neighbour_that_was_started_again_is_met_again_by_the_end_that_accepts(network):
    client, _ = network.client_of_puppets(1)
    client.endpoint.presence.latecomers = frozenset({0})
    peers = peers_of(client, schedule((0,), uses=[0] * 2, rounds=2))
    second = network.puppet(client, identity_of(0, 2))
    second.send(network.header(src=0, dst=1))
    while client.endpoint.presence.linked[0] != 2:
        peers.clock.idle()
    assert second.recv_multipart()  # the answer to its greeting
    peers.send({0: value(7)})
    assert second.recv_multipart()[1] == value(7).tobytes()


def test_a_neighbour_that_has_begun_its_next_life_meanwhile_is_answered(network):
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


def test_the_end_that_connects_meets_a_neighbour_at_its_new_address(network):
    first, second = network.linked(2, [(0, 1)])
    peers = peers_of(first, schedule(uses=[0] * 2, rounds=2))
    network.end(second)
    again = network.client(1)
    first.launcher.send(NeighbourCame(Place(1, again.address, 2, ""), 1))
    network.in_parallel(
        lambda: again.connect({0: "never used"}),
        lambda: [peers.clock.idle() for _ in range(3) if first.endpoint.presence.linked[1] != 2],
    )
    assert first.endpoint.presence.linked[1] == 2
    peers.send({1: value(3)})
    assert again.receive().tensors[0].tolist() == [3]
