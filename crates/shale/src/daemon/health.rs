//! Judges the node's health: makes every event of `shale health`, with its remedy, from facts.

mod away;
mod disk;

pub use away::{Absence, HomeFacts};
pub use disk::{left_apart, left_in};

use super::stop_mark::{Stage, Stop};
mod reaching;

use crate::admin::{BECOMES_FIRST, BECOMES_FIRST_REMEDY, Health, HealthEvent, MountLine};
use fuse::WaitingRequest;
use model::{ErrorKind, NsdId, map::NsdState, nsd::NsdHealth};
use node::NsdView;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

/// At this share of space in use the pool counts as nearly full.
const NEARLY_FULL_PERCENT: u64 = 90;
/// An NSD is slow if its reads take this many times as long as those of the others, and longer than
/// `SLOW_READS`, which is more than a disk should need.
const SLOW_TIMES: u32 = 4;
const SLOW_READS: Duration = Duration::from_millis(10);
/// Reads that take this long are noticed by users.
const BUSY_READS: Duration = Duration::from_millis(500);
/// Failed requests are reported for this long.
const FAILURES_TOLD_FOR: Duration = Duration::from_secs(600);
/// With less than this left the pool counts as full: only the smallest writes may still succeed.
const FULL_BYTES: u64 = 16 << 20;
/// In a small pool, less than this fraction of its capacity.
const FULL_PART: u64 = 64;
/// An NSD with less than this left has no room for a block's piece beside what is kept for deletes; a small one with less than
/// this fraction of its capacity.
const NSD_FULL_BYTES: u64 = 8 << 20;
const NSD_FULL_PART: u64 = 64;
/// Space waiting to be freed is reported above this fraction of the pool.
const UNFREED_PART: u64 = 8;
/// Repaired damage, and a clock that was set back, are reported for this long.
const TOLD_FOR: Duration = Duration::from_secs(24 * 3600);
/// A calendar that lags behind the steady clock by less than this is being adjusted, not set.
const CLOCK_SLACK: Duration = Duration::from_secs(2);

/// Nodes named in an event.
const NODES_NAMED: usize = 5;
/// Programs that have waited for so long are reported; not those that wait for others' file locks.
const WAITED_LONG: Duration = Duration::from_secs(30);
/// How a request for a lock is called that may wait.
const LOCK_REQUEST: &str = "SETLKW";

/// Unreadable files named in an event; `shale fs check` names more.
const FILES_NAMED: usize = 5;

/// The input of a judgement.
pub struct Facts {
    /// Every NSD of the map.
    pub nsds: Vec<NsdView>,
    /// How many of them may be lost without losing data.
    pub tolerance: usize,
    /// Repair's status.
    pub repair: metanode::RepairStatus,
    /// Space of the pool.
    pub space: pool::PoolUsage,
    /// Bytes in use that nothing points at: they wait to be freed.
    pub unfreed: u64,
    /// Damaged pieces that have been replaced.
    pub pieces_mended: u64,
    /// Why the metadata doesn't serve, if it doesn't.
    pub metadata: Option<model::Error>,
    /// What the node's client lost with sessions that ended.
    pub lost: client::Losses,
    /// Its mounts.
    pub mounts: MountFacts,
    /// Bytes that the disk of the node's directory has left; `None`: it doesn't tell.
    pub left_in_directory: Option<u64>,
    /// Bytes that the disk of its member of etcd has left, if that is another one; `None`: it isn't, or doesn't tell.
    pub left_for_etcd: Option<u64>,
    /// How far the calendar lags behind the newest time that is stored.
    pub clock_lag: Duration,
    /// Requests of programs that wait, of all mounts.
    pub waiting: Vec<WaitingRequest>,
    /// How the node stands in its cluster; `None`: it is alone.
    pub cluster: Option<ClusterFacts>,
    /// The steady clock.
    pub now: world::Instant,
    /// The calendar.
    pub wall: model::Timestamp,
}

