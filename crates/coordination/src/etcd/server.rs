//! The command line of an etcd that a daemon runs. Pure.

use model::{Error, ErrorKind, Result};
use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

/// How often a leader says that it is there, by default: as often as etcd's own default says.
///
/// Members elect another leader 10 to 20 times this after the last one fell silent: here 1 to 2 s. Until then nobody
/// becomes the manager, so longer times delay whatever waits for one. They also delay it when a machine fell silent
/// that had both the manager and etcd's leader: the place (5 s) lasts up to 10 heartbeats longer after an election, so it
/// is free 8.5 s after; with later elections it is taken without waiting for that, but not before they are over. And no
/// lease is shorter than 15 heartbeats. Shorter times would make members that share a busy machine elect without a reason.
pub const HEARTBEAT: Duration = Duration::from_millis(100);
/// An election begins after this many heartbeats without one.
const HEARTBEATS_TO_ELECTION: u32 = 10;
/// The longest heartbeat with which a manager's place lasts no longer than it should.
const HEARTBEAT_MAX: Duration = Duration::from_millis(crate::PLACE_LEASE.as_millis() as u64 / 15);
const _: () = assert!(HEARTBEAT.as_millis() <= HEARTBEAT_MAX.as_millis());

/// Most operations of a transaction: those of an import of all facts and its mark.
const OPERATIONS_MAX: usize = crate::EXPORT_FACTS_MAX + 1;
/// Revisions that are kept for watches; etcd looks every five minutes. A watch that is behind them is
/// lost, which costs a list.
const REVISIONS_KEPT: u64 = 512;
/// Most bytes of the database: all these revisions of the largest facts, and as many again that come until etcd looks.
const DATABASE_BYTES_MAX: u64 = 1 << 30;
const _: () = assert!(2 * REVISIONS_KEPT * crate::STATE_BYTES_MAX as u64 <= DATABASE_BYTES_MAX);
/// Entries between two snapshots. Entries since then are in memory.
const ENTRIES_PER_SNAPSHOT: u64 = 10_000;
/// Old snapshots and logs that are kept, each.
const OLD_FILES_KEPT: u64 = 2;

/// An etcd server to be started: one member.
///
/// Start the program `etcd` with [`arguments`](Self::arguments) and without any `ETCD_…` in its
/// environment, which would be settings as well. It writes to its standard error what an operator may
/// want to know. [`Etcd::until_ready`](crate::etcd::Etcd::until_ready) waits until it works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdServer {
    /// The member's name, which no other member has.
    pub name: String,
    /// Where its data are. With data there it goes on from them, and `members` and `begin` mean
    /// nothing.
    pub data_directory: PathBuf,
    /// Where it listens for clients.
    pub client_listen: SocketAddr,
    /// Where clients reach it: host and port.
    pub client_authority: String,
    /// Where it listens for other members.
    pub peer_listen: SocketAddr,
    /// Where other members reach it: host and port.
    pub peer_authority: String,
    /// Names and peer authorities of all members, also of this one; of one that joins, exactly the
    /// members that the etcd has then.
    pub members: Vec<(String, String)>,
    /// Whether it begins an etcd or joins one.
    pub begin: EtcdBegin,
    /// Certificates, for clients and members alike; `None`: everybody who reaches it may do everything.
    pub certificates: Option<EtcdCertificates>,
    /// How often a leader says that it is there; [`HEARTBEAT`].
    pub heartbeat: Duration,
}

/// How a member without data begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EtcdBegin {
    /// It begins a new etcd with the other `members`. The token tells it from all others; members with
    /// different ones don't talk to each other.
    New {
        /// The cluster's id will do.
        token: String,
    },
    /// It was added to an etcd that runs ([`Etcd::add_learner`](crate::etcd::Etcd::add_learner)). It ends
    /// by itself if the member that it asks doesn't know of it yet: start it again.
    Join,
}

/// Files in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdCertificates {
    /// The member's certificate. It must be good for servers and for clients (or say nothing of
    /// either): the JSON gateway is a client of its own member, and members are each other's. Other
    /// members check that it names the host of `peer_authority`.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority whose certificates clients and other members must have.
    pub authority: PathBuf,
    /// What members have for each other; `None`: the same, and whoever is let in as a client is let in as a member.
    pub peer: Option<EtcdPeerCertificate>,
}

/// What a member of etcd has for other members: files in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdPeerCertificate {
    /// Its certificate, as [`EtcdCertificates::certificate`].
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The common name that its certificate has, and that those of all others must have.
    pub name: String,
}

