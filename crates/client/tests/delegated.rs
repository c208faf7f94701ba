//! Files that a client makes itself under the delegation of their directory: nobody sees a difference but in the messages.

mod closed;
mod first;
mod removed;
mod synced;
mod unused;
pub(crate) mod visited;

use crate::names::{chmod, far, kind_of, make, messages, new_directory};
use crate::rig::way::{Map, Way, client_through, next_on_another_node};
use crate::rig::{self, Node, content, new_file, run_patient as run};
use client::{Client, Losses};
use futures::future::{join, join_all};
use model::operation::RenameMode;
use model::owner::Reclaimed;
use model::{ErrorKind, FileKind, InodeId, SetAttributes};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::forge::damaged_name;
use testkit::inodes::name;
use world::World;

const ROOT: InodeId = InodeId::ROOT;

/// A client on another node with a directory that is delegated to it, and the names in that.
pub(crate) struct Maker {
    world: World,
    pub(crate) client: Arc<Client>,
    way: Arc<Way>,
    /// The directory's name in the root.
    text: String,
    pub(crate) directory: InodeId,
    names: BTreeSet<String>,
}

impl Maker {
    pub(crate) async fn new(world: &World, node: &Node) -> Self {
        Self::of(world, far(world, node).await, "d").await
    }

    /// With a map that can name another owner.
    async fn with_map(world: &World, node: &Node) -> (Self, Arc<Map>) {
        let way = Way::new(world, &node.metanode, 0);
        let map = Map::to(&way);
        let owner = map.remote_owner();
        let session = owner.open_session(world).await.unwrap();
        let settings = rig::patient();
        let client = Client::new(world.clone(), owner, node.pool.clone(), session, settings);
        world.sleep(Duration::from_secs(3)).await;
        (Self::of(world, (client, way), "d").await, map)
    }

    /// One with a new directory of this name.
    async fn of(world: &World, (client, way): (Arc<Client>, Arc<Way>), text: &str) -> Self {
        let directory = make(&client, ROOT, text, new_directory()).await;
        let mut maker = Self::at(world, (client, way), text, directory);
        maker.become_alone().await;
        maker
    }

    /// One whose directory is there, and isn't delegated.
    fn at(
        world: &World,
        (client, way): (Arc<Client>, Arc<Way>),
        text: &str,
        directory: InodeId,
    ) -> Self {
        Self {
            world: world.clone(),
            client,
            way,
            text: text.to_owned(),
            directory,
            names: BTreeSet::new(),
        }
    }

    /// Makes files as programs do until that asks nobody.
    async fn become_alone(&mut self) {
        for _ in 0..60 {
            let (_, asked) = messages(&self.way.clone(), self.make_one()).await;
            if asked == 0 {
                self.until_sent().await;
                return;
            }
            // The delegation is asked for beside it.
            self.world.sleep(Duration::from_millis(100)).await;
        }
        panic!("the directory isn't delegated");
    }

    /// Makes the next file as a program does, and closes it.
    async fn make_one(&mut self) -> InodeId {
        let made = self.open_one().await;
        self.client.release(made).await;
        made
    }

    /// Makes the next file as a program does.
    async fn open_one(&mut self) -> InodeId {
        let above = self.client.lookup_to_keep(ROOT, name(&self.text));
        above.await.unwrap();
        self.open_in_place().await
    }

    /// Makes the next file as a program does that works in the directory: nobody looks for that by its name.
    async fn open_in_place(&mut self) -> InodeId {
        let text = format!("n{}", self.names.len());
        let client = &self.client;
        let attributes = client.get_attributes_to_keep(self.directory).await;
        attributes.unwrap();
        let found = client.lookup(self.directory, name(&text)).await;
        assert_eq!(kind_of(found), ErrorKind::NotFound);
        let made = client.create_and_open(self.directory, name(&text), new_file());
        let made = made.await.unwrap().inode;
        self.names.insert(text);
        made
    }

    /// The same, closed. How many messages that took.
    async fn make_in_place(&mut self) -> u64 {
        let way = self.way.clone();
        let making = async {
            let made = self.open_in_place().await;
            self.client.release(made).await;
        };
        messages(&way, making).await.1
    }

    /// Makes files as a program does that works in the directory, a hundred a second, until that asks nobody.
    async fn become_alone_in_place(&mut self) {
        for _ in 0..400 {
            if self.make_in_place().await == 0 {
                self.until_sent().await;
                return;
            }
            self.world.sleep(Duration::from_millis(10)).await;
        }
        panic!("the directory isn't delegated");
    }

