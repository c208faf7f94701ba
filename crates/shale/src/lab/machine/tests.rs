//! Tests on this machine's kernel: real namespaces, links and processes. They need root.

use super::{Machines, names::Names, names::NodeNumber, processes};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    thread,
    time::{Duration, Instant},
};

#[path = "../../../tests/fixture/noted.rs"]
mod noted;

/// Nothing takes longer, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than the kernel asks for hardware addresses that nobody answers for.
const SILENCE: Duration = Duration::from_millis(4500);

const N1: NodeNumber = NodeNumber(1);
const N2: NodeNumber = NodeNumber(2);
const N3: NodeNumber = NodeNumber(3);

/// Machines that are removed when dropped.
struct Own {
    machines: Machines,
    _dir: tempfile::TempDir,
}

impl Drop for Own {
    fn drop(&mut self) {
        let removed = self.machines.remove();
        assert!(removed.is_ok() || thread::panicking(), "{removed:?}");
    }
}

/// `None` if this machine can't have a lab.
fn machines(count: u32, link_mbit: Option<u32>) -> Option<Own> {
    if !rustix::process::geteuid().is_root() {
        let test = thread::current().name().unwrap_or("lab").to_owned();
        noted::skipped(&test, "networks need root");
        return None;
    }
    // The path makes the names unique.
    let dir = tempfile::tempdir().unwrap();
    let machines = Machines::new(Names::of(dir.path()), count).unwrap();
    machines.build(link_mbit).unwrap();
    Some(Own {
        machines,
        _dir: dir,
    })
}

impl Own {
    /// Runs work in a thread of its own on a node.
    fn on<T: Send + 'static>(
        &self,
        node: NodeNumber,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let machines = self.machines.clone();
        let running = thread::spawn(move || {
            machines.enter(node).unwrap();
            work()
        });
        running.join().unwrap()
    }

    /// An address on a node at which everything that comes is sent back.
    fn echo(&self, node: NodeNumber) -> SocketAddr {
        self.on(node, move || {
            let listener = TcpListener::bind((node.address(), 0)).unwrap();
            let address = listener.local_addr().unwrap();
            // Ends with the test program.
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
                }
            });
            address
        })
    }

    fn connect(
        &self,
        node: NodeNumber,
        to: SocketAddr,
        patience: Duration,
    ) -> std::io::Result<TcpStream> {
        self.on(node, move || TcpStream::connect_timeout(&to, patience))
    }

    /// Whether a node gets an answer from there.
    #[track_caller]
    fn must_reach(&self, node: NodeNumber, to: SocketAddr) {
        must_answer(&self.connect(node, to, PATIENCE).unwrap());
    }

    /// What a node tries there isn't answered at all, not even by its own kernel.
    #[track_caller]
    fn must_hear_nothing(&self, node: NodeNumber, to: SocketAddr) {
        let error = self.connect(node, to, SILENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }
}

#[track_caller]
fn must_answer(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"words").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"words");
}

#[test]
fn a_node_that_is_cut_off_meets_silence_and_goes_on_when_it_is_back() {
    let Some(own) = machines(3, None) else { return };
    let (second, third) = (own.echo(N2), own.echo(N3));
    let before = own.connect(N1, second, PATIENCE).unwrap();
    must_answer(&before);
    own.must_reach(N2, third);

    own.machines.cut(&[N2]).unwrap();
    assert_eq!(own.machines.cut_off().unwrap(), [(N2, vec![])]);
    let (from_first, from_second) = thread::scope(|scope| {
        // Both at the same time: each waits for seconds.
        let first = scope.spawn(|| own.must_hear_nothing(N1, second));
        let other = scope.spawn(|| own.must_hear_nothing(N2, third));
        (first.join(), other.join())
    });
    from_first.unwrap();
    from_second.unwrap();
    own.must_reach(N1, third);
    // What is sent meanwhile is taken by the kernel and lost on the way.
    let sent = own.on(N2, || {
        let socket = UdpSocket::bind((N2.address(), 0)).unwrap();
        socket.send_to(b"words", (N1.address(), 9)).unwrap()
    });
    assert_eq!(sent, 5);
    before.set_read_timeout(Some(PATIENCE)).unwrap();
    (&before).write_all(b"late!").unwrap();

    own.machines.join(&[N2]).unwrap();
    assert_eq!(own.machines.cut_off().unwrap(), []);
    let mut answer = [0; 5];
    (&before).read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"late!");
    own.must_reach(N2, third);
}

