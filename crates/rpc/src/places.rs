//! Places for those who aren't known yet: so many, and none that one address can keep from all others.
//! No I/O.

use crate::registry::STRANGER_PATIENCE;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use world::Instant;

/// Most places of one address for which others wait. A node opens a connection of each lane at a time,
/// so whoever has more is a crowd, and loses them at once: those who wait behind it would do so for
/// nothing.
const CROWD: usize = 8;

/// Where somebody comes from, as far as places are counted: an address of IPv4, a network of IPv6,
/// because whoever has one of its addresses has all of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Origin([u8; 8]);

impl Origin {
    fn of(from: Option<IpAddr>) -> Self {
        let mut bytes = [0; 8];
        match from.map(|ip| ip.to_canonical()) {
            None => {}
            Some(IpAddr::V4(ip)) => {
                bytes[0] = 4;
                bytes[4..].copy_from_slice(&ip.octets());
            }
            Some(IpAddr::V6(ip)) => bytes.copy_from_slice(&ip.octets()[..8]),
        }
        Self(bytes)
    }
}

/// Who has a place.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    /// The older, the lower the number; since when.
    taken: BTreeMap<u64, (Origin, Instant)>,
    last: u64,
}

impl Places {
    /// `most` places, all free.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            taken: BTreeMap::new(),
            last: 0,
        }
    }

    /// Somebody comes and gets a place, with the first number. If all are taken, somebody else loses
    /// one, with the second number: of those from the address with the most places, the oldest. Members
    /// need a place for milliseconds, so it is hardly ever theirs.
    pub(crate) fn enter(&mut self, from: Option<IpAddr>, now: Instant) -> (u64, Option<u64>) {
        self.last += 1;
        self.taken.insert(self.last, (Origin::of(from), now));
        let loser = (self.taken.len() > self.most).then(|| self.loser().0);
        if let Some(loser) = loser {
            self.taken.remove(&loser);
        }
        (self.last, loser)
    }

    /// How long the next one should be left in the kernel's queue, unless a place gets free before:
    /// when all nodes of a cluster come at the same time, none shall lose its place while it proves
    /// who it is.
    pub(crate) fn patience(&self, now: Instant) -> Option<Duration> {
        if self.taken.len() < self.most {
            return None;
        }
        let (loser, crowd) = self.loser();
        let since = self.taken.get(&loser).map(|(_, since)| *since)?;
        let rest = STRANGER_PATIENCE.saturating_sub(now.since(since));
        (crowd <= CROWD && !rest.is_zero()).then_some(rest)
    }

    /// Whose place is the next one to be lost, and how many its address has.
    fn loser(&self) -> (u64, usize) {
        let mut counts: BTreeMap<Origin, usize> = BTreeMap::new();
        for (origin, _) in self.taken.values() {
            *counts.entry(*origin).or_default() += 1;
        }
        let crowd = counts.values().copied().max().unwrap_or(0);
        let mut taken = self.taken.iter();
        let loser = taken.find(|(_, (origin, _))| counts.get(origin) == Some(&crowd));
        (*loser.expect("somebody has a place").0, crowd)
    }

    /// A place is free again.
    pub(crate) fn leave(&mut self, number: u64) {
        self.taken.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use world::sim::Simulation;

    fn now() -> Instant {
        let outcome = Simulation::new(1).run(|world| async move { world.now() });
        outcome.finished()
    }

    fn address(last: u8) -> Option<IpAddr> {
        Some([10, 0, 0, last].into())
    }

    #[test]
    fn a_crowd_from_one_address_leaves_places_for_others() {
        let mut places = Places::new(4);
        let (member, _) = places.enter(address(1), now());
        for _ in 0..100 {
            let (_, loser) = places.enter(address(9), now());
            assert_ne!(loser, Some(member));
        }
        let (second, loser) = places.enter(address(2), now());
        assert!(loser.is_some_and(|loser| loser != member && loser != second));
        assert_eq!(places.taken.len(), 4);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let mut places = Places::new(3);
        let member: IpAddr = "2001:db8:0:1::1".parse().unwrap();
        let (member, _) = places.enter(Some(member), now());
        for host in 0..50_u16 {
            let many = IpAddr::from([0x2001, 0xdb8, 0, 2, 0, 0, 0, host]);
            let (_, loser) = places.enter(Some(many), now());
            assert_ne!(loser, Some(member));
        }
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(Origin::of(Some(mapped)), Origin::of(address(1)));
    }

    /// Would be broken if nodes that all come at once took each other's places, or if whoever takes
    /// all places made them wait.
    #[test]
    fn others_wait_for_places_of_many_addresses_but_not_for_those_of_a_crowd() {
        let begun = now();
        let later = begun + STRANGER_PATIENCE / 2;
        let mut places = Places::new(3 * CROWD);
        for number in 0..3 * CROWD {
            assert_eq!(places.patience(later), None, "{number} are taken");
            places.enter(address(number as u8 % 3), begun);
        }
        assert_eq!(places.patience(later), Some(STRANGER_PATIENCE / 2));
        assert_eq!(places.patience(begun + STRANGER_PATIENCE), None);
        places.leave(1);
        assert_eq!(places.patience(later), None, "a place is free");
        // One address has now more than a node needs.
        places.enter(address(2), later);
        assert_eq!(places.patience(later), None);
    }

    proptest! {
        #[test]
        fn never_more_than_there_are_places(
            most in 1..6_usize,
            steps in prop::collection::vec((0..4_u8, any::<bool>()), 1..100),
        ) {
            let mut places = Places::new(most);
            let mut inside = Vec::new();
            for (from, stays) in steps {
                let (number, loser) = places.enter(address(from), now());
                inside.push(number);
                prop_assert!(loser.is_none_or(|loser| inside.contains(&loser)));
                inside.retain(|one| Some(*one) != loser);
                if !stays {
                    inside.retain(|one| *one != number);
                    places.leave(number);
                }
                let taken: Vec<u64> = places.taken.keys().copied().collect();
                prop_assert_eq!(&taken, &inside);
                prop_assert!(taken.len() <= most);
            }
        }
    }
}
