//! Calendars that are an hour off, and jump, on nodes under a load.
//!
//! libfaketime gives a daemon another calendar than its machine's, from a file that it reads again every second. Other clocks
//! stay right, as when an administrator sets a machine's clock.

use super::{
    faults::until_whole,
    fixture::Lab,
    load::{Load, Pauses},
    roles::{Role, Roles},
};
use crate::fixture::{figure, skipped};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Instant, SystemTime},
};

/// Runs when there is time.
const RUNS: usize = 10;
/// Files that each program makes under a calendar that is ahead, and under one that is behind. With the pauses between them
/// both together take longer than a lease, which is renewed several times meanwhile. In a long run twice as many.
const FILES: u64 = 25;
/// The same when it is right again.
const FILES_AFTERWARDS: u64 = 10;
const RIGHT: &str = "+0";
const AHEAD: &str = "+3600";
const BEHIND: &str = "-3600";
/// Seconds that are surely one of those hours, ...
const HOUR: u64 = 3_500;
/// ... and what lies between them.
const TWO_HOURS: u64 = 7_000;

/// Where Debian's package puts the library.
fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").unwrap().flatten();
    let mut paths = folders.map(|it| it.path().join("faketime/libfaketimeMT.so.1"));
    paths.find(|path| path.exists())
}

/// The calendar of a node's daemon.
struct Calendar {
    file: PathBuf,
    /// What the library leaves behind.
    shared: Vec<PathBuf>,
}

impl Calendar {
    /// Starts the daemons of all nodes anew, all at once, each with a calendar that is right.
    #[track_caller]
    fn start_all(lab: &Lab, library: &Path) -> Vec<Self> {
        let nodes = lab.nodes();
        let new = |node: &u32| {
            let calendar = Self {
                file: lab.dir.with_file_name(format!("n{node}.calendar")),
                shared: Vec::new(),
            };
            calendar.set(RIGHT);
            calendar
        };
        let mut calendars: Vec<_> = nodes.iter().map(new).collect();
        let names: Vec<_> = nodes.iter().map(u32::to_string).collect();
        let mut kill = vec!["kill"];
        kill.extend(names.iter().map(String::as_str));
        lab.must(&kill);
        // None of them serves before most of them run.
        std::thread::scope(|scope| {
            for (node, calendar) in nodes.iter().zip(&mut calendars) {
                scope.spawn(move || calendar.start(lab, *node, library));
            }
        });
        calendars
    }

    /// Starts a node's daemon that was killed.
    #[track_caller]
    fn start(&mut self, lab: &Lab, node: u32, library: &Path) {
        let preload = format!("LD_PRELOAD={}", library.display());
        let file = format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display());
        // Only the calendar, of processes; what files say of themselves stays.
        let rest = [
            "FAKETIME_CACHE_DURATION=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "NO_FAKE_STAT=1",
        ];
        let start = [env!("CARGO_BIN_EXE_shale"), "up"];
        let command = [&["env", &preload, &file][..], &rest, &start].concat();
        lab.exec(node, &command);
        self.shared = shared(lab.daemon(node));
    }

    /// From the next second on.
    fn set(&self, offset: &str) {
        // The library ends a process that finds half a line.
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{offset}\n")).unwrap();
        fs::rename(&new, &self.file).unwrap();
    }
}

impl Drop for Calendar {
    fn drop(&mut self) {
        for path in &self.shared {
            let _ = fs::remove_file(path);
        }
    }
}

/// The memory that a process with the library shares with those that it starts.
fn shared(process: i32) -> Vec<PathBuf> {
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    let mut variables = environment.split('\0');
    // As in `FAKETIME_SHARED=/faketime_sem_7 /faketime_shm_7`.
    let names = variables.find_map(|it| it.strip_prefix("FAKETIME_SHARED=/"));
    let (semaphore, memory) = names.and_then(|it| it.split_once(" /")).unwrap_or_default();
    let paths = [format!("sem.{semaphore}"), memory.to_owned()];
    paths.map(|it| Path::new("/dev/shm").join(it)).to_vec()
}

