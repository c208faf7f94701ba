//! How much fits into an index area.

use super::*;
use crate::entry::{Place, Run};
use model::{EntryNumber, ShardId};
use world::sim::Simulation;

const REGION: u128 = 5;

fn entry(number: u64, checksums: usize) -> Arc<Entry> {
    let units = checksums as u32;
    Arc::new(Entry {
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

/// Fills an index as far as it allows, then churns it: entries come and go at random.
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
            let mut place =
                |changes: &mut Changes, ledger: &mut Ledger, all: &mut Vec<(Key, Arc<Entry>)>| {
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
fn what_an_index_promises_to_hold_fits_its_area() {
    for capacity in [2 << 20, 4 << 20, 32 << 20] {
        for checksums in [1, 64] {
            fill(Area::bytes_for(capacity), checksums);
        }
    }
}