impl EtcdServer {
    /// The arguments of the program `etcd`, without its name.
    ///
    /// # Errors
    /// `InvalidArgument`: a name or an authority that etcd would take for several, this member isn't
    /// among `members`, or the heartbeat is 0 or too long for the leases that Shale needs.
    pub fn arguments(&self) -> Result<Vec<OsString>> {
        self.check()?;
        let scheme = if self.certificates.is_some() {
            "https"
        } else {
            "http"
        };
        let url = |authority: &str| format!("{scheme}://{authority}");
        let members: Vec<String> = self
            .members
            .iter()
            .map(|(name, authority)| format!("{name}={}", url(authority)))
            .collect();
        let election = self.heartbeat * HEARTBEATS_TO_ELECTION;
        let mut arguments = vec![
            text("name", &self.name),
            path("data-dir", &self.data_directory),
            text("listen-client-urls", &url(&self.client_listen.to_string())),
            text("advertise-client-urls", &url(&self.client_authority)),
            text("listen-peer-urls", &url(&self.peer_listen.to_string())),
            text("initial-advertise-peer-urls", &url(&self.peer_authority)),
            text("initial-cluster", &members.join(",")),
            number("heartbeat-interval", self.heartbeat.as_millis() as u64),
            number("election-timeout", election.as_millis() as u64),
            // A member that comes back doesn't call an election while there is a leader.
            text("pre-vote", "true"),
            number("max-txn-ops", OPERATIONS_MAX as u64),
            text("auto-compaction-mode", "revision"),
            number("auto-compaction-retention", REVISIONS_KEPT),
            number("quota-backend-bytes", DATABASE_BYTES_MAX),
            number("snapshot-count", ENTRIES_PER_SNAPSHOT),
            number("max-snapshots", OLD_FILES_KEPT),
            number("max-wals", OLD_FILES_KEPT),
            text("logger", "zap"),
            text("log-outputs", "stderr"),
            text("log-level", "warn"),
        ];
        match &self.begin {
            EtcdBegin::New { token } => {
                arguments.push(text("initial-cluster-state", "new"));
                arguments.push(text("initial-cluster-token", token));
            }
            EtcdBegin::Join => arguments.push(text("initial-cluster-state", "existing")),
        }
        if let Some(files) = &self.certificates {
            let peer = files.peer.as_ref();
            let peer_certificate = peer.map_or(&files.certificate, |it| &it.certificate);
            for (flag, file) in [
                ("cert-file", &files.certificate),
                ("key-file", &files.key),
                ("trusted-ca-file", &files.authority),
                ("peer-cert-file", peer_certificate),
                ("peer-key-file", peer.map_or(&files.key, |it| &it.key)),
                ("peer-trusted-ca-file", &files.authority),
            ] {
                arguments.push(path(flag, file));
            }
            arguments.extend(peer.map(|it| text("peer-cert-allowed-cn", &it.name)));
            arguments.push(text("client-cert-auth", "true"));
            arguments.push(text("peer-client-cert-auth", "true"));
        }
        Ok(arguments)
    }

    fn check(&self) -> Result<()> {
        let refused = |text| Err(Error::new(ErrorKind::InvalidArgument, text));
        let is_plain = |part: &str| {
            let is_meant = |letter: char| letter.is_ascii_graphic() && !",=/".contains(letter);
            !part.is_empty() && part.chars().all(is_meant)
        };
        let own = [&self.name, &self.client_authority, &self.peer_authority];
        let others = self.members.iter().flat_map(|(name, peer)| [name, peer]);
        if let Some(part) = own.into_iter().chain(others).find(|it| !is_plain(it)) {
            return refused(format!(
                "{part:?} can't be the name of a member of etcd, or its host and port"
            ));
        }
        let own = (self.name.clone(), self.peer_authority.clone());
        if !self.members.contains(&own) {
            return refused(format!(
                "{} at {} isn't among the members that it is to begin with",
                self.name, self.peer_authority
            ));
        }
        if self.heartbeat.as_millis() == 0 || self.heartbeat > HEARTBEAT_MAX {
            return refused(format!(
                "a heartbeat of {:?} is too short or too long; 1 ms to {HEARTBEAT_MAX:?} can be",
                self.heartbeat
            ));
        }
        Ok(())
    }
}

fn text(flag: &str, value: &str) -> OsString {
    format!("--{flag}={value}").into()
}

fn number(flag: &str, value: u64) -> OsString {
    format!("--{flag}={value}").into()
}

