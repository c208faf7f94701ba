//! Where the names of directories are, and which of them kernels keep attributes of. Pure.
//!
//! A kernel asks for a directory's attributes by its number, and what is known of them hangs under its name.

use super::directory::text_bytes;
use model::InodeId;
use std::collections::BTreeSet;
use std::sync::Arc;
use world::Map;

/// Most directories whose names are remembered.
const PLACES_MAX: usize = 32_768;

/// Where names were found that lead to directories. They needn't be there any more.
#[derive(Default)]
pub(super) struct Places {
    known: Map<InodeId, Place>,
    /// Bytes of the names themselves.
    text: usize,
    /// By the directory with their names: those of which kernels may keep attributes.
    shown: Map<InodeId, BTreeSet<InodeId>>,
}

struct Place {
    directory: InodeId,
    name: Arc<[u8]>,
    /// Its attributes were asked for by its number, and weren't known.
    was_asked: bool,
}

impl Places {
    /// Bytes that it takes. Of no more directories than tokens are held attributes are shown.
    pub(super) fn bytes(&self) -> usize {
        let place = size_of::<(InodeId, Place)>() + 1;
        let shown = size_of::<(InodeId, BTreeSet<InodeId>)>() + 1;
        self.known.capacity() * place * 8 / 7 + self.text + self.shown.capacity() * shown * 8 / 7
    }

    /// A name was found that leads to a directory.
    pub(super) fn note(&mut self, inode: InodeId, directory: InodeId, name: &[u8]) {
        let known = self.known.get(&inode);
        if known.is_some_and(|it| it.directory == directory && *it.name == *name) {
            return;
        }
        if known.is_none() && self.known.len() >= PLACES_MAX && !self.make_room() {
            return;
        }
        self.text += text_bytes(name);
        let place = Place {
            directory,
            name: name.into(),
            was_asked: false,
        };
        let Some(before) = self.known.insert(inode, place) else {
            return;
        };
        self.text -= text_bytes(&before.name);
        // Kernels keep what they have, wherever its name is.
        if self.take_out(inode, before.directory) {
            self.show(inode, directory);
        }
    }

    /// Forgets those of which kernels keep nothing. False if there are none.
    fn make_room(&mut self) -> bool {
        let shown = &self.shown;
        let is_shown = |inode: &InodeId, place: &Place| {
            let shown = shown.get(&place.directory);
            shown.is_some_and(|shown| shown.contains(inode))
        };
        self.known.retain(|inode, place| is_shown(inode, place));
        let names = self.known.values();
        self.text = names.map(|place| text_bytes(&place.name)).sum();
        self.known.len() < PLACES_MAX
    }

    /// Where a directory's name was found last.
    pub(super) fn of(&self, inode: InodeId) -> Option<(InodeId, Arc<[u8]>)> {
        let place = self.known.get(&inode)?;
        Some((place.directory, place.name.clone()))
    }

    /// The attributes of a directory are asked for by its number. Whether that isn't the first time.
    pub(super) fn ask(&mut self, inode: InodeId) -> bool {
        let place = self.known.get_mut(&inode);
        place.is_some_and(|place| std::mem::replace(&mut place.was_asked, true))
    }

    /// From now on kernels may keep the attributes of a directory with its name in this one.
    pub(super) fn show(&mut self, inode: InodeId, directory: InodeId) {
        self.shown.entry(directory).or_default().insert(inode);
    }

    /// Kernels don't keep an inode's attributes any more.
    pub(super) fn hide(&mut self, inode: InodeId) {
        let directory = self.known.get(&inode).map(|place| place.directory);
        if let Some(directory) = directory {
            self.take_out(inode, directory);
        }
    }

    fn take_out(&mut self, inode: InodeId, directory: InodeId) -> bool {
        let Some(shown) = self.shown.get_mut(&directory) else {
            return false;
        };
        let was_shown = shown.remove(&inode);
        if shown.is_empty() {
            self.shown.remove(&directory);
        }
        was_shown
    }

    /// Those with names in a directory of which kernels may keep attributes; from now on they don't.
    pub(super) fn take_shown(&mut self, directory: InodeId) -> Vec<InodeId> {
        let shown = self.shown.remove(&directory);
        shown.unwrap_or_default().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOVE: [InodeId; 2] = [InodeId(1), InodeId(2)];
    const INODE: InodeId = InodeId(7);

    #[test]
    fn a_directory_is_shown_where_its_name_is_until_its_token_goes() {
        let mut places = Places::default();
        assert_eq!(places.of(INODE), None);
        places.note(INODE, ABOVE[0], b"a");
        places.show(INODE, ABOVE[0]);
        places.note(INODE, ABOVE[1], b"b");
        let (directory, name) = places.of(INODE).expect("it was noted");
        assert_eq!((directory, &*name), (ABOVE[1], &b"b"[..]));
        assert!(places.take_shown(ABOVE[0]).is_empty());
        assert_eq!(places.take_shown(ABOVE[1]), [INODE]);
        assert!(places.take_shown(ABOVE[1]).is_empty());
        places.show(INODE, ABOVE[1]);
        places.hide(INODE);
        assert!(places.take_shown(ABOVE[1]).is_empty());
    }

    #[test]
    fn what_is_asked_for_again_is_not_asked_for_the_first_time() {
        let mut places = Places::default();
        assert!(
            !places.ask(INODE) && !places.ask(INODE),
            "nothing is known of it"
        );
        places.note(INODE, ABOVE[0], b"a");
        assert!(!places.ask(INODE) && places.ask(INODE));
        places.note(INODE, ABOVE[0], b"a");
        assert!(places.ask(INODE), "it is the same one");
    }

    #[test]
    fn names_of_directories_take_bounded_memory() {
        let mut places = Places::default();
        for number in 0..3 * PLACES_MAX as u64 {
            places.note(InodeId(number), ABOVE[0], format!("n{number}").as_bytes());
            assert!(places.known.len() <= PLACES_MAX);
        }
        let text: usize = places.known.values().map(|it| text_bytes(&it.name)).sum();
        assert_eq!(places.text, text);
    }
}
