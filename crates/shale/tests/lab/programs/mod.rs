//! Programs on several nodes of a cluster, on the same files: locks, databases, builds, crowds, a test suite.

mod building;
mod crowding;
mod databases;
pub(super) mod locking;
mod neighbours;
mod ranges;

use super::{actors, fixture::Lab};
use crate::fixture::figure;
use sim::by_suite;
use std::fs;

/// Nodes of the lab.
const NODES: u32 = 4;

/// Size of each NSD. On slow disks a crowd leaves more behind in ten minutes than small NSDs hold: tables that were merged stay for
/// a minute, and merges take minutes.
const NSD_SIZES: (&str, &str) = ("1G", "4G");

/// One lab for all: to bring one up takes longer than most of them.
#[test]
fn programs_on_four_nodes_work_on_the_same_files_as_on_one_machine() {
    let nodes = NODES.to_string();
    let size = by_suite(NSD_SIZES.0, NSD_SIZES.1);
    let arguments = [
        "--nodes",
        &nodes,
        "--scheme",
        "erasure(2+1)",
        "--nsd-size",
        size,
    ];
    let Some(lab) = Lab::with(&arguments) else {
        return;
    };
    locking::counters_come_out_exact(&lab);
    locking::who_would_wait_in_a_circle_is_told(&lab);
    ranges::ranges_are_shared_waited_for_and_split(&lab);
    databases::sqlite_on_two_nodes_at_once_keeps_its_integrity(&lab);
    building::a_clone_is_built_and_changed_on_other_nodes(&lab);
    crowding::nobody_waits_for_long_in_a_crowd(&lab);
    crowding::nobody_waits_for_long_while_all_threads_are_busy(&lab);
    neighbours::pjdfstest_finds_no_fault_beside_a_neighbour(&lab);
    for node in 1..=NODES {
        let log = fs::read_to_string(lab.node(node).join("daemon.log")).unwrap();
        assert!(!log.contains("panicked"), "n{node}: {log}");
    }
}
