//! One node's part in a stop of its whole cluster.

use crate::admin::stopping::{StepTaken, StopStep, TakeStep};
use crate::daemon::mounts::real_path;
use crate::daemon::serving::Serving;
use fuse::Unmount;
use model::{NodeId, NodeRun, Result};

impl Serving {
    /// Takes a step. Each can be taken again.
    ///
    /// # Errors
    /// `NotSupported` on a node that is alone. `Busy`: programs use a mount, or another node stops the cluster. To sync and
    /// to close clients: the first thing that couldn't be made durable. To resume: a mount couldn't be made again, or
    /// `ShuttingDown`: it is too late.
    pub async fn take_step(&self, asked: TakeStep) -> Result<StepTaken> {
        let here = self.running.in_cluster()?;
        let (node, incarnation) = asked.by;
        let by = NodeRun {
            node: NodeId(node),
            incarnation,
        };
        let roster = here.member().roster();
        let is_member = |run| {
            let members = roster.membership.as_ref();
            members.is_some_and(|it| it.value.is_member(run))
        };
        self.stop.check(by, is_member)?;
        tracing::info!(step = ?asked.step, %by, "a step of a stop of the whole cluster");
        let mut taken = StepTaken {
            has_etcd: here.own_endpoint().is_some(),
            ..StepTaken::default()
        };
        match asked.step {
            StopStep::Look if asked.force => {}
            StopStep::Look => taken.busy = self.mounts.uses().await,
            StopStep::Unmount => taken.left = self.unmount_all(by, asked.force).await?,
            StopStep::Resume => self.mount_all_again().await?,
            StopStep::Sync => self.sync().await?,
            StopStep::CloseClients => {
                let told = format!("node {node} stops the whole cluster: the daemon ends");
                self.events.tell("cluster-stops", "this node", &told);
                self.stop.finish(by);
                here.close_clients().await?;
            }
            StopStep::CloseShards => here.member().close_shards().await,
            StopStep::Retire => here.retire().await,
            StopStep::End => {
                self.stop.finish(by);
                // Whatever it has missed: nobody is there to whom something could be handed over.
                here.retire().await;
                taken.left = self.shutdown(true).await?;
            }
        }
        Ok(taken)
    }

    /// Ends all mounts, or none.
    async fn unmount_all(&self, by: NodeRun, force: bool) -> Result<Vec<String>> {
        let _alone = self.stop.mounting.lock().await;
        let how = match force {
            true => Unmount::Forced,
            false => Unmount::IfIdle,
        };
        let is_first = self.stop.now().is_none();
        // Before: a daemon that ends with its last mount goes on for now.
        self.stop.begin(by);
        // An attempt to make the own mount would be waited for, perhaps as long as it is made again and again.
        self.own.stop();
        let mounts = self.mounts.served();
        match self.mounts.end_all(how).await {
            Ok(left) => {
                self.stop.note_unmounted(mounts);
                Ok(left)
            }
            Err(error) => {
                if is_first {
                    self.own.go_on();
                    self.stop.over();
                }
                Err(error)
            }
        }
    }

    /// Makes the mounts again that were ended.
    async fn mount_all_again(&self) -> Result<()> {
        // Whoever asked for the end of the mounts may have waited for it no longer: what has yet to end would stay away.
        let _alone = self.stop.mounting.lock().await;
        if self.stop.now().is_none() {
            return Ok(());
        }
        let mounts = self.stop.take_unmounted()?;
        let own = self.config.lock().mount.clone();
        let own = real_path(&own);
        self.mounts.reopen();
        self.own.go_on();
        let mut result = Ok(());
        for (place, options) in mounts {
            let made = match place == own && !self.is_on_demand() {
                true => self.mount_own().await,
                false => self.mounts.add(&place, &options).await,
            };
            let made = made.map_err(|error| {
                let doing = format!("mounting {} again", place.display());
                error.while_doing(doing)
            });
            result = result.and(made);
        }
        self.stop.over();
        result
    }
}
