//! Names that clients know: what one changes the others see at once, and what nobody changes is asked
//! for once.

use crate::rig::way::{Way, client_through};
use crate::rig::{Node, new_file, run_patient as run, storm_seeds};
use client::{Client, Expired, Found, Kernel, VALID_MAX};
use futures::future::join_all;
use model::operation::{NewInode, RenameMode};
use model::{Attributes, ErrorKind, FileKind, InodeId, Result, SetAttributes};
use parking_lot::Mutex;
use simkernel::SimKernel;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::inodes::{name, new_inode};
use world::{Instant, World};

const ROOT: InodeId = InodeId::ROOT;

/// A client on another node, and the way to it.
pub(crate) async fn far(world: &World, node: &Node) -> (Arc<Client>, Arc<Way>) {
    let way = Way::new(world, &node.metanode, 0);
    let client = client_through(node, &way).await;
    // Until the owner has answered it.
    world.sleep(Duration::from_secs(3)).await;
    (client, way)
}

/// How many messages something takes.
pub(crate) async fn messages<T>(way: &Way, work: impl Future<Output = T>) -> (T, u64) {
    let before = way.asked.load(Ordering::Relaxed);
    let result = work.await;
    (result, way.asked.load(Ordering::Relaxed) - before)
}

pub(crate) fn new_directory() -> NewInode {
    NewInode {
        mode: 0o755,
        ..new_inode(FileKind::Directory)
    }
}

pub(crate) async fn make(
    client: &Client,
    directory: InodeId,
    text: &str,
    new: NewInode,
) -> InodeId {
    let made = client.create(directory, name(text), new).await;
    made.unwrap().inode
}

pub(crate) async fn chmod(client: &Client, inode: InodeId, mode: u32) -> Result<Attributes> {
    let set = SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    client.set_attributes(inode, set).await
}

pub(crate) fn kind_of<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn a_lookup_that_is_repeated_asks_nobody() {
    run(9_300, |world, node| async move {
        let (other, way) = far(&world, &node).await;
        let directory = make(&node.client, ROOT, "d", new_directory()).await;
        let file = make(&node.client, directory, "f", new_file()).await;
        let look = |directory, text| other.lookup(directory, name(text));
        // The first one asks for the directory's token, the second one for those of the attributes.
        for (directory, text, most) in [(ROOT, "d", [2, 3]), (directory, "f", [1, 2])] {
            for most in most {
                let (found, asked) = messages(&way, look(directory, text)).await;
                found.unwrap();
                assert!(asked <= most, "{asked} messages for {text}");
            }
        }
        for _ in 0..3 {
            // For longer than a token lasts that isn't renewed.
            world.sleep(Duration::from_secs(5)).await;
            let (found, asked) = messages(&way, look(directory, "f")).await;
            assert_eq!((found.unwrap().inode, asked), (file, 0));
            let (found, asked) = messages(&way, look(ROOT, "d")).await;
            assert_eq!((found.unwrap().inode, asked), (directory, 0));
        }
        other.close().await.unwrap();
        node.close().await;
    });
}

/// An owner whose commits are slow answers about tokens late: for as long as nothing is known a lookup waits
/// a second at most, and once.
#[test]
fn names_are_learned_of_an_owner_that_gives_tokens_slowly() {
    run(9_305, |world, node| async move {
        let (other, way) = far(&world, &node).await;
        let file = make(&node.client, ROOT, "f", new_file()).await;
        way.tokens_ms.store(1_500, Ordering::Relaxed);
        let look = async || {
            let begun = world.now();
            let found = other.lookup(ROOT, name("f")).await.unwrap();
            assert_eq!(found.inode, file);
            world.now() - begun
        };
        // It waits for the token of the directory, and for that of the file.
        let second = Duration::from_secs(1);
        let mut waited = 0;
        for _ in 0..12 {
            let took = look().await;
            assert!(took < 2 * second, "{took:?}");
            waited += u32::from(took >= second);
            world.sleep(Duration::from_millis(700)).await;
        }
        assert!((1..=2).contains(&waited), "{waited}");
        let (_, asked) = messages(&way, look()).await;
        assert_eq!(asked, 0);
        other.close().await.unwrap();
        node.close().await;
    });
}

