//! Requests of a holder to which no reply has come.

use super::WaitNumber;
use model::TokenObject;
use model::token::{GrantNumber, TokenRequest};
use std::collections::{BTreeMap, BTreeSet};

/// A request to which no reply has come.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Asked {
    pub(super) wants: TokenRequest,
    pub(super) waits: BTreeSet<WaitNumber>,
    /// The newest grant that had come when it was made: what it is granted is newer.
    pub(super) after: GrantNumber,
}

/// All of them, by their numbers, and of each object how many there are and after which grant the first one was made.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Requests {
    all: BTreeMap<u64, Asked>,
    objects: BTreeMap<TokenObject, (usize, GrantNumber)>,
}

impl Requests {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether one asks for something of an object.
    pub(super) fn concern(&self, object: TokenObject) -> bool {
        self.objects.contains_key(&object)
    }

    /// The newest grant that had come when the first one was made since there are some of an object; `None` if there are none.
    pub(super) fn oldest_after(&self, object: TokenObject) -> Option<GrantNumber> {
        self.objects.get(&object).map(|(_, after)| *after)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Asked> {
        self.all.get(&number)
    }

    pub(super) fn insert(&mut self, number: u64, asked: Asked) {
        let of_object = self.objects.entry(asked.wants.object);
        of_object.or_insert((0, asked.after)).0 += 1;
        let before = self.all.insert(number, asked);
        assert!(before.is_none(), "request {number} is a new one");
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Asked> {
        let asked = self.all.remove(&number)?;
        let object = asked.wants.object;
        if let Some((count, _)) = self.objects.get_mut(&object) {
            *count -= 1;
            if *count == 0 {
                self.objects.remove(&object);
            }
        }
        Some(asked)
    }

    /// Takes all of them out.
    pub(super) fn take(&mut self) -> BTreeMap<u64, Asked> {
        self.objects.clear();
        std::mem::take(&mut self.all)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Asked)> {
        self.all.iter().map(|(number, asked)| (*number, asked))
    }

    /// Who waits for each of them, which may be changed.
    pub(super) fn waits_mut(
        &mut self,
    ) -> impl Iterator<Item = (u64, &TokenRequest, &mut BTreeSet<WaitNumber>)> {
        let all = self.all.iter_mut();
        all.map(|(number, asked)| (*number, &asked.wants, &mut asked.waits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::InodeId;

    #[test]
    fn an_object_is_asked_for_as_long_as_one_of_its_requests_has_no_reply() {
        let mut requests = Requests::default();
        let [one, other] = [1, 2].map(|inode| TokenObject::Inode(InodeId(inode)));
        let asked = |object| Asked {
            wants: TokenRequest::to_look_at(object),
            waits: BTreeSet::new(),
            after: GrantNumber::default(),
        };
        requests.insert(1, asked(one));
        requests.insert(2, asked(one));
        requests.insert(3, asked(other));
        assert!(requests.remove(1).is_some() && requests.remove(1).is_none());
        assert!(requests.concern(one) && requests.concern(other));
        requests.remove(2);
        assert!(!requests.concern(one) && requests.concern(other));
        assert_eq!(requests.take().len(), 1);
        assert!(requests.is_empty() && !requests.concern(other));
    }
}
