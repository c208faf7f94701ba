//! SIGTERM and SIGINT, which tell the daemon to end.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use world::{Task, World};

/// They are caught as long as this process lives; one that came is remembered.
pub struct Signals {
    came: watch::Receiver<bool>,
    _watch: Option<Task<()>>,
}

impl Signals {
    /// Catches them from now on.
    pub fn catch(world: &World) -> Self {
        let (tell, came) = watch::channel(false);
        let (terminate, interrupt) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        );
        let watch = match (terminate, interrupt) {
            (Ok(mut terminate), Ok(mut interrupt)) => Some(world.spawn("signals", async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                tell.send_replace(true);
            })),
            _ => {
                tracing::warn!(
                    "signals can't be caught: only `shale down` ends this daemon in good order"
                );
                None
            }
        };
        Self {
            came,
            _watch: watch,
        }
    }

    /// Returns when one came; never, if they can't be caught.
    pub async fn told(&self) {
        if self.came.clone().wait_for(|came| *came).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