#[test]
fn a_missing_name_that_is_looked_up_again_asks_nobody() {
    run(9_310, |world, node| async move {
        let (other, way) = far(&world, &node).await;
        let look = || other.lookup(ROOT, name("none"));
        let (found, asked) = messages(&way, look()).await;
        assert_eq!((kind_of(found), asked), (ErrorKind::NotFound, 2));
        let (found, asked) = messages(&way, look()).await;
        assert_eq!((kind_of(found), asked), (ErrorKind::NotFound, 0));
        node.client
            .create(ROOT, name("none"), new_file())
            .await
            .unwrap();
        look().await.unwrap();
        node.client.unlink(ROOT, name("none")).await.unwrap();
        assert_eq!(kind_of(look().await), ErrorKind::NotFound);
        other.close().await.unwrap();
        node.close().await;
    });
}

#[test]
fn a_listing_that_is_repeated_asks_nobody() {
    run(9_320, |world, node| async move {
        let (other, way) = far(&world, &node).await;
        for number in 0..50 {
            make(&node.client, ROOT, &format!("n{number}"), new_file()).await;
        }
        let list = async || {
            let (mut names, mut after) = (Vec::new(), 0);
            loop {
                let part = other.read_directory(ROOT, after, 20, false).await.unwrap();
                after = part.entries.last().map_or(after, |entry| entry.position);
                names.extend(part.entries.into_iter().map(|entry| entry.name));
                if part.end {
                    return names;
                }
            }
        };
        let (first, asked) = messages(&way, list()).await;
        // For the token, and one part that is kept for those that follow.
        assert_eq!((first.len(), asked), (50, 2));
        let (again, asked) = messages(&way, list()).await;
        assert_eq!((&again, asked), (&first, 0));
        // It says which names there are, and where they lead to.
        let (missing, asked) = messages(&way, other.lookup(ROOT, name("none"))).await;
        assert_eq!((kind_of(missing), asked), (ErrorKind::NotFound, 0));
        node.client.unlink(ROOT, name("n7")).await.unwrap();
        assert_eq!(list().await.len(), 49);
        make(&other, ROOT, "own", new_file()).await;
        assert_eq!(list().await.len(), 50);
        other.close().await.unwrap();
        node.close().await;
    });
}

#[test]
fn a_listing_with_attributes_asks_nobody_if_all_of_them_are_known() {
    run(9_330, |world, node| async move {
        let (other, way) = far(&world, &node).await;
        for text in ["a", "b"] {
            make(&node.client, ROOT, text, new_file()).await;
        }
        let list = || other.read_directory(ROOT, 0, 100, true);
        for text in ["a", "b", "a", "b"] {
            list().await.unwrap();
            other.lookup(ROOT, name(text)).await.unwrap();
        }
        let (listed, asked) = messages(&way, list()).await;
        assert_eq!((listed.unwrap().entries.len(), asked), (2, 0));
        let made = node.client.lookup(ROOT, name("a")).await.unwrap().inode;
        chmod(&node.client, made, 0o600).await.unwrap();
        let listed = list().await.unwrap().entries;
        let shown = listed.iter().find(|entry| entry.inode == made).unwrap();
        assert!(shown.attributes.is_none_or(|shown| shown.mode == 0o600));
        other.close().await.unwrap();
        node.close().await;
    });
}

