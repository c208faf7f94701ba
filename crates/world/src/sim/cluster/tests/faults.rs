//! Faults of machines: kills, power cuts, pauses, clocks, disks.

use super::*;
use std::sync::atomic::AtomicU64;

/// A program that counts in memory and on its disk, with tasks that nobody owns.
fn start_counter(node: &SimNode, memory: &Arc<AtomicU64>) {
    let memory = memory.clone();
    drop(node.start(|world| async move {
        let disk = opened(&world);
        let own_world = world.clone();
        let ticking = async move {
            loop {
                own_world.sleep(MS).await;
                memory.fetch_add(1, Ordering::Relaxed);
            }
        };
        world.spawn("counts", ticking).detach();
        for value in 1..=255 {
            disk.write(0, page(value)).await.unwrap();
            world.sleep(10 * MS).await;
        }
    }));
}

#[test]
fn a_killed_program_stops_with_all_tasks_and_its_disk_keeps_what_was_written() {
    let (cluster, a, _) = two(1);
    let disk = a.disk("nsd0", 1 << 20);
    cluster.run(|judge| async move {
        let memory = Arc::new(AtomicU64::new(0));
        start_counter(&a, &memory);
        judge.sleep(300 * MS).await;
        a.kill();
        assert!(!a.is_running());
        let (counted, written) = (memory.load(Ordering::Relaxed), disk.content(0, 1)[0]);
        assert!(counted > 200 && written > 10);
        judge.sleep(SECOND).await;
        assert_eq!(memory.load(Ordering::Relaxed), counted);
        assert_eq!(Arc::strong_count(&memory), 1, "its tasks are gone");
        assert_eq!(disk.content(0, 1)[0], written, "no write was lost");
        start_counter(&a, &memory);
        judge.sleep(100 * MS).await;
        assert!(memory.load(Ordering::Relaxed) > counted);
    });
}

#[test]
fn what_a_killed_program_does_while_it_is_dropped_has_no_effect() {
    struct WritesWhenDropped(Disk);
    impl Drop for WritesWhenDropped {
        fn drop(&mut self) {
            assert!(self.0.write_now(0, &[9; 4096]).is_err());
        }
    }
    let (cluster, a, _) = two(1);
    let disk = a.disk("nsd0", 1 << 20);
    cluster.run(|judge| async move {
        let program = a.start(|world| async move {
            let _writes = WritesWhenDropped(opened(&world));
            std::future::pending::<()>().await;
        });
        judge.sleep(10 * MS).await;
        a.kill();
        assert_eq!(program.await, None);
        assert_eq!(disk.content(0, 1), [0]);
    });
}

#[test]
fn a_power_cut_loses_unflushed_writes_of_its_machine_only() {
    let mut lost = 0;
    for seed in 0..50 {
        let (cluster, a, b) = two(seed);
        let disks = [a.disk("nsd0", 1 << 20), b.disk("nsd0", 1 << 20)];
        cluster.run(|judge| async move {
            let program = |world: World| async move {
                let disk = opened(&world);
                disk.write(0, page(1)).await.unwrap();
                disk.flush().await.unwrap();
                disk.write(4096, page(2)).await.unwrap();
                std::future::pending::<()>().await;
            };
            let _programs = (a.start(program), b.start(program));
            judge.sleep(100 * MS).await;
            a.cut_power();
            b.kill();
            assert!(!a.is_running());
        });
        assert_eq!(disks[0].content(0, 4096), page(1), "flushed");
        assert_eq!(disks[1].content(4096, 4096), page(2), "had no power cut");
        lost += u32::from(disks[0].content(4096, 4096) != page(2));
    }
    assert!((10..45).contains(&lost), "{lost} of 50 lost or torn");
}

#[test]
fn a_planned_power_cut_meets_the_machine_of_the_io() {
    let (cluster, a, b) = two(1);
    let disk = a.disk("nsd0", 1 << 20);
    cluster.faults().cut_at_io(0, crate::sim::Cut::Torn);
    cluster.run(|judge| async move {
        let _idle = b.start(|_| std::future::pending::<()>());
        let _writes = a.start(|world| async move { opened(&world).write(0, page(3)).await });
        judge.sleep(100 * MS).await;
        assert!(b.is_running() && !a.is_running());
        let content = disk.content(0, 4096);
        assert!(content.contains(&0) && content.contains(&3));
    });
}

