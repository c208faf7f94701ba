//! The command line's side of the admin API: sends one request to the daemon and reads the answer.

use super::Refusal;
use crate::directory::{lock, private};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{Method, Request, StatusCode, body::Bytes};
use hyper_util::rt::TokioIo;
use model::{Error, ErrorKind, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Name of the socket in the node's directory.
pub const SOCKET: &str = "daemon.sock";

/// After this long without an answer the client pings the daemon, which gets as long again.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Longest answer. Other nodes' answers, which are the longest ones, have up to 8 MiB.
const ANSWER_BYTES_MAX: usize = 32 << 20;

type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// Connects to one daemon.
pub struct Admin {
    socket: PathBuf,
}

impl Admin {
    /// The daemon of a directory. Sends nothing yet.
    pub fn of(dir: &Path) -> Self {
        Self {
            socket: dir.join(SOCKET),
        }
    }

    /// Sends a request and waits for the answer, however long the work takes. Gives up after about
    /// 10 s if the daemon doesn't answer a ping either.
    ///
    /// # Errors
    /// `Unavailable` if no daemon answers; otherwise the daemon's refusal.
    pub async fn ask<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: impl Serialize,
    ) -> Result<A> {
        let body = serde_json::to_vec(&body).expect("request bodies are plain structs");
        let is_look = method == Method::GET;
        let mut answer = std::pin::pin!(self.exchange(method, path, body));
        let bytes = loop {
            tokio::select! {
                biased;
                bytes = &mut answer => break bytes?,
                () = tokio::time::sleep(SILENCE_MAX) => {}
            }
            if lock::is_holder_stopped(self.directory()) {
                return Err(lock::silent(self.directory()));
            }
            let ping = self.exchange(Method::GET, "/v1/ping", Vec::new());
            match tokio::time::timeout(SILENCE_MAX, ping).await {
                Err(_) => return Err(lock::silent(self.directory())),
                // Requests that only read are answered soon, by a daemon that waits for others with a limit of its own.
                Ok(Ok(_)) if is_look => return Err(self.takes_long()),
                Ok(_) => {}
            }
        };
        serde_json::from_slice(&bytes).map_err(|e| {
            self.lost(format!(
                "the daemon's version differs from this command's ({e})"
            ))
        })
    }

    fn takes_long(&self) -> Error {
        let text = format!(
            "the daemon in {0} is alive and takes long to answer: what it waits for is in `shale waiters --dir {0}` and \
             `shale health --dir {0}`; try again",
            self.directory().display()
        );
        Error::new(ErrorKind::Unavailable, text)
    }

    fn lost(&self, why: String) -> Error {
        Error::new(ErrorKind::Unavailable, why)
            .while_doing(format!("asking the daemon at {}", self.socket.display()))
    }

    async fn exchange(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes> {
        let stream = tokio::net::UnixStream::connect(&self.socket)
            .await
            .map_err(|error| self.no_daemon(&error))?;
        let answers = stream.peer_cred().map_err(|e| self.lost(e.to_string()))?;
        if !private::may_answer(answers.uid(), self.directory()) {
            let text = format!(
                "the process answering there belongs to user {}, not to the node's owner",
                answers.uid()
            );
            return Err(self.lost(text));
        }
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.lost(e.to_string()))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "shale")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .expect("the request is well formed");
        let exchange = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
            Ok::<_, BoxedError>((status, body.collect().await?.to_bytes()))
        };
        let mut exchange = std::pin::pin!(exchange);
        let answer = tokio::select! {
            biased;
            // The rest of an answer that is too long isn't waited for.
            answer = &mut exchange => answer,
            _ = connection => exchange.await,
        };
        let (status, bytes) = answer.map_err(|error| self.lost(why_lost(&*error)))?;
        if status == StatusCode::OK {
            return Ok(bytes);
        }
        let refusal: Refusal = serde_json::from_slice(&bytes).map_err(|_| {
            self.lost(format!(
                "the daemon answered {status}; does its version differ from this command's?"
            ))
        })?;
        // A node of a cluster that is no member now.
        if status == StatusCode::SERVICE_UNAVAILABLE {
            return Err(Error::new(ErrorKind::Unavailable, refusal.message));
        }
        // `ShuttingDown` makes the caller try again once the next daemon is up; `NotFound` makes it
        // unmount without the daemon.
        let kinds = [ErrorKind::ShuttingDown, ErrorKind::NotFound];
        let kind = kinds.into_iter().find(|kind| kind.name() == refusal.kind);
        let kind = kind.unwrap_or(ErrorKind::InvalidArgument);
        Err(Error::new(kind, refusal.message))
    }

    /// Why there is no connection.
    fn no_daemon(&self, error: &std::io::Error) -> Error {
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            return lock::not_yours(self.directory());
        }
        // As many wait for it as may.
        if error.kind() == std::io::ErrorKind::WouldBlock {
            return lock::silent(self.directory());
        }
        // If the lock can't be looked at, nobody knows that none runs.
        if let Err(refused) = lock::check_access(self.directory()) {
            return refused;
        }
        let dir = self.directory().display();
        let text = format!("no daemon runs in {dir}; start it with `shale up --dir {dir}`");
        Error::new(ErrorKind::Unavailable, text)
    }

    /// Whether a daemon runs in the directory, even if it doesn't answer.
    pub fn has_daemon(&self) -> bool {
        lock::is_held(self.directory())
    }

    fn directory(&self) -> &Path {
        self.socket.parent().unwrap_or(Path::new("."))
    }
}

