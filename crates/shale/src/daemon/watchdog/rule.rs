//! When the mounts of a daemon are aborted: state in, decision out.

use super::messages::MountNumber;
use model::member::NODE_LEASE;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;
use world::host::MachineTime;

/// How often a daemon that can run beats.
pub const BEAT_EVERY: Duration = Duration::from_millis(500);
/// How often the watchdog looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A daemon that hasn't beaten for so long can't run. Others change what it has cached when its lease is over, and that
/// ends at most as long as a whole one after its last beat.
const SILENCE_MAX: Duration = Duration::from_secs(4);
/// Most time between two looks that counts as silence: a watchdog that couldn't run itself knows of no more, and the
/// machine may have kept both from running.
const GAP_MAX: Duration = Duration::from_secs(1);
/// Requests that are unanswered so long after the abort, while the daemon still can't run, wait for its end: the kernel
/// ended all others at once. A daemon that goes on before serves again by itself; also the kernel's own requests, for
/// which no program waits, may be left.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// Clocks don't agree better than that on for how long the machine has slept.
const SLEPT_MIN: Duration = Duration::from_secs(1);

const _: () = assert!(SILENCE_MAX.as_millis() <= NODE_LEASE.as_millis());
const _: () = assert!(BEAT_EVERY.as_millis() * 4 <= SILENCE_MAX.as_millis());

/// The watchdog's knowledge of its daemon.
#[derive(Debug, Default)]
pub struct Rule {
    /// The mounts that are served.
    mounts: BTreeSet<MountNumber>,
    /// Until when the daemon may serve, as its last beat said.
    serves_until: Duration,
    /// For how long the machine had slept at that beat.
    asleep: Duration,
    /// For how long no beat has come, as far as this process could see.
    silence: Duration,
    looked: Option<Duration>,
    /// How long the silence was when mounts were aborted, if no beat has come since.
    aborted_at: Option<Duration>,
}

/// The daemon's mounts are to be aborted.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Which.
    pub mounts: BTreeSet<MountNumber>,
    /// Why.
    pub cause: Cause,
}

/// Why mounts are aborted.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Cause {
    /// The daemon didn't beat for so long.
    Silence(Duration),
    /// The machine slept for so long, beyond the daemon's time. Its kernel counts no time while it sleeps.
    Sleep(Duration),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silence(time) => write!(
                f,
                "the daemon could not run for {:.1} s, and its lease is over",
                time.as_secs_f64()
            ),
            Self::Sleep(time) => write!(
                f,
                "the machine slept for {:.1} s, and the node's lease is over",
                time.as_secs_f64()
            ),
        }
    }
}

impl Rule {
    /// The daemon serves one more mount.
    pub fn watch(&mut self, mount: MountNumber) {
        self.mounts.insert(mount);
        // It could run just now.
        self.silence = Duration::ZERO;
        self.aborted_at = None;
    }

    /// As [`Rule::watch`], for a mount that couldn't be seen until now: this tells nothing of the daemon.
    pub fn watch_late(&mut self, mount: MountNumber) {
        self.mounts.insert(mount);
    }

    /// A mount has ended.
    pub fn forget(&mut self, mount: MountNumber) {
        self.mounts.remove(&mount);
    }

    /// The daemon could run, and may serve until then; the machine had slept for so long.
    pub fn beat(&mut self, serves_until: Duration, asleep: Duration) {
        self.serves_until = serves_until;
        self.asleep = asleep;
        self.silence = Duration::ZERO;
        self.aborted_at = None;
    }

    /// What to do now. All that the daemon has said was heard before.
    pub fn look(&mut self, now: MachineTime) -> Option<Verdict> {
        let before = self.looked.replace(now.since_start);
        let gap = before.map_or(Duration::ZERO, |it| now.since_start.saturating_sub(it));
        self.silence += gap.min(GAP_MAX);
        let is_over = now.since_start >= self.serves_until;
        if self.mounts.is_empty() || !is_over {
            return None;
        }
        let slept = now.asleep.saturating_sub(self.asleep);
        let cause = if slept >= SLEPT_MIN {
            Cause::Sleep(slept)
        } else if self.silence >= SILENCE_MAX {
            Cause::Silence(self.silence)
        } else {
            return None;
        };
        self.aborted_at = Some(self.silence);
        Some(Verdict {
            mounts: std::mem::take(&mut self.mounts),
            cause,
        })
    }

