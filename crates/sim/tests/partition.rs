//! Two nodes can't reach each other, and both reach all others: one of both goes, the others go on, and it comes back by
//! itself once the link is whole.

use crate::failover::{Seen, work};
use crate::noted::figure;
use crate::stories::{find, make};
use model::member::{Cause, Standing};
use model::{NodeId, NodeRun, Result};
use sim::cluster::{ClusterScenario, Stage, client};
use sim::{by_suite, each_seed};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::content::content;
use world::sim::Answer;

const FIVE: ClusterScenario = ClusterScenario {
    nodes: 5,
    ..ClusterScenario::USUAL
};
const BYTES: usize = 4_096;
/// How soon programs go on that somebody else's link held up.
const GO_ON_MAX: Duration = Duration::from_secs(30);
/// How soon a manager is expelled that hears all others and can't call them, or that they can't call; or a node that knows no
/// manager that lives.
const PART_MAX: Duration = Duration::from_secs(40);
/// By then programs go on after somebody was expelled.
const LATER: Duration = Duration::from_secs(10);
/// Longer than it would take to expel one node after the other.
const LONG: Duration = Duration::from_secs(90);

/// A program that writes and syncs on a node.
pub(crate) struct Program {
    pub(crate) seen: Arc<Seen>,
    task: Answer<Result<()>>,
}

impl Program {
    /// Returns once it has synced something.
    pub(crate) async fn start(stage: &Arc<Stage>, node: usize) -> Self {
        let seen = Arc::<Seen>::default();
        let given = seen.clone();
        let task = stage.start_task(node, async move |world, member| {
            let client = client(&member).await;
            let file = make(&client, &format!("own{node}")).await?;
            work(world, client, file, given).await
        });
        let began = stage.now();
        while seen.synced.load(Ordering::Relaxed) == 0 {
            assert!(stage.now() - began < GO_ON_MAX, "a program doesn't begin");
            stage.sleep(Duration::from_millis(10)).await;
        }
        *seen.longest.lock().expect("nobody panicked") = Duration::ZERO;
        Self { seen, task }
    }

    /// Its longest wait for an answer.
    ///
    /// # Errors
    /// What it was told.
    pub(crate) async fn end(self, stage: &Arc<Stage>) -> Result<Duration> {
        self.seen.stop.store(true, Ordering::Relaxed);
        stage.end_of(self.task).await?;
        Ok(*self.seen.longest.lock().expect("nobody panicked"))
    }
}

/// All are members. The manager's node, the one that gets the shard, and the others.
async fn begin(stage: &Arc<Stage>) -> [usize; 5] {
    stage.settled().await;
    let manager = stage.manager().expect("one is the manager");
    let [owner, third, fourth, fifth] = [1, 2, 3, 4].map(|it| (manager + it) % 5);
    stage.move_shard(owner).await;
    [manager, owner, third, fourth, fifth]
}

/// Why a node isn't a member, as another one has heard.
async fn cause_of(stage: &Arc<Stage>, node: usize, asked: usize) -> Option<Cause> {
    let standing = stage.run(asked, async move |_, member| {
        let roster = member.roster();
        let members = roster.membership.as_ref().map(|it| &it.value.members);
        let known = members.and_then(|members| members.get(&number(node)));
        known.map(|it| it.standing)
    });
    match standing.await {
        Some(Standing::Expelled(cause)) => Some(cause),
        _ => None,
    }
}

/// The number of a node of the stage.
fn number(node: usize) -> NodeId {
    NodeId(node as u32 + 1)
}

/// Waits until a node is expelled after something that happened at `since`, and returns why.
async fn until_expelled(
    stage: &Arc<Stage>,
    nodes: (usize, usize),
    since: Duration,
    seed: u64,
) -> Cause {
    until_expelled_within(GO_ON_MAX, stage, nodes, since, seed).await
}

async fn until_expelled_within(
    most: Duration,
    stage: &Arc<Stage>,
    (node, asked): (usize, usize),
    since: Duration,
    seed: u64,
) -> Cause {
    loop {
        if let Some(cause) = cause_of(stage, node, asked).await {
            return cause;
        }
        let time = stage.now() - since;
        assert!(time < most, "seed {seed}: nobody is expelled");
        stage.sleep(Duration::from_millis(100)).await;
    }
}