/// Why there is no answer.
fn why_lost(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    match error.is::<LengthLimitError>() {
        true => format!("its answer has more than {ANSWER_BYTES_MAX} bytes"),
        false => error.to_string(),
    }
}

/// The socket of a daemon that takes no connections, with as many that wait as there may be.
#[cfg(test)]
pub fn with_full_queue(dir: &Path) -> impl Sized + use<> {
    use std::os::unix::net::{UnixListener, UnixStream};
    let socket = dir.join(SOCKET);
    let listener = UnixListener::bind(&socket).unwrap();
    // One may wait.
    rustix::net::listen(&listener, 0).unwrap();
    let waits = UnixStream::connect(&socket).unwrap();
    (listener, waits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    /// A daemon that answers pings, and nothing else if `is_slow`.
    async fn answer(listener: UnixListener, pings: bool) {
        let mut held = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 4096];
            let count = stream.read(&mut head).await.unwrap();
            if pings && head[..count].starts_with(b"GET /v1/ping") {
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                stream.write_all(answer.as_bytes()).await.unwrap();
            } else {
                held.push(stream);
            }
        }
    }

    /// Would be broken if people were told to start a daemon that may run.
    #[test]
    fn nobody_says_that_no_daemon_runs_if_its_lock_cannot_be_seen() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let home = tempfile::tempdir().unwrap();
        let refused = || {
            let admin = Admin::of(home.path());
            let asked = admin.ask::<serde_json::Value>(Method::GET, "/v1/status", ());
            runtime.block_on(asked).unwrap_err()
        };
        let none = refused();
        assert!(none.to_string().contains("no daemon runs"), "{none}");
        // Links aren't followed there.
        symlink(home.path(), home.path().join(lock::FILE)).unwrap();
        let unseen = refused();
        assert_eq!(unseen.kind(), ErrorKind::Unavailable);
        assert!(unseen.to_string().contains(lock::FILE), "{unseen}");
        assert!(!unseen.to_string().contains("no daemon runs"), "{unseen}");
    }

    /// Would be broken if whoever answers for a node could fill the memory of who asks it: root may ask another user's.
    #[test]
    fn an_answer_without_an_end_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let home = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(home.path().join(SOCKET)).unwrap();
            let pour = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await.unwrap();
                let begin = b"HTTP/1.1 200 OK\r\n\r\n";
                stream.write_all(begin).await.unwrap();
                while stream.write_all(&[b' '; 65_536]).await.is_ok() {}
                std::future::pending::<()>().await;
            };
            let admin = Admin::of(home.path());
            let asked = admin.ask::<serde_json::Value>(Method::POST, "/v1/settle", ());
            let refused = tokio::select! {
                refused = asked => refused.unwrap_err(),
                () = pour => unreachable!("it never ends"),
            };
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            assert!(refused.to_string().contains("more than"), "{refused}");
        });
    }

    /// Would be broken if people were told to start a daemon that is stopped, because it was asked so often since.
    #[test]
    fn a_daemon_for_which_as_many_wait_as_may_is_called_silent() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let home = tempfile::tempdir().unwrap();
        let _listens = with_full_queue(home.path());
        let admin = Admin::of(home.path());
        let asked = admin.ask::<serde_json::Value>(Method::POST, "/v1/settle", ());
        let refused = runtime.block_on(asked).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        let text = refused.to_string();
        let is_silent = text.contains("--kill") && !text.contains("no daemon runs");
        assert!(is_silent, "{text}");
    }

    #[test]
    fn a_daemon_that_is_alive_and_slow_is_not_called_dead() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        for (pings, said) in [(true, "takes long"), (false, "went away without an answer")] {
            runtime.block_on(async {
                let home = tempfile::tempdir().unwrap();
                let listener = UnixListener::bind(home.path().join(SOCKET)).unwrap();
                let admin = Admin::of(home.path());
                let asked = admin.ask::<serde_json::Value>(Method::GET, "/v1/fs/df", ());
                let refused = tokio::select! {
                    refused = asked => refused.unwrap_err().to_string(),
                    () = answer(listener, pings) => unreachable!("it never ends"),
                };
                assert!(refused.contains(said), "{refused}");
                assert_eq!(refused.contains("--kill"), !pings, "{refused}");
            });
        }
    }
}