#[test]
fn nodes_that_are_cut_off_together_still_reach_each_other() {
    let Some(own) = machines(3, None) else { return };
    let (second, third) = (own.echo(N2), own.echo(N3));
    own.machines.cut(&[N1, N2]).unwrap();
    own.must_reach(N1, second);
    own.must_hear_nothing(N1, third);
    own.machines.cut(&[N1]).unwrap();
    assert_eq!(
        own.machines.cut_off().unwrap(),
        [(N1, vec![]), (N2, vec![])]
    );
    own.machines.join(&[N2]).unwrap();
    own.must_reach(N2, third);
    own.machines.join(&[N1]).unwrap();
    own.must_reach(N1, third);
}

#[test]
fn a_shaped_link_takes_the_time_that_its_speed_says() {
    const BYTES: usize = 1 << 20;
    let Some(own) = machines(2, Some(8)) else {
        return;
    };
    let to = own.echo(N2);
    let stream = own.connect(N1, to, PATIENCE).unwrap();
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| (&stream).write_all(&vec![7; BYTES]).unwrap());
        let mut back = vec![0; BYTES];
        (&stream).read_exact(&mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == 7));
    });
    // A megabyte a second, but for what a link sends at once.
    assert!(begun.elapsed() > Duration::from_millis(700));
}

#[test]
fn what_runs_on_a_node_is_known_to_be_there_and_goes_with_it() {
    let Some(own) = machines(2, None) else { return };
    let namespaces = || {
        let own = Command::new("readlink")
            .args(["/proc/self/ns/net", "/proc/self/ns/mnt"])
            .output();
        String::from_utf8(own.unwrap().stdout).unwrap()
    };
    let here = namespaces();
    let mut looking = own.machines.command(N1, "readlink").unwrap();
    looking.args(["/proc/self/ns/net", "/proc/self/ns/mnt"]);
    let there = String::from_utf8(looking.output().unwrap().stdout).unwrap();
    let lines: Vec<_> = here.lines().zip(there.lines()).collect();
    assert_ne!(lines[0].0, lines[0].1, "a network of its own");
    assert_eq!(lines[1].0, lines[1].1, "the mounts of all");

    // One that has left its parents and its session behind.
    let mut shell = own.machines.command(N1, "sh").unwrap();
    shell.args(["-c", "setsid sleep 100000 > /dev/null 2>&1 &"]);
    assert!(shell.status().unwrap().success());
    let mut child = own.machines.command(N2, "sleep").unwrap();
    let mut child = child.arg("100000").spawn().unwrap();
    let sleepers = |node| own.machines.processes(node).unwrap();
    // A process that is becoming another program has no command line for a moment.
    let is_asleep = || {
        let found = sleepers(N1);
        found
            .iter()
            .any(|it| it.arguments.first().is_some_and(|own| own == "sleep"))
    };
    assert!(super::bounded::until(PATIENCE, super::bounded::SOON, || Ok(is_asleep())).unwrap());
    let first = sleepers(N1);
    let second = sleepers(N2);
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_eq!(second[0].pid, child.id() as i32);
    processes::freeze(&second).unwrap();

    assert_eq!(own.machines.remove().unwrap(), 2);
    assert!(!own.machines.exist().unwrap());
    assert!(!child.wait().unwrap().success());
    assert!(first[0].is_gone());
    assert_eq!(own.machines.remove().unwrap(), 0);
    assert!(own.machines.command(N1, "true").is_err());
    own.machines.build(None).unwrap();
}

#[test]
fn a_network_that_was_only_half_made_is_told_from_a_whole_one_and_removed() {
    let Some(own) = machines(3, None) else { return };
    assert!(own.machines.are_linked().unwrap());
    let error = own.machines.build(None).unwrap_err().to_string();
    assert!(
        error.contains("netns add") && error.contains("exist"),
        "{error}"
    );
    let hub = Names::of(own._dir.path()).hub();
    let cut = Command::new("ip")
        .args(["-n", &hub, "link", "delete", "n3"])
        .status();
    assert!(cut.unwrap().success());
    assert!(!own.machines.are_linked().unwrap());
    own.machines.remove().unwrap();
    own.machines.build(None).unwrap();
    assert!(own.machines.are_linked().unwrap());
}
