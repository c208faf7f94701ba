//! Several clients of one file system, each with its caches: what one has written the others read.
//!
//! A file is looked at as cells. Each write fills some of them with a value of its own, a truncate
//! empties those behind it. A read must find in each cell a value that may be there: one whose write
//! had begun, and that no other write has replaced that lay between that write and the read.

use crate::rig::way::{Way, client_through};
use crate::rig::{self, Node, new_file, run_patient as run};
use client::{Allocate, Client, Owner, ReadTraces, Seek};
use futures::future::{join, join_all};
use metanode::Metanode;
use model::{ErrorKind, InodeId, Operation, SetAttributes};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use testkit::inodes::name;
use world::World;

pub(crate) const CELL: usize = 512;
pub(crate) const CELLS: usize = 256;
const FILES: u64 = 2;

/// What a cell can have: 0 for nothing.
pub(crate) type Value = u64;

/// A write of a cell, or a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) value: Value,
    pub(crate) begun: u64,
    pub(crate) ended: u64,
}

/// Everything that was answered, by file and cell.
#[derive(Default)]
pub(crate) struct History {
    /// Counts beginnings and ends in their order.
    last: u64,
    pub(crate) writes: BTreeMap<(InodeId, usize), Vec<Event>>,
    reads: BTreeMap<(InodeId, usize), Vec<Event>>,
}

