//! The admin socket of a cluster's node: open as long as its daemon lives, over all runs of the node.
//!
//! While a run serves, requests go to it. While there is none (the node joins, or joins again after an expulsion),
//! people can end the daemon, and are told what it waits for and what has happened; and, if programs' requests are held meanwhile
//! because the node becomes the first one of a cluster, that they wait for it. Of a node that was expelled by hand they are told
//! what lets it in, which may be long after, and they can unmount what refuses meanwhile.

use crate::admin::{Refusal, Shutdown, Stopping, Unmounted, Waits, client::SOCKET};
use crate::daemon::events::Events;
use crate::daemon::{door, health, supervisor, waits};
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use model::{Error, ErrorKind, NodeId, Result};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tower::ServiceExt;
use world::{Instant, Task, World};

/// Time for answers in flight when the daemon ends.
const ANSWERS_END: Duration = Duration::from_secs(2);

/// What answers at the socket.
pub struct Front {
    world: World,
    /// What happened here.
    pub events: Arc<Events>,
    state: Mutex<Now>,
    /// The node, while it was expelled by hand and waits until it is let in.
    kept_out: Mutex<Option<NodeId>>,
    /// Since when the requests of programs are held, if they are.
    held_since: Mutex<Option<Instant>>,
    /// Somebody has asked for the daemon's end while no run served.
    ends: watch::Sender<bool>,
    closed: watch::Sender<bool>,
}

/// What the node does.
enum Now {
    /// A run serves.
    Serves(Router),
    /// None does, because of this.
    Waits(String),
}

/// The open socket.
pub struct Open {
    pub front: Arc<Front>,
    task: Task<()>,
}

impl Front {
    /// Opens the socket.
    ///
    /// # Errors
    /// `Unavailable` if it can't be made.
    pub fn open(world: &World, dir: &Path) -> Result<Open> {
        let path = dir.join(SOCKET);
        let listener = door::bind(&path).map_err(|error| {
            Error::new(ErrorKind::Unavailable, error.to_string())
                .while_doing(format!("listening on {}", path.display()))
        })?;
        let front = Arc::new(Self {
            world: world.clone(),
            events: Arc::new(Events::open(dir)),
            state: Mutex::new(Now::Waits("it is starting".into())),
            kept_out: Mutex::default(),
            held_since: Mutex::new(None),
            ends: watch::Sender::new(false),
            closed: watch::Sender::new(false),
        });
        let mut closed = front.closed.subscribe();
        let until = async move {
            let _ = closed.wait_for(|closed| *closed).await;
        };
        let routes = Router::new().fallback(any).with_state(front.clone());
        let serving = door::serve(world.clone(), listener, routes, until);
        Ok(Open {
            front,
            task: world.spawn("admin API", serving),
        })
    }

    /// These routes answer from now on.
    pub fn serves(&self, routes: Router) {
        supervisor::tell("STATUS=serves");
        *self.state.lock() = Now::Serves(routes);
    }

    /// No run serves, because of `why`, which `systemctl status` shows as well.
    pub fn waits(&self, why: impl Into<String>) {
        let why = why.into();
        supervisor::tell(&format!("STATUS={}", why.replace('\n', " ")));
        *self.state.lock() = Now::Waits(why);
    }

    /// This node was expelled by hand, and waits until it is let in; `None`: it isn't any more.
    pub fn keeps_out(&self, node: Option<NodeId>) {
        *self.kept_out.lock() = node;
    }

    /// Programs wait since then, until [`Front::lets_go`]: people who ask why are told what no run serves for.
    pub fn holds_since(&self, since: Instant) {
        *self.held_since.lock() = Some(since);
    }

    /// Programs don't wait any more for the node to become the first one of a cluster.
    pub fn lets_go(&self) {
        *self.held_since.lock() = None;
    }

    /// Whether somebody has asked for the end while no run served.
    #[cfg(test)]
    fn was_told_to_end(&self) -> bool {
        *self.ends.borrow()
    }

