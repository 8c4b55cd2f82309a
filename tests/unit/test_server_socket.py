"""The door's listening socket."""

import socket

from warmer.ops.server.process import _listening, _send_at_once
from warmer.settings import Serve


def test_an_answer_is_sent_at_once() -> None:
    """Without this each takes 40 ms: its end waits for the peer to acknowledge its beginning."""
    with _listening(Serve(listen="127.0.0.1:0")) as listener:
        _send_at_once(listener)
        address = listener.getsockname()[:2]
        with socket.create_connection(address, timeout=5):
            accepted, _ = listener.accept()
            with accepted:
                option = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert option != 0
