//! Dirty bytes against an array of optional bytes.

use super::*;
use proptest::prelude::*;
use std::time::Duration;
use world::sim::Simulation;

const BLOCK: u32 = 64;
const SPACE: usize = 400;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u8, usize),
    Cut(u64, u64),
    TakeFull,
    TakeAll,
    TakeOlder(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..300, any::<u8>(), 1usize..100).prop_map(|(o, s, l)| Step::Write(o, s, l)),
        3 => (0u64..300, 0u64..100).prop_map(|(from, length)| Step::Cut(from, from + length)),
        1 => Just(Step::TakeFull),
        1 => Just(Step::TakeAll),
        1 => (0u64..80).prop_map(Step::TakeOlder),
    ]
}

/// An arbitrary moment.
fn begun() -> Instant {
    let simulation = Simulation::new(1);
    let moment = simulation.run(|world| async move { world.now() });
    moment.finished() + Duration::from_secs(1000)
}

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| seed.wrapping_add(at as u8)).collect()
}

fn take(model: &mut [Option<u8>], frozen: &[Frozen]) {
    for piece in frozen {
        for (at, byte) in piece.bytes.iter().enumerate() {
            assert_eq!(model[piece.offset as usize + at].take(), Some(*byte));
        }
    }
}

proptest! {
    #[test]
    fn dirty_bytes_are_exactly_those_written_and_not_cut(steps in prop::collection::vec(step(), 1..80)) {
        let mut dirty = Dirty::new(Blocks::new(BLOCK, 64 << 20));
        let mut model = vec![None; SPACE];
        // Since when each block has been dirty.
        let mut since = vec![None; SPACE / BLOCK as usize + 1];
        let begun = begun();
        for (number, step) in steps.into_iter().enumerate() {
            let now = begun + Duration::from_secs(number as u64);
            let before = model.iter().flatten().count() as u64;
            match step {
                Step::Write(offset, seed, length) => {
                    let data = content(seed, length);
                    let new = dirty.write(offset, &data, now);
                    for (at, byte) in data.iter().enumerate() {
                        model[offset as usize + at] = Some(*byte);
                    }
                    prop_assert_eq!(new, model.iter().flatten().count() as u64 - before);
                }
                Step::Cut(from, to) => {
                    let cut = dirty.cut(from, to);
                    model[from as usize..to as usize].fill(None);
                    prop_assert_eq!(cut, before - model.iter().flatten().count() as u64);
                }
                Step::TakeFull => {
                    let frozen = dirty.take_full_blocks(0, SPACE as u64);
                    take(&mut model, &frozen);
                    for piece in &frozen {
                        prop_assert_eq!(piece.bytes.len(), BLOCK as usize);
                    }
                    for block in model.chunks(BLOCK as usize) {
                        prop_assert!(block.iter().any(Option::is_none));
                    }
                }
                Step::TakeAll => {
                    take(&mut model, &dirty.take_all());
                    prop_assert!(model.iter().all(Option::is_none));
                }
                Step::TakeOlder(age) => {
                    let time = now - Duration::from_secs(age);
                    take(&mut model, &dirty.take_older(time));
                    prop_assert!(dirty.oldest().is_none_or(|oldest| oldest > time));
                }
            }
            for (block, since) in model.chunks(BLOCK as usize).zip(&mut since) {
                *since = block.iter().any(Option::is_some).then(|| since.unwrap_or(now));
            }
            prop_assert_eq!(dirty.oldest(), since.iter().flatten().min().copied());
            let mut seen = vec![None; SPACE];
            dirty.visit(0, SPACE as u64, |start, bytes| {
                for (at, byte) in bytes.iter().enumerate() {
                    seen[start as usize + at] = Some(*byte);
                }
            });
            prop_assert_eq!(&seen, &model);
            prop_assert_eq!(dirty.bytes(), model.iter().flatten().count() as u64);
        }
    }
}

#[test]
fn a_stream_is_one_run_per_block_and_is_not_copied_again() {
    let mut dirty = Dirty::new(Blocks::new(4 << 20, 256 << 20));
    let data = vec![9; 1 << 20];
    for at in 0..8u64 {
        dirty.write(at << 20, &data, begun());
    }
    assert_eq!(dirty.runs(), 2);
    let frozen = dirty.take_full_blocks(0, 8 << 20);
    assert_eq!(frozen.len(), 2);
    assert!(frozen.iter().all(|piece| world::is_aligned(&piece.bytes)));
    assert!(dirty.is_empty());
}

#[test]
fn only_streams_take_whole_blocks_before_they_are_written() {
    const BLOCK: u64 = 1 << 20;
    let blocks = Blocks::new(BLOCK as u32, 256 << 20);
    let mut dirty = Dirty::new(blocks.clone());
    let now = begun();
    // Two writers in one file, each block by block.
    for number in 0..4 {
        for from in [0, 100] {
            dirty.write((from + number) * BLOCK, &vec![1; BLOCK as usize], now);
            dirty.take_full_blocks(0, u64::MAX);
        }
    }
    while blocks.give_back() {}
    assert_eq!(blocks.held(), 0);
    for start in [4, 104] {
        let before = blocks.held();
        dirty.write(start * BLOCK, b"goes on", now);
        assert_eq!(blocks.held() - before, BLOCK);
    }
    let before = blocks.held();
    for start in 200..300 {
        dirty.write(start * BLOCK, b"x", now);
    }
    assert!(blocks.held() - before < BLOCK);
}