/// How a node stands in its cluster.
#[derive(Default)]
pub struct ClusterFacts {
    /// It may serve: the manager has renewed its lease.
    pub has_lease: bool,
    /// The cluster has a manager, as far as this node knows.
    pub has_manager: bool,
    /// Members that were expelled, by number, with the cause; not those of `apart`.
    pub expelled: Vec<(u32, String)>,
    /// Of NSDs that other nodes have, which one that is.
    pub homes: BTreeMap<NsdId, HomeFacts>,
    /// Nodes that were expelled because they and another one couldn't reach each other, and that other one, in words.
    pub apart: Vec<(String, String)>,
    /// Nodes that this one needs and can't reach, in words, and for how many seconds.
    pub unreached: Vec<(String, u64)>,
    /// It was expelled for that, and joins again when it reaches all that it needs.
    pub waits_to_join: bool,
    /// Shards that no run owns.
    pub unowned: Vec<u32>,
    /// The cluster's etcd; `None`: nobody has looked yet.
    pub etcd: Option<EtcdFacts>,
    /// This node's certificate.
    pub certificate: Option<CertificateFacts>,
    /// It takes connections of other nodes that aren't protected.
    pub takes_plain: bool,
    /// The cluster's keys are being replaced.
    pub rotates: bool,
    /// Nodes that trust an authority which was replaced, in words.
    pub still_trusting: Vec<String>,
    /// Why the node can't do its part of that, or of a change of `cipher_list`.
    pub security_trouble: Option<String>,
    /// The whole cluster is being stopped.
    pub stop: Option<Stop>,
}

/// A node's certificate.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct CertificateFacts {
    /// How long it counts still; negative: it has ended.
    pub seconds_left: i64,
    /// It is time for a new one.
    pub is_due: bool,
    /// Why there is none, if it was asked for.
    pub trouble: Option<String>,
}

/// The cluster's etcd, as this node sees it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct EtcdFacts {
    /// Where its members answer, with what is wrong with each.
    pub members: Vec<(String, Option<String>)>,
    /// Its database is full: nobody can change anything.
    pub is_full: bool,
    /// What else members complain of.
    pub complaints: Vec<String>,
}

/// The mounts of the node.
#[derive(Default)]
pub struct MountFacts {
    /// The node's directory, for remedies.
    pub dir: String,
    /// Where the node's own mount should be, if it is missing.
    pub lost: Option<String>,
    /// Where the node's own mount will be, and why it couldn't be made yet, if it is still tried.
    pub missing: Option<(String, String)>,
    /// Where mounts have died and couldn't be made again for some time, and why; they are still tried.
    pub dead: Vec<(PathBuf, String)>,
    /// The node's mounts.
    pub lines: Vec<MountLine>,
    /// For what their requests are held, if they are: the node becomes the first one of a cluster.
    pub held: Option<&'static str>,
}

/// Earlier observations, for events that only show over time.
#[derive(Default)]
pub struct History {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    sessions: Count,
    damage: BTreeMap<NsdId, Count>,
    /// Requests that NSDs failed.
    failures: BTreeMap<NsdId, Count>,
    /// Since when NSDs of other nodes are away, as far as was seen.
    away: BTreeMap<NsdId, world::Instant>,
    /// NSDs that were full at the last look.
    full: BTreeSet<NsdId>,
    clock: Option<(world::Instant, model::Timestamp)>,
    set_back: Option<(world::Instant, Duration)>,
}

/// A counter of one NSD, summed since the daemon began to serve.
#[derive(Clone, Copy, Default)]
struct Count {
    /// Sum over earlier openings of the NSD: each starts again at zero.
    before: u64,
    last: u64,
    at: Option<world::Instant>,
}

impl Count {
    fn note(&mut self, found: u64, now: world::Instant) {
        if found < self.last {
            self.before += self.last;
            self.last = 0;
        }
        if found > self.last {
            self.last = found;
            self.at = Some(now);
        }
    }

    fn total(&self) -> u64 {
        self.before + self.last
    }
}

impl History {
    /// Remembers these facts. Must be called often enough that no opening of an NSD comes and goes
    /// between two calls.
    pub fn note(&self, facts: &Facts) {
        let mut seen = self.seen.lock();
        for view in &facts.nsds {
            let damage = seen.damage.entry(view.nsd).or_default();
            damage.note(view.damage_found + view.rebuilt, facts.now);
            let failures = seen.failures.entry(view.nsd).or_default();
            failures.note(view.failures, facts.now);
            if away::is_away(view, facts) {
                seen.away.entry(view.nsd).or_insert(facts.now);
            } else {
                seen.away.remove(&view.nsd);
            }
        }
        let full = facts.nsds.iter();
        let full = full.filter(|view| is_full(view, seen.full.contains(&view.nsd)));
        seen.full = full.map(|view| view.nsd).collect();
        seen.sessions.note(facts.lost.sessions, facts.now);
        if let Some((at, wall)) = seen.clock {
            let steady = (facts.now - at).as_nanos() as i64;
            let lost = wall.0.saturating_add(steady).saturating_sub(facts.wall.0);
            let lost = Duration::from_nanos(u64::try_from(lost).unwrap_or(0));
            if lost > CLOCK_SLACK {
                tracing::warn!(seconds = lost.as_secs(), "the clock was set back");
                seen.set_back = Some((facts.now, lost));
            }
        }
        seen.clock = Some((facts.now, facts.wall));
    }

