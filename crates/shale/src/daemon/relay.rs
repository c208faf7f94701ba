//! Requests of the admin API that are for another node: passed on, run there by a smaller API than its own people have.
//!
//! `shale nsd add --node 3` asks this node for `POST /v1/on/3/nsds`. The daemon sends method, path and body to node 3,
//! whose daemon gives them to the routes that it has for other nodes: how it is, and new NSDs in its own directory. The
//! daemons of a cluster may run as different users; whoever owns one of them must not get, through it, what another one's
//! owner may do.

use crate::admin::Refusal;
use crate::daemon::serving::Serving;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::uri::PathAndQuery;
use axum::http::{Method, Request, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use model::{Error, ErrorKind, NodeId, NodeRun, Result};
use node::{Commands, Member};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tower::ServiceExt;
use world::World;

/// How long another node is waited for: as long as the longest request may take.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// How long a node is waited for that is only asked how it is: less than whoever asks waits for this node.
const LOOK_PATIENCE: Duration = Duration::from_secs(3);
/// Largest answer that is passed on.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Largest body of a request: as at the node's own socket.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Requests of other nodes that run at the same time, those included that nobody waits for any more.
const REQUESTS_MAX: usize = 32;

/// A request of the admin API, between nodes.
#[derive(Serialize, Deserialize)]
struct Passed {
    method: String,
    path: String,
    body: serde_json::Value,
}

/// Its answer.
#[derive(Serialize, Deserialize)]
struct Answered {
    status: u16,
    body: serde_json::Value,
}

/// Answers what other nodes pass on.
pub struct Relay {
    world: World,
    routes: Router,
    slots: Arc<Semaphore>,
}

impl Relay {
    /// With the routes that this node has for others.
    pub fn new(world: &World, routes: Router) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            routes,
            slots: Arc::new(Semaphore::new(REQUESTS_MAX)),
        })
    }

    /// Runs a request to its end, also if the other node goes away meanwhile.
    async fn answer(&self, request: Request<Body>) -> Result<Answered> {
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| {
            let text =
                format!("this node runs {REQUESTS_MAX} requests of other nodes already; try again");
            Error::new(ErrorKind::Busy, text)
        })?;
        let routes = self.routes.clone();
        let (tell, told) = tokio::sync::oneshot::channel();
        let answering = async move {
            let response = routes.oneshot(request).await;
            let response = response.unwrap_or_else(|never| match never {});
            let status = response.status().as_u16();
            let body = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await;
            drop(slot);
            // The other node may have gone away.
            let _ = tell.send((status, body));
        };
        self.world
            .spawn("a request of another node", answering)
            .detach();
        let (status, body) = told
            .await
            .map_err(|_| Error::from(ErrorKind::ShuttingDown))?;
        let body = body.map_err(|error| wrong(format!("the answer is too large: {error}")))?;
        let body = serde_json::from_slice(&body).unwrap_or_else(|_| {
            // What isn't for a route is answered with nothing, or with text.
            let message = match status {
                404 | 405 => "this node doesn't do that for other nodes: run the command there".into(),
                _ => {
                    let said = String::from_utf8_lossy(&body);
                    format!("the other node doesn't understand the request: {said}; does its version differ?")
                }
            };
            let refusal = Refusal {
                kind: ErrorKind::NotSupported.name().into(),
                message,
            };
            serde_json::to_value(refusal).expect("a refusal is plain data")
        });
        Ok(Answered { status, body })
    }
}

/// The request that another node passes on; that run is its extension.
fn request_of(from: NodeRun, command: &[u8]) -> Result<Request<Body>> {
    let passed: Passed = serde_json::from_slice(command)
        .map_err(|error| wrong(format!("node {from} passes on no request: {error}")))?;
    let method = Method::from_bytes(passed.method.as_bytes());
    let method = method.map_err(|error| wrong(error.to_string()))?;
    let no_path = || wrong(format!("{:?} is no path", passed.path));
    // Not a whole address with a host, whose path would begin elsewhere.
    if !passed.path.starts_with('/') {
        return Err(no_path());
    }
    let path: PathAndQuery = passed.path.parse().map_err(|_| no_path())?;
    let body = serde_json::to_vec(&passed.body).map_err(|error| wrong(error.to_string()))?;
    if body.len() > BODY_BYTES_MAX {
        let text = format!("a request's body has at most {BODY_BYTES_MAX} bytes");
        return Err(wrong(text));
    }
    Request::builder()
        .method(method)
        .uri(Uri::from(path))
        .header("content-type", "application/json")
        .extension(from)
        .body(Body::from(body))
        .map_err(|error| wrong(error.to_string()))
}

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

