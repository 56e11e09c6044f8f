"""What a socket's monitor tells of its connections. (pyzmq's own reader of this loads the whole of asyncio.)"""

import struct

import zmq


def next_event(monitor: zmq.Socket) -> tuple[int, int]:
    """(kind, value) of the next event, e.g. (zmq.EVENT_CONNECTED, file descriptor); blocks as ``monitor`` does."""
    event, _endpoint = monitor.recv_multipart()
    return struct.unpack("=Hi", event)
