//! Asks the daemon over its socket.

use super::Refusal;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode, body::Bytes};
use hyper_util::rt::TokioIo;
use model::{Error, ErrorKind, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};

/// Name of the socket in the node's directory.
pub const SOCKET: &str = "daemon.sock";

/// A way to one daemon.
pub struct Admin {
    socket: PathBuf,
}

impl Admin {
    /// The daemon of a directory. Nothing is asked yet.
    pub fn of(dir: &Path) -> Self {
        Self {
            socket: dir.join(SOCKET),
        }
    }

    /// Asks and waits for the answer, as long as the daemon takes.
    ///
    /// # Errors
    /// `Unavailable` if no daemon answers; else what the daemon says.
    pub async fn ask<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: impl Serialize,
    ) -> Result<A> {
        let what = || format!("asking the daemon at {}", self.socket.display());
        let lost = |why: String| Error::new(ErrorKind::Unavailable, why).while_doing(what());
        let stream = tokio::net::UnixStream::connect(&self.socket)
            .await
            .map_err(|error| {
                if error.kind() == std::io::ErrorKind::PermissionDenied {
                    let text = format!(
                        "{error}; only the user that started the daemon may ask it (run as root?)"
                    );
                    return Error::new(ErrorKind::AccessDenied, text).while_doing(what());
                }
                Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "no daemon runs in {}; start it with `shale up --dir {0}`",
                        self.directory().display()
                    ),
                )
            })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| lost(e.to_string()))?;
        let body = serde_json::to_vec(&body).expect("request bodies are plain structs");
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "shale")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .expect("the request is well formed");
        // The sender goes with the exchange, which ends the connection beside it.
        let exchange = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            Ok::<_, hyper::Error>((status, response.into_body().collect().await?.to_bytes()))
        };
        let (answer, _connection) = tokio::join!(exchange, connection);
        let (status, bytes) = answer.map_err(|e| lost(e.to_string()))?;
        if status == StatusCode::OK {
            return serde_json::from_slice(&bytes).map_err(|e| {
                lost(format!(
                    "the daemon is of another version than this command ({e})"
                ))
            });
        }
        let refusal: Refusal = serde_json::from_slice(&bytes).map_err(|_| {
            lost(format!(
                "the daemon answered {status}; is it of another version?"
            ))
        })?;
        Err(Error::new(ErrorKind::InvalidArgument, refusal.message))
    }

    fn directory(&self) -> &Path {
        self.socket.parent().unwrap_or(Path::new("."))
    }
}
