"""A process that has imported torch and forks ranks: a rank then starts in
milliseconds instead of the seconds that the import takes.

It reads one JSON line a rank from stdin ({"script", "environment", "folder",
"log"}) and answers one line each: {"pid": N} when it has forked one, {"ended":
[pid, code]} when one has ended (code as subprocess has it: negative for a signal).
It ends with its stdin. A rank is a session of its own, with the environment, folder
and log that it was given, and runs the script as __main__ with everything that an
interpreter does at its end.
"""

import gc
import json
import os
import runpy
import select
import signal
import sys

import gpubridge  # noqa: F401
import torch  # noqa: F401 - what this process is for
import torch.distributed  # noqa: F401


def become(order):
    """In the child: what a fresh process would find."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 64)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = [order["script"]]
    sys.path[0] = os.path.dirname(order["script"])
    if os.environ.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable(2)


def tell(answer):
    os.write(1, (json.dumps(answer) + "\n").encode())


def reap():
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        tell({"ended": [pid, os.waitstatus_to_exitcode(status)]})


def serve():
    """Returns in a child only, with the script to run."""
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(awake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pending = b""
    while True:
        ready, _, _ = select.select([0, awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            reap()
        if 0 not in ready:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            sys.exit(0)
        *orders, pending = (pending + data).split(b"\n")
        for order in map(json.loads, orders):
            pid = os.fork()
            if not pid:
                become(order)
                return order["script"]
            tell({"pid": pid})


if __name__ == "__main__":
    # What torch's import left is for ever: ranks need not walk through it at each
    # collection (a quarter of their time), nor copy its pages for that.
    gc.collect()
    gc.freeze()
    script = serve()
    runpy.run_path(script, run_name="__main__")
