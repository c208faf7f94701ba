//! A running daemon's reports about itself: status, health.

use super::health::{ClusterFacts, Facts, MountFacts, left_apart, left_in};
use super::member::etcd_members::data_directory;
use super::mounts::HOLDS;
use super::serving::Serving;
use crate::admin::{Health, MemoryLine, ShardStatus, Status};
use metanode::Metanode;
use std::sync::Arc;

/// The line for memory that isn't counted elsewhere.
const REST: &str = "everything else, resident";
/// Limit for everything not counted: code, threads with their buffers, indexes of NSDs, data in
/// flight and the allocator's own share.
const REST_BYTES_MAX: u64 = 256 << 20;

impl Serving {
    /// `shale status`.
    pub fn status(&self) -> Status {
        let metanodes = self.running.metanodes();
        let shard = |it: &Arc<Metanode>| {
            let shard = it.shard_status();
            let sessions = it.hosted().sessions().of_clients().count();
            ShardStatus {
                shard: shard.shard.0,
                epoch: shard.epoch.0,
                durable_commit: shard.durable.0,
                sessions: Some(sessions as u64),
            }
        };
        let own = self.config.lock().clone();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            up_seconds: self.running.world().now().since(self.since).as_secs(),
            mount: own.mount.display().to_string(),
            options: own
                .options()
                .map_or(own.options.clone(), |it| it.to_string()),
            mounts: self.mounts.lines(),
            mount_missing: self.own.missing(),
            scheme: self.running.pool().map().scheme().to_string(),
            block_bytes: u64::from(self.running.block_bytes()),
            shards: metanodes.iter().map(shard).collect(),
            memory: self.memory(),
            resident_bytes: world::host::resident_bytes(),
            background: metanodes
                .first()
                .map(|it| it.counters())
                .unwrap_or_default(),
            cluster: self.running.in_cluster().ok().map(|here| here.status()),
        }
    }

    fn memory(&self) -> Vec<MemoryLine> {
        let opened = self.running.file_systems().opened();
        let pools = opened.iter().map(|open| open.client.page_pool_memory());
        let (pages, pages_max) = pools.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let (buffers, buffers_max) = world::recycled_buffer_bytes();
        let mut counted = self.running.memory_uses();
        counted.push(("page pool", Some(pages), pages_max));
        counted.push(("free disk buffers", Some(buffers), buffers_max));
        let sum: u64 = counted.iter().filter_map(|(_, used, _)| *used).sum();
        let rest = world::host::resident_bytes().saturating_sub(sum);
        counted.push((REST, Some(rest), REST_BYTES_MAX));
        let mut lines: Vec<_> = counted
            .into_iter()
            .map(|(what, used, budget)| MemoryLine {
                what: what.into(),
                used,
                budget,
            })
            .collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.budget));
        lines
    }

    /// `shale health`.
    pub fn health(&self) -> Health {
        self.history.judge(&self.facts())
    }

    /// The input of `health`.
    pub(super) fn facts(&self) -> Facts {
        let world = self.running.world();
        let pool = self.running.pool();
        let metanodes = self.running.metanodes();
        let shards: Vec<_> = metanodes.iter().map(|it| it.hosted()).collect();
        Facts {
            nsds: self.running.nsds(),
            tolerance: pool.map().scheme().tolerance(),
            repair: metanodes
                .first()
                .map(|it| it.repair_status())
                .unwrap_or_default(),
            space: pool.usage(),
            unfreed: metanodes.iter().map(|it| it.unfreed()).sum(),
            pieces_mended: pool.repair_progress().mended_pieces,
            metadata: shards.iter().find_map(|it| it.check_alive().err()),
            lost: self.running.file_systems().losses(),
            mounts: self.mount_facts(),
            left_in_directory: left_in(&self.dir),
            left_for_etcd: left_apart(&self.dir, &data_directory(&self.dir)),
            clock_lag: shards
                .iter()
                .map(|it| it.tree().log().clock_lag())
                .max()
                .unwrap_or_default(),
            waiting: self.mounts.waiting(),
            cluster: self.running.in_cluster().ok().map(|here| ClusterFacts {
                stop: self.stop.now(),
                ..here.facts_for_health()
            }),
            now: world.now(),
            wall: world.wall(),
        }
    }

    fn mount_facts(&self) -> MountFacts {
        let own = self.config.lock().mount.clone();
        let missing = self.own.missing();
        let was_ended = self.is_on_demand() || self.stop.now().is_some();
        let is_there = self.mounts.has(&own) || self.mounts.is_dead(&own);
        let is_lost = missing.is_none() && !was_ended && !is_there;
        let own = own.display().to_string();
        MountFacts {
            dir: self.dir.display().to_string(),
            lost: is_lost.then(|| own.clone()),
            missing: missing.map(|why| (own, why)),
            dead: self.mounts.dead(),
            lines: self.mounts.lines(),
            held: self.mounts.held_for().map(|_| HOLDS),
        }
    }
}