    /// All events, worst first.
    pub fn judge(&self, facts: &Facts) -> Health {
        self.note(facts);
        let seen = self.seen.lock();
        let mut events = Vec::new();
        events.extend(metadata_event(facts));
        events.extend(cluster_events(facts));
        events.extend(mount_events(facts));
        events.extend(facts.mounts.held.map(held_event));
        events.extend(nsd_events(facts, &seen));
        events.extend(failure_events(facts, &seen));
        events.extend(pace_events(facts));
        events.extend(segment_events(facts));
        events.extend(space_event(facts));
        events.extend(unfreed_event(facts));
        events.extend(disk::events(facts));
        events.extend(damage_events(facts, &seen));
        events.extend(clock_event(facts, &seen));
        events.extend(session_event(facts, &seen));
        events.extend(waiting_event(facts));
        let rank = |event: &HealthEvent| match event.severity.as_str() {
            CRITICAL => 0,
            WARNING => 1,
            _ => 2,
        };
        events.sort_by_key(rank);
        let state = match events.first().map(|event| event.severity.as_str()) {
            None | Some(HINT) => "healthy",
            Some(CRITICAL) => "critical",
            Some(_) => "degraded",
        };
        Health {
            state: state.into(),
            events,
        }
    }
}

const CRITICAL: &str = "critical";
const WARNING: &str = "warning";
const HINT: &str = "hint";

fn event(
    severity: &str,
    subject: impl Into<String>,
    message: impl Into<String>,
    remedy: impl Into<String>,
) -> HealthEvent {
    HealthEvent {
        severity: severity.into(),
        subject: subject.into(),
        message: message.into(),
        remedy: remedy.into(),
    }
}

fn is_down(view: &NsdView, facts: &Facts) -> bool {
    let is_down = matches!(view.health, None | Some(NsdHealth::Failed));
    view.state != NsdState::Lost && (is_down || away::is_away(view, facts))
}

/// Whether an NSD takes no pieces of whole blocks any more. It says so itself only when nothing at all fits, the log neither.
/// One that was full is so until twice as much is left: at the brink each piece that comes or goes would be an event.
fn is_full(view: &NsdView, was_full: bool) -> bool {
    let usage = &view.usage;
    let little = NSD_FULL_BYTES.min(usage.capacity / NSD_FULL_PART);
    let is_little = usage.available < little * if was_full { 2 } else { 1 };
    view.health == Some(NsdHealth::Full) || (view.health == Some(NsdHealth::Online) && is_little)
}

fn subject_of(view: &NsdView) -> String {
    format!("NSD {} ({})", view.nsd, view.path.display())
}

/// One event for each NSD that is down, was removed while in use, or is full.
fn nsd_events(facts: &Facts, seen: &Seen) -> Vec<HealthEvent> {
    let is_at_risk = |view: &&NsdView| is_down(view, facts) || view.is_removed;
    let down = facts.nsds.iter().filter(is_at_risk).count();
    let severity = if down > facts.tolerance {
        CRITICAL
    } else {
        WARNING
    };
    let used = facts
        .nsds
        .iter()
        .filter(|view| view.state != NsdState::Lost);
    used.filter_map(|view| {
        if away::is_away(view, facts) {
            let since = seen.away.get(&view.nsd).copied().unwrap_or(facts.now);
            let (what, remedy) = away::trouble_of(view, facts, facts.now - since);
            return Some(event(severity, subject_of(view), what, remedy));
        }
        if is_down(view, facts) {
            let (what, first) = trouble_of(view);
            let remedy = format!(
                "{first}; it is retried every minute (`shale nsd open {0}`: at once), and pieces \
                 that it missed are repaired. Or give it up with `shale nsd remove {0}` and add \
                 another with `shale nsd add`",
                view.nsd
            );
            return Some(event(severity, subject_of(view), what, remedy));
        }
        if view.is_removed {
            let what = "its region was removed while in use: it serves until the daemon ends, and \
                        is lost then";
            let remedy = format!(
                "don't stop the daemon: `shale nsd add` another NSD, then `shale nsd remove {}` and \
                 wait until `shale nsd list` calls it lost",
                view.nsd
            );
            return Some(event(severity, subject_of(view), what, remedy));
        }
        if seen.full.contains(&view.nsd) {
            let remedy = "delete files, or add an NSD with `shale nsd add`";
            return Some(event(WARNING, subject_of(view), "full: it accepts no new data", remedy));
        }
        None
    })
    .collect()
}

