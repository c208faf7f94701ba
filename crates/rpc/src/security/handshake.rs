//! The beginning of a protected connection: TLS's handshake, then one last word of each side, after
//! which frames go sealed over the bare stream, or, with an older build, inside TLS.
//!
//! *The last word* tells both sides that the other has taken their certificate: TLS alone lets a client
//! go on before the server has looked at it. The client says it first, and sends nothing more before it
//! has heard the server's; the server says it after it has heard the client's. So where TLS is left,
//! no byte behind the last word can have come with it, and `Records` would have left it there. A refused
//! certificate is told by TLS's alert in place of the word.

use super::certificate::{Certificate, Fingerprint};
use super::configs::{Configs, INSIDE_TLS, Purpose, server_name};
use super::explain::{Side, explain};
use super::mode::{Mode, Suite, Suites};
use super::names::NodeName;
use super::records::Records;
use super::refusals::{Kind, Refusal};
use crate::channel::{Channel, Stream};
use crate::seal::{FrameKeys, Hidden, SECRET_BYTES};
use aws_lc_rs::aead;
use rustls::pki_types::ServerName;
use rustls::server::Acceptor;
use rustls::{CipherSuite, ClientConfig, CommonState, ConnectionCommon, SideData};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{LazyConfigAcceptor, TlsConnector, client, server};
use world::World;

/// The last word of each side inside TLS.
const LAST_WORD: [u8; 8] = *b"SHRPTLS1";

/// What the secrets of sealed frames are exported for (RFC 8446, 7.5): frames whose payloads can be read, those that are
/// hidden wholly; and for which direction.
const EXPORT_NAMES: &[u8] = b"EXPORTER-shale-frames-1";
const EXPORT_ALL: &[u8] = b"EXPORTER-shale-frames-2";
const TO_SERVER: &[u8] = b"to the answering node";
const TO_CLIENT: &[u8] = b"to the asking node";

/// How long a refused connection is read on, so that the other side gets to read why.
const LINGER_MAX: Duration = Duration::from_millis(500);

/// Most bytes that are read on.
const LINGER_BYTES_MAX: u64 = 64 * 1024;

/// A connection that somebody opened, as far as it is known who.
pub(crate) enum Arrival {
    /// A node's, which its certificate proves.
    Node(Channel, Shown),
    /// Of a machine that has shown nothing yet.
    Joining(Box<dyn Stream>),
}

/// What a node has shown.
#[derive(Clone, Copy)]
pub(crate) struct Shown {
    /// Who it is.
    pub(crate) name: NodeName,
    /// The authority that has certified it.
    pub(crate) authority: Option<Fingerprint>,
    /// How the connection is protected; encrypted: with this suite.
    pub(crate) mode: Mode,
}

impl<S: Stream> Stream for client::TlsStream<Records<S>> {}

impl<S: Stream> Stream for server::TlsStream<Records<S>> {}

/// Opens a connection to a node: shows the certificate, and takes only `name` for an answer.
pub(crate) async fn connect<S: Stream + 'static>(
    stream: S,
    purpose: Purpose,
    config: &Arc<ClientConfig>,
    name: NodeName,
) -> Result<Channel, Refusal> {
    let mut tls = connect_tls(stream, purpose, config, server_name(name)).await?;
    let Some(hidden) = hidden(tls.get_ref().1, purpose)? else {
        tls.get_mut().0.open();
        return Ok(Channel::plain(tls));
    };
    let (records, connection) = tls.into_inner();
    let keys = keys(&connection, Side::Asking, hidden)?;
    Ok(Channel::sealed(records.into_inner(), keys))
}

/// Opens a connection up to the last words.
pub(crate) async fn connect_tls<S: Stream + 'static>(
    stream: S,
    purpose: Purpose,
    config: &Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<client::TlsStream<Records<S>>, Refusal> {
    let broke = |error: io::Error| explain(&error, Side::Asking);
    let connector = TlsConnector::from(config.clone());
    let records = Records::after(&[], stream);
    let mut tls = connector.connect(name, records).await.map_err(broke)?;
    check_purpose(tls.get_ref().1, purpose)?;
    tls.write_all(&LAST_WORD).await.map_err(broke)?;
    tls.flush().await.map_err(broke)?;
    hear_last_word(&mut tls, Side::Asking).await?;
    let (records, connection) = tls.get_mut();
    check_end(records, connection)?;
    Ok(tls)
}

