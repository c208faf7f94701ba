//! NSDs that don't serve because their nodes don't: the cause is the node, not the disk.

use super::Facts;
use model::map::NsdState;
use node::NsdView;
use std::time::Duration;

/// The node that has an NSD.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HomeFacts {
    /// Its number.
    pub node: u32,
    /// Its name; `None`: it was removed.
    pub name: Option<String>,
    /// Why it is no member now; `None`: it is one, or begins to be one.
    pub absence: Option<Absence>,
}

/// Why a node is no member of its cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Absence {
    /// It left in good order.
    Left,
    /// It was expelled, for this reason.
    Expelled(String),
    /// Somebody expelled it by hand.
    Barred,
}

/// Whether an NSD is away with its node: that is no member, or says nothing of the NSD.
pub(super) fn is_away(view: &NsdView, facts: &Facts) -> bool {
    let is_silent = view.health.is_none() && view.refused.is_none();
    let home = home_of(view, facts);
    let is_gone = home.is_some_and(|home| home.absence.is_some());
    view.state != NsdState::Lost && (is_silent || is_gone)
}

fn home_of<'a>(view: &NsdView, facts: &'a Facts) -> Option<&'a HomeFacts> {
    facts.cluster.as_ref()?.homes.get(&view.nsd)
}

/// What is wrong with such an NSD, which has been away for so long as far as this node has seen, and what to do.
pub(super) fn trouble_of(view: &NsdView, facts: &Facts, since: Duration) -> (String, String) {
    let (nsd, seconds) = (view.nsd, since.as_secs());
    let Some(home) = home_of(view, facts) else {
        let what = format!("away: its node hasn't answered for {seconds} s");
        let remedy = "start that node's daemon (`shale node list`), then the NSD serves by itself";
        return (what, remedy.into());
    };
    let node = match &home.name {
        Some(name) => format!("node {} ({name})", home.node),
        None => format!("node {}", home.node),
    };
    let (why, first) = match &home.absence {
        None => {
            let what = format!("away: {node} is up and hasn't said anything of it for {seconds} s");
            let remedy = format!(
                "`shale health --node {0}` says more if the network reaches that node; otherwise start its daemon again. \
                 The NSD serves again by itself then",
                home.node
            );
            return (what, remedy);
        }
        Some(Absence::Left) => ("it was stopped", "start it (`shale up` there)".to_owned()),
        Some(Absence::Expelled(cause)) => {
            (cause.as_str(), "start it (`shale up` there)".to_owned())
        }
        Some(Absence::Barred) => {
            let first = format!(
                "let it in (`shale node unexpel {}`), and start it (`shale up` there) if its daemon doesn't run",
                home.node
            );
            ("it was expelled by hand", first)
        }
    };
    let what = format!("away: {node} has been away for {seconds} s: {why}");
    let remedy = format!(
        "{first}: the NSD serves again by itself then, and pieces that it missed are repaired. If that node doesn't come \
         back: `shale nsd remove {nsd} --gone`, and add another NSD with `shale nsd add`"
    );
    (what, remedy)
}
