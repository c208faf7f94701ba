//! Many calls while connections stall, break and daemons restart, from one seed each.

use crate::scene::{Scene, Way, ask, ms, request, run};
use model::call::{Class, NoAnswer};
use std::sync::Arc;
use world::{Task, World};

const SEEDS: u64 = 60;
const CALLERS: u64 = 12;
const CALLS_EACH: u64 = 30;

/// What a caller learned of each of its tickets.
type Learned = Vec<(u64, Option<bool>)>;

fn start_caller(scene: &Arc<Scene>, caller: u64) -> Task<Learned> {
    let scene = scene.clone();
    scene.world.clone().spawn("caller", async move {
        let below = |most| scene.world.random_u64() % most;
        let mut learned = Vec::new();
        for call in 0..CALLS_EACH {
            let ticket = caller * 1000 + call;
            let mut call = request(ticket, below(60));
            call.class = Class::ALL[below(4) as usize];
            if call.class == Class::Bulk {
                call.payload = vec![ticket as u8; below(300_000) as usize].into();
                call.reply_bytes_max = 400_000;
            }
            let sent = call.payload.clone();
            let patience = ms(1 + below(400));
            let asking = ask(&scene.world, &*scene.peer, call, patience);
            if below(10) == 0 {
                // Whoever waited goes away.
                drop(scene.world.timeout(ms(below(50)), asking).await);
                learned.push((ticket, None));
                continue;
            }
            let has_run = match asking.await {
                Ok(answer) => {
                    assert_eq!(answer.reply.decode::<u64>(), Ok(ticket), "its own answer");
                    assert_eq!(answer.reply.payload, sent);
                    Some(true)
                }
                Err(NoAnswer::NotRun(_)) => Some(false),
                Err(NoAnswer::Unknown(_)) => None,
            };
            learned.push((ticket, has_run));
            if has_run == Some(false) {
                // Without a connection calls are refused at once.
                scene.world.sleep(patience).await;
            }
        }
        learned
    })
}

async fn disturb(scene: Arc<Scene>) {
    let below = |most| scene.world.random_u64() % most;
    let mut incarnation = 1;
    loop {
        scene.world.sleep(ms(below(400))).await;
        let pause = ms(below(300));
        match below(6) {
            0 => scene.wire.cut(),
            1 => scene.wire.set(Way::Held, Way::Open),
            2 => scene.wire.set(Way::Open, Way::Held),
            3 => scene.wire.set(Way::Held, Way::Held),
            4 => *scene.wire.latency.lock() = ms(below(20)),
            _ => {
                scene.kill_server();
                scene.world.sleep(pause).await;
                incarnation += 1;
                scene.start_server(incarnation);
            }
        }
        // Sometimes longer than a side waits for a sign of life.
        let long = ms(5000 * u64::from(below(8) == 0));
        scene.world.sleep(pause + long).await;
        scene.wire.set(Way::Open, Way::Open);
    }
}

async fn calls_under_faults(world: World) {
    let scene = Arc::new(Scene::new(&world));
    let callers: Vec<_> = (1..=CALLERS)
        .map(|caller| start_caller(&scene, caller))
        .collect();
    let faults = world.spawn("faults", disturb(scene.clone()));
    let (mut answered, mut not_run, mut unknown) = (0, 0, 0);
    let mut learned = Vec::new();
    for caller in callers {
        learned.extend(caller.await);
    }
    faults.stop().await;
    // What is still on the way must not run any more where it was said not to.
    world.sleep(ms(10_000)).await;
    for (ticket, has_run) in learned {
        let begun = scene.begun(ticket);
        assert!(begun <= 1, "request {ticket} ran {begun} times");
        match has_run {
            Some(true) => answered += u64::from(begun == 1),
            Some(false) => {
                assert_eq!(begun, 0, "request {ticket} ran although it was said not to");
                not_run += 1;
            }
            None => unknown += 1,
        }
    }
    assert_eq!(answered + not_run + unknown, CALLERS * CALLS_EACH);
    assert!(answered > CALLERS, "only {answered} answers");
}

#[test]
fn no_call_gets_another_answer_runs_twice_or_outlives_its_deadline() {
    for seed in 0..SEEDS {
        run(seed, calls_under_faults);
    }
}