#[test]
fn a_paused_program_does_nothing_and_its_timers_are_late_together() {
    let (cluster, a, _) = two(1);
    cluster.run(|judge| async move {
        let fired: Arc<Mutex<Vec<(u32, u128)>>> = Arc::default();
        let seen = fired.clone();
        let _program = a.start(|world| async move {
            let start = world.now();
            for delay in [50, 100, 150, 400] {
                let (own_world, fired) = (world.clone(), fired.clone());
                let timer = async move {
                    own_world.sleep(delay * MS).await;
                    let at = (own_world.now() - start).as_millis();
                    fired.lock().push((delay, at));
                };
                world.spawn("timer", timer).detach();
            }
            std::future::pending::<()>().await;
        });
        judge.sleep(75 * MS).await;
        a.pause();
        judge.sleep(225 * MS).await;
        assert_eq!(seen.lock().len(), 1);
        a.resume();
        judge.sleep(SECOND).await;
        let seen = seen.lock();
        let late = seen[1..3].iter().all(|(_, at)| (300..303).contains(at));
        assert!(late, "{seen:?}");
        assert_eq!(seen[3].0, 400);
        assert!((400..403).contains(&seen[3].1));
    });
}

#[test]
fn a_drifting_clock_runs_faster_or_slower_than_time() {
    let (cluster, a, b) = two(1);
    a.drift(100_000);
    b.drift(-500_000);
    cluster.run(|judge| async move {
        let program = |world: World| async move {
            let (start, calendar) = (world.now(), world.wall().0);
            world.sleep(SECOND).await;
            assert!((1000..1003).contains(&(world.now() - start).as_millis()));
            assert!((1000..1003).contains(&((world.wall().0 - calendar) / 1_000_000)));
        };
        let mut took = Vec::new();
        for node in [a, b] {
            let start = judge.now();
            node.start(program).done().await;
            took.push((judge.now() - start).as_millis());
        }
        assert!((908..914).contains(&took[0]), "{took:?}");
        assert!((1999..2006).contains(&took[1]), "{took:?}");
    });
}

#[test]
fn disks_and_clocks_that_drift_apart_still_complete_every_io() {
    let (cluster, a, _) = two(3);
    a.disk("nsd0", 1 << 20);
    a.drift(900_000);
    cluster.run(|_| {
        let program = a.start(|world| async move {
            let disk = opened(&world);
            for number in 0..50 {
                disk.write(number * 4096, page(1)).await.unwrap();
            }
            disk.quiesce().await;
        });
        program.done()
    });
}

#[test]
fn a_calendar_jumps_and_monotonic_time_does_not() {
    let (cluster, a, b) = two(1);
    cluster.run(|judge| async move {
        let seen: Arc<Mutex<Vec<(u64, i64)>>> = Arc::default();
        let shown = seen.clone();
        let clocks = a.start(|world| async move {
            for _ in 0..2 {
                seen.lock().push((world.now().0, world.wall().0));
                world.sleep(10 * MS).await;
            }
            world.now()
        });
        judge.sleep(5 * MS).await;
        a.jump_clock(-3600);
        let on_a = clocks.done().await;
        let shown = shown.lock().clone();
        assert!(shown[1].0 - shown[0].0 < 20_000_000);
        let jumped = shown[0].1 - shown[1].1;
        assert!((3_599_900_000_000..3_600_000_000_000).contains(&jumped));
        let on_b = b.start(|world| async move { world.now() }).done().await;
        let hour = 3_600_000_000_000;
        assert_ne!(on_a.0 / hour, on_b.0 / hour, "clocks can't be compared");
    });
}

#[test]
fn a_hanging_disk_answers_nothing_until_it_is_healed() {
    let (cluster, a, _) = two(1);
    let name = a.disk("nsd0", 1 << 20).name().to_owned();
    let faults = cluster.faults();
    cluster.run(|judge| async move {
        let program = |world: World| async move {
            let disk = opened(&world);
            disk.write(0, page(1)).await.unwrap();
            world.sleep(20 * MS).await;
            let late = world.timeout(SECOND, disk.write(4096, page(2))).await;
            assert!(late.is_err());
            assert!(disk.read_now(0, &mut [0; 10]).is_err());
            disk.flush().await.unwrap();
        };
        let done = a.start(program);
        judge.sleep(15 * MS).await;
        faults.hang(&name);
        judge.sleep(5 * SECOND).await;
        assert!(a.is_running());
        faults.heal(&name);
        done.done().await;
    });
}

#[test]
fn what_a_killed_program_submitted_keeps_a_hanging_disk_locked() {
    let (cluster, a, _) = two(1);
    let disk = a.disk("nsd0", 1 << 20);
    let faults = cluster.faults();
    faults.hang(disk.name());
    cluster.run(|judge| async move {
        let _hangs = a.start(|world| async move { opened(&world).write(0, page(3)).await });
        judge.sleep(50 * MS).await;
        a.kill();
        let open = |world: World| async move { world.open_disk(Path::new("nsd0")).map(drop) };
        let busy = a.start(open).done().await.unwrap_err();
        assert_eq!(busy.kind(), std::io::ErrorKind::WouldBlock);
        judge.sleep(MS).await;
        faults.heal(disk.name());
        assert_eq!(disk.content(0, 4096), page(3), "it was submitted");
        a.start(open).done().await.unwrap();
    });
}

