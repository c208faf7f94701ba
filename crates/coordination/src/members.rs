//! The facts of membership: the members, the manager's place, and shards assigned by a manager.
//!
//! A manager wins its place under a lease, then writes its term into the membership. From then on the
//! version of the membership is its fence: whatever an earlier manager sent expects another one.
//!
//! *Somebody hears nothing of the manager*: it doubts the place, which writes its record anew. The holder looks at
//! the record whenever it keeps the place, and writes it once more if it is doubted. So a place that was doubted, and
//! whose record is still the doubted one, has been kept by nobody since, whatever became of its lease: a new leader of
//! etcd gives that its full time again. *Most hear nothing of it*: the doubt says so, and the holder doesn't answer it, but
//! gives the place up.

use crate::facts::encode;
use crate::{Change, Coordination, Lease, LeaseId, ShardRecord, Versioned};
use futures::future::join;
use model::member::Membership;
use model::{Error, ErrorKind, NodeRun, Result, ShardId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub(crate) const MEMBERSHIP: &str = "members";
pub(crate) const PLACE: &str = "manager";

/// How long the manager's place lasts by coordination's clock when nobody keeps it. Also how long one that is doubted
/// lasts, by the clock of whoever has seen that it is.
pub const PLACE_LEASE: Duration = Duration::from_secs(5);
/// Added to the lease's number: the place is doubted. Leases have lower numbers.
const DOUBTED: u128 = 1 << 63;
/// Added, too, if most don't hear the run.
const UNHEARD: u128 = 1 << 64;

/// What somebody says who hears nothing of the manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// It may be dead; or this node is the only one that doesn't hear it.
    OfOne,
    /// Most don't hear it.
    OfMost,
}

/// What becomes of a place that its holder keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// It lasts for [`PLACE_LEASE`] from when that was asked for.
    Longer,
    /// It lasts no longer than was known before: most don't hear its holder, which is to give it up.
    Unheard,
}

/// Who has the manager's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The run that is the manager, or is about to begin.
    pub run: NodeRun,
    /// The number of the lease that it keeps, and what was added to it.
    lease: u128,
}

impl Place {
    fn of(run: NodeRun, lease: LeaseId) -> Self {
        let lease = lease.0.into();
        Self { run, lease }
    }

    /// Somebody doubts that the run keeps the place, which hasn't answered that yet.
    #[must_use]
    pub fn is_doubted(&self) -> bool {
        self.lease & DOUBTED != 0
    }

    /// Whoever doubts it has found that most don't hear the run.
    #[must_use]
    pub fn is_unheard(&self) -> bool {
        self.lease & UNHEARD != 0
    }

    /// The lease that it keeps.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        let lease = self.lease % DOUBTED;
        LeaseId(u64::try_from(lease).expect("it is less than what is added to it"))
    }

    fn doubted(&self, doubt: Doubt) -> Self {
        let added = match doubt {
            Doubt::OfOne => DOUBTED,
            Doubt::OfMost => DOUBTED | UNHEARD,
        };
        Self {
            run: self.run,
            lease: self.lease | added,
        }
    }
}

impl Coordination {
    /// The members; `None` before the first manager.
    pub async fn membership(&self) -> Result<Option<Versioned<Membership>>> {
        self.fact(MEMBERSHIP).await
    }

    /// Stores the membership if its version is `expected` (0: there is none), and returns its
    /// version. Also if an attempt before this one has stored it: managers never store the same
    /// membership twice.
    ///
    /// # Errors
    /// `Changed`: it is another one; nothing was done. After `Unavailable` it is unknown whether it was
    /// stored: store it again, with the same `expected`.
    pub async fn store_membership(&self, expected: u64, members: &Membership) -> Result<u64> {
        match self.set_fact(MEMBERSHIP, expected, members).await {
            Err(error) if error.kind() == ErrorKind::Changed => {
                let stored = self.membership().await?;
                let own = stored.filter(|it| it.version > expected && it.value == *members);
                own.map(|it| it.version).ok_or(error)
            }
            stored => stored,
        }
    }

    /// Who has the manager's place; `None`: it is free.
    pub async fn manager(&self) -> Result<Option<Versioned<Place>>> {
        self.fact(PLACE).await
    }

    /// Asks for a lease for the manager's place.
    ///
    /// # Errors
    /// As [`Coordination::grant`].
    pub async fn grant_place(&self) -> Result<Lease> {
        self.grant(PLACE_LEASE).await
    }

    /// Takes the manager's place under a lease. `expected`: the version of the place as it was seen, 0
    /// if it was free. Whoever takes it from another needs proof that this one is dead, or has seen [`PLACE_LEASE`] ago
    /// that the place was doubted, at this version. Such a one then revokes the lease that the other kept.
    ///
    /// # Errors
    /// `Changed`: another one has it. `NotFound`: the lease has ended. Nothing was done. After
    /// `Unavailable` it is unknown whether it was taken: take it again, with the same lease.
    pub async fn take_place(&self, own: NodeRun, expected: u64, lease: LeaseId) -> Result<()> {
        let place = Place::of(own, lease);
        let change = Change::put_leased(PLACE, expected, encode(&place), lease);
        match self.transaction(vec![change]).await {
            Err(error) if error.kind() == ErrorKind::Changed => {
                let taken = self.manager().await?;
                match taken.is_some_and(|taken| taken.value == place) {
                    true => Ok(()),
                    false => Err(error),
                }
            }
            taken => taken.map(drop),
        }
    }

