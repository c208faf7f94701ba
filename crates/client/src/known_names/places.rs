//! Where the names of directories are. Pure.
//!
//! A kernel asks for a directory's attributes by its number, and what is known of them hangs under its name.

use super::directory::text_bytes;
use super::table_bytes;
use model::InodeId;
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
}

struct Place {
    directory: InodeId,
    name: Arc<[u8]>,
    /// Its attributes were asked for by its number, and weren't known.
    was_asked: bool,
}

impl Places {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        table_bytes::<(InodeId, Place)>(self.known.capacity()) + self.text
    }

    /// A name was found that leads to a directory.
    pub(super) fn note(&mut self, inode: InodeId, directory: InodeId, name: &[u8]) {
        let known = self.known.get(&inode);
        if known.is_some_and(|it| it.directory == directory && *it.name == *name) {
            return;
        }
        if known.is_none() && self.known.len() >= PLACES_MAX {
            self.known.clear();
            self.text = 0;
        }
        self.text += text_bytes(name);
        let place = Place {
            directory,
            name: name.into(),
            was_asked: false,
        };
        if let Some(before) = self.known.insert(inode, place) {
            self.text -= text_bytes(&before.name);
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOVE: [InodeId; 2] = [InodeId(1), InodeId(2)];
    const INODE: InodeId = InodeId(7);

    #[test]
    fn a_directory_is_where_its_name_was_found_last() {
        let mut places = Places::default();
        assert_eq!(places.of(INODE), None);
        places.note(INODE, ABOVE[0], b"a");
        places.note(INODE, ABOVE[1], b"b");
        let (directory, name) = places.of(INODE).expect("it was noted");
        assert_eq!((directory, &*name), (ABOVE[1], &b"b"[..]));
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
