//! The nastiest scenarios of the simulation, repeated with real daemons and kernels: `docs/failure-stories.md` says which
//! is which.
//!
//! Each story begins on a lab in which all is well, has a load that knows what was acknowledged on all nodes or programs of its
//! own, and leaves a lab in which all is well. How long others were held up is a figure; what fails is a lost or wrong answer, an
//! error where there must be none, and a hang.

mod answers;
mod apart;
mod directories;
mod drained;
mod expelled;
mod hanging;
mod links;
mod orders;
mod power;
mod seen;
mod takers;
mod unheard;

use super::{
    actors,
    faults::{self, until_well, until_whole},
    fixture::Lab,
    histories,
    load::{self, Load, Pauses},
    programs, quorum, roles,
    worst::Table,
};
use crate::fixture::figure;
use sim::by_suite;
use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Nodes of a lab: three have members of etcd, and one may be lost.
const NODES: u32 = 5;
/// Runs of a story when there is time.
const RUNS: usize = 3;

/// What a story tells.
struct Told {
    /// What others felt.
    pauses: Pauses,
    /// How soon they shall go on, if that is promised.
    aim: Option<Duration>,
    /// What else there is to say.
    more: Option<String>,
}

impl Told {
    fn of(pauses: Pauses) -> Self {
        Self {
            pauses,
            aim: None,
            more: None,
        }
    }

    fn within(self, aim: Duration) -> Self {
        Self {
            aim: Some(aim),
            ..self
        }
    }

    fn with(self, more: String) -> Self {
        Self {
            more: Some(more),
            ..self
        }
    }
}

/// A story: its name for figures, how it is played, and whether `make test` has time for it.
struct Story(&'static str, fn(&Lab) -> Told, When);

/// When a story is played.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// Always; more often when there is time.
    Always,
    /// When there is time.
    Long,
    /// When there is time, and once: the lab isn't as before.
    LongOnce,
}

impl When {
    /// How often it is played.
    fn runs(self) -> usize {
        match self {
            Self::Always => by_suite(1, RUNS),
            Self::Long => by_suite(0, RUNS),
            Self::LongOnce => by_suite(0, 1),
        }
    }
}

/// A name for a directory that no other story has.
fn fresh() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("story{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Plays stories on a lab of their own, one after the other.
#[track_caller]
fn play(stories: &[Story]) {
    let Some(lab) = Lab::up(NODES, "erasure(2+1)") else {
        return;
    };
    until_whole(&lab);
    let mut worst = Table::new([
        "lab: one of the nastiest stories",
        "others' longest operation",
    ]);
    for Story(name, story, when) in stories {
        for run in 1..=when.runs() {
            eprintln!("{name}, run {run}");
            let told = story(&lab);
            eprintln!("{name}, run {run}: {}", told.pauses);
            if let Some(more) = &told.more {
                figure(&format!("lab: {name}: {more}"));
            }
            if told.pauses.longest() > Duration::ZERO {
                worst.note(name, 1, &told.pauses, told.aim);
            }
            until_whole(&lab);
            until_well(&lab);
        }
    }
    all_is_well(&lab);
}

/// Programs work on all nodes, and no daemon has panicked.
#[track_caller]
fn all_is_well(lab: &Lab) {
    let nodes = lab.nodes();
    let mut load = Load::start(lab, &nodes);
    load.end(&nodes);
    load.must_be_seen(lab, &nodes);
    load.remove(lab, nodes[0]);
    for node in nodes {
        let log = fs::read_to_string(lab.node(node).join("daemon.log")).unwrap();
        assert!(!log.contains("panicked"), "n{node}: {log}");
    }
}

#[test]
fn nodes_that_die_together_or_are_cut_off_or_drained_take_nothing_along() {
    play(&[
        Story(
            "all nodes are killed at once, a superblock is torn",
            power::all_nodes_die_at_once_and_what_was_synced_is_there,
            When::Always,
        ),
        Story(
            "a node with unsynced data, a mapping and a lock is expelled",
            expelled::what_an_expelled_node_had_not_synced_comes_over_nothing,
            When::Always,
        ),
        Story(
            "the owner doesn't hear one node for some seconds",
            unheard::a_node_that_the_owner_does_not_hear_loses_its_session_and_no_more,
            When::Long,
        ),
        Story(
            "the owner doesn't reach one node",
            apart::others_go_on_without_a_node_that_the_owner_alone_cannot_reach,
            When::Long,
        ),
        Story(
            "an expelled node reaches one other node",
            apart::an_expelled_node_is_told_by_the_only_one_that_it_reaches,
            When::Long,
        ),
        Story(
            "the owner's disk hangs",
            hanging::all_go_on_around_an_owner_whose_disk_hangs,
            When::Long,
        ),
        Story(
            "manager and owner die during a drain",
            drained::a_drain_ends_though_manager_and_owner_die_and_the_node_may_go,
            When::LongOnce,
        ),
    ]);
}

#[test]
fn owners_that_die_whatever_is_under_way_leave_one_history() {
    play(&[
        Story(
            "answers are lost, then the owner",
            answers::operations_whose_answers_are_lost_are_done_once,
            When::Always,
        ),
        Story(
            "the owner dies in a crowd",
            orders::what_programs_see_has_one_order_though_the_owner_dies,
            When::Always,
        ),
        Story(
            "the owner dies under those who count under locks",
            orders::counters_under_locks_come_out_exact_though_the_owner_dies,
            When::Long,
        ),
        Story(
            "owner and writer die together",
            seen::what_was_seen_stays_though_owner_and_writer_die,
            When::Long,
        ),
        Story(
            "two move directories into each other, the owner dies",
            directories::directories_that_move_into_each_other_make_no_loop_though_the_owner_dies,
            When::Long,
        ),
        Story(
            "the next owner stands still while it takes over",
            takers::a_taker_that_stands_still_and_goes_on_changes_nothing_of_its_successor,
            When::Long,
        ),
    ]);
}
