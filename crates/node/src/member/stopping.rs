//! A stop of the whole cluster, as far as a member has a part in it: nothing is handed over, because all nodes end.
//!
//! All nodes take a step before the next one begins. *Clients* are closed first, by who has opened them: their owners must
//! answer. *Shards* are closed where they are, and stay assigned there ([`Member::close_shards`]): the manager is needed
//! still, for the room that is taken. *The manager* retires, and so does whoever could follow it ([`Member::retire`]): from
//! then on nobody has a lease for long, and nobody is expelled. Then the members are closed ([`Member::close`]), in any
//! order.

use super::Member;
use model::NodeRun;
use std::time::Duration;

/// How long the manager may take to give its place up. Without coordination the place ends by itself.
const RETIRE_MAX: Duration = Duration::from_secs(3);

impl Member {
    /// Closes the shards that are here, with everything durable, and takes over none any more; the pool's jobs end here,
    /// too. The shards stay assigned to this run, and no other node has a reason to take them. Clients should have been
    /// closed before, on all nodes. Takes up to half a minute; a repetition does nothing.
    pub async fn close_shards(&self) {
        let duties = std::mem::take(&mut *self.duties.lock());
        drop(duties);
        self.parts.leave_shards().await;
    }

    /// This run isn't the cluster's manager any more, and never will be. The place is free then, also for the first manager
    /// after a start. When all members have retired, none has a lease after some seconds: shards should have been closed
    /// before, on all nodes. Takes up to three seconds; a repetition does nothing.
    pub async fn retire(&self) {
        self.parts.office.retire();
        let managing = self.managing.lock().take();
        if let Some(managing) = managing {
            let _ = self.parts.world.timeout(RETIRE_MAX, managing).await;
        }
    }

    /// Whether a run of a node has surely ended: nobody listens where it listened, or a newer one does. An attempt that
    /// isn't answered proves nothing. Takes up to a second.
    pub async fn is_over(&self, run: NodeRun) -> bool {
        self.parts.is_refused(run).await
    }
}
