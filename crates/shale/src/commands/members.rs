//! Asks a node, or all members of its cluster at the same time, each for a bounded time.

use super::cluster::number_of;
use crate::admin::{MemberLine, client::Admin};
use crate::cli::Of;
use futures::stream::{self, StreamExt};
use hyper::Method;
use model::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long a member is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Most members that are asked at the same time.
const ASKED_MAX: usize = 64;

/// What can be done about a member that gives no answer.
pub(super) const SILENT_REMEDY: &str = "see whether its daemon runs, in the same version, and the network reaches it (`shale \
                                         node list`)";

/// What a member has said.
pub(super) struct Said<A> {
    pub(super) member: MemberLine,
    pub(super) answer: Result<A>,
}

/// What a node is called; by its number, if its name isn't known.
pub(super) fn name_of(member: &MemberLine) -> String {
    match member.name.is_empty() {
        true => format!("node {}", member.node),
        false => member.name.clone(),
    }
}

/// The path of a request for this node, or for another one.
pub(super) fn path_on(node: Option<u32>, path: &str) -> String {
    match node {
        Some(node) => format!("/v1/on/{node}/{path}"),
        None => format!("/v1/{path}"),
    }
}

/// The path of a request for the one node that is to be asked.
///
/// # Errors
/// As [`number_of`].
pub(super) async fn path_of(admin: &Admin, of: &Of, path: &str) -> Result<String> {
    let node = match &of.node {
        Some(node) => Some(number_of(admin, node).await?),
        None => None,
    };
    Ok(path_on(node, path))
}

/// Asks all members that are up, as the node knows them: also while coordination doesn't answer.
///
/// # Errors
/// Those of the node itself. What others have to say, or that they are silent, is in the answer.
pub(super) async fn ask_all<A: DeserializeOwned>(
    admin: &Admin,
    path: &str,
) -> Result<Vec<Said<A>>> {
    let members: Vec<MemberLine> = admin.ask(Method::GET, "/v1/members", ()).await?;
    let asked = members.into_iter().map(|member| async move {
        let path = path_on((!member.is_here).then_some(member.node), path);
        let asked = admin.ask(Method::GET, &path, ());
        let answer = match tokio::time::timeout(ANSWER_MAX, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(silent(&member)),
        };
        Said { member, answer }
    });
    Ok(stream::iter(asked).buffered(ASKED_MAX).collect().await)
}

fn silent(member: &MemberLine) -> Error {
    let text = format!(
        "no answer from {} within {} s",
        name_of(member),
        ANSWER_MAX.as_secs()
    );
    Error::new(ErrorKind::Unavailable, text)
}
