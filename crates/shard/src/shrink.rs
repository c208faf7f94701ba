//! Gives up hot records when the shards of the process use too much memory together.

use crate::state::Shard;
use std::sync::Weak;

/// Waits for pressure, for as long as the shard exists. A busy shard makes room with its operations;
/// this is for those that are idle.
pub(crate) async fn shrink_when_pressed(shard: Weak<Shard>) {
    loop {
        let pressed = shard.upgrade().map(|it| it.state.lock().records.pressed());
        let Some(pressed) = pressed else { return };
        pressed.await;
        let Some(shard) = shard.upgrade() else { return };
        shard.shrink().await;
    }
}

impl Shard {
    /// Forgets records until what is left is within the shard's limit, or can't be forgotten. Operations
    /// come in between.
    async fn shrink(&self) {
        let calls = self.state.lock().records.shrinking_calls();
        for _ in 0..calls {
            if !self.state.lock().records.shrink() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}
