//! What isn't well and what to do about it: every event of `shale health` is made here, from facts.

use crate::admin::{Health, HealthEvent, MountLine};
use model::{ErrorKind, NsdId, map::NsdState, nsd::NsdHealth};
use parking_lot::Mutex;
use shale::node::NsdView;
use std::collections::BTreeMap;
use std::time::Duration;

/// From this share of the space in use on, the pool is nearly full.
const NEARLY_FULL_PERCENT: u64 = 90;
/// Reads of an NSD that take this long make everybody wait.
const SLOW_READS: Duration = Duration::from_millis(500);
/// Damage that was mended, and a clock that was set back, are told for this long.
const TOLD_FOR: Duration = Duration::from_secs(24 * 3600);
/// A calendar that lags behind the steady clock by less is being adjusted, not set.
const CLOCK_SLACK: Duration = Duration::from_secs(2);

/// What a judgement is made from.
pub struct Facts {
    /// Every NSD of the map.
    pub nsds: Vec<NsdView>,
    /// How many of them may be lost.
    pub tolerance: usize,
    /// What repair knows.
    pub repair: metanode::RepairStatus,
    /// Space of the pool.
    pub space: pool::PoolUsage,
    /// Pieces of segments that were damaged and have been replaced.
    pub pieces_mended: u64,
    /// Why the metadata doesn't serve, if so.
    pub metadata: Option<model::Error>,
    /// Its mounts.
    pub mounts: MountFacts,
    /// How far the calendar lags behind the newest time that is stored.
    pub clock_lag: Duration,
    /// The steady clock.
    pub now: world::Instant,
    /// The calendar.
    pub wall: model::Timestamp,
}

/// The mounts of the node.
#[derive(Default)]
pub struct MountFacts {
    /// The node's directory, for what to do.
    pub dir: String,
    /// Where the node's own mount should be, if it is gone.
    pub lost: Option<String>,
    /// The mounts that there are.
    pub lines: Vec<MountLine>,
}

/// What was seen before, for what only shows over time.
#[derive(Default)]
pub struct History {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    damage: BTreeMap<NsdId, Damage>,
    clock: Option<(world::Instant, model::Timestamp)>,
    set_back: Option<(world::Instant, Duration)>,
}

/// Damage of one NSD since the daemon began to serve.
#[derive(Clone, Copy, Default)]
struct Damage {
    /// Of NSD openings before this one.
    before: u64,
    last: u64,
    at: Option<world::Instant>,
}

impl Damage {
    fn total(&self) -> u64 {
        self.before + self.last
    }
}

