//! How much fits into an index area, and what checking it finds.

use super::*;
use crate::entry::{Place, Run};
use model::{EntryNumber, ShardId};
use world::sim::Simulation;

const REGION: u128 = 5;

fn entry(number: u64, checksums: usize) -> Arc<IndexEntry> {
    let units = checksums as u32;
    Arc::new(IndexEntry {
        length: units * 4096,
        writer: number,
        birth: number,
        header: None,
        place: Place::Runs(vec![Run {
            unit: number * 100,
            count: units + crate::entry::header_units(units),
        }]),
        table_crc: 0,
        checksums: Some(vec![7; checksums].into()),
    })
}

/// Commits log entries with these numbers together.
fn commit_entries(index: &Index, numbers: std::ops::Range<u64>) {
    let mut changes = Changes::new();
    for number in numbers {
        let key = Key::log(ShardId(1), EntryNumber(number));
        changes.insert(key, Some(entry(number, 4)));
    }
    index.commit(&changes, &Ledger::default()).unwrap();
}

fn check(index: &Index) -> (bool, Vec<String>) {
    let (mismatches, mut mended) = index.check_pages().unwrap();
    let (is_lost, more) = index.finish_check(mismatches).unwrap();
    mended.extend(more);
    (is_lost, mended)
}

#[test]
fn a_check_reads_the_medium_and_not_what_the_page_cache_still_has() {
    const BYTES: u64 = 4 << 20;
    let simulation = Simulation::new(3);
    let medium = simulation.disk("index", BYTES);
    let faults = simulation.faults();
    simulation
        .run(async |world| {
            let disk = world.open_disk("index".as_ref()).unwrap();
            let area = Area::create(&disk, REGION, 0, BYTES).unwrap();
            let index = Index::open(area.clone()).unwrap();
            commit_entries(&index, 0..200);
            // As after a start: every page is in the page cache.
            let mut page = vec![0; 4096];
            (0..BYTES / 4096).for_each(|at| disk.read_now(at * 4096, &mut page).unwrap());
            let before = medium.content(0, BYTES as usize);
            let used: Vec<u64> = (0..BYTES / 4096)
                .filter(|at| {
                    before[*at as usize * 4096..][..4096]
                        .iter()
                        .any(|byte| *byte != 0)
                })
                .collect();
            assert!(used.len() > 10, "{used:?}");
            let mut found = 0;
            for at in &used {
                faults.flip_bit("index", at * 4096 + 600);
                let (is_lost, mended) = check(&index);
                assert!(!is_lost, "the page cache has page {at}");
                found += usize::from(!mended.is_empty());
            }
            // Unreferenced pages have no checksum.
            assert!(found * 2 > used.len(), "{found} of {}", used.len());
            let (is_lost, mended) = check(&index);
            assert!(!is_lost && mended.is_empty(), "{mended:?}");
            drop(index);
            drop(area);
        })
        .finished();
    simulation
        .run(async |world| {
            let disk = world.open_disk("index".as_ref()).unwrap();
            let area = Area::open(&disk, REGION, 0, BYTES).unwrap();
            let index = Index::open(area).unwrap();
            let mut count = 0;
            let snapshot = index.snapshot().unwrap();
            let each = |_: Key, _: Arc<IndexEntry>| {
                count += 1;
                true
            };
            snapshot
                .scan(&Key::lowest(), &Key::highest(), each)
                .unwrap();
            assert_eq!(count, 200, "the medium is whole again");
        })
        .finished();
}

#[test]
fn an_older_guard_is_never_used_in_place_of_a_newest_one_that_is_damaged() {
    const BYTES: u64 = 4 << 20;
    // For each number of commits, tries every set of damaged guard blocks.
    for commits in 0..5 {
        for damaged in 0_u32..16 {
            let simulation = Simulation::new(9);
            simulation.disk("index", BYTES);
            let faults = simulation.faults();
            simulation
                .run(async |world| {
                    let disk = world.open_disk("index".as_ref()).unwrap();
                    let index =
                        Index::open(Area::create(&disk, REGION, 0, BYTES).unwrap()).unwrap();
                    for number in 0..commits {
                        commit_entries(&index, number..number + 1);
                    }
                    drop(index);
                    let blocks = (0..4).filter(|block| damaged & (1 << block) != 0);
                    blocks.for_each(|block| faults.flip_bit("index", block * 4096 + 700));
                    let has_a_pair = damaged & 0b0101 == 0b0101 || damaged & 0b1010 == 0b1010;
                    match Area::open(&disk, REGION, 0, BYTES) {
                        Ok(area) => {
                            assert!(!has_a_pair, "{damaged:#b} after {commits} commits");
                            let index = Index::open(area).unwrap();
                            let mut count = 0;
                            let each = |_: Key, _: Arc<IndexEntry>| {
                                count += 1;
                                true
                            };
                            // Without a commit the table of entries doesn't exist.
                            if commits > 0 {
                                let snapshot = index.snapshot().unwrap();
                                let all = snapshot.scan(&Key::lowest(), &Key::highest(), each);
                                all.unwrap();
                            }
                            assert_eq!(count, commits, "{damaged:#b}");
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
                            assert!(has_a_pair, "{damaged:#b} after {commits}: {error}");
                        }
                    }
                })
                .finished();
        }
    }
}