    /// Returns when somebody has asked for the end while no run served.
    pub async fn told_to_end(&self) {
        // The sender is here.
        let _ = self.ends.subscribe().wait_for(|ends| *ends).await;
    }
}

impl Open {
    /// Takes no more requests, and waits a moment until clients have their answers.
    pub async fn close(self) {
        self.front.closed.send_replace(true);
        let _ = self.front.world.timeout(ANSWERS_END, self.task).await;
    }
}

async fn any(State(front): State<Arc<Front>>, request: Request) -> Response {
    let why = match &*front.state.lock() {
        Now::Serves(routes) => Ok(routes.clone()),
        Now::Waits(why) => Err(why.clone()),
    };
    match why {
        Ok(routes) => {
            let answered = routes.oneshot(request).await;
            answered.unwrap_or_else(|never| match never {})
        }
        Err(why) => front.between(request, &why).await,
    }
}

impl Front {
    /// Answers while no run serves.
    async fn between(&self, request: Request, why: &str) -> Response {
        let (held_since, kept_out) = (*self.held_since.lock(), *self.kept_out.lock());
        if let Some(node) = kept_out
            && let Some(answer) = while_kept_out(node, &request, why)
        {
            return answer;
        }
        match (request.method(), request.uri().path(), held_since) {
            (&Method::GET, "/v1/ping", _) => {
                Json(serde_json::json!({ "joins": true })).into_response()
            }
            (&Method::GET, "/v1/waiters", Some(since)) => {
                let answer = Waits {
                    waits: vec![waits::of_all(self.world.now() - since, why)],
                    ..Waits::default()
                };
                Json(answer).into_response()
            }
            (&Method::GET, "/v1/health", Some(_)) => Json(health::while_held(why)).into_response(),
            (&Method::GET, "/v1/events", _) => Json(self.events.lines()).into_response(),
            (&Method::POST, "/v1/shutdown", _) => {
                // The door has bounded its size.
                let body = to_bytes(request.into_body(), usize::MAX).await;
                let body = body.unwrap_or_default();
                if let Err(error) = serde_json::from_slice::<Shutdown>(&body) {
                    return refuse(StatusCode::BAD_REQUEST, ErrorKind::InvalidArgument, error);
                }
                self.ends.send_replace(true);
                // No run has mounts.
                Json(Stopping { left: Vec::new() }).into_response()
            }
            _ => {
                let text = format!(
                    "this node is no member of its cluster now: {why}. It goes on by itself; `shale down` ends it"
                );
                // Commands ask again for what may be there in a moment; this takes somebody.
                let (status, kind) = match kept_out {
                    Some(_) => (StatusCode::CONFLICT, ErrorKind::NotPermitted),
                    None => (StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Unavailable),
                };
                refuse(status, kind, text)
            }
        }
    }
}

/// What is answered only while the node is kept out, which may be for long.
fn while_kept_out(node: NodeId, request: &Request, why: &str) -> Option<Response> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/v1/health") => {
            Some(Json(health::while_kept_out(node.0, why)).into_response())
        }
        // Nothing serves a mount that refuses: the command takes it away by itself, ...
        (&Method::POST, "/v1/umount") => Some(refuse(
            StatusCode::CONFLICT,
            ErrorKind::NotFound,
            "no run of this node serves that mount",
        )),
        // ... and nothing is left that could become durable.
        (&Method::POST, "/v1/settle") => {
            let settled = Unmounted { daemon_ends: false };
            Some(Json(settled).into_response())
        }
        _ => None,
    }
}