impl History {
    pub(crate) fn now(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A write of cells that began then has been answered.
    pub(crate) fn wrote(&mut self, file: InodeId, cells: Range<usize>, value: Value, begun: u64) {
        let ended = self.now();
        let write = Event {
            value,
            begun,
            ended,
        };
        self.note_write(file, cells, write);
    }

    pub(crate) fn note_write(&mut self, file: InodeId, cells: Range<usize>, write: Event) {
        for cell in cells {
            self.writes.entry((file, cell)).or_default().push(write);
        }
    }

    /// A read that began then has been answered with the values of these cells.
    pub(crate) fn saw(&mut self, file: InodeId, first: usize, values: &[Value], begun: u64) {
        let ended = self.now();
        for (at, value) in values.iter().enumerate() {
            let read = Event {
                value: *value,
                begun,
                ended,
            };
            self.reads.entry((file, first + at)).or_default().push(read);
        }
    }

    pub(crate) fn check(&self) {
        for (cell, reads) in &self.reads {
            let none = Vec::new();
            let writes = self.writes.get(cell).unwrap_or(&none);
            for read in reads {
                let is_replaced = |write: &Event| {
                    writes
                        .iter()
                        .any(|other| write.ended < other.begun && other.ended < read.begun)
                };
                let of_value = |write: &&Event| write.value == read.value;
                let candidates: Vec<&Event> = writes.iter().filter(of_value).collect();
                let is_first = read.value == 0 && !writes.iter().any(|w| w.ended < read.begun);
                let explained = candidates
                    .iter()
                    .any(|write| write.begun < read.ended && !is_replaced(write));
                assert!(
                    explained || is_first,
                    "cell {cell:?}: {read:?} isn't explained by {candidates:?}, of {writes:?}"
                );
            }
        }
    }
}

/// A client on another node.
async fn client(world: &World, node: &Node, faults: u64) -> Arc<Client> {
    client_afar(world, node, faults, 0).await
}

/// As [`client`]; each message takes up to `slow_ms`.
async fn client_afar(world: &World, node: &Node, faults: u64, slow_ms: u64) -> Arc<Client> {
    let way = Way::new(world, &node.metanode, faults);
    way.slow_ms.store(slow_ms, Ordering::Relaxed);
    client_through(node, &way).await
}

/// Cells filled with a value.
pub(crate) fn filled(value: Value, cells: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(CELL / 8 * cells)
}

/// The values of cells; a cell that isn't filled with one value is torn.
pub(crate) fn values(bytes: &[u8]) -> Vec<Value> {
    let cells = bytes.chunks(CELL).map(|cell| {
        let mut value = [0; 8];
        value.copy_from_slice(&cell[..8]);
        assert!(
            cell.chunks(8).all(|part| part == value),
            "a cell with parts of several writes"
        );
        Value::from_le_bytes(value)
    });
    cells.collect()
}

/// Random work of one task of a client on files that others work on.
async fn work(
    world: World,
    client: Arc<Client>,
    number: u64,
    files: Vec<InodeId>,
    history: Arc<Mutex<History>>,
    steps: u64,
) {
    for step in 1..=steps {
        let draw = world.random_u64();
        let file = files[(draw % FILES) as usize];
        let first = (draw >> 8) as usize % CELLS;
        let cells = (1 + (draw >> 16) as usize % 40).min(CELLS - first);
        // Also the last byte of a cell says which write it is of.
        let value = step << 56 | number << 32 | step;
        let begun = history.lock().now();
        match (draw >> 32) % 16 {
            0..6 => {
                let data = filled(value, cells);
                let written = client.write(file, (first * CELL) as u64, &data).await;
                written.unwrap_or_else(|error| panic!("client {number}: {error}"));
                let cells = first..first + cells;
                history.lock().wrote(file, cells, value, begun);
            }
            6..12 => {
                let read = client.read(file, (first * CELL) as u64, cells * CELL).await;
                let read = read.unwrap_or_else(|error| panic!("client {number}: {error}"));
                let mut bytes = read.concat();
                bytes.resize(cells * CELL, 0);
                history.lock().saw(file, first, &values(&bytes), begun);
            }
            12 => {
                let set = SetAttributes {
                    size: Some((first * CELL) as u64),
                    ..SetAttributes::default()
                };
                client.set_attributes(file, set).await.unwrap();
                history.lock().wrote(file, first..CELLS, 0, begun);
            }
            13 => client.fsync(file, false).await.unwrap(),
            14 => drop(client.get_attributes(file).await.unwrap()),
            _ => {
                let pause = Duration::from_millis(draw >> 40 & 0x3ff);
                world.sleep(pause).await;
            }
        }
    }
}

/// `tasks`: how many work on each client at the same time. If there are several, messages overtake
/// each other.
pub(crate) async fn storm(world: World, node: Node, faults: u64, tasks: usize) {
    let slow_ms = if tasks == 1 { 0 } else { 20 };
    let mut clients = vec![node.client.clone()];
    for _ in 0..3 {
        clients.push(client_afar(&world, &node, faults, slow_ms).await);
    }
    let mut files = Vec::new();
    for number in 0..FILES {
        files.push(rig::file(&node.client, &format!("f{number}")).await);
    }
    let history = Arc::new(Mutex::new(History::default()));
    let all = (0..tasks).flat_map(|_| &clients).enumerate();
    let steps = if tasks == 1 { 60 } else { 40 };
    let works = all.map(|(number, client)| {
        let (world, client) = (world.clone(), client.clone());
        let (files, history) = (files.clone(), history.clone());
        work(world, client, number as u64 + 1, files, history, steps)
    });
    join_all(works).await;
    let begun = history.lock().now();
    for file in files {
        let mut seen = Vec::new();
        for client in &clients {
            let mut bytes = rig::read(client, file, 0, CELLS * CELL).await;
            bytes.resize(CELLS * CELL, 0);
            seen.push(values(&bytes));
        }
        history.lock().saw(file, 0, &seen[0], begun);
        assert!(seen.iter().all(|values| *values == seen[0]));
    }
    history.lock().check();
    for client in clients.into_iter().skip(1) {
        client.close().await.unwrap();
    }
    node.check_and_close().await;
}

fn seeds() -> u64 {
    rig::storm_seeds(12)
}

#[test]
fn clients_that_share_files_read_what_was_written_last() {
    for seed in 0..seeds() {
        run(8_000 + seed, |world, node| storm(world, node, 0, 1));
    }
}

#[test]
fn two_programs_of_each_client_read_what_was_written_last() {
    for seed in 0..seeds() {
        // From where the first ones found faults on.
        run(8_060 + seed, |world, node| storm(world, node, 0, 2));
    }
}

#[test]
fn two_programs_of_each_client_read_what_was_written_last_whatever_gets_lost() {
    for seed in 0..seeds() {
        run(8_220 + seed, |world, node| storm(world, node, 5, 2));
    }
}

#[test]
fn clients_that_share_files_read_what_was_written_last_whatever_gets_lost() {
    for seed in 0..seeds() {
        run(8_100 + seed, |world, node| storm(world, node, 5, 1));
    }
}

#[test]
fn what_the_only_client_has_cached_is_there_for_the_second_one() {
    run(8_200, |world, node| async move {
        let file = rig::file(&node.client, "f").await;
        let first = filled(7, CELLS);
        node.client.write(file, 0, &first).await.unwrap();
        assert_eq!(rig::read(&node.client, file, 0, first.len()).await, first);
        let other = client(&world, &node, 0).await;
        assert_eq!(rig::read(&other, file, 0, first.len()).await, first);
        let second = filled(8, 1);
        other.write(file, 0, &second).await.unwrap();
        assert_eq!(rig::read(&node.client, file, 0, CELL).await, second);
        // Alone again, it needs no tokens, and sees what the other one left.
        other.write(file, 0, &filled(9, 1)).await.unwrap();
        other.close().await.unwrap();
        world.sleep(Duration::from_secs(5)).await;
        assert!(node.client.asked().is_alone());
        assert_eq!(rig::read(&node.client, file, 0, CELL).await, filled(9, 1));
        node.close().await;
    });
}

#[test]
fn a_client_that_is_cut_off_loses_its_session_and_the_others_go_on() {
    run(8_300, |world, node| async move {
        let way = Way::new(&world, &node.metanode, 0);
        let silent = client_through(&node, &way).await;
        let file = rig::file(&node.client, "f").await;
        let held = silent.open(file, client::OpenFlags::default()).await;
        held.unwrap();
        silent.write(file, 0, &filled(1, 4)).await.unwrap();
        way.cut.store(true, Ordering::Relaxed);
        let begun = world.now();
        node.client.write(file, 0, &filled(2, 4)).await.unwrap();
        let waited = world.now() - begun;
        assert!(waited < Duration::from_secs(15), "{waited:?}");
        assert_eq!(
            rig::read(&node.client, file, 0, 4 * CELL).await,
            filled(2, 4)
        );
        // It doesn't answer from what it had, nor does what it had written come later.
        way.cut.store(false, Ordering::Relaxed);
        let refused = silent.read(file, 0, CELL).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::SessionEnded);
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(
            rig::read(&node.client, file, 0, 4 * CELL).await,
            filled(2, 4)
        );
        assert!(silent.fsync(file, false).await.is_err());
        node.close().await;
    });
}

