//! Notes background work as operations create it. Finding it in the tables later would mean a walk
//! over all finished work, because removed records stay there for long.

use namespace::{Key, Record};

/// Most records noted between two calls; further ones are found by walking their tables.
const NEW_WORK_MAX: usize = 65_536;

/// Records put since the last call: dead segments, data ids to reclaim, truncates to continue.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NewWork {
    /// In order of arrival. Some may have been removed since.
    pub records: Vec<(Key, Record)>,
    /// More records came than could be noted.
    pub is_cut: bool,
}

impl NewWork {
    /// Notes a record if it is work.
    pub(crate) fn note(&mut self, key: &Key, value: Option<&Record>) {
        let (Key::Dead(_) | Key::Reclaim { .. } | Key::Cut(_), Some(record)) = (key, value) else {
            return;
        };
        if self.records.len() < NEW_WORK_MAX {
            self.records.push((key.clone(), record.clone()));
        } else {
            self.is_cut = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::InodeId;

    #[test]
    fn more_work_than_is_noted_is_told() {
        let mut work = NewWork::default();
        work.note(&Key::Fold(InodeId(1)), Some(&Record::Mark));
        work.note(&Key::Cut(InodeId(1)), None);
        assert_eq!(work, NewWork::default());
        for number in 0..NEW_WORK_MAX as u64 {
            work.note(&Key::Cut(InodeId(number)), Some(&Record::Mark));
        }
        assert!(!work.is_cut);
        work.note(&Key::Cut(InodeId(0)), Some(&Record::Mark));
        assert!(work.is_cut);
        assert_eq!(work.records.len(), NEW_WORK_MAX);
    }
}
