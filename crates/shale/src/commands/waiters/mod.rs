//! `shale waiters`: asks one node or all, and shows what waits as chains.

mod chains;
mod words;

#[cfg(test)]
mod tests;

use super::members::{Said, ask_all, name_of, path_of};
use crate::admin::{MemberLine, Waits, client::Admin};
use crate::cli::Of;
use crate::output::{self, say};
use chains::{Chains, Known};
use hyper::Method;
use model::{Error, ErrorKind, Result};
use serde::Serialize;
use std::process::ExitCode;
use words::{Shown, seconds};

/// Chains of shorter waits are only counted; as JSON they are there.
const SHOWN_MILLISECONDS_MIN: u64 = 1_000;
/// Most chains that are printed for people.
const PRINTED_MAX: usize = 100;

/// A wait for programs, with what it waits for if no other one contains it.
#[derive(Serialize)]
struct Line<'a> {
    what: &'a str,
    cause: &'a str,
    milliseconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain: Option<Shown>,
}

/// What all nodes have said, of one of them.
#[derive(Serialize)]
struct OfNode<'a> {
    node: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Vec<Line<'a>>>,
    /// More waits there than are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// Asks and prints. The exit code is 1 if a node doesn't answer.
///
/// # Errors
/// Those of the node that is asked.
pub(super) async fn waiters(of: &Of, json: bool) -> Result<ExitCode> {
    let admin = Admin::of(&of.dir.absolute());
    let mut known = Known::default();
    if !of.all {
        let path = path_of(&admin, of, "waiters").await?;
        let answer: serde_json::Value = admin.ask(Method::GET, &path, ()).await?;
        let answer = typed(answer)?;
        // Of a node that is alone there is nobody to name.
        if answer.node.is_some() {
            known.know_names(&admin).await;
        }
        let place = answer.node;
        known.answers.insert(place, answer);
        match json {
            true => output::json(&lines(&known, place)),
            false => print(&known),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut members = Vec::new();
    for Said { member, answer } in ask_all(&admin, "waiters").await? {
        match answer.and_then(typed) {
            Ok(answer) => drop(known.answers.insert(Some(member.node), answer)),
            Err(error) => drop(known.silent.insert(member.node, told(&member, &error))),
        }
        known.names.insert(member.node, name_of(&member));
        members.push(member.node);
    }
    match json {
        true => {
            let all = members.iter().map(|node| of_node(&known, *node));
            output::json(&all.collect::<Vec<_>>());
        }
        false => print(&known),
    }
    Ok(ExitCode::from(u8::from(!known.silent.is_empty())))
}

impl Known {
    /// Learns what nodes are called, as far as the node knows.
    async fn know_names(&mut self, admin: &Admin) {
        let members: Result<Vec<MemberLine>> = admin.ask(Method::GET, "/v1/members", ()).await;
        let members = members.unwrap_or_default().into_iter();
        self.names
            .extend(members.map(|member| (member.node, name_of(&member))));
    }
}

fn typed(answer: serde_json::Value) -> Result<Waits> {
    serde_json::from_value(answer).map_err(|error| {
        let text = format!("the daemon's version differs from this command's ({error})");
        Error::new(ErrorKind::Unavailable, text)
    })
}

/// What is said of a member that gives no answer.
fn told(member: &MemberLine, error: &Error) -> String {
    let (name, text) = (name_of(member), error.to_string());
    match text.starts_with("no answer") {
        true => text,
        false => format!("no answer from {name}: {text}"),
    }
}

fn of_node(known: &Known, node: u32) -> OfNode<'_> {
    let answer = known.answers.get(&Some(node));
    OfNode {
        node,
        answer: answer.map(|_| lines(known, Some(node))),
        left_out: answer.map(|answer| answer.left_out).filter(|it| *it > 0),
        error: known.silent.get(&node).map(String::as_str),
    }
}

/// The waits of a node for programs: each that is no link of others, and those that begin a chain.
fn lines(known: &Known, place: chains::Place) -> Vec<Line<'_>> {
    let chains = Chains::new(known);
    let begin = chains.all();
    let mut begin: Vec<_> = begin
        .iter()
        .filter_map(|link| match link.item {
            chains::Item::Wait(at) => Some((at, link)),
            _ => None,
        })
        .collect();
    begin.reverse();
    let mut lines = Vec::new();
    for at in chains.numbers() {
        let (there, wait) = chains.wait(at);
        let chain = begin.pop_if(|(first, _)| *first == at);
        if there == place && (chain.is_some() || !wait.is_link) {
            lines.push(Line {
                what: &wait.what,
                cause: &wait.cause,
                milliseconds: wait.milliseconds,
                chain: chain.map(|(_, link)| words::shown(&chains, known, link)),
            });
        }
    }
    lines
}

/// Prints the chains for people.
fn print(known: &Known) {
    for line in in_words(known) {
        say!("{line}");
    }
}

/// The chains for people, the oldest first: those that have lasted for a second, and how many have for less.
fn in_words(known: &Known) -> Vec<String> {
    let chains = Chains::new(known);
    let all = chains.all();
    let all: Vec<Shown> = all
        .iter()
        .map(|link| words::shown(&chains, known, link))
        .collect();
    let (long, short): (Vec<_>, Vec<_>) = all
        .iter()
        .partition(|chain| chain.milliseconds >= Some(SHOWN_MILLISECONDS_MIN));
    let printed = long.iter().take(PRINTED_MAX);
    let mut said: Vec<String> = printed.flat_map(|chain| text_of(known, chain)).collect();
    if long.len() > PRINTED_MAX {
        let more = long.len() - PRINTED_MAX;
        said.push(format!(
            "and {more} more that have lasted for over 1 s; --json lists them"
        ));
    }
    match (long.is_empty(), short.len()) {
        (true, 0) => said.push("nothing waits".into()),
        (true, count) => said.push(format!("nothing has waited for over 1 s, {count} for less")),
        (false, 0) => {}
        (false, count) => said.push(format!("{count} have waited for less than 1 s")),
    }
    for (place, answer) in &known.answers {
        if answer.left_out > 0 {
            let there = place.map_or("here".into(), |node| {
                format!("on {}", words::name(known, node))
            });
            said.push(format!(
                "{} more wait {there} than are listed: chains may end too soon",
                answer.left_out
            ));
        }
    }
    said.extend(known.silent.values().cloned());
    said
}

/// The lines of a chain: each link below the one that waits for it.
fn text_of(known: &Known, chain: &Shown) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = vec![(0, chain)];
    while let Some((depth, link)) = left.pop() {
        let indent = "  ".repeat(depth);
        let age = link.milliseconds.map_or("-".into(), seconds);
        let node = link.node.map_or(String::new(), |node| {
            format!("{}: ", words::name(known, node))
        });
        lines.push(format!("{age:>8}  {indent}{node}{}", link.text));
        if let Some(remedy) = &link.remedy {
            lines.push(format!("{:8}  {indent}  ({remedy})", ""));
        }
        left.extend(link.links.iter().rev().map(|below| (depth + 1, below)));
    }
    lines
}