/// The client that wrote it and removed the last name can't know that it is the last one.
#[test]
fn what_was_written_to_a_file_without_names_is_there_for_those_who_have_it_open() {
    run(8_350, |world, node| async move {
        let other = client(&world, &node, 0).await;
        let file = rig::file(&node.client, "f").await;
        let opened = other.open(file, client::OpenFlags::default()).await;
        opened.unwrap();
        node.client.write(file, 0, &filled(1, 4)).await.unwrap();
        node.client.unlink(InodeId::ROOT, name("f")).await.unwrap();
        node.client.release(file).await;
        assert_eq!(rig::read(&other, file, 0, 4 * CELL).await, filled(1, 4));
        other.release(file).await;
        other.close().await.unwrap();
        node.close().await;
    });
}

#[test]
fn appends_of_several_clients_follow_each_other() {
    run(8_400, |world, node| async move {
        let file = rig::file(&node.client, "log").await;
        let mut clients = vec![node.client.clone()];
        for _ in 0..2 {
            clients.push(client(&world, &node, 0).await);
        }
        let appends = clients.iter().enumerate().map(|(number, client)| {
            let (world, client) = (world.clone(), client.clone());
            async move {
                let mut places = Vec::new();
                for step in 1..=20 {
                    let value = (number as u64 + 1) << 32 | step;
                    let offset = client.append(file, &filled(value, 1)).await.unwrap();
                    places.push((offset, value));
                    if world.random_u64() % 3 == 0 {
                        world.sleep(Duration::from_millis(50)).await;
                    }
                }
                places
            }
        });
        let mut places = join_all(appends).await.concat();
        places.sort_unstable();
        let offsets: Vec<u64> = places.iter().map(|(offset, _)| *offset).collect();
        let expected: Vec<u64> = (0..60).map(|at| at * CELL as u64).collect();
        assert_eq!(offsets, expected);
        for client in &clients {
            let bytes = rig::read(client, file, 0, 61 * CELL).await;
            let found = values(&bytes);
            assert!(found.iter().eq(places.iter().map(|(_, value)| value)));
        }
        assert_eq!(
            clients[1].get_attributes(file).await.unwrap().size,
            60 * CELL as u64
        );
        drop(places);
        node.close().await;
    });
}

