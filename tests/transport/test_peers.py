"""What an algorithm sees of its neighbours: the right vector from each, round after round."""

import time

import numpy as np
import pytest

from sheafgossip.transport.channel import Channel
from sheafgossip.transport.endpoint import NeighbourTimeout
from sheafgossip.transport.stopwatch import Stopwatch


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


ILLEGAL = {
    "round or phase out of turn": [{"round": 4}, {"round": 1}, {"round": 0}],
    "wrong shape": [
        {"phase": 1},  # this link has one message a round
        {"shapes": [[0, 3]]},
        {"shapes": [[0, 0]]},
        {"shapes": [[0, 1], [0, 1]]},
        {"shapes": []},
        {"round": 3, "shapes": [[0, 1]]},  # ahead of its time, and wrong all the same
    ],
    "wrong dtype": [{"shapes": [[1, 2]]}],
}


@pytest.mark.parametrize("reason", ILLEGAL)
def test_a_message_that_the_link_does_not_announce_is_dropped_and_counted(network, reason):
    client, [neighbour] = network.client_of_puppets(1)
    peers = client.peers({0: Channel((2,), (2,))})
    peers.next_round()
    for changed in ILLEGAL[reason]:
        header = {"round": 2, "shapes": [[0, 2]]} | changed
        tensors = [bytes((4, 8)[code] * length) for code, length in header["shapes"]]
        neighbour.send_multipart([network.header(src=0, dst=1, **header), *tensors])
    say(network, neighbour, 1, 2, round=2)
    heard = peers.receive()[0]
    assert heard.tolist() == [1, 2]
    assert peers.rejected() == {reason: len(ILLEGAL[reason])}
    with pytest.raises(ValueError, match="read-only"):
        heard[0] = 2


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
    with pytest.raises(ValueError, match=r"message 0 of a round to client 1 was announced with the lengths \(2,\)"):
        peers.send({0: vector(1, 2), 1: wrong})
    assert first.poll(50) == 0
    assert peers.next_round().sent == {}
    peers.send({0: vector(1, 2)})
    with pytest.raises(ValueError, match="message 1 of a round to client 0"):
        peers.send({0: vector(1, 2)})


def test_silent_neighbours_are_named_with_the_round_and_waiting_for_them_is_wall_time_without_cpu_time(network):
    client, [first, _, _] = network.client_of_puppets(3)
    client.endpoint.stopwatch = watch = Stopwatch("maps")
    peers = client.peers({j: Channel((1,), (1,)) for j in range(3)}, timeout=0.3)
    peers.next_round()
    say(network, first, 1, round=2, src=0, dst=3)
    start = time.monotonic()
    with pytest.raises(NeighbourTimeout, match=r"client 1, 2 sent nothing for 0\.3 s in round 2"):
        peers.receive()
    assert 0.299 <= time.monotonic() - start < 5
    spent = watch.read()
    assert spent["waiting"] == (0, pytest.approx(0.3, rel=0.2))
    assert spent["exchange"].cpu_s < 0.03  # blocked in the kernel, not turning in circles
    assert spent["exchange"].elapsed_s < 0.15