impl Commands for Relay {
    fn run(&self, from: NodeRun, command: Bytes) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            let answered = self.answer(request_of(from, &command)?).await?;
            let bytes = serde_json::to_vec(&answered).expect("an answer is plain data");
            Ok(bytes.into())
        })
    }
}

/// Passes a request on and returns its answer as it came.
///
/// # Errors
/// `NotSupported` on a node that is alone; `NotFound`: there is no such node; `Unavailable`, `Unknown` if the other node
/// doesn't answer.
pub(crate) async fn pass_on(
    serving: &Serving,
    node: u32,
    method: &Method,
    path: String,
    body: &[u8],
) -> Result<Response> {
    let here = serving.running.in_cluster()?;
    // Ways to nodes are kept as long as the daemon runs.
    if !here.member().roster().addresses.contains_key(&NodeId(node)) {
        let text = format!(
            "no node {node} has ever run in this cluster; `shale node list` shows its nodes"
        );
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    let body = match body.is_empty() {
        true => serde_json::Value::Null,
        false => serde_json::from_slice(body).map_err(|error| {
            let text = format!("the request's body is no JSON: {error}");
            Error::new(ErrorKind::InvalidArgument, text)
        })?,
    };
    let patience = match method == Method::GET {
        true => LOOK_PATIENCE,
        false => PATIENCE,
    };
    let passed = Passed {
        method: method.to_string(),
        path,
        body,
    };
    let command = serde_json::to_vec(&passed).expect("a request is plain data");
    let answer = here
        .member()
        .command(NodeId(node), command.into(), patience)
        .await?;
    response_of(node, &answer)
}

/// Asks another node for something that this daemon itself wants, and waits so long for the answer; the inner result is
/// what it says, or its refusal.
///
/// # Errors
/// `Unavailable`: it couldn't be asked; `Unknown`: it didn't answer in time, or not in a way that is understood here; others
/// if it runs no commands of this node.
pub(crate) async fn ask_node<A: DeserializeOwned>(
    member: &Member,
    node: NodeId,
    path: &str,
    body: &impl Serialize,
    patience: Duration,
) -> Result<std::result::Result<A, Refusal>> {
    let passed = Passed {
        method: Method::POST.to_string(),
        path: path.to_owned(),
        body: serde_json::to_value(body).expect("a request is plain data"),
    };
    let command = serde_json::to_vec(&passed).expect("a request is plain data");
    let answer = member.command(node, command.into(), patience).await?;
    let answered = answered(node.0, &answer)?;
    let understood = match StatusCode::from_u16(answered.status) {
        Ok(StatusCode::OK) => serde_json::from_value(answered.body).map(Ok),
        _ => serde_json::from_value(answered.body).map(Err),
    };
    understood.map_err(|error| not_understood(node.0, &error))
}

fn answered(node: u32, answer: &[u8]) -> Result<Answered> {
    serde_json::from_slice(answer).map_err(|error| not_understood(node, &error))
}

fn not_understood(node: u32, error: &serde_json::Error) -> Error {
    let text = format!("node {node} answers something else: {error}; does its version differ?");
    Error::new(ErrorKind::Unknown, text)
}

/// What another node has answered, as it came.
fn response_of(node: u32, answer: &[u8]) -> Result<Response> {
    let answered = answered(node, answer)?;
    let status = StatusCode::from_u16(answered.status).unwrap_or(StatusCode::BAD_GATEWAY);
    Ok((status, axum::Json(answered.body)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use axum::{Extension, Json};
    use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};
    use tokio::runtime::Runtime;
    use tokio::sync::Notify;

    fn run() -> NodeRun {
        NodeRun {
            node: NodeId(2),
            incarnation: 1,
        }
    }

    fn passed(method: &str, path: &str, body: serde_json::Value) -> Bytes {
        let passed = Passed {
            method: method.into(),
            path: path.into(),
            body,
        };
        serde_json::to_vec(&passed).unwrap().into()
    }

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    fn with_relay<F: Future<Output = ()>>(routes: Router, test: impl FnOnce(Arc<Relay>) -> F) {
        runtime().block_on(async { test(Relay::new(&World::real(), routes)).await });
    }

    async fn ask(relay: &Relay, method: &str, path: &str) -> Answered {
        let command = passed(method, path, serde_json::Value::Null);
        let answer = relay.run(run(), command).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    #[test]
    fn what_a_node_does_not_do_for_others_is_refused_in_words() {
        let routes = Router::new().route("/v1/status", get(async || Json(serde_json::json!(7))));
        with_relay(routes, async |relay| {
            assert_eq!(ask(&relay, "GET", "/v1/status").await.body, 7);
            for (method, path) in [
                ("GET", "/v1/on/3/status"),
                ("POST", "/v1/status"),
                ("POST", "/v1/mount"),
            ] {
                let answered = ask(&relay, method, path).await;
                assert!(answered.status >= 400);
                let refusal: Refusal = serde_json::from_value(answered.body).unwrap();
                assert!(
                    refusal.message.contains("run the command there"),
                    "{refusal:?}"
                );
            }
            let hostile = [
                Bytes::from("nonsense"),
                passed("GET", "http://x/v1/status", serde_json::Value::Null),
                passed("GET", "", serde_json::Value::Null),
                passed("G T", "/v1/status", serde_json::Value::Null),
                passed("POST", "/v1/status", "x".repeat(BODY_BYTES_MAX).into()),
            ];
            for command in hostile {
                let refused = relay.run(run(), command.clone()).await;
                let refused = refused.expect_err(&format!("{command:?}"));
                assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
            }
        });
    }

    #[test]
    fn whoever_answers_knows_which_run_has_asked() {
        let who = post(async |Extension(from): Extension<NodeRun>| Json(from));
        with_relay(Router::new().route("/v1/who", who), async |relay| {
            let answered = ask(&relay, "POST", "/v1/who").await;
            assert_eq!(answered.body, serde_json::to_value(run()).unwrap());
        });
    }

    #[test]
    fn requests_that_nobody_waits_for_any_more_count_until_they_end() {
        let go_on = Arc::new(Notify::new());
        let waits = go_on.clone();
        let slow = post(async move || {
            waits.notified().await;
            Json(serde_json::json!({}))
        });
        let routes = Router::new().route("/v1/slow", slow);
        with_relay(routes, async |relay| {
            for _ in 0..REQUESTS_MAX {
                let asked = ask(&relay, "POST", "/v1/slow");
                let mut asked = std::pin::pin!(asked);
                // It begins, and the other node goes away.
                assert!(futures::poll!(asked.as_mut()).is_pending());
            }
            let command = passed("POST", "/v1/slow", serde_json::Value::Null);
            let refused = relay.run(run(), command).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy);
            while relay.slots.available_permits() < REQUESTS_MAX {
                go_on.notify_waiters();
                tokio::task::yield_now().await;
            }
        });
    }

    /// JSON of unknown form: a number of one digit takes a value's room, which doubles as the list grows.
    const JSON: Memory = Memory {
        fixed: 256 << 10,
        per_byte: 256,
    };

    /// On one thread, so that all memory counts, also that of the task which answers.
    #[test]
    fn any_command_of_another_node_is_answered_or_refused() {
        let runtime = runtime();
        let routes = Router::new().route("/v1/status", get(async || Json(serde_json::json!(7))));
        let relay = runtime.block_on(async { Relay::new(&World::real(), routes) });
        let answered = Seen::default();
        fuzz!(ROUNDS, |input: &[u8]| {
            let mut source = Source::new(input);
            let method = match source.below(6) {
                0 => source.text(),
                known => ["GET", "POST", "DELETE", "PATCH", "GET"][known - 1].into(),
            };
            let path = match source.below(5) {
                0 => source.text(),
                1 => format!("/v1/{}", source.text()),
                2 => format!("/v1/on/{}/status", source.number()),
                _ => "/v1/status".into(),
            };
            let body = source.value().unwrap_or_default();
            let command = passed(&method, &path, body);
            let changed = source.changed(&command);
            for command in [command, changed.into(), input.to_vec().into()] {
                let answer = within(JSON, command.len(), || {
                    runtime.block_on(relay.run(run(), command))
                });
                match answer {
                    Ok(answer) => {
                        serde_json::from_slice::<Answered>(&answer).unwrap();
                        answered.note();
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
                }
            }
        });
        answered.check(1, "commands are answered");
    }

    #[test]
    fn any_answer_of_another_node_is_passed_on_or_unknown() {
        let passed_on = Seen::default();
        fuzz!(ROUNDS / 2, |input: &[u8]| {
            let mut source = Source::new(input);
            let answered = Answered {
                status: source.number() as u16,
                body: source.value().unwrap_or_default(),
            };
            let answer = serde_json::to_vec(&answered).unwrap();
            for answer in [&answer, &source.changed(&answer), &input.to_vec()] {
                match within(JSON, answer.len(), || response_of(3, answer)) {
                    Ok(response) => {
                        let status = response.status().as_u16();
                        assert!((100..1000).contains(&status));
                        passed_on.note();
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error}"),
                }
            }
        });
        passed_on.check(100, "answers are passed on");
    }
}
