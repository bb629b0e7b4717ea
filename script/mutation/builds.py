"""The builds that script/mutate works in, their tests, and running them with limits. Both builds have their own copy of
the source: plain/ is what mutants are linked with, covered/ counts with gcov which lines a test runs."""

import collections
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HOME = ROOT / "build-mutate"
PLAIN, COVERED = HOME / "plain", HOME / "covered"  # each with source/ and build/
FLAGS = {PLAIN: "-O2", COVERED: f"-O1 --coverage -w -include {COVERED}/exit.h"}
LEFT_OUT = re.compile(r"(install|examples|script)/")  # tests that build, and this program's own
# Ranks leave by _exit, which alone would leave their counts behind.
EXIT = """extern void __gcov_dump(void);
extern void _exit(int) __attribute__((noreturn));
static inline __attribute__((noreturn)) void exit_with_counts(int status) { __gcov_dump(), _exit(status); }
#define _exit exit_with_counts
"""
# A mutant may kill, write or take more than it means to: so it has limits, and if possible a process namespace.
LIMITS = ["sh", "-c", 'ulimit -c 0; ulimit -d 8388608; "$@"; exit $?', "limits"]
ALONE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
NAMESPACE = shutil.which("unshare") and not subprocess.call([*ALONE, "true"], stderr=subprocess.DEVNULL)
SHIELD = [*ALONE, *LIMITS] if NAMESPACE else LIMITS
STOPPED = threading.Event()  # whoever waits for a process ends it
Test = collections.namedtuple("Test", "name command environment fixtures skip")


class Refused(Exception):
    """Says why there is nothing to run; .status is what to exit with."""

    def __init__(self, sentence, status=3):
        super().__init__(sentence)
        self.status = status


def tool(*command, **more):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, **more)
    if done.returncode:
        raise Refused(f"{shlex.join(done.args)[:200]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def git(*words):
    return tool("git", "-C", ROOT, "-c", "core.quotepath=off", *words).splitlines()


def slowdown():
    """How much longer than alone a process takes now, about."""
    return max(1, os.getloadavg()[0] / os.cpu_count())


def limited(command, limit, folder, environment):
    """Runs a command and what it starts: its exit status, None if it was ended at its limit; the seconds that it would
    have taken on a machine that does nothing else, about; and those that it took."""
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ, "ADDEND_TEST_SEED": "1", "TMPDIR": folder, **environment}
    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen([*SHIELD, *command], cwd=folder, env=environment, start_new_session=True, **silent)
    start, slow, ended = time.monotonic(), slowdown(), 0
    while not ended and time.monotonic() < start + limit and not STOPPED.is_set():
        time.sleep(0.005)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if ended:
        process.returncode = os.waitstatus_to_exitcode(status)
    took = time.monotonic() - start
    alone = max(usage.ru_utime + usage.ru_stime, took / slow)
    return (process.returncode if ended else process.wait() and None), round(alone, 2), round(took, 2)


def stop(*_):
    STOPPED.set()


# ---- builds and their tests ----


def build(folder, jobs):
    """Copies what git knows of or does not ignore, and builds it."""
    kept = {folder / "source" / name: ROOT / name for name in git("ls-files", "-co", "--exclude-standard")}
    for copy, original in kept.items():
        if original.is_file() and not (copy.exists() and copy.read_bytes() == original.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(original, copy)
            copy.chmod(original.stat().st_mode)
    for old in (folder / "source").rglob("*"):
        if old.is_file() and not (old in kept and kept[old].is_file()):
            old.unlink()
    if not (folder / "exit.h").exists():
        (folder / "exit.h").write_text(EXIT)
    ccache = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    tool(
        "cmake",
        "-S",
        folder / "source",
        "-B",
        folder / "build",
        "-G",
        "Ninja",
        "-DCMAKE_BUILD_TYPE=Mutants",
        "-DAD_TESTS=ON",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        "-DCMAKE_C_FLAGS_MUTANTS=" + FLAGS[folder],
        *ccache,
    )
    cached = (
        {} if folder == PLAIN else {"CCACHE_DISABLE": "1"}
    )  # files with counts are named after where they were built
    tool("ninja", "-C", folder / "build", f"-j{jobs}", env={**os.environ, **cached})


def tests_of(folder):
    """The tests of a build, and `addend check` of each recipe, by name."""
    found = {}
    for each in json.loads(tool("ctest", "--test-dir", folder / "build", "--show-only=json-v1"))["tests"]:
        said = {row["name"]: row["value"] for row in each["properties"]}
        environment = dict(word.split("=", 1) for word in said.get("ENVIRONMENT", []))
        skip = said.get("SKIP_RETURN_CODE", 0)
        if not LEFT_OUT.match(each["name"]):
            found[each["name"]] = Test(each["name"], each["command"], environment, "FIXTURES_REQUIRED" in said, skip)
    for recipe in sorted((folder / "source" / "recipes").glob("*.yaml")):
        for word, more in (("check", []), ("sabotage", ["--sabotage"])):
            name, command = f"{word} {recipe.stem}", [f"{folder}/build/addend", "check", str(recipe), *more]
            found[name] = Test(name, command, {}, False, 0)
    return found


@functools.cache
def read(file):
    return (PLAIN / "source" / file).read_text()


@functools.cache
def commands():
    """The words that compile each file."""
    found = {}
    for row in json.loads((PLAIN / "build" / "compile_commands.json").read_text()):
        words = shlex.split(row["command"])
        found.setdefault(os.path.relpath(row["file"], PLAIN / "source"), words[words[0].endswith("ccache") :])
    return found


@functools.cache
def link_command(name):
    """The words that link a program or library of the build; none if nothing does."""
    for line in tool("ninja", "-C", PLAIN / "build", "-t", "commands", name).splitlines():
        for words in map(shlex.split, line.split(" && ")):
            if "-o" in words and words[words.index("-o") + 1] == name:
                return words
    return ()


def programs_of(test):
    """What has to be linked for a test: itself, or the programs and libraries that its script names."""
    own, built = pathlib.Path(test.command[0]), PLAIN / "build"
    if own.parent == built:
        return {own.name}
    said = " ".join(test.command + [pathlib.Path(w).read_text() for w in test.command if w.endswith((".sh", ".py"))])
    found = {"addend"} if (built / "addend").exists() else set()
    for path in built.iterdir():
        if path.is_file() and os.access(path, os.X_OK) and not path.is_symlink() and link_command(path.name):
            named = re.search(rf"\b{re.escape(path.name)}\b", said)
            found |= {path.name} if named or test.fixtures and path.name.startswith("example_") else set()
    return found
