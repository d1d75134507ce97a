"""Workloads that die, flood, leak, fork, close, patch or lie: each ends as itself."""

from __future__ import annotations

from textwrap import indent
from typing import NamedTuple

from faults.lab import FIRST, HEAD, QUICK, SECOND, Done, Scene, Stage
from faults.rows import Fault, as_a_whole, ending

TOOLS = """
SOCKETS = lambda: [
    int(name) for name in os.listdir("/proc/self/fd")
    if os.path.exists("/proc/self/fd/" + name)
    and stat.S_ISSOCK(os.stat("/proc/self/fd/" + name).st_mode)
]

def tell(data):
    for handle in SOCKETS():
        os.write(handle, data)

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Own(BaseException):
    pass

def die():
    os._exit(7)

KEPT = []
"""


class W(NamedTuple):
    """A workload: what it does, how it must end, and the statements; of ``part``, or a launch."""

    done: str
    see: str
    code: str
    part: str = "fn"


CALM = "new"
WORKLOADS = (
    # It ends its process.
    W("os._exit(3)", "crashed: exit code 3", "os._exit(3)"),
    W("os._exit(0)", "crashed: exit code 0", "os._exit(0)"),
    W("sys.exit with a text", "error: SystemExit; enough", "sys.exit('enough')"),
    W("reads address zero", "crashed: SIGSEGV", "import ctypes; ctypes.string_at(0)"),
    W("kills itself with SIGKILL", "crashed: SIGKILL", "os.kill(os.getpid(), 9)"),
    W("os.abort()", "crashed: SIGABRT", "os.abort()"),
    W("kills its process group", "crashed: SIGKILL", "os.killpg(0, 9)"),
    W(
        "kills the process that forked it",
        "crashed: gone",
        "os.kill(os.getppid(), 9); time.sleep(20)",
    ),
    W("becomes another program", "crashed: exit code 0", "os.execv('/bin/true', ['true'])"),
    # It raises.
    W("endless recursion", "error: RecursionError", "f = lambda: f(); f()"),
    W("asks for 64 TiB", "error: MemoryError", "bytearray(1 << 46)"),
    W("KeyboardInterrupt", "error: KeyboardInterrupt", "raise KeyboardInterrupt"),
    W("a BaseException of its own", "error: Own; mine", "raise Own('mine')"),
    W("an exception whose __str__ raises (D13)", "error: Mute", "raise Mute"),
    W(
        "an exception with escape sequences",
        "error: ValueError; wiped",
        r"raise ValueError('\x1b[2J\x1b]0;title\x07wiped')",
    ),
    W("an exception of 3 MB (D18)", "error: ValueError; xxx", "raise ValueError('x' * 3_000_000)"),
    W("input()", "error: EOFError", "input()"),
    # Streams and descriptors.
    W(
        "prints 200 MB",
        "crashed: printed more than",
        "for _ in range(200): os.write(1, b'x' * (1 << 20)); time.sleep(0.01)",
    ),
    W("closes stdout and stderr", CALM, "KEPT or KEPT.extend([os.close(1), os.close(2)])"),
    W(
        "closes all three streams, then raises (D13)",
        "error: ValueError; the cause",
        "os.closerange(0, 3); raise ValueError('the cause')",
    ),
    W(
        "sets sys.stdout and sys.stderr to None, then raises (D13)",
        "error: ValueError; the cause",
        "sys.stdout = sys.stderr = None; raise ValueError('the cause')",
    ),
    W(
        "may write no more files, then raises (D13)",
        "error: ValueError; the cause",
        "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (0, 0)); raise ValueError('the cause')",
    ),
    W("closes all descriptors", "crashed", "os.closerange(0, 256)"),
    W("closes its socket", "crashed", "for handle in SOCKETS(): os.close(handle)"),
    W("reads stdin to its end", CALM, "sys.stdin.read()"),
    W(
        "opens files up to its limit, and keeps them",
        CALM,
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (64, 64))\n"
        "try:\n    while True: KEPT.append(open(os.devnull))\nexcept OSError: KEPT.pop()",
    ),
    W("warns 1000 times", CALM, "import warnings\nfor i in range(1000): warnings.warn(f'no {i}')"),
    # Processes and threads.
    W(
        "forks, its child waits, and dies",
        "crashed: exit code 4",
        "os.fork() or time.sleep(1000); os._exit(4)",
    ),
    W(
        "leaves a grandchild whose parent is gone",
        CALM,
        "if not KEPT: KEPT.append(subprocess.call(['sh', '-c', 'sleep 1002 &']))",
    ),
    W(
        "starts 100 threads that never end",
        CALM,
        "while len(KEPT) < 100: KEPT.append(threading.Thread(target=threading.Event().wait)); "
        "KEPT[-1].start()",
    ),
    W("leads a process group of its own", CALM, "os.getpgid(0) == os.getpid() or os.setpgid(0, 0)"),
    W("a hook at its exit raises", CALM, "import atexit; atexit.register(lambda: 1 / 0)"),
    # It changes its process.
    W("goes to /", CALM, "os.chdir('/')"),
    W(
        "its folder is removed",
        CALM,
        "import tempfile; os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())",
    ),
    W("clears os.environ", CALM, "os.environ.clear()"),
    W("ignores all signals", CALM, "for n in (1, 2, 3, 6, 15): signal.signal(n, signal.SIG_IGN)"),
    W("replaces json.dumps and json.loads", CALM, "import json; json.dumps = json.loads = None"),
    W("replaces print and open", CALM, "import builtins; builtins.print = builtins.open = None"),
    W("time.sleep raises", CALM, "time.sleep = lambda _: 1 / 0"),
    W("clears sys.path", CALM, "sys.path.clear()"),
    # It returns something else.
    W("returns nothing", "wrong: nothing", "return None"),
    W("returns NaN", "wrong: NaN", "return [float('nan')] * 8"),
    W("returns text", "wrong: str instead of float", "return ['two'] * 8"),
    # Other parts of it.
    W("its builder raises", "error: ZeroDivisionError", "1 / 0", "build"),
    W("its builder ends the process", "crashed: exit code 5", "os._exit(5)", "build"),
    W("its inputs raise", "error: KeyError", "{}['x']", "make_inputs"),
    W("its reference raises", "error: ZeroDivisionError", "1 / 0", "reference"),
    W("its reference ends the process", "crashed: exit code 6", "os._exit(6)", "reference"),
    W("its mistake raises", "error: ZeroDivisionError", "1 / 0", "wrong"),
)
SOCKETS = (
    W("socket: 2 bytes of no message", "error: message", r"tell(b'\0\0\0\2{}'); time.sleep(9)"),
    W("socket: dies in a message (D3)", "crashed: exit code 7", r"tell(b'\0\0\4\0{'); die()"),
    W("socket: dies in a length (D3)", "crashed: exit code 7", r"tell(b'\0\0'); die()"),
    W("socket: garbage", "error|crashed", r"tell(b'\x16\x03\x01\x02' * 64); die()"),
    W("socket: JSON that is no message", "error: message",
      r"""tell(b'\0\0\0\x10["Measured",null]'); time.sleep(30)"""),
    W("socket: reads what is sent to it", "error|crashed|timed-out",
      "for s in SOCKETS(): os.set_blocking(s, False); "
      "socket.socket(fileno=os.dup(s)).shutdown(0)"),
)  # fmt: skip


