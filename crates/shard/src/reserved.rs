//! Counts the inode numbers that sessions have reserved and not used. Clients answer for the files that they make with them
//! before the owner hears of it, so these have to find room.

use model::{FilesetId, SessionId};
use namespace::{Key, Record};
use std::collections::BTreeMap;

/// The numbers of each session that has some, and of all of them.
#[derive(Default)]
pub(crate) struct ReservedNumbers {
    left: BTreeMap<(SessionId, FilesetId), u64>,
    all: u64,
}

impl ReservedNumbers {
    /// How many there are.
    pub(crate) fn all(&self) -> u64 {
        self.all
    }

    /// A record has this value from now on; `None`: it is removed. The same again changes nothing.
    pub(crate) fn note(&mut self, key: &Key, record: Option<&Record>) {
        let Key::Reserved { session, fileset } = key else {
            return;
        };
        let left = match record {
            Some(Record::Reserved(reserved)) => {
                let runs = reserved.inodes.iter();
                runs.map(|run| run.end.saturating_sub(run.next))
                    .sum::<u64>()
            }
            _ => 0,
        };
        let before = match left {
            0 => self.left.remove(&(*session, *fileset)),
            _ => self.left.insert((*session, *fileset), left),
        };
        self.all = self.all - before.unwrap_or_default() + left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use namespace::{Reserved, Run};
    use std::sync::Arc;

    fn key(session: u64, fileset: u32) -> Key {
        Key::Reserved {
            session: SessionId(session),
            fileset: FilesetId(fileset),
        }
    }

    fn runs(lengths: &[u64]) -> Record {
        let run = |length: &u64| Run {
            next: 100,
            end: 100 + length,
        };
        Record::Reserved(Arc::new(Reserved {
            inodes: lengths.iter().map(run).collect(),
            data: vec![Run { next: 0, end: 9 }],
        }))
    }

    #[test]
    fn what_is_reserved_counts_until_it_is_used_or_its_session_ends() {
        let mut numbers = ReservedNumbers::default();
        numbers.note(&key(1, 0), Some(&runs(&[10, 20])));
        numbers.note(&key(1, 5), Some(&runs(&[3])));
        numbers.note(&key(2, 0), Some(&runs(&[4])));
        assert_eq!(numbers.all(), 37);
        numbers.note(&key(2, 0), Some(&runs(&[4])));
        numbers.note(&Key::Stream(SessionId(2)), None);
        assert_eq!(numbers.all(), 37, "nothing has changed");
        numbers.note(&key(1, 0), Some(&runs(&[9, 20])));
        assert_eq!(numbers.all(), 36);
        // Only data ids are left.
        numbers.note(&key(2, 0), Some(&runs(&[])));
        numbers.note(&key(1, 0), None);
        numbers.note(&key(1, 0), None);
        assert_eq!(numbers.all(), 3);
    }
}
