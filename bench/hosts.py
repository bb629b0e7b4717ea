#!/usr/bin/env python3
"""Collectives between hosts, which are network namespaces of this machine: seconds, and bytes on the network.

    sudo bench/hosts.py 2x1 2x2 3x1 2x3 --netem "rate 10gbit delay 25us"

HOSTSxRANKS: so many hosts, so many ranks on each, joined by a bridge, over TCP. addend's engine mpi under Open MPI and
Open MPI's own collectives take turns in one run. A row has the median time of the slowest rank for each, and what all
interfaces sent, in sizes of the value. Needs root, iproute2 and Open MPI; the machine's cores are shared by all ranks,
and those of Open MPI never sleep. `--build` names other builds, separated by commas, to measure beside this one."""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather"]


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Hosts:
    """Network namespaces, joined by a bridge in one more."""

    def __init__(self, count, netem):
        self.count, self.name, self.folder = count, f"bench{os.getpid()}", tempfile.mkdtemp()
        try:
            self.open(netem)
        except BaseException:
            self.close()
            raise

    def open(self, netem):
        switch = f"{self.name}-0"
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        for i in range(1, self.count + 1):
            host, port = f"{self.name}-{i}", f"port{i}"
            run("ip", "netns", "add", host)
            run("ip", "link", "add", "eth", "netns", host, "type", "veth", "peer", "name", port, "netns", switch)
            run("ip", "-n", host, "addr", "add", f"10.79.0.{i}/24", "dev", "eth")
            run("ip", "-n", host, "link", "set", "eth", "up")
            run("ip", "-n", host, "link", "set", "lo", "up")
            run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            if netem:
                run("ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", "eth", "root", "netem", *netem.split())
        with open(self.shell(), "w") as file:
            file.write("#!/bin/sh\nhost=${1##*.}\nshift\n")
            file.write(f'exec ip netns exec {self.name}-$host unshare --uts sh -c "hostname host-$host; $*"\n')
        os.chmod(self.shell(), 0o755)

    def close(self):
        for i in range(self.count + 1):
            subprocess.run(["ip", "netns", "del", f"{self.name}-{i}"], capture_output=True)
        shutil.rmtree(self.folder)

    def shell(self):
        """What Open MPI takes for ssh."""
        return f"{self.folder}/shell"

    def sent(self):
        """Bytes that all hosts sent since they are there."""
        links = [run("ip", "-n", f"{self.name}-{i}", "-s", "-j", "link", "show", "eth") for i in range(1, self.count + 1)]
        return sum(json.loads(link)[0]["stats64"]["tx"]["bytes"] for link in links)

    def start(self, ranks, *program):
        hosts = f"{self.folder}/hosts{ranks}"
        with open(hosts, "w") as file:
            file.writelines(f"10.79.0.{i} slots={ranks}\n" for i in range(1, self.count + 1))
        mca = ["plm", "rsh", "plm_rsh_agent", self.shell(), "pml", "ob1", "btl", "self,vader,tcp"]
        mca += ["btl_tcp_if_include", "10.79.0.0/24", "oob_tcp_if_include", "10.79.0.0/24"]
        pairs = [word for i in range(0, len(mca), 2) for word in ("--mca", mca[i], mca[i + 1])]
        words = [self.shell(), "10.79.0.1", "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]
        words += ["--hostfile", hosts, *pairs, "-n", str(self.count * ranks), *program]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=None if os.environ.get("ADDEND_PEER_ERRORS") else subprocess.DEVNULL)


class Program:
    """The ranks of one program, which do tasks as bench/worker.h says."""

    def __init__(self, hosts, ranks, path, number):
        address = f"{hosts.folder}/{number}"
        self.name, self.hosts = path, hosts
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen(64)
            listener.settimeout(60)
            self.launcher = hosts.start(ranks, path, address)
            self.ranks = [listener.accept()[0] for _ in range(hosts.count * ranks)]
        for rank in self.ranks:
            rank.recv(256)

    def do(self, *task):
        line = " ".join(str(word) for word in task).encode() + b"\0"
        for rank in self.ranks:
            rank.send(line)
        seconds = [float(rank.recv(256).rstrip(b"\0")) for rank in self.ranks]
        if min(seconds) < 0:
            raise SystemExit(f"{self.name}: {line.decode()} cannot be done or is wrong")
        return max(seconds)

    def close(self):
        for rank in self.ranks:
            rank.close()
        self.launcher.wait(60)


def measure(programs, hosts, op, size, rounds):
    task = [op, "f32", "comm", "whole", size, 0]
    seconds, sent = [[] for _ in programs], [[] for _ in programs]
    for program in programs:
        program.do(*task, 0)
    times = max(1, min(100, (16 << 20) // size))
    for _ in range(rounds):
        for i, program in enumerate(programs):
            before = hosts.sent()
            seconds[i].append(program.do(*task, times))
            # worker.c runs a tenth more, to warm up
            sent[i].append((hosts.sent() - before) / (times + (1 + times // 10 if times > 1 else 0)) / size)
    return [(statistics.median(s), statistics.median(b)) for s, b in zip(seconds, sent)]


def parse():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("bench/hosts.py", description=__doc__, formatter_class=plain)
    parser.add_argument("worlds", nargs="+", metavar="HOSTSxRANKS")
    parser.add_argument("--build", default="build", metavar="FOLDERS", help="builds of addend (build)")
    parser.add_argument("--sizes", default="4096,1048576,67108864", metavar="BYTES", help="of values")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each program (5)")
    parser.add_argument("--netem", default="", metavar="WORDS", help="of every interface, as tc netem takes them")
    return parser.parse_args()


def measure_world(world, options):
    count, ranks = (int(number) for number in world.split("x"))
    builds = [os.path.abspath(build) for build in options.build.split(",")]
    paths = [f"{build}/peers/bench_rank" for build in builds] + [f"{builds[0]}/peers/mpi_openmpi"]
    hosts, programs = Hosts(count, options.netem), []
    try:
        for number, path in enumerate(paths):
            programs.append(Program(hosts, ranks, path, number))
        for op in OPERATIONS:
            for size in (int(size) for size in options.sizes.split(",")):
                unit = size // (count * ranks * 4) * count * ranks * 4
                found = measure(programs, hosts, op, unit, options.rounds)
                cells = [f"{1e3 * seconds:.3f} ms {sent:.2f}" for seconds, sent in found]
                print(f"| {count} x {ranks} | {op} | {unit} | " + " | ".join(cells) + " |", flush=True)
    finally:
        for program in programs:
            program.close()
        hosts.close()


def main():
    options = parse()
    if os.geteuid():
        raise SystemExit("bench/hosts.py: network namespaces need root")
    for program in ("ip", "tc", "mpirun.openmpi"):
        if not shutil.which(program):
            raise SystemExit(f"bench/hosts.py: no {program} here")
    names = [f"addend {build}" for build in options.build.split(",")] + ["Open MPI"]
    print("| hosts x ranks | operation | bytes | " + " | ".join(names) + " |\n" + "|---" * (3 + len(names)) + "|")
    for world in options.worlds:
        measure_world(world, options)


if __name__ == "__main__":
    sys.exit(main())
