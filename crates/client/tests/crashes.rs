//! Power cuts and failing disks under a client.

use crate::rig::{Node, Place, content, file, name, read, settings};
use client::Client;
use model::operation::RenameMode;
use model::{ErrorKind, InodeId, NsdId};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use world::World;
use world::sim::{Outcome, Simulation, for_every_cut};

/// Runs `work` in a new file system until it ends or the power is cut; then opens the file system
/// again, with as many attempts as needed, and runs `check`.
fn crash<A, B>(sim: &Simulation, work: impl Fn(Node) -> A, check: impl Fn(Node) -> B)
where
    A: Future<Output = ()>,
    B: Future<Output = ()>,
{
    let place = Place::default();
    let is_made = Arc::new(Mutex::new(false));
    let first = sim.run(|world| {
        let (place, is_made, work) = (place.clone(), is_made.clone(), &work);
        async move {
            Node::create(&world, &place).await;
            let node = Node::open(&world, &place, settings()).await;
            *is_made.lock().unwrap() = true;
            work(node).await;
        }
    });
    let is_made = *is_made.lock().unwrap();
    if !is_made || matches!(first, Outcome::Finished(())) {
        return;
    }
    for _ in 0..3 {
        let place = place.clone();
        let check = &check;
        let outcome = sim.run(|world| async move {
            let node = Node::open(&world, &place, settings()).await;
            check(node).await;
        });
        if matches!(outcome, Outcome::Finished(())) {
            return;
        }
    }
    panic!("one cut crashes one run");
}

const BLOCK: u64 = 64 * 1024;
const FILE_BYTES_MAX: u64 = 800_000;

/// A file's content at its last completed fsync, and all contents since.
#[derive(Default, Clone)]
struct History {
    synced: Option<Vec<u8>>,
    since: Vec<Vec<u8>>,
}

impl History {
    fn now(&self) -> Vec<u8> {
        self.since
            .last()
            .or(self.synced.as_ref())
            .cloned()
            .unwrap_or_default()
    }
}

async fn write_and_sync(world: &World, client: &Client, log: &Mutex<Vec<History>>) {
    const FILES: u64 = 4;
    let mut inodes = Vec::new();
    for number in 0..FILES {
        inodes.push(file(client, &format!("f{number}")).await);
        log.lock().unwrap().push(History::default());
    }
    for step in 0..40 {
        let number = (world.random_u64() % FILES) as usize;
        // The long ones fill blocks of 64 KiB, which are stored at once instead of when they age.
        let lengths = [50, 3000, 20_000, 90_000, 300_000];
        let length = lengths[(world.random_u64() % 5) as usize];
        let at = match world.random_u64() % 3 {
            // After the existing content, as programs mostly write.
            0 => log.lock().unwrap()[number].now().len() as u64,
            1 => world.random_u64() % 6 * BLOCK,
            _ => world.random_u64() % 400_000,
        };
        let at = at.min(FILE_BYTES_MAX - length as u64);
        let bytes = content(step, length);
        {
            let mut log = log.lock().unwrap();
            let mut now = log[number].now();
            let end = at as usize + length;
            if now.len() < end {
                now.resize(end, 0);
            }
            now[at as usize..end].copy_from_slice(&bytes);
            log[number].since.push(now);
        }
        client.write(inodes[number], at, &bytes).await.unwrap();
        if world.random_u64().is_multiple_of(3) {
            client.fsync(inodes[number], false).await.unwrap();
            let history = &mut log.lock().unwrap()[number];
            history.synced = Some(history.now());
            history.since.clear();
        }
        if world.random_u64().is_multiple_of(8) {
            world.sleep(Duration::from_millis(1500)).await;
        }
    }
}

/// Bytes that no write has touched since the fsync must be unchanged; others must come from some
/// write, or still be zeros.
async fn check_history(client: &Client, log: &[History]) {
    for (number, history) in log.iter().enumerate() {
        let found = match client
            .lookup(InodeId::ROOT, name(&format!("f{number}")))
            .await
        {
            Ok(found) => found,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound);
                assert!(history.synced.is_none(), "a synced file has its name");
                continue;
            }
        };
        let bytes = read(client, found.inode, 0, 1 << 20).await;
        assert_eq!(bytes.len() as u64, found.size);
        let synced = history.synced.clone().unwrap_or_default();
        assert!(
            bytes.len() >= synced.len(),
            "the file is shorter than it was synced"
        );
        if history.since.is_empty() {
            assert!(bytes == synced, "the file has its synced content");
        }
        let states: Vec<&Vec<u8>> = [&synced].into_iter().chain(&history.since).collect();
        for (part, found) in bytes.chunks(4096).enumerate() {
            let from = part * 4096;
            // Usually all of it has the same state.
            if states
                .iter()
                .any(|state| state.get(from..from + found.len()) == Some(found))
            {
                continue;
            }
            for (at, byte) in found.iter().enumerate() {
                let of = |state: &&Vec<u8>| state.get(from + at).copied().unwrap_or(0);
                let fits = states.iter().any(|state| of(state) == *byte);
                assert!(fits, "byte {} of file {number} is garbage", from + at);
            }
        }
    }
}

#[test]
fn synced_bytes_survive_a_power_cut() {
    for seed in 1..=3 {
        for_every_cut(seed, 40, |sim| {
            let log = Arc::new(Mutex::new(Vec::new()));
            let work = |node: Node| {
                let log = log.clone();
                async move { write_and_sync(&node.world, &node.client, &log).await }
            };
            let check = |node: Node| {
                let log = log.lock().unwrap().clone();
                async move { check_history(&node.client, &log).await }
            };
            crash(sim, work, check);
        });
    }
}

