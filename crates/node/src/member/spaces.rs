//! Who of the cluster may write how much to the pool: `manager::space` driven by what happens.
//!
//! *A node* has a purse (`holding`): its clients reserve from it, and all that is put to NSDs from here is said
//! to it. A task states it to the manager every second, and at once when a write lacks room or leaves little. *The
//! manager* has the pool's ledger (`desk`), which answers statements at once, asks NSDs what they have, and tells nodes what
//! they didn't ask for: what they were given after others gave back, and that they shall give back.
//!
//! *A write that lacks room* waits until the purse was told something ([`pool::Taken::Asked`]). *A lost message*
//! is made good by the next statement, or by what the ledger says again. *A new manager's* ledger begins with the
//! members that its membership names; purses claim from it as soon as coordination shows its term.

mod desk;
mod holding;

pub(super) use desk::{Desk, lend};
pub(super) use holding::{Holding, state};

use manager::space::Say;
use model::NodeRun;
use model::member::Term;
use model::space::Told;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the other side's answer is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// What a ledger says, by holder. What it wants measured isn't said to anybody.
fn by_holder(term: Term, said: Vec<Say>) -> BTreeMap<NodeRun, Told> {
    let mut told: BTreeMap<NodeRun, Told> = BTreeMap::new();
    for say in said {
        let (Say::Granted { to, .. } | Say::Recall { to, .. } | Say::Full { to, .. }) = say else {
            continue;
        };
        let told = told.entry(to).or_default();
        told.term = term;
        match say {
            Say::Granted { total, .. } => told.granted = told.granted.max(Some(total)),
            Say::Recall { number, .. } => told.recall = told.recall.max(Some(number)),
            Say::Full { want, .. } => told.full = told.full.max(Some(want)),
            Say::Measure(_) => {}
        }
    }
    told
}

/// The newer of two things that were said to the same holder; all of it is totals and growing numbers.
fn join(before: Told, now: Told) -> Told {
    if before.term != now.term {
        return now;
    }
    Told {
        term: now.term,
        granted: before.granted.max(now.granted),
        recall: before.recall.max(now.recall),
        full: before.full.max(now.full),
    }
}
