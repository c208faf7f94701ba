//! Mounts of nodes that have neither the metadata nor the data, beside one node alone; and several mounts at once.

use super::daemons::{Cluster, Daemon};
use super::loopback::round_trip;
use super::processes::{Look, Spent};
use super::{
    Clusters, Compared, DEPTH, FILES, NSD, ONE_COPY, OTHER, READS, STREAM, SYNCED_FILES, Wanted,
};
use crate::measure::{Goal, Line, Unit, note, pairs, pairs_of, per_second, print};
use crate::paths;
use crate::workers::run_all;
use model::Result;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// NSDs of the nodes: the last one has none, so that all data of its mount come over connections.
const NSDS: [u32; 3] = [1, 1, 0];
/// What encrypts file data, too.
const CIPHER: &str = "TLS_AES_128_GCM_SHA256";

const LINES: Compared = Compared {
    create: (
        "remote mount: create+close, two processes",
        Unit::PerSecond,
        Goal::Value(8_000.0),
    ),
    unlink: (
        "remote mount: unlink, two processes",
        Unit::PerSecond,
        Goal::None,
    ),
    list: (
        "remote mount: ls -l of 20,000 files, cold",
        Unit::PerSecond,
        Goal::Value(25_000.0),
    ),
    write: (
        "remote mount: write stream 1 MiB, fsync",
        Unit::BytesPerSecond,
        Goal::Ratio(0.6),
    ),
    read: (
        "remote mount: read stream 1 MiB, cold",
        Unit::BytesPerSecond,
        Goal::Ratio(0.6),
    ),
    random: (
        "remote mount: read random 4 KiB, depth 16, cold",
        Unit::PerSecond,
        Goal::Ratio(0.5),
    ),
};
const SYNCED: Wanted = (
    "remote mount: create, write 4 KiB, fsync; longer by",
    Unit::Microseconds,
    Goal::AtMost(300.0),
);
const TOGETHER: &str = "three mounts: create+close, own directories";
const ENCRYPTED_WRITE: Wanted = (
    "remote mount, encrypted: write stream, fsync",
    Unit::BytesPerSecond,
    Goal::Ratio(0.4),
);
const ENCRYPTED_READ: Wanted = (
    "remote mount, encrypted: read stream, cold",
    Unit::BytesPerSecond,
    Goal::Ratio(0.4),
);

/// Small operations of which is told what limits them.
struct Small {
    what: &'static str,
    count: u64,
    /// How many are under way at the same time.
    at_once: u64,
    /// About as many bytes go to another node for one of them, and come back.
    message: (usize, usize),
}

const RANDOM_READS: Small = Small {
    what: "random reads",
    count: READS,
    at_once: DEPTH,
    message: (128, 4_096 + 128),
};
/// Three times as many as in a run, because CPU time is counted in hundredths of a second.
const SYNCED_CREATES: Small = Small {
    what: "synced creates",
    count: 3 * SYNCED_FILES,
    at_once: 1,
    message: (4_096 + 256, 128),
};

impl Clusters {
    /// Mounts of nodes that don't own the file system.
    pub(super) fn remote_mount(&self) -> Result<()> {
        let own = [SYNCED.0, TOGETHER, ENCRYPTED_WRITE.0, ENCRYPTED_READ.0];
        if !self.wanted(&[&LINES.names()[..], &own].concat()) {
            return Ok(());
        }
        let dir = self.folder("remote")?;
        let alone = Daemon::alone(&dir.join("alone"), ONE_COPY, 1, NSD)?;
        let cluster = Cluster::with(&dir, &NSDS, ONE_COPY, NSD)?;
        let (owner, others) = cluster.owner_and_others()?;
        let (lister, remote) = (others[0].mount(), others[1].mount());
        // The one that lists hasn't seen the files before.
        self.compare(&LINES, (&remote, &lister), &alone.mount());
        if self.wanted(&[LINES.write.0, LINES.read.0]) {
            limits_of_streams("a remote mount", &remote, &processes(&cluster)?)?;
            limits_of_streams("one node", &alone.mount(), &alone.processes()?)?;
        }
        if self.wanted(&[LINES.random.0]) {
            // As before each run of the line: what is read isn't in the client's memory.
            paths::read_stream(&remote.join("other"), OTHER);
            let read = || paths::read_random(&remote.join("stream"), STREAM, READS, DEPTH);
            limits_of_small(&cluster, &RANDOM_READS, read)?;
        }
        if self.wanted(&[SYNCED.0]) {
            let each = |root: &Path| 1e6 / paths::synced_files(&self.fresh(root), SYNCED_FILES);
            let (far, local) = pairs(self.runs, || each(&remote), || each(&owner.mount()));
            let longer = far.iter().zip(&local).map(|(a, b)| a - b).collect();
            self.print_beside("its owner's mount", SYNCED, (longer, local));
            let folder = self.fresh(&remote);
            let create = || paths::write_synced(&folder, SYNCED_CREATES.count);
            limits_of_small(&cluster, &SYNCED_CREATES, create)?;
            paths::remove_folder(&folder);
        }
        if self.wanted(&[TOGETHER]) {
            self.together(&cluster)?;
        }
        // The last ones: connections are protected in another way from here on.
        if self.wanted(&[ENCRYPTED_WRITE.0, ENCRYPTED_READ.0]) {
            cluster.protect(CIPHER)?;
            let [write, read] = self.streams(&remote, &alone.mount());
            self.print(ENCRYPTED_WRITE, write);
            self.print(ENCRYPTED_READ, read);
        }
        Ok(())
    }