/// NSDs that serve but fail some requests.
fn failure_events(facts: &Facts, seen: &Seen) -> Vec<HealthEvent> {
    let serving = facts.nsds.iter().filter(|view| serves(view, facts));
    serving
        .filter_map(|view| {
            let failures = seen.failures.get(&view.nsd)?;
            let at = failures.at?;
            if facts.now - at >= FAILURES_TOLD_FOR {
                return None;
            }
            let what = format!(
                "it failed {} requests since the daemon started, or didn't answer them for half a \
                 minute, most recently {} s ago; other NSDs were used where possible",
                failures.total(),
                (facts.now - at).as_secs()
            );
            let remedy = "look at the disk (`dmesg`, `smartctl -a`) and at what else keeps it busy \
                          (`iostat -x 1`)";
            Some(event(WARNING, subject_of(view), what, remedy))
        })
        .collect()
}

/// An NSD that takes longer than the others under the same load is slow; if all of them take long,
/// or the only one, they are busy.
fn pace_events(facts: &Facts) -> Vec<HealthEvent> {
    let serving = facts.nsds.iter().filter(|view| serves(view, facts));
    let serving: Vec<&NsdView> = serving.collect();
    let mut events = Vec::new();
    for view in &serving {
        let mut others: Vec<Duration> = serving
            .iter()
            .filter(|other| other.nsd != view.nsd)
            .filter_map(|other| other.read_time)
            .collect();
        others.sort_unstable();
        let usual = others.get(others.len() / 2);
        let slow = view
            .read_time
            .zip(usual)
            .filter(|(own, usual)| *own > SLOW_READS && *own > **usual * SLOW_TIMES);
        if let Some((own, usual)) = slow {
            let what = format!(
                "slow: for minutes its reads have taken {} ms, those of the other NSDs {} ms, \
                 not counting time in queues; other NSDs are used instead where possible",
                millis(own),
                millis(*usual)
            );
            let remedy = format!(
                "check the disk (`iostat -x 1`, `smartctl -a`, `dmesg`) and its other users; if it \
                 stays slow, replace it: `shale nsd add`, then `shale nsd remove {}`",
                view.nsd
            );
            events.push(event(WARNING, subject_of(view), what, remedy));
        } else if let Some(late) = view.read_latency.filter(|late| *late > BUSY_READS) {
            let what = format!(
                "busy: 1 of 100 reads of the last minutes took longer than {} ms",
                millis(late)
            );
            let remedy = "nothing is known to be wrong with it: less load makes it faster, or more \
                          NSDs on disks of their own (`shale nsd add`)";
            events.push(event(HINT, subject_of(view), what, remedy));
        }
    }
    events
}

fn serves(view: &NsdView, facts: &Facts) -> bool {
    view.state != NsdState::Lost && !is_down(view, facts)
}

fn millis(time: Duration) -> String {
    let micros = time.as_micros();
    if micros < 10_000 {
        return format!("{}.{}", micros / 1000, micros % 1000 / 100);
    }
    (micros / 1000).to_string()
}

/// What is wrong with an NSD that doesn't serve although its node is there, and the first step of the remedy.
fn trouble_of(view: &NsdView) -> (String, &'static str) {
    let Some(why) = &view.refused else {
        let what = "failed: its disk reported errors; it isn't used until it is reopened";
        return (what.into(), "look at the disk (`dmesg`, `smartctl -a`)");
    };
    let (word, first) = match why.kind() {
        ErrorKind::NotFound => ("missing", "bring the file or device back"),
        ErrorKind::ReadOnly => ("read-only", "make it writable"),
        ErrorKind::AccessDenied => ("not accessible", "change its rights"),
        ErrorKind::NotSupported => ("of a newer version", "upgrade this node"),
        ErrorKind::InvalidArgument => ("refused", "put the right region there"),
        ErrorKind::Busy => ("in use", "end what uses it"),
        _ => ("failed", "look at the disk (`dmesg`, `smartctl -a`)"),
    };
    (format!("{word}: {why}"), first)
}

fn segment_events(facts: &Facts) -> Vec<HealthEvent> {
    let mut events = Vec::new();
    let unreadable = &facts.repair.unreadable;
    if unreadable.segments > 0 || unreadable.has_more {
        let remedy = "bring back the NSDs that don't serve (`shale nsd list`); what stays \
                      unreadable must be restored from a backup or deleted. `shale fs check` \
                      reads everything, and its --json lists the files";
        let what = unreadable.sentence(FILES_NAMED);
        events.push(event(CRITICAL, "data", what, remedy));
    }
    if facts.repair.segments_degraded > 0 {
        let what = format!(
            "{} segments lack pieces: they survive fewer losses than they should",
            facts.repair.segments_degraded
        );
        let remedy = "`shale repair status` shows repair's progress; bring NSDs back, or add one \
                      with `shale nsd add` if it waits for one";
        events.push(event(WARNING, "redundancy", what, remedy));
    }
    if facts.repair.log_copies < facts.repair.log_copies_wanted {
        let what = format!(
            "the metadata's log is on {} NSDs; it should be on {}",
            facts.repair.log_copies, facts.repair.log_copies_wanted
        );
        let remedy = "bring NSDs back, or add one with `shale nsd add`; the log is then copied \
                      automatically";
        events.push(event(WARNING, "redundancy", what, remedy));
    }
    if facts.repair.narrow {
        let what =
            "some data was written with fewer copies while NSDs were away, and is being rewritten";
        let remedy = "wait; `shale repair status` shows when it is done";
        events.push(event(WARNING, "redundancy", what, remedy));
    }
    events
}

