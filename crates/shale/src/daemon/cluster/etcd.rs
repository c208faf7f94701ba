//! The member of etcd that a daemon of a quorum node runs: started, started again when it ends, and ended with the
//! daemon, however that ends.
//!
//! *The authorities change* that the cluster trusts: etcd reads its certificate and key with each connection, but the
//! authorities' file only when it starts. So it is ended and started again ([`EtcdHandle::start_again`]).
//!
//! *The node was expelled by hand*, and its daemon waits until it is let in: etcd rests meanwhile ([`EtcdHandle::rest`]), as
//! the others count it as away, unless they are too few without it.
//!
//! *Its data are gone* (`DIR/etcd`): a member that has run is never started without them. Whoever founded the etcd would
//! found another one with the same name, and whoever joined it would vote without knowing what it has agreed to; either
//! way acknowledged facts would be lost. node.toml says whether it has run ([`EtcdConfig::began`]).
//!
//! *Its disk is full*: it ends when it can't write its log, its database or a snapshot, and is started again until it can.
//! What it has acknowledged is in its log, which is allocated 64 MiB at a time. Nothing has to be put right by hand: when it
//! starts it cuts a record off that it couldn't write whole, for which it needs room for a copy of the log's last file, puts a
//! broken snapshot aside for the one before, and removes copies of the database that it had begun. Until there is room it may
//! complain of a log that can't be repaired.
//!
//! *Its disk hangs*: it may not end then, not even when it is killed. The daemon gives up waiting for it, so that it ends
//! itself and another one can have the node's directory; a second etcd can't use the first one's data, which are locked.
//!
//! [`EtcdConfig::began`]: crate::daemon::config::EtcdConfig::began

use crate::daemon::config::ClusterConfig;
use crate::daemon::member::checks::{ETCD, no_etcd};
use crate::daemon::member::etcd_members::data_directory;
use crate::daemon::supervisor;
use crate::directory::{log, private};
use coordination::etcd::{EtcdBegin, EtcdServer};
use model::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where it writes what an operator may want to know.
pub const LOG: &str = "etcd.log";
/// Pause before it is started again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// One that ran for so long starts again after the first pause.
const RAN_WELL: Duration = Duration::from_secs(60);
/// How long it may take to end when it is asked to, and again when it is killed.
const END_MAX: Duration = Duration::from_secs(5);
/// How often its end is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A running etcd. Dropping it ends the process.
pub struct EtcdProcess {
    shared: Arc<Shared>,
    /// The thread that started the process: the kernel ends the process with it.
    keeper: Option<JoinHandle<()>>,
}

struct Shared {
    dir: PathBuf,
    server: EtcdServer,
    /// It is started with its data only.
    has_begun: AtomicBool,
    /// It is to end, and to be started again.
    restarts: AtomicBool,
    /// It is to end, and not to be started as long as this is set.
    rests: AtomicBool,
    /// How often it was started.
    starts: AtomicU64,
    /// The authorities' file as it was when it was started last.
    believes: Mutex<String>,
    ends: Mutex<bool>,
    changed: Condvar,
}

/// Asks for a running etcd to be started again. Doesn't keep it running.
#[derive(Clone)]
pub struct EtcdHandle {
    shared: Arc<Shared>,
}

impl EtcdHandle {
    /// The authorities (PEM) that it believes.
    pub fn believes(&self) -> String {
        let believes = self.shared.believes.lock();
        believes.unwrap_or_else(|it| it.into_inner()).clone()
    }

    /// How often it was started.
    pub fn starts(&self) -> u64 {
        self.shared.starts.load(Ordering::SeqCst)
    }

    /// Has it end, politely, and start again. Returns at once; [`EtcdHandle::starts`] says when it has been started.
    pub fn start_again(&self) {
        self.shared.restarts.store(true, Ordering::SeqCst);
    }

    /// Has it end, politely, and stay away as long as `rests`; from then on it runs again. Returns at once.
    pub fn rest(&self, rests: bool) {
        self.shared.rests.store(rests, Ordering::SeqCst);
    }

    /// Whether it is to stay away.
    pub fn rests(&self) -> bool {
        self.shared.rests.load(Ordering::SeqCst)
    }
}

