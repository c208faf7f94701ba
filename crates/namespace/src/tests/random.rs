//! Tens of thousands of random operations against the model: same replies, same tree, and the
//! records never contradict each other.

use super::{
    model_tree::{NodeId, Tree},
    *,
};
use model::operation::{RangeChange, XattrMode};

const NAMES: [&str; 9] = [
    "a",
    "b",
    "c",
    "d",
    "same-hash-1",
    "same-hash-2",
    "same-hash-3",
    "same-hash-4",
    "a name with blanks",
];
const XATTRS: [&str; 3] = ["user.a", "user.b", "trusted.c"];
const BYTES_MAX: u64 = 20_000;

/// SplitMix64: the same numbers on every machine.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    pub(super) fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// The model beside the real implementation.
struct Pair {
    chance: Chance,
    store: Store,
    tree: Tree,
}

impl Pair {
    fn any(&mut self, kind: Option<FileKind>) -> (NodeId, InodeId) {
        let fits = |node: &super::model_tree::Node| kind.is_none_or(|kind| node.kind == kind);
        let ids: Vec<(NodeId, InodeId)> = self
            .tree
            .nodes
            .iter()
            .filter(|(_, node)| fits(node))
            .map(|(id, node)| (*id, node.real))
            .collect();
        if ids.is_empty() {
            (0, ROOT)
        } else {
            self.chance.of(&ids)
        }
    }

    fn directory(&mut self) -> (NodeId, InodeId) {
        if self.chance.below(20) == 0 {
            self.any(None)
        } else {
            self.any(Some(FileKind::Directory))
        }
    }

