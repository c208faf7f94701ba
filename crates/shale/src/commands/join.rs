//! `shale node join`: makes this machine a node of a cluster.
//!
//! What can be known before is checked first. While the machine's place in the cluster is made, the command has the directory's
//! lock. Whatever fails can be tried again with the same command, and with another token if the first one's time is over:
//! the machine's key is kept, and the cluster knows it by that.

use super::{
    present::report,
    start::{ask, block_on, now, running, start},
};
use crate::{
    admin::{AddNsd, ClusterView, NodeLine, NsdLine, client::Admin},
    cli::Join,
    daemon::config::{ClusterConfig, NodeConfig, Plan},
    daemon::member::{
        checks,
        joining::{self, Wishes},
        keys,
    },
    daemon::mounts::check_place,
    directory::lock,
    output::warning,
};
use coordination::check_node_name;
use hyper::Method;
use model::{Error, ErrorKind, Result, Timestamp};
use rpc::security::{Fingerprint, JoinToken};
use std::{
    io::Read,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};
use world::World;

/// How long a quorum node's member of etcd may take to catch up.
const VOTE_MAX: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// NSDs of a node if nothing else is said.
const NSDS_DEFAULT: u32 = 1;
/// Most bytes that are read of a token.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Joins, starts the daemon, makes the NSDs.
///
/// # Errors
/// What was refused, and what to do.
pub fn join(join: &Join, json: bool) -> Result<ExitCode> {
    let dir = &join.dir.absolute();
    let token = JoinToken::from_text(&token_text(join)?)?;
    if let Some(name) = &join.name {
        check_node_name(name)?;
    }
    if let Some(mount) = &join.mount {
        check_place(dir, mount)?;
    }
    let plan = Plan::of_new_member(join.mount.as_deref(), join.allow_other, join.nsd_size)?;
    let cluster = match NodeConfig::load_to_join(dir)? {
        None => become_node(dir, join, &token, &plan)?,
        Some(config) => go_on(dir, join, &token, config)?,
    };
    if let Err(error) = match running(dir)? {
        None => start(dir, false),
        Some(_) => Ok(()),
    }
        // Somebody else may have started it meanwhile.
        && running(dir)?.is_none()
    {
        return Err(error);
    }
    if cluster.etcd.is_some() {
        wait_for_vote(dir, cluster.node)?;
    }
    let wanted = join.nsds.unwrap_or(NSDS_DEFAULT) as usize;
    for _ in nsds_of(dir, cluster.node)?..wanted {
        let add = AddNsd {
            bytes: join.nsd_size,
            path: None,
        };
        ask::<Vec<NsdLine>>(dir, "/v1/nsds", add)
            .map_err(|error| error.while_doing("adding an NSD to the node, which has joined"))?;
    }
    let status = running(dir)?.ok_or_else(|| {
        Error::new(
            ErrorKind::Unavailable,
            "the daemon ended right after it started",
        )
    })?;
    report(&status, "has joined the cluster", json)
}

/// The token, from wherever it is.
fn token_text(join: &Join) -> Result<String> {
    let (from, what): (Box<dyn Read>, _) = match (&join.token_file, join.token.as_deref()) {
        (Some(path), _) => {
            let doing = format!("reading the join token in {}", path.display());
            let file = std::fs::File::open(path);
            let failed = |error: std::io::Error| Error::new(ErrorKind::NotFound, error.to_string());
            let file = file.map_err(|error| failed(error).while_doing(&doing))?;
            (Box::new(file), doing)
        }
        (None, Some("-")) => {
            let doing = "reading the join token on standard input".to_owned();
            (Box::new(std::io::stdin()), doing)
        }
        (None, token) => return Ok(token.expect("the command line asks for one").to_owned()),
    };
    let mut text = String::new();
    from.take(TOKEN_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, error.to_string()).while_doing(what)
        })?;
    Ok(text)
}

