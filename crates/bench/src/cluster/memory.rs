//! Resident memory of idle daemons, by what their nodes do in the cluster, and what one more client takes at its owner.

use super::daemons::{Cluster, Daemon};
use super::processes::resident;
use super::{Clusters, ONE_COPY};
use crate::measure::{Goal, Line, Unit, note, print};
use model::Result;
use serde_json::Value;
use std::time::Duration;

/// Quorum nodes, of which only the first has an NSD; a node that only serves an NSD, and one that only mounts.
const NSDS: [u32; 5] = [1, 0, 0, 1, 0];
const FOUNDER: usize = 0;
const SERVER: usize = 3;
const CLIENT: usize = 4;
const NSD: &str = "1G";
/// Clients that join in the end.
const MORE: usize = 8;
/// How long nobody does anything before memory is looked at: what was needed to start, to join or to take over has been
/// given back to the kernel. A daemon keeps what was needed since it last did that for one time more, and may look late.
const IDLE: Duration = world::GIVE_BACK_EVERY
    .saturating_mul(2)
    .saturating_add(Duration::from_secs(10));
/// Attempts to have the owner and the manager on two nodes.
const APART_MAX: usize = 4;

/// Lines of the budget in `shale status` that an idle daemon may need: what isn't counted elsewhere, and of an owner also the
/// blocks of tables and the rows that aren't in tables yet. The others (files' pages, records, buffers of disks) fill with
/// work.
const OF_ALL: &str = "everything else, resident";
const OF_OWNERS: [&str; 2] = ["table blocks", "rows not in tables"];
/// A member of etcd: 36 MiB when it is new; its database, whose history is bounded, is mapped into its memory.
const ETCD_MAX: f64 = 128.0 * MIB;
/// A watchdog: all of its memory is locked.
const WATCHDOG_MAX: f64 = 32.0 * MIB;
/// A client's session at an owner: 240 slots with a reply each, the tokens of its root directory, and some connections with
/// an inbox of 16 KiB (64 KiB soon after much has come) and what TLS takes.
const SESSION_MAX: f64 = MIB;
const MIB: f64 = 1_048_576.0;

const CLIENT_ONLY: &str = "memory: idle daemon of a client";
const NSD_SERVER: &str = "memory: idle daemon of an NSD server";
const QUORUM: &str = "memory: idle daemon of a quorum node";
const ETCD: &str = "memory: idle etcd of a quorum node";
const WATCHDOG: &str = "memory: idle watchdog of a node";
const OWNER: &str = "memory: idle daemon of the owner";
const MANAGER: &str = "memory: idle daemon of the manager";
const FIRST_CLIENT: &str = "memory: at the owner, of one more client";
const EACH_CLIENT: &str = "memory: at the owner, of each of eight more clients";

impl Clusters {
    /// Memory of each role, and of a mounted client.
    pub(super) fn memory(&self) -> Result<()> {
        let names = [
            CLIENT_ONLY,
            NSD_SERVER,
            QUORUM,
            ETCD,
            WATCHDOG,
            OWNER,
            MANAGER,
            FIRST_CLIENT,
            EACH_CLIENT,
        ];
        if !self.wanted(&names) {
            return Ok(());
        }
        let dir = self.folder("roles")?;
        let mut cluster = Cluster::with(&dir, &NSDS, ONE_COPY, NSD)?;
        idle();
        let nodes = cluster.nodes();
        self.of_daemons(CLIENT_ONLY, &[&nodes[CLIENT]])?;
        self.of_daemons(NSD_SERVER, &[&nodes[SERVER]])?;
        self.of_daemons(QUORUM, &[&nodes[FOUNDER + 1], &nodes[FOUNDER + 2]])?;
        self.of_children(ETCD, "etcd", nodes, ETCD_MAX)?;
        self.of_children(WATCHDOG, "shale-watchdog", nodes, WATCHDOG_MAX)?;

        let (owner, manager) = apart(&cluster)?;
        idle();
        self.of_daemons(OWNER, &[&cluster.nodes()[owner]])?;
        self.of_daemons(MANAGER, &[&cluster.nodes()[manager]])?;
        if owner == manager {
            note("the manager was on the owner's node");
        }
        if self.wanted(&[FIRST_CLIENT, EACH_CLIENT]) {
            self.of_clients(&mut cluster, owner)?;
        }
        Ok(())
    }

