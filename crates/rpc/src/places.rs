//! Places for those who aren't known yet: so many, and none that one address can keep from all others.
//! No I/O.

use std::collections::BTreeMap;
use std::net::IpAddr;

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
    /// The older, the lower the number.
    taken: BTreeMap<u64, Origin>,
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
    pub(crate) fn enter(&mut self, from: Option<IpAddr>) -> (u64, Option<u64>) {
        self.last += 1;
        self.taken.insert(self.last, Origin::of(from));
        let loser = (self.taken.len() > self.most).then(|| self.loser());
        if let Some(loser) = loser {
            self.taken.remove(&loser);
        }
        (self.last, loser)
    }

    fn loser(&self) -> u64 {
        let mut counts: BTreeMap<Origin, usize> = BTreeMap::new();
        for origin in self.taken.values() {
            *counts.entry(*origin).or_default() += 1;
        }
        let crowd = counts.values().copied().max();
        let mut taken = self.taken.iter();
        let loser = taken.find(|(_, origin)| counts.get(origin).copied() == crowd);
        *loser.expect("somebody has a place").0
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

    fn address(last: u8) -> Option<IpAddr> {
        Some([10, 0, 0, last].into())
    }

    #[test]
    fn a_crowd_from_one_address_leaves_places_for_others() {
        let mut places = Places::new(4);
        let (member, _) = places.enter(address(1));
        for _ in 0..100 {
            let (_, loser) = places.enter(address(9));
            assert_ne!(loser, Some(member));
        }
        let (second, loser) = places.enter(address(2));
        assert!(loser.is_some_and(|loser| loser != member && loser != second));
        assert_eq!(places.taken.len(), 4);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let mut places = Places::new(3);
        let member: IpAddr = "2001:db8:0:1::1".parse().unwrap();
        let (member, _) = places.enter(Some(member));
        for host in 0..50_u16 {
            let many = IpAddr::from([0x2001, 0xdb8, 0, 2, 0, 0, 0, host]);
            let (_, loser) = places.enter(Some(many));
            assert_ne!(loser, Some(member));
        }
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(Origin::of(Some(mapped)), Origin::of(address(1)));
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
                let (number, loser) = places.enter(address(from));
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