fn space_event(facts: &Facts) -> Option<HealthEvent> {
    let space = &facts.space;
    let remedy = "delete files, or add an NSD with `shale nsd add`";
    if space.capacity == 0 {
        // No NSD serves; their own events report that.
        return None;
    }
    let (left, unfreed) = (space.available_to_users, unfreed(facts));
    let little = FULL_BYTES.min(space.capacity / FULL_PART);
    if left < little && unfreed > little {
        let what = format!(
            "full for the moment: {} are left; writers wait until more of the {} that were removed \
             or overwritten is freed",
            crate::output::bytes(left),
            crate::output::bytes(unfreed)
        );
        let remedy = "writers get space as it is freed; if they wait for long (`shale waiters`), \
                      delete files, or add an NSD with `shale nsd add`";
        return Some(event(WARNING, "space", what, remedy));
    }
    if left == 0 {
        let what = "full: writes are refused with ENOSPC, deleting works";
        return Some(event(CRITICAL, "space", what, remedy));
    }
    if left < little {
        let what = format!(
            "full: only {} are left, most writes are refused with ENOSPC, deleting works",
            crate::output::bytes(left)
        );
        return Some(event(CRITICAL, "space", what, remedy));
    }
    // Rounded down: 100 % would mean that nothing is left.
    let used = space.capacity - left.min(space.capacity);
    let percent = u128::from(used) * 100 / u128::from(space.capacity);
    (percent >= u128::from(NEARLY_FULL_PERCENT)).then(|| {
        let what = format!(
            "nearly full: {percent} % of the space for files is in use, {} are left",
            crate::output::bytes(left)
        );
        event(WARNING, "space", what, remedy)
    })
}

/// Bytes that wait to be freed. They and the used bytes are counted a moment apart: freeing in
/// between must not show more than is in use.
fn unfreed(facts: &Facts) -> u64 {
    facts.unfreed.min(facts.space.used)
}

/// Reports space waiting to be freed; otherwise a full pool with small files would be unexplained.
fn unfreed_event(facts: &Facts) -> Option<HealthEvent> {
    let (space, unfreed) = (&facts.space, unfreed(facts));
    let is_much = unfreed > space.used / 2 && unfreed > space.capacity / UNFREED_PART;
    is_much.then(|| {
        let what = format!(
            "{} of the {} in use were removed or overwritten and wait to be freed",
            crate::output::bytes(unfreed),
            crate::output::bytes(space.used)
        );
        let remedy = "it is freed automatically, first for writers that need it; `shale waiters` \
                      lists those that wait";
        event(HINT, "space", what, remedy)
    })
}

fn damage_events(facts: &Facts, seen: &Seen) -> Vec<HealthEvent> {
    let recent = |at: &world::Instant| facts.now - *at < TOLD_FOR;
    let found = facts
        .nsds
        .iter()
        .filter(|view| view.state != NsdState::Lost);
    found
        .filter_map(|view| {
            let damage = seen.damage.get(&view.nsd)?;
            let at = damage.at.filter(recent)?;
            let what = format!(
                "damaged bytes were found {} times since the daemon started, most recently {} s \
                 ago; none were returned. In the whole pool {} pieces were replaced from \
                 redundancy, and indexes were rebuilt {} times",
                damage.total(),
                (facts.now - at).as_secs(),
                facts.pieces_mended,
                facts.nsds.iter().map(|view| view.rebuilt).sum::<u64>()
            );
            let remedy = format!(
                "run `shale nsd scrub {0}`, then `shale fs check --deep`; look at the disk \
                 (`smartctl -a`), replace it if this comes back",
                view.nsd
            );
            Some(event(WARNING, subject_of(view), what, remedy))
        })
        .collect()
}

/// What went with lost sessions, in words.
fn gone(lost: &client::Losses) -> String {
    format!(
        "written data of {} files, locks on {} files and {} open files without names are gone",
        lost.files_with_data, lost.files_with_locks, lost.files_without_names
    )
}

