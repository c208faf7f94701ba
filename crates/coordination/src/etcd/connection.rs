//! One HTTP connection to a member of etcd, plain or with TLS: requests that are sent once, answers
//! that are bounded.

use super::settings::EtcdEndpoint;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use world::{Deadline, Task, World};

/// Most bytes of an answer, and of a message of a watch. Base64 and names make JSON a few times as
/// large as what is stored.
pub(super) const ANSWER_BYTES_MAX: usize = 12 << 20;
/// Most bytes of an answer's head, and of what is read ahead.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// An open connection; dropping it closes it. One request at a time.
pub(super) struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    /// Moves the bytes.
    _driver: Task<()>,
    authority: String,
}

/// A request that got no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// Not one byte of it was sent.
    NotSent(String),
    /// It may have been received and done.
    Unknown(String),
}

/// An answer: its HTTP status and its body.
pub(super) type Answered = (u16, Bytes);

impl HttpConnection {
    /// Connects.
    pub(super) async fn open(
        world: &World,
        endpoint: &EtcdEndpoint,
        tls: Option<&Arc<ClientConfig>>,
        deadline: Deadline,
    ) -> Result<Self, String> {
        let opening = Self::open_unbounded(world, endpoint, tls, deadline);
        let opened = deadline.bound(world, opening).await;
        opened.unwrap_or_else(|_| Err("no connection in time".to_owned()))
    }

    async fn open_unbounded(
        world: &World,
        endpoint: &EtcdEndpoint,
        tls: Option<&Arc<ClientConfig>>,
        deadline: Deadline,
    ) -> Result<Self, String> {
        let authority = endpoint.authority();
        let addresses = world.resolve(&endpoint.host, endpoint.port).await;
        let mut connection = Err("it has no address".to_owned());
        for address in addresses.map_err(|error| error.to_string())? {
            let connected = world.connect(address, deadline).await;
            connection = connected.map_err(|error| error.to_string());
            if connection.is_ok() {
                break;
            }
        }
        let connection = connection?;
        if !endpoint.has_tls {
            return Self::greet(world, connection, authority).await;
        }
        let config = tls.ok_or("there are no certificates for it")?;
        let name = endpoint.server_name().map_err(|error| error.to_string())?;
        let connector = TlsConnector::from(config.clone());
        let secured = connector.connect(name, connection).await;
        let secured = secured.map_err(|error| format!("TLS: {error}"))?;
        Self::greet(world, secured, authority).await
    }

    async fn greet(
        world: &World,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        authority: String,
    ) -> Result<Self, String> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| format!("HTTP: {error}"))?;
        let driving = async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to etcd ended");
            }
        };
        Ok(Self {
            sender,
            _driver: world.spawn("etcd connection", driving),
            authority,
        })
    }

    /// Waits until the next request can be sent; `false` if the connection has ended.
    pub(super) async fn is_usable(&mut self) -> bool {
        !self.sender.is_closed() && self.sender.ready().await.is_ok()
    }

    /// Sends a request and gets the begin of its answer. `needs_leader`: a member that knows of no
    /// leader refuses it at once.
    pub(super) async fn send(
        &mut self,
        path: &'static str,
        body: Bytes,
        needs_leader: bool,
    ) -> Result<(u16, Incoming), NoAnswer> {
        let mut request = Request::post(path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if needs_leader {
            request = request.header("grpc-metadata-hasleader", "true");
        }
        let request = request.body(Full::new(body));
        let request = request.map_err(|error| NoAnswer::NotSent(error.to_string()))?;
        match self.sender.try_send_request(request).await {
            Ok(answer) => {
                let (head, body) = answer.into_parts();
                Ok((head.status.as_u16(), body))
            }
            Err(mut error) => {
                let is_unsent = error.take_message().is_some();
                let text = chain(error.error());
                Err(match is_unsent {
                    true => NoAnswer::NotSent(text),
                    false => NoAnswer::Unknown(text),
                })
            }
        }
    }

    /// Sends a request and gets the whole answer. If the future is dropped, the connection must not be
    /// used again.
    pub(super) async fn ask(
        &mut self,
        path: &'static str,
        body: Bytes,
        needs_leader: bool,
    ) -> Result<Answered, NoAnswer> {
        let (status, body) = self.send(path, body, needs_leader).await?;
        let body = whole(body).await.map_err(NoAnswer::Unknown)?;
        Ok((status, body))
    }
}

/// The whole body of an answer.
pub(super) async fn whole(mut body: Incoming) -> Result<Bytes, String> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("its answer broke off: {}", chain(&error)))?;
        if let Ok(data) = frame.into_data() {
            if read.len() + data.len() > ANSWER_BYTES_MAX {
                return Err(format!(
                    "its answer is longer than {ANSWER_BYTES_MAX} bytes"
                ));
            }
            read.extend_from_slice(&data);
        }
    }
    Ok(read.freeze())
}

/// An error with its causes.
fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