    /// Whether requests that are unanswered now have outlived the abort of their mounts, and only the daemon's end ends
    /// them. To be asked after each look.
    pub fn are_stuck(&self) -> bool {
        self.aborted_at
            .is_some_and(|at| self.silence >= at + ENDS_WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNT: MountNumber = MountNumber(7);

    /// A watchdog with its daemon and a clock.
    struct Case {
        rule: Rule,
        now: Duration,
        asleep: Duration,
    }

    impl Case {
        fn new() -> Self {
            let mut case = Self {
                rule: Rule::default(),
                now: Duration::from_secs(1_000),
                asleep: Duration::from_secs(100),
            };
            case.beat(NODE_LEASE);
            case.rule.watch(MOUNT);
            case
        }

        fn beat(&mut self, lease: Duration) {
            self.rule.beat(self.now + lease, self.asleep);
        }

        fn look(&mut self) -> Option<Verdict> {
            self.rule.look(MachineTime {
                since_start: self.now,
                asleep: self.asleep,
            })
        }

        /// Looks all the time, for so long at most; what is decided, and when.
        fn silent_for(&mut self, time: Duration) -> Option<(Duration, Verdict)> {
            let begun = self.now;
            loop {
                if let Some(verdict) = self.look() {
                    return Some((self.now - begun, verdict));
                }
                if self.now - begun >= time {
                    return None;
                }
                self.now += LOOK_EVERY;
            }
        }
    }

    #[test]
    fn the_mounts_of_a_silent_daemon_are_aborted_when_its_lease_is_over() {
        let mut case = Case::new();
        let another = MountNumber(8);
        case.rule.watch(another);
        let (after, verdict) = case.silent_for(NODE_LEASE * 10).unwrap();
        assert_eq!(after, NODE_LEASE);
        assert_eq!(verdict.mounts, BTreeSet::from([MOUNT, another]));
        assert!(matches!(verdict.cause, Cause::Silence(_)));
        // Once.
        assert_eq!(case.silent_for(NODE_LEASE * 10), None);
        // One that is seen only now is no sign of life.
        case.rule.watch_late(another);
        let (after, verdict) = case.silent_for(NODE_LEASE * 10).unwrap();
        assert_eq!(after, Duration::ZERO);
        assert_eq!(verdict.mounts, BTreeSet::from([another]));
        // One that it serves afterwards counts anew.
        case.beat(NODE_LEASE);
        let later = MountNumber(9);
        case.rule.watch(later);
        let (after, verdict) = case.silent_for(NODE_LEASE * 10).unwrap();
        assert_eq!(after, NODE_LEASE);
        assert_eq!(verdict.mounts, BTreeSet::from([later]));
    }

    #[test]
    fn a_daemon_that_runs_without_a_lease_keeps_its_mounts() {
        let mut case = Case::new();
        // Cut off: its programs wait.
        for _ in 0..1_000 {
            case.rule.beat(Duration::ZERO, case.asleep);
            assert_eq!(case.silent_for(BEAT_EVERY * 4), None);
        }
        let (after, _) = case.silent_for(NODE_LEASE * 10).unwrap();
        assert!(after <= SILENCE_MAX, "{after:?}");
    }

    #[test]
    fn a_daemon_that_is_held_up_within_its_lease_keeps_its_mounts() {
        let mut case = Case::new();
        for _ in 0..100 {
            case.beat(NODE_LEASE);
            assert_eq!(case.silent_for(NODE_LEASE - LOOK_EVERY), None);
        }
    }

    #[test]
    fn what_the_watchdog_could_not_see_is_no_silence_but_a_starved_one_decides_at_last() {
        let mut case = Case::new();
        assert_eq!(case.look(), None);
        // Both were frozen, and the daemon may beat any moment.
        case.now += Duration::from_secs(3_600);
        assert_eq!(case.look(), None);
        case.beat(Duration::ZERO);
        assert_eq!(case.look(), None);
        // It gets a moment every ten seconds.
        let mut looks = 0;
        while case.look().is_none() {
            case.now += Duration::from_secs(10);
            looks += 1;
        }
        assert_eq!(looks, SILENCE_MAX.as_secs() / GAP_MAX.as_secs());
    }

    #[test]
    fn a_machine_that_slept_beyond_the_lease_ends_the_mounts_at_once() {
        let mut case = Case::new();
        assert_eq!(case.look(), None);
        let sleep = Duration::from_secs(3_600);
        (case.now, case.asleep) = (case.now + sleep, case.asleep + sleep);
        let verdict = case.look().unwrap();
        assert_eq!(verdict.cause, Cause::Sleep(sleep));
        // A short sleep, within the lease.
        let mut case = Case::new();
        let sleep = NODE_LEASE / 2;
        (case.now, case.asleep) = (case.now + sleep, case.asleep + sleep);
        assert_eq!(case.look(), None);
        // The daemon has its lease again: its kernel's answers are younger than that.
        case.beat(NODE_LEASE);
        case.now += NODE_LEASE;
        assert_eq!(case.look(), None);
    }

    #[test]
    fn what_outlives_the_abort_is_stuck_unless_the_daemon_beats() {
        let mut case = Case::new();
        case.silent_for(NODE_LEASE * 10).unwrap();
        assert!(!case.rule.are_stuck());
        case.silent_for(ENDS_WITHIN - LOOK_EVERY);
        assert!(!case.rule.are_stuck());
        // Nobody could run.
        case.now += Duration::from_secs(3_600);
        case.look();
        case.beat(Duration::ZERO);
        case.silent_for(SILENCE_MAX * 2);
        assert!(!case.rule.are_stuck(), "nothing is aborted since it beat");
        case.rule.watch(MOUNT);
        case.silent_for(NODE_LEASE * 10).unwrap();
        case.silent_for(ENDS_WITHIN);
        assert!(case.rule.are_stuck());
    }

    #[test]
    fn what_has_ended_is_not_aborted() {
        let mut case = Case::new();
        case.rule.forget(MOUNT);
        assert_eq!(case.silent_for(NODE_LEASE * 10), None);
        case.rule.watch(MOUNT);
        let (after, _) = case.silent_for(NODE_LEASE * 10).unwrap();
        assert_eq!(after, SILENCE_MAX);
    }
}
