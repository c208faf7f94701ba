//! A machine joins: it shows a token's secret to a node of the cluster that the token names, and gets a
//! certificate.
//!
//! Both sides use frames on a connection of its own: one request, one reply. The machine knows the
//! cluster by its authority's fingerprint, the cluster knows the machine by the secret.

use super::certificate::{Certificate, Fingerprint};
use super::configs::{
    Purpose, clock, finished_client, provider, server_name, server_verifier, unusable,
};
use super::credentials::Credentials;
use super::handshake::connect_tls;
use super::keys::PrivateKey;
use super::mode::Suites;
use super::names::NodeName;
use super::refusals::{Kind, Refusal};
use super::token::JoinToken;
use crate::Fault;
use crate::channel::Stream;
use crate::frame::{Ending, Frame, Header, Kind as FrameKind};
use crate::outlet::send;
use crate::receive::Receiver;
use bytes::Bytes;
use futures::future::BoxFuture;
use model::call::{Call, Class, Reply};
use model::join::{JOIN, JoinReply, JoinRequest};
use model::{Advice, Error, ErrorKind, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use std::fmt::Write;
use std::net::IpAddr;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use world::{Deadline, World};

/// Longest time that a cluster needs to admit a machine; then it says that it doesn't know.
pub(crate) const ADMISSION_MAX: Duration = Duration::from_secs(30);

/// Longest attempt of a machine to reach one node.
const CONNECT_MAX: Duration = Duration::from_secs(4);

/// Most bytes of an encoded request: more than its parts may have together.
const REQUEST_BYTES_MAX: usize = 8 * 1024;

/// Most bytes of an encoded reply: more than its parts may have together.
const REPLY_BYTES_MAX: usize = 128 * 1024;

/// The number of the only request.
const NUMBER: u64 = 1;

/// Decides who becomes a node. Implemented where coordination and the authority are.
pub trait Admit: Send + Sync {
    /// Judges a request that keeps the written maxima; whoever sent it is known by its secret only.
    ///
    /// The secret is looked up by its hash ([`secret_hash`](super::secret_hash)), must not have
    /// expired, and is used up by a compare-and-set that records the machine's key
    /// ([`SigningRequest::key_hash`](super::SigningRequest::key_hash)). A machine with the same key
    /// gets the same node again: the answer may have been lost, and the machine asks another node.
    ///
    /// # Errors
    /// `AccessDenied` if the secret is wrong, used or too old; others if it couldn't be judged.
    fn admit(&self, request: JoinRequest, from: Option<IpAddr>)
    -> BoxFuture<'_, Result<JoinReply>>;
}

/// Reads the request of a machine that joins. The caller bounds the time.
pub(crate) async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
) -> std::result::Result<JoinRequest, Refusal> {
    let wrong = |why: String| Refusal::new(Kind::Join, why);
    let allow = |header: &Header| {
        let is_fine = header.kind == FrameKind::Request
            && header.number == NUMBER
            && header.body_bytes <= REQUEST_BYTES_MAX
            && header.payload_bytes == 0;
        if is_fine {
            Ok(())
        } else {
            Err(Fault::new(
                "a machine that joins may send one small request",
            ))
        }
    };
    let frame = read_frame(stream, allow).await;
    let frame = frame.map_err(|fault| wrong(fault.to_string()))?;
    let Frame::Request { call, .. } = frame else {
        unreachable!("no other header was allowed");
    };
    if call.method != JOIN {
        return Err(wrong(
            "a machine that isn't a node asked for more than to join".into(),
        ));
    }
    let request: JoinRequest = call.decode().map_err(|error| wrong(error.to_string()))?;
    request.check().map_err(|error| wrong(error.to_string()))?;
    Ok(request)
}

/// Answers it.
pub(crate) async fn reply(
    world: &World,
    stream: &mut impl Stream,
    result: &Result<JoinReply>,
) -> std::result::Result<(), Refusal> {
    let frame = Frame::Reply {
        number: NUMBER,
        class: Class::Metadata,
        ending: Ending::Answered(Reply::new(result, Bytes::new())),
    };
    let sent = send(world, stream, frame.encode()).await;
    sent.map_err(|fault| Refusal::new(Kind::Join, fault.to_string()))
}