/// Everything about a file and its directory is known to a client when another one changes it.
#[test]
fn what_another_client_changes_is_seen_at_once() {
    run(9_340, |world, node| async move {
        let (one, _) = far(&world, &node).await;
        let (two, _) = far(&world, &node).await;
        let made = make(&node.client, ROOT, "d", new_directory()).await;
        let mut file = make(&node.client, made, "f", new_file()).await;
        for round in 0..24 {
            let (looker, changer) = match round % 3 {
                0 => (&one, &two),
                1 => (&two, &one),
                _ => (&one, &node.client),
            };
            // Out of the time in which the tokens aren't asked for.
            world.sleep(Duration::from_secs(3)).await;
            let look = async |text: &str| looker.lookup(made, name(text)).await;
            for _ in 0..3 {
                looker.lookup(ROOT, name("d")).await.unwrap();
                assert_eq!(look("f").await.unwrap().inode, file);
                assert_eq!(kind_of(look("g").await), ErrorKind::NotFound);
                let all = looker.read_directory(made, 0, 100, false).await.unwrap();
                assert_eq!(all.entries.len(), 1);
            }
            match round / 3 {
                0 => {
                    let moved = changer
                        .rename(made, name("f"), made, name("g"), RenameMode::Replace)
                        .await;
                    moved.unwrap();
                    assert_eq!(look("g").await.unwrap().inode, file);
                    assert_eq!(kind_of(look("f").await), ErrorKind::NotFound);
                    let all = looker.read_directory(made, 0, 100, false).await.unwrap();
                    assert_eq!(all.entries[0].name, name("g"));
                    changer
                        .rename(made, name("g"), made, name("f"), RenameMode::Replace)
                        .await
                        .unwrap();
                }
                1 => {
                    chmod(changer, file, 0o604).await.unwrap();
                    assert_eq!(look("f").await.unwrap().mode, 0o604);
                    chmod(changer, file, 0o640).await.unwrap();
                    assert_eq!(look("f").await.unwrap().mode, 0o640);
                }
                2 => {
                    let written = vec![7; 5_000 + round];
                    changer.write(file, 0, &written).await.unwrap();
                    assert_eq!(look("f").await.unwrap().size, written.len() as u64);
                    let set = SetAttributes {
                        size: Some(0),
                        ..SetAttributes::default()
                    };
                    changer.set_attributes(file, set).await.unwrap();
                    assert_eq!(look("f").await.unwrap().size, 0);
                }
                3 => {
                    // Under another name, which can then be removed without this directory's token.
                    changer.link(file, ROOT, name("l")).await.unwrap();
                    for _ in 0..3 {
                        assert_eq!(look("f").await.unwrap().links, 2);
                    }
                    changer.unlink(ROOT, name("l")).await.unwrap();
                    assert_eq!(look("f").await.unwrap().links, 1);
                }
                4 => {
                    make(changer, made, "s", new_directory()).await;
                    let above = looker.lookup(ROOT, name("d")).await.unwrap();
                    assert_eq!(above.links, 3);
                    changer.remove_directory(made, name("s")).await.unwrap();
                    let above = looker.lookup(ROOT, name("d")).await.unwrap();
                    assert_eq!(above.links, 2);
                }
                5 => {
                    changer.unlink(made, name("f")).await.unwrap();
                    assert_eq!(kind_of(look("f").await), ErrorKind::NotFound);
                    file = make(changer, made, "f", new_file()).await;
                    assert_eq!(look("f").await.unwrap().inode, file);
                }
                6 => {
                    let new = make(changer, ROOT, "new", new_file()).await;
                    changer
                        .rename(ROOT, name("new"), made, name("f"), RenameMode::Exchange)
                        .await
                        .unwrap();
                    assert_eq!(look("f").await.unwrap().inode, new);
                    changer.unlink(ROOT, name("new")).await.unwrap();
                    file = new;
                }
                _ => {
                    make(changer, made, "g", new_file()).await;
                    let all = looker.read_directory(made, 0, 100, false).await.unwrap();
                    assert_eq!(all.entries.len(), 2);
                    look("g").await.unwrap();
                    changer.unlink(made, name("g")).await.unwrap();
                }
            }
        }
        one.close().await.unwrap();
        two.close().await.unwrap();
        node.close().await;
    });
}

