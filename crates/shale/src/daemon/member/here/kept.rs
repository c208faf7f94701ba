//! Which file systems are open on this node, and which of them nobody has used for so long that their clients are to be closed.
//! The rules only: the time is given, and closing is the caller's.
//!
//! *In use* is one as long as anybody else has it. Mounts get it by [`Kept::find`], after which it isn't unused any more, however
//! soon they end.

use model::FileSystemName;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use world::Instant;

/// How long one stays open that nobody uses: whoever mounts it again meanwhile finds its client with all that it knows, and a
/// node that can't make its own mount, and tries it again and again, doesn't open it each time.
pub(super) const UNUSED_MAX: Duration = Duration::from_secs(12);
/// Most that are being closed. While there are so many, because owners don't answer, no other one is closed.
const CLOSING_MAX: usize = 16;

/// The file systems that are open, and those that are being closed.
pub(super) struct Kept<T> {
    open: BTreeMap<FileSystemName, Open<T>>,
    closing: Vec<Arc<T>>,
}

struct Open<T> {
    file_system: Arc<T>,
    /// Nobody has asked for it since, and nobody used it then.
    unused_since: Option<Instant>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            closing: Vec::new(),
        }
    }
}

impl<T> Kept<T> {
    /// An open one, for somebody who uses it from now on.
    pub(super) fn find(&mut self, name: &FileSystemName) -> Option<Arc<T>> {
        let open = self.open.get_mut(name)?;
        open.unused_since = None;
        Some(open.file_system.clone())
    }

    /// One was opened.
    pub(super) fn insert(&mut self, name: FileSystemName, file_system: Arc<T>) {
        let open = Open {
            file_system,
            unused_since: None,
        };
        self.open.insert(name, open);
    }

    /// Those that are open, for whoever does something with each.
    pub(super) fn opened(&self) -> Vec<Arc<T>> {
        let open = self.open.values();
        open.map(|it| it.file_system.clone()).collect()
    }