/// A machine that wants to join.
#[derive(Clone, Debug)]
pub struct Newcomer {
    /// Its new private key. Store it before joining: if the answer is lost, the token works once more
    /// with this key, and with no other.
    pub key: PrivateKey,
    /// Where the node will listen, the best address first.
    pub addresses: Vec<SocketAddr>,
    /// The machine's name.
    pub host: String,
    /// What it wishes to be, as the node's code encodes it.
    pub wishes: Vec<u8>,
}

/// What a machine that has joined got.
#[derive(Clone, Debug)]
pub struct Joined {
    /// What it proves itself with from now on; they say which node of which cluster it is. They must be
    /// stored before anything else: the token doesn't work twice.
    pub credentials: Credentials,
    /// What else the cluster told it, as the node's code encodes it.
    pub more: Vec<u8>,
}

/// Joins the cluster that the token names, until the deadline at most. Asks its nodes one after the
/// other. The same key may be used again if nobody answered; a cluster that admitted the machine
/// answers it as before.
///
/// # Errors
/// `AccessDenied` and others of [`Admit`] if the cluster refused; `Unavailable` with what was tried if no
/// node answered; `Corrupt` if the answer can't be believed.
pub async fn join(
    world: &World,
    token: &JoinToken,
    newcomer: &Newcomer,
    deadline: Deadline,
) -> Result<Joined> {
    let joining = |error: Error| error.while_doing("joining the cluster");
    let config = Arc::new(config(world, token.authority).map_err(joining)?);
    let request = JoinRequest {
        secret: token.secret,
        signing_request: newcomer.key.signing_request().map_err(joining)?,
        addresses: newcomer.addresses.clone(),
        host: newcomer.host.clone(),
        wishes: newcomer.wishes.clone(),
    };
    request.check().map_err(joining)?;
    let mut tried = String::new();
    for address in &token.addresses {
        if deadline.has_passed(world) {
            break;
        }
        match ask(world, *address, &config, &request, deadline).await {
            Ok(reply) => {
                let joined = believed(world, token, &newcomer.key, reply);
                return joined.map_err(|error| joining(error.while_doing("reading its answer")));
            }
            Err(Trial::Refused(error)) => return Err(joining(error)),
            Err(Trial::Failed(why)) => {
                write!(tried, "; {address}: {why}").expect("a string takes all");
            }
        }
    }
    let tried = tried.trim_start_matches("; ");
    let text = format!("no node that the token names could be asked: {tried}");
    Err(joining(Error::new(ErrorKind::Unavailable, text)))
}

/// How an attempt at one node failed.
enum Trial {
    /// The cluster has decided.
    Refused(Error),
    /// Another node may know better.
    Failed(String),
}

async fn ask(
    world: &World,
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    request: &JoinRequest,
    deadline: Deadline,
) -> std::result::Result<JoinReply, Trial> {
    let failed = |why: String| Trial::Failed(why);
    let soon = deadline.min(Deadline::after(world, CONNECT_MAX));
    let opened = async {
        let stream = world
            .connect(address, soon)
            .await
            .map_err(|error| error.to_string())?;
        // The name is read from the certificate by `TokenVerifier`.
        let anybody = server_name(NodeName {
            node: model::NodeId(0),
            cluster: 0,
        });
        let opened = connect_tls(stream, Purpose::Join, config, anybody).await;
        opened.map_err(|refusal| refusal.to_string())
    };
    let mut tls = match soon.bound(world, opened).await {
        Ok(opened) => opened.map_err(failed)?,
        Err(_) => return Err(failed("it doesn't answer".into())),
    };
    tls.get_mut().0.open();
    let answered = async {
        let mut call = Call::new(JOIN, Class::Metadata, request);
        call.reply_bytes_max = REPLY_BYTES_MAX as u32;
        let frame = Frame::Request {
            number: NUMBER,
            budget: deadline.rest(world),
            call,
        };
        send(world, &mut tls, frame.encode()).await?;
        let allow = |header: &Header| {
            let is_fine = header.kind == FrameKind::Reply
                && header.number == NUMBER
                && header.body_bytes <= REPLY_BYTES_MAX
                && header.payload_bytes == 0;
            if is_fine {
                Ok(())
            } else {
                Err(Fault::new("it answered something else"))
            }
        };
        read_frame(&mut tls, allow).await
    };
    let longest = deadline.min(Deadline::after(world, ADMISSION_MAX + CONNECT_MAX));
    let frame = match longest.bound(world, answered).await {
        Ok(frame) => frame.map_err(|fault| failed(fault.to_string()))?,
        Err(_) => return Err(failed("it doesn't answer in time".into())),
    };
    let Frame::Reply { ending, .. } = frame else {
        unreachable!("no other header was allowed");
    };
    let result = match ending {
        Ending::Answered(reply) => reply.decode::<JoinReply>(),
        Ending::NotRun(why) | Ending::Dropped(why) => return Err(failed(why)),
    };
    result.map_err(|error| match error.advice() {
        Advice::GiveUp | Advice::FixRequest => Trial::Refused(error),
        Advice::Retry | Advice::Wait | Advice::RefreshMap => failed(error.to_string()),
    })
}

