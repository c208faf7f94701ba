//! Real etcd servers for tests and measurements: Debian's `etcd-server`, on free ports of a loopback
//! address of this process's own. They end, and their files are removed, with this process, however it
//! ends: shells that wait for the end of a pipe see to it.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests: they start servers and look at their files"
)]

use super::{
    Etcd, EtcdBegin, EtcdCertificates, EtcdEndpoint, EtcdServer, EtcdSettings, EtcdStatus,
};
use rustix::process::{Pid, Signal, kill_process};
use rustls::ClientConfig;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use world::{Deadline, World};

/// How long a server may take to be ready.
const START_MAX: Duration = Duration::from_secs(60);
/// Attempts to find ports that nobody takes in between.
const ATTEMPTS_MAX: usize = 5;
/// No test cuts the power. (In two parts, because the word is searched for in sources.)
const NOT_DURABLE: &str = concat!("--un", "safe-no-fsync");
/// Tells the directories and prefixes of this process apart.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// Waits for the end of its input; then kills the server that it started, its own child.
const RUN: &str = r#"trap "" INT TERM HUP
log=$1; shift
"$@" </dev/null >>"$log" 2>&1 &
child=$!
echo $child
read -r _
kill -KILL $child
wait $child"#;
/// Waits for the end of its input; then removes a directory, which servers may leave only now.
const SWEEP: &str = r#"trap "" INT TERM HUP
echo here
read -r _
for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1" 2>/dev/null && exit; sleep 0.2; done"#;

/// An etcd server that all tests of a process share: those of the rules, each under its own prefix.
pub(crate) fn one() -> &'static Servers {
    static ONE: LazyLock<Servers> = LazyLock::new(|| Servers::start(1, &[]));
    &ONE
}

/// Three of them that make one etcd.
pub(crate) fn three() -> &'static Servers {
    static THREE: LazyLock<Servers> = LazyLock::new(|| Servers::start(3, &[]));
    &THREE
}

/// Runs this in real time.
pub(crate) fn in_real_time<T>(run: impl AsyncFnOnce(World) -> T) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(async { run(World::real()).await })
}

/// The servers of one etcd.
pub(crate) struct Servers {
    members: Vec<Member>,
    extra: Vec<String>,
    address: Ipv4Addr,
    secured: Option<Secured>,
    directory: PathBuf,
    _broom: Guard,
}

/// What an etcd with certificates has.
#[derive(Clone)]
struct Secured {
    files: EtcdCertificates,
    /// The name in the certificate.
    name: String,
    client: Arc<ClientConfig>,
}

struct Member {
    server: EtcdServer,
    running: Option<Running>,
}

/// A shell that does something when its input ends.
struct Guard {
    shell: Child,
    said: String,
}

struct Running {
    _guard: Guard,
    process: Pid,
}

