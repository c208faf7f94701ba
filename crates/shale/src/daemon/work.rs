//! Long requests and their progress.

use crate::{admin, output::bytes};
use metanode::Progress;
use model::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

/// Most requests whose progress is shown; that of others isn't.
const SHOWN_MAX: usize = 256;

/// By the numbers that the clients chose.
type ByNumber = Arc<Mutex<BTreeMap<u64, Arc<Progress>>>>;

/// The long requests in progress.
#[derive(Default)]
pub struct Works {
    shown: ByNumber,
    /// The scrub that runs, if one does.
    scrub: Mutex<Weak<Progress>>,
}

/// One of them; ends when dropped.
pub struct Work {
    pub progress: Arc<Progress>,
    shown: Option<(u64, ByNumber)>,
}

impl Works {
    /// Begins work. Without a number, its progress isn't shown.
    pub fn begin(&self, number: Option<u64>) -> Work {
        let progress = Arc::new(Progress::default());
        let mut works = self.shown.lock();
        let free = |number: &u64| works.len() < SHOWN_MAX && !works.contains_key(number);
        let shown = number.filter(free);
        if let Some(number) = shown {
            works.insert(number, progress.clone());
        }
        Work {
            progress,
            shown: shown.map(|number| (number, self.shown.clone())),
        }
    }

    /// Begins a scrub; only one runs at a time. One that was interrupted still runs, and a second
    /// one would read everything only to be refused by the first busy NSD.
    ///
    /// # Errors
    /// `Busy`, with the progress of the one that runs.
    pub fn begin_scrub(&self, number: Option<u64>) -> Result<Work> {
        let mut scrub = self.scrub.lock();
        if let Some(running) = scrub.upgrade() {
            let stage = running.stage();
            let text = format!(
                "a scrub is already running and has read {} of {}; try again when it has ended",
                bytes(stage.done),
                bytes(stage.total.unwrap_or(stage.done))
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let work = self.begin(number);
        *scrub = Arc::downgrade(&work.progress);
        Ok(work)
    }

    /// Progress of a request; `None` if it isn't running or isn't shown.
    pub fn progress(&self, number: u64) -> Option<admin::Progress> {
        let stage = self.shown.lock().get(&number)?.stage();
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
        assert_eq!(works.shown.lock().len(), SHOWN_MAX);
        drop(many);
        assert_eq!(works.shown.lock().len(), 0);
    }

    #[test]
    fn a_second_scrub_is_refused_until_the_first_has_ended() {
        let works = Works::default();
        let first = works.begin_scrub(Some(1)).expect("none runs");
        let refused = works.begin_scrub(Some(2)).err().expect("one runs");
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(refused.to_string().contains("already running"), "{refused}");
        assert_eq!(works.progress(2), None);
        drop(first);
        assert!(works.begin_scrub(Some(2)).is_ok());
    }
}