    /// Programs that create through all mounts at once, beside one on the owner's node and one elsewhere; and what limits.
    fn together(&self, cluster: &Cluster) -> Result<()> {
        let (owner, others) = cluster.owner_and_others()?;
        let processes = processes(cluster)?;
        let mounts: Vec<PathBuf> = cluster.nodes().iter().map(Daemon::mount).collect();
        let each = FILES / 4;
        let create = |mounts: &[PathBuf]| {
            let folders: Vec<PathBuf> = mounts.iter().map(|it| self.fresh(it)).collect();
            let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
            let wall = run_all("create", &folders, each).expect("works");
            per_second(each * folders.len() as u64, wall)
        };
        let spent = RefCell::new(Spent::nothing(processes.len()));
        let look = || Look::at(&processes).expect("all daemons run");
        let all = || {
            let before = look();
            let speed = create(&mounts);
            spent.borrow_mut().add(&before, &look());
            mounts.iter().for_each(|mount| paths::settle(mount));
            speed
        };
        let one = |node: &Daemon| {
            let mount = [node.mount()];
            let speed = create(&mount);
            paths::settle(&mount[0]);
            speed
        };
        let [beside_owners, beside_other] =
            pairs_of(self.runs, || [all(); 2], || [one(owner), one(others[1])]);
        for (values, floor_name, goal) in [
            (beside_owners, "one, its owner's", Goal::Ratio(2.0)),
            (beside_other, "one, remote", Goal::None),
        ] {
            print(&Line {
                name: TOGETHER.into(),
                floor_name,
                unit: Unit::PerSecond,
                measured: values.0,
                floor: values.1,
                goal,
            });
        }
        note(&format!(
            "three mounts on {} CPUs: {}",
            std::thread::available_parallelism().map_or(1, usize::from),
            spent.borrow().told(&processes)
        ));
        Ok(())
    }
}

/// A write stream that was played once, in seconds.
pub(super) struct Streamed {
    pub(super) wall: f64,
    /// CPU time of the machine.
    pub(super) busy: f64,
}

/// What limits the streams of a mount: CPU time, or waits. Returns what the one that writes took.
pub(super) fn limits_of_streams(
    whose: &str,
    mount: &Path,
    processes: &[(String, u32)],
) -> Result<Streamed> {
    let file = mount.join("stream");
    let once = |what: &str, stream: fn(&Path, u64) -> f64| {
        let (speed, spent) = Spent::by(processes, || stream(&file, STREAM))?;
        let mebibytes = speed / f64::from(1 << 20);
        note(&format!(
            "{what} stream of {whose}, once more, {mebibytes:.0} MiB/s: {}",
            spent.told(processes)
        ));
        Ok::<_, model::Error>(Streamed {
            wall: STREAM as f64 / speed,
            busy: spent.busy(),
        })
    };
    let written = once("write", paths::write_stream)?;
    once("read", paths::read_stream)?;
    Ok(written)
}

/// What limits small operations of a mount: CPU time, or waits. Beside it, what a message there and back takes without
/// daemons. `work` does them, and says how many a second.
fn limits_of_small(cluster: &Cluster, small: &Small, work: impl FnOnce() -> f64) -> Result<()> {
    let processes = processes(cluster)?;
    let (speed, spent) = Spent::by(&processes, work)?;
    let (asked, answered) = small.message;
    note(&format!(
        "{} of a remote mount, once more, {speed:.0} /s, {:.0} µs each: {}; a message there and back over the loopback, \
         without daemons: {:.0} µs",
        small.what,
        small.at_once as f64 * 1e6 / speed,
        spent.told_of_each(small.count, &processes),
        round_trip(asked, answered)?
    ));
    Ok(())
}

/// Who uses CPU time: daemons, members of etcd, and the programs that this one has started.
pub(super) fn processes(cluster: &Cluster) -> Result<Vec<(String, u32)>> {
    let (owner, manager) = cluster.until_owner_and_manager()?;
    let mut all = vec![("programs".to_owned(), std::process::id())];
    for (at, node) in cluster.nodes().iter().enumerate() {
        let mut name = format!("n{}", at + 1);
        if at == owner {
            name += " (owner)";
        }
        if at == manager {
            name += " (manager)";
        }
        all.push((name, node.pid()?));
        for etcd in node.children("etcd")? {
            all.push((format!("etcd of n{}", at + 1), etcd));
        }
    }
    Ok(all)
}
