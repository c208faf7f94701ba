#!/usr/bin/env python3
"""Runs the same work on Shale, GlusterFS, MooseFS and ext4, and prints one table.

    sudo scripts/compare/compare.py [--rounds 3] [--only shale,ext4] [--shale target/release/shale]

All four keep their data on the disk of --dir, on this one machine, without copies on other disks.
GlusterFS and MooseFS are installed from Debian if they are missing. Their real servers run in
separate namespaces (mounts, network, processes), with empty directories in place of /etc/mfs,
/var/lib/glusterd and the like: existing volumes aren't touched, and everything ends with the
script, even after Ctrl-C. Each round creates every system anew, one after the other, so that all of
them face the same load from other programs. The table shows medians over the rounds.

Needs Debian 12 or newer, root, /dev/fuse, and 12 GiB of free disk space.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import systems
import work

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
FREE_BYTES_NEEDED = 12 << 30
PACKAGES = {
    "GlusterFS": ["glusterfs-server", "glusterfs-client", "iproute2", "psmisc"],
    "MooseFS": ["moosefs-master", "moosefs-chunkserver", "moosefs-client", "iproute2"],
    "ext4": ["e2fsprogs", "iproute2"],
    "Shale": ["fuse3", "iproute2"],
}
# Lines of the table, and whether higher or lower values are better.
LINES = [
    ("stream write", "write 1 GiB in order, then fsync (MiB/s)", "higher"),
    ("stream read", "read 1 GiB in order, cold (MiB/s)", "higher"),
    ("strided write", "two processes write one file in turns of 47,008 bytes, then fsync (MiB/s)", "higher"),
    ("overwrite", "4 KiB overwrites at random right after a restart, two processes, then fsync (per second)", "higher"),
    ("overwrite longest", "the longest single one of these overwrites (ms)", "lower"),
    ("random read", "4 KiB reads at random, cold, two processes (per second)", "higher"),
    ("create", "create 20,000 empty files in one directory (per second)", "higher"),
    ("small write", "create and write files of 3,901 bytes (per second)", "higher"),
    ("small stat", "stat files of 3,901 bytes, cold (per second)", "higher"),
    ("small read", "read files of 3,901 bytes, cold (per second)", "higher"),
    ("list cold", "`ls -l` of 20,000 files, cold (s)", "lower"),
    ("list warm", "`ls -l` of the same again (s)", "lower"),
    ("untar", "unpack 3,000 files of 60 MiB in 200 directories (s)", "lower"),
    ("remove", "`rm -rf` of them (s)", "lower"),
]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--only", default="", help="some of the systems, like shale,ext4")
    arguments.add_argument("--shale", default=os.path.join(TREE, "target/release/shale"), help="the program under test")
    arguments.add_argument("--dir", default="/var/tmp", help="a directory on the disk that all use")
    arguments.add_argument("--inside", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    wanted = [name for name in systems.ALL if not options.only or name.lower() in options.only.lower().split(",")]
    if options.inside:
        run(options, wanted)
    else:
        refuse_what_cannot_work(options, wanted)
        install(wanted)
        enclose(options)


def refuse_what_cannot_work(options, wanted):
    def refuse(text):
        sys.exit(f"compare: {text}")

    if os.geteuid() != 0:
        refuse("mounting and installing packages need root; run it with sudo")
    if not os.path.exists("/dev/fuse"):
        refuse("there is no /dev/fuse; load the module with `modprobe fuse`, or give the container --device /dev/fuse")
    if shutil.which("apt-get") is None:
        refuse("the other systems are installed from Debian, and there is no apt-get here")
    if not wanted:
        refuse(f"--only {options.only} names no system; there are {', '.join(systems.ALL)}")
    if "Shale" in wanted and not os.access(options.shale, os.X_OK):
        refuse(f"{options.shale} isn't built; run `make build`, or name a program with --shale")
    free = shutil.disk_usage(options.dir).free
    if free < FREE_BYTES_NEEDED:
        refuse(f"{options.dir} has {free >> 30} GiB left; 12 GiB are needed (--dir chooses another place)")


def install(wanted):
    """Installs missing packages without letting them start their services."""
    missing = sorted(
        package
        for package in {package for name in wanted for package in PACKAGES[name]}
        if subprocess.run(["dpkg", "-s", package], capture_output=True).returncode != 0
    )
    if not missing:
        return
    say(f"installing {' '.join(missing)}; they stay installed afterwards")
    policy = "/usr/sbin/policy-rc.d"
    ours = not os.path.lexists(policy)
    if ours:
        with open(policy, "w") as file:
            file.write("#!/bin/sh\nexit 101\n")
        os.chmod(policy, 0o755)
    try:
        apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-y", "--no-install-recommends"]
        subprocess.run(["apt-get", "-qq", "update"], check=True)
        subprocess.run(apt + ["install"] + missing, check=True, stdout=subprocess.DEVNULL)
    finally:
        if ours:
            os.unlink(policy)


def enclose(options):
    """Runs this script again in new namespaces. When these end, all servers and mounts end, too."""
    # Set even if the script runs in the background, where shells ignore Ctrl-C.
    for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    directory = tempfile.mkdtemp(prefix="shale-compare.", dir=options.dir)
    # The shell is the namespace's first process: it reaps servers that end.
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@" & wait $!', "sh"]
    command += [sys.executable, os.path.abspath(__file__), "--inside", directory]
    command += ["--rounds", str(options.rounds), "--only", options.only, "--shale", os.path.abspath(options.shale)]
    child = subprocess.Popen(command, start_new_session=True)
    try:
        code = child.wait()
    finally:
        child.kill()
        child.wait()
        remove(directory)
    sys.exit(code)


def remove(directory):
    # The kernel removes the last mounts a moment after the last process of their namespace ends.
    for _ in range(50):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(0.2)
    say(f"{directory} couldn't be removed")


def run(options, wanted):
    systems.prepare_namespace(options.inside)
    archive = work.make_archive(os.path.join(options.inside, "files.tar"))
    results = {name: [] for name in wanted}
    for number in range(options.rounds):
        # Each round starts with another system.
        turn = number % len(wanted)
        for name in wanted[turn:] + wanted[:turn]:
            say(f"round {number + 1} of {options.rounds}: {name}")
            system = systems.ALL[name](os.path.join(options.inside, name), options.shale)
            system.make()
            try:
                result = work.all_of_it(system, archive)
            finally:
                system.end()
            results[name].append(result)
            say("  " + json.dumps({line: round(value, 2) for line, value in result.items()}))
    print_table(results, options)


def print_table(results, options):
    names = list(results)
    versions = ", ".join(f"{name} {systems.ALL[name].version(options.shale)}" for name in names)
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown CPU")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    print(f"\n{versions}\n{os.cpu_count()} cores of {cpu}, {memory} GiB, Linux {os.uname().release}, {time.strftime('%Y-%m-%d')}, {options.rounds} rounds, medians\n")
    print(f"| Work | {' | '.join(names)} | Better |")
    print(f"|---|{'---:|' * len(names)}---|")
    for key, text, better in LINES:
        medians = [statistics.median(result[key] for result in results[name]) for name in names]
        print(f"| {text} | {' | '.join(shown(value) for value in medians)} | {better} |")


def shown(value):
    """Rounds to three significant figures."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2f}"


def say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