pub(crate) async fn runs_of<const N: usize>(stage: &Arc<Stage>, nodes: [usize; N]) -> Vec<NodeRun> {
    let mut runs = Vec::new();
    for node in nodes {
        runs.push(stage.run(node, async |_, member| member.run()).await);
    }
    runs
}

/// Would be broken if the programs of others were held up by the node that the owner can't reach, if more than that node
/// went, or if it came back before it reaches the owner.
#[test]
fn of_an_owner_and_a_client_that_cannot_reach_each_other_the_client_goes_and_comes_back() {
    let worst = Mutex::new(Duration::ZERO);
    each_seed(0..by_suite(2, 40), |seed| {
        Stage::play(seed, &FIVE, None, async |stage| {
            let longest = client_cut_off(&stage, seed).await;
            let mut worst = worst.lock().expect("nobody panicked");
            *worst = longest.max(*worst);
        });
    });
    let worst = worst.into_inner().expect("nobody panicked");
    figure(&format!(
        "An owner and a client can't reach each other: others wait {worst:?} at most"
    ));
}

async fn client_cut_off(stage: &Arc<Stage>, seed: u64) -> Duration {
    let [manager, owner, apart, fourth, fifth] = begin(stage).await;
    // It has what others will want.
    let shared = stage.run(apart, async |_, member| {
        let client = client(&member).await;
        let file = make(&client, "shared").await?;
        client.write(file, 0, &content(7, BYTES)).await?;
        client.fsync(file, false).await?;
        std::mem::forget(client);
        Ok::<_, model::Error>(file)
    });
    let shared = shared.await.expect("made");
    let mut programs = Vec::new();
    for node in [manager, owner, fourth] {
        programs.push(Program::start(stage, node).await);
    }
    let others = [manager, owner, fourth, fifth];
    let before = runs_of(stage, others).await;
    let run_before = runs_of(stage, [apart]).await[0];

    stage.sleep(Duration::from_millis(seed * 331 % 2_000)).await;
    stage.cut(owner, apart);
    let cut_at = stage.now();
    let wants = stage.start_task(fifth, async move |_, member| {
        let client = client(&member).await;
        client.write(shared, 0, &content(8, BYTES)).await?;
        client.fsync(shared, false).await?;
        client.close().await
    });
    let got = stage.end_of(wants).await;
    got.unwrap_or_else(|error| panic!("seed {seed}: what it had: {error}"));
    let mut longest = stage.now() - cut_at;
    let cause = until_expelled(stage, (apart, manager), cut_at, seed).await;
    assert_eq!(cause, Cause::Apart(number(owner)), "seed {seed}");
    stage.sleep(LATER).await;
    for program in programs {
        let ended = program.end(stage).await;
        longest = longest.max(ended.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
    }
    assert!(longest <= GO_ON_MAX, "seed {seed}: {longest:?}");

    // Its next run waits, and says for whom.
    stage.sleep(LONG).await;
    let waits = stage.run(apart, async |_, member| {
        let unreached = member.unreached().into_iter();
        let nodes: Vec<_> = unreached.map(|(node, _)| node).collect();
        (member.waits_to_join(), nodes)
    });
    assert_eq!(waits.await, (true, vec![number(owner)]), "seed {seed}");
    let cause = cause_of(stage, apart, manager).await;
    assert_eq!(cause, Some(Cause::Apart(number(owner))), "seed {seed}");
    assert_eq!(runs_of(stage, others).await, before, "seed {seed}");

    stage.heal();
    stage.settled().await;
    let back = stage.run(apart, async move |_, member| {
        let client = client(&member).await;
        let file = find(&client, "shared").await?;
        let found = client.read(file, 0, BYTES).await?.concat();
        client.close().await?;
        assert!(!member.waits_to_join() && member.unreached().is_empty());
        Ok::<_, model::Error>((member.run(), found))
    });
    let (run, found) = back.await.expect("it works again");
    assert!(run > run_before, "seed {seed}: the run before was expelled");
    assert!(found == content(8, BYTES), "seed {seed}: it is older");
    longest
}

/// Would be broken if the clients went, one by one, or if their programs were told an error although they reach everybody
/// but the owner.
#[test]
fn an_owner_that_several_clients_cannot_reach_goes_and_all_of_them_go_on() {
    let worst = Mutex::new(Duration::ZERO);
    each_seed(0..by_suite(2, 40), |seed| {
        Stage::play(seed, &FIVE, None, async |stage| {
            let longest = owner_cut_off(&stage, seed).await;
            let mut worst = worst.lock().expect("nobody panicked");
            *worst = longest.max(*worst);
        });
    });
    let worst = worst.into_inner().expect("nobody panicked");
    figure(&format!(
        "Two of four clients can't reach the owner: all of them wait {worst:?} at most"
    ));
}

async fn owner_cut_off(stage: &Arc<Stage>, seed: u64) -> Duration {
    let [manager, owner, third, fourth, fifth] = begin(stage).await;
    let others = [manager, third, fourth, fifth];
    let mut programs = Vec::new();
    for node in others {
        programs.push(Program::start(stage, node).await);
    }
    let before = runs_of(stage, others).await;
    stage.sleep(Duration::from_millis(seed * 331 % 2_000)).await;
    stage.cut(owner, third);
    stage.cut(owner, fourth);
    let cause = until_expelled(stage, (owner, manager), stage.now(), seed).await;
    let Cause::Apart(other) = cause else {
        panic!("seed {seed}: {cause:?}");
    };
    assert!([number(third), number(fourth)].contains(&other));
    stage.sleep(LATER).await;
    let mut longest = Duration::ZERO;
    for program in programs {
        let ended = program.end(stage).await;
        longest = longest.max(ended.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
    }
    stage.sleep(LONG).await;
    assert_eq!(runs_of(stage, others).await, before, "seed {seed}");
    assert!(longest <= GO_ON_MAX, "seed {seed}: {longest:?}");
    stage.heal();
    stage.settled().await;
    longest
}

/// Would be broken if a node that lives and whose connections are refused, which passes for death, cost more than its
/// session: something that was synced, or others' progress.
#[test]
fn a_node_that_lives_and_is_refused_goes_and_costs_others_nothing() {
    each_seed(0..by_suite(2, 20), |seed| {
        Stage::play(seed, &FIVE, None, async move |stage| {
            refused(&stage, seed).await;
        });
    });
}

async fn refused(stage: &Arc<Stage>, seed: u64) {
    let [manager, owner, refused, fourth, fifth] = begin(stage).await;
    // It has what others will want.
    let shared = stage.run(refused, async |_, member| {
        let client = client(&member).await;
        let file = make(&client, "shared").await?;
        client.write(file, 0, &content(7, BYTES)).await?;
        client.fsync(file, false).await?;
        std::mem::forget(client);
        Ok::<_, model::Error>(file)
    });
    let shared = shared.await.expect("made");
    let own = Program::start(stage, refused).await;
    let mut programs = Vec::new();
    for node in [manager, owner, fourth] {
        programs.push(Program::start(stage, node).await);
    }
    let others = [manager, owner, fourth, fifth];
    let before = runs_of(stage, others).await;

    stage.sleep(Duration::from_millis(seed * 331 % 2_000)).await;
    stage.refuse(refused);
    let since = stage.now();
    let cause = until_expelled(stage, (refused, manager), since, seed).await;
    // What the manager hears of it says that it lives: then it goes because others don't reach it.
    let is_right = matches!(cause, Cause::Refused | Cause::Apart(_));
    assert!(is_right, "seed {seed}: {cause:?}");
    let wants = stage.run(fifth, async move |_, member| {
        let client = client(&member).await;
        client.write(shared, 0, &content(8, BYTES)).await?;
        client.fsync(shared, false).await?;
        client.close().await
    });
    let got = wants.await;
    got.unwrap_or_else(|error| panic!("seed {seed}: what it had: {error}"));
    stage.sleep(LATER).await;
    let mut longest = Duration::ZERO;
    for program in programs {
        let ended = program.end(stage).await;
        longest = longest.max(ended.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
    }
    assert!(longest <= GO_ON_MAX, "seed {seed}: {longest:?}");
    assert_eq!(runs_of(stage, others).await, before, "seed {seed}");

    // It works again as soon as it is reached, and what its programs had synced is there.
    stage.heal();
    stage.settled().await;
    let synced = own.seen.synced.load(Ordering::Relaxed);
    let back = stage.run(refused, async move |_, member| {
        let client = client(&member).await;
        let file = find(&client, "shared").await?;
        let shared = client.read(file, 0, BYTES).await?.concat();
        let file = find(&client, &format!("own{refused}")).await?;
        let own = client.read(file, 0, synced * BYTES).await?.concat();
        client.close().await?;
        Ok::<_, model::Error>((shared, own))
    });
    let (shared, own) = back.await.expect("it works again");
    assert!(shared == content(8, BYTES), "seed {seed}: it is older");
    assert_eq!(own.len(), synced * BYTES, "seed {seed}");
    for (block, bytes) in own.chunks(BYTES).enumerate() {
        let is_there = *bytes == content(block as u64, BYTES)[..];
        assert!(is_there, "seed {seed}: block {block} of {synced} is lost");
    }
}

/// Would be broken if a node before which a filter of packets stands took those for dead that it can't call: it would have the
/// place of a manager that all others hear, and expel it.
#[test]
fn a_node_that_all_others_refuse_goes_and_takes_nobodys_place() {
    each_seed(0..by_suite(2, 20), |seed| {
        Stage::play(seed, &FIVE, None, async move |stage| {
            let [manager, owner, refused, fourth, fifth] = begin(&stage).await;
            let others = [manager, owner, fourth, fifth];
            let mut programs = Vec::new();
            for node in [manager, owner, fourth] {
                programs.push(Program::start(&stage, node).await);
            }
            let before = runs_of(&stage, others).await;
            stage.sleep(Duration::from_millis(seed * 331 % 2_000)).await;
            let since = stage.now();
            for other in others {
                stage.refuse_from(refused, other);
            }
            let cause = until_expelled(&stage, (refused, manager), since, seed).await;
            assert_eq!(cause, Cause::Silent, "seed {seed}");
            stage.sleep(LONG).await;
            for program in programs {
                let ended = program.end(&stage).await;
                let longest = ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert!(longest <= GO_ON_MAX, "seed {seed}: {longest:?}");
            }
            assert_eq!(runs_of(&stage, others).await, before, "seed {seed}");
            assert_eq!(stage.manager(), Some(manager), "seed {seed}");
            stage.heal();
            stage.settled().await;
        });
    });
}

/// Would be broken if the next run of a node that no other node hears had the manager's place before members: they would wait for
/// another manager once more.
#[test]
fn a_node_that_reaches_nobody_is_not_the_next_manager() {
    each_seed(0..by_suite(6, 30), |seed| {
        Stage::play(seed, &FIVE, None, async move |stage| {
            let [manager, owner, alone, fourth, fifth] = begin(&stage).await;
            for other in [manager, owner, fourth, fifth] {
                stage.cut(alone, other);
            }
            let cause = until_expelled(&stage, (alone, manager), stage.now(), seed).await;
            assert_eq!(cause, Cause::Silent, "seed {seed}");
            // Its next run is there.
            let late = Duration::from_millis(seed * 331 % 2_000);
            stage.sleep(LATER + late).await;
            stage.isolate(manager);
            let since = stage.now();
            let next = loop {
                match stage.manager() {
                    Some(next) if next != manager => break next,
                    _ => stage.sleep(Duration::from_millis(10)).await,
                }
                assert!(stage.now() - since < GO_ON_MAX, "seed {seed}: nobody");
            };
            assert_ne!(next, alone, "seed {seed}");
            stage.heal();
            stage.settled().await;
        });
    });
}

/// Would be broken if a manager before which a filter of packets stands expelled all whose connections broke and are refused.
#[test]
fn a_manager_that_all_others_refuse_goes_and_expels_nobody() {
    manager_goes(|stage, manager, others| {
        for other in others {
            stage.refuse_from(manager, other);
        }
    });
}

/// Would be broken if refused connections proved the death of a manager that has connections with others.
#[test]
fn a_manager_that_refuses_all_others_goes_and_is_not_taken_for_dead() {
    manager_goes(|stage, manager, _| stage.refuse(manager));
}

/// The manager's connections to the others are refused, or theirs to it.
fn manager_goes(refuse: fn(&Stage, usize, [usize; 4])) {
    each_seed(0..by_suite(2, 20), |seed| {
        Stage::play(seed, &FIVE, None, async move |stage| {
            let [manager, owner, third, fourth, fifth] = begin(&stage).await;
            let others = [owner, third, fourth, fifth];
            let program = Program::start(&stage, third).await;
            let before = runs_of(&stage, others).await;
            stage.sleep(Duration::from_millis(seed * 331 % 2_000)).await;
            let since = stage.now();
            refuse(&stage, manager, others);
            let nodes = (manager, owner);
            let cause = until_expelled_within(PART_MAX, &stage, nodes, since, seed).await;
            assert_ne!(cause, Cause::Refused, "seed {seed}");
            stage.sleep(LATER).await;
            let ended = program.end(&stage).await;
            ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(runs_of(&stage, others).await, before, "seed {seed}");
            stage.heal();
            stage.settled().await;
        });
    });
}

/// Would be broken if a node that is expelled, and hears neither of coordination nor of the manager, took itself for held up
/// although it reaches nodes that know: its programs would wait without end.
#[test]
fn an_expelled_node_without_a_way_to_coordination_and_the_manager_is_told_by_others() {
    told_by_others(|stage, [manager, _, apart, ..]| stage.cut(manager, apart));
}

/// Would be broken if that needed the manager that the node knows, which is dead: it believes another one only for a while.
#[test]
fn an_expelled_node_without_a_way_to_coordination_is_told_by_others_whoever_is_the_manager() {
    told_by_others(|stage, [manager, ..]| stage.kill(manager));
}

/// A node doesn't reach coordination, nor the manager.
fn told_by_others(strike: fn(&Stage, [usize; 5])) {
    each_seed(0..by_suite(1, 20), |seed| {
        Stage::play(seed, &FIVE, None, async move |stage| {
            let nodes = begin(&stage).await;
            let [manager, owner, apart, ..] = nodes;
            let before = runs_of(&stage, [apart]).await[0];
            stage.sleep(Duration::from_millis(seed * 331 % 2_000)).await;
            stage.cut_off_coordination(apart);
            strike(&stage, nodes);
            let since = stage.now();
            until_expelled_within(PART_MAX, &stage, (apart, owner), since, seed).await;
            let expelled = stage.now();
            while stage.is_up(apart) {
                let time = stage.now() - expelled;
                assert!(time < GO_ON_MAX, "seed {seed}: it isn't told");
                stage.sleep(Duration::from_millis(100)).await;
            }
            // Its next run can't begin before coordination is reached.
            stage.sleep(LATER).await;
            assert!(!stage.is_up(apart), "seed {seed}");
            stage.heal();
            if !stage.is_up(manager) {
                stage.start(manager).await;
            }
            stage.settled().await;
            let after = runs_of(&stage, [apart]).await[0];
            assert!(after > before, "seed {seed}: the run was expelled");
        });
    });
}

/// Would be broken if a node went for a link that is broken for a moment, or each of its ends in turn.
#[test]
fn nobody_goes_for_a_link_that_is_back_within_eight_seconds() {
    each_seed(0..by_suite(1, 20), |seed| {
        Stage::play(seed, &FIVE, None, async move |stage| {
            let all = begin(&stage).await;
            let [_, owner, apart, ..] = all;
            let program = Program::start(&stage, apart).await;
            let before = runs_of(&stage, all).await;
            for _ in 0..4 {
                stage.cut(owner, apart);
                stage.sleep(Duration::from_secs(8)).await;
                stage.heal();
                stage.sleep(Duration::from_secs(6)).await;
            }
            // Whatever becomes of it: it is there so that its node needs the owner.
            let _ = program.end(&stage).await;
            assert_eq!(runs_of(&stage, all).await, before, "seed {seed}");
        });
    });
}
