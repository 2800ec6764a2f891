"""The process that a test starts in place of `python`: it asks warm_python's server for a fork, and ends as it does.

It runs before the site's packages are found, and imports only modules that are cheap to load: with `socket`, `signal`
and `json` it would start five times as slowly, and a test starts dozens.
"""

import _signal
import _socket
import marshal
import os
import sys

_FORWARDED = "SIGHUP", "SIGINT", "SIGQUIT", "SIGABRT", "SIGUSR1", "SIGUSR2", "SIGTERM"
_FROM_THE_START = "PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONMALLOC", "LD_PRELOAD"


def ask(folder: str, executable: str, *arguments: str) -> None:
    """Ask the server for a fork, and end as it does; become the executable where a fork would not do."""
    unusual = not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-c", "-m", "-u"))
    unusual |= "UTF-8" not in os.environ.get("LC_ALL", "UTF-8")
    if unusual or any(name in os.environ for name in _FROM_THE_START):
        os.execv(executable, [executable, *arguments])
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(f"\0{folder}")
    except OSError:  # it was killed, with all that a failed test had started
        os.execv(executable, [executable, *arguments])
    numbers = [
        number for number in map(int, os.listdir("/proc/self/fd")) if number in (0, 1, 2) or _is_inherited(number)
    ]
    request = marshal.dumps((list(arguments), dict(os.environ), os.getcwd(), numbers))
    descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)
    rights = _socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors
    connection.sendmsg([len(request).to_bytes(4, "big")], [rights])
    connection.sendall(request)
    pid = int.from_bytes(connection.recv(4), "big")
    for name in _FORWARDED:
        _signal.signal(getattr(_signal, name), lambda number, _: os.kill(pid, number))
    said = connection.recv(4)
    code = os.waitstatus_to_exitcode(int.from_bytes(said, "big")) if said else 1
    if code < 0:
        if -code != _signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # of the listing
        return False


ask(*sys.argv[1:])
