"""The file systems: how to make, mount, restart and stop each. Only one at a time is on the disk."""

import os
import shutil
import subprocess
import time

# GlusterFS and MooseFS don't serve on 127.0.0.1. The address exists only in the namespace.
ADDRESS = "10.255.0.1"
START_SECONDS_MAX = 60


def call(*command, **options):
    """Runs a command and waits for it; if it fails, the error includes its output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def prepare_namespace(directory):
    """Gives the servers a separate network, and empty directories in place of the machine's."""
    call("mount", "--make-rprivate", "/")
    call("ip", "link", "set", "lo", "up")
    call("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
    if os.path.exists("/var/lib/mfs/metadata.mfs.empty"):
        shutil.copy("/var/lib/mfs/metadata.mfs.empty", os.path.join(directory, "metadata.mfs.empty"))
    for path in ["/etc/mfs", "/var/lib/mfs", "/var/lib/glusterd", "/var/log/glusterfs", "/run/gluster"]:
        if os.path.isdir(path) or path == "/run/gluster":
            os.makedirs(path, exist_ok=True)
            call("mount", "-t", "tmpfs", "none", path)


def package_version(package):
    return call("dpkg-query", "--show", "--showformat=${Version}", package).strip()


class System:
    """A system in its own directory, mounted at `mount`."""

    def __init__(self, directory, shale):
        self.directory = directory
        self.mount = os.path.join(directory, "mnt")
        self.shale = shale

    def make(self):
        os.makedirs(self.mount)
        self.create()
        self.start()
        self.wait_until_it_serves()

    def restart_cold(self):
        """Restarts the system with all caches empty: the kernel's, the servers' and the clients'."""
        self.stop()
        call("sync", "-f", self.directory)
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
        self.start()
        self.wait_until_it_serves()

    def end(self):
        self.stop()
        shutil.rmtree(self.directory)
        os.sync()

    def wait_until_it_serves(self):
        end = time.monotonic() + START_SECONDS_MAX
        probe = os.path.join(self.mount, "probe")
        while True:
            try:
                with open(probe, "a+b", buffering=0) as file:
                    file.write(b"x")
                    os.fsync(file.fileno())
                    file.seek(0)
                    assert file.read(1) == b"x"
                    return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)


class Shale(System):
    def create(self):
        self.options = ["--mount", self.mount, "--nsd-size", "6G"]

    def start(self):
        call(self.shale, "up", "--dir", self.path(), *self.options)
        self.options = []

    def stop(self):
        call(self.shale, "down", "--dir", self.path())

    def path(self):
        return os.path.join(self.directory, "node")

    @staticmethod
    def version(shale):
        return call(shale, "--version").split()[-1]


class Ext4(System):
    """On a preallocated image, as Shale's NSD is a preallocated file."""

    def create(self):
        self.image = os.path.join(self.directory, "image")
        call("fallocate", "-l", "6G", self.image)
        call("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.image)

    def start(self):
        call("mount", "-o", "loop", self.image, self.mount)
        # Otherwise the image's pages would be cached twice.
        call("losetup", "--direct-io=on", call("findmnt", "-no", "SOURCE", self.mount).strip())

    def stop(self):
        call("umount", self.mount)

    @staticmethod
    def version(_):
        return f"of Linux {os.uname().release}"


class GlusterFs(System):
    """One brick, default options."""

    def create(self):
        os.makedirs(self.path())
        call("glusterd")
        call("gluster", "--mode=script", "volume", "create", "compare", f"{ADDRESS}:{self.path()}", "force")

    def start(self):
        call("gluster", "--mode=script", "volume", "start", "compare")
        call("mount", "-t", "glusterfs", f"{ADDRESS}:/compare", self.mount)

    def stop(self):
        call("umount", self.mount)
        call("gluster", "--mode=script", "volume", "stop", "compare")

    def end(self):
        self.stop()
        call("gluster", "--mode=script", "volume", "delete", "compare")
        call("killall", "glusterd")
        end = time.monotonic() + START_SECONDS_MAX
        while subprocess.run(["pidof", "glusterd"], capture_output=True).returncode == 0 and time.monotonic() < end:
            time.sleep(0.1)
        shutil.rmtree(self.directory)
        os.sync()

    def path(self):
        return os.path.join(self.directory, "brick")

    @staticmethod
    def version(_):
        return package_version("glusterfs-server")


class MooseFs(System):
    """One master, one chunk server, one copy, default options."""

    def create(self):
        data = os.path.join(self.directory, "chunks")
        for name in ["master", "chunkserver", "chunks"]:
            os.makedirs(os.path.join(self.directory, name))
        empty = os.path.join(os.path.dirname(self.directory), "metadata.mfs.empty")
        shutil.copy(empty, os.path.join(self.directory, "master", "metadata.mfs"))
        as_root = ["WORKING_USER = root", "WORKING_GROUP = root"]
        self.write("exports", ["* / rw,alldirs,admin,maproot=0:0"])
        self.write("topology", [])
        self.write("hdd", [data])
        self.write("master.cfg", as_root + [
            f"DATA_PATH = {self.directory}/master",
            f"EXPORTS_FILENAME = {self.directory}/exports",
            f"TOPOLOGY_FILENAME = {self.directory}/topology",
        ])
        self.write("chunkserver.cfg", as_root + [
            f"DATA_PATH = {self.directory}/chunkserver",
            f"HDD_CONF_FILENAME = {self.directory}/hdd",
            f"MASTER_HOST = {ADDRESS}",
            "MASTER_RECONNECTION_DELAY = 1",
        ])

    def write(self, name, lines):
        with open(os.path.join(self.directory, name), "w") as file:
            file.write("\n".join(lines) + "\n")

    def start(self):
        for name in ["master", "chunkserver"]:
            call(f"mfs{name}", "-c", f"{self.directory}/{name}.cfg", "start")
        call("mfsmount", self.mount, "-H", ADDRESS)

    def stop(self):
        call("umount", self.mount)
        for name in ["chunkserver", "master"]:
            call(f"mfs{name}", "-c", f"{self.directory}/{name}.cfg", "stop")

    @staticmethod
    def version(_):
        return package_version("moosefs-master")


ALL = {"Shale": Shale, "GlusterFS": GlusterFs, "MooseFS": MooseFs, "ext4": Ext4}