/// Would be broken if readers that wait for a change went on one at a time, or behind all changes that follow.
#[test]
fn readers_that_wait_for_a_change_go_on_together_before_the_next_one() {
    run(8_450, |world, node| async move {
        let busy = client_afar(&world, &node, 0, 40).await;
        let file = rig::file(&node.client, "f").await;
        // In a segment, not in the file's record.
        busy.write(file, 0, &filled(1, CELLS)).await.unwrap();
        busy.fsync(file, false).await.unwrap();
        let changes = AtomicU64::new(0);
        let is_over = AtomicBool::new(false);
        let changing = async {
            let mut cells = CELLS + 1;
            while !is_over.load(Ordering::Relaxed) {
                cells = 2 * CELLS + 3 - cells;
                let set = SetAttributes {
                    size: Some((cells * CELL) as u64),
                    ..SetAttributes::default()
                };
                busy.set_attributes(file, set).await.unwrap();
                changes.fetch_add(1, Ordering::Relaxed);
            }
        };
        let reading = async {
            for _ in 0..10 {
                world.sleep(Duration::from_millis(70)).await;
                let (began, before) = (world.now(), changes.load(Ordering::Relaxed));
                // Each goes to an NSD.
                let traces = ReadTraces {
                    cached: false,
                    ..ReadTraces::default()
                };
                busy.forget_clean();
                let reads = (0..60).map(|_| busy.read_leaving(file, 0, CELL, traces));
                for read in join_all(reads).await {
                    assert_eq!(values(&read.unwrap().concat()), [1]);
                }
                let (took, after) = (world.now() - began, changes.load(Ordering::Relaxed));
                assert!(after - before <= 3, "{} changes came first", after - before);
                assert!(took < Duration::from_millis(300), "one by one: {took:?}");
            }
            is_over.store(true, Ordering::Relaxed);
        };
        join(changing, reading).await;
        busy.close().await.unwrap();
        node.close().await;
    });
}

/// How a program asks for a file's size.
#[derive(Clone, Copy, Debug)]
enum Asks {
    Stat,
    Lookup,
    Listing,
    Truncate,
    Punch,
}

impl Asks {
    /// Which operation that is.
    fn late(self) -> fn(&Operation) -> bool {
        match self {
            Self::Stat => |operation| matches!(operation, Operation::GetAttributes { .. }),
            Self::Lookup => |operation| matches!(operation, Operation::Lookup { .. }),
            Self::Listing => |operation| matches!(operation, Operation::ReadDirectory { .. }),
            Self::Truncate => |operation| matches!(operation, Operation::SetAttributes { .. }),
            Self::Punch => |operation| matches!(operation, Operation::ChangeRange { .. }),
        }
    }

    async fn size(self, client: &Client, file: InodeId) -> u64 {
        let root = InodeId::ROOT;
        match self {
            Self::Stat | Self::Truncate | Self::Punch => {
                client.get_attributes(file).await.unwrap().size
            }
            Self::Lookup => client.lookup(root, name("f")).await.unwrap().size,
            Self::Listing => {
                let listed = client.read_directory(root, 0, 1000, true).await.unwrap();
                let mut entries = listed.entries.into_iter();
                let entry = entries.find(|entry| entry.inode == file).unwrap();
                entry.attributes.unwrap().size
            }
        }
    }
}