/// A kernel looks each name up before it makes a file, and asks for the attributes of the directories on its path, also
/// after each change in them.
#[test]
fn who_makes_files_in_a_directory_of_its_own_asks_for_nothing_else() {
    run(9_355, |world, node| async move {
        let (maker, way) = far(&world, &node).await;
        let (other, _) = far(&world, &node).await;
        let directory = make(&maker, ROOT, "d", new_directory()).await;
        let is_missing = async |text: &str| {
            let found = maker.lookup_to_keep(directory, name(text)).await;
            matches!(found.unwrap(), Found::Missing(_))
        };
        let make_one = async |text: &str| {
            for above in [ROOT, directory] {
                maker.get_attributes_to_keep(above).await.unwrap();
            }
            maker.lookup_to_keep(ROOT, name("d")).await.unwrap();
            assert!(is_missing(text).await);
            let made = maker.create_and_open(directory, name(text), new_file());
            let made = made.await.unwrap().inode;
            maker.release(made).await;
        };
        for number in 0..40 {
            let text = format!("n{number}");
            let ((), asked) = messages(&way, make_one(&text)).await;
            // With the first one it asks for a delegation; under that nobody is asked.
            let most = if number == 0 { 16 } else { 0 };
            assert!(asked <= most, "{text}: {asked} messages");
            world.sleep(Duration::from_millis(10)).await;
        }
        maker.fsync(directory, false).await.unwrap();
        let (shown, valid) = maker.get_attributes_to_keep(directory).await.unwrap();
        assert_eq!(shown, maker.get_attributes(directory).await.unwrap());
        assert!(valid > Duration::ZERO);
        assert!(!is_missing("n7").await && is_missing("other").await);
        maker.unlink(directory, name("n7")).await.unwrap();
        let (is_gone, asked) = messages(&way, is_missing("n7")).await;
        assert!(is_gone && asked == 0, "{asked} messages");

        // Others change it, and where its name is.
        make(&other, directory, "other", new_file()).await;
        assert!(!is_missing("other").await);
        let (shown, _) = maker.get_attributes_to_keep(directory).await.unwrap();
        assert_eq!(shown, other.get_attributes(directory).await.unwrap());
        let to = name("e");
        let moved = other.rename(ROOT, name("d"), ROOT, to, RenameMode::Replace);
        moved.await.unwrap();
        let (shown, valid) = maker.get_attributes_to_keep(directory).await.unwrap();
        assert_eq!(shown, other.get_attributes(directory).await.unwrap());
        assert_eq!(valid, Duration::ZERO, "nobody has found its name");
        maker.close().await.unwrap();
        other.close().await.unwrap();
        node.close().await;
    });
}

/// Removing a directory takes none of its own tokens.
#[test]
fn a_removed_directory_has_no_listing() {
    run(9_350, |world, node| async move {
        let (other, _) = far(&world, &node).await;
        let made = make(&node.client, ROOT, "d", new_directory()).await;
        for _ in 0..3 {
            let all = other.read_directory(made, 0, 100, false).await.unwrap();
            assert!(all.entries.is_empty() && all.end);
            assert!(other.lookup(made, name("f")).await.is_err());
        }
        node.client.remove_directory(ROOT, name("d")).await.unwrap();
        assert!(other.read_directory(made, 0, 100, false).await.is_err());
        assert!(other.lookup(made, name("f")).await.is_err());
        other.close().await.unwrap();
        node.close().await;
    });
}

#[test]
fn a_client_that_is_cut_off_answers_nothing_from_what_it_knew() {
    run(9_360, |world, node| async move {
        let (silent, way) = far(&world, &node).await;
        make(&node.client, ROOT, "f", new_file()).await;
        for _ in 0..3 {
            silent.lookup(ROOT, name("f")).await.unwrap();
            silent.read_directory(ROOT, 0, 100, false).await.unwrap();
        }
        way.cut.store(true, Ordering::Relaxed);
        node.client.unlink(ROOT, name("f")).await.unwrap();
        let looks = async {
            let found = silent.lookup(ROOT, name("f")).await;
            let all = silent.read_directory(ROOT, 0, 100, false).await;
            (kind_of(found), all.unwrap().entries.len())
        };
        let heals = async {
            world.sleep(Duration::from_secs(5)).await;
            way.cut.store(false, Ordering::Relaxed);
        };
        let (seen, ()) = futures::future::join(looks, heals).await;
        assert_eq!(seen, (ErrorKind::NotFound, 0));
        silent.close().await.unwrap();
        node.close().await;
    });
}

// Storms.

/// What was seen of a name (where it leads to) or of an inode (its permissions).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Cell {
    Name(InodeId, u64),
    Mode(InodeId),
}

/// A write of a cell, or a look at it.
#[derive(Clone, Copy, Debug)]
struct Event {
    value: u64,
    begun: u64,
    ended: u64,
}

#[derive(Default)]
struct History {
    last: u64,
    writes: BTreeMap<Cell, Vec<Event>>,
    looks: BTreeMap<Cell, Vec<Event>>,
    /// Lookups and listings of clients on other nodes.
    looked: u64,
}

