//! kill -9 of the real daemon at random moments: no fsynced data is lost.

use crate::fixture::{Node, eventually, kill_hard, pattern};
use sim::by_suite;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Data that the load knows to be durable: file name → (seed, length) of its fsynced content.
type Durable = Mutex<BTreeMap<String, (u64, usize)>>;

/// Creates, overwrites and renames files, fsyncs each, and records it only afterwards. Ends at the
/// first error, which means that the daemon is dead.
fn load(
    mnt: &Path,
    (worker, round): (u64, u64),
    stop: &AtomicBool,
    done: &AtomicU64,
    durable: &Durable,
) {
    let folder = mnt.join(format!("worker{worker}"));
    match fs::create_dir(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return,
        _ => {}
    }
    for step in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let seed = (worker << 40) | (round << 20) | step;
        let length =
            [10, 3_901, 20_000, 70_000, 1_500_000][(seed % 5) as usize] + (step as usize % 97);
        let write = || -> std::io::Result<()> {
            let name = format!("worker{worker}/file{}", step % 40);
            let content = pattern(seed, length);
            if step % 3 == 2 {
                // Replace by rename, the way editors save.
                let temporary = folder.join("temporary");
                let mut file = File::create(&temporary)?;
                file.write_all(&content)?;
                file.sync_all()?;
                durable.lock().unwrap().remove(&name);
                fs::rename(&temporary, mnt.join(&name))?;
                File::open(&folder)?.sync_all()?;
            } else {
                // While a file is being written, nothing is promised until its fsync returns.
                durable.lock().unwrap().remove(&name);
                let file = File::create(mnt.join(&name))?;
                file.write_all_at(&content, 0)?;
                file.sync_all()?;
            }
            durable.lock().unwrap().insert(name, (seed, length));
            Ok(())
        };
        if write().is_err() {
            return;
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

fn verify(node: &Node, durable: &Durable) {
    for (name, (seed, length)) in durable.lock().unwrap().iter() {
        let found = fs::read(node.path(name))
            .unwrap_or_else(|e| panic!("{name} was fsynced and is gone: {e}"));
        assert!(
            found == pattern(*seed, *length),
            "{name}: {} bytes, {length} were fsynced, content differs",
            found.len()
        );
    }
}

#[test]
fn kills_lose_nothing_that_was_fsynced() {
    let rounds = by_suite(20, 50);
    let node = Node::new();
    let durable = Durable::default();
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (mnt, stop, durable) = (node.mnt.clone(), &stop, &durable);
                let done = &done;
                scope.spawn(move || load(&mnt, (worker, round), stop, done, durable));
            }
            let pid = node.pid();
            // The moment of death differs between rounds; what it hits is random.
            let steps = 1 + round * 37 % 60;
            eventually("the load runs", || done.load(Ordering::Relaxed) >= steps);
            kill_hard(pid);
            stop.store(true, Ordering::Relaxed);
        });
        let begun = Instant::now();
        node.must(&["up"]);
        slowest = slowest.max(begun.elapsed());
        verify(&node, &durable);
    }
    println!("slowest start after a kill: {} ms", slowest.as_millis());
    assert!(durable.lock().unwrap().len() >= 30, "the load did its work");
    node.check();
}