/// The owner answers before the publish, and the answer arrives after it.
#[test]
fn attributes_show_what_was_published_while_the_answer_was_on_its_way() {
    run(8_450, |world, node| async move {
        let way = Way::new(&world, &node.metanode, 0);
        let other = client_through(&node, &way).await;
        let file = rig::file(&other, "f").await;
        // Each time the program has written one cell more, and that is published while the answer is late.
        for (cells, kind) in [(4, Asks::Stat), (5, Asks::Lookup), (6, Asks::Listing)] {
            other.write(file, 0, &filled(1, cells)).await.unwrap();
            *way.late.lock() = Some(kind.late());
            let asking = {
                let other = other.clone();
                async move { kind.size(&other, file).await }
            };
            let asking = world.spawn("a program that asks for the size", asking);
            way.until_late().await;
            other.fsync(file, false).await.unwrap();
            *way.late.lock() = None;
            assert_eq!(asking.await, (cells * CELL) as u64, "{kind:?}");
        }
        other.release(file).await;
        other.close().await.unwrap();
        node.close().await;
    });
}

/// Cuts a file, makes it longer, or punches it.
async fn change(client: Arc<Client>, file: InodeId, kind: Asks, cells: usize) {
    let bytes = (cells * CELL) as u64;
    let done = match kind {
        Asks::Punch => client.allocate(file, Allocate::Punch, 0, bytes).await,
        _ => {
            let set = SetAttributes {
                size: Some(bytes),
                ..SetAttributes::default()
            };
            client.set_attributes(file, set).await.map(drop)
        }
    };
    done.unwrap();
}

/// The owner has cut, grown or punched a file, as others see already, and its answer to who asked for that is late.
#[test]
fn reads_show_what_others_have_seen_of_a_change_whose_answer_is_late() {
    let changes = [
        (Asks::Truncate, 6, 6),
        (Asks::Truncate, 1, 1),
        (Asks::Punch, 3, 4),
    ];
    for (kind, changed, cells) in changes {
        run(8_452, |world, node| async move {
            let way = Way::new(&world, &node.metanode, 0);
            let other = client_through(&node, &way).await;
            let file = rig::file(&other, "f").await;
            other.write(file, 0, &filled(1, 4)).await.unwrap();
            other.fsync(file, false).await.unwrap();
            assert_eq!(rig::read(&other, file, 0, 8 * CELL).await, filled(1, 4));
            *way.late.lock() = Some(kind.late());
            let changing = change(other.clone(), file, kind, changed);
            let changing = world.spawn("a program that changes it", changing);
            way.until_late().await;
            let size = other.get_attributes(file).await.unwrap().size;
            assert_eq!(size, (cells * CELL) as u64);
            let found = [Seek::Data, Seek::Hole].map(|what| {
                let other = other.clone();
                world.spawn("a seek", async move { other.seek(file, 0, what).await })
            });
            let reading = {
                let other = other.clone();
                async move { rig::read(&other, file, 0, 8 * CELL).await }
            };
            let reading = world.spawn("a program that reads it", reading);
            world.sleep(Duration::from_millis(50)).await;
            *way.late.lock() = None;
            changing.await;
            let seen = reading.await;
            let shown = rig::read(&node.client, file, 0, 8 * CELL).await;
            assert_eq!((seen.len() as u64, &seen), (size, &shown));
            for (what, found) in [Seek::Data, Seek::Hole].into_iter().zip(found) {
                let shown = node
                    .client
                    .seek(file, 0, what)
                    .await
                    .map_err(|it| it.kind());
                assert_eq!(found.await.map_err(|it| it.kind()), shown);
            }
            other.release(file).await;
            other.close().await.unwrap();
            node.close().await;
        });
    }
}

