//! Tests of the simulation's promises.

use super::*;
use crate::Disk;
use bytes::Bytes;
use parking_lot::Mutex as SharedMutex;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

const BYTES: u64 = 20 << 30;

fn page(value: u8) -> Bytes {
    Bytes::from(vec![value; 4096])
}

async fn opened(world: &World) -> Disk {
    world.open_disk(Path::new("nsd0")).unwrap()
}

/// Eight tasks that write, read and flush for a while.
async fn busy(world: World) -> u64 {
    let disk = opened(&world).await;
    let tasks: Vec<_> = (0..8_u8)
        .map(|writer| {
            let (disk, own_world) = (disk.clone(), world.clone());
            world.spawn("writer", async move {
                for round in 0..20 {
                    let place = own_world.random_u64() % 64 * 8192;
                    disk.write(place, page(writer * 20 + round)).await.unwrap();
                    own_world
                        .sleep(Duration::from_millis(own_world.random_u64() % 3))
                        .await;
                    disk.read(place, 4096).await.unwrap();
                    if round % 5 == 0 {
                        disk.flush().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    world.now().0
}

fn trace_of(seed: u64) -> (u64, u64, u64) {
    let simulation = Simulation::new(seed);
    simulation.disk("nsd0", BYTES);
    let ended = simulation.run(busy).finished();
    (simulation.trace_hash(), simulation.io_count(), ended)
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let traces: BTreeSet<_> = (0..10).map(trace_of).collect();
    assert_eq!(traces.len(), 10);
    for seed in 0..10 {
        assert!(traces.contains(&trace_of(seed)));
    }
}

#[test]
fn time_passes_only_by_waiting() {
    let simulation = Simulation::new(1);
    let (slept, wall) = simulation
        .run(|world| async move {
            let (start, wall) = (world.now(), world.wall());
            world.sleep(Duration::from_secs(3000)).await;
            (world.now() - start, world.wall().0 - wall.0)
        })
        .finished();
    assert_eq!(slept, Duration::from_secs(3000));
    assert_eq!(wall, 3_000_000_000_000);
}

/// For each of 100 seeds, how many of ten new writes a power cut leaves whole.
fn survivors(durable: bool, flush: bool) -> Vec<usize> {
    (0..100)
        .map(|seed| {
            let simulation = Simulation::new(seed);
            let disk = simulation.disk("nsd0", BYTES);
            let faults = simulation.faults();
            let outcome = simulation.run(|world| async move {
                let disk = opened(&world).await;
                for number in 0..10 {
                    let bytes = Bytes::from(vec![9; 8192]);
                    match durable {
                        true => disk.write_durable(number * 8192, bytes).await.unwrap(),
                        false => disk.write(number * 8192, bytes).await.unwrap(),
                    }
                    assert_eq!(disk.read(number * 8192, 8192).await.unwrap()[8191], 9);
                }
                if flush {
                    disk.flush().await.unwrap();
                }
                faults.cut_now();
                disk.flush().await.unwrap();
            });
            assert!(outcome.is_crashed());
            (0..10)
                .filter(|number| disk.content(number * 8192, 8192) == [9; 8192])
                .count()
        })
        .collect()
}

#[test]
fn unflushed_writes_may_stay_or_be_lost_or_be_torn() {
    let survivors = survivors(false, false);
    let whole: usize = survivors.iter().sum();
    assert!((200..500).contains(&whole), "{whole} of 1000");
    assert!(survivors.iter().collect::<BTreeSet<_>>().len() > 4);
}

#[test]
fn flushed_and_forced_writes_survive_every_power_cut() {
    assert!(survivors(false, true).iter().all(|count| *count == 10));
    assert!(survivors(true, false).iter().all(|count| *count == 10));
}

#[test]
fn a_forced_write_is_never_undone_by_an_older_cached_one() {
    for seed in 0..100 {
        let simulation = Simulation::new(seed);
        let disk = simulation.disk("nsd0", BYTES);
        simulation
            .run(|world| async move {
                let disk = opened(&world).await;
                disk.write(0, page(1)).await.unwrap();
                disk.write_durable(0, page(2)).await.unwrap();
            })
            .finished();
        simulation.faults().cut_now();
        assert_eq!(disk.content(0, 4096), vec![2; 4096]);
    }
}

#[test]
fn a_torn_write_leaves_old_and_new_sectors() {
    for seed in 0..50 {
        let simulation = Simulation::new(seed);
        let disk = simulation.disk("nsd0", BYTES);
        simulation.faults().cut_at_io(0, Cut::Torn);
        let outcome = simulation.run(|world| async move {
            let disk = opened(&world).await;
            disk.write_durable(0, page(5)).await
        });
        assert!(outcome.is_crashed());
        let content = disk.content(0, 4096);
        assert!(content.contains(&0) && content.contains(&5), "seed {seed}");
        for sector in content.chunks(512) {
            assert!(
                sector.iter().all(|byte| *byte == sector[0]),
                "sectors are never torn"
            );
        }
    }
}

#[test]
fn a_cut_before_has_no_effect_and_a_cut_after_has_all() {
    for (cut, expected) in [(Cut::Before, 0), (Cut::After, 5)] {
        let simulation = Simulation::new(3);
        let disk = simulation.disk("nsd0", BYTES);
        simulation.faults().cut_at_io(0, cut);
        let outcome = simulation.run(|world| async move {
            opened(&world)
                .await
                .write_durable(0, page(5))
                .await
                .unwrap();
        });
        assert!(outcome.is_crashed());
        assert_eq!(disk.content(0, 4096), vec![expected; 4096]);
    }
}

#[test]
fn nothing_acknowledged_is_lost_with_a_cut_at_every_io() {
    for seed in 0..5 {
        for_every_cut(seed, 10_000, |simulation| {
            let disk = simulation.disk("nsd0", BYTES);
            let acknowledged = Arc::new(SharedMutex::new(0_u8));
            let outcome = simulation.run(|world| {
                let acknowledged = acknowledged.clone();
                async move {
                    let disk = opened(&world).await;
                    for value in 1..=10_u8 {
                        if value % 2 == 0 {
                            disk.write_durable(u64::from(value) * 4096, page(value))
                                .await
                                .unwrap();
                        } else {
                            disk.write(u64::from(value) * 4096, page(value))
                                .await
                                .unwrap();
                            disk.flush().await.unwrap();
                        }
                        *acknowledged.lock() = value;
                    }
                }
            });
            let acknowledged = *acknowledged.lock();
            assert!(outcome.is_crashed() || acknowledged == 10);
            for value in 1..=acknowledged {
                assert_eq!(
                    disk.content(u64::from(value) * 4096, 4096),
                    vec![value; 4096]
                );
            }
            // The machine starts again.
            simulation.faults().no_cut();
            simulation
                .run(|world| async move { opened(&world).await.read(0, 4096).await.map(drop) })
                .finished()
                .unwrap();
        });
    }
}

#[test]
fn synchronous_io_is_numbered_too_and_fails_after_the_cut() {
    for cut in 0..3 {
        let simulation = Simulation::new(1);
        let disk = simulation.disk("nsd0", BYTES);
        simulation.faults().cut_at_io(cut, Cut::Before);
        let outcome = simulation.run(|world| async move {
            let disk = opened(&world).await;
            let result = disk
                .write_now(100, b"hello")
                .and_then(|()| disk.flush_now())
                .and_then(|()| disk.read_now(100, &mut [0; 5]));
            assert!(result.is_err());
            panic!("a panic after the power was cut doesn't count");
        });
        assert_eq!(outcome, Outcome::Crashed::<()>);
        if cut == 2 {
            assert_eq!(disk.content(100, 5), b"hello");
        }
    }
}

#[test]
fn the_page_cache_doesnt_notice_that_the_medium_rots_until_the_machine_starts_again() {
    let simulation = Simulation::new(1);
    simulation.disk("nsd0", BYTES);
    let faults = simulation.faults();
    simulation
        .run(|world| async move {
            let disk = opened(&world).await;
            disk.write_now(4096, &[7; 4096]).unwrap();
            disk.flush_now().unwrap();
            let mut page = vec![0; 4096];
            disk.read_now(4096, &mut page).unwrap();
            faults.flip_bit("nsd0", 4100);
            disk.read_now(4096, &mut page).unwrap();
            assert_eq!(page[4], 7);
            let mut part = [0; 3];
            disk.read_now(4099, &mut part).unwrap();
            assert_eq!(part, [7; 3]);
            disk.read_medium_now(4096, &mut page).unwrap();
            assert_eq!(page[4], 6);
            disk.write_now(4096, &[8; 4096]).unwrap();
            disk.read_now(4096, &mut page).unwrap();
            assert_eq!(page, [8; 4096]);
            faults.flip_bit("nsd0", 4100);
        })
        .finished();
    simulation
        .run(|world| async move {
            let disk = opened(&world).await;
            let mut page = vec![0; 4096];
            disk.read_now(4096, &mut page).unwrap();
            assert_eq!(page[4], 9);
        })
        .finished();
}

#[test]
fn faults_hit_the_chosen_disk_until_it_is_healed() {
    let simulation = Simulation::new(1);
    simulation.disk("nsd0", BYTES);
    let faults = simulation.faults();
    simulation
        .run(|world| async move {
            let disk = opened(&world).await;
            let errno = |result: io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
            faults.full("nsd0");
            assert_eq!(errno(disk.write(0, page(1)).await), libc::ENOSPC);
            faults.fail("nsd0");
            assert_eq!(errno(disk.flush().await), libc::EIO);
            faults.heal("nsd0");
            disk.write(0, page(1)).await.unwrap();

            faults.read_error("nsd0", 4096..12288);
            assert_eq!(errno(disk.read(0, 8192).await.map(drop)), libc::EIO);
            disk.read(0, 4096).await.unwrap();
            disk.write(4096, page(2)).await.unwrap();
            disk.read(0, 8192).await.unwrap();
            assert!(disk.read(8192, 4096).await.is_err());

            faults.flip_bit("nsd0", 17);
            assert_eq!(disk.read(0, 4096).await.unwrap()[16..19], [1, 0, 1]);

            let start = world.now();
            faults.slow("nsd0", Duration::from_secs(5));
            let late = world
                .timeout(Duration::from_secs(1), disk.write(8192, page(3)))
                .await;
            assert_eq!(late.unwrap_err(), crate::Elapsed);
            // The dropped write happens anyway.
            disk.quiesce().await;
            assert!(world.now() - start >= Duration::from_secs(5));
            assert_eq!(disk.read(8192, 4096).await.unwrap(), page(3));
        })
        .finished();
}

#[test]
fn a_disk_is_opened_once_and_again_after_a_crash() {
    let simulation = Simulation::new(1);
    let faults = simulation.faults();
    let outcome = simulation.run(|world| async move {
        let path = Path::new("made/in/the/run");
        let disk = world.create_disk(path, 1 << 20).unwrap();
        assert_eq!(
            world.open_disk(path).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        let again = world.create_disk(path, 1 << 20).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        drop(disk);
        let disk = world.open_disk(path).unwrap();
        faults.cut_now();
        disk.flush().await
    });
    assert!(outcome.is_crashed());
    simulation
        .run(|world| async move {
            world.open_disk(Path::new("made/in/the/run")).unwrap();
            let absent = world.open_disk(Path::new("absent")).unwrap_err();
            assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        })
        .finished();
}

#[test]
fn unaligned_and_overlong_ranges_are_refused() {
    let simulation = Simulation::new(1);
    simulation.disk("nsd0", 1 << 20);
    simulation
        .run(|world| async move {
            let disk = opened(&world).await;
            for (offset, length) in [
                (1, 4096),
                (0, 100),
                (1 << 20, 4096),
                (u64::MAX - 4095, 4096),
            ] {
                let error = disk.read(offset, length).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            }
            assert!(disk.write_now((1 << 20) - 1, &[1, 2]).is_err());
        })
        .finished();
    assert_eq!(simulation.io_count(), 0);
}

#[test]
#[should_panic(expected = "tasks alive: [\"waits for nothing\"]")]
fn a_run_that_waits_for_ever_names_its_tasks() {
    Simulation::new(1)
        .run(|world| async move {
            let task = world.spawn("waits for nothing", std::future::pending::<()>());
            task.await;
        })
        .finished();
}

#[test]
fn a_panic_of_a_detached_task_fails_the_run() {
    let result = std::panic::catch_unwind(|| {
        Simulation::new(1).run(|world| async move {
            world
                .spawn("panics", async { panic!("on purpose") })
                .detach();
            world.sleep(Duration::from_secs(1)).await;
        })
    });
    assert!(result.is_err());
}

#[test]
fn dropping_a_task_ends_it_and_stopping_waits_for_its_end() {
    let simulation = Simulation::new(1);
    simulation
        .run(|world| async move {
            let shared = Arc::new(());
            let held = shared.clone();
            let task = world.spawn("holds", async move {
                std::future::pending::<()>().await;
                drop(held);
            });
            task.stop().await;
            assert_eq!(Arc::strong_count(&shared), 1);
            assert_eq!(world.blocking(|| 6 * 7).await, 42);
            assert_eq!(world.block_on(async { 5 }), 5);
        })
        .finished();
}