#[test]
fn a_rename_never_overtakes_the_data_of_its_file() {
    for length in [900, 20_000, 200_000] {
        for_every_cut(7, 40, |sim| {
            let synced = Arc::new(Mutex::new(false));
            let work = |node: Node| {
                let synced = synced.clone();
                async move {
                    let (client, root) = (&node.client, InodeId::ROOT);
                    let old = file(client, "f").await;
                    client.write(old, 0, &content(1, length)).await.unwrap();
                    client.fsync(old, false).await.unwrap();
                    client.release(old).await;
                    *synced.lock().unwrap() = true;
                    let new = file(client, "tmp").await;
                    client.write(new, 0, &content(2, length + 5)).await.unwrap();
                    client.flush(new).await.unwrap();
                    client.release(new).await;
                    client
                        .rename(root, name("tmp"), root, name("f"), RenameMode::Replace)
                        .await
                        .unwrap();
                    node.world.sleep(Duration::from_secs(8)).await;
                }
            };
            let check = |node: Node| {
                let is_synced = *synced.lock().unwrap();
                async move {
                    let found = node.client.lookup(InodeId::ROOT, name("f")).await;
                    if !is_synced {
                        return;
                    }
                    let bytes = read(&node.client, found.unwrap().inode, 0, 1 << 20).await;
                    let is_whole = bytes == content(1, length) || bytes == content(2, length + 5);
                    assert!(is_whole, "the file is a mixture of {} bytes", bytes.len());
                }
            };
            crash(sim, work, check);
        });
    }
}

#[test]
fn a_power_cut_takes_at_most_the_last_five_seconds_of_a_busy_file_system() {
    const STEPS: u64 = 150;
    let sim = Simulation::new(5);
    let faults = sim.faults();
    let place = Place::default();
    let (first, second) = (place.clone(), place);
    let outcome = sim.run(|world| async move {
        Node::create(&world, &first).await;
        let node = Node::open(&world, &first, settings()).await;
        let inode = file(&node.client, "f").await;
        for step in 0..STEPS {
            node.client
                .append(inode, &step.to_le_bytes())
                .await
                .unwrap();
            file(&node.client, &format!("f{step}")).await;
            world.sleep(Duration::from_millis(100)).await;
        }
        faults.cut_now();
        world.sleep(Duration::from_secs(1)).await;
    });
    assert!(outcome.is_crashed());
    sim.run(|world| async move {
        let node = Node::open(&world, &second, settings()).await;
        let find = |text: String| {
            let client = node.client.clone();
            async move { client.lookup(InodeId::ROOT, name(&text)).await }
        };
        let inode = find("f".into()).await.unwrap().inode;
        let size = node.client.get_attributes(inode).await.unwrap().size;
        assert!(size / 8 >= STEPS - 52, "only {} steps are there", size / 8);
        find(format!("f{}", STEPS - 52)).await.unwrap();
    })
    .finished();
}

#[test]
fn a_full_pool_refuses_the_write_itself() {
    let sim = Simulation::new(3);
    let place = Place {
        nsd_bytes: 48 << 20,
        ..Place::default()
    };
    sim.run(|world| async move {
        Node::create(&world, &place).await;
        let node = Node::open(&world, &place, settings()).await;
        let client = &node.client;
        let inode = file(client, "f").await;
        let mut parts = 0u64;
        let refused = loop {
            match client
                .write(inode, parts * 100_000, &content(parts, 100_000))
                .await
            {
                Ok(()) => parts += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(
            refused.kind(),
            ErrorKind::NoSpace,
            "{refused} after {parts} parts; {:?}",
            node.pool.usage()
        );
        assert!(parts > 20, "only {parts} parts fitted");
        if let Err(error) = client.sync_all().await {
            let nsds: Vec<_> = (1..=3)
                .map(|nsd| {
                    (
                        node.pool.nsd(NsdId(nsd)).unwrap().usage(),
                        node.pool.nsd(NsdId(nsd)).unwrap().health(),
                    )
                })
                .collect();
            panic!(
                "{error} {nsds:#?} {:#?} {:?} {parts}",
                node.pool.usage(),
                client.page_pool_bytes()
            );
        }
        assert_eq!(client.page_pool_bytes().0, 0);
        for part in 0..parts {
            assert!(read(client, inode, part * 100_000, 100_000).await == content(part, 100_000));
        }
        assert_eq!(
            client.get_attributes(inode).await.unwrap().size,
            parts * 100_000
        );
    })
    .finished();
}

#[test]
fn a_failed_store_is_told_and_the_data_is_kept() {
    let sim = Simulation::new(4);
    let place = Place::default();
    sim.run(|world| async move {
        Node::create(&world, &place).await;
        let node = Node::open(&world, &place, settings()).await;
        let client = &node.client;
        let inode = file(client, "f").await;
        client.fsync(inode, false).await.unwrap();
        let away: Vec<_> = (1..=2)
            .filter_map(|nsd| node.pool.remove_nsd(NsdId(nsd)))
            .collect();
        client.write(inode, 0, &content(1, 100_000)).await.unwrap();
        assert!(client.fsync(inode, false).await.is_err());
        assert!(
            client.flush(inode).await.is_ok(),
            "fsync has told it already"
        );
        assert!(read(client, inode, 0, 200_000).await == content(1, 100_000));
        away.into_iter().for_each(|nsd| node.pool.add_nsd(nsd));
        for _ in 0..60 {
            node.world.sleep(Duration::from_secs(1)).await;
            if client.fsync(inode, false).await.is_ok() {
                assert_eq!(client.page_pool_bytes().0, 0);
                assert!(read(client, inode, 0, 200_000).await == content(1, 100_000));
                return;
            }
        }
        panic!("the data was not stored when the NSDs were back");
    })
    .finished();
}