/// The seconds by which a node says that its calendar lags, or was set back after a moment; 0: it doesn't.
fn set_back(lab: &Lab, node: u32, after: Instant) -> u64 {
    let health = lab.ask(node, &["health"]);
    let mut events = health["events"].as_array().into_iter().flatten();
    let told = events.find(|event| event["subject"] == "clock");
    let message = told.and_then(|event| event["message"].as_str());
    let words = message.unwrap_or_default().split(' ');
    let mut numbers = words.filter_map(|word| word.parse::<u64>().ok());
    let seconds = numbers.next().unwrap_or(0);
    // What was set back is told for a day, with how long ago that was: also what an earlier run did.
    match numbers.next() {
        Some(ago) if ago > after.elapsed().as_secs() => 0,
        _ => seconds,
    }
}

/// By how many seconds a new directory is dated later than now.
fn ahead(lab: &Lab, node: u32) -> u64 {
    let path = lab.path(node, "dated");
    fs::create_dir(&path).unwrap();
    let made = fs::metadata(&path).unwrap().modified().unwrap();
    fs::remove_dir(&path).unwrap();
    let ahead = made.duration_since(SystemTime::now());
    ahead.map_or(0, |it| it.as_secs())
}

/// How often each node has joined.
#[track_caller]
fn incarnations(lab: &Lab, nodes: &[u32]) -> Vec<u64> {
    let one = |node: &u32| {
        let status = lab.ask(*node, &["status"]);
        let incarnation = status["cluster"]["incarnation"].as_u64();
        incarnation.unwrap_or_else(|| panic!("n{node}: {status}"))
    };
    nodes.iter().map(one).collect()
}

/// A node's calendar is an hour ahead, then an hour behind, then right. Returns how long programs were held up.
#[track_caller]
fn go_wrong(lab: &Lab, node: u32, calendar: &Calendar, is_owner: bool) -> Pauses {
    let nodes = lab.nodes();
    let before = incarnations(lab, &nodes);
    let files = sim::by_suite(FILES, 2 * FILES);
    let mut load = Load::start(lab, &nodes);
    load.mark();
    calendar.set(AHEAD);
    if is_owner {
        // Others are dated by the owner's calendar at most.
        lab.until("its calendar is ahead", || match ahead(lab, node) {
            seconds if seconds > HOUR => Ok(()),
            seconds => Err(format!("{seconds} s")),
        });
    }
    load.gets_on(&nodes, files);
    // Asked for its health, it looks at its calendar: the next look is compared with this one.
    lab.ask(node, &["health"]);
    let behind = Instant::now();
    calendar.set(BEHIND);
    lab.until("its calendar was set back", || {
        let seconds = set_back(lab, node, behind);
        (seconds > TWO_HOURS)
            .then_some(())
            .ok_or_else(|| format!("{seconds} s"))
    });
    load.gets_on(&nodes, files);
    calendar.set(RIGHT);
    load.gets_on(&nodes, FILES_AFTERWARDS);
    let pauses = load.pauses(&nodes);
    load.end(&nodes);
    load.must_be_seen(lab, &nodes);
    load.remove(lab, nodes[0]);
    assert_eq!(incarnations(lab, &nodes), before, "no node was expelled");
    pauses
}

#[test]
fn a_calendar_that_is_an_hour_off_and_jumps_costs_no_lease_and_no_byte() {
    let Some(lab) = Lab::up(3, "erasure(2+1)") else {
        return;
    };
    let Some(library) = library() else {
        let test = std::thread::current().name().unwrap_or("clocks").to_owned();
        skipped(&test, "libfaketime isn't installed");
        return;
    };
    until_whole(&lab);
    let calendars = Calendar::start_all(&lab, &library);
    until_whole(&lab);
    let runs = sim::by_suite(1, RUNS);
    let mut worst = Pauses::default();
    for _ in 0..runs {
        let roles = Roles::of(&lab);
        let owner = roles.one_with(Role::Owner);
        let other = lab.nodes().into_iter().find(|node| *node != owner);
        for node in [owner, other.expect("there are three")] {
            let calendar = &calendars[node as usize - 1];
            worst.add(&go_wrong(&lab, node, calendar, node == owner));
        }
        until_whole(&lab);
    }
    figure(&format!(
        "lab: a calendar an hour off and jumping: longest operations {worst}, worst of {runs}"
    ));
}
