"""Builds copies of the source in build-mutate/ for lab/mutate, and runs their tests with limits."""

import contextlib
import json
import marshal
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HOME = ROOT / "build-mutate"
PLAIN = "-O2 -Wno-parentheses"  # with this warning as an error, many mutants would not compile
COVERED = f"-O1 --coverage -w -include {ROOT}/lab/mutation/exit.h"
SHIELD = "prlimit --core=0 --data=8589934592 unshare --pid --fork --kill-child --mount-proc"  # mutants may kill
SHIELD = SHIELD.split() if subprocess.getstatusoutput(SHIELD + " true")[0] == 0 else []
STOPPED = threading.Event()  # set when the script is interrupted: threads then end the processes that they wait for


def refuse(sentence, status=3):
    print(f"mutate: {sentence}", file=sys.stderr)
    raise SystemExit(status)


def tool(*command):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True)
    if done.returncode:
        refuse(f"{shlex.join(done.args)[:200]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def git(*words):
    return tool("git", "-C", ROOT, "-c", "core.quotepath=off", *words).splitlines()


class Build:
    """A build of a copy of all files that git does not ignore. objects[C file]: an object file that it is compiled to;
    tests[name]: the command of a test, or of `addend check` of a recipe."""

    def __init__(self, name, flags, jobs, targets=()):
        self.folder, self.source, self.build = HOME / name, HOME / name / "source", HOME / name / "build"
        files = {self.source / file: ROOT / file for file in git("ls-files", "-co", "--exclude-standard")}
        for copy in {*self.source.rglob("*"), *files}:
            if copy in files and files[copy].is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                if not copy.exists() or copy.read_bytes() != files[copy].read_bytes():
                    shutil.copy(files[copy], copy)
            elif copy.is_file():
                copy.unlink()
        options = "-G Ninja -DAD_TESTS=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_BUILD_TYPE=Mutants".split()
        tool("cmake", "-S", self.source, "-B", self.build, *options, "-DCMAKE_C_FLAGS_MUTANTS=" + flags)
        tool("ninja", "-C", self.build, f"-j{jobs}", *targets)
        rows = json.loads((self.build / "compile_commands.json").read_text())
        output = re.compile(r" -o (\S+)")
        self.objects = {os.path.relpath(each["file"], self.source): output.search(each["command"])[1] for each in rows}
        listed = json.loads(tool("ctest", "--test-dir", self.build, "--show-only=json-v1"))["tests"]
        kept = [each for each in listed if "command" in each]  # its program is built
        kept = [each for each in kept if not re.match(r"(install|examples|script)/", each["name"])]  # others build
        self.tests = {each["name"]: each["command"] for each in kept}
        for recipe in self.source.glob("recipes/*.yaml"):
            self.tests[f"check {recipe.stem}"] = [f"{self.build}/addend", "check", str(recipe)]
            self.tests[f"mutate {recipe.stem}"] = [f"{self.build}/addend", "check", str(recipe), "--mutate"]

    def make(self, *targets):
        words = ["ninja", "-C", self.build, *targets]
        return not STOPPED.is_set() and subprocess.run(words, capture_output=True).returncode == 0

    def compiled(self, file):
        """The bytes to which the file's present text compiles; None if it does not compile."""
        if file in self.objects:
            return (self.build / self.objects[file]).read_bytes() if self.make(self.objects[file]) else None
        with contextlib.suppress(SyntaxError):
            return marshal.dumps(compile((self.source / file).read_text(), file, "exec"))

    def link(self, test):
        """Builds the program of a test; for a script, all programs that are not tests."""
        needed = {self.build / self.tests[test][0]}
        if not needed <= set(self.build.iterdir()):
            needed = {path for path in self.build.iterdir() if path.is_file() and os.access(path, os.X_OK)}
            needed -= {pathlib.Path(command[0]) for command in self.tests.values() if command[1:2] != ["check"]}
        return self.make(*(path.name for path in needed if not path.is_symlink()))

    def run(self, test, seconds, **more):
        """Runs a test; returns its exit status and its processor seconds. It is ended (status None) after `seconds`, or
        proportionally later if the machine is loaded."""
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            fixed = {"OPENBLAS_NUM_THREADS": "1", "ADDEND_TEST_SEED": "1", "TMPDIR": folder, **more}
            words, alone = [*SHIELD, *self.tests[test]], {"cwd": folder, "start_new_session": True}
            process = subprocess.Popen(words, env={**os.environ, **fixed}, **alone, **silent)
            end, ended = time.monotonic() + seconds * max(1, os.getloadavg()[0] / os.cpu_count()), 0
            while not ended and time.monotonic() < end and not STOPPED.is_set():
                time.sleep(0.005)
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not ended:
                return process.wait() and None, seconds
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_utime + usage.ru_stime