    /// Keeps the manager's place for [`PLACE_LEASE`] from when this is called, and answers whoever doubts it; unless most
    /// don't hear the run.
    ///
    /// # Errors
    /// `NotFound`: the lease has ended, or another run has the place. After `Changed` or `Unavailable` nothing is known:
    /// keep it again.
    pub async fn keep_place(&self, own: NodeRun, lease: LeaseId) -> Result<Kept> {
        // Both are asked from now on: a doubt that the read doesn't show came later, and so lasts longer than this.
        let (kept, place) = join(self.keep_alive(lease), self.manager()).await;
        kept?;
        let own = Place::of(own, lease);
        match place? {
            Some(held) if held.value == own => Ok(Kept::Longer),
            Some(held) if held.value.run == own.run && held.value.is_unheard() => Ok(Kept::Unheard),
            Some(held) if held.value.run == own.run && held.value.is_doubted() => {
                let change = Change::put_leased(PLACE, held.version, encode(&own), lease);
                self.transaction(vec![change]).await?;
                Ok(Kept::Longer)
            }
            _ => {
                let text = format!("run {} doesn't have the manager's place any more", own.run);
                Err(Error::new(ErrorKind::NotFound, text))
            }
        }
    }

    /// Doubts that the run which has the manager's place keeps it. `seen`: the place as it was seen. Does nothing if it
    /// is doubted already.
    ///
    /// # Errors
    /// `Changed`, `NotFound`: the place is another one by now, or free. After `Unavailable` it may be doubted.
    pub async fn doubt_place(&self, seen: &Versioned<Place>, doubt: Doubt) -> Result<()> {
        if seen.value.is_doubted() {
            return Ok(());
        }
        let place = seen.value.doubted(doubt);
        // It ends with its holder's lease all the same.
        let lease = seen.value.lease();
        let change = Change::put_leased(PLACE, seen.version, encode(&place), lease);
        self.transaction(vec![change]).await.map(drop)
    }

    /// Names the run that shall take the shard over, or nobody, for a manager: if the record still
    /// names `from` and the membership has the version `members`. Otherwise as
    /// [`Coordination::assign_shard`].
    ///
    /// # Errors
    /// As there; also `OldEpoch`: the membership has another version. Nothing was done.
    pub async fn assign_shard_as_manager(
        &self,
        shard: ShardId,
        from: Option<NodeRun>,
        to: Option<NodeRun>,
        members: u64,
    ) -> Result<Versioned<ShardRecord>> {
        let fence = Some((MEMBERSHIP, members));
        self.assign_shard_if(shard, from, to, fence).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::facts::decode;
    use model::NodeId;
    use model::member::{Cause, Change, Expelled, Member, Move, Plan, Standing, Step, Term};
    use std::collections::BTreeMap;

    fn run(node: u32, incarnation: u64) -> NodeRun {
        NodeRun {
            node: NodeId(node),
            incarnation,
        }
    }

    #[test]
    fn the_bytes_of_a_membership_and_of_a_place_are_those_of_the_format_table() {
        let member = Member {
            run: run(300, 4),
            may_own: true,
            standing: Standing::Expelled(Cause::Silent),
            nsds_away: false,
        };
        let expel = Change::Expel(vec![Expelled {
            run: run(300, 4),
            cause: Cause::Silent,
        }]);
        let moved = Move {
            shard: ShardId(7),
            from: Some(run(300, 4)),
            to: run(1, 2),
        };
        let members = Membership {
            term: Term(9),
            manager: Some(run(1, 2)),
            members: BTreeMap::from([(NodeId(300), member)]),
            plan: Some(Plan {
                change: expel,
                step: Step::Shards,
                moves: vec![moved],
            }),
        };
        let bytes = [
            3, 9, 1, 1, 2, // the term and its manager
            1, 0xac, 2, 0xac, 2, 4, 1, 3, 2, 0, // one member
            1, 0, 1, 0xac, 2, 4, 2, 0, // a plan that expels it
            1, 7, 1, 0xac, 2, 4, 1, 2, // and gives a shard away
        ];
        assert_eq!(encode(&members)[..], bytes);
        let place = Place::of(run(1, 2), LeaseId(300));
        assert_eq!(encode(&place)[..], [3, 1, 2, 0xac, 2]);
        assert!(!place.is_doubted() && !place.is_unheard());
        // The highest byte is that of what was added.
        for (doubt, highest) in [(Doubt::OfOne, 1), (Doubt::OfMost, 3)] {
            let doubted = place.doubted(doubt);
            let high: [u8; 8] = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, highest];
            assert_eq!(
                encode(&doubted)[..],
                [&[3, 1, 2, 0xac, 0x82][..], &high].concat()
            );
            assert!(doubted.is_doubted());
            assert_eq!(doubted.is_unheard(), doubt == Doubt::OfMost);
            assert_eq!(doubted.lease(), LeaseId(300));
            assert_eq!(decode::<Place>(PLACE, &encode(&doubted)), Ok(doubted));
        }
        let highest = Place::of(run(1, 2), LeaseId((1 << 63) - 1));
        assert_eq!(highest.doubted(Doubt::OfMost).lease(), highest.lease());
        // The cause names the other one of two that couldn't reach each other.
        let apart = Member {
            standing: Standing::Expelled(Cause::Apart(NodeId(301))),
            ..member
        };
        let bytes = [3, 0xac, 2, 4, 1, 3, 3, 0xad, 2, 0];
        assert_eq!(encode(&apart)[..], bytes);
    }
}
