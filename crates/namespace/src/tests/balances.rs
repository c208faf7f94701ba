//! The assertion after every operation catches each kind of fault that rules could have.

use super::*;
use crate::{Dead, Inode, Orphan, balance};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// An operation with its changes and the earlier values.
struct Done {
    operation: Operation,
    changes: Vec<(Key, Option<Record>)>,
    before: Vec<Option<Record>>,
}

impl Done {
    fn is_refused(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| {
            balance::check(&self.operation, &self.changes, &self.before);
        }))
        .is_err()
    }

    fn inode(&mut self, id: InodeId) -> &mut Inode {
        match self.change(&Key::Inode(id)) {
            Some(Record::Inode(inode)) => Arc::make_mut(inode),
            other => panic!("{other:?}"),
        }
    }

    fn change(&mut self, key: &Key) -> &mut Option<Record> {
        let found = self.changes.iter_mut().find(|(changed, _)| changed == key);
        &mut found.expect("the operation changes it").1
    }

    fn without(&mut self, table: Table) {
        let at = self
            .changes
            .iter()
            .position(|(key, _)| key.table() == table);
        let at = at.expect("the operation changes the table");
        self.changes.remove(at);
        self.before.remove(at);
    }
}

impl Store {
    /// Applies an operation that succeeds, and returns its changes.
    fn done(&mut self, operation: Operation) -> Done {
        let stamp = self.stamp();
        let outcome = apply(&operation, &stamp, in_commit(self.commit), self).unwrap();
        let changes = outcome.effects.0.clone();
        let before = changes
            .iter()
            .map(|(key, _)| self.records.get(key).cloned());
        let done = Done {
            operation,
            before: before.collect(),
            changes,
        };
        assert!(!done.is_refused(), "nothing is wrong with it");
        self.take(outcome);
        done
    }
}

fn create(name: &str) -> Operation {
    Operation::Create {
        directory: ROOT,
        name: file_name(name),
        new: new_inode(FileKind::File),
    }
}

fn unlink(name: &str) -> Operation {
    Operation::Unlink {
        directory: ROOT,
        name: file_name(name),
    }
}

fn write(store: &mut Store, inode: InodeId, bytes: &[u8]) -> Operation {
    let place = store.segment(bytes);
    Operation::Publish(Publish {
        inode,
        extents: vec![data(0, bytes.len() as u64, place, 0)],
        size_at_least: bytes.len() as u64,
        written: None,
        replaces: None,
    })
}

#[test]
fn a_create_that_leaves_out_a_change_is_refused() {
    let faults: [fn(&mut Done); 8] = [
        |done| done.inode(ROOT).entries += 1,
        |done| done.inode(ROOT).links += 1,
        |done| done.inode(InodeId(64)).links = 2,
        |done| done.inode(InodeId(64)).allocated = 1,
        |done| done.inode(InodeId(64)).xattr_bytes = 1,
        |done| done.without(Table::Names),
        |done| done.without(Table::Counters),
        |done| {
            let orphan = Record::Orphan(Orphan { linkable: true });
            done.changes.push((Key::Orphan(InodeId(64)), Some(orphan)));
            done.before.push(None);
        },
    ];
    for (number, fault) in faults.iter().enumerate() {
        let mut store = Store::new();
        let mut done = store.done(create("a"));
        fault(&mut done);
        assert!(done.is_refused(), "fault {number}");
    }
}

#[test]
fn an_unlink_that_leaves_something_behind_is_refused() {
    let faults: [fn(&mut Done); 5] = [
        |done| done.inode(ROOT).entries += 1,
        |done| done.without(Table::Names),
        |done| done.without(Table::Inodes),
        |done| done.without(Table::Counters),
        |done| done.without(Table::Reclaims),
    ];
    for (number, fault) in faults.iter().enumerate() {
        let mut store = Store::new();
        let file = store.file("a");
        store.write(file, 0, &[1; 5_000]).unwrap();
        let mut done = store.done(unlink("a"));
        fault(&mut done);
        assert!(done.is_refused(), "fault {number}");
    }
}

#[test]
fn a_publish_that_miscounts_is_refused() {
    let faults: [fn(&mut Done); 7] = [
        |done| done.inode(InodeId(64)).allocated += 1,
        |done| done.inode(InodeId(64)).extents += 1,
        |done| done.inode(InodeId(64)).extents_end = 1,
        |done| done.inode(InodeId(64)).size += 1,
        |done| done.without(Table::Extents),
        |done| done.without(Table::Segments),
        |done| done.without(Table::Counters),
    ];
    for (number, fault) in faults.iter().enumerate() {
        let mut store = Store::new();
        let file = store.file("a");
        assert_eq!(file, InodeId(64));
        store.write(file, 0, &[1; 5_000]).unwrap();
        let operation = write(&mut store, file, &[2; 6_000]);
        let mut done = store.done(operation);
        fault(&mut done);
        assert!(done.is_refused(), "fault {number}");
    }
}

#[test]
fn an_operation_keeps_to_its_records() {
    let mut store = Store::new();
    let file = store.file("a");
    let mut lookup = store.done(create("b"));
    lookup.operation = Operation::GetAttributes { inode: file };
    assert!(lookup.is_refused(), "a lookup changes nothing");

    let place = store.segment(&[1]);
    let dead = Dead {
        place,
        died: CommitNumber(1),
    };
    let mut done = store.done(create("c"));
    let dead = Record::Dead(Arc::new(dead));
    done.changes.push((Key::Dead(place.segment), Some(dead)));
    done.before.push(None);
    assert!(done.is_refused(), "a create removes no segment");

    let (mut changes, mut before) = (Vec::new(), Vec::new());
    for number in 0..=4_096 {
        let segment = SegmentId {
            session: SESSION,
            counter: number,
        };
        changes.push((Key::Dead(segment), None));
        before.push(None);
    }
    let mut many = Done {
        operation: Operation::ForgetDead { segments: vec![] },
        changes,
        before,
    };
    assert!(
        many.is_refused(),
        "more records than one operation may change"
    );
    many.changes.pop();
    many.before.pop();
    assert!(!many.is_refused());
}