impl History {
    fn now(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn write(&mut self, cell: Cell, value: u64, begun: u64) {
        let event = Event {
            value,
            begun,
            ended: self.now(),
        };
        self.writes.entry(cell).or_default().push(event);
    }

    fn look(&mut self, cell: Cell, value: u64, begun: u64) {
        let event = Event {
            value,
            begun,
            ended: self.now(),
        };
        self.looks.entry(cell).or_default().push(event);
    }

    /// Each look finds what is there: a write that had begun, and that no other replaced that lay between.
    fn check(&self) -> usize {
        for (cell, looks) in &self.looks {
            let writes = self.writes.get(cell).map_or(&[][..], |writes| writes);
            for look in looks {
                let is_replaced = |write: &Event| {
                    let mut others = writes.iter();
                    others.any(|other| write.ended < other.begun && other.ended < look.begun)
                };
                let mut written = writes.iter();
                let explained = written.any(|write| {
                    write.value == look.value && write.begun < look.ended && !is_replaced(write)
                });
                let is_first = look.value == 0 && !writes.iter().any(|it| it.ended < look.begun);
                assert!(
                    explained || is_first,
                    "{cell:?}: {look:?} isn't explained by {writes:?}"
                );
            }
        }
        self.looks.values().map(Vec::len).sum()
    }
}

const NAMES: u64 = 4;

fn text(number: u64) -> model::FileName {
    name(&format!("n{number}"))
}

/// Whom a program asks: a client, or a kernel before it.
#[derive(Clone)]
struct Asks {
    client: Arc<Client>,
    kernel: Option<Arc<SimKernel>>,
}

impl Asks {
    async fn lookup(&self, directory: InodeId, number: u64) -> Result<Attributes> {
        match &self.kernel {
            Some(kernel) => kernel.stat(directory, &text(number)).await,
            None => self.client.lookup(directory, text(number)).await,
        }
    }

    /// Changes a name.
    async fn change<T>(
        &self,
        directory: InodeId,
        number: u64,
        change: impl Future<Output = T>,
    ) -> T {
        let note = || {
            let kernel = self.kernel.as_ref();
            kernel.inspect(|kernel| kernel.changes_name(directory, &text(number)));
        };
        note();
        let changed = change.await;
        note();
        changed
    }

