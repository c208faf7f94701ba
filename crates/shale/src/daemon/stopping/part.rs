//! One node's part in a stop of its whole cluster.

use crate::admin::stopping::{AskPart, StepTaken, StopPart, StopStep, TakeStep};
use crate::daemon::mounts::real_path;
use crate::daemon::serving::Serving;
use crate::daemon::stop_mark::run_of;
use fuse::Unmount;
use model::{Error, ErrorKind, NodeRun, Result};

impl Serving {
    /// Takes a step that the run `from` asks for. Each can be taken again. One that is meant for an earlier run of this node
    /// isn't taken: that one took the steps before, and the answer says who this is.
    ///
    /// # Errors
    /// `NotSupported` on a node that is alone. `Busy`: programs use a mount, or another node stops the cluster. `Changed`:
    /// the node has begun no stop, or goes on again. To sync and to close clients: the first thing that couldn't be made
    /// durable. To resume: a mount couldn't be made again yet, or `ShuttingDown`: it is too late.
    pub async fn take_step(&self, asked: TakeStep, from: NodeRun) -> Result<StepTaken> {
        let here = self.running.in_cluster()?;
        let own = here.member().run();
        let mut taken = StepTaken {
            run: own.incarnation,
            has_etcd: here.own_endpoint().is_some(),
            ..StepTaken::default()
        };
        match asked.run {
            Some(meant) if meant != own.incarnation => {
                tracing::info!(step = ?asked.step, meant, "a step of a stop is for an earlier run");
                return Ok(taken);
            }
            None if asked.step != StopStep::Look => {
                let text = "a step of a stop names the run that is to take it";
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            _ => {}
        }
        let was_final = self.stop.is_final();
        // The others once it is their turn.
        if !matches!(asked.step, StopStep::Unmount | StopStep::Resume) {
            self.admit(&asked, from)?;
        }
        match asked.step {
            StopStep::Look if asked.force => {}
            StopStep::Look => taken.busy = self.mounts.uses().await,
            StopStep::Unmount => taken.left = self.unmount_all(&asked, from).await?,
            StopStep::Resume => self.mount_all_again(&asked, from).await?,
            StopStep::Sync => self.sync().await?,
            StopStep::CloseClients => {
                if !was_final {
                    let node = asked.by.0;
                    let told = format!("node {node} stops the whole cluster: the daemon ends");
                    self.events.tell("cluster-stops", "this node", &told);
                }
                here.close_clients().await?;
            }
            StopStep::CloseShards => here.member().close_shards().await,
            StopStep::Retire => here.retire().await,
            StopStep::End => {
                // Whatever it has missed: nobody is there to whom something could be handed over.
                here.retire().await;
                taken.left = self.shutdown_with_cluster().await?;
            }
        }
        Ok(taken)
    }

    /// What part this node has in a stop.
    ///
    /// # Errors
    /// `NotSupported` on a node that is alone.
    pub fn stop_part(&self, asked: AskPart) -> Result<StopPart> {
        let own = self.running.in_cluster()?.member().run();
        Ok(self.stop.part(run_of(asked.by), own))
    }

    /// Whether a step may be taken.
    fn admit(&self, asked: &TakeStep, from: NodeRun) -> Result<()> {
        let here = self.running.in_cluster()?;
        self.stop.admit(asked, from, |run| here.has_ended(run))?;
        let by = run_of(asked.by);
        tracing::info!(step = ?asked.step, %by, %from, "a step of a stop of the whole cluster");
        Ok(())
    }

    /// Ends all mounts, or none.
    async fn unmount_all(&self, asked: &TakeStep, from: NodeRun) -> Result<Vec<String>> {
        // An attempt to make the own mount would be waited for, perhaps as long as it is made again and again.
        self.own.stop();
        let _alone = self.stop.mounting.lock().await;
        let how = match asked.force {
            true => Unmount::Forced,
            false => Unmount::IfIdle,
        };
        let is_first = self.stop.now().is_none();
        // Before: a daemon that ends with its last mount goes on for now. And alone: while the mounts of a stop that was
        // called off are made again, none can begin.
        if let Err(error) = self.admit(asked, from) {
            if self.stop.followed().is_none() {
                self.own.go_on();
            }
            return Err(error);
        }
        // Whoever made mounts again meanwhile has let it go on.
        self.own.stop();
        let mounts = self.mounts.served();
        match self.mounts.end_all(how).await {
            Ok(left) => {
                self.stop.note_unmounted(mounts);
                Ok(left)
            }
            // By force the stop goes on here, too.
            Err(error) if is_first && !asked.force => {
                self.own.go_on();
                self.stop.over();
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the mounts again that were ended, because `from` says that the cluster goes on.
    async fn mount_all_again(&self, asked: &TakeStep, from: NodeRun) -> Result<()> {
        // Whoever asked for the end of the mounts may have waited for it no longer: what has yet to end would stay away.
        let _alone = self.stop.mounting.lock().await;
        self.admit(asked, from)?;
        let followed = self.stop.followed();
        if !self.stop.go_on()? {
            return Ok(());
        }
        self.mounts.reopen();
        self.own.go_on();
        if let Some(by) = followed {
            let told = match by == from {
                true => format!("node {} doesn't stop the cluster after all", by.node),
                false => format!(
                    "node {}, which was stopping the cluster, is gone: node {} has called the stop off",
                    by.node, from.node
                ),
            };
            let told = format!("{told}; the mounts are made again");
            self.events.tell("cluster-goes-on", "this node", &told);
        }
        self.make_unmounted().await
    }

    /// Makes mounts again that were ended for a stop which was called off, and couldn't be made then.
    pub(super) async fn make_what_is_missing(&self) {
        let _alone = self.stop.mounting.lock().await;
        if self.stop.followed().is_none()
            && let Err(error) = self.make_unmounted().await
        {
            tracing::warn!(%error, "not all mounts are there again; it is tried again");
        }
    }

    /// Makes the mounts that were ended. The caller is alone with that. Those that can't be made now are tried again later
    /// (`look_after`).
    async fn make_unmounted(&self) -> Result<()> {
        let own = self.config.lock().mount.clone();
        let own = real_path(&own);
        let (mut result, mut missing) = (Ok(()), Vec::new());
        for (place, options) in self.stop.take_unmounted() {
            // Somebody was faster.
            if self.mounts.has(&place) {
                continue;
            }
            let made = match place == own && !self.is_on_demand() {
                true => self.mount_own().await,
                false => self.mounts.add(&place, &options).await,
            };
            let made = made.map_err(|error| {
                let doing = format!("mounting {} again", place.display());
                error.while_doing(doing)
            });
            if made.is_err() {
                missing.push((place, options));
            }
            result = result.and(made);
        }
        if missing.is_empty() {
            self.stop.over();
        }
        self.stop.note_unmounted(missing);
        result
    }
}
