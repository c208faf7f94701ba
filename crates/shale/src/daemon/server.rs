//! Routes of the admin API: decodes requests, calls the node, encodes answers and refusals.

use super::{config::ClusterConfig, door, relay::pass_on, serving::Serving, stopping};
use crate::admin::{
    AddNsd, ChangeNode, ChangeNsds, ChangePool, ChangeSetting, CreateFileSystem, Drained,
    MakeJoinToken, MountRequest, Refusal, RotateKeys, Shutdown, Stopping, UnmountRequest,
    Unmounted,
    client::SOCKET,
    stopping::{AskPart, StopCluster, TakeStep},
};
use axum::{
    Extension, Json, Router,
    body::to_bytes,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{any, delete, get, patch, post},
};
use model::{Error, ErrorKind, NodeRun, NsdId, Result};
use node::Removal;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Serves until the node is told to end and the answers in flight are sent.
///
/// # Errors
/// `Unavailable` if the socket can't be made.
pub fn listen(serving: &Arc<Serving>) -> Result<impl Future<Output = ()> + use<>> {
    let path = serving.dir().join(SOCKET);
    let listener = door::bind(&path).map_err(|e| {
        Error::new(ErrorKind::Unavailable, e.to_string())
            .while_doing(format!("listening on {}", path.display()))
    })?;
    let ending = serving.clone();
    let until = async move {
        let _force = ending.wait_for_shutdown().await;
    };
    let world = serving.world().clone();
    Ok(door::serve(world, listener, routes(serving.clone()), until))
}

/// What the daemon answers to other nodes: how it is, NSDs that are added in its own directory, and the steps with which
/// all nodes end.
pub fn routes_for_others(serving: Arc<Serving>) -> Router {
    Router::new()
        .route(
            "/v1/status",
            get(async |State(s): State<Arc<Serving>>| answer(Ok(s.status()))),
        )
        .route(
            "/v1/health",
            get(async |State(s): State<Arc<Serving>>| answer(Ok(s.health()))),
        )
        .route(
            "/v1/waiters",
            get(async |State(s): State<Arc<Serving>>| answer(Ok(s.waits()))),
        )
        .route("/v1/events", get(events))
        .route("/v1/nsds", post(add_for_another))
        .route(stopping::PATH, post(take_step))
        .route(stopping::PART_PATH, post(stop_part))
        .with_state(serving)
}

/// What the daemon answers to its own people.
pub fn routes(serving: Arc<Serving>) -> Router {
    Router::new()
        .route(
            "/v1/status",
            get(async |State(s): State<Arc<Serving>>| answer(Ok(s.status()))),
        )
        .route(
            "/v1/health",
            get(async |State(s): State<Arc<Serving>>| answer(Ok(s.health()))),
        )
        .route(
            "/v1/waiters",
            get(async |State(s): State<Arc<Serving>>| answer(Ok(s.waits()))),
        )
        .route(
            "/v1/fs/df",
            get(async |State(s): State<Arc<Serving>>| answer(s.df().await)),
        )
        .route("/v1/fs/check", post(check))
        .route("/v1/fs/sync", post(sync))
        .route(
            "/v1/nsds",
            get(async |State(s): State<Arc<Serving>>| answer(Ok(s.nsds())))
                .post(add)
                .patch(change_nsds),
        )
        .route(
            "/v1/pool",
            get(async |State(s): State<Arc<Serving>>| answer(Ok(s.pool().await))).post(change_pool),
        )
        .route("/v1/nsds/scrub", post(scrub))
        .route("/v1/nsds/{nsd}", delete(remove))
        .route("/v1/nsds/{nsd}/open", post(open))
        .route("/v1/nsds/{nsd}/drain", delete(cancel_drain))
        .route(
            "/v1/repair",
            get(async |State(s): State<Arc<Serving>>| answer_or_later(s.repair_status().await)),
        )
        .route("/v1/cluster", get(cluster).post(create_cluster))
        .route("/v1/members", get(members))
        .route("/v1/cluster/join-token", post(join_token))
        .route("/v1/cluster/keys", get(rotation).post(rotate_keys))
        .route("/v1/cluster/stop", post(stop_cluster))
        .route("/v1/nodes/{node}", patch(change_node).delete(remove_node))
        .route(
            "/v1/nodes/{node}/drain",
            post(drain_node).delete(cancel_drain_of_node),
        )
        .route("/v1/fs", post(create_file_system))
        .route("/v1/settings", get(settings).patch(change_setting))
        .route("/v1/events", get(events))
        .route("/v1/on/{node}/{*path}", any(on_another))
        .route("/v1/work/{number}", get(progress))
        .route("/v1/ping", get(async || Json(serde_json::json!({}))))
        .route("/v1/mount", post(mount))
        .route("/v1/umount", post(umount))
        .route("/v1/settle", post(settle))
        .route("/v1/shutdown", post(shutdown))
        .with_state(serving)
}