    /// Those that are open or being closed.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        let open = self.open.values().map(|it| &it.file_system);
        open.chain(&self.closing)
    }

    /// Looks which are in use. Returns those that nobody has used for [`UNUSED_MAX`], so that they are closed; those that
    /// aren't, again after as long.
    pub(super) fn unused(&mut self, now: Instant) -> Vec<(FileSystemName, Arc<T>)> {
        let mut unused = Vec::new();
        for (name, open) in &mut self.open {
            if Arc::strong_count(&open.file_system) > 1 {
                continue;
            }
            let since = *open.unused_since.get_or_insert(now);
            if now.since(since) >= UNUSED_MAX {
                open.unused_since = Some(now);
                unused.push((name.clone(), open.file_system.clone()));
            }
        }
        unused
    }

    /// Takes out one that was unused, to be closed; `None` if it was used since, or so many are being closed.
    pub(super) fn begin_close(&mut self, name: &FileSystemName) -> Option<Arc<T>> {
        let open = self.open.get(name)?;
        let is_used = open.unused_since.is_none() || Arc::strong_count(&open.file_system) > 1;
        if is_used || self.closing.len() >= CLOSING_MAX {
            return None;
        }
        let closing = self.open.remove(name)?.file_system;
        self.closing.push(closing.clone());
        Some(closing)
    }

    /// One is closed.
    pub(super) fn closed(&mut self, closed: &Arc<T>) {
        self.closing.retain(|other| !Arc::ptr_eq(other, closed));
    }

    /// Takes out all, also those that are being closed.
    pub(super) fn take_all(&mut self) -> Vec<Arc<T>> {
        let open = std::mem::take(&mut self.open).into_values();
        let mut all: Vec<_> = open.map(|it| it.file_system).collect();
        all.append(&mut self.closing);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::own_mount::PAUSE_MAX;
    use world::sim::Simulation;

    const SECOND: Duration = Duration::from_secs(1);

    fn name(text: &str) -> FileSystemName {
        text.parse().unwrap()
    }

    fn begun() -> Instant {
        let run = Simulation::new(1).run(async |world: world::World| world.now());
        run.finished()
    }

    fn with(names: &[&'static str]) -> Kept<&'static str> {
        let mut kept = Kept::default();
        for text in names {
            kept.insert(name(text), Arc::new(*text));
        }
        kept
    }

    fn names<T>(unused: &[(FileSystemName, T)]) -> Vec<String> {
        unused.iter().map(|(name, _)| name.to_string()).collect()
    }

    #[test]
    fn what_nobody_uses_for_a_while_is_closed_and_what_is_mounted_stays() {
        let (mut kept, begun) = (with(&["a", "b"]), begun());
        let mounted = kept.find(&name("a")).unwrap();
        assert!(kept.unused(begun).is_empty());
        assert!(kept.unused(begun + UNUSED_MAX - SECOND).is_empty());
        let unused = kept.unused(begun + UNUSED_MAX);
        assert_eq!(names(&unused), ["b"]);
        assert_eq!(kept.begin_close(&name("b")), None, "it is still looked at");
        drop(unused);
        let closing = kept.begin_close(&name("b")).unwrap();
        assert_eq!((*mounted, *closing), ("a", "b"));
        assert_eq!(kept.begin_close(&name("b")), None);
        assert_eq!(kept.begin_close(&name("a")), None);
        assert_eq!(kept.all().count(), 2, "it isn't closed yet");
        assert_eq!(kept.opened().len(), 1);
        kept.closed(&closing);
        assert_eq!(kept.all().count(), 1);
        // It counts from when the mount has ended.
        drop(mounted);
        let later = begun + UNUSED_MAX * 10;
        assert!(kept.unused(later).is_empty());
        assert_eq!(names(&kept.unused(later + UNUSED_MAX)), ["a"]);
    }

    /// Would be broken if what a mount has written and couldn't make durable were closed, because the mount was short.
    #[test]
    fn what_was_used_since_it_was_looked_at_stays_open_for_as_long_again() {
        let (mut kept, begun) = (with(&["a"]), begun());
        assert!(kept.unused(begun).is_empty());
        drop(kept.unused(begun + UNUSED_MAX));
        drop(kept.find(&name("a")).unwrap());
        assert_eq!(kept.begin_close(&name("a")), None);
        let again = begun + UNUSED_MAX + SECOND;
        assert!(kept.unused(again).is_empty());
        assert!(kept.unused(again + UNUSED_MAX - SECOND).is_empty());
        assert_eq!(kept.unused(again + UNUSED_MAX).len(), 1);
        // One whose data can't be made durable is looked at again, but not all the time.
        assert!(kept.unused(again + UNUSED_MAX + SECOND).is_empty());
        assert_eq!(kept.unused(again + UNUSED_MAX * 2).len(), 1);
        // Whoever syncs all keeps it open while that lasts, and no longer.
        let syncing = kept.opened();
        assert_eq!(kept.begin_close(&name("a")), None);
        assert!(kept.unused(again + UNUSED_MAX * 3).is_empty());
        drop(syncing);
        assert_eq!(kept.unused(again + UNUSED_MAX * 3).len(), 1);
        assert!(kept.begin_close(&name("a")).is_some());
    }

    #[test]
    fn one_that_is_being_closed_can_be_opened_again_and_all_end_with_the_node() {
        let (mut kept, begun) = (with(&["a"]), begun());
        drop((kept.unused(begun), kept.unused(begun + UNUSED_MAX)));
        let closing = kept.begin_close(&name("a")).unwrap();
        assert_eq!(kept.find(&name("a")), None);
        kept.insert(name("a"), Arc::new("again"));
        assert_eq!(kept.find(&name("a")).as_deref(), Some(&"again"));
        kept.closed(&closing);
        assert_eq!(kept.find(&name("a")).as_deref(), Some(&"again"));

        drop((kept.unused(begun), kept.unused(begun + UNUSED_MAX)));
        let closing = kept.begin_close(&name("a")).unwrap();
        kept.insert(name("b"), Arc::new("b"));
        let all = kept.take_all();
        assert_eq!(
            all.iter().map(|it| **it).collect::<Vec<_>>(),
            ["b", "again"]
        );
        assert_eq!(kept.all().count(), 0);
        kept.closed(&closing);
    }

    #[test]
    fn so_many_are_closed_at_the_same_time_and_not_more() {
        let (mut kept, begun) = (Kept::default(), begun());
        let all: Vec<_> = (0..=CLOSING_MAX)
            .map(|it| name(&format!("f{it}")))
            .collect();
        for name in &all {
            kept.insert(name.clone(), Arc::new(()));
        }
        drop((kept.unused(begun), kept.unused(begun + UNUSED_MAX)));
        let closing = all.iter().filter_map(|name| kept.begin_close(name));
        let closing: Vec<_> = closing.collect();
        assert_eq!(closing.len(), CLOSING_MAX);
        kept.closed(&closing[0]);
        assert!(kept.begin_close(&all[CLOSING_MAX]).is_some());
    }

    #[test]
    fn a_node_that_tries_to_make_its_mount_finds_it_open_each_time() {
        assert!(UNUSED_MAX > PAUSE_MAX);
    }
}
