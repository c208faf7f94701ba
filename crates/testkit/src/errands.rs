//! Errands of programs for tests.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use world::{World, errand};

/// What comes of a program's request if the program is killed after this time: the request is looked at again then, and its
/// errand is given up until it ends.
pub async fn killed_after<F: Future>(world: &World, time: Duration, request: F) -> F::Output {
    let asking = async {
        let errand = world.errand();
        let mut request = pin!(request);
        let in_time = world.timeout(time, request.as_mut()).await;
        if let Ok(done) = in_time {
            return done;
        }
        let _given_up = world.give_up(errand);
        request.await
    };
    errand::begin(asking).await
}