/// How this node's member of etcd begins if it has no data.
///
/// # Errors
/// `Corrupt`: it has run, and its data are gone.
pub fn beginning(dir: &Path, cluster: &ClusterConfig) -> Result<EtcdBegin> {
    let has_data = has_data(&data_directory(dir));
    let joins = cluster
        .etcd
        .as_ref()
        .is_some_and(|own| !own.joins.is_empty());
    match (has_begun(cluster), joins) {
        (true, _) if !has_data => Err(lost(dir)),
        (true, _) | (false, true) => Ok(EtcdBegin::Join),
        (false, false) => {
            let token = cluster.id.clone();
            Ok(EtcdBegin::New { token })
        }
    }
}

/// Whether this node's member of etcd has run. That of a node that has founded its cluster has, whatever node.toml says.
fn has_begun(cluster: &ClusterConfig) -> bool {
    let own = cluster.etcd.as_ref();
    own.is_some_and(|own| own.began || (own.joins.is_empty() && !cluster.founding))
}

/// Whether there are data to go on from: etcd begins anew without its log, whatever else is there.
fn has_data(directory: &Path) -> bool {
    let log = std::fs::read_dir(directory.join("member").join("wal"));
    log.is_ok_and(|mut files| files.next().is_some())
}

fn lost(dir: &Path) -> Error {
    let text = format!(
        "the data of this node's member of etcd ({}) are gone; without them it would make the cluster forget what it has \
         agreed to, so it isn't started: put the directory back as it was, or join again as a new node: with an empty \
         --dir and a token of another node (`shale cluster join-token`, `shale node join … --quorum`)",
        data_directory(dir).display()
    );
    Error::new(ErrorKind::Corrupt, text)
}

impl EtcdProcess {
    /// Starts it. Returns once the process runs; whether it answers is another question.
    ///
    /// # Errors
    /// `NotFound`: the program isn't installed; `Corrupt`: its data are gone; others of the system.
    pub fn start(dir: &Path, cluster: &ClusterConfig, server: EtcdServer) -> Result<Self> {
        private::make_private_directory(&server.data_directory).map_err(|error| {
            Error::new(ErrorKind::Unavailable, error.to_string())
                .while_doing(format!("making {}", server.data_directory.display()))
        })?;
        let shared = Arc::new(Shared {
            dir: dir.to_path_buf(),
            server,
            has_begun: AtomicBool::new(has_begun(cluster)),
            restarts: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            starts: AtomicU64::new(0),
            believes: Mutex::default(),
            ends: Mutex::new(false),
            changed: Condvar::new(),
        });
        let (tell, told) = std::sync::mpsc::channel();
        let of_keeper = shared.clone();
        let keeper = std::thread::Builder::new()
            .name("etcd".into())
            .spawn(move || {
                let begun = begin(&of_keeper);
                let child = match begun {
                    Ok(child) => {
                        let _ = tell.send(Ok(()));
                        child
                    }
                    Err(error) => {
                        let _ = tell.send(Err(error));
                        return;
                    }
                };
                keep(child, &of_keeper);
            })
            .map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))?;
        told.recv().unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Unavailable,
                "the thread that runs etcd has ended",
            ))
        })?;
        Ok(Self {
            shared,
            keeper: Some(keeper),
        })
    }

    /// What can ask for it to be started again.
    pub fn handle(&self) -> EtcdHandle {
        EtcdHandle {
            shared: self.shared.clone(),
        }
    }

    /// The member has answered: from now on it is started again with its data only.
    pub fn has_begun(&self) {
        self.shared.has_begun.store(true, Ordering::Relaxed);
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        *self.shared.ends.lock().unwrap_or_else(|it| it.into_inner()) = true;
        self.shared.changed.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // Ends within a few times END_MAX, whatever the process does.
            let _ = keeper.join();
        }
    }
}

impl Shared {
    /// Waits that long at most; whether the end was asked for.
    fn ends_within(&self, time: Duration) -> bool {
        let ends = self.ends.lock().unwrap_or_else(|it| it.into_inner());
        let waited = self.changed.wait_timeout_while(ends, time, |ends| !*ends);
        *waited.unwrap_or_else(|it| it.into_inner()).0
    }
}