/// What is to be told of the sessions that were lost since it was told last; `None`: there are none.
pub fn newly_lost(before: &client::Losses, now: &client::Losses) -> Option<String> {
    let newly = |count: fn(&client::Losses) -> u64| count(now).saturating_sub(count(before));
    let lost = client::Losses {
        sessions: newly(|it| it.sessions),
        files_with_data: newly(|it| it.files_with_data),
        files_with_locks: newly(|it| it.files_with_locks),
        files_without_names: newly(|it| it.files_without_names),
    };
    let told = || format!("this node's client lost its session: {}", gone(&lost));
    (lost.sessions > 0).then(told)
}

/// Sessions that were lost within a day.
fn session_event(facts: &Facts, seen: &Seen) -> Option<HealthEvent> {
    let recent = |at: &world::Instant| facts.now - *at < TOLD_FOR;
    let at = seen.sessions.at.filter(recent)?;
    let what = format!(
        "this node's client lost its session {} times since the daemon started, most recently {} s \
         ago: {}",
        facts.lost.sessions,
        (facts.now - at).as_secs(),
        gone(&facts.lost)
    );
    let remedy = "close the files whose programs get EIO and open them again; the log names them. \
                  Look at the network and at the NSDs: the owner didn't hear from this node for 9 s, \
                  or what others waited for couldn't be stored";
    Some(event(WARNING, "client session", what, remedy))
}

/// `shale health` of a node while the requests of its mounts are held, because of `why`, and nothing else can be said.
pub fn while_held(why: &str) -> Health {
    Health {
        state: "degraded".into(),
        events: vec![held_event(why)],
    }
}

/// `shale health` of a node that was expelled by hand, and whose daemon waits until it is let in. `why`: in words.
pub fn while_kept_out(node: u32, why: &str) -> Health {
    let what = format!("it was expelled by hand, and its mounts give EIO: {why}");
    let remedy = format!(
        "`shale node unexpel {node}` on another node lets it in, and it joins again by itself; `shale down` here ends its daemon"
    );
    Health {
        state: CRITICAL.into(),
        events: vec![event(CRITICAL, "this node", what, remedy)],
    }
}

fn held_event(why: &str) -> HealthEvent {
    let what = format!("every request of programs waits for {BECOMES_FIRST}: {why}");
    event(WARNING, "programs", what, BECOMES_FIRST_REMEDY)
}

/// Programs that hang, or soon will.
fn waiting_event(facts: &Facts) -> Option<HealthEvent> {
    let is_long = |it: &&WaitingRequest| it.since >= WAITED_LONG && it.request != LOCK_REQUEST;
    let long = facts.waiting.iter().filter(is_long);
    let count = long.clone().count();
    let longest = long.max_by_key(|it| it.since)?;
    let what = format!(
        "{count} requests of programs have waited for over {} s, the longest for {} s: {} of process {} on inode {}",
        WAITED_LONG.as_secs(),
        longest.since.as_secs(),
        longest.request,
        longest.pid,
        longest.inode
    );
    let remedy = match facts.cluster {
        Some(_) => {
            "`shale waiters --all` shows what they wait for, from node to node, and what can be done there"
        }
        None => "`shale waiters` shows what they wait for, and what can be done",
    };
    Some(event(WARNING, "programs", what, remedy))
}

fn metadata_event(facts: &Facts) -> Option<HealthEvent> {
    let why = facts.metadata.as_ref()?;
    let remedy = "bring back the NSDs that hold the log (their events say how); the metadata is \
                  then reopened automatically";
    let what = format!("the metadata doesn't serve, operations fail with EIO: {why}");
    Some(event(CRITICAL, "metadata", what, remedy))
}

/// What is wrong with this node's place in the cluster, and with the cluster as it sees it.
fn cluster_events(facts: &Facts) -> Vec<HealthEvent> {
    let Some(cluster) = &facts.cluster else {
        return Vec::new();
    };
    let mut events = Vec::new();
    if let Some(stop) = &cluster.stop {
        events.push(stop_event(stop));
        // All else that is missing is meant to be.
        if stop.stage != Stage::GoesOn {
            return events;
        }
    }
    if !cluster.has_lease {
        let what = "the node has no lease: its owners answer nothing, and its mounts wait";
        let remedy = "look whether the network reaches the other nodes (`shale node list` there), and whether most of \
                      the quorum nodes run; it goes on by itself";
        events.push(event(CRITICAL, "this node", what, remedy));
    }
    if !cluster.has_manager {
        let what = "no node is the cluster's manager: nodes that die aren't replaced";
        let remedy = "see that most of the quorum nodes run, with an etcd of your own most of its members: without them \
                      coordination answers nothing";
        events.push(event(CRITICAL, "cluster", what, remedy));
    }
    events.extend(cluster.etcd.iter().flat_map(etcd_events));
    events.extend(cluster.certificate.as_ref().and_then(certificate_event));
    events.extend(security_events(cluster));
    for (node, cause) in &cluster.expelled {
        let what = format!("it was expelled: {cause}");
        let remedy = format!(
            "start its daemon again (`shale up` there) or look why it can't be reached; if it doesn't come back: `shale node \
             remove {node}`, which says what is to be done before"
        );
        events.push(event(WARNING, format!("node {node}"), what, remedy));
    }
    events.extend(reaching::events(cluster));
    for shard in &cluster.unowned {
        let what = "no node serves it now: operations on it wait";
        let remedy = "wait some seconds; if it stays so, see `shale node list`";
        events.push(event(WARNING, format!("shard {shard}"), what, remedy));
    }
    events
}

