//! The admin API's socket: open to the node's user and root only, with limits on connections,
//! request sizes and times.

use crate::admin::Refusal;
use crate::directory::private;
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

/// Requests served at once. A command that runs for long holds one, and now and then a second one
/// to ping the daemon.
const REQUESTS_MAX: usize = 128;
/// Bytes of a request's head, and of its body.
const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// A request must arrive completely within this time.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// A client must have taken its answer within this time.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Pause after a failed accept (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Makes the socket. At no time can other users connect, not even before its mode is set.
///
/// # Errors
/// The system's error.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    // We hold the directory's lock, so a socket found here is a dead daemon's.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The umask keeps other users out until the mode is set.
    private::keep_files_private();
    let listener = net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Serves until `until` completes and the answers in flight are sent.
pub(crate) async fn serve(
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
            tracing::warn!(
                REQUESTS_MAX,
                "too many concurrent requests to the admin API"
            );
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
    // The semaphore is never closed.
    let _ = slots.acquire_many(all).await;
}

/// The socket's mode keeps other users out; this check still does if the mode was changed.
fn is_from_who_may(stream: &UnixStream) -> bool {
    match stream.peer_cred() {
        Ok(peer) if private::may_command(peer.uid()) => true,
        Ok(peer) => {
            tracing::warn!(user = peer.uid(), process = ?peer.pid(), "refused a connection to the admin socket by another user");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "the kernel doesn't name the user at the admin socket");
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
        // A client that went away needs no answer.
        _ = connection => {}
        () = taken => tracing::warn!("a client of the admin API didn't take its answer in time"),
    }
}

/// Reads a whole request, within the limits, before any work is done.
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
        Err(_) => format!(
            "the request didn't arrive within {} s",
            REQUEST_MAX.as_secs()
        ),
    };
    let refusal = Refusal {
        kind: ErrorKind::InvalidArgument.name().into(),
        message: why,
    };
    (StatusCode::BAD_REQUEST, Json(refusal)).into_response()
}
