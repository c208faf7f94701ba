//! A daemon ends, or one of its tasks stands still, just where it has done one step and not the next
//! (`world::Point`): the seed chooses where, and how often others pass there before.

use super::faults::run_of;
use super::machines::Machines;
use crate::action::Draw;
use std::time::Duration;
use world::sim::Judge;
use world::{Interruption, Point};

/// How long somebody may take to come to the point.
const COMES_WITHIN: Duration = Duration::from_secs(3);
/// Longest time for which a task stands still: less than anybody waits for what others have.
const DELAY_MAX: u64 = 3_000;
/// Most passes before it happens.
const PASSES_MAX: u64 = 8;

impl Machines {
    /// Interrupts a daemon at one of these points, ends that, and says where it was. `None` if nobody came there.
    pub(super) async fn interrupt(
        &self,
        judge: &Judge,
        draw: &mut Draw,
        points: &[Point],
    ) -> Option<Point> {
        let point = *draw.one_of(points).expect("there are points");
        let how = match draw.below(2) {
            0 => Interruption::Kill,
            _ => Interruption::Delay(Duration::from_millis(1 + draw.below(DELAY_MAX))),
        };
        self.cluster.interrupt(point, draw.below(PASSES_MAX), how);
        // Many points are those of a take-over.
        if draw.below(2) == 0 {
            let owner = self.owner_or(self.any(draw));
            if let Some(to) = run_of(self.another(draw, owner)) {
                self.assign(judge, to).await;
            }
        }
        let until = judge.now() + COMES_WITHIN;
        while self.cluster.is_armed() && judge.now() < until {
            judge.sleep(Duration::from_millis(1)).await;
        }
        let met = self.cluster.interrupted()?;
        let victim = self.nodes.iter().find(|it| it.node.name() == met.name())?;
        tracing::info!(?point, ?how, node = %victim.id, "interrupted");
        match how {
            Interruption::Delay(time) => judge.sleep(time).await,
            Interruption::Kill => {
                let assigned = self.assigned(judge).await;
                // Otherwise the manager does.
                let is_there = self.nodes.iter().any(|it| run_of(it) == assigned);
                if !is_there && draw.below(2) == 0 {
                    self.move_from(judge, draw, victim).await;
                }
                let pause = Duration::from_millis(draw.below(3_000));
                judge.sleep(pause).await;
                victim.start();
                victim.is_up(judge).await;
            }
        }
        Some(point)
    }
}
