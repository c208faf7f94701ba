//! Lanes to another node: what each carries, how many connections it has, and which of them takes a
//! call. No I/O.

use model::call::{BODY_BYTES_MAX, Class};
use model::{Error, ErrorKind, Result};

/// Most connections of a pair of nodes, in each direction, that [`Connections::max`] counts.
pub const CONNECTIONS_MAX: u8 = 8;

/// Largest part of the counted connections that small messages can have for themselves.
const SMALL_PERCENT_MAX: u8 = 50;

/// Largest message that can be called small: some of them fit into the credits of their lane.
const SMALL_BYTES_MAX: u32 = 4 << 20;

const _: () = assert!(SMALL_BYTES_MAX as usize >= BODY_BYTES_MAX);

/// What a connection is for. A call never waits for a connection of another lane, nor behind the
/// bytes of one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lane {
    /// Leases and heartbeats. One connection; its tasks are on the urgent thread
    /// (`World::urgent`) of both nodes.
    Lease,
    /// What a program waits for and is small. One connection that isn't counted, and those that
    /// [`Connections::small_percent`] reserves.
    Small,
    /// File data, and everything that repair moves. The rest of the counted connections, at least
    /// one.
    Bulk,
}

/// How many connections a node wants to each other node, and what they are used for. May be changed
/// at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connections {
    /// Counted connections to a node (`maxTcpConnsPerNodeConn`): 1 to [`CONNECTIONS_MAX`], default 2.
    /// The smaller wish of both nodes counts. One connection is as fast as one core can receive, and
    /// a bond sends each over one link; more of them share a link worse than few.
    pub max: u8,
    /// Bytes of request and largest reply together up to which file data takes the lane of small
    /// messages (`tscSmallMsgSizeThreshold`): 0 (none) to 4 MiB, default 512 KiB. Larger messages
    /// would hold up those that are really small.
    pub small_threshold_bytes: u32,
    /// Percentage of the counted connections that small messages have besides their own
    /// (`tscSmallMsgTcpConnPct`): 0 to 50, default 0; rounded down, so that 49 of two connections
    /// reserve none. For nodes whose small messages fill a connection.
    pub small_percent: u8,
}

impl Lane {
    /// All lanes.
    pub const ALL: [Self; 3] = [Self::Lease, Self::Small, Self::Bulk];

    /// Its place in tables with one entry per lane.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Lease => 0,
            Self::Small => 1,
            Self::Bulk => 2,
        }
    }

    /// Its number in a hello.
    pub(crate) fn number(self) -> u8 {
        self.index() as u8 + 1
    }

    /// The lane of a call that takes so many bytes of credits.
    ///
    /// Metadata takes the small one whatever its size: a program waits for it, and the few large
    /// requests among it (a commit's entry in the log) are what an fsync waits for. Its largest reply
    /// says nothing about its size, because most requests allow for the largest listing. Small file
    /// data goes with it, because a random read of 4 KiB shall not wait behind blocks of 4 MiB.
    /// Nobody waits for repair, so it never gets in the way of those.
    pub(crate) fn of(class: Class, cost: u64, connections: &Connections) -> Self {
        match class {
            Class::Lease => Self::Lease,
            Class::Metadata => Self::Small,
            Class::Bulk if cost <= connections.small_threshold_bytes.into() => Self::Small,
            Class::Bulk | Class::Repair => Self::Bulk,
        }
    }
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            max: 2,
            small_threshold_bytes: 512 * 1024,
            small_percent: 0,
        }
    }
}

impl Connections {
    /// Whether all values are in their ranges.
    ///
    /// # Errors
    /// `InvalidArgument`: names the value and its range.
    pub fn check(&self) -> Result<()> {
        let rules = [
            (
                (1..=CONNECTIONS_MAX).contains(&self.max),
                format!("{} connections: choose 1 to {CONNECTIONS_MAX}", self.max),
            ),
            (
                self.small_threshold_bytes <= SMALL_BYTES_MAX,
                format!(
                    "small messages of {} bytes: choose 0 to {SMALL_BYTES_MAX}",
                    self.small_threshold_bytes
                ),
            ),
            (
                self.small_percent <= SMALL_PERCENT_MAX,
                format!(
                    "{} % of the connections for small messages: choose 0 to {SMALL_PERCENT_MAX}",
                    self.small_percent
                ),
            ),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            None => Ok(()),
            Some((_, text)) => Err(Error::new(ErrorKind::InvalidArgument, text)),
        }
    }

    /// Most connections of each lane towards a node that wants `theirs` counted ones. As long as
    /// that isn't known there is one of each.
    pub(crate) fn limits(&self, theirs: Option<u8>) -> [usize; 3] {
        let theirs = theirs.unwrap_or(1).clamp(1, CONNECTIONS_MAX);
        let counted = usize::from(self.max.min(theirs));
        let reserved = counted * usize::from(self.small_percent) / 100;
        [1, 1 + reserved, counted - reserved]
    }
}

/// A connection that could take a call at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    /// Its number.
    pub(crate) link: u64,
    /// Bytes of credits that its requests under way hold.
    pub(crate) bytes: u64,
}

/// Which of the connections takes the call: the one with the least bytes under way.
pub(crate) fn choose(candidates: impl Iterator<Item = Candidate>) -> Option<u64> {
    let least = candidates.min_by_key(|candidate| (candidate.bytes, candidate.link));
    least.map(|candidate| candidate.link)
}

