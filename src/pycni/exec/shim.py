# SPDX-License-Identifier: Apache-2.0
"""The plugin executable where no C compiler is at hand: shim.c's work, frame for frame.

Start-up is its whole cost (an interpreter takes 6 ms, `json` alone as much again), so it imports
nothing but the three C modules below; a test counts them. `pycni install` writes this text after
a shebang and the assignments of SOCKET and PACKAGES. When no service listens, this interpreter goes
on to do the work itself (see start.py).
"""

import _socket
import posix
import sys

SOCKET = "/run/pycni/shim.sock"
PACKAGES = ""

FRAME_VERSION = 1
MAX_REQUEST = 16 * 1024 * 1024
MAX_REPLY = 64 * 1024 * 1024
DEFAULT_TIMEOUT_S = 120
MAX_TIMEOUT_S = 86400
NETNS_FLAGS = posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK  # a FIFO must not hang us
FORWARDED = (b"CNI_", b"TRACEPARENT=", b"TRACESTATE=", b"BAGGAGE=")


def fail(code, msg, details):
    """Print a CNI error and exit; only the details, which may be a path, need escapes."""
    details = "".join(
        f"\\u{ord(char):04x}" if char < " " else f"\\{char}" if char in '"\\' else char
        for char in details
    )
    text = f'{{\n    "code": {code},\n    "msg": "{msg}",\n    "details": "{details}"\n}}'
    try:
        posix.write(1, text.encode("utf-8", "surrogateescape"))
    finally:
        posix._exit(1)


def occupy_standard_descriptors():
    """Else a closed one would become the socket's, and stdin or stdout be the service's."""
    for fd in range(3):
        try:
            posix.fstat(fd)
        except OSError:
            posix.open("/dev/null", posix.O_PATH)  # reads and writes fail, as on a closed one


def parse_timeout(text):
    """Seconds; without a sensible number the default."""
    seconds = int(text[:18]) if text.isdigit() else 0
    return min(seconds or DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S)


def clock():
    """Seconds since some moment; `time` would be one more module."""
    return posix.times().elapsed


def connect(path, timeout_s):
    """Return a connection to the service, or None when none listens."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    # Not settimeout: it makes the socket non-blocking, and a full queue is then refused at once.
    size = 8 if sys.maxsize > 1 << 32 else 4
    timeval = timeout_s.to_bytes(size, sys.byteorder) + bytes(size)
    connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, timeval)
    try:
        connection.connect(path)
    except BlockingIOError:
        text = path.decode("utf-8", "surrogateescape") if isinstance(path, bytes) else path
        fail(11, "the pycni service accepts no connection in time", text)
    except OSError:
        connection.close()
        return None
    return connection


def run_here(name):
    """Do the service's work in this process."""
    if PACKAGES:
        sys.path += PACKAGES.split(":")
    else:  # an interpreter we know nothing of; looking for packages takes 2 ms
        import site

        site.main()
    try:
        from pycni.exec.start import main as start
    except ImportError:
        fail(11, "no pycni service listens and the interpreter has no pycni", sys.executable)
    start(name)


def read_stdin(size):
    """Everything on stdin, if with the `size` of the rest it is within what the service accepts."""
    chunks = []
    while True:
        try:
            chunk = posix.read(0, 65536)
        except OSError as exc:
            fail(5, "error reading from stdin", exc.strerror)
        if not chunk:
            return b"".join(chunks)
        size += len(chunk)
        if size > MAX_REQUEST:
            fail(6, "the network configuration on stdin is larger than 16 MiB", "")
        chunks.append(chunk)


def request(name):
    """The request frame of framing.py."""
    pairs = (key + b"=" + value for key, value in posix.environ.items())
    variables = [pair for pair in pairs if pair.startswith(FORWARDED)]
    variables.append(b"PYCNI_PLUGIN=" + name)
    env = b"".join(pair + b"\0" for pair in variables)
    head = bytes((FRAME_VERSION,)) + len(env).to_bytes(4, "big") + env
    # Without a command the answer is a text about the plugin, and stdin may be a terminal.
    body = head + (read_stdin(len(head)) if posix.environ.get(b"CNI_COMMAND") else b"")
    return len(body).to_bytes(4, "big") + body


def send(connection, frame):
    """Send the frame, the descriptor of CNI_NETNS with its first byte."""
    ancillary = []
    try:
        netns = posix.open(posix.environ.get(b"CNI_NETNS", b""), NETNS_FLAGS)
        ancillary.append((_socket.SOL_SOCKET, _socket.SCM_RIGHTS, netns.to_bytes(4, sys.byteorder)))
    except OSError:
        pass  # the service reports a missing namespace where the verb needs one
    try:
        sent = connection.sendmsg([frame], ancillary)
        if sent < len(frame):  # an empty send fails if the answer has come and the peer is gone
            connection.sendall(frame[sent:])
    except OSError as exc:
        fail(11, "the pycni service refused the request", exc.strerror or "timed out")


def receive(connection, length, deadline):
    """Exactly `length` bytes, before the deadline."""
    data = bytearray()
    while len(data) < length:
        connection.settimeout(max(deadline - clock(), 0.001))
        try:
            chunk = connection.recv(min(length - len(data), 1 << 20))
        except TimeoutError:
            fail(
                11,
                "the pycni service did not answer in time",
                "the call may still be running; DEL and repeat it",
            )
        except OSError:
            chunk = b""
        if not chunk:
            fail(
                11,
                "the pycni service closed the connection before it answered",
                "look at its log, then DEL and repeat the call",
            )
        data += chunk
    return bytes(data)


def receive_reply(connection, deadline):
    """The body of the reply frame."""
    length = int.from_bytes(receive(connection, 4, deadline), "big")
    if not 5 <= length <= MAX_REPLY:
        fail(11, "the pycni service answered with an unusable frame", "")
    body = receive(connection, length, deadline)
    if int.from_bytes(body[1:5], "big") > length - 5:
        fail(11, "the pycni service answered with a frame cut short", "")
    return body


def write_all(fd, data):
    """Write all of `data`."""
    while data:
        data = data[posix.write(fd, data) :]


def main():
    """Run one plugin call through the service."""
    name = sys.argv[0].rpartition("/")[2]
    path = posix.environ.get(b"PYCNI_SHIM_SOCKET") or SOCKET
    timeout_s = parse_timeout(posix.environ.get(b"PYCNI_SHIM_TIMEOUT", b""))
    occupy_standard_descriptors()
    connection = connect(path, timeout_s)
    if connection is None:
        run_here(name)
    frame = request(name.encode("utf-8", "surrogateescape"))
    deadline = clock() + timeout_s
    connection.settimeout(timeout_s)
    send(connection, frame)
    body = receive_reply(connection, deadline)
    end = 5 + int.from_bytes(body[1:5], "big")
    try:
        write_all(1, body[5:end])
    except OSError:
        posix._exit(1)  # nobody is there to be told
    try:
        write_all(2, body[end:])
    finally:
        posix._exit(body[0])  # what is only for a log fails no call


if __name__ == "__main__":
    main()