def pack_of(rows: tuple[W, ...]) -> str:
    """Return a pack with a variant for each row, by its number."""
    functions = []
    for number, row in enumerate(rows):
        argument = {"fn": "values", "build": "", "make_inputs": "rng"}.get(row.part, "values")
        ends = {"fn": "return double(values)", "build": "return workload()"}.get(row.part, "")
        body = indent(f"{row.code}\n{ends}", "    ")
        functions.append(f"def f{number}({argument}):\n{body}\n")
    parts = [row.part for row in rows]
    return f'''{HEAD}{TOOLS}
{"".join(functions)}
PARTS = {parts!r}

@perfsuite.case(smoke={{"f": list(range({len(rows)}))}}, source="made up")
def w(ctx, f):
    """Do what this row does."""
    act = globals()[f"f{{f}}"]
    if PARTS[f] == "build":
        return act()
    return workload(**{{PARTS[f]: act}})

@perfsuite.hookimpl
def perf_cases():
    return [w]
'''


def table(group: str, rows: tuple[W, ...]) -> tuple[Fault, ...]:
    """Return the rows as faults, all of one run, and what holds for the run as a whole."""

    def play(stage: Stage) -> Done:
        stage.write("bad.py", pack_of(rows))
        return stage.perf("+bad", *QUICK)

    scene = Scene(f"{group} {rows[0].done}", play)
    faults = [
        Fault(group, row.done, row.see, scene, ending(f"bad.w[f={number}]"))
        for number, row in enumerate(rows)
    ]
    beside = f"beside these {len(rows)}"
    faults += [Fault(group, f"{n} {beside}", CALM, scene, ending(n)) for n in (FIRST, SECOND)]
    return (*faults, *as_a_whole(group, f"the run of these {len(rows)}", "exit 1", scene))


HALF = len(WORKLOADS) // 2
FAULTS = (*table("workload", WORKLOADS[:HALF]), *table("workload", WORKLOADS[HALF:] + SOCKETS))