/// A lane's connections and calls, as far as it matters for opening another connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Occupancy {
    /// Connections to which calls may be given, also those that haven't said hello.
    pub(crate) open: usize,
    /// Those of them without anything under way.
    pub(crate) idle: usize,
    /// Whether one is being opened.
    pub(crate) is_opening: bool,
    /// Calls that wait for a connection.
    pub(crate) waiting: usize,
}

/// Whether the lane needs another connection: more calls wait than connections are idle. One is
/// opened after the other, so that each tells first whether the node is there and how many it wants.
pub(crate) fn needs_another(now: Occupancy, limit: usize) -> bool {
    !now.is_opening && now.open < limit && now.waiting > now.idle
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_messages_get_a_part_of_the_counted_connections_rounded_down() {
        let limits = |max, small_percent, theirs| {
            let connections = Connections {
                max,
                small_percent,
                ..Connections::default()
            };
            connections.check().unwrap();
            connections.limits(theirs)
        };
        assert_eq!(limits(2, 0, Some(2)), [1, 1, 2], "the default");
        assert_eq!(limits(2, 49, Some(2)), [1, 1, 2]);
        assert_eq!(limits(2, 50, Some(2)), [1, 2, 1]);
        assert_eq!(limits(8, 25, Some(8)), [1, 3, 6]);
        assert_eq!(limits(8, 50, Some(8)), [1, 5, 4]);
        assert_eq!(limits(1, 50, Some(8)), [1, 1, 1]);
        assert_eq!(limits(8, 0, Some(3)), [1, 1, 3], "the smaller wish");
        assert_eq!(limits(8, 0, None), [1, 1, 1], "not known yet");
        assert_eq!(limits(8, 0, Some(0)), [1, 1, 1], "nonsense");
        assert_eq!(limits(8, 0, Some(200)), [1, 1, 8]);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused = |connections: Connections, word: &str| {
            let error = connections.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(word), "{error}");
        };
        let good = Connections::default();
        for max in [0, 9] {
            refused(Connections { max, ..good }, "choose 1 to 8");
        }
        let small_threshold_bytes = SMALL_BYTES_MAX + 1;
        refused(
            Connections {
                small_threshold_bytes,
                ..good
            },
            "small messages",
        );
        let small_percent = 51;
        refused(
            Connections {
                small_percent,
                ..good
            },
            "51 %",
        );
    }

    #[test]
    fn each_call_has_its_lane() {
        let connections = Connections::default();
        let lane = |class, cost| Lane::of(class, cost, &connections);
        let most = u64::from(connections.small_threshold_bytes);
        assert_eq!(lane(Class::Lease, 100), Lane::Lease);
        assert_eq!(lane(Class::Metadata, 100), Lane::Small);
        assert_eq!(lane(Class::Metadata, 8 << 20), Lane::Small);
        assert_eq!(lane(Class::Bulk, most), Lane::Small);
        assert_eq!(lane(Class::Bulk, most + 1), Lane::Bulk);
        assert_eq!(lane(Class::Repair, 100), Lane::Bulk);
        let none = Connections {
            small_threshold_bytes: 0,
            ..connections
        };
        assert_eq!(Lane::of(Class::Bulk, 65, &none), Lane::Bulk);
    }

    proptest! {
        #[test]
        fn the_choice_is_the_least_loaded_and_the_first_of_equals(
            loads in prop::collection::vec(0..5_u64, 0..9),
        ) {
            let candidates = loads.iter().zip(0..).map(|(bytes, link)| Candidate { link, bytes: *bytes });
            let chosen = choose(candidates);
            let least = loads.iter().min();
            let first = loads.iter().position(|bytes| Some(bytes) == least);
            prop_assert_eq!(chosen, first.map(|at| at as u64));
        }

        #[test]
        fn counted_connections_are_never_exceeded_and_each_lane_has_one(
            max in 1..=CONNECTIONS_MAX,
            small_percent in 0..=SMALL_PERCENT_MAX,
            theirs in any::<Option<u8>>(),
        ) {
            let connections = Connections { max, small_percent, ..Connections::default() };
            let [lease, small, bulk] = connections.limits(theirs);
            prop_assert_eq!(lease, 1);
            prop_assert!(small >= 1 && bulk >= 1);
            let counted = small - 1 + bulk;
            prop_assert!(counted <= max.into());
            prop_assert!(theirs.is_none_or(|theirs| counted <= usize::from(theirs.max(1))));
            prop_assert!((small - 1) * 100 <= counted * usize::from(small_percent));
        }

        #[test]
        fn connections_are_opened_one_by_one_up_to_the_limit_and_only_when_needed(
            open in 0..10_usize,
            idle in 0..10_usize,
            waiting in 0..10_usize,
            is_opening in any::<bool>(),
            limit in 1..9_usize,
        ) {
            let now = Occupancy { open, idle: idle.min(open), is_opening, waiting };
            let another = needs_another(now, limit);
            prop_assert!(!another || !is_opening && open < limit && waiting > 0);
            // A call that no connection can take at once is never left without an attempt.
            prop_assert!(another || is_opening || open >= limit || waiting <= now.idle);
        }
    }
}