/// Watches the process until the daemon ends, and starts it again whenever it has ended by itself.
fn keep(mut child: Child, shared: &Shared) {
    let mut pause = PAUSE_MIN;
    loop {
        let begun = Instant::now();
        let ended = loop {
            if shared.ends_within(LOOK_EVERY) {
                end(&mut child);
                return;
            }
            let rests = shared.rests.load(Ordering::SeqCst);
            if rests || shared.restarts.load(Ordering::SeqCst) {
                if end(&mut child) {
                    break None;
                }
                // Two would be one too many. It was killed, so it is started again when it has ended.
                shared.restarts.store(false, Ordering::SeqCst);
            }
            match child.try_wait() {
                Ok(Some(status)) => break Some(status.to_string()),
                Ok(None) => {}
                Err(error) => break Some(error.to_string()),
            }
        };
        match &ended {
            None if shared.rests.load(Ordering::SeqCst) => {
                tracing::info!("etcd was ended, and rests: the node was expelled by hand");
            }
            None => {
                tracing::info!("etcd was ended, to believe other authorities; it is started again")
            }
            Some(how) => {
                let log = shared.dir.join(LOG);
                tracing::error!(%how, log = %log.display(), "etcd has ended; it is started again");
            }
        }
        pause = match ended.is_none() {
            true => PAUSE_MIN,
            false => pause_after(pause, begun.elapsed()),
        };
        loop {
            if shared.ends_within(pause) {
                return;
            }
            if shared.rests.load(Ordering::SeqCst) {
                continue;
            }
            match begin(shared) {
                Ok(started) => {
                    child = started;
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, "etcd can't be started");
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }
}

/// The pause before the next start of one that has ended by itself: longer each time, so that one that can't run takes little
/// from others, and never so long that somebody waits for it when it can again. `ran`: for how long it did.
fn pause_after(last: Duration, ran: Duration) -> Duration {
    match ran > RAN_WELL {
        true => PAUSE_MIN,
        false => (last * 2).min(PAUSE_MAX),
    }
}

fn begin(shared: &Shared) -> Result<Child> {
    let (dir, mut server) = (&shared.dir, shared.server.clone());
    // Before the file is read: whoever changes it later asks for another start.
    shared.restarts.store(false, Ordering::SeqCst);
    let files = server.certificates.as_ref();
    let believes = files.map(|it| std::fs::read_to_string(&it.authority));
    let believes = believes.transpose().map_err(|error| {
        Error::new(ErrorKind::Unavailable, error.to_string()).while_doing("starting etcd")
    })?;
    if shared.has_begun.load(Ordering::Relaxed) {
        if !has_data(&server.data_directory) {
            return Err(lost(dir));
        }
        server.begin = EtcdBegin::Join;
    }
    let arguments: Vec<OsString> = server.arguments()?;
    let path: PathBuf = dir.join(LOG);
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => no_etcd(),
        _ => Error::new(ErrorKind::Unavailable, error.to_string()).while_doing("starting etcd"),
    };
    let log = log::Bounded::open(&path).map_err(failed)?;
    let (said, says) = std::io::pipe().map_err(failed)?;
    let mut command = Command::new(ETCD);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(says.try_clone().map_err(failed)?)
        .stderr(says)
        .current_dir("/");
    // Settings in the environment would be settings as well.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") {
            command.env_remove(name);
        }
    }
    // It would tell systemd that it is ready, with each start; whether the node is, the daemon says.
    command.env_remove(supervisor::SOCKET);
    world::host::ends_with_this_thread(&mut command);
    let child = command.spawn().map_err(failed)?;
    // Ends when the process has: the command's own ends of the pipe go with it.
    let copied = std::thread::Builder::new()
        .name("etcd.log".into())
        .spawn(move || log.copy(said));
    if let Err(error) = copied {
        tracing::error!(%error, "etcd's log can't be kept: etcd ends, and is started again");
    }
    let believes = believes.unwrap_or_default();
    *shared.believes.lock().unwrap_or_else(|it| it.into_inner()) = believes;
    shared.starts.fetch_add(1, Ordering::SeqCst);
    Ok(child)
}