fn refuse(status: StatusCode, kind: ErrorKind, why: impl ToString) -> Response {
    let refusal = Refusal {
        kind: kind.name().into(),
        message: why.to_string(),
    };
    (status, Json(refusal)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::client::Admin;
    use crate::admin::{BECOMES_FIRST, EventLine, Health, Progress, Stopping};

    /// Has people ask at a socket where no run serves.
    fn at_a_socket(ask: impl AsyncFnOnce(&World, &Front, &Admin)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (world, home) = (World::real(), tempfile::tempdir().unwrap());
            let open = Front::open(&world, home.path()).unwrap();
            ask(&world, &open.front, &Admin::of(home.path())).await;
            open.close().await;
        });
    }

    /// Would be broken if people were told nothing of use about programs that hang because their node becomes a cluster's.
    #[test]
    fn while_requests_are_held_people_are_told_for_what_programs_wait() {
        at_a_socket(async |world, front, admin| {
            front.waits("etcd is away");
            let waiters = || admin.ask::<Waits>(Method::GET, "/v1/waiters", ());
            waiters().await.unwrap_err();
            front.holds_since(world.now());
            let told = waiters().await.unwrap().waits;
            assert_eq!(told.len(), 1, "{told:?}");
            assert_eq!(told[0].cause, format!("{BECOMES_FIRST}: etcd is away"));
            let health = admin.ask::<Health>(Method::GET, "/v1/health", ()).await;
            let told = health.unwrap().events;
            assert!(told[0].message.ends_with("etcd is away"), "{told:?}");
            assert!(!told[0].remedy.is_empty());
            // What no run can say isn't made up.
            let status = admin.ask::<Progress>(Method::GET, "/v1/status", ()).await;
            assert_eq!(status.unwrap_err().kind(), ErrorKind::Unavailable);
            front.lets_go();
            waiters().await.unwrap_err();
        });
    }

    /// Would be broken if people weren't told what lets the node in, or couldn't unmount what refuses meanwhile.
    #[test]
    fn while_the_node_is_kept_out_people_are_told_by_whom_it_is_let_in_and_what_has_happened() {
        at_a_socket(async |_, front, admin| {
            front.events.tell("node-expelled", "this node", "by hand");
            front.waits("it can't join");
            let health = || admin.ask::<Health>(Method::GET, "/v1/health", ());
            health().await.unwrap_err();
            front.keeps_out(Some(NodeId(3)));
            let told = health().await.unwrap();
            assert_eq!(told.state, "critical");
            assert!(told.events[0].message.contains("by hand"), "{told:?}");
            let remedy = &told.events[0].remedy;
            assert!(remedy.contains("`shale node unexpel 3`"), "{remedy}");
            let events = admin.ask::<Vec<EventLine>>(Method::GET, "/v1/events", ());
            assert_eq!(events.await.unwrap()[0].event, "node-expelled");
            // Nobody asks again and again.
            let status = admin.ask::<Progress>(Method::GET, "/v1/status", ()).await;
            assert_eq!(status.unwrap_err().kind(), ErrorKind::InvalidArgument);
            let unmount = admin.ask::<Unmounted>(Method::POST, "/v1/umount", ()).await;
            assert_eq!(unmount.unwrap_err().kind(), ErrorKind::NotFound);
            let settled = admin.ask::<Unmounted>(Method::POST, "/v1/settle", ()).await;
            assert!(!settled.unwrap().daemon_ends);
            front.keeps_out(None);
            health().await.unwrap_err();
        });
    }

    #[test]
    fn between_two_runs_the_daemon_says_what_it_waits_for_and_can_be_ended() {
        at_a_socket(async |_, front, admin| {
            front.waits("nobody is there");
            let asked = admin.ask::<Progress>(Method::GET, "/v1/status", ()).await;
            let refused = asked.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            assert!(refused.to_string().contains("nobody is there"), "{refused}");
            let other = admin
                .ask::<Stopping>(Method::POST, "/v1/shutdown", ())
                .await;
            other.unwrap_err();
            assert!(!front.was_told_to_end());
            // A run serves: it answers all.
            let routes = Router::new().fallback(async || Json(serde_json::json!("served")));
            front.serves(routes);
            let served: String = admin.ask(Method::GET, "/v1/status", ()).await.unwrap();
            assert_eq!(served, "served");
            front.waits("it was expelled");
            let how = serde_json::json!({ "force": false });
            let told: Stopping = admin.ask(Method::POST, "/v1/shutdown", how).await.unwrap();
            assert!(told.left.is_empty());
            front.told_to_end().await;
        });
    }
}