/// Query of `fs check`.
#[derive(Deserialize)]
struct CheckQuery {
    #[serde(default)]
    deep: bool,
    /// The number under which the client asks for progress.
    work: Option<u64>,
}

/// Query of `nsd scrub`.
#[derive(Deserialize)]
struct ScrubQuery {
    nsd: Option<u32>,
    /// The number under which the client asks for progress.
    work: Option<u64>,
}

/// How `nsd remove` takes one out of use.
#[derive(Deserialize)]
struct RemoveQuery {
    /// It doesn't come back.
    #[serde(default)]
    gone: bool,
}

/// Whose settings `config list` shows; this node's if nobody's are named.
#[derive(Deserialize)]
struct SettingsQuery {
    node: Option<u32>,
    class: Option<String>,
}

async fn check(State(serving): State<Arc<Serving>>, Query(query): Query<CheckQuery>) -> Response {
    // It changes nothing, so it ends when its client goes away (Ctrl-C).
    answer(serving.check(query.deep, query.work).await)
}

async fn progress(State(serving): State<Arc<Serving>>, Path(number): Path<u64>) -> Response {
    answer(Ok(serving.works.progress(number)))
}

async fn sync(State(serving): State<Arc<Serving>>) -> Response {
    answer(
        serving
            .sync()
            .await
            .map(|()| serde_json::json!({ "synced": true })),
    )
}

async fn add(State(serving): State<Arc<Serving>>, Json(body): Json<AddNsd>) -> Response {
    let add = move |serving: Arc<Serving>| async move { serving.add_nsd(&body).await };
    answer(to_its_end(serving, "nsd add", add).await)
}

/// Adds an NSD for another node's people: never at a path of their choice, which this daemon's user may write to and they
/// may not.
async fn add_for_another(
    State(serving): State<Arc<Serving>>,
    Json(body): Json<AddNsd>,
) -> Response {
    if body.path.is_some() {
        let text = "an NSD with a path of its own, or on a device, is added on its node itself: run `shale nsd add --path` \
                    there, without --node";
        return answer::<()>(Err(Error::new(ErrorKind::NotPermitted, text)));
    }
    add(State(serving), Json(body)).await
}

async fn change_nsds(
    State(serving): State<Arc<Serving>>,
    Json(body): Json<ChangeNsds>,
) -> Response {
    let change =
        move |serving: Arc<Serving>| async move { serving.change_failure_groups(&body).await };
    answer(to_its_end(serving, "nsd change", change).await)
}

async fn change_pool(
    State(serving): State<Arc<Serving>>,
    Json(body): Json<ChangePool>,
) -> Response {
    let change = move |serving: Arc<Serving>| async move { serving.change_pool(&body).await };
    answer(to_its_end(serving, "pool change", change).await)
}

async fn remove(
    State(serving): State<Arc<Serving>>,
    Path(nsd): Path<u32>,
    Query(query): Query<RemoveQuery>,
) -> Response {
    let removal = match query.gone {
        true => Removal::Gone,
        false => Removal::Drain,
    };
    let nsd = NsdId(nsd);
    let remove = move |serving: Arc<Serving>| async move { serving.remove_nsd(nsd, removal).await };
    answer(to_its_end(serving, "nsd remove", remove).await)
}

async fn cancel_drain(State(serving): State<Arc<Serving>>, Path(nsd): Path<u32>) -> Response {
    let nsd = NsdId(nsd);
    let cancel = move |serving: Arc<Serving>| async move { serving.cancel_drain(nsd).await };
    answer(to_its_end(serving, "nsd drain", cancel).await)
}