    async fn chmod(&self, inode: InodeId, mode: u32) -> Result<Attributes> {
        let note = || {
            let kernel = self.kernel.as_ref();
            kernel.inspect(|kernel| kernel.changes_attributes(inode));
        };
        note();
        let changed = chmod(&self.client, inode, mode).await;
        note();
        changed
    }
}

/// Random work of one program on names that others work on.
async fn work(
    world: World,
    asks: Asks,
    is_far: bool,
    directories: [InodeId; 2],
    history: Arc<Mutex<History>>,
    began: Instant,
) {
    let client = &asks.client;
    for _ in 0..300 {
        let pause = Duration::from_millis(world.random_u64() % 200);
        world.sleep(pause).await;
        let draw = world.random_u64();
        // Tokens that others wanted aren't asked for at once: times in which all only look take turns
        // with some in which they also change things.
        let is_calm = world.now().since(began).as_millis() % 4_000 < 3_000;
        let directory = directories[draw as usize & 1];
        let number = (draw >> 8) % NAMES;
        let cell = Cell::Name(directory, number);
        let begun = history.lock().now();
        let what = (draw >> 32) % if is_calm { 23 } else { 32 };
        history.lock().looked += u64::from(is_far && what < 23);
        match what {
            0..16 => match asks.lookup(directory, number).await {
                Ok(found) => {
                    let mut history = history.lock();
                    history.look(cell, found.inode.0, begun);
                    history.look(Cell::Mode(found.inode), u64::from(found.mode), begun);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                    history.lock().look(cell, 0, begun);
                }
            },
            16..23 => {
                let with_attributes = draw >> 40 & 1 == 0;
                let all = client.read_directory(directory, 0, 100, with_attributes);
                let all = all.await.unwrap();
                assert!(all.end);
                let mut history = history.lock();
                for number in 0..NAMES {
                    let mut entries = all.entries.iter();
                    let entry = entries.find(|entry| entry.name == text(number));
                    let inode = entry.map_or(0, |entry| entry.inode.0);
                    history.look(Cell::Name(directory, number), inode, begun);
                    if let Some(shown) = entry.and_then(|entry| entry.attributes) {
                        history.look(Cell::Mode(shown.inode), u64::from(shown.mode), begun);
                    }
                }
            }
            23..25 => {
                let made = client.create(directory, text(number), new_file());
                let made = asks.change(directory, number, made).await;
                let mut history = history.lock();
                match made {
                    Ok(made) => {
                        history.write(cell, made.inode.0, begun);
                        history.write(Cell::Mode(made.inode), u64::from(made.mode), begun);
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Exists, "{error}"),
                }
            }
            25..27 => {
                let removed = client.unlink(directory, text(number));
                match asks.change(directory, number, removed).await {
                    Ok(()) => history.lock().write(cell, 0, begun),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
                }
            }
            27 => {
                // To a name of its own, so that it is known what was moved.
                let to = NAMES + draw % 1_000_000_007;
                let moved = client.rename(
                    directory,
                    text(number),
                    directories[1],
                    text(to),
                    RenameMode::NoReplace,
                );
                if asks.change(directory, number, moved).await.is_ok() {
                    history.lock().write(cell, 0, begun);
                    let begun = history.lock().now();
                    let moved = client.lookup(directories[1], text(to)).await.unwrap();
                    let back = client.rename(
                        directories[1],
                        text(to),
                        directory,
                        text(number),
                        RenameMode::NoReplace,
                    );
                    if asks.change(directory, number, back).await.is_ok() {
                        history.lock().write(cell, moved.inode.0, begun);
                    }
                }
            }
            28..30 => {
                let Ok(found) = asks.lookup(directory, number).await else {
                    continue;
                };
                let begun = history.lock().now();
                let mode = (draw >> 40) as u32 & 0o777;
                if asks.chmod(found.inode, mode).await.is_ok() {
                    let mut history = history.lock();
                    history.write(Cell::Mode(found.inode), u64::from(mode), begun);
                }
            }
            _ => world.sleep(Duration::from_secs(1)).await,
        }
    }
}

/// Several clients, with so many programs each; of a hundred messages so many meet a fault.
async fn storm(world: World, node: Node, faults: u64, programs: usize) {
    run_storm(world, node, faults, programs, false).await;
}

/// Programs that ask kernels, which ask the clients.
pub(crate) async fn storm_of_kernels(world: World, node: Node, faults: u64) {
    run_storm(world, node, faults, 2, true).await;
}

async fn run_storm(world: World, node: Node, faults: u64, programs: usize, kernels: bool) {
    let (mut clients, mut ways) = (vec![node.client.clone()], Vec::new());
    for _ in 0..3 {
        let way = Way::new(&world, &node.metanode, faults);
        let slow_ms = if programs == 1 { 0 } else { 20 };
        way.slow_ms.store(slow_ms, Ordering::Relaxed);
        clients.push(client_through(&node, &way).await);
        ways.push(way);
    }
    let directories = [
        make(&node.client, ROOT, "a", new_directory()).await,
        make(&node.client, ROOT, "b", new_directory()).await,
    ];
    let history = Arc::new(Mutex::new(History::default()));
    let began = world.now();
    let asks = clients.iter().map(|client| Asks {
        client: client.clone(),
        kernel: kernels.then(|| SimKernel::before(client)),
    });
    let asks: Vec<_> = asks.collect();
    let all = (0..programs).flat_map(|_| asks.iter().enumerate());
    let works = all.map(|(number, asks)| {
        let (world, asks, history) = (world.clone(), asks.clone(), history.clone());
        work(world, asks, number > 0, directories, history, began)
    });
    join_all(works).await;
    let looks = history.lock().check();
    let kernels = asks[1..].iter().filter_map(|asks| asks.kernel.as_ref());
    let asked: u64 = kernels.map(|it| it.asked.load(Ordering::Relaxed)).sum();
    drop(asks);
    let sent = ways.iter().map(|way| way.looked.load(Ordering::Relaxed));
    let (looked, sent) = (history.lock().looked, sent.sum::<u64>());
    assert!(
        looks > 500 && sent * 10 < looked * 9,
        "{looks} looks, {sent} of {looked} sent"
    );
    assert!(asked * 10 < looked * 9, "kernels asked {asked} of {looked}");
    for client in clients.into_iter().skip(1) {
        client.close().await.unwrap();
    }
    node.check_and_close().await;
}

fn seeds() -> u64 {
    storm_seeds(8)
}

#[test]
fn clients_that_share_directories_see_the_names_that_are_there() {
    for seed in 0..seeds() {
        run(9_400 + seed, |world, node| storm(world, node, 0, 1));
    }
}

#[test]
fn two_programs_of_each_client_see_the_names_that_are_there() {
    for seed in 0..seeds() {
        run(9_500 + seed, |world, node| storm(world, node, 0, 2));
    }
}

#[test]
fn two_programs_of_each_client_see_the_names_that_are_there_whatever_gets_lost() {
    for seed in 0..seeds() {
        run(9_600 + seed, |world, node| storm(world, node, 5, 2));
    }
}

#[test]
fn programs_see_the_names_and_attributes_that_are_there_whatever_kernels_keep() {
    for seed in 0..seeds() {
        run(9_700 + seed, |world, node| storm_of_kernels(world, node, 0));
    }
}

#[test]
fn programs_see_what_is_there_whatever_kernels_keep_and_whatever_gets_lost() {
    for seed in 0..seeds() {
        run(9_800 + seed, |world, node| storm_of_kernels(world, node, 5));
    }
}

/// While a client has the file system to itself its kernel may use every answer; nobody knows which ones it
/// has.
#[test]
fn what_the_only_kernel_keeps_is_void_when_the_second_client_changes_something() {
    run(9_320, |world, node| async move {
        let kernel = SimKernel::before(&node.client);
        let file = make(&node.client, ROOT, "f", new_file()).await;
        // Until the owner has answered it.
        world.sleep(Duration::from_secs(3)).await;
        let stat = async || kernel.stat(ROOT, &name("f")).await.unwrap().mode & 0o777;
        let asked = || kernel.asked.load(Ordering::Relaxed);
        let before = stat().await;
        assert_eq!((stat().await, asked()), (before, 1), "it keeps the answer");
        let way = Way::new(&world, &node.metanode, 0);
        let other = client_through(&node, &way).await;
        chmod(&other, file, 0o600).await.unwrap();
        assert_eq!(stat().await, 0o600);
        chmod(&other, file, 0o640).await.unwrap();
        assert_eq!(stat().await, 0o640);
        other.close().await.unwrap();
        node.close().await;
    });
}

/// A kernel that takes no notice.
struct Deaf;

impl Kernel for Deaf {
    fn expire(&self, _: Expired) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }
}

