"""Records on their way to the collector: all of them, in order, in batches that it accepts."""

import socket
import time
from collections.abc import Iterator

import pytest
import zmq

from sheafgossip.metrics.recorder import Recorder
from sheafgossip.metrics.records import MAX_BATCH_BYTES, TABLES, Batch, EventRecord, Record, RoundRecord, unpack
from sheafgossip.transport.connections import KernelCounters, counts_bytes
from sheafgossip.transport.keys import KeyPair, ZapHandler, listen_with, next_event

OPENING = 64 + len(b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PUSH")  # the greeting and READY


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def collector(context: zmq.Context, address: str = "tcp://127.0.0.1:*", keys: KeyPair | None = None) -> zmq.Socket:
    pull = context.socket(zmq.PULL)
    pull.rcvtimeo = 10_000
    if keys is not None:
        listen_with(pull, keys)
    pull.bind(address)
    return pull


def recorder_to(pull: zmq.Socket, **options) -> Recorder:
    return Recorder(pull.context, pull.last_endpoint.rstrip(b"\0").decode(), 4, **options)


def rounds(*numbers: int) -> list[RoundRecord]:
    return [RoundRecord(4, number, 0.5, None, None, 1.25, number / 10) for number in numbers]


def records_of(batch: Batch) -> list[Record]:
    return [TABLES[name](*row) for name, rows in batch.tables.items() for row in rows]


def test_each_write_is_a_batch_or_several_numbered_in_order_and_nothing_or_too_much_sends_nothing(context):
    pull = collector(context)
    recorder = recorder_to(pull)
    recorder.write()
    with pytest.raises(ValueError, match=f"at most {MAX_BATCH_BYTES} are allowed"):
        recorder.write(EventRecord(0.0, None, 4, "crash", "x" * MAX_BATCH_BYTES))
    event = EventRecord(0.5, None, 4, "drop", "1 messages dropped: wröng shape")
    recorder.write(*rounds(1, 2))
    recorder.write(event)
    recorder.write(*rounds(*range(5001)))
    batches = [unpack(pull.recv()) for _ in range(recorder.batches)]
    assert [(batch.sender, batch.sequence) for batch in batches] == [(4, number) for number in range(len(batches))]
    assert len(batches) > 3
    assert [records_of(batch) for batch in batches[:2]] == [rounds(1, 2), [event]]
    assert [record for batch in batches[2:] for record in records_of(batch)] == rounds(*range(5001))
    recorder.close()


def test_records_that_follow_each_other_quickly_leave_together(context):
    pull = collector(context)
    recorder = recorder_to(pull, gather_s=3600.0)
    for number in range(1, 4):
        recorder.write(*rounds(number))
    assert records_of(unpack(pull.recv())) == rounds(1)  # the first does not wait
    assert not pull.poll(50)
    recorder.flush()
    assert records_of(unpack(pull.recv())) == rounds(2, 3)
    recorder.write(*rounds(4))
    recorder.close()
    assert records_of(unpack(pull.recv())) == rounds(4)
    assert recorder.batches == 3


@pytest.mark.skipif(not counts_bytes(), reason="this kernel counts no bytes of TCP connections")
@pytest.mark.parametrize("keyed", [False, True])
def test_the_records_own_bytes_are_counted_with_their_framing_as_the_kernel_does(context, keyed):
    own, collectors = KeyPair.make(), KeyPair.make()
    authenticator = ZapHandler(context, {4: own.public})
    pull = collector(context, keys=collectors if keyed else None)
    monitor = pull.get_monitor_socket(zmq.EVENT_ACCEPTED)
    recorder = recorder_to(pull, keys=(own, collectors.public) if keyed else None)
    kernel = KernelCounters()
    assert monitor.poll(10_000)
    kernel.watch(next_event(monitor)[1])
    recorder.write(*rounds(1))
    recorder.write(*rounds(*range(100)))
    if keyed:
        assert authenticator.socket.poll(10_000)
        authenticator.answer()
    short, long = len(pull.recv()), len(pull.recv())
    assert short <= 255 < long
    if not keyed:
        assert recorder.wire_bytes == OPENING + (short + 2) + (long + 9)
    assert kernel.read()[0][3] == recorder.wire_bytes
    kernel.close()
    recorder.close()
    pull.disable_monitor()
    monitor.close()
    authenticator.close()


def test_who_may_drop_waits_for_nobody_and_counts_what_there_was_no_room_for(context):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        recorder = Recorder(context, address, sender=4, may_drop=True)
        start = time.monotonic()
        for number in range(1200):
            recorder.write(*rounds(number))
        assert time.monotonic() - start < 2
    assert (recorder.batches, recorder.dropped) == (1200, 200)
    pull = collector(context, address)
    numbers = [unpack(pull.recv()).sequence for _ in range(1000)]
    assert numbers == list(range(1000))  # then nothing until there was room again
    recorder.write(*rounds(1200))
    assert unpack(pull.recv()).sequence == 1200
    recorder.close()