async fn open(State(serving): State<Arc<Serving>>, Path(nsd): Path<u32>) -> Response {
    let open = move |serving: Arc<Serving>| async move { serving.open_nsd(NsdId(nsd)).await };
    answer(to_its_end(serving, "nsd open", open).await)
}

async fn scrub(State(serving): State<Arc<Serving>>, Query(query): Query<ScrubQuery>) -> Response {
    let scrub = move |serving: Arc<Serving>| async move {
        serving.scrub(query.nsd.map(NsdId), query.work).await
    };
    answer(to_its_end(serving, "nsd scrub", scrub).await)
}

async fn mount(State(serving): State<Arc<Serving>>, Json(body): Json<MountRequest>) -> Response {
    let mount = move |serving: Arc<Serving>| async move { serving.mount(&body).await };
    let mounted = to_its_end(serving, "mount", mount).await;
    answer(mounted.map(|()| serde_json::json!({ "mounted": true })))
}

async fn umount(State(serving): State<Arc<Serving>>, Json(body): Json<UnmountRequest>) -> Response {
    let unmount = move |serving: Arc<Serving>| async move { serving.unmount(&body).await };
    let ended = to_its_end(serving, "umount", unmount).await;
    answer(ended.map(|daemon_ends| Unmounted { daemon_ends }))
}

async fn settle(State(serving): State<Arc<Serving>>) -> Response {
    let settled = serving.settle().await;
    answer(settled.map(|daemon_ends| Unmounted { daemon_ends }))
}

async fn shutdown(State(serving): State<Arc<Serving>>, Json(body): Json<Shutdown>) -> Response {
    let shutdown = move |serving: Arc<Serving>| async move { serving.shutdown(body.force).await };
    let stopping = to_its_end(serving, "shutdown", shutdown).await;
    answer(stopping.map(|left| Stopping { left }))
}

async fn cluster(State(serving): State<Arc<Serving>>) -> Response {
    let view = async { serving.running.in_cluster()?.view().await };
    answer(view.await)
}

async fn create_cluster(
    State(serving): State<Arc<Serving>>,
    Json(body): Json<ClusterConfig>,
) -> Response {
    let begin = move |serving: Arc<Serving>| async move { serving.become_first(body).await };
    let begun = to_its_end(serving, "cluster create", begin).await;
    answer(begun.map(|()| serde_json::json!({ "begun": true })))
}

async fn members(State(serving): State<Arc<Serving>>) -> Response {
    let here = serving.running.in_cluster();
    answer(here.map(|here| here.member_lines()))
}

async fn join_token(
    State(serving): State<Arc<Serving>>,
    Json(body): Json<MakeJoinToken>,
) -> Response {
    let made = async {
        let here = serving.running.in_cluster()?;
        here.make_join_token(body.quorum).await
    };
    answer(made.await)
}

async fn rotation(State(serving): State<Arc<Serving>>) -> Response {
    let view = async { serving.running.in_cluster()?.rotation().await };
    answer(view.await)
}

async fn rotate_keys(
    State(serving): State<Arc<Serving>>,
    Json(body): Json<RotateKeys>,
) -> Response {
    let rotate = move |serving: Arc<Serving>| async move {
        let here = serving.running.in_cluster()?;
        here.rotate(body.step, body.old.as_deref()).await
    };
    answer(to_its_end(serving, "cluster rotate-keys", rotate).await)
}

async fn stop_cluster(
    State(serving): State<Arc<Serving>>,
    Json(body): Json<StopCluster>,
) -> Response {
    let stop = move |serving: Arc<Serving>| stopping::stop_cluster(serving, body.force);
    answer(to_its_end(serving, "cluster stop", stop).await)
}

async fn take_step(
    State(serving): State<Arc<Serving>>,
    Extension(from): Extension<NodeRun>,
    Json(body): Json<TakeStep>,
) -> Response {
    let take = move |serving: Arc<Serving>| async move { serving.take_step(body, from).await };
    answer(to_its_end(serving, "a step of a stop", take).await)
}

async fn stop_part(State(serving): State<Arc<Serving>>, Json(body): Json<AskPart>) -> Response {
    answer(serving.stop_part(body))
}

async fn change_node(
    State(serving): State<Arc<Serving>>,
    Path(node): Path<u32>,
    Json(body): Json<ChangeNode>,
) -> Response {
    let change = move |serving: Arc<Serving>| async move {
        let here = serving.running.in_cluster()?;
        here.change_node(node, &body).await?;
        here.view().await
    };
    answer(to_its_end(serving, "node change", change).await)
}