/// Answers a connection that somebody opened, whose first byte has come and begins no frame.
pub(crate) async fn accept<S: Stream + 'static>(
    world: &World,
    first: u8,
    stream: S,
    configs: &Configs,
    takes_joins: bool,
) -> Result<Arrival, Refusal> {
    let acceptor = LazyConfigAcceptor::new(Acceptor::default(), Records::after(&[first], stream));
    let mut acceptor = std::pin::pin!(acceptor);
    let start = match acceptor.as_mut().await {
        Ok(start) => start,
        Err(error) => {
            if let Some(records) = acceptor.take_io() {
                linger(world, records.abandon()).await;
            }
            return Err(explain(&error, Side::Answering));
        }
    };
    let wanted = Purpose::of(start.client_hello().alpn().into_iter().flatten());
    let taken = wanted.filter(|purpose| takes_joins || *purpose != Purpose::Join);
    let config = taken.and_then(|purpose| configs.server(purpose));
    let config = config.unwrap_or_else(|| configs.refusing(wanted));
    let mut tls = match start.into_stream(config.clone()).into_fallible().await {
        Ok(tls) => tls,
        Err((error, records)) => {
            linger(world, records.abandon()).await;
            return Err(explain(&error, Side::Answering));
        }
    };
    match answer(&mut tls, taken, configs).await {
        Ok(shown) => leave(tls, shown),
        Err(refusal) => {
            linger(world, tls.into_inner().0.abandon()).await;
            Err(refusal)
        }
    }
}

/// Checks who opened the connection, and exchanges the last words. Gives the purpose, and what the node has shown
/// unless it is none yet.
async fn answer<S: Stream>(
    tls: &mut server::TlsStream<Records<S>>,
    purpose: Option<Purpose>,
    configs: &Configs,
) -> Result<(Purpose, Option<Shown>), Refusal> {
    let broke = |error: io::Error| explain(&error, Side::Answering);
    let Some(purpose) = purpose else {
        let text = "the other side named no purpose of its connection that this node knows";
        return Err(Refusal::new(Kind::Mode, text));
    };
    check_purpose(tls.get_ref().1, purpose)?;
    let connection: &CommonState = tls.get_ref().1;
    let shown = match purpose {
        Purpose::Join => None,
        Purpose::AuthOnly => Some(node_of(connection, configs, Mode::AuthOnly)?),
        Purpose::Encrypted => {
            let mode = Mode::Encrypted(Suites::only(suite_of(connection)?));
            Some(node_of(connection, configs, mode)?)
        }
    };
    hear_last_word(tls, Side::Answering).await?;
    let (records, connection) = tls.get_mut();
    check_end(records, connection)?;
    tls.write_all(&LAST_WORD).await.map_err(broke)?;
    tls.flush().await.map_err(broke)?;
    Ok((purpose, shown))
}

/// With which suite an encrypted connection is protected.
fn suite_of(connection: &CommonState) -> Result<Suite, Refusal> {
    let suite = connection.negotiated_cipher_suite().map(|it| it.suite());
    match suite {
        Some(CipherSuite::TLS13_AES_128_GCM_SHA256) => Ok(Suite::Aes128Gcm),
        Some(CipherSuite::TLS13_AES_256_GCM_SHA384) => Ok(Suite::Aes256Gcm),
        Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256) => Ok(Suite::ChaCha20Poly1305),
        other => {
            let text = format!("TLS has agreed on a suite that wasn't offered: {other:?}");
            Err(Refusal::new(Kind::Mode, text))
        }
    }
}

/// What sealed frames hide on a connection that is for this; none: frames go inside TLS.
fn hidden(connection: &CommonState, purpose: Purpose) -> Result<Option<Hidden>, Refusal> {
    Ok(match purpose {
        Purpose::Join => None,
        Purpose::AuthOnly => Some(Hidden::Names),
        Purpose::Encrypted if connection.alpn_protocol() == Some(INSIDE_TLS) => None,
        Purpose::Encrypted => Some(Hidden::All(match suite_of(connection)? {
            Suite::Aes128Gcm => &aead::AES_128_GCM,
            Suite::Aes256Gcm => &aead::AES_256_GCM,
            Suite::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        })),
    })
}