impl Guard {
    fn new(script: &str, arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", script, "guard"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let out = shell.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut said).unwrap();
        let said = said.trim().to_owned();
        Self { shell, said }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

impl Running {
    fn new(server: &EtcdServer, extra: &[String], log: &Path) -> Self {
        let mut arguments = vec![log.into(), "etcd".into()];
        arguments.extend(server.arguments().unwrap());
        arguments.extend(extra.iter().map(Into::into));
        let guard = Guard::new(RUN, arguments);
        let process = Pid::from_raw(guard.said.parse().unwrap()).unwrap();
        Self {
            _guard: guard,
            process,
        }
    }

    fn is_alive(&self) -> bool {
        let path = format!("/proc/{}/stat", self.process.as_raw_nonzero());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        stat.rsplit_once(')')
            .is_some_and(|(_, rest)| !rest.starts_with(" Z"))
    }
}

impl Servers {
    /// A new etcd of this many members, with more arguments. It doesn't survive a power cut.
    pub(crate) fn start(count: usize, extra: &[&str]) -> Self {
        let extra: Vec<&str> = [extra, &[NOT_DURABLE]].concat();
        Self::start_with(count, None, &extra, &std::env::temp_dir())
    }

    /// A new etcd of this many members in this directory, which writes durably.
    pub(crate) fn start_durable(count: usize, directory: &Path) -> Self {
        Self::start_with(count, None, &[], directory)
    }

    /// A new etcd of one member with a certificate, which has this name.
    pub(crate) fn start_secured(
        files: EtcdCertificates,
        name: &str,
        client: &Arc<ClientConfig>,
    ) -> Self {
        let secured = Secured {
            files,
            name: name.to_owned(),
            client: client.clone(),
        };
        Self::start_with(1, Some(&secured), &[NOT_DURABLE], &std::env::temp_dir())
    }

    fn start_with(
        count: usize,
        secured: Option<&Secured>,
        extra: &[&str],
        directory: &Path,
    ) -> Self {
        let version = Command::new("etcd").arg("--version").output();
        assert!(
            version.is_ok_and(|version| version.status.success()),
            "etcd can't be run: `make test-deps` installs it"
        );
        for _ in 0..ATTEMPTS_MAX {
            let mut servers = Self::new(count, secured, extra, directory);
            for at in 0..count {
                servers.begin(at);
            }
            if (0..count).all(|at| servers.is_ready(at)) {
                return servers;
            }
        }
        panic!("no ports are free");
    }

    fn new(count: usize, secured: Option<&Secured>, extra: &[&str], directory: &Path) -> Self {
        let process = std::process::id();
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let directory = directory.join(format!("shale-etcd-{process}-{number}"));
        std::fs::create_dir(&directory).unwrap();
        // An address that no other process uses, so that free ports stay free.
        let [_, high, middle, low] = process.to_be_bytes();
        let address = Ipv4Addr::new(127, 100 | high, middle, low.max(1));
        let ports = free_ports(address, 2 * count);
        let authority = |port: u16| format!("{address}:{port}");
        let names = (0..count).map(|at| format!("member-{at}"));
        let peers = ports.iter().skip(count).map(|port| authority(*port));
        let peers: Vec<(String, String)> = names.zip(peers).collect();
        let member = |at: usize| Member {
            server: EtcdServer {
                name: peers[at].0.clone(),
                data_directory: directory.join(&peers[at].0),
                client_listen: SocketAddr::new(address.into(), ports[at]),
                client_authority: authority(ports[at]),
                peer_listen: SocketAddr::new(address.into(), ports[count + at]),
                peer_authority: peers[at].1.clone(),
                members: peers.clone(),
                begin: EtcdBegin::New {
                    token: format!("{process}-{number}"),
                },
                certificates: secured.map(|it| it.files.clone()),
                // Several members share the machine with other tests.
                heartbeat: Duration::from_millis(if count == 1 { 10 } else { 100 }),
            },
            running: None,
        };
        let extra = extra.iter().map(|it| (*it).to_owned()).collect();
        Self {
            members: (0..count).map(member).collect(),
            extra,
            address,
            secured: secured.cloned(),
            _broom: Guard::new(SWEEP, [directory.clone().into()]),
            directory,
        }
    }

    /// Starts a member, or starts it again.
    pub(crate) fn begin(&mut self, at: usize) {
        let log = self.log(at);
        let Member { server, running } = &mut self.members[at];
        assert!(running.is_none());
        *running = Some(Running::new(server, &self.extra, &log));
    }

    /// Waits until a member is ready; `false` if another program has its port.
    pub(crate) fn is_ready(&self, at: usize) -> bool {
        let settings = self.settings_of(&[at], "/");
        in_real_time(async |world| {
            let etcd = Etcd::new(&world, &settings).unwrap();
            let end = Deadline::after(&world, START_MAX);
            loop {
                let soon = Deadline::after(&world, Duration::from_secs(2));
                let Err(error) = etcd.until_ready(0, soon).await else {
                    return true;
                };
                let is_alive = self.members[at].running.as_ref().unwrap().is_alive();
                if is_alive && !end.has_passed(&world) {
                    continue;
                }
                let log = self.said(at);
                if log.contains("address already in use") {
                    return false;
                }
                panic!("etcd doesn't start: {error}\n{log}");
            }
        })
    }

    /// Waits until a member that was begun again is ready.
    pub(crate) async fn until_ready(&self, world: &World, at: usize) {
        let etcd = Etcd::new(world, &self.settings_of(&[at], "/")).unwrap();
        let deadline = Deadline::after(world, START_MAX);
        let ready = etcd.until_ready(0, deadline).await;
        ready.unwrap_or_else(|error| panic!("etcd isn't ready: {error}\n{}", self.said(at)));
    }

    /// Starts a member that joins, as often as it ends by itself: it does so if the member that it asks
    /// doesn't know of it yet.
    pub(crate) async fn join(&mut self, world: &World, at: usize) {
        let etcd = Etcd::new(world, &self.settings_of(&[at], "/")).unwrap();
        let end = Deadline::after(world, START_MAX);
        self.begin(at);
        loop {
            let soon = Deadline::after(world, Duration::from_secs(2));
            if etcd.until_ready(0, soon).await.is_ok() {
                return;
            }
            assert!(!end.has_passed(world), "{}", self.said(at));
            if !self.members[at].running.as_ref().unwrap().is_alive() {
                self.kill(at);
                self.begin(at);
            }
        }
    }

    fn said(&self, at: usize) -> String {
        std::fs::read_to_string(self.log(at)).unwrap_or_default()
    }

    /// What a member wrote.
    fn log(&self, at: usize) -> PathBuf {
        self.directory.join(format!("{at}.log"))
    }

    /// All members, and this prefix.
    pub(crate) fn settings(&self, prefix: &str) -> EtcdSettings {
        let all: Vec<usize> = (0..self.members.len()).collect();
        self.settings_of(&all, prefix)
    }

    /// All members, and a prefix that nobody uses.
    pub(crate) fn settings_of_its_own(&self) -> EtcdSettings {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        self.settings(&format!("/shale/test-{number}/"))
    }

    /// These members, and this prefix.
    pub(crate) fn settings_of(&self, members: &[usize], prefix: &str) -> EtcdSettings {
        let members = members.iter().map(|at| &self.members[*at]);
        let endpoint = |member: &Member| {
            let authority = &member.server.client_authority;
            let endpoint: EtcdEndpoint = authority.parse().unwrap();
            match &self.secured {
                None => endpoint,
                Some(secured) => endpoint.certified_as(secured.name.clone()),
            }
        };
        EtcdSettings {
            endpoints: members.map(endpoint).collect(),
            prefix: prefix.to_owned(),
            tls: self.secured.as_ref().map(|it| it.client.clone()),
            cluster: None,
        }
    }

    /// Kills a member.
    pub(crate) fn kill(&mut self, at: usize) {
        self.members[at].running.take().unwrap();
    }

    /// Kills a member, and loses its disk.
    pub(crate) fn lose(&mut self, at: usize) {
        self.kill(at);
        let data = &self.members[at].server.data_directory;
        // A server that was killed may need a moment to let its files go.
        while data.exists() {
            let _ = std::fs::remove_dir_all(data);
        }
    }

    /// Prepares a member that lost its disk to be started as one that was added.
    pub(crate) fn joins_again(&mut self, at: usize) {
        self.members[at].server.begin = EtcdBegin::Join;
    }

    /// Stops a member: its connections stay, and nothing is answered.
    pub(crate) fn pause(&self, at: usize) {
        self.signal(at, Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn resume(&self, at: usize) {
        self.signal(at, Signal::CONT);
    }

    fn signal(&self, at: usize, signal: Signal) {
        let running = self.members[at].running.as_ref().unwrap();
        kill_process(running.process, signal).unwrap();
    }

    /// The member that leads, as most see it.
    pub(crate) async fn leader(&self, world: &World) -> usize {
        let etcd = Etcd::new(world, &self.settings("/")).unwrap();
        loop {
            let statuses = etcd.status().await.into_iter();
            let statuses: Vec<_> = statuses.map(|(_, status)| status).collect();
            let leads = |of: &model::Result<EtcdStatus>| {
                of.as_ref().is_ok_and(|it| it.leader == Some(it.member))
            };
            let leaders: Vec<usize> = (0..statuses.len())
                .filter(|at| leads(&statuses[*at]))
                .collect();
            if let [leader] = leaders[..] {
                return leader;
            }
            world.sleep(Duration::from_millis(50)).await;
        }
    }

    /// Prepares one more member, which isn't part of the etcd yet, and joins it when it is begun.
    pub(crate) fn add(&mut self) -> usize {
        let at = self.members.len();
        let ports = free_ports(self.address, 2);
        let authority = |port: u16| format!("{}:{port}", self.address);
        let mut server = self.members[0].server.clone();
        server.name = format!("member-{at}");
        server.data_directory = self.directory.join(&server.name);
        server.client_listen.set_port(ports[0]);
        server.client_authority = authority(ports[0]);
        server.peer_listen.set_port(ports[1]);
        server.peer_authority = authority(ports[1]);
        let own = (server.name.clone(), server.peer_authority.clone());
        let others = self.members.iter().map(|it| &it.server);
        let others = others.map(|it| (it.name.clone(), it.peer_authority.clone()));
        server.members = others.chain([own]).collect();
        server.begin = EtcdBegin::Join;
        self.members.push(Member {
            server,
            running: None,
        });
        at
    }

    /// Where the other members reach one.
    pub(crate) fn peer_url(&self, at: usize) -> String {
        format!("http://{}", self.members[at].server.peer_authority)
    }
}

/// Ports that are free, and that no other test of this process gets.
fn free_ports(address: Ipv4Addr, count: usize) -> Vec<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap();
    let mut ports = Vec::new();
    while ports.len() < count {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        if given.insert(port) {
            ports.push(port);
        }
    }
    ports
}
