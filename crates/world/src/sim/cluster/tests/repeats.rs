//! The same seed gives the same run, also in another process.

use super::*;
use std::process::Command;

/// Set in the process that runs a scenario for its parent: the seed.
const SEED: &str = "WORLD_TEST_SEED";

/// Three machines that write, talk, die and come back; returns the trace's hash.
fn busy(seed: u64, note: u64) -> u64 {
    let cluster = Cluster::new(seed);
    let nodes = ["a", "b", "c"].map(|name| cluster.node(name));
    for node in &nodes {
        node.disk("nsd0", 1 << 20);
    }
    let (wires, faults) = (cluster.wires(), cluster.faults());
    cluster.run(|judge| async move {
        let start = |index: usize| {
            let peer = nodes[(index + 1) % 3].clone();
            drop(nodes[index].start(move |world| talk_and_write(world, peer, note)));
        };
        (0..3).for_each(start);
        for round in 0..6 {
            judge.sleep(300 * MS).await;
            let (one, other) = (&nodes[round % 3], &nodes[(round + 1) % 3]);
            match round {
                0 => one.kill(),
                1 => one.cut_power(),
                2 => one.pause(),
                3 => wires.cut_one_way(one, other),
                4 => faults.slow("b/nsd0", 5 * MS),
                _ => one.drift(100_000),
            }
            judge.sleep(300 * MS).await;
            wires.heal_all();
            nodes.iter().for_each(SimNode::resume);
            let off = (0..3).filter(|index| !nodes[*index].is_running());
            off.for_each(start);
        }
    });
    assert!(cluster.io_count() > 200);
    cluster.trace_hash()
}

async fn talk_and_write(world: World, peer: SimNode, note: u64) {
    let disk = opened(&world);
    world.spawn("serves", serve(world.clone())).detach();
    let own_world = world.clone();
    // As a library does it: a task and a timer that the world doesn't know.
    drop(world.runtime().spawn(async move {
        loop {
            tokio::time::sleep(7 * MS).await;
            own_world.note("ticked", note);
        }
    }));
    loop {
        let Ok(mut connection) = connect(&world, &peer, SECOND).await else {
            world.sleep(MS).await;
            continue;
        };
        for byte in 0..50 {
            let place = world.random_u64() % 64 * 4096;
            disk.write(place, page(byte)).await.unwrap();
            if ask(&mut connection, byte).await.is_err() {
                break;
            }
            disk.flush().await.unwrap();
        }
    }
}

#[test]
fn runs_repeat_by_seed_and_differ_between_seeds_and_decisions() {
    assert_eq!(busy(1, 0), busy(1, 0));
    assert_ne!(busy(1, 0), busy(2, 0));
    assert_ne!(busy(1, 0), busy(1, 1));
}

/// Prints a hash for the test below, which starts it in another process.
#[test]
fn one_run_of_a_pair() {
    if let Some(seed) = std::env::var_os(SEED) {
        let seed = seed.to_string_lossy().parse().unwrap();
        println!("trace {:016x}.", busy(seed, 0));
    }
}

#[test]
fn two_processes_give_the_same_trace() {
    for seed in 0..4_u64 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = "sim::cluster::tests::repeats::one_run_of_a_pair";
        command.args(["--exact", test, "--nocapture"]);
        let output = command.env(SEED, seed.to_string()).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let trace = format!("trace {:016x}.", busy(seed, 0));
        assert!(output.contains(&trace), "{trace} is not in {output}");
    }
}