    /// What the owner takes more for each client that joins and mounts.
    fn of_clients(&self, cluster: &mut Cluster, owner: usize) -> Result<()> {
        let before = cluster.nodes()[owner].resident()?;
        for (name, all, goal) in [
            // So little is less than what an allocator takes and gives back.
            (FIRST_CLIENT, 1, Goal::None),
            (EACH_CLIENT, MORE, Goal::AtMost(SESSION_MAX)),
        ] {
            let there = cluster.nodes().len() - NSDS.len();
            for _ in there..all {
                cluster.join(0)?;
            }
            idle();
            let grown = cluster.nodes()[owner].resident()? - before;
            self.of_memory(name, vec![grown / all as f64], SESSION_MAX, goal);
        }
        Ok(())
    }

    /// Daemons of nodes that do the same, beside all that they may take when they work.
    fn of_daemons(&self, name: &'static str, nodes: &[&Daemon]) -> Result<()> {
        let (mut measured, mut whole, mut idle) = (Vec::new(), 0.0, 0.0);
        for node in nodes {
            measured.push(node.resident()?);
            (idle, whole) = budgets(&node.ask(&["status"])?);
        }
        self.of_memory(name, measured, whole, Goal::AtMost(idle));
        Ok(())
    }

    /// Processes that daemons have started.
    fn of_children(
        &self,
        name: &'static str,
        program: &str,
        nodes: &[Daemon],
        most: f64,
    ) -> Result<()> {
        let mut measured = Vec::new();
        for node in nodes {
            for process in node.children(program)? {
                measured.push(resident(process)?);
            }
        }
        self.of_memory(name, measured, most, Goal::AtMost(most));
        Ok(())
    }

    fn of_memory(&self, name: &'static str, measured: Vec<f64>, budget: f64, goal: Goal) {
        if self.wanted(&[name]) {
            print(&Line {
                name: name.into(),
                floor_name: "its whole budget",
                unit: Unit::Bytes,
                floor: vec![budget; measured.len()],
                measured,
                goal,
            });
        }
    }
}

/// What a daemon may take while it is idle, and when it works, by its own account.
fn budgets(status: &Value) -> (f64, f64) {
    let owns = status["shards"]
        .as_array()
        .is_some_and(|all| !all.is_empty());
    let is_of_idle = |what: &str| what == OF_ALL || owns && OF_OWNERS.contains(&what);
    let lines = status["memory"].as_array().into_iter().flatten();
    lines.fold((0.0, 0.0), |(idle, whole), line| {
        let budget = line["budget"].as_f64().unwrap_or_default();
        let of_idle = match is_of_idle(line["what"].as_str().unwrap_or_default()) {
            true => budget,
            false => 0.0,
        };
        (idle + of_idle, whole + budget)
    })
}

/// Where the owner and the manager are, on two nodes if that comes about: the one that is both ends for a moment, so that
/// others take over both.
fn apart(cluster: &Cluster) -> Result<(usize, usize)> {
    for _ in 0..APART_MAX {
        let (owner, manager) = cluster.until_owner_and_manager()?;
        if owner != manager {
            break;
        }
        let both = &cluster.nodes()[owner];
        both.run(&["down"])?;
        both.run(&["up"])?;
    }
    cluster.until_owner_and_manager()
}

fn idle() {
    std::thread::sleep(IDLE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_idle_owner_may_take_more_than_others() {
        let line =
            |what: &str, budget: u64| json!({ "what": what, "used": null, "budget": budget });
        let memory = [
            line("hot records", 384),
            line(OF_ALL, 256),
            line("page pool", 128),
            line(OF_OWNERS[0], 64),
            line(OF_OWNERS[1], 96),
        ];
        let of = |shards: Value| budgets(&json!({ "memory": memory, "shards": shards }));
        assert_eq!(of(json!([])), (256.0, 928.0));
        assert_eq!(of(json!([{ "shard": 0 }])), (416.0, 928.0));
    }
}