fn path(flag: &str, value: &std::path::Path) -> OsString {
    let mut argument = OsString::from(format!("--{flag}="));
    argument.push(value);
    argument
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn server() -> EtcdServer {
        let member = |number| (format!("node-{number}"), format!("10.0.0.{number}:2380"));
        EtcdServer {
            name: "node-2".to_owned(),
            data_directory: "/var/lib/shale/etcd".into(),
            client_listen: "10.0.0.2:2379".parse().unwrap(),
            client_authority: "10.0.0.2:2379".to_owned(),
            peer_listen: "[::]:2380".parse().unwrap(),
            peer_authority: "10.0.0.2:2380".to_owned(),
            members: [1, 2, 3].map(member).to_vec(),
            begin: EtcdBegin::New {
                token: "c1".to_owned(),
            },
            certificates: None,
            heartbeat: HEARTBEAT,
        }
    }

    fn lines(server: &EtcdServer) -> Vec<String> {
        let arguments = server.arguments().unwrap().into_iter();
        arguments.map(|it| it.into_string().unwrap()).collect()
    }

    #[test]
    fn a_member_of_a_new_etcd_knows_all_members_and_where_it_is() {
        let lines = lines(&server());
        for line in [
            "--name=node-2",
            "--data-dir=/var/lib/shale/etcd",
            "--listen-client-urls=http://10.0.0.2:2379",
            "--advertise-client-urls=http://10.0.0.2:2379",
            "--listen-peer-urls=http://[::]:2380",
            "--initial-advertise-peer-urls=http://10.0.0.2:2380",
            "--initial-cluster=node-1=http://10.0.0.1:2380,node-2=http://10.0.0.2:2380,\
             node-3=http://10.0.0.3:2380",
            "--initial-cluster-state=new",
            "--initial-cluster-token=c1",
            "--heartbeat-interval=100",
            "--election-timeout=1000",
        ] {
            assert!(lines.iter().any(|it| it == line), "{line} in {lines:#?}");
        }
        let flag = |line: &String| line.split('=').next().unwrap().to_owned();
        let mut flags: Vec<String> = lines.iter().map(flag).collect();
        flags.sort();
        flags.dedup();
        assert_eq!(flags.len(), lines.len(), "each flag once");
    }

    #[test]
    fn a_member_that_joins_begins_nothing() {
        let mut joins = server();
        joins.begin = EtcdBegin::Join;
        let lines = lines(&joins);
        assert!(lines.contains(&"--initial-cluster-state=existing".to_owned()));
        assert!(!lines.iter().any(|it| it.contains("token")));
    }

    #[test]
    fn with_certificates_nobody_is_let_in_without_one() {
        let mut secured = server();
        secured.certificates = Some(EtcdCertificates {
            certificate: "/c.pem".into(),
            key: "/k.pem".into(),
            authority: "/a.pem".into(),
            peer: None,
        });
        let lines_of = |server: &EtcdServer| lines(server);
        let lines = lines(&secured);
        assert!(!lines.iter().any(|it| it.contains("allowed-cn")));
        for line in [
            "--client-cert-auth=true",
            "--trusted-ca-file=/a.pem",
            "--cert-file=/c.pem",
            "--key-file=/k.pem",
            "--peer-client-cert-auth=true",
            "--peer-trusted-ca-file=/a.pem",
            "--peer-cert-file=/c.pem",
            "--peer-key-file=/k.pem",
        ] {
            assert!(lines.iter().any(|it| it == line), "{line}");
        }
        assert!(!lines.iter().any(|it| it.contains("http://")));
        secured.certificates.as_mut().unwrap().peer = Some(EtcdPeerCertificate {
            certificate: "/p.pem".into(),
            key: "/p.key".into(),
            name: "a member".to_owned(),
        });
        let lines = lines_of(&secured);
        for line in [
            "--cert-file=/c.pem",
            "--peer-trusted-ca-file=/a.pem",
            "--peer-cert-file=/p.pem",
            "--peer-key-file=/p.key",
            "--peer-cert-allowed-cn=a member",
        ] {
            assert!(lines.iter().any(|it| it == line), "{line}");
        }
    }

    #[test]
    fn what_etcd_would_read_in_another_way_is_refused() {
        let wrong: [fn(&mut EtcdServer); 7] = [
            |it| it.name = String::new(),
            |it| it.name = "other".to_owned(),
            |it| it.members[0].0 = "a,b".to_owned(),
            |it| it.members[0].1 = "h:1,x=http://h:2".to_owned(),
            |it| it.client_authority = "h:1/path".to_owned(),
            |it| it.heartbeat = Duration::ZERO,
            |it| it.heartbeat = Duration::from_secs(1),
        ];
        for spoil in wrong {
            let mut server = server();
            spoil(&mut server);
            let refused = server.arguments().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{server:?}");
        }
    }
}