/// It takes a minute or two, and somewhat longer if whoever stops the cluster has died.
fn stop_event(stop: &Stop) -> HealthEvent {
    let node = stop.by.node;
    let wait = format!(
        "wait a minute or two: if node {node} is gone, another one finishes that or calls it off. If it takes longer: \
         `shale cluster stop` on any node, or `shale down` and `shale up` here"
    );
    let (what, remedy) = match stop.stage {
        Stage::Unmounted => (
            format!("node {node} stops the cluster: the mounts here have ended"),
            wait,
        ),
        Stage::Ends => (
            format!(
                "node {node} stops the cluster: this node ends, and serves nothing more"
            ),
            wait,
        ),
        Stage::GoesOn => (
            format!(
                "node {node} stopped the cluster, and that was called off: the mounts here are being made again"
            ),
            "wait: it is tried again until they are made; the log (daemon.log) says what is in the way".into(),
        ),
    };
    event(WARNING, "this node", what, remedy)
}

/// A certificate that ends takes its node out of the cluster.
fn certificate_event(certificate: &CertificateFacts) -> Option<HealthEvent> {
    const DAY: i64 = 24 * 60 * 60;
    let why = certificate
        .trouble
        .as_ref()
        .filter(|_| certificate.is_due)?;
    let (days, hours) = (
        certificate.seconds_left / DAY,
        certificate.seconds_left / 3600,
    );
    let (severity, left) = match certificate.seconds_left {
        ..=0 => (CRITICAL, "has ended".to_string()),
        left if left < 2 * DAY => (CRITICAL, format!("ends in {hours} hours")),
        left if left < 30 * DAY => (CRITICAL, format!("ends in {days} days")),
        _ => (WARNING, format!("ends in {days} days")),
    };
    let what = format!("the node's certificate {left}, and it couldn't be renewed: {why}");
    let remedy = "see that a quorum node runs and that this node reaches it (`shale node list`), and that the clocks are \
                  right; it is tried again by itself. Without a certificate the node can't talk to others";
    Some(event(severity, "certificate", what, remedy))
}

/// What is to be known of keys and of how connections are protected.
fn security_events(cluster: &ClusterFacts) -> Vec<HealthEvent> {
    let mut events = Vec::new();
    if cluster.takes_plain {
        let what = "connections between nodes aren't protected (cipher_list is EMPTY, or is being changed from it): whoever \
                    reaches a node's port can pass for any other node, and read and change what all of them store";
        let remedy = "outside of laboratories: `shale config set cipher_list AUTHONLY`";
        events.push(event(WARNING, "connections", what, remedy));
    }
    if let Some(why) = &cluster.security_trouble {
        let what =
            format!("this node can't do its part of a change of keys or of cipher_list: {why}");
        let remedy = "it is tried again by itself; `shale cluster rotate-keys --status` shows which nodes are waited for";
        events.push(event(WARNING, "keys", what, remedy));
    }
    if cluster.rotates {
        let what = "the cluster's keys are being replaced: both the old authority and the new one are trusted";
        let remedy = "`shale cluster rotate-keys --status` shows which nodes are waited for; when none is: `shale cluster \
                      rotate-keys --finish`";
        events.push(event(HINT, "keys", what, remedy));
    }
    let still = &cluster.still_trusting;
    if !still.is_empty() {
        let shown = &still[..still.len().min(NODES_NAMED)];
        let more = match still.len() - shown.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let what = format!(
            "the cluster's old authority was replaced, and is trusted still by {}{more}: whoever has one of its keys is let \
             in there",
            shown.join(", ")
        );
        let remedy = "those that are up stop it in some seconds; start the others, or remove those that are gone for good \
                      (`shale node remove`). `shale cluster rotate-keys --status` shows more";
        events.push(event(HINT, "keys", what, remedy));
    }
    events
}