/// The program's own write would be missing in its size.
#[test]
fn an_answer_that_lacks_own_writes_and_can_not_be_completed_is_an_error() {
    run(8_451, |world, node| async move {
        let way = Way::new(&world, &node.metanode, 0);
        let other = client_through(&node, &way).await;
        let file = rig::file(&other, "f").await;
        other.write(file, 0, &filled(1, 4)).await.unwrap();
        *way.late.lock() = Some(Asks::Lookup.late());
        let asking = {
            let other = other.clone();
            async move { other.lookup(InodeId::ROOT, name("f")).await }
        };
        let asking = world.spawn("a lookup", asking);
        way.until_late().await;
        other.fsync(file, false).await.unwrap();
        way.cut.store(true, Ordering::Relaxed);
        *way.late.lock() = None;
        let refused = asking.await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unknown);
        way.cut.store(false, Ordering::Relaxed);
        other.release(file).await;
        other.close().await.unwrap();
        node.close().await;
    });
}

#[test]
fn names_made_by_one_client_are_there_for_the_others() {
    run(8_500, |world, node| async move {
        let other = client(&world, &node, 0).await;
        for number in 0..20 {
            let text = name(&format!("n{number}"));
            let (maker, looker) = match number % 2 {
                0 => (&node.client, &other),
                _ => (&other, &node.client),
            };
            let root = InodeId::ROOT;
            assert!(looker.lookup(root, text.clone()).await.is_err());
            let made = maker
                .create_and_open(root, text.clone(), new_file())
                .await
                .unwrap();
            maker.write(made.inode, 0, &filled(5, 3)).await.unwrap();
            // The size that its maker hasn't published yet.
            let found = looker.lookup(root, text.clone()).await.unwrap();
            assert_eq!((found.inode, found.size), (made.inode, 3 * CELL as u64));
            maker.write(made.inode, 0, &filled(6, 4)).await.unwrap();
            let all = looker.read_directory(root, 0, 1000, true).await.unwrap();
            let entry = all.entries.iter().find(|entry| entry.inode == made.inode);
            let shown = entry.unwrap().attributes.as_ref();
            assert!(shown.is_none_or(|shown| shown.size == 4 * CELL as u64));
            let exact = looker.get_attributes(made.inode).await.unwrap();
            assert_eq!(exact.size, 4 * CELL as u64);
            looker.unlink(root, text).await.unwrap();
            maker.release(made.inode).await;
        }
        other.close().await.unwrap();
        node.close().await;
    });
}

/// A file that no program has open is removed while a client has written data of it: that is dropped, and the next
/// write must not succeed as if that had never been written.
#[test]
fn a_write_after_written_data_was_dropped_says_that_the_file_is_gone() {
    run(8_610, |world, node| async move {
        let other = client(&world, &node, 0).await;
        let file = rig::file(&other, "f").await;
        other.release(file).await;
        other.write(file, 0, &filled(1, 4)).await.unwrap();
        let root = InodeId::ROOT;
        node.client.unlink(root, name("f")).await.unwrap();
        other.sync_all().await.unwrap();
        let refused = other.write(file, 0, &filled(2, 1)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Stale);
        let refused = other.read(file, 0, CELL).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Stale);
        other.close().await.unwrap();
        node.close().await;
    });
}

/// The metanode of a node that has lost its client to another one.
#[test]
fn a_session_of_the_same_process_uses_tokens_too() {
    run(8_600, |world, node| async move {
        let owner = Owner::Here(node.metanode.clone() as Arc<Metanode>);
        let session = owner.open_session(&world).await.unwrap();
        let pool = node.pool.clone();
        let second = Client::new(world.clone(), owner, pool, session, rig::patient());
        let file = rig::file(&second, "f").await;
        for round in 1..20 {
            node.client.write(file, 0, &filled(round, 2)).await.unwrap();
            assert_eq!(
                rig::read(&second, file, 0, 2 * CELL).await,
                filled(round, 2)
            );
            second
                .write(file, CELL as u64, &filled(100 + round, 1))
                .await
                .unwrap();
            assert_eq!(
                rig::read(&node.client, file, CELL as u64, CELL).await,
                filled(100 + round, 1)
            );
        }
        second.close().await.unwrap();
        node.close().await;
    });
}