/// Checks all that an answer says against the token and against itself.
fn believed(
    world: &World,
    token: &JoinToken,
    key: &PrivateKey,
    reply: JoinReply,
) -> Result<Joined> {
    let wrong = |why: &str| Error::new(ErrorKind::Corrupt, why);
    reply.check()?;
    let credentials = Credentials::from_der(key.clone(), &reply.certificate, &reply.authorities)?;
    let name = NodeName {
        node: reply.node,
        cluster: reply.cluster,
    };
    if credentials.name() != name {
        return Err(wrong(
            "the certificate is for another node than the answer says",
        ));
    }
    let mut known = credentials
        .authorities()
        .iter()
        .map(Certificate::fingerprint);
    if !known.any(|fingerprint| fingerprint == token.authority) {
        return Err(wrong(
            "the authority that the token names isn't among its authorities",
        ));
    }
    credentials.check_at(world.wall())?;
    Ok(Joined {
        credentials,
        more: reply.more,
    })
}

/// TLS without a certificate of one's own, with whoever has one by this authority.
fn config(world: &World, authority: Fingerprint) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_details(provider(Suites::ALL), clock(world));
    let config = builder
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TokenVerifier { authority }))
        .with_no_client_auth();
    Ok(finished_client(config, Purpose::Join))
}

/// Believes every node with a certificate by the authority whose fingerprint the token has: that one
/// comes with the node's certificate. Which node it is doesn't matter.
#[derive(Debug)]
struct TokenVerifier {
    authority: Fingerprint,
}

impl ServerCertVerifier for TokenVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let encoding = |_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding);
        let mut shown = intermediates.iter();
        let authority = shown.find_map(|one| {
            let one = Certificate::from_der(one).ok()?;
            (one.fingerprint() == self.authority).then_some(one)
        });
        let authority = authority.ok_or_else(unknown)?;
        let name = Certificate::from_der(end_entity).map_err(encoding)?.node();
        let name = name.filter(|name| authority.authority_of() == Some(name.cluster));
        let name = name.ok_or_else(unknown)?;
        let verifier = server_verifier([authority.rustls()]).map_err(encoding)?;
        verifier.verify_server_cert(end_entity, &[], &server_name(name), ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 isn't spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let provider = provider(Suites::ALL);
        let algorithms = &provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider = provider(Suites::ALL);
        provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The next frame, if its header is allowed.
async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    allow: impl Fn(&Header) -> std::result::Result<(), Fault>,
) -> std::result::Result<Frame, Fault> {
    let mut receiver = Receiver::new(None);
    loop {
        if let Some(frame) = receiver.next(&allow)? {
            return Ok(frame);
        }
        match stream.read(receiver.space()).await {
            Ok(0) => return Err(Fault::new("the other side closed the connection")),
            Ok(count) => receiver.received(count),
            Err(error) => return Err(Fault::new(format!("receiving failed: {error}"))),
        }
    }
}