/// Waits until the node's member of etcd has its vote: the cluster doesn't survive more than before until then.
fn wait_for_vote(dir: &Path, own: u32) -> Result<()> {
    let begun = Instant::now();
    loop {
        let view: Result<ClusterView> = get(dir, "/v1/cluster");
        let has_vote = |line: &NodeLine| line.node == own && line.etcd.is_some();
        match view {
            Ok(view) if view.nodes.iter().any(has_vote) => return Ok(()),
            _ if begun.elapsed() > VOTE_MAX => {
                let text = format!(
                    "the node has joined, but its member of etcd has no vote after {} s: see {}, and try the same command again",
                    VOTE_MAX.as_secs(),
                    dir.join("daemon.log").display()
                );
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            _ => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// How many NSDs the pool's map says that the node has. node.toml may name one whose adding broke off.
fn nsds_of(dir: &Path, own: u32) -> Result<usize> {
    let lines: Vec<NsdLine> = get(dir, "/v1/nsds")?;
    Ok(count_nsds(&lines, own))
}

fn count_nsds(lines: &[NsdLine], own: u32) -> usize {
    let is_its = |line: &&NsdLine| line.node == Some(own) && line.state != "lost";
    lines.iter().filter(is_its).count()
}

fn get<A: serde::de::DeserializeOwned>(dir: &Path, path: &str) -> Result<A> {
    block_on(async { Admin::of(dir).ask(Method::GET, path, ()).await })?
}

fn become_node(dir: &Path, join: &Join, token: &JoinToken, plan: &Plan) -> Result<ClusterConfig> {
    let now = now()?;
    if token.has_expired(now) {
        warning(&clocks_differ(now, token.expires));
    }
    block_on(async { checks::check_place(&World::real(), join.address, join.quorum).await })??;
    // Makes the directory, in which the lock is.
    let mut config = NodeConfig::of_new_member(dir, plan)?;
    let _lock = lock::take(dir)?;
    if NodeConfig::load_to_join(dir)?.is_some() {
        let text = format!(
            "another command has made a node in {} meanwhile; try again to see whether it is the one that you want",
            dir.display()
        );
        return Err(Error::new(ErrorKind::Busy, text));
    }
    let wishes = Wishes {
        name: join.name.clone(),
        is_quorum: join.quorum,
    };
    let cluster = block_on(async {
        joining::become_node(&World::real(), dir, token, join.address, &wishes).await
    })??;
    config.cluster = Some(cluster.clone());
    config.store(dir)?;
    Ok(cluster)
}

/// What the user should know if the token's time is over by this machine's clock: the cluster's clock decides.
fn clocks_differ(now: Timestamp, expires: Timestamp) -> String {
    let text = |time: Timestamp| {
        let time = chrono::DateTime::from_timestamp(time.seconds(), 0);
        time.map_or_else(
            || "?".into(),
            |it| it.format("%Y-%m-%d %H:%M:%S").to_string(),
        )
    };
    format!(
        "this machine's clock says {} UTC, and the join token was good until {}; if the cluster takes it all the same, this \
         clock is wrong: set it (`timedatectl`)",
        text(now),
        text(expires)
    )
}

/// A directory that has joined already: goes on where it broke off, if the same is wanted.
fn go_on(
    dir: &Path,
    join: &Join,
    token: &JoinToken,
    mut config: NodeConfig,
) -> Result<ClusterConfig> {
    let cluster = config.cluster.clone().filter(|it| !it.founding);
    let Some(mut cluster) = cluster else {
        let text = format!(
            "{} already holds a node with a file system of its own; use another --dir, or a machine that has none",
            dir.display()
        );
        return Err(Error::new(ErrorKind::Exists, text));
    };
    let authorities = keys::load(dir)?.authorities().to_vec();
    let is = Is {
        authorities: authorities.iter().map(|it| it.fingerprint()).collect(),
        is_quorum: !keys::load_authorities(dir)?.is_empty(),
        config: &config,
    };
    is.refuse_other(&cluster, join, token)?;
    if running(dir)?.is_none() {
        let _lock = lock::take(dir)?;
        let added = async { joining::add_again(&World::real(), dir, &cluster).await };
        match block_on(added)? {
            Ok(None) => {}
            Ok(Some(etcd)) => {
                cluster.etcd = Some(etcd);
                config.cluster = Some(cluster.clone());
                config.store(dir)?;
            }
            // Perhaps because this node isn't up: its daemon says more.
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            Err(error) => return Err(error),
        }
    }
    Ok(cluster)
}

/// What a directory that has joined is.
struct Is<'a> {
    authorities: Vec<Fingerprint>,
    is_quorum: bool,
    config: &'a NodeConfig,
}

impl Is<'_> {
    /// Refuses what would make another node of it: ignoring it would look like success.
    fn refuse_other(&self, own: &ClusterConfig, join: &Join, token: &JoinToken) -> Result<()> {
        let differs = if !self.authorities.contains(&token.authority) {
            Some("the token is for another cluster".to_owned())
        } else if join.address != own.address {
            Some(format!(
                "it listens at {}, not at {}",
                own.address, join.address
            ))
        } else if join.name.as_ref().is_some_and(|name| *name != own.name) {
            Some(format!("its name is {}", own.name))
        } else if join.quorum && !self.is_quorum {
            Some("it isn't a quorum node".to_owned())
        } else if !join.quorum && self.is_quorum {
            Some("it is a quorum node, and --quorum isn't given".to_owned())
        } else if join.mount.is_some() && self.mount_differs(join) {
            Some(format!("it mounts at {}", self.config.mount.display()))
        } else if join.allow_other && !self.config.allow_other {
            Some("it mounts without --allow-other".to_owned())
        } else {
            None
        };
        let Some(differs) = differs else {
            return Ok(());
        };
        let text = format!(
            "this directory is node {} ({}) of cluster {} already, and {differs}; repeat the command as it was, start the node \
             with `shale up`, or join with another --dir (`shale node remove` removes a node that is given up)",
            own.node, own.name, own.id
        );
        Err(Error::new(ErrorKind::Exists, text))
    }

    fn mount_differs(&self, join: &Join) -> bool {
        let wanted = join.mount.as_ref();
        let wanted = wanted.and_then(|it| std::path::absolute(it).ok());
        wanted.as_ref() != Some(&self.config.mount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command, NodeCommand};
    use clap::Parser;

    fn time(seconds: i64) -> Timestamp {
        Timestamp::from_timespec(1_800_000_000 + seconds, 0)
    }

    fn token(authority: u8) -> JoinToken {
        let address = "10.0.0.1:7311".parse().unwrap();
        JoinToken::new(vec![address], Fingerprint([authority; 32]), time(0)).unwrap()
    }

    fn arguments(more: &[&str]) -> Join {
        let mut all = vec!["shale", "node", "join", "-"];
        all.extend(more);
        if !more.contains(&"--address") {
            all.extend(["--address", "10.0.0.2"]);
        }
        let cli = Cli::parse_from(all);
        match cli.command {
            Command::Node(NodeCommand::Join(join)) => join,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_directory_that_has_joined_is_what_it_is() {
        let home = tempfile::tempdir().unwrap();
        let plan = Plan::of_new_member(None, false, None).unwrap();
        let config = NodeConfig::of_new_member(&home.path().join("node"), &plan).unwrap();
        let own = ClusterConfig {
            id: "7".into(),
            node: 2,
            name: "n2".into(),
            address: "10.0.0.2:7311".parse().unwrap(),
            coordination: Vec::new(),
            etcd_id: None,
            prefix: "/shale/7/".into(),
            etcd: None,
            outside: None,
            founding: false,
        };
        let refused = |is_quorum: bool, authority: u8, more: &[&str]| {
            let is = Is {
                authorities: vec![Fingerprint([1; 32])],
                is_quorum,
                config: &config,
            };
            let refused = is.refuse_other(&own, &arguments(more), &token(authority));
            refused.err().map(|error| error.to_string())
        };
        assert_eq!(refused(false, 1, &[]), None);
        assert_eq!(refused(false, 1, &["--name", "n2", "--nsds", "3"]), None);
        assert_eq!(refused(true, 1, &["--quorum"]), None);
        for (is_quorum, authority, more, part) in [
            (false, 9, &[][..], "another cluster"),
            (
                false,
                1,
                &["--address", "10.0.0.3"],
                "listens at 10.0.0.2:7311",
            ),
            (false, 1, &["--name", "other"], "name is n2"),
            (false, 1, &["--quorum"], "isn't a quorum node"),
            (true, 1, &[], "is a quorum node"),
            (false, 1, &["--mount", "/elsewhere"], "mounts at"),
            (false, 1, &["--allow-other"], "without --allow-other"),
        ] {
            let text = refused(is_quorum, authority, more).unwrap_or_default();
            assert!(text.contains(part), "{more:?}: {text}");
            assert!(text.contains("node 2 (n2)"), "{text}");
        }
    }

    #[test]
    fn the_clocks_that_differ_are_named() {
        let text = clocks_differ(time(301), token(1).expires);
        assert!(
            text.contains("2027-01-15 08:05:01 UTC") && text.contains("until 2027-01-15 08:05:00"),
            "{text}"
        );
    }

    #[test]
    fn an_nsd_counts_when_the_pool_has_it() {
        let line = |node, state: &str| NsdLine {
            nsd: 1,
            node,
            node_name: None,
            address: None,
            path: String::new(),
            failure_group: None,
            state: state.into(),
            health: "online".into(),
            capacity: 0,
            used: 0,
            blobs: 0,
            bytes_read: 0,
            bytes_written: 0,
        };
        let lines = [
            line(Some(2), "active"),
            line(Some(2), "draining"),
            line(Some(2), "lost"),
            line(Some(1), "active"),
            line(None, "active"),
        ];
        assert_eq!(count_nsds(&lines, 2), 2);
    }

    #[test]
    fn a_token_is_read_from_a_file_so_that_no_other_user_sees_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("token");
        std::fs::write(&path, format!("{}\n", token(1).to_text())).unwrap();
        let first = ["shale", "node", "join", "--address", "10.0.0.2"];
        let with = |more: &[&str]| Cli::try_parse_from([&first[..], more].concat());
        let file = path.to_str().unwrap();
        let Ok(cli) = with(&["--token-file", file]) else {
            panic!("a file is enough");
        };
        let Command::Node(NodeCommand::Join(join)) = cli.command else {
            panic!("it joins");
        };
        let read = JoinToken::from_text(&token_text(&join).unwrap()).unwrap();
        assert_eq!(read.authority, token(1).authority);
        with(&[]).unwrap_err();
        with(&["token", "--token-file", file]).unwrap_err();
    }
}