impl History {
    /// Notes what is to be remembered. Often enough that no opening of an NSD comes and goes in
    /// between.
    pub fn note(&self, facts: &Facts) {
        let mut seen = self.seen.lock();
        for view in &facts.nsds {
            let damage = seen.damage.entry(view.nsd).or_default();
            let found = view.damage_found + view.rebuilt;
            if found < damage.last {
                damage.before += damage.last;
                damage.last = 0;
            }
            if found > damage.last {
                damage.last = found;
                damage.at = Some(facts.now);
            }
        }
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

    /// Everything that isn't well, worst first.
    pub fn judge(&self, facts: &Facts) -> Health {
        self.note(facts);
        let seen = self.seen.lock();
        let mut events = Vec::new();
        events.extend(metadata_event(facts));
        events.extend(mount_events(facts));
        events.extend(nsd_events(facts));
        events.extend(segment_events(facts));
        events.extend(space_event(facts));
        events.extend(damage_events(facts, &seen));
        events.extend(clock_event(facts, &seen));
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

fn is_down(view: &NsdView) -> bool {
    view.state != NsdState::Lost && matches!(view.health, None | Some(NsdHealth::Failed))
}

fn subject_of(view: &NsdView) -> String {
    format!("NSD {} ({})", view.nsd, view.path.display())
}

/// One event for each NSD that doesn't do what it should.
fn nsd_events(facts: &Facts) -> Vec<HealthEvent> {
    let down = facts.nsds.iter().filter(|view| is_down(view)).count();
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
        if is_down(view) {
            let (what, first) = trouble_of(view);
            let remedy = format!(
                "{first}; it is tried again every minute (`shale nsd open {0}`: at once) and \
                 what it missed is repaired. Or give it up with `shale nsd remove {0}` and add \
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
            return Some(event(CRITICAL, subject_of(view), what, remedy));
        }
        if view.health == Some(NsdHealth::Full) {
            let remedy = "delete files, or add an NSD with `shale nsd add`";
            return Some(event(WARNING, subject_of(view), "full: it takes nothing new", remedy));
        }
        if view.is_suspect || view.read_latency > SLOW_READS {
            let what = format!(
                "slow: it failed or was very late within the last seconds, or reads take long \
                 (99 of 100 within {} ms); others are asked instead where they can",
                view.read_latency.as_millis()
            );
            let remedy = format!(
                "look at the disk (`iostat -x 1`, `smartctl -a`, `dmesg`); if it stays slow, \
                 replace it: `shale nsd add`, then `shale nsd remove {}`",
                view.nsd
            );
            return Some(event(WARNING, subject_of(view), what, remedy));
        }
        None
    })
    .collect()
}

/// What is wrong with an NSD that doesn't serve, and the first thing to do.
fn trouble_of(view: &NsdView) -> (String, &'static str) {
    let Some(why) = &view.refused else {
        let what =
            "failed: its disk reported errors, nothing is asked of it until it is opened again";
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
    let unreadable = &facts.repair.segments_unreadable;
    if let Some(first) = unreadable.first() {
        let what = format!(
            "{} segments (the first is {first}) have lost more pieces than their scheme \
             tolerates; reading what is in them is EIO",
            unreadable.len()
        );
        let remedy = "bring a lost NSD back; else `shale fs check` names the files to restore \
                      from a backup or to delete";
        events.push(event(CRITICAL, "data", what, remedy));
    }
    if facts.repair.segments_degraded > 0 {
        let what = format!(
            "{} segments lack pieces: they survive fewer losses than they should",
            facts.repair.segments_degraded
        );
        let remedy = "`shale repair status` shows how far repair is; bring NSDs back, or add one \
                      with `shale nsd add` if it waits for one";
        events.push(event(WARNING, "redundancy", what, remedy));
    }
    if facts.repair.log_copies < facts.repair.log_copies_wanted {
        let what = format!(
            "the metadata's log is on {} NSDs, it should be on {}",
            facts.repair.log_copies, facts.repair.log_copies_wanted
        );
        let remedy =
            "bring NSDs back, or add one with `shale nsd add`; the log is copied by itself";
        events.push(event(WARNING, "redundancy", what, remedy));
    }
    if facts.repair.narrow {
        let what = "some data was written with fewer copies while NSDs were away, and is being \
                    written anew";
        let remedy = "wait; `shale repair status` shows when it is done";
        events.push(event(WARNING, "redundancy", what, remedy));
    }
    events
}

fn space_event(facts: &Facts) -> Option<HealthEvent> {
    let space = &facts.space;
    let remedy = "delete files, or add an NSD with `shale nsd add`";
    if space.capacity == 0 {
        // No NSD is there: the events of NSDs say so.
        return None;
    }
    if space.available_to_users == 0 {
        let what = "full: writes are refused with ENOSPC, deleting works";
        return Some(event(CRITICAL, "space", what, remedy));
    }
    let percent = 100 - space.available_to_users.min(space.capacity) * 100 / space.capacity;
    (percent >= NEARLY_FULL_PERCENT).then(|| {
        let what = format!(
            "nearly full: {percent} % of the space for files is in use, {} are left",
            crate::output::bytes(space.available_to_users)
        );
        event(WARNING, "space", what, remedy)
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
                "damaged bytes were met {} times since the daemon began to serve, the last time \
                 {} s ago; none was returned. In the whole pool {} pieces were replaced from \
                 redundancy, {} times an index was rebuilt",
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

fn metadata_event(facts: &Facts) -> Option<HealthEvent> {
    let why = facts.metadata.as_ref()?;
    let remedy = "bring back the NSDs that hold the log (events of NSDs say how); the metadata is \
                  opened again by itself";
    let what = format!("the metadata doesn't serve, operations are EIO: {why}");
    Some(event(CRITICAL, "metadata", what, remedy))
}

/// A mount that was taken away looks like an empty directory: say so, and how it comes back.
fn mount_events(facts: &Facts) -> Vec<HealthEvent> {
    let MountFacts { dir, lost, lines } = &facts.mounts;
    let gone = lost.iter().map(|mount| {
        let what = "the mount is gone: somebody unmounted it; the node runs on";
        let remedy = format!(
            "`shale up --dir {dir}` mounts it again, `shale down --dir {dir}` ends the node"
        );
        event(WARNING, format!("mount {mount}"), what, remedy)
    });
    let lazily = lines
        .iter()
        .filter(|line| line.state != "mounted")
        .map(|line| {
            let what = "it was unmounted lazily; programs that had files open still use it";
            let remedy = format!(
                "end those programs; `shale mount --dir {dir} {}` mounts again beside them",
                line.path
            );
            event(WARNING, format!("mount {}", line.path), what, remedy)
        });
    // Correct, only slower than it could be: a hint, nothing that isn't well.
    let slower = lines.iter().filter_map(|line| {
        let why = line.slower_because.as_ref()?;
        let what = "requests come through /dev/fuse; through io_uring they would cost less";
        Some(event(HINT, format!("mount {}", line.path), what, why))
    });
    gone.chain(lazily).chain(slower).collect()
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
