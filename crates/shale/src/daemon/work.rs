//! Long requests and their progress.

use crate::admin;
use metanode::Progress;
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc};

/// Most requests whose progress is shown; that of others isn't.
const SHOWN_MAX: usize = 256;

/// By the numbers that the clients chose.
type ByNumber = Arc<Mutex<BTreeMap<u64, Arc<Progress>>>>;

/// The long requests in progress.
#[derive(Default)]
pub struct Works(ByNumber);

/// One of them; ends when dropped.
pub struct Work {
    pub progress: Arc<Progress>,
    shown: Option<(u64, ByNumber)>,
}

impl Works {
    /// Begins work. Without a number, its progress isn't shown.
    pub fn begin(&self, number: Option<u64>) -> Work {
        let progress = Arc::new(Progress::default());
        let mut works = self.0.lock();
        let free = |number: &u64| works.len() < SHOWN_MAX && !works.contains_key(number);
        let shown = number.filter(free);
        if let Some(number) = shown {
            works.insert(number, progress.clone());
        }
        Work {
            progress,
            shown: shown.map(|number| (number, self.0.clone())),
        }
    }

    /// Progress of a request; `None` if it isn't running or isn't shown.
    pub fn progress(&self, number: u64) -> Option<admin::Progress> {
        let stage = self.0.lock().get(&number)?.stage();
        Some(admin::Progress {
            phase: stage.phase.into(),
            done: stage.done,
            total: stage.total,
            unit: stage.unit.into(),
        })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some((number, works)) = self.shown.take() {
            works.lock().remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_shown_from_its_beginning_to_its_end_and_never_more_than_the_maximum() {
        let works = Works::default();
        assert_eq!(works.progress(7), None);
        let work = works.begin(Some(7));
        assert_eq!(works.progress(7).map(|shown| shown.done), Some(0));
        // Another client chose the same number: the first one's work is shown.
        drop(works.begin(Some(7)));
        assert!(works.progress(7).is_some());
        drop(work);
        assert_eq!(works.progress(7), None);
        let many: Vec<Work> = (0..1000).map(|number| works.begin(Some(number))).collect();
        assert_eq!(works.0.lock().len(), SHOWN_MAX);
        drop(many);
        assert_eq!(works.0.lock().len(), 0);
    }
}