#[test]
fn a_slow_disk_of_one_machine_is_slow() {
    let (cluster, a, b) = two(1);
    a.disk("nsd0", 1 << 20);
    b.disk("nsd0", 1 << 20);
    cluster.faults().slow("a/nsd0", SECOND);
    cluster.run(|_| async move {
        let program = |world: World| async move {
            let start = world.now();
            opened(&world).write(0, page(1)).await.unwrap();
            world.now() - start
        };
        assert!(a.start(program).done().await >= SECOND);
        assert!(b.start(program).done().await < 10 * MS);
    });
}

#[test]
fn a_program_that_ends_takes_its_tasks_along() {
    let (cluster, a, _) = two(1);
    let shared = Arc::new(());
    let held = shared.clone();
    cluster.run(|judge| async move {
        let ended = a.start(|world| async move {
            let keeping = async move {
                std::future::pending::<()>().await;
                drop(held);
            };
            world.spawn("keeps", keeping).detach();
            7
        });
        assert_eq!(ended.done().await, 7);
        judge.sleep(MS).await;
        assert!(!a.is_running());
    });
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn an_answer_from_a_program_that_was_killed_is_none() {
    let (cluster, a, _) = two(1);
    cluster.run(|judge| async move {
        let _program = a.start(|_| std::future::pending::<()>());
        let task = a.run("asked", |world| async move { world.sleep(SECOND).await });
        judge.sleep(MS).await;
        a.kill();
        assert_eq!(task.await, None);
    });
}

#[test]
fn a_program_may_kill_another_and_itself() {
    let (cluster, a, b) = two(1);
    cluster.run(|judge| async move {
        let (own, other) = (a.clone(), b.clone());
        let _victim = b.start(|_| std::future::pending::<()>());
        let program = a.start(|world| async move {
            other.kill();
            own.kill();
            world.sleep(MS).await;
        });
        assert_eq!(program.await, None);
        judge.sleep(MS).await;
        assert!(!a.is_running() && !b.is_running());
        assert_eq!(b.start(|_| async { 5 }).done().await, 5);
    });
}

#[test]
#[should_panic(expected = "a task on a panicked after 0ns (seed 1); a: tasks alive")]
fn a_panic_of_any_task_fails_the_run() {
    let (cluster, a, _) = two(1);
    cluster.run(|judge| async move {
        let _program = a.start(|world| async move {
            let panicking = async { panic!("on purpose") };
            world.spawn("panics", panicking).await;
        });
        judge.sleep(SECOND).await;
    });
}

#[test]
#[should_panic(expected = "b: tasks alive: [\"main\", \"serves a connection\"]")]
fn what_does_not_happen_in_time_names_what_waits() {
    let (cluster, a, b) = two(1);
    cluster.run(|judge| async move {
        let _server = b.start(serve);
        let peer = b.clone();
        let _client = a.start(|world| async move {
            let _connection = connect(&world, &peer, SECOND).await;
            std::future::pending::<()>().await;
        });
        judge.until("the impossible", SECOND, || false).await;
    });
}

#[test]
fn a_program_is_held_up_or_killed_at_the_point_and_after_the_passes_that_were_named() {
    let (cluster, a, b) = two(1);
    let start = |node: &SimNode| {
        drop(node.start(|world| async move {
            loop {
                world.at(Point::BeforeAnswer).await;
                world.sleep(10 * MS).await;
            }
        }));
    };
    let passed = || cluster.points().get(&Point::BeforeAnswer).copied();
    let met = || cluster.interrupted().map(|node| node.name());
    cluster.run(async |judge: Judge| {
        start(&a);
        cluster.interrupt(Point::BeforeAnswer, 5, Interruption::Delay(SECOND));
        judge.sleep(SECOND).await;
        assert!(!cluster.is_armed());
        assert_eq!((passed(), met().as_deref()), (Some(6), Some("a")));
        judge.sleep(SECOND).await;
        assert!(a.is_running() && passed() > Some(50), "it goes on");
        // Nobody comes to this one.
        cluster.interrupt(Point::SlotArrived, 0, Interruption::Kill);
        judge.sleep(SECOND).await;
        assert!(cluster.is_armed());
        assert_eq!((met(), cluster.is_armed()), (None, false));
        start(&b);
        a.kill();
        cluster.interrupt(Point::BeforeAnswer, 2, Interruption::Kill);
        judge.sleep(SECOND).await;
        assert!(!b.is_running());
        assert_eq!(met().as_deref(), Some("b"));
    });
}