#[test]
fn a_page_that_the_index_needs_and_that_has_no_checksum_is_damage_and_no_panic() {
    const BYTES: u64 = 4 << 20;
    let simulation = Simulation::new(5);
    simulation.disk("index", BYTES);
    simulation
        .run(async |world| {
            let disk = world.open_disk("index".as_ref()).unwrap();
            let area = Area::create(&disk, REGION, 0, BYTES).unwrap();
            let index = Index::open(area).unwrap();
            commit_entries(&index, 0..200);
            drop(index);
            let used = |area: &Area| area.use_of_pages().1 as u64;
            let highest = used(&Area::open(&disk, REGION, 0, BYTES).unwrap());
            let mut refused = 0;
            for page in 1..=highest {
                let area = Area::open(&disk, REGION, 0, BYTES).unwrap();
                // Only this open area forgets the page, because nothing is written.
                area.forget(&[page]);
                let scratch = Database::builder().create_with_backend(area.scratch());
                let read = scratch.attempt("opening").and_then(|database| {
                    let transaction = database.begin_read().attempt("reading")?;
                    let entries = transaction.open_table(ENTRIES).attempt("reading")?;
                    let mut count = 0;
                    for row in entries.range::<&[u8]>(..).attempt("reading")? {
                        row.attempt("reading")?;
                        count += 1;
                    }
                    Ok(count)
                });
                match read {
                    Ok(count) => assert_eq!(count, 200, "page {page}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "page {page}: {error}");
                        refused += 1;
                    }
                }
            }
            assert!(refused > 3, "{refused} of {highest}");
        })
        .finished();
}

#[test]
fn mismatched_pages_that_were_rewritten_are_kept() {
    const BYTES: u64 = 4 << 20;
    let simulation = Simulation::new(4);
    simulation.disk("index", BYTES);
    simulation
        .run(async |world| {
            let disk = world.open_disk("index".as_ref()).unwrap();
            let area = Area::create(&disk, REGION, 0, BYTES).unwrap();
            let index = Index::open(area.clone()).unwrap();
            commit_entries(&index, 0..200);
            let (used, highest, _) = area.use_of_pages();
            let suspects = (1..=highest as u64).collect();
            assert_eq!(index.finish_check(suspects).unwrap(), (false, Vec::new()));
            assert_eq!(area.use_of_pages().0, used);
        })
        .finished();
}

/// Fills an index to its limit, then adds and removes entries at random.
fn fill(bytes: u64, checksums: usize) {
    let simulation = Simulation::new(1);
    simulation.disk("index", bytes);
    simulation
        .run(async |world| {
            let disk = world.open_disk("index".as_ref()).unwrap();
            let area = Area::create(&disk, REGION, 0, bytes).unwrap();
            let index = Index::open(area.clone()).unwrap();
            index.commit(&Changes::new(), &Ledger::default()).unwrap();
            eprintln!(
                "full: {} empty: pages {:?}",
                area.capacity(),
                area.use_of_pages()
            );
            let mut ledger = Ledger::default();
            let mut all = Vec::new();
            let mut next = 0u64;
            let mut changes = Changes::new();
            let mut place = |changes: &mut Changes,
                             ledger: &mut Ledger,
                             all: &mut Vec<(Key, Arc<IndexEntry>)>| {
                next += 1;
                let scattered = next.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                let key = Key::log(ShardId(1), EntryNumber(scattered));
                let entry = entry(next, checksums);
                ledger.count(&key, &entry);
                changes.insert(key, Some(entry.clone()));
                all.push((key, entry));
            };
            while ledger.index_bytes < index.entry_bytes_max() {
                place(&mut changes, &mut ledger, &mut all);
                if changes.len() == 2000 {
                    index.commit(&changes, &ledger).unwrap();
                    changes.clear();
                }
            }
            index.commit(&changes, &ledger).unwrap();
            eprintln!(
                "full: {} entries, pages {:?}",
                all.len(),
                area.use_of_pages()
            );
            for round in 0..20 {
                changes.clear();
                for turn in 0..1000usize {
                    let chosen = (turn * 7919 + round * 104_729) % all.len();
                    let (key, entry) = all.swap_remove(chosen);
                    ledger.uncount(&key, &entry);
                    changes.insert(key, None);
                    place(&mut changes, &mut ledger, &mut all);
                }
                index.commit(&changes, &ledger).unwrap();
            }
            eprintln!("churned: pages {:?}", area.use_of_pages());
            let snapshot = index.snapshot().unwrap();
            for (key, entry) in &all {
                assert_eq!(snapshot.get(key).unwrap().as_ref(), Some(entry));
            }
        })
        .finished();
}

#[test]
fn an_index_area_fits_what_the_index_promises_to_hold() {
    for capacity in [2 << 20, 4 << 20, 32 << 20] {
        for checksums in [1, 64] {
            fill(Area::bytes_for(capacity), checksums);
        }
    }
}
