//! A client whose session has ended begins another one: what it says of what was lost, and that
//! everything else goes on.

use crate::rig::way::{Way, client_through};
use crate::rig::{self, Node, content, name, new_file, patient, run_patient as run};
use crate::sharing::{CELL, CELLS, Event, History, filled, values};
use client::{Allocate, Client, Losses, OpenFlags};
use futures::future::join_all;
use model::lock::{LockDoor, LockOwner, LockTaker};
use model::operation::{RenameMode, XattrMode};
use model::{Error, ErrorKind, InodeId, LockKind, LockRange, Operation, Result, SetAttributes};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use world::World;

/// A client on another node, and the way of its messages.
async fn client(world: &World, node: &Node) -> (Arc<Client>, Arc<Way>) {
    let way = Way::new(world, &node.metanode, 0);
    let client = client_through(node, &way).await;
    (client, way)
}

async fn open(client: &Client, inode: InodeId) {
    client.open(inode, OpenFlags::default()).await.unwrap();
}

async fn lock(client: &Client, door: LockDoor, inode: InodeId) -> Result<()> {
    let owner = LockOwner { door, id: 1 };
    let taker = LockTaker {
        open: 1,
        pid: 1,
        user: 1,
    };
    let kind = Some(LockKind::Exclusive);
    let never = None::<std::future::Ready<()>>;
    client
        .set_lock(inode, owner, LockRange::ALL, kind, taker, never)
        .await
}

fn set(size: Option<u64>, mode: Option<u32>) -> SetAttributes {
    SetAttributes {
        size,
        mode,
        ..SetAttributes::default()
    }
}

fn is_lost<T: std::fmt::Debug>(result: Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::SessionEnded);
}