fn etcd_events(etcd: &EtcdFacts) -> Vec<HealthEvent> {
    let mut events = Vec::new();
    let wrong = etcd.members.iter();
    let wrong =
        wrong.filter_map(|(place, trouble)| Some(format!("{place} ({})", trouble.as_ref()?)));
    let wrong: Vec<_> = wrong.collect();
    let (all, up) = (etcd.members.len(), etcd.members.len() - wrong.len());
    if !wrong.is_empty() {
        let severity = if up * 2 > all { WARNING } else { CRITICAL };
        let what = format!(
            "{up} of {all} members of etcd work, not {}",
            wrong.join(", ")
        );
        let remedy = "start the daemons of the quorum nodes that are away (`shale node list`); where they run, see whether the \
                      disk is full (`shale health` there), and look at etcd.log in their directories: while most members \
                      are away nothing can be changed in the cluster";
        events.push(event(severity, "coordination", what, remedy));
    }
    if etcd.is_full {
        let what = "etcd's database is full: nothing can be changed in the cluster, and nodes that die aren't replaced";
        let remedy = "an etcd that Shale runs drops its history by itself within a minute, once most of its members \
                      answer; if it stays full, see that no quorum node's disk is full (`shale health` there); if others \
                      run it: compact and defragment it (`etcdctl`), or raise its --quota-backend-bytes";
        events.push(event(CRITICAL, "coordination", what, remedy));
    }
    for complaint in &etcd.complaints {
        let remedy = "look at etcd.log on that node; a member whose data differ must be removed (`etcdctl member remove`) \
                      and added anew";
        events.push(event(
            CRITICAL,
            "coordination",
            format!("etcd complains: {complaint}"),
            remedy,
        ));
    }
    events
}

/// A missing mount looks like an empty directory: report it, and how to bring it back.
fn mount_events(facts: &Facts) -> Vec<HealthEvent> {
    let MountFacts {
        dir,
        lost,
        missing,
        dead,
        lines,
        held: _,
    } = &facts.mounts;
    let missing = missing.iter().map(|(mount, why)| {
        let what = format!("the mount isn't made yet; it is tried again until it is: {why}");
        let remedy = "the node serves the cluster meanwhile. If nobody serves the file system, start the nodes that are \
                      away (`shale node list`); if the mount point is to blame, put it right, and it is used by itself";
        event(WARNING, format!("mount {mount}"), what, remedy)
    });
    let dead = dead.iter().map(|(place, why)| {
        let place = place.display();
        let what = format!("it is dead: programs get errors; it can't be made again yet: {why}");
        let remedy = format!(
            "it is tried again every few seconds, and served by itself once it can be. If nobody serves the file system, \
             start the nodes that are away (`shale node list`); if the mount point is to blame, put it right; if nobody \
             needs the mount, end it: `shale umount --dir {dir} {place}`"
        );
        event(WARNING, format!("mount {place}"), what, remedy)
    });
    let gone = lost.iter().map(|mount| {
        let what = "the mount is gone: it was unmounted; the node keeps running";
        let remedy = format!(
            "`shale up --dir {dir}` mounts it again, `shale down --dir {dir}` ends the node"
        );
        event(WARNING, format!("mount {mount}"), what, remedy)
    });
    let lazily = lines
        .iter()
        .filter(|line| line.state == "detached")
        .map(|line| {
            let what = "it was unmounted lazily; programs that had files open still use it";
            let remedy = format!(
                "end those programs; `shale mount --dir {dir} {}` mounts again beside them",
                line.path
            );
            event(WARNING, format!("mount {}", line.path), what, remedy)
        });
    // A hint only: it works, just slower than it could.
    let slower = lines.iter().filter_map(|line| {
        let why = line.slower_because.as_ref()?;
        let what = "requests come through /dev/fuse; through io_uring they would cost less";
        Some(event(HINT, format!("mount {}", line.path), what, why))
    });
    let away = missing.chain(dead).chain(gone);
    away.chain(lazily).chain(slower).collect()
}

fn clock_event(facts: &Facts, seen: &Seen) -> Option<HealthEvent> {
    let remedy = "set the clock right (`chronyc makestep`); stored times never go back, new \
                  files get the time that the clock shows";
    if facts.clock_lag > CLOCK_SLACK {
        let what = format!(
            "the clock is {} s behind the newest time that is stored: it was set back",
            facts.clock_lag.as_secs()
        );
        return Some(event(WARNING, "clock", what, remedy));
    }
    let (at, lost) = seen.set_back?;
    (facts.now - at < TOLD_FOR).then(|| {
        let what = format!(
            "the clock was set back by {} s, {} s ago",
            lost.as_secs(),
            (facts.now - at).as_secs()
        );
        event(WARNING, "clock", what, remedy)
    })
}

#[cfg(test)]
mod tests;