/// What comes behind the last words.
fn leave<S: Stream + 'static>(
    mut tls: server::TlsStream<Records<S>>,
    (purpose, shown): (Purpose, Option<Shown>),
) -> Result<Arrival, Refusal> {
    if let (Some(hidden), Some(shown)) = (hidden(tls.get_ref().1, purpose)?, shown) {
        let (records, connection) = tls.into_inner();
        let keys = keys(&connection, Side::Answering, hidden)?;
        let channel = Channel::sealed(records.into_inner(), keys);
        return Ok(Arrival::Node(channel, shown));
    }
    tls.get_mut().0.open();
    Ok(match shown {
        Some(shown) => Arrival::Node(Channel::plain(tls), shown),
        None => Arrival::Joining(Box::new(tls)),
    })
}

/// TLS lets a side go on that names no purpose at all.
fn check_purpose(connection: &CommonState, purpose: Purpose) -> Result<(), Refusal> {
    let agreed = connection.alpn_protocol();
    if !agreed.is_some_and(|agreed| purpose.protocols().contains(&agreed)) {
        let text = "the other side didn't agree on what the connection is for";
        return Err(Refusal::new(Kind::Mode, text));
    }
    Ok(())
}

/// The node whose certificate was shown, and found to be issued by an authority of the cluster.
fn node_of(connection: &CommonState, configs: &Configs, mode: Mode) -> Result<Shown, Refusal> {
    let wrong = |why: String| Refusal::new(Kind::Identity, why);
    let shown = connection.peer_certificates().and_then(<[_]>::first);
    let shown = shown.ok_or_else(|| wrong("the other side has no certificate".into()))?;
    let certificate = Certificate::from_der(shown).map_err(|error| {
        wrong(format!(
            "the other side's certificate is of no use: {error}"
        ))
    })?;
    match certificate.node() {
        Some(name) if name.cluster == configs.name.cluster => {
            let mut authorities = configs.authorities.iter();
            let authority = authorities.find(|it| certificate.names_as_issuer(it));
            Ok(Shown {
                name,
                authority: authority.map(Certificate::fingerprint),
                mode,
            })
        }
        Some(name) => Err(wrong(format!(
            "the other side's certificate is for {name}, a node of another cluster"
        ))),
        None => Err(wrong("the other side's certificate is for no node".into())),
    }
}

async fn hear_last_word(tls: &mut impl Stream, side: Side) -> Result<(), Refusal> {
    let mut word = [0; LAST_WORD.len()];
    match tls.read_exact(&mut word).await {
        Ok(_) if word == LAST_WORD => Ok(()),
        Ok(_) => {
            let text = "the other side said something else than the end of its handshake";
            Err(Refusal::new(Kind::Garbage, text))
        }
        Err(error) => Err(explain(&error, side)),
    }
}

/// All that has come was for the handshake.
fn check_end<S, D: SideData>(
    records: &Records<S>,
    connection: &mut ConnectionCommon<D>,
) -> Result<(), Refusal> {
    let state = connection.process_new_packets();
    let is_done = state.is_ok_and(|state| state.plaintext_bytes_to_read() == 0);
    if !is_done || !records.is_between() {
        let text = "the other side said more than the end of its handshake";
        return Err(Refusal::new(Kind::Garbage, text));
    }
    Ok(())
}

/// Secrets of both directions that only the two ends of the TLS connection can know.
fn keys<D: SideData>(
    connection: &ConnectionCommon<D>,
    side: Side,
    hidden: Hidden,
) -> Result<FrameKeys, Refusal> {
    let label = match hidden {
        Hidden::Names => EXPORT_NAMES,
        Hidden::All(_) => EXPORT_ALL,
    };
    let secret = |direction: &[u8]| {
        let secret = [0; SECRET_BYTES];
        let exported = connection.export_keying_material(secret, label, Some(direction));
        exported.map_err(|error| {
            let text = format!("TLS gave no keys for frames: {error}");
            Refusal::new(Kind::Garbage, text)
        })
    };
    let (to_server, to_client) = (secret(TO_SERVER)?, secret(TO_CLIENT)?);
    Ok(match side {
        Side::Asking => FrameKeys {
            sending: to_server,
            receiving: to_client,
            hidden,
        },
        Side::Answering => FrameKeys {
            sending: to_client,
            receiving: to_server,
            hidden,
        },
    })
}

/// Lets the other side read why it was refused: to close while bytes arrive would reset the connection.
pub(crate) async fn linger(world: &World, mut stream: impl Stream) {
    let reading = async {
        // Whoever was refused may be gone already.
        let _ = stream.shutdown().await;
        let mut rest = stream.take(LINGER_BYTES_MAX);
        let _ = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
    };
    let _ = world.timeout(LINGER_MAX, reading).await;
}

#[cfg(test)]
mod tests;
