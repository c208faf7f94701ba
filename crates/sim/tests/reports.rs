//! What the manager tells, on every node, of a pool that changes.

use crate::growing::{change_scheme, ms, write_all};
use model::jobs::RepairReport;
use model::{NodeId, Scheme};
use sim::cluster::{ClusterScenario, Stage};
use sim::{by_suite, each_seed};
use std::sync::Arc;

/// The node that changes the pool.
const CHANGES: usize = 2;
/// How long a change may take, in steps of a tenth of a second.
const STEPS_MAX: usize = 3_000;

/// What a node is told, if the manager knows the pool as it is.
async fn told(stage: &Arc<Stage>, node: usize) -> Option<RepairReport> {
    let asked = stage.run(node, async |_, member| member.repair_report().await.ok());
    asked.await.filter(|report| report.progress.is_known)
}

/// Would be broken if nobody knew how much of a change of the scheme is left, if it was taken for done before the manager
/// heard of it, or if a node's part was forgotten.
#[test]
fn every_node_tells_how_far_a_change_of_the_scheme_is() {
    each_seed(0..by_suite(1, 20), |seed| {
        Stage::play(seed, &ClusterScenario::USUAL, None, async |stage| {
            write_all(&stage).await;
            stage.settled().await;
            change_scheme(&stage, CHANGES, Scheme::Replicate(1)).await;
            let mut left = Vec::new();
            let mut was_closed = false;
            for step in 0.. {
                assert!(step < STEPS_MAX, "never done: {left:?}");
                // Whoever changes the pool knows of that first.
                let node = (CHANGES + step) % 3;
                let Some(report) = told(&stage, node).await else {
                    stage.sleep(ms(100)).await;
                    continue;
                };
                let progress = report.progress;
                let pieces = report.nodes.iter().map(|it| it.rebuilt.pieces);
                assert_eq!(pieces.sum::<u64>(), progress.rebuilt.pieces);
                let nodes: Vec<_> = report.nodes.iter().map(|it| it.node).collect();
                assert_eq!(nodes, [1, 2, 3].map(NodeId), "{report:?}");
                assert!(progress.limit > 0);
                if progress.closed > 0 {
                    was_closed = true;
                    left.extend(progress.to_rewrite);
                } else if node == CHANGES {
                    assert_eq!(progress.to_rewrite, Some(0));
                    break;
                }
                stage.sleep(ms(100)).await;
            }
            assert!(was_closed, "it was done before anybody told of it");
            assert!(left.is_sorted_by(|a, b| a >= b), "{left:?}");
        });
    });
}
