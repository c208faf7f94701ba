"""The work: does what programs do in a mounted directory, and measures the time."""

import multiprocessing
import os
import random
import subprocess
import tarfile
import time

MIB = 1 << 20
STREAM_BYTES = 1024 * MIB
PAGE = 4096
OVERWRITES = 16_384
RANDOM_READS = 2_000
# IO500's "hard" workloads: IOR's records and mdtest's files have these odd sizes.
STRIDE = 47_008
STRIDES = 4_096
SMALL_BYTES = 3_901
SMALL_FILES = 4_000
EMPTY_FILES = 20_000
PROCESSES = 2


def all_of_it(system, archive):
    """One round on one system. The order matters: cold measurements come right after a restart."""
    path = lambda name: os.path.join(system.mount, name)
    result = {}
    result["stream write"] = stream_write(path("stream"))
    result["create"] = create(path("empty"), EMPTY_FILES, b"")
    result["small write"] = create(path("read"), SMALL_FILES, os.urandom(SMALL_BYTES))
    create(path("stat"), SMALL_FILES, os.urandom(SMALL_BYTES))

    system.restart_cold()
    result["small stat"] = per_second(SMALL_FILES, lambda: stat_all(path("stat")))
    result["small read"] = per_second(SMALL_FILES, lambda: read_all(path("read")))
    result["list cold"] = seconds(lambda: shell("ls", "-l", path("empty")))
    result["list warm"] = seconds(lambda: shell("ls", "-l", path("empty")))
    result["random read"] = together(random_reads, path("stream"), RANDOM_READS)[0]
    result["stream read"] = stream_read(path("stream"))

    system.restart_cold()
    result["overwrite"], result["overwrite longest"] = together(overwrites, path("stream"), OVERWRITES)
    open(path("strided"), "wb").close()
    rate, _ = together(strided_writes, path("strided"), STRIDES)
    result["strided write"] = rate * STRIDE / MIB
    os.mkdir(path("tree"))
    result["untar"] = seconds(lambda: shell("tar", "-xf", archive, "-C", path("tree")))
    result["remove"] = seconds(lambda: shell("rm", "-rf", path("tree")))
    return result


def seconds(action):
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def per_second(count, action):
    return count / seconds(action)


def shell(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def stream_write(path):
    block = os.urandom(MIB)

    def write():
        with open(path, "wb", buffering=0) as file:
            for _ in range(STREAM_BYTES // MIB):
                file.write(block)
            os.fsync(file.fileno())

    return STREAM_BYTES / MIB / seconds(write)


def stream_read(path):
    buffer = bytearray(MIB)

    def read():
        with open(path, "rb", buffering=0) as file:
            left = STREAM_BYTES
            while left > 0:
                got = file.readinto(buffer)
                assert got > 0
                left -= got

    return STREAM_BYTES / MIB / seconds(read)


def create(directory, count, content):
    os.mkdir(directory)

    def make():
        for number in range(count):
            descriptor = os.open(f"{directory}/file{number:06}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            if content:
                os.write(descriptor, content)
            os.close(descriptor)

    return per_second(count, make)


def stat_all(directory):
    for number in range(SMALL_FILES):
        assert os.stat(f"{directory}/file{number:06}").st_size == SMALL_BYTES


def read_all(directory):
    for number in range(SMALL_FILES):
        descriptor = os.open(f"{directory}/file{number:06}", os.O_RDONLY)
        assert len(os.read(descriptor, SMALL_BYTES + 1)) == SMALL_BYTES
        os.close(descriptor)


def together(job, path, count):
    """Runs `job` in processes that start together. Returns calls per second, and the longest in ms."""
    start = multiprocessing.Barrier(PROCESSES + 1)
    answers = multiprocessing.SimpleQueue()
    workers = [
        multiprocessing.Process(target=one_of_them, args=(job, path, number, count, start, answers))
        for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    start.wait(timeout=60)
    begin = time.perf_counter()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    rate = PROCESSES * count / (time.perf_counter() - begin)
    return rate, 1000 * max(answers.get() for _ in workers)


def one_of_them(job, path, number, count, start, answers):
    descriptor = os.open(path, os.O_RDWR)
    call = job(descriptor, number, random.Random(number))
    start.wait(timeout=60)
    longest = 0.0
    for index in range(count):
        longest = max(longest, seconds(lambda: call(index)))
    if job is not random_reads:
        os.fsync(descriptor)
    answers.put(longest)


def overwrites(descriptor, _, chance):
    page = os.urandom(PAGE)
    return lambda _: os.pwrite(descriptor, page, chance.randrange(STREAM_BYTES // PAGE) * PAGE)


def random_reads(descriptor, _, chance):
    return lambda _: os.pread(descriptor, PAGE, chance.randrange(STREAM_BYTES // PAGE) * PAGE)


def strided_writes(descriptor, number, _):
    record = os.urandom(STRIDE)
    return lambda index: os.pwrite(descriptor, record, (index * PROCESSES + number) * STRIDE)


def make_archive(path):
    """An archive that is the same each time: 3,000 files, most of them small, as in a source tree."""
    chance = random.Random(1)
    scratch = f"{path}.content"
    with tarfile.open(path, "w") as archive:
        for directory in range(200):
            for number in range(15):
                size = chance.choice([700, 2_500, 6_000, 15_000, 30_000, 70_000])
                with open(scratch, "wb") as file:
                    file.write(chance.randbytes(size))
                archive.add(scratch, f"directory{directory:03}/file{number:02}")
    os.unlink(scratch)
    return path