    fn name(&mut self) -> &'static str {
        self.chance.of(&NAMES)
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            0..14 => self.create(),
            14..18 => self.link(),
            18..28 => self.remove(),
            28..42 => self.rename(),
            42..46 => self.hold(),
            46..52 => self.release(),
            52..54 => self.create_unnamed(),
            54..70 => self.publish(),
            70..76 => self.truncate(),
            76..84 => self.change_range(),
            84..88 => self.share(),
            88..92 => self.xattr(),
            92..95 => self.fold(),
            95..97 => self.background_step(),
            _ => self.compare_one(),
        }
    }

    fn create(&mut self) {
        let ((id, directory), name) = (self.directory(), self.name());
        let kind = self.chance.of(&[
            FileKind::File,
            FileKind::File,
            FileKind::Directory,
            FileKind::Symlink,
        ]);
        let real = self.store.create(directory, name, kind);
        let expected = self.tree.may_create(id, name);
        assert_eq!(real.map(|_| ()), expected);
        if let Ok(attributes) = real {
            self.tree.create(id, name, kind, attributes.inode);
        }
    }

    fn create_unnamed(&mut self) {
        let (id, directory) = self.any(Some(FileKind::Directory));
        let operation = Operation::CreateUnnamed {
            directory,
            new: new_inode(FileKind::File),
        };
        let real = entry(self.store.run(&operation));
        let living = self.tree.nodes[&id].links > 0;
        assert_eq!(
            real.map(|_| ()),
            if living {
                Ok(())
            } else {
                Err(ErrorKind::NotFound)
            }
        );
        if let Ok(attributes) = real {
            let id = self.tree.add(FileKind::File, 0, attributes.inode);
            self.tree.node(id).linkable = true;
            self.tree.node(id).held = true;
            self.store.held.insert(attributes.inode);
        }
    }

    fn link(&mut self) {
        let ((id, inode), (to, directory), name) = (self.any(None), self.directory(), self.name());
        let real = self.store.link(inode, directory, name).map(|_| ());
        assert_eq!(real, self.tree.link(id, to, name));
    }

    fn remove(&mut self) {
        let ((id, directory), name) = (self.directory(), self.name());
        let want_directory = self.chance.below(3) == 0;
        let real = if want_directory {
            self.store.rmdir(directory, name)
        } else {
            self.store.unlink(directory, name)
        };
        let before = self.tree.clone();
        assert_eq!(
            real.clone().map(|_| ()),
            self.tree.remove(id, name, want_directory)
        );
        if let Ok(Reply::Removed {
            attributes,
            orphaned,
            ..
        }) = real
        {
            let node = before
                .nodes
                .values()
                .find(|node| node.real == attributes.inode)
                .unwrap();
            assert_eq!(orphaned, node.held && attributes.links == 0);
        }
    }

    fn rename(&mut self) {
        let ((from, from_real), from_name) = (self.directory(), self.name());
        let ((to, to_real), to_name) = (self.directory(), self.name());
        let mode = self.chance.of(&[
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ]);
        let real = self
            .store
            .rename((from_real, from_name), (to_real, to_name), mode)
            .map(|_| ());
        assert_eq!(
            real,
            self.tree.rename((from, from_name), (to, to_name), mode),
            "{mode:?}"
        );
    }

    fn hold(&mut self) {
        let (id, inode) = self.any(None);
        self.tree.node(id).held = true;
        self.store.held.insert(inode);
    }

    fn release(&mut self) {
        let (id, inode) = self.any(None);
        if id == 0 {
            return;
        }
        self.store.held.remove(&inode);
        self.store.run(&Operation::Release { inode }).unwrap();
        self.tree.release(id);
    }

    /// 1 to 4 extents with gaps, data and inline mixed.
    fn publish(&mut self) {
        let (id, inode) = self.any(Some(FileKind::File));
        if id == 0 {
            return;
        }
        let size = self.tree.nodes[&id].bytes.len() as u64;
        let mut at = if self.chance.below(3) == 0 {
            size.min(BYTES_MAX)
        } else {
            self.chance.below(BYTES_MAX)
        };
        let only_inline = self.chance.below(3) == 0;
        let (mut extents, mut writes) = (Vec::new(), Vec::new());
        for number in 0..=self.chance.below(4) {
            let length = if only_inline {
                1 + self.chance.below(900)
            } else {
                1 + self.chance.below(3000)
            };
            let bytes = vec![(self.chance.below(255) + 1) as u8; length as usize];
            if only_inline || self.chance.below(4) == 0 {
                extents.push(inline(at, &bytes));
            } else {
                let place = self.store.segment(&bytes);
                extents.push(data(at, length, place, 0));
            }
            writes.push((at as usize, bytes));
            at += length
                + if number == 0 {
                    0
                } else {
                    self.chance.below(2) * self.chance.below(500)
                };
        }
        let end = extents.last().unwrap().end();
        let real = self.store.publish(inode, extents, end).map(|_| ());
        let node = self.tree.node(id);
        assert_eq!(
            real,
            if node.cutting && end > size {
                Err(ErrorKind::Busy)
            } else {
                Ok(())
            }
        );
        if real.is_ok() {
            for (at, bytes) in writes {
                put(&mut node.bytes, at, &bytes);
            }
        }
    }

    fn truncate(&mut self) {
        let (id, inode) = self.any(Some(FileKind::File));
        if id == 0 {
            return;
        }
        let size = if self.chance.below(4) == 0 {
            0
        } else {
            self.chance.below(BYTES_MAX)
        };
        let real = self.store.truncate(inode, size);
        let node = self.tree.node(id);
        let busy = node.cutting && size > node.bytes.len() as u64;
        assert_eq!(
            real.map(|_| ()),
            if busy { Err(ErrorKind::Busy) } else { Ok(()) }
        );
        if let Ok((attributes, unfinished)) = real {
            assert_eq!(attributes.size, size);
            node.bytes.resize(size as usize, 0);
            node.cutting = unfinished;
        }
    }

    fn change_range(&mut self) {
        let (id, inode) = self.any(Some(FileKind::File));
        if id == 0 {
            return;
        }
        let (offset, length) = (
            self.chance.below(BYTES_MAX),
            1 + self.chance.below(BYTES_MAX / 2),
        );
        let change = self
            .chance
            .of(&[RangeChange::Punch, RangeChange::Zero, RangeChange::Reserve]);
        let keep_size = change == RangeChange::Punch || self.chance.below(2) == 0;
        let mut next = Some(offset);
        let end = offset + length;
        while let Some(from) = next {
            let length = end - from;
            let operation = Operation::ChangeRange {
                inode,
                offset: from,
                length,
                change,
                keep_size,
            };
            match self.store.run(&operation) {
                Ok(Reply::RangeChanged { next: further, .. }) => next = further,
                Err(ErrorKind::Busy) => {
                    let node = self.tree.node(id);
                    assert!(node.cutting && end > node.bytes.len() as u64);
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
        let bytes = &mut self.tree.node(id).bytes;
        if !keep_size && end as usize > bytes.len() {
            bytes.resize(end as usize, 0);
        }
        if change != RangeChange::Reserve {
            let len = bytes.len();
            bytes[(offset as usize).min(len)..(end as usize).min(len)].fill(0);
        }
    }

    fn share(&mut self) {
        let ((from, from_real), (to, to_real)) = (
            self.any(Some(FileKind::File)),
            self.any(Some(FileKind::File)),
        );
        if from == 0 {
            return;
        }
        let (from_offset, to_offset) = (self.chance.below(BYTES_MAX), self.chance.below(BYTES_MAX));
        let length = 1 + self.chance.below(BYTES_MAX / 2);
        let bytes = &self.tree.nodes[&from].bytes;
        let end = (from_offset + length).min(bytes.len() as u64);
        let shared: Vec<u8> = bytes
            .get(from_offset as usize..end as usize)
            .unwrap_or_default()
            .to_vec();
        let to_end = to_offset + shared.len() as u64;
        let mut next = Some(from_offset);
        while let Some(at) = next {
            let operation = Operation::Share {
                from: from_real,
                from_offset: at,
                to: to_real,
                to_offset: to_offset + (at - from_offset),
                // The source may grow while it is shared into itself; its end at the start counts.
                length: (from_offset + length).min(end.max(from_offset + 1)) - at,
            };
            match self.store.run(&operation) {
                Ok(Reply::RangeChanged { next: further, .. }) => {
                    next = further.filter(|further| *further > at);
                }
                Err(ErrorKind::Busy) => {
                    let node = self.tree.node(to);
                    assert!(node.cutting && to_end > node.bytes.len() as u64);
                    return;
                }
                Err(ErrorKind::InvalidArgument) => {
                    assert!(from == to && from_offset < to_end && to_offset < end);
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
        if !shared.is_empty() {
            put(&mut self.tree.node(to).bytes, to_offset as usize, &shared);
        }
    }

    fn xattr(&mut self) {
        let ((id, inode), name) = (self.any(None), self.chance.of(&XATTRS));
        let name_bytes = Bytes::from_static(name.as_bytes());
        let xattrs = &mut self.tree.nodes.get_mut(&id).unwrap().xattrs;
        if self.chance.below(3) == 0 {
            let real = self
                .store
                .run(&Operation::RemoveXattr {
                    inode,
                    name: name_bytes,
                })
                .map(|_| ());
            assert_eq!(
                real,
                xattrs
                    .remove(name)
                    .map(|_| ())
                    .ok_or(ErrorKind::NoSuchAttribute)
            );
            return;
        }
        let value = vec![1; self.chance.below(30) as usize];
        let mode = self
            .chance
            .of(&[XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
        let operation = Operation::SetXattr {
            inode,
            name: name_bytes,
            value: value.clone().into(),
            mode,
            drop_setgid: false,
        };
        let expected = match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => Err(ErrorKind::Exists),
            (XattrMode::Replace, false) => Err(ErrorKind::NoSuchAttribute),
            _ => Ok(()),
        };
        assert_eq!(self.store.run(&operation).map(|_| ()), expected);
        if expected.is_ok() {
            xattrs.insert(name.into(), value);
        }
    }

    /// Folds the inline extents of a marked file into one segment.
    fn fold(&mut self) {
        let (from, to) = Table::Folds.range();
        let Some((Key::Fold(inode), _)) = self
            .store
            .records
            .range(from..to)
            .next()
            .map(|(k, r)| (k.clone(), r))
        else {
            return;
        };
        let before = self.store.content(inode);
        let is_inline = |extent: &Extent| matches!(extent.kind, ExtentKind::Inline(_));
        let replaces: Vec<Extent> = self
            .store
            .extents(inode)
            .into_iter()
            .filter(is_inline)
            .take(200)
            .collect();
        let mut bytes = Vec::new();
        for extent in &replaces {
            if let ExtentKind::Inline(inline) = &extent.kind {
                bytes.extend_from_slice(inline);
            }
        }
        if replaces.is_empty() {
            return;
        }
        let (place, mut at) = (self.store.segment(&bytes), 0);
        let mut extents = Vec::new();
        for extent in &replaces {
            extents.push(data(extent.offset, extent.length, place, at));
            at += extent.length as u32;
        }
        let publish = Publish {
            inode,
            extents,
            size_at_least: 0,
            written: None,
            replaces: Some(replaces),
        };
        self.store.run(&Operation::Publish(publish)).unwrap();
        assert_eq!(self.store.content(inode), before);
    }

    fn background_step(&mut self) {
        self.store.background();
        for node in self.tree.nodes.values_mut() {
            node.cutting = false;
        }
    }

    fn compare_one(&mut self) {
        let (id, _) = self.any(None);
        self.compare(id);
    }

    fn compare(&mut self, id: NodeId) {
        let node = self.tree.nodes[&id].clone();
        let attributes = self.store.attributes(node.real).unwrap();
        assert_eq!((attributes.kind, attributes.links), (node.kind, node.links));
        let names: Vec<Bytes> = node
            .xattrs
            .keys()
            .map(|name| Bytes::from(name.clone()))
            .collect();
        assert_eq!(
            self.store.run(&Operation::ListXattrs { inode: node.real }),
            Ok(Reply::Names(names))
        );
        for (name, value) in &node.xattrs {
            let operation = Operation::GetXattr {
                inode: node.real,
                name: name.clone().into(),
            };
            assert_eq!(
                self.store.run(&operation),
                Ok(Reply::Value(value.clone().into()))
            );
        }
        match node.kind {
            FileKind::File => assert!(
                self.store.content(node.real) == node.bytes,
                "bytes of {}",
                node.real
            ),
            FileKind::Directory => {
                let operation = Operation::ReadDirectory {
                    directory: node.real,
                    after: 0,
                    limit: 1000,
                    with_attributes: true,
                };
                let Ok(Reply::Listing { entries, end: true }) = self.store.run(&operation) else {
                    panic!()
                };
                let real: BTreeMap<String, InodeId> = entries
                    .iter()
                    .map(|entry| (entry.name.to_string(), entry.inode))
                    .collect();
                let expected: BTreeMap<String, InodeId> = node
                    .names
                    .iter()
                    .map(|(name, id)| (name.clone(), self.tree.nodes[id].real))
                    .collect();
                assert_eq!(real, expected);
                for (name, inode) in expected {
                    assert_eq!(self.store.lookup(node.real, &name).unwrap().inode, inode);
                }
            }
            _ => {}
        }
    }

    fn compare_all(&mut self) {
        let report = self.store.audit();
        assert_eq!(report.inodes, self.tree.nodes.len() as u64);
        assert_eq!(report.logical, u128::from(self.tree.logical()));
        for id in self.tree.nodes.keys().copied().collect::<Vec<_>>() {
            self.compare(id);
        }
        for (key, record) in &self.store.records {
            assert_eq!(Record::decode(key, &record.to_bytes()).unwrap(), *record);
        }
        // Segments that records refer to have their bytes; nothing refers to a dead one (the audit
        // checks that).
        assert!(
            report
                .live
                .iter()
                .all(|place| self.store.segments.contains_key(&place.segment))
        );
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    if bytes.len() < at + new.len() {
        bytes.resize(at + new.len(), 0);
    }
    bytes[at..at + new.len()].copy_from_slice(new);
}

/// Random operations beside the model, compared at the end.
fn run(seed: u64, steps: u32) -> Store {
    let mut pair = Pair {
        chance: Chance(seed),
        store: Store::new(),
        tree: Tree::new(),
    };
    for step in 0..steps {
        pair.step();
        if step % 10 == 0 {
            pair.store.audit();
        }
        if step % 200 == 0 {
            pair.compare_all();
        }
    }
    pair.compare_all();
    pair.store
}

/// A store filled by random operations.
pub(super) fn filled(seed: u64) -> Store {
    run(seed, 300)
}

#[test]
fn random_operations_do_what_the_model_does() {
    let (first, seeds) = match std::env::var("SHALE_LONG") {
        Ok(_) => (1_000, 200),
        Err(_) => (0, 10),
    };
    for seed in first..first + seeds {
        let mut store = run(seed, 4_000);
        store.background();
        store.audit();
    }
}