/// Would be broken if others waited for such a kernel until the owner ends its client's session: what it keeps runs
/// out by itself.
#[test]
fn a_kernel_that_takes_no_notice_costs_no_session() {
    run(9_330, |world, node| async move {
        let file = make(&node.client, ROOT, "f", new_file()).await;
        let (first, _first_way) = far(&world, &node).await;
        let (second, _second_way) = far(&world, &node).await;
        let deaf: Arc<dyn Kernel> = Arc::new(Deaf);
        first.add_kernel(Arc::downgrade(&deaf));
        for _ in 0..2 {
            first.lookup(ROOT, name("f")).await.unwrap();
            first.get_attributes(file).await.unwrap();
        }
        let began = world.now();
        chmod(&second, file, 0o600).await.unwrap();
        make(&second, ROOT, "g", new_file()).await;
        let took = world.now() - began;
        assert!(took > Duration::from_secs(6), "it had something: {took:?}");
        assert!(took < Duration::from_secs(15), "others waited for {took:?}");
        assert_eq!(first.losses().sessions, 0);
        for client in [&first, &second] {
            client.close().await.unwrap();
        }
        node.close().await;
    });
}

/// Each name that a kernel forgets early costs a request: a node's own owner answers often.
#[test]
fn what_is_answered_to_the_kernel_of_a_single_node_is_valid_for_nearly_the_whole_time_of_a_token() {
    run(9_340, |world, node| async move {
        let client = &node.client;
        for _ in 0..60 {
            world.sleep(Duration::from_millis(170)).await;
            let valid = client.valid_since(client.asked());
            let least = VALID_MAX - Duration::from_millis(450);
            assert!(valid >= least && valid <= VALID_MAX, "{valid:?}");
        }
        node.close().await;
    });
}
