//! The door of the admin API: a socket that only the node's user and root come through, few at
//! a time, each with one request that comes within a deadline.

use super::Refusal;
use crate::daemon::private;
use axum::{
    Json, Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::StatusCode,
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use model::ErrorKind;
use std::{
    io,
    os::unix::{fs::PermissionsExt, net},
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Notify, Semaphore},
};
use world::World;

/// Requests that are served at once. Commands that work for long hold one each, and look now
/// and then through another one whether the daemon lives.
const REQUESTS_MAX: usize = 128;
/// Bytes of a request, each of its head and its body.
const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// A request is here after so long, whole.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// An answer is taken within this.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// After a refused accept (no descriptors left), before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Makes the socket. Nobody else gets through it, not even before its rights could be set.
///
/// # Errors
/// What the system says.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    // The lock of the directory is ours, so a socket that is here is a dead daemon's.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The process's umask gives others nothing from the first moment on.
    private::keep_files_private();
    let listener = net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Serves until `until` is over and the answers on their way are out.
pub async fn serve(
    world: World,
    listener: UnixListener,
    routes: Router,
    until: impl Future<Output = ()>,
) {
    let routes = routes.layer(from_fn_with_state(world.clone(), whole_request));
    let slots = Arc::new(Semaphore::new(REQUESTS_MAX));
    let mut until = std::pin::pin!(until);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut until => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the admin API can't accept a connection");
                world.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if !is_from_who_may(&stream) {
            continue;
        }
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            tracing::warn!(REQUESTS_MAX, "too many requests of the admin API at once");
            continue;
        };
        let (one, routes) = (world.clone(), routes.clone());
        let serving = async move {
            serve_one(&one, stream, routes).await;
            drop(slot);
        };
        world.spawn("an admin request", serving).detach();
    }
    drop(listener);
    let all = u32::try_from(REQUESTS_MAX).expect("few");
    // It is closed by nobody.
    let _ = slots.acquire_many(all).await;
}

/// The rights of the socket keep others out; this also does where somebody changed them.
fn is_from_who_may(stream: &UnixStream) -> bool {
    match stream.peer_cred() {
        Ok(peer) if private::may_command(peer.uid()) => true,
        Ok(peer) => {
            tracing::warn!(user = peer.uid(), process = ?peer.pid(), "a user who may not was at the admin socket");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "the kernel doesn't say who is at the admin socket");
            false
        }
    }
}

async fn serve_one(world: &World, stream: UnixStream, routes: Router) {
    let answered = Arc::new(Notify::new());
    let told = answered.clone();
    let routes = routes.layer(axum::middleware::map_response(move |response: Response| {
        told.notify_one();
        async move { response }
    }));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_MAX)
        .max_buf_size(REQUEST_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let taken = async {
        answered.notified().await;
        world.sleep(ANSWER_MAX).await;
    };
    tokio::select! {
        // An asker who went away needs no answer.
        _ = connection => {}
        () = taken => tracing::warn!("nobody took an answer of the admin API"),
    }
}

/// Reads a request to its end before anything is done, within the limits.
async fn whole_request(State(world): State<World>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let why = match world
        .timeout(REQUEST_MAX, to_bytes(body, REQUEST_BYTES_MAX))
        .await
    {
        Ok(Ok(bytes)) => {
            let whole = Request::from_parts(head, Body::from(bytes));
            return next.run(whole).await;
        }
        Ok(Err(error)) => {
            format!("reading the request: {error} (at most {REQUEST_BYTES_MAX} bytes)")
        }
        Err(_) => format!("the request didn't come within {} s", REQUEST_MAX.as_secs()),
    };
    let refusal = Refusal {
        kind: ErrorKind::InvalidArgument.name().into(),
        message: why,
    };
    (StatusCode::BAD_REQUEST, Json(refusal)).into_response()
}
