//! Requests of the admin API that are for another node: passed on, run there as if its own people had asked.
//!
//! `shale nsd add --node 3` asks this node for `POST /v1/on/3/nsds`. The daemon sends method, path and body to node 3,
//! whose daemon gives them to the same routes that its own socket has.

use crate::daemon::serving::Serving;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use model::{Error, ErrorKind, NodeId, NodeRun, Result};
use node::Commands;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt;

/// How long another node is waited for: as long as the longest request may take.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// How long a node is waited for that is only asked how it is.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// Largest answer that is passed on.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;

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
    routes: Router,
}

impl Relay {
    /// With the routes of this node's own socket.
    pub fn new(routes: Router) -> Arc<Self> {
        Arc::new(Self { routes })
    }
}

impl Commands for Relay {
    fn run(&self, from: NodeRun, command: Bytes) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            let wrong = |what: String| Error::new(ErrorKind::InvalidArgument, what);
            let passed: Passed = serde_json::from_slice(&command)
                .map_err(|error| wrong(format!("node {from} passes on no request: {error}")))?;
            if passed.path.starts_with("/v1/on/") {
                return Err(wrong("a request is passed on once".into()));
            }
            let method = Method::from_bytes(passed.method.as_bytes());
            let method = method.map_err(|error| wrong(error.to_string()))?;
            let body = serde_json::to_vec(&passed.body).map_err(|e| wrong(e.to_string()))?;
            let request = Request::builder()
                .method(method)
                .uri(&passed.path)
                .header("content-type", "application/json")
                .body(Body::from(body))
                .map_err(|error| wrong(format!("{:?} is no path: {error}", passed.path)))?;
            let response = self.routes.clone().oneshot(request).await;
            let response = response.unwrap_or_else(|never| match never {});
            let status = response.status().as_u16();
            let body = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await;
            let body = body.map_err(|error| wrong(format!("the answer is too large: {error}")))?;
            // Routes that don't exist are answered with text.
            let body = serde_json::from_slice(&body).unwrap_or(serde_json::Value::Null);
            let answered = Answered { status, body };
            Ok(serde_json::to_vec(&answered)
                .expect("an answer is plain data")
                .into())
        })
    }
}

/// Passes a request on and returns its answer as it came.
///
/// # Errors
/// `NotSupported` on a node that is alone; `Unavailable`, `Unknown` if the other node doesn't answer.
pub async fn pass_on(
    serving: &Serving,
    node: u32,
    method: &Method,
    path: String,
    body: &[u8],
) -> Result<Response> {
    let here = serving.running.in_cluster()?;
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
    let answered: Answered = serde_json::from_slice(&answer).map_err(|error| {
        let text = format!("node {node} answers something else: {error}; does its version differ?");
        Error::new(ErrorKind::Unknown, text)
    })?;
    let status = StatusCode::from_u16(answered.status).unwrap_or(StatusCode::BAD_GATEWAY);
    Ok((status, axum::Json(answered.body)).into_response())
}