    /// Makes so many files, for which nobody is asked.
    pub(crate) async fn make_some(&mut self, count: usize) {
        for _ in 0..count {
            let (_, asked) = messages(&self.way.clone(), self.make_one()).await;
            assert_eq!(asked, 0);
        }
    }

    async fn until_sent(&self) {
        self.client.fsync(self.directory, false).await.unwrap();
    }
}

async fn names_of(client: &Client, directory: InodeId) -> BTreeSet<String> {
    let all = client.read_directory(directory, 0, 10_000, true).await;
    let entries = all.unwrap().entries.into_iter();
    entries
        .map(|entry| String::from_utf8(entry.name.as_bytes().to_vec()).unwrap())
        .collect()
}

#[test]
fn others_see_at_once_what_was_made_without_asking() {
    run(9_900, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let directory = maker.directory;
        let (other, _) = far(&world, &node).await;
        for round in 0..4 {
            maker.make_some(20).await;
            let shown = maker.client.get_attributes(directory).await.unwrap();
            assert_eq!(names_of(&other, directory).await, maker.names);
            let seen = other.get_attributes(directory).await.unwrap();
            assert_eq!((seen.mtime, seen.ctime), (shown.mtime, shown.ctime));
            // What the other one makes is seen too, and the next files are made as before.
            let text = format!("other{round}");
            make(&other, directory, &text, new_file()).await;
            let found = maker.client.lookup(directory, name(&text)).await;
            assert_eq!(found.unwrap().links, 1);
            other.unlink(directory, name(&text)).await.unwrap();
            world.sleep(Duration::from_secs(2)).await;
            maker.become_alone().await;
        }
        maker.client.close().await.unwrap();
        other.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if who looks at the directory, and not into it, didn't wait for what was made there.
#[test]
fn others_see_the_times_of_the_directory_as_its_maker_does() {
    run(9_905, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let directory = maker.directory;
        let (other, _) = far(&world, &node).await;
        for is_by_name in [false, true, false] {
            maker.make_some(5).await;
            let (shown, asked) = {
                let known = maker.client.get_attributes_to_keep(directory);
                messages(&maker.way, known).await
            };
            let (shown, _) = shown.unwrap();
            assert_eq!(asked, 0, "its maker knows them");
            let seen = match is_by_name {
                false => other.get_attributes(directory).await,
                true => other.lookup(ROOT, name("d")).await,
            };
            let seen = seen.unwrap();
            assert_eq!((seen.mtime, seen.ctime), (shown.mtime, shown.ctime));
            world.sleep(Duration::from_secs(2)).await;
            maker.become_alone().await;
        }
        maker.client.close().await.unwrap();
        other.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// The attributes that a program was shown are those that the owner has.
#[test]
fn what_was_made_is_what_the_owner_makes() {
    run(9_910, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let mut made = Vec::new();
        for _ in 0..300 {
            let inode = maker.open_one().await;
            made.push(inode);
        }
        let client = maker.client.clone();
        let new = || model::operation::NewInode {
            mode: 0o6777,
            umask: 0o027,
            uid: 7,
            gid: 8,
            ..new_file()
        };
        let odd = client.create_and_open(maker.directory, name("odd"), new());
        let (odd, asked) = messages(&maker.way, odd).await;
        let odd = odd.unwrap();
        assert_eq!(asked, 0);
        assert_eq!((odd.mode, odd.uid, odd.gid), (0o6750, 7, 8));
        maker.until_sent().await;
        assert_eq!(node.client.get_attributes(odd.inode).await.unwrap(), odd);
        client.release(odd.inode).await;
        let distinct: BTreeSet<_> = made.iter().collect();
        assert_eq!(distinct.len(), made.len(), "each has a number of its own");
        for inode in made {
            assert_eq!(node.client.get_attributes(inode).await.unwrap().links, 1);
            client.release(inode).await;
        }
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Each kind of operation on what was just made, by its own client.
#[test]
fn what_follows_a_create_finds_it() {
    run(9_920, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        let file = maker.make_one().await;
        let text = name(maker.names.last().unwrap());
        assert_eq!(client.get_attributes(file).await.unwrap().size, 0);
        assert_eq!(
            chmod(&client, maker.make_one().await, 0o600)
                .await
                .unwrap()
                .mode,
            0o600
        );
        let opened = client.open(maker.make_one().await, client::OpenFlags::default());
        client.release(opened.await.unwrap().attributes.inode).await;
        let linked = maker.make_one().await;
        client.link(linked, ROOT, name("linked")).await.unwrap();
        assert_eq!(client.get_attributes(linked).await.unwrap().links, 2);
        maker.make_one().await;
        client.unlink(directory, text.clone()).await.unwrap();
        assert_eq!(
            kind_of(client.lookup(directory, text).await),
            ErrorKind::NotFound
        );
        // A directory with something that its owner hasn't heard of isn't empty.
        world.sleep(Duration::from_secs(2)).await;
        maker.become_alone().await;
        for text in names_of(&client, directory).await {
            client.unlink(directory, name(&text)).await.unwrap();
        }
        maker.make_one().await;
        let removed = client.remove_directory(ROOT, name("d")).await;
        assert_eq!(kind_of(removed), ErrorKind::NotEmpty);
        maker.make_one().await;
        let moved = client.rename(ROOT, name("d"), ROOT, name("moved"), RenameMode::NoReplace);
        moved.await.unwrap();
        assert_eq!(names_of(&node.client, directory).await.len(), 2);
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

#[test]
fn others_remove_and_move_a_directory_behind_what_was_made_in_it() {
    run(9_930, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (other, _) = far(&world, &node).await;
        let directory = maker.directory;
        for text in maker.names.clone() {
            maker.client.unlink(directory, name(&text)).await.unwrap();
        }
        world.sleep(Duration::from_secs(2)).await;
        maker.become_alone().await;
        for text in names_of(&maker.client, directory).await {
            maker.client.unlink(directory, name(&text)).await.unwrap();
        }
        let made = maker.make_one().await;
        let removed = other.remove_directory(ROOT, name("d")).await;
        assert_eq!(kind_of(removed), ErrorKind::NotEmpty);
        let found = names_of(&other, directory).await;
        assert_eq!(found.len(), 1);
        assert_eq!(other.get_attributes(made).await.unwrap().links, 1);
        world.sleep(Duration::from_secs(2)).await;
        maker.become_alone().await;
        maker.make_some(1).await;
        let moved = other.rename(ROOT, name("d"), ROOT, name("moved"), RenameMode::NoReplace);
        moved.await.unwrap();
        let last = name(&format!("n{}", maker.names.len() - 1));
        assert_eq!(other.lookup(directory, last).await.unwrap().links, 1);
        let found = maker.client.lookup(ROOT, name("d")).await;
        assert_eq!(kind_of(found), ErrorKind::NotFound);
        maker.client.close().await.unwrap();
        other.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Files that are open, or closed again, and whose names another client removes. Would be broken if one that is open went
/// with its name, or stayed after its close.
#[test]
fn a_file_that_was_made_here_is_open_until_it_is_closed() {
    run(9_940, |world, node| async move {
        let inodes = async || node.client.usage(ROOT).await.unwrap().inodes;
        let become_so_many = async |count: u64| {
            for _ in 0..300 {
                if inodes().await == count {
                    return;
                }
                world.sleep(Duration::from_millis(100)).await;
            }
            panic!("{} inodes, not {count}", inodes().await);
        };
        let others = inodes().await;
        let mut maker = Maker::new(&world, &node).await;
        let (other, _) = far(&world, &node).await;
        let directory = maker.directory;
        let opened = maker.open_one().await;
        maker.make_some(3).await;
        for text in names_of(&other, directory).await {
            other.unlink(directory, name(&text)).await.unwrap();
        }
        // The directory, and what is open.
        become_so_many(others + 2).await;
        let client = maker.client.clone();
        client.write(opened, 0, &content(1, 70_000)).await.unwrap();
        client.fsync(opened, false).await.unwrap();
        assert!(rig::read(&client, opened, 0, 70_000).await == content(1, 70_000));
        client.release(opened).await;
        become_so_many(others + 1).await;
        client.close().await.unwrap();
        other.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// What is written to a file that was just made asks nobody, and is stored with one message.
#[test]
fn what_is_written_to_a_new_file_goes_with_what_makes_it() {
    run(9_950, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let client = maker.client.clone();
        for (round, length) in [100, 4_000, 20_000, 300_000].into_iter().enumerate() {
            let bytes = content(round as u64, length);
            let file = maker.open_one().await;
            let (written, asked) = messages(&maker.way, client.write(file, 0, &bytes)).await;
            written.unwrap();
            assert_eq!(asked, 0, "of {length} bytes");
            let (synced, asked) = messages(&maker.way, client.fsync(file, false)).await;
            synced.unwrap();
            assert!(
                asked == 1 || length > 100_000,
                "{asked} messages for {length} bytes"
            );
            assert!(rig::read(&node.client, file, 0, length).await == bytes);
            client.write(file, 10, b"more").await.unwrap();
            client.release(file).await;
            assert_eq!(rig::read(&node.client, file, 10, 4).await, b"more");
        }
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// The owner ends before it has heard of what was made, or before its answer comes.
#[test]
fn the_next_owner_hears_of_what_was_made() {
    for (seed, is_deaf) in [(9_960, false), (9_961, true)] {
        run(seed, move |world, node| async move {
            let (mut maker, map) = Maker::with_map(&world, &node).await;
            let (way, directory) = (maker.way.clone(), maker.directory);
            match is_deaf {
                true => way.deaf.store(true, Ordering::Relaxed),
                false => way.cut.store(true, Ordering::Relaxed),
            }
            let opened = maker.open_one().await;
            maker.make_some(30).await;
            world.sleep(Duration::from_millis(500)).await;
            node.metanode.sync().await.unwrap();
            let (next, next_way) = next_on_another_node(&node).await;
            map.move_to(&next_way);
            way.cut.store(false, Ordering::Relaxed);
            way.deaf.store(false, Ordering::Relaxed);
            maker.until_sent().await;
            let other = client_through(&node, &next_way).await;
            assert_eq!(names_of(&other, directory).await, maker.names);
            // What is open is in use there.
            for text in &maker.names {
                other.unlink(directory, name(text)).await.unwrap();
            }
            world.sleep(Duration::from_secs(30)).await;
            maker.client.write(opened, 0, b"still").await.unwrap();
            maker.client.fsync(opened, false).await.unwrap();
            maker.client.release(opened).await;
            assert_eq!(maker.client.losses(), Losses::default());
            maker.client.close().await.unwrap();
            other.close().await.unwrap();
            next.close().await.unwrap();
        });
    }
}

/// An owner that begins grants nothing before it has heard of all sessions, but lets who holds a directory make files in it.
/// Would be broken if another client found such a file before its maker had its tokens, or what it wrote was published.
#[test]
fn what_is_written_to_a_file_that_is_made_in_the_grace_time_is_there_for_who_finds_it() {
    run(9_965, |world, node| async move {
        let (mut maker, map) = Maker::with_map(&world, &node).await;
        let directory = maker.directory;
        let (next, next_way) = next_on_another_node(&node).await;
        map.move_to(&next_way);
        maker.way = next_way.clone();
        // It says what it holds, and goes on. The node's own client says nothing.
        maker.become_alone().await;
        next_way.no_publishes.store(true, Ordering::Relaxed);
        let (file, asked) = messages(&next_way, maker.open_one()).await;
        assert_eq!(asked, 0, "it is made here");
        let bytes = content(4, 20_000);
        maker.client.write(file, 0, &bytes).await.unwrap();
        let other = client_through(&node, &next_way).await;
        let reading = async {
            let text = name(&format!("n{}", maker.names.len() - 1));
            let found = other.lookup(directory, text).await.unwrap();
            assert_eq!(found.inode, file);
            rig::read(&other, file, 0, 20_000).await
        };
        let hearing = async {
            world.sleep(Duration::from_secs(1)).await;
            let (session, nothing) = (node.client.session(), Reclaimed::default());
            next.reclaim(session, &nothing, true).await.unwrap();
            world.sleep(Duration::from_secs(2)).await;
            next_way.no_publishes.store(false, Ordering::Relaxed);
        };
        let (seen, ()) = join(reading, hearing).await;
        assert!(seen == bytes, "{} bytes", seen.len());
        maker.client.release(file).await;
        assert_eq!(maker.client.losses(), Losses::default());
        maker.client.close().await.unwrap();
        other.close().await.unwrap();
        next.close().await.unwrap();
    });
}

/// Would be broken if an owner that grants nothing were asked for the tokens of so many files that it could be asked for
/// nothing else: programs would get errors.
#[test]
fn more_files_are_made_and_written_in_the_grace_time_than_a_session_may_wait_for() {
    run(9_966, |world, node| async move {
        let (mut maker, map) = Maker::with_map(&world, &node).await;
        let (next, next_way) = next_on_another_node(&node).await;
        map.move_to(&next_way);
        maker.way = next_way.clone();
        maker.become_alone().await;
        let mut files = Vec::new();
        for number in 0..500 {
            let file = maker.open_one().await;
            let bytes = content(number, 100);
            maker.client.write(file, 0, &bytes).await.unwrap();
            maker.client.release(file).await;
            files.push((file, bytes));
            if number % 50 == 49 {
                // The owner hears of these, and answers without tokens.
                world.sleep(Duration::from_millis(100)).await;
            }
        }
        // As many programs at the same time.
        let programs = (500..600).map(|number| {
            let (client, directory) = (maker.client.clone(), maker.directory);
            async move {
                let (text, bytes) = (format!("p{number}"), content(number, 100));
                let made = client.create_and_open(directory, name(&text), new_file());
                let file = made.await.unwrap().inode;
                client.write(file, 0, &bytes).await.unwrap();
                client.release(file).await;
                (text, file, bytes)
            }
        });
        let made = join_all(programs).await;
        for (text, file, bytes) in made {
            maker.names.insert(text);
            files.push((file, bytes));
        }
        let (session, nothing) = (node.client.session(), Reclaimed::default());
        next.reclaim(session, &nothing, true).await.unwrap();
        let other = client_through(&node, &next_way).await;
        assert_eq!(names_of(&other, maker.directory).await, maker.names);
        for (file, bytes) in &files {
            let seen = rig::read(&other, *file, 0, bytes.len()).await;
            assert!(seen == *bytes, "{file}: {} bytes", seen.len());
        }
        assert_eq!(maker.client.losses(), Losses::default());
        maker.client.close().await.unwrap();
        other.close().await.unwrap();
        next.close().await.unwrap();
    });
}

/// The owner doesn't hear of a client for long, and ends its session: what it had made and not synced is lost, and
/// who syncs hears of it.
#[test]
fn what_was_made_and_not_synced_is_lost_with_the_session_and_a_sync_says_so() {
    run(9_970, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        let synced = names_of(&client, directory).await;
        maker.become_alone().await;
        let synced_too = maker.names.difference(&synced).cloned().collect::<Vec<_>>();
        maker.until_sent().await;
        maker.way.cut.store(true, Ordering::Relaxed);
        let opened = maker.open_one().await;
        // Another client wants the directory, and waits until the session has ended.
        let seen = names_of(&node.client, directory).await;
        assert!(synced.iter().chain(&synced_too).all(|it| seen.contains(it)));
        world.sleep(Duration::from_secs(20)).await;
        maker.way.cut.store(false, Ordering::Relaxed);
        let found = client
            .lookup(directory, name(maker.names.last().unwrap()))
            .await;
        drop(found);
        assert_eq!(client.losses().sessions, 1);
        assert_eq!(
            kind_of(client.fsync(ROOT, false).await),
            ErrorKind::SessionEnded
        );
        client.fsync(ROOT, false).await.unwrap();
        assert_eq!(names_of(&client, directory).await, seen);
        client.release(opened).await;
        let after = make(&client, directory, "after", new_file()).await;
        assert_eq!(
            node.client.get_attributes(after).await.unwrap().kind,
            FileKind::File
        );
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// A damaged record is in the way of one file. Would be broken if that stopped the others, or if one program's fsync hid it
/// from the one that has the file.
#[test]
fn a_file_that_the_owner_cannot_make_is_lost_and_the_others_are_made() {
    run(9_972, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        let (key, record) = damaged_name(&node.metanode.hosted(), "n0").await;
        client.unlink(directory, name("n0")).await.unwrap();
        maker.become_alone().await;
        let hosted = node.metanode.hosted();
        testkit::forge::forge(&hosted, vec![(key, Some(record))]).await;
        // The first operation takes the shard over again.
        node.metanode.usage().await.unwrap();
        let making = client.create_and_open(directory, name("n0"), new_file());
        let (lost, asked) = messages(&maker.way, making).await;
        let lost = lost.unwrap().inode;
        assert_eq!(asked, 0, "its client doesn't know");
        client.write(lost, 0, b"bytes").await.unwrap();
        let other = maker.open_one().await;
        let told = client.fsync(other, false).await;
        assert_eq!(kind_of(told), ErrorKind::Corrupt);
        client.fsync(other, false).await.unwrap();
        let told = client.fsync(lost, false).await;
        assert_eq!(kind_of(told), ErrorKind::SessionEnded);
        client.release(lost).await;
        client.release(other).await;
        maker.make_one().await;
        maker.until_sent().await;
        for at in [maker.names.len() - 2, maker.names.len() - 1] {
            let found = node.client.lookup(directory, name(&format!("n{at}"))).await;
            assert_eq!(found.unwrap().links, 1);
        }
        assert_eq!(client.losses(), Losses::default());
        client.close().await.unwrap();
        node.close().await;
    });
}

/// Would be broken if the stream went on behind what its owner never ran: all of it would be put off for ever.
#[test]
fn a_session_ends_whose_owner_takes_nothing_of_its_stream() {
    run(9_974, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        let synced = maker.names.clone();
        maker.way.refuses_streams.store(true, Ordering::Relaxed);
        let opened = maker.open_one().await;
        world.sleep(Duration::from_secs(20)).await;
        maker.way.refuses_streams.store(false, Ordering::Relaxed);
        assert_eq!(client.losses().sessions, 1);
        let told = client.fsync(ROOT, false).await;
        assert_eq!(kind_of(told), ErrorKind::SessionEnded);
        client.fsync(ROOT, false).await.unwrap();
        let written = client.write(opened, 0, b"bytes").await;
        assert_eq!(kind_of(written), ErrorKind::SessionEnded);
        client.release(opened).await;
        assert_eq!(names_of(&client, directory).await, synced);
        maker.names = synced;
        maker.become_alone().await;
        assert_eq!(names_of(&node.client, directory).await, maker.names);
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Files are made while their directory's group is changed. Would be broken if the change overtook some that were answered:
/// the owner would make them otherwise than programs were shown.
#[test]
fn a_change_of_the_directory_comes_behind_what_was_made_before_it() {
    run(9_990, |world, node| async move {
        let maker = Maker::new(&world, &node).await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        // Then there is time between a batch and its answer.
        maker.way.slow_ms.store(40, Ordering::Relaxed);
        let set = SetAttributes {
            mode: Some(0o2755),
            gid: Some(77),
            ..SetAttributes::default()
        };
        let changing = async {
            world.sleep(Duration::from_millis(20)).await;
            client.set_attributes(directory, set).await.unwrap();
        };
        let making = async {
            let mut made = Vec::new();
            for at in 0..200 {
                let text = name(&format!("while{at}"));
                let new = client.create_and_open(directory, text, new_file());
                made.push(new.await.unwrap());
                world.sleep(Duration::from_millis(1)).await;
            }
            made
        };
        let ((), made) = join(changing, making).await;
        maker.way.slow_ms.store(0, Ordering::Relaxed);
        maker.until_sent().await;
        let in_group = made.iter().filter(|it| it.gid == 77).count();
        assert!(
            in_group > 0 && in_group < made.len(),
            "{in_group} of {} were made after the change",
            made.len()
        );
        for shown in made {
            let is = node.client.get_attributes(shown.inode).await.unwrap();
            assert_eq!((is.mode, is.gid), (shown.mode, shown.gid));
            client.release(shown.inode).await;
        }
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// A program that makes files as a kernel asks for them, which looks for each before. Their names and inodes.
async fn makes(
    client: &Client,
    directory: InodeId,
    program: usize,
    files: Range<usize>,
) -> Vec<(String, InodeId)> {
    let mut made = Vec::new();
    for at in files {
        let text = format!("p{program}_{at}");
        let found = client.lookup(directory, name(&text)).await;
        assert_eq!(kind_of(found), ErrorKind::NotFound);
        let new = client.create_and_open(directory, name(&text), new_file());
        let inode = new.await.unwrap().inode;
        client.release(inode).await;
        made.push((text, inode));
    }
    made
}

/// Would be broken if creates that overlap kept each other from being made here, and their directory from being known, for ever:
/// one of them would always be under way.
#[test]
fn programs_that_make_files_in_one_directory_at_once_soon_ask_nobody() {
    for seed in 9_982..9_985 {
        run(seed, |world, node| async move {
            let (client, way) = far(&world, &node).await;
            let directory = make(&client, ROOT, "d", new_directory()).await;
            client.lookup_to_keep(ROOT, name("d")).await.unwrap();
            way.slow_ms.store(4, Ordering::Relaxed);
            let make_all = |files: Range<usize>| {
                let programs = (0..8).map(|it| makes(&client, directory, it, files.clone()));
                join_all(programs)
            };
            let mut made = make_all(0..40).await.concat();
            let (more, asked) = messages(&way, make_all(40..100)).await;
            // Only many files with a message, and numbers for more of them.
            assert!(asked < 20, "{asked} messages for 480 files");
            made.extend(more.concat());

            let shown = client.get_attributes(directory).await.unwrap();
            let (other, _) = far(&world, &node).await;
            let names: BTreeSet<_> = made.iter().map(|(text, _)| text.clone()).collect();
            assert_eq!(names_of(&other, directory).await, names);
            let seen = other.get_attributes(directory).await.unwrap();
            assert_eq!(
                (seen.mtime, seen.ctime, seen.links),
                (shown.mtime, shown.ctime, shown.links)
            );
            let inodes: BTreeSet<_> = made.iter().map(|(_, inode)| *inode).collect();
            assert_eq!(inodes.len(), made.len(), "each has a number of its own");
            for (text, inode) in made {
                let found = other.lookup(directory, name(&text)).await.unwrap();
                assert_eq!((found.inode, found.links), (inode, 1));
            }
            assert_eq!(node.metanode.in_use().inodes, 0);
            client.close().await.unwrap();
            other.close().await.unwrap();
            node.check_and_close().await;
        });
    }
}

/// Would be broken if files were sent that are made while another program removes a name, and if those of the next moment
/// were because of these.
#[test]
fn files_are_made_here_as_soon_as_a_removal_beside_them_has_ended() {
    run(9_986, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        maker.make_some(10).await;
        maker.until_sent().await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        maker.way.slow_ms.store(10, Ordering::Relaxed);
        let removing = client.unlink(directory, name("n0"));
        let making = join_all((0..8).map(|it| makes(&client, directory, it, 0..5)));
        // Nothing of the removal is known when they begin.
        let ((removed, made), asked) = messages(&maker.way, join(removing, making)).await;
        removed.unwrap();
        assert!(asked <= 2, "{asked} messages");
        maker.names.remove("n0");
        let made = made.into_iter().flatten().map(|(text, _)| text);
        maker.names.extend(made);
        assert_eq!(names_of(&node.client, directory).await, maker.names);
        let seen = node.client.get_attributes(directory).await.unwrap();
        let shown = client.get_attributes(directory).await.unwrap();
        assert_eq!((seen.mtime, seen.ctime), (shown.mtime, shown.ctime));
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if who makes files waited until nobody in its directory changes anything: others always do.
#[test]
fn files_are_sent_where_changes_of_others_follow_each_other() {
    run(9_987, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        maker.way.slow_ms.store(10, Ordering::Relaxed);
        let is_done = AtomicBool::new(false);
        let removes = async || {
            while !is_done.load(Ordering::Relaxed) {
                let removed = client.unlink(directory, name("nothing")).await;
                assert_eq!(kind_of(removed), ErrorKind::NotFound);
            }
        };
        let removing = join_all([removes(), removes(), removes(), removes()]);
        let making = async {
            let begun = world.now();
            let made = makes(&client, directory, 0, 0..20).await;
            is_done.store(true, Ordering::Relaxed);
            (made, world.now().since(begun))
        };
        let (_, (made, took)) = join(removing, making).await;
        assert!(took < Duration::from_secs(5), "{took:?} for 20 files");
        maker.until_sent().await;
        maker.names.extend(made.into_iter().map(|(text, _)| text));
        assert_eq!(names_of(&node.client, directory).await, maker.names);
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if it were only tried again after twice as many files each time, or when a program looks for the directory
/// by its name.
#[test]
fn a_directory_is_delegated_again_soon_after_others_have_made_one_beside_it() {
    run(9_997, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (other, _) = far(&world, &node).await;
        for round in 0..4 {
            maker.make_some(20).await;
            make(&other, ROOT, &format!("beside{round}"), new_directory()).await;
            assert!(maker.make_in_place().await > 0);
            maker.become_alone_in_place().await;
        }
        assert_eq!(names_of(&other, maker.directory).await, maker.names);
        maker.client.close().await.unwrap();
        other.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if the directory above counted as wanted by others for long because one has wanted it once: what is made
/// beside a new directory would keep that from being delegated.
#[test]
fn a_new_directory_is_delegated_soon_although_others_have_just_made_one_beside_it() {
    run(9_991, |world, node| async move {
        let (client, way) = far(&world, &node).await;
        let (other, _) = far(&world, &node).await;
        // A directory that another one has made isn't asked for with its first file.
        let directory = make(&other, ROOT, "d", new_directory()).await;
        client.lookup_to_keep(ROOT, name("d")).await.unwrap();
        let mut maker = Maker::at(&world, (client, way), "d", directory);
        // Fewer than make it worthwhile.
        for _ in 0..6 {
            assert!(maker.make_in_place().await > 0);
        }
        let begun = world.now();
        make(&other, ROOT, "beside", new_directory()).await;
        while maker.make_in_place().await > 0 {
            world.sleep(Duration::from_millis(5)).await;
            let took = world.now().since(begun);
            assert!(took < Duration::from_millis(300), "{took:?}");
        }
        maker.until_sent().await;
        maker.make_some(20).await;
        assert_eq!(names_of(&other, directory).await, maker.names);
        maker.client.close().await.unwrap();
        other.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// One works below the directory of the other, which is delegated. Would be broken if it took that away for a delegation of its
/// own.
#[test]
fn who_asks_for_a_delegation_takes_nothing_from_others() {
    run(9_998, |world, node| async move {
        let mut above = Maker::new(&world, &node).await;
        let (client, way) = far(&world, &node).await;
        let directory = make(&client, above.directory, "below", new_directory()).await;
        world.sleep(Duration::from_secs(2)).await;
        let found = client.lookup_to_keep(above.directory, name("below"));
        found.await.unwrap();
        let mut below = Maker::at(&world, (client, way), "below", directory);
        above.become_alone().await;
        for _ in 0..200 {
            assert!(below.make_in_place().await > 0);
            above.make_some(1).await;
            world.sleep(Duration::from_millis(25)).await;
        }
        above.client.close().await.unwrap();
        below.become_alone_in_place().await;
        assert_eq!(names_of(&node.client, directory).await, below.names);
        below.client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// It has more names than one message tells.
#[test]
fn a_large_directory_with_the_files_of_others_is_delegated_as_well() {
    run(9_996, |world, node| async move {
        let directory = make(&node.client, ROOT, "d", new_directory()).await;
        for number in 0..3_000 {
            make(&node.client, directory, &format!("f{number}"), new_file()).await;
        }
        let mut maker = Maker::at(&world, far(&world, &node).await, "d", directory);
        maker.become_alone().await;
        maker.make_some(20).await;
        // What was there before is known.
        for number in [0, 1_500, 2_999] {
            let taken = name(&format!("f{number}"));
            let again = maker.client.create(directory, taken, new_file()).await;
            assert_eq!(kind_of(again), ErrorKind::Exists);
        }
        maker.until_sent().await;
        for text in &maker.names {
            node.client.lookup(directory, name(text)).await.unwrap();
        }
        maker.client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Each directory keeps the rest of the numbers that were reserved for it, and a session may reserve no more than for some.
#[test]
fn files_are_made_here_in_more_directories_than_have_numbers() {
    run(9_995, |world, node| async move {
        let (client, way) = far(&world, &node).await;
        let mut makers = Vec::new();
        for at in 0..56 {
            let both = (client.clone(), way.clone());
            let mut maker = Maker::of(&world, both, &format!("d{at}")).await;
            maker.make_some(2).await;
            makers.push(maker);
        }
        // Later ones have taken its numbers over.
        let first = &mut makers[0];
        first.become_alone().await;
        first.make_some(2).await;
        client.fsync(ROOT, false).await.unwrap();
        for maker in &makers {
            assert_eq!(names_of(&node.client, maker.directory).await, maker.names);
        }
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// What the client can't know by itself keeps it from making files.
#[test]
fn a_directory_that_passes_an_access_list_on_is_not_delegated() {
    run(9_980, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        // Version 2; user, group, others: rwx, r-x, nothing.
        let entry = |tag: u16, may: u16| {
            [tag.to_le_bytes(), may.to_le_bytes(), [0xff; 2], [0xff; 2]].concat()
        };
        let list = [
            2_u32.to_le_bytes().to_vec(),
            entry(1, 7),
            entry(4, 5),
            entry(32, 0),
        ]
        .concat();
        let default = "system.posix_acl_default".as_bytes();
        let mode = model::operation::XattrMode::Set;
        maker.make_some(1).await;
        node.client
            .set_xattr(directory, default, &list, mode)
            .await
            .unwrap();
        for _ in 0..40 {
            let inode = maker.make_one().await;
            let shown = client.get_attributes(inode).await.unwrap();
            assert_eq!(shown.mode & 0o007, 0, "{:o}", shown.mode);
            world.sleep(Duration::from_millis(100)).await;
        }
        node.client.remove_xattr(directory, default).await.unwrap();
        world.sleep(Duration::from_secs(2)).await;
        maker.become_alone().await;
        maker.make_some(100).await;
        // A group is passed on by the client as by the owner.
        let set = SetAttributes {
            mode: Some(0o2755),
            gid: Some(77),
            ..SetAttributes::default()
        };
        client.set_attributes(directory, set).await.unwrap();
        maker.become_alone().await;
        maker.make_some(1).await;
        let text = name(&format!("n{}", maker.names.len() - 1));
        let found = node.client.lookup(directory, text).await;
        assert_eq!(found.unwrap().gid, 77);
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}