/// Ends the process: politely, then by force. Returns whether it has ended: one that its disk holds up does when that
/// answers.
fn end(child: &mut Child) -> bool {
    let id = child.id();
    let tell = |signal| {
        if let Some(pid) = Pid::from_raw(id.cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    };
    let has_ended = ends_when_told(tell, || !matches!(child.try_wait(), Ok(None)), END_MAX);
    if !has_ended {
        tracing::error!(
            pid = id,
            "etcd was killed and hasn't ended, perhaps because its disk hangs (`dmesg`)"
        );
    }
    has_ended
}

/// Tells a process to end, politely and then by force, and waits so long for it each time, at most. Returns whether it has
/// ended.
fn ends_when_told(
    tell: impl Fn(Signal),
    mut has_ended: impl FnMut() -> bool,
    patience: Duration,
) -> bool {
    for signal in [Signal::TERM, Signal::KILL] {
        tell(signal);
        let begun = Instant::now();
        loop {
            if has_ended() {
                return true;
            }
            if begun.elapsed() >= patience {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::config::EtcdConfig;

    fn cluster(founding: bool, joins: bool, began: bool) -> ClusterConfig {
        let address = |port: u16| ([10, 0, 0, 1], port).into();
        let other = ("n1".to_owned(), "10.0.0.2:7313".to_owned());
        ClusterConfig {
            id: "c".into(),
            node: 1,
            name: "n1".into(),
            address: address(7311),
            coordination: Vec::new(),
            etcd_id: None,
            prefix: "/shale/c/".into(),
            etcd: Some(EtcdConfig {
                client: address(7312),
                peer: address(7313),
                joins: joins.then_some(other).into_iter().collect(),
                began,
            }),
            outside: None,
            founding,
        }
    }

    #[test]
    fn one_that_ends_again_and_again_is_started_at_least_every_ten_seconds() {
        let short = Duration::from_secs(1);
        let mut pauses = vec![PAUSE_MIN];
        for _ in 0..1_000 {
            pauses.push(pause_after(pauses[pauses.len() - 1], short));
        }
        assert!(pauses.is_sorted());
        assert_eq!(pauses[1], 2 * PAUSE_MIN);
        assert_eq!(pauses.last(), Some(&Duration::from_secs(10)));
        // What was in its way is over.
        assert_eq!(pause_after(PAUSE_MAX, RAN_WELL + short), PAUSE_MIN);
    }

    /// Would be broken if a daemon whose etcd hangs with its disk waited for it without end, and kept the node's directory.
    #[test]
    fn an_etcd_that_does_not_end_when_it_is_killed_is_waited_for_no_longer() {
        let told = std::cell::RefCell::new(Vec::new());
        let tell = |signal| told.borrow_mut().push(signal);
        assert!(!ends_when_told(tell, || false, Duration::ZERO));
        assert_eq!(told.take(), [Signal::TERM, Signal::KILL]);
        assert!(ends_when_told(tell, || true, Duration::ZERO));
        assert_eq!(told.take(), [Signal::TERM], "it isn't killed");
        // Only the second time that it is looked for.
        let looks = std::cell::Cell::new(0);
        let at_last = || looks.replace(looks.get() + 1) > 0;
        assert!(ends_when_told(tell, at_last, Duration::ZERO));
        assert_eq!(told.take(), [Signal::TERM, Signal::KILL]);
    }

    /// Would be broken if a lost directory founded a second etcd under the same name, or came back as a member that
    /// votes without its log.
    #[test]
    fn a_member_that_has_run_is_never_started_without_its_data() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path();
        let new = EtcdBegin::New { token: "c".into() };
        assert_eq!(beginning(dir, &cluster(true, false, false)).unwrap(), new);
        assert_eq!(
            beginning(dir, &cluster(false, true, false)).unwrap(),
            EtcdBegin::Join
        );
        // An empty directory, or one without the log, is no better than none.
        let wal = data_directory(dir).join("member").join("wal");
        for _ in 0..2 {
            // The last one was written by a version that didn't say whether it had begun.
            for (founding, joins, began) in [
                (false, false, true),
                (true, false, true),
                (false, true, true),
                (false, false, false),
            ] {
                let refused = beginning(dir, &cluster(founding, joins, began)).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Corrupt);
                assert!(refused.to_string().contains("join-token"), "{refused}");
            }
            std::fs::create_dir_all(&wal).unwrap();
        }
        std::fs::write(wal.join("0000000000000000-0000000000000000.wal"), "log").unwrap();
        for (founding, joins) in [(false, false), (false, true)] {
            let begin = beginning(dir, &cluster(founding, joins, true)).unwrap();
            assert_eq!(begin, EtcdBegin::Join, "it founds nothing any more");
        }
    }
}