async fn remove_node(State(serving): State<Arc<Serving>>, Path(node): Path<u32>) -> Response {
    let remove = move |serving: Arc<Serving>| async move {
        let here = serving.running.in_cluster()?;
        here.remove_node(node).await?;
        here.view().await
    };
    answer(to_its_end(serving, "node remove", remove).await)
}

async fn drain_node(State(serving): State<Arc<Serving>>, Path(node): Path<u32>) -> Response {
    let drain = async {
        let nsds = serving.running.in_cluster()?.drain(node).await?;
        Ok(Drained { nsds })
    };
    answer(drain.await)
}

async fn cancel_drain_of_node(
    State(serving): State<Arc<Serving>>,
    Path(node): Path<u32>,
) -> Response {
    let cancel = async {
        let nsds = serving.running.in_cluster()?.cancel_drain(node).await?;
        Ok(Drained { nsds })
    };
    answer(cancel.await)
}

async fn create_file_system(
    State(serving): State<Arc<Serving>>,
    Json(body): Json<CreateFileSystem>,
) -> Response {
    let make = move |serving: Arc<Serving>| async move {
        let here = serving.running.in_cluster()?;
        here.create_file_system(&body.name).await
    };
    answer(to_its_end(serving, "fs create", make).await)
}

async fn settings(
    State(serving): State<Arc<Serving>>,
    Query(query): Query<SettingsQuery>,
) -> Response {
    let all = async {
        let here = serving.running.in_cluster()?;
        here.settings(query.node, query.class.as_deref()).await
    };
    answer(all.await)
}

async fn change_setting(
    State(serving): State<Arc<Serving>>,
    Json(body): Json<ChangeSetting>,
) -> Response {
    let change = async {
        let here = serving.running.in_cluster()?;
        here.change_setting(&body).await?;
        here.settings(body.node, body.class.as_deref()).await
    };
    answer(change.await)
}

async fn events(State(serving): State<Arc<Serving>>) -> Response {
    answer(Ok(serving.events.lines()))
}

/// Passes a request on to another node of the cluster.
async fn on_another(
    State(serving): State<Arc<Serving>>,
    Path((node, path)): Path<(u32, String)>,
    request: axum::extract::Request,
) -> Response {
    let method = request.method().clone();
    let query = request
        .uri()
        .query()
        .map_or(String::new(), |query| format!("?{query}"));
    let path = format!("/v1/{path}{query}");
    // The door has read it and bounded its size.
    let body = to_bytes(request.into_body(), usize::MAX)
        .await
        .unwrap_or_default();
    match pass_on(&serving, node, &method, path, &body).await {
        Ok(response) => response,
        Err(error) => answer::<()>(Err(error)),
    }
}

/// Runs the work in its own task: if the client goes away (Ctrl-C), nothing is left half done.
async fn to_its_end<T, F>(
    serving: Arc<Serving>,
    name: &'static str,
    work: impl FnOnce(Arc<Serving>) -> F,
) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let (tell, told) = tokio::sync::oneshot::channel();
    let world = serving.world().clone();
    let work = work(serving);
    let working = async move {
        // The client may have gone away.
        let _ = tell.send(work.await);
    };
    world.spawn(name, working).detach();
    told.await
        .unwrap_or_else(|_| Err(ErrorKind::ShuttingDown.into()))
}

/// As [`answer`]. What isn't known for a moment, because another node became the manager, is said in a way that makes
/// commands which wait ask again.
fn answer_or_later<T: Serialize>(result: Result<T>) -> Response {
    let later = [
        ErrorKind::Unavailable,
        ErrorKind::Unknown,
        ErrorKind::OldEpoch,
    ];
    let is_later = result
        .as_ref()
        .is_err_and(|error| later.contains(&error.kind()));
    let mut response = answer(result);
    if is_later {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

fn answer<T: Serialize>(result: Result<T>) -> Response {
    match result {
        Ok(value) => Json(value).into_response(),
        Err(error) => {
            let refusal = Refusal {
                kind: error.kind().name().into(),
                message: error.to_string(),
            };
            (StatusCode::CONFLICT, Json(refusal)).into_response()
        }
    }
}