#[test]
fn a_client_that_was_cut_off_goes_on_and_says_what_was_lost() {
    run(9_000, |world, node| async move {
        let (cut, way) = client(&world, &node).await;
        let here = &node.client;
        let mut files = Vec::new();
        for text in ["written", "stored", "locked", "free", "removed"] {
            let file = rig::file(here, text).await;
            open(&cut, file).await;
            cut.write(file, 0, &content(1, 9_000)).await.unwrap();
            cut.fsync(file, false).await.unwrap();
            files.push(file);
        }
        let [written, stored, locked, free, removed] = files[..] else {
            unreachable!()
        };
        // Opened twice: each of both programs hears of it.
        open(&cut, written).await;
        open(&cut, stored).await;
        let door = cut.begin_lock_door().await.unwrap();
        lock(&cut, door, locked).await.unwrap();
        here.release(removed).await;
        cut.unlink(InodeId::ROOT, name("removed")).await.unwrap();
        cut.write(written, 0, &content(2, 9_000)).await.unwrap();

        way.cut.store(true, Ordering::Relaxed);
        let begun = world.now();
        here.write(written, 0, &content(3, 5_000)).await.unwrap();
        assert!(world.now() - begun < Duration::from_secs(15));
        here.write(stored, 0, &content(4, 100)).await.unwrap();
        let other = here.begin_lock_door().await.unwrap();
        // Its locks are free a moment later: once its end is durable.
        while lock(here, other, locked).await.is_err() {
            assert!(world.now() - begun < Duration::from_secs(15));
            world.sleep(Duration::from_millis(1)).await;
        }
        // A program of the client asks before the client knows.
        let asks = {
            let cut = cut.clone();
            async move { rig::read(&cut, stored, 0, 9_000).await }
        };
        let asks = world.spawn("a program", asks);
        world.sleep(Duration::from_secs(20)).await;
        way.cut.store(false, Ordering::Relaxed);

        // What is only open goes on, and sees what others did meanwhile.
        let mut now = content(1, 9_000);
        now[..100].copy_from_slice(&content(4, 100));
        assert!(asks.await == now);
        cut.write(stored, 0, &content(5, 100)).await.unwrap();
        assert!(rig::read(here, stored, 0, 100).await == content(5, 100));
        let made = rig::file(&cut, "new").await;
        cut.write(made, 0, &content(6, 50_000)).await.unwrap();
        cut.fsync(made, false).await.unwrap();
        assert!(rig::read(here, made, 0, 50_000).await == content(6, 50_000));
        lock(&cut, door, free).await.unwrap();
        let refused = lock(here, other, free).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);

        // What was lost is said until all have closed it.
        for lost in [written, locked, removed] {
            is_lost(cut.read(lost, 0, 10).await);
            is_lost(cut.write(lost, 0, b"late").await);
            is_lost(cut.fsync(lost, false).await);
            is_lost(lock(&cut, door, lost).await);
            is_lost(cut.set_attributes(lost, set(Some(5), None)).await);
            is_lost(cut.set_attributes(lost, set(None, Some(0o600))).await);
            is_lost(cut.set_xattr(lost, b"user.x", b"1", XattrMode::Set).await);
            is_lost(cut.allocate(lost, Allocate::Punch, 0, 10).await);
            is_lost(cut.copy_range(stored, 0, lost, 0, 10).await);
            is_lost(cut.copy_range(lost, 0, stored, 0, 10).await);
        }
        for kept in [written, locked] {
            let found = here.get_attributes(kept).await.unwrap();
            assert_eq!((found.size, found.mode & 0o777), (9_000, 0o644));
        }
        cut.release(written).await;
        is_lost(cut.read(written, 0, 10).await);
        for lost in [written, locked, removed] {
            cut.release(lost).await;
        }
        open(&cut, written).await;
        let mut now = content(1, 9_000);
        now[..5_000].copy_from_slice(&content(3, 5_000));
        assert!(rig::read(&cut, written, 0, 9_000).await == now);
        open(&cut, locked).await;
        let refused = lock(&cut, door, locked).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        assert_eq!(
            cut.losses(),
            Losses {
                sessions: 1,
                files_with_data: 1,
                files_with_locks: 1,
                files_without_names: 1,
            }
        );

        // Files that it has open outlive their names in the new session too, and end with it.
        here.release(stored).await;
        here.unlink(InodeId::ROOT, name("stored")).await.unwrap();
        assert!(rig::read(&cut, stored, 0, 100).await == content(5, 100));
        for file in [stored, stored, free, made, written, locked] {
            cut.release(file).await;
        }
        is_gone(here.get_attributes(stored).await);
        cut.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// It is cut off again after its next session was opened, and before that one has what it needs.
#[test]
fn a_session_that_could_not_be_made_complete_does_not_stay_open() {
    run(9_050, |world, node| async move {
        let (cut, way) = client(&world, &node).await;
        let here = &node.client;
        let mut files = Vec::new();
        for number in 0..40 {
            let file = rig::file(here, &format!("f{number}")).await;
            open(&cut, file).await;
            files.push(file);
        }
        let shared = files[0];
        cut.write(shared, 0, b"before").await.unwrap();
        cut.fsync(shared, false).await.unwrap();
        way.cut.store(true, Ordering::Relaxed);
        here.write(shared, 0, b"others").await.unwrap();
        let sessions = || node.metanode.hosted().sessions().of_clients().count();
        assert_eq!(sessions(), 1, "only the client here has one");
        way.slow_ms.store(20, Ordering::Relaxed);
        way.cut.store(false, Ordering::Relaxed);
        let begun = world.now();
        while sessions() == 1 {
            assert!(world.now() - begun < Duration::from_secs(60));
            world.sleep(Duration::from_millis(1)).await;
        }
        way.cut.store(true, Ordering::Relaxed);
        world.sleep(patient().patience * 3).await;
        way.cut.store(false, Ordering::Relaxed);
        assert!(rig::read(&cut, shared, 0, 6).await == b"others"[..]);
        assert_eq!(cut.losses().sessions, 1);
        assert_eq!(sessions(), 2, "each client has one");
        for file in files {
            cut.release(file).await;
        }
        cut.close().await.unwrap();
        node.check_and_close().await;
    });
}

fn is_gone<T: std::fmt::Debug>(result: Result<T>) {
    let kind = result.unwrap_err().kind();
    assert!(
        matches!(kind, ErrorKind::Stale | ErrorKind::NotFound),
        "{kind:?}"
    );
}

/// Makes, renames and removes names, each its own: an operation that is applied twice fails.
async fn names(world: &World, client: &Client) -> usize {
    let root = InodeId::ROOT;
    let mut unknown = BTreeSet::new();
    for step in 0..150 {
        let pause = Duration::from_millis(world.random_u64() % 1_000);
        world.sleep(pause).await;
        let (first, second) = (name(&format!("a{step}")), name(&format!("b{step}")));
        let made = client.create(root, first.clone(), new_file()).await;
        let done = async {
            made?;
            let mode = RenameMode::NoReplace;
            client
                .rename(root, first, root, second.clone(), mode)
                .await?;
            client.unlink(root, second).await
        };
        if let Err(error) = done.await {
            assert_eq!(error.kind(), ErrorKind::Unknown, "step {step}: {error}");
            unknown.insert(step);
        }
    }
    let listed = client.read_directory(root, 0, 1_000, false).await.unwrap();
    for entry in listed.entries {
        let text = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
        let step = text[1..].parse::<u32>();
        assert!(step.is_err() || unknown.contains(&step.unwrap()), "{text}");
    }
    unknown.len()
}

/// The last answer of the old session comes late: the owner wants the publish in parts.
#[test]
fn what_an_ended_session_wrote_is_not_published_by_the_next_one() {
    run(9_070, |world, node| async move {
        let here = &node.client;
        let file = rig::file(here, "f").await;
        // So many pieces that nothing replaces all of them at once.
        for at in 0..3_000 {
            here.write(file, 2 * at, b"x").await.unwrap();
        }
        here.fsync(file, false).await.unwrap();
        let before = rig::read(here, file, 0, 10_000).await;
        let (cut, way) = client(&world, &node).await;
        open(&cut, file).await;
        cut.write(file, 0, &content(1, 5_999)).await.unwrap();
        *way.late.lock() = Some(|operation| matches!(operation, Operation::Publish(_)));
        let publishes = {
            let cut = cut.clone();
            async move { cut.fsync(file, false).await }
        };
        let publishes = world.spawn("a program", publishes);
        way.until_late().await;
        let session = cut.session();
        node.metanode.close_session(session).await.unwrap();
        while cut.losses().sessions == 0 {
            world.sleep(Duration::from_millis(1)).await;
        }
        *way.late.lock() = None;
        is_lost(publishes.await);
        world.sleep(Duration::from_secs(10)).await;
        assert!(rig::read(here, file, 0, 10_000).await == before);
        is_lost(cut.read(file, 0, 10).await);
        assert_eq!(cut.losses().files_with_data, 1);
        cut.release(file).await;
        open(&cut, file).await;
        assert!(rig::read(&cut, file, 0, 10_000).await == before);
        cut.release(file).await;
        cut.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// It has no token whose loss would tell: it had everything.
#[test]
fn the_only_client_hears_of_what_it_lost_when_its_session_is_ended() {
    run(9_080, |world, node| async move {
        let only = &node.client;
        world.sleep(Duration::from_secs(5)).await;
        let written = rig::file(only, "written").await;
        let kept = rig::file(only, "kept").await;
        only.write(kept, 0, &content(1, 9_000)).await.unwrap();
        only.fsync(kept, false).await.unwrap();
        only.write(written, 0, &content(2, 9_000)).await.unwrap();
        node.metanode.close_session(only.session()).await.unwrap();
        while only.losses().sessions == 0 {
            world.sleep(Duration::from_millis(1)).await;
        }
        is_lost(only.read(written, 0, 10).await);
        is_lost(only.fsync(written, false).await);
        assert_eq!(only.losses().files_with_data, 1);
        assert!(rig::read(only, kept, 0, 9_000).await == content(1, 9_000));
        only.release(written).await;
        open(only, written).await;
        assert!(rig::read(only, written, 0, 10).await.is_empty());
        for file in [written, kept] {
            only.release(file).await;
        }
        node.check_and_close().await;
    });
}

/// It is asked before the client knows that what it had is lost.
#[test]
fn a_truncate_that_waits_for_the_next_session_is_not_applied_to_a_file_with_lost_data() {
    run(9_060, |world, node| async move {
        let (cut, way) = client(&world, &node).await;
        let here = &node.client;
        let file = rig::file(here, "f").await;
        open(&cut, file).await;
        cut.write(file, 0, &content(1, 9_000)).await.unwrap();
        cut.fsync(file, false).await.unwrap();
        let door = cut.begin_lock_door().await.unwrap();
        lock(&cut, door, file).await.unwrap();
        way.cut.store(true, Ordering::Relaxed);
        here.write(file, 0, &content(2, 9_000)).await.unwrap();
        way.slow_ms.store(100, Ordering::Relaxed);
        way.cut.store(false, Ordering::Relaxed);
        assert_eq!(cut.losses(), Losses::default(), "it doesn't know yet");
        is_lost(cut.set_attributes(file, set(Some(5), None)).await);
        assert!(rig::read(here, file, 0, 9_000).await == content(2, 9_000));
        cut.release(file).await;
        cut.close().await.unwrap();
        node.check_and_close().await;
    });
}

#[test]
fn no_operation_is_applied_twice_by_a_client_that_loses_its_session_again_and_again() {
    run(9_100, |world, node| async move {
        let (cut, way) = client(&world, &node).await;
        let shared = rig::file(&node.client, "shared").await;
        let done = Arc::new(AtomicBool::new(false));
        let cutting = {
            let (world, way, done) = (world.clone(), way.clone(), done.clone());
            async move {
                while !done.load(Ordering::Relaxed) {
                    let time = Duration::from_millis(world.random_u64() % 10_000);
                    world.sleep(time).await;
                    // What was asked last is done, and the client doesn't hear of it.
                    way.deaf.store(true, Ordering::Relaxed);
                    let last = Duration::from_millis(world.random_u64() % 1_000);
                    world.sleep(last).await;
                    way.cut.store(true, Ordering::Relaxed);
                    way.deaf.store(false, Ordering::Relaxed);
                    let rest = Duration::from_millis(world.random_u64() % 25_000);
                    world.sleep(rest).await;
                    way.cut.store(false, Ordering::Relaxed);
                }
            }
        };
        // Others wait for what it has read.
        let reading = {
            let (world, cut, done) = (world.clone(), cut.clone(), done.clone());
            async move {
                while !done.load(Ordering::Relaxed) {
                    let _ = cut.read(shared, 0, 10).await;
                    world.sleep(Duration::from_millis(100)).await;
                }
            }
        };
        let writing = {
            let (world, here, done) = (world.clone(), node.client.clone(), done.clone());
            async move {
                while !done.load(Ordering::Relaxed) {
                    here.write(shared, 0, b"0123456789").await.unwrap();
                    world.sleep(Duration::from_millis(100)).await;
                }
            }
        };
        let cutting = world.spawn("cuts the client off", cutting);
        let reading = world.spawn("reads", reading);
        let writing = world.spawn("writes", writing);
        let unknown = names(&world, &cut).await;
        done.store(true, Ordering::Relaxed);
        cutting.await;
        reading.await;
        writing.await;
        let sessions = cut.losses().sessions;
        assert!(sessions > 1 && unknown > 0, "{sessions}, {unknown}");
        cut.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Works on shared files as a program that hears of losses: it opens the file again and goes on.
struct Program {
    world: World,
    client: Arc<Client>,
    number: u64,
    history: Arc<Mutex<History>>,
    /// Writes to each file that aren't known to be durable: file, cells, value.
    unsynced: Vec<(InodeId, std::ops::Range<usize>, u64)>,
    losses: u64,
}

impl Program {
    fn note(&mut self, file: InodeId, cells: std::ops::Range<usize>, value: u64, begun: u64) {
        self.history.lock().wrote(file, cells.clone(), value, begun);
        self.unsynced.push((file, cells, value));
    }

    /// What was written since it was last durable may be there or not: it replaces nothing for sure.
    async fn hear(&mut self, file: InodeId, error: &Error) {
        let kind = error.kind();
        assert!(
            matches!(kind, ErrorKind::SessionEnded | ErrorKind::Unknown),
            "program {}: {error}",
            self.number
        );
        self.losses += 1;
        self.doubt(file);
        self.client.release(file).await;
        open(&self.client, file).await;
    }

    fn doubt(&mut self, file: InodeId) {
        let mut history = self.history.lock();
        for (lost, cells, value) in &self.unsynced {
            for cell in cells.clone().filter(|_| *lost == file) {
                let writes = history.writes.get_mut(&(file, cell)).unwrap();
                let mine = writes.iter_mut().filter(|write| write.value == *value);
                mine.for_each(|write| write.ended = u64::MAX);
            }
        }
        drop(history);
        self.unsynced.retain(|(lost, ..)| *lost != file);
    }

    async fn fsync(&mut self, file: InodeId) {
        match self.client.fsync(file, false).await {
            Ok(()) => self.unsynced.retain(|(other, ..)| *other != file),
            Err(error) => self.hear(file, &error).await,
        }
    }

    async fn work(mut self, files: Vec<InodeId>) -> u64 {
        for file in &files {
            open(&self.client, *file).await;
        }
        for step in 1..=60 {
            let draw = self.world.random_u64();
            let file = files[draw as usize % files.len()];
            let first = (draw >> 8) as usize % CELLS;
            let cells = (1 + (draw >> 16) as usize % 40).min(CELLS - first);
            let value = self.number << 32 | step;
            let begun = self.history.lock().now();
            let at = (first * CELL) as u64;
            let mut error = None;
            match (draw >> 32) % 16 {
                0..6 => {
                    let written = self.client.write(file, at, &filled(value, cells)).await;
                    self.note(file, first..first + cells, value, begun);
                    error = written.err();
                }
                6..12 => match self.client.read(file, at, cells * CELL).await {
                    Ok(read) => self.note_read(file, first, cells, &read.concat(), begun),
                    Err(refused) => error = Some(refused),
                },
                12 => {
                    let set = SetAttributes {
                        size: Some(at),
                        ..SetAttributes::default()
                    };
                    let cut = self.client.set_attributes(file, set).await;
                    // Of nothing there may be several.
                    self.note_cut(file, first, begun, cut.is_ok());
                    error = cut.err();
                }
                13 => self.fsync(file).await,
                _ => {
                    let pause = Duration::from_millis(draw >> 40 & 0xfff);
                    self.world.sleep(pause).await;
                }
            }
            if let Some(error) = error {
                self.hear(file, &error).await;
            }
        }
        for file in files {
            self.fsync(file).await;
        }
        self.losses
    }

    /// A truncate is durable when it is answered.
    fn note_cut(&self, file: InodeId, first: usize, begun: u64, is_done: bool) {
        let mut history = self.history.lock();
        let now = history.now();
        let ended = if is_done { now } else { u64::MAX };
        let write = Event {
            value: 0,
            begun,
            ended,
        };
        history.note_write(file, first..CELLS, write);
    }

    fn note_read(&self, file: InodeId, first: usize, cells: usize, bytes: &[u8], begun: u64) {
        let mut bytes = bytes.to_vec();
        bytes.resize(cells * CELL, 0);
        let values = values(&bytes);
        self.history.lock().saw(file, first, &values, begun);
    }
}

/// Cuts clients off, one at a time, until it is told to stop.
async fn cut_off(world: World, ways: Vec<Arc<Way>>, done: Arc<AtomicBool>) {
    while !done.load(Ordering::Relaxed) {
        let way = &ways[world.random_u64() as usize % ways.len()];
        way.cut.store(true, Ordering::Relaxed);
        let time = Duration::from_millis(world.random_u64() % 25_000);
        world.sleep(time).await;
        way.cut.store(false, Ordering::Relaxed);
        let time = Duration::from_millis(world.random_u64() % 5_000);
        world.sleep(time).await;
    }
}

async fn storm(world: World, node: Node) -> (u64, u64) {
    let mut clients = vec![node.client.clone()];
    let mut ways = Vec::new();
    for _ in 0..3 {
        let (client, way) = client(&world, &node).await;
        clients.push(client);
        ways.push(way);
    }
    let mut files = Vec::new();
    for number in 0..2 {
        files.push(rig::file(&node.client, &format!("f{number}")).await);
    }
    let history = Arc::new(Mutex::new(History::default()));
    let done = Arc::new(AtomicBool::new(false));
    let cutting = cut_off(world.clone(), ways, done.clone());
    let cutting = world.spawn("cuts clients off", cutting);
    let works = clients.iter().zip(1..).map(|(client, number)| {
        let program = Program {
            world: world.clone(),
            client: client.clone(),
            number,
            history: history.clone(),
            unsynced: Vec::new(),
            losses: 0,
        };
        program.work(files.clone())
    });
    let heard = join_all(works).await.iter().sum();
    done.store(true, Ordering::Relaxed);
    cutting.await;
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
    let sessions = clients.iter().map(|client| client.losses().sessions).sum();
    assert_eq!(node.client.losses(), Losses::default());
    for client in clients.into_iter().skip(1) {
        client.close().await.unwrap();
    }
    node.check_and_close().await;
    (sessions, heard)
}

/// Would be broken if the next session, which holds what programs have open, never caught up with those that close it
/// meanwhile: nothing of the client would go on.
#[test]
fn programs_may_close_files_while_the_next_session_begins() {
    for seed in 0..8 {
        run(9_300 + seed, |world, node| async move {
            let (cut, way) = client(&world, &node).await;
            let file = rig::file(&cut, "f").await;
            let opens = 10;
            for _ in 1..opens {
                open(&cut, file).await;
            }
            cut.write(file, 0, b"first").await.unwrap();
            cut.fsync(file, false).await.unwrap();
            way.cut.store(true, Ordering::Relaxed);
            // Its token is wanted, so its session ends.
            node.client.write(file, 0, b"other").await.unwrap();
            way.slow_ms.store(20, Ordering::Relaxed);
            way.cut.store(false, Ordering::Relaxed);
            let closes = (0..opens - 2).map(|_| {
                let (world, cut) = (world.clone(), cut.clone());
                async move {
                    let time = Duration::from_millis(world.random_u64() % 600);
                    world.sleep(time).await;
                    cut.release(file).await;
                }
            });
            join_all(closes).await;
            let wait = Duration::from_secs(20);
            let seen = world.timeout(wait, cut.read(file, 0, 5)).await;
            assert_eq!(seen.expect("it goes on").unwrap().concat(), b"other");
            assert_eq!(cut.losses().sessions, 1);
            // The session holds it as often as it is open.
            cut.unlink(InodeId::ROOT, name("f")).await.unwrap();
            cut.release(file).await;
            cut.get_attributes(file).await.unwrap();
            cut.release(file).await;
            let gone = cut.get_attributes(file).await.unwrap_err().kind();
            assert!(matches!(gone, ErrorKind::Stale | ErrorKind::NotFound));
            cut.close().await.unwrap();
            node.check_and_close().await;
        });
    }
}

/// Would be broken if locks that are left to a close were looked for under the session in which the file was opened.
#[test]
fn a_lock_that_is_taken_in_the_next_session_ends_with_its_open() {
    run(9_310, |world, node| async move {
        let (cut, way) = client(&world, &node).await;
        let [lost, file] = ["lost", "f"];
        let lost = rig::file(&cut, lost).await;
        let file = rig::file(&cut, file).await;
        let door = cut.begin_lock_door().await.unwrap();
        cut.write(lost, 0, b"lost").await.unwrap();
        way.cut.store(true, Ordering::Relaxed);
        node.client.write(lost, 0, b"other").await.unwrap();
        way.cut.store(false, Ordering::Relaxed);
        let owner = LockOwner { door, id: 7 };
        let taker = LockTaker {
            open: 7,
            pid: 1,
            user: 1,
        };
        let flock = async |client: &Client, owner, taker| {
            let kind = Some(LockKind::Exclusive);
            let never = None::<std::future::Ready<()>>;
            client.flock(file, owner, kind, taker, never).await
        };
        cut.open(file, OpenFlags::default()).await.unwrap();
        flock(&cut, owner, taker).await.unwrap();
        assert_eq!(cut.losses().sessions, 1);
        let here = node.client.begin_lock_door().await.unwrap();
        let other = LockOwner { door: here, id: 1 };
        let refused = flock(&node.client, other, taker).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        cut.release_open_locks(door, 7).await;
        flock(&node.client, other, taker).await.unwrap();
        cut.close().await.unwrap();
        node.close().await;
    });
}

#[test]
fn clients_that_are_cut_off_and_come_back_read_and_write_with_the_others() {
    let totals = Arc::new(Mutex::new((0, 0)));
    for seed in 0..rig::storm_seeds(20) {
        let totals = totals.clone();
        run(9_200 + seed, |world, node| async move {
            let (sessions, heard) = storm(world, node).await;
            let mut totals = totals.lock();
            *totals = (totals.0 + sessions, totals.1 + heard);
        });
    }
    let (sessions, heard) = *totals.lock();
    assert!(
        sessions > 0 && heard > 0,
        "{sessions} sessions, {heard} errors"
    );
}
