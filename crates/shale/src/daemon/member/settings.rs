//! `shale config`: the cluster's settings. Each is kept in coordination, for the whole cluster, for a class of nodes or for
//! one node; the narrower place wins.

use super::{
    InCluster,
    nodes::check_class,
    protection::{DEFAULT, mode_of},
};
use crate::admin::{ChangeSetting, SettingLine};
use coordination::{Coordination, Roster, settings_of_node};
use model::{Error, ErrorKind, NodeId, Result};
use rpc::Connections;

/// Attempts of a change that collides with others'.
const ATTEMPTS_MAX: usize = 16;

/// A setting that exists.
struct Setting {
    name: &'static str,
    default: &'static str,
    kind: Kind,
    /// Whether nodes and classes may differ.
    is_per_node: bool,
    help: &'static str,
}

/// What a setting's values are.
#[derive(Clone, Copy)]
enum Kind {
    /// A number from the smallest to the largest.
    Number(u64, u64),
    /// How connections between nodes are protected. A change of it has steps, so it is kept in its own way
    /// (`protection`).
    Ciphers,
}

/// Counted connections to a node (`maxTcpConnsPerNodeConn`).
const CONNECTIONS: &str = "max_tcp_conns_per_node_conn";
/// What counts as a small message (`tscSmallMsgSizeThreshold`).
const SMALL_BYTES: &str = "tsc_small_msg_size_threshold_bytes";
/// Connections that small messages have for themselves (`tscSmallMsgTcpConnPct`).
const SMALL_PERCENT: &str = "tsc_small_msg_tcp_conn_pct";
const BOND_LINKS: &str = "bond_links";
const PAGE_POOL_BYTES: &str = "pagepool_bytes";

/// All settings. Those of the mount and of NSDs are given where these are made.
const SETTINGS: [Setting; 8] = [
    Setting {
        name: "repair_bytes_per_second",
        default: "268435456",
        kind: Kind::Number(4_096, 1 << 40),
        is_per_node: false,
        help: "bytes/s that repair, sweep and scrub together may read or write at one node, and as many again its owners when they \
               rewrite or balance; live",
    },
    Setting {
        name: "scrub_every_seconds",
        default: "1209600",
        kind: Kind::Number(10, 366 * 86_400),
        is_per_node: false,
        help: "seconds between two scrubs of a placement group; live",
    },
    Setting {
        name: PAGE_POOL_BYTES,
        default: "268435456",
        kind: Kind::Number(16 << 20, 1 << 40),
        is_per_node: true,
        help: "bytes of the page pool of each file system that a node uses; when the node opens it the next time, which the \
               daemon's start does",
    },
    Setting {
        name: "cipher_list",
        default: "AUTHONLY",
        kind: Kind::Ciphers,
        is_per_node: false,
        help: "how connections between nodes are protected: AUTHONLY (file data can be read on the way, nothing can be changed), \
               ciphers of TLS 1.3 joined by colons (nothing can be read), EMPTY (not at all; for laboratories); live",
    },
    Setting {
        name: CONNECTIONS,
        default: "2",
        kind: Kind::Number(1, 8),
        is_per_node: true,
        help: "connections for file data to each other node, besides one for small messages and one for leases; of two nodes the \
               smaller number counts; more than 2 for links that one core can't fill, or for bonds; live",
    },
    Setting {
        name: SMALL_BYTES,
        default: "524288",
        kind: Kind::Number(0, 4 << 20),
        is_per_node: true,
        help: "bytes of a request for file data and its reply up to which it goes with the small messages, past large ones; live",
    },
    Setting {
        name: SMALL_PERCENT,
        default: "0",
        kind: Kind::Number(0, 50),
        is_per_node: true,
        help: "percent of max_tcp_conns_per_node_conn that small messages have for themselves, rounded down; live",
    },
    Setting {
        name: BOND_LINKS,
        default: "0",
        kind: Kind::Number(0, 16),
        is_per_node: true,
        help: "links of the node's bond with xmit_hash_policy=layer3+4: connections to a node are spread over them by their ports; \
               0: no bond; for connections that are opened from then on",
    },
];

/// How a node is connected to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// How many connections it wants to each of them, and for what.
    pub connections: Connections,
    /// Over so many links of a bond they are spread; 0 or 1: they aren't.
    pub bond_links: u8,
}

/// Where a value may be kept.
#[derive(Clone)]
enum Place {
    Cluster,
    Class(String),
    Node(u32),
}

impl Place {
    fn key(&self, name: &str) -> String {
        match self {
            // As the daemons' own parts read it.
            Self::Cluster => format!("config/{name}"),
            Self::Class(class) => format!("config_of/class/{class}/{name}"),
            Self::Node(node) => format!("{}{name}", settings_of_node(NodeId(*node))),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Cluster => "cluster".into(),
            Self::Class(class) => format!("class {class}"),
            Self::Node(node) => format!("node {node}"),
        }
    }
}

impl InCluster {
    /// `shale config list`: as a node has them, or one of a class that has none of its own; otherwise as this node.
    ///
    /// # Errors
    /// `NotFound`: there is no such node; `InvalidArgument`: no class can be called so; those of coordination.
    pub async fn settings(
        &self,
        node: Option<u32>,
        class: Option<&str>,
    ) -> Result<Vec<SettingLine>> {
        self.read_soon(self.read_settings(node, class)).await
    }

    async fn read_settings(
        &self,
        node: Option<u32>,
        class: Option<&str>,
    ) -> Result<Vec<SettingLine>> {
        let (mut lines, places) = (Vec::new(), self.places(node, class).await?);
        for setting in &SETTINGS {
            let (value, from) = self.value_of(setting, &places).await?;
            lines.push(SettingLine {
                name: setting.name.into(),
                value,
                from,
                help: setting.help.into(),
            });
        }
        Ok(lines)
    }

    /// `shale config set`.
    ///
    /// # Errors
    /// `NotFound`: there is no such setting; `InvalidArgument`: the value is out of its range, or the setting is the whole
    /// cluster's; those of coordination.
    pub async fn change_setting(&self, change: &ChangeSetting) -> Result<()> {
        let setting = find(&change.name)?;
        let place = place_of(change.node, change.class.as_deref())?;
        if !setting.is_per_node && !matches!(place, Place::Cluster) {
            let text = format!(
                "{} is the same on all nodes; leave --node and --class out",
                setting.name
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if let Some(value) = &change.value {
            check(setting, value)?;
        }
        if matches!(setting.kind, Kind::Ciphers) {
            return self.set_cipher_list(change.value.as_deref()).await;
        }
        let facts = self.member().coordination();
        if let Place::Node(node) = place
            && facts.node_facts(NodeId(node)).await?.is_none()
        {
            return Err(no_node(NodeId(node)));
        }
        set(facts, &place.key(setting.name), change.value.as_deref()).await
    }

    /// Where a value may be that counts for a node, for one of a class that has none of its own, or for this node: the
    /// narrowest place first.
    async fn places(&self, node: Option<u32>, class: Option<&str>) -> Result<Vec<Place>> {
        let own = self.member().run().node;
        let node = match place_of(node, class)? {
            Place::Class(class) => return Ok(vec![Place::Class(class), Place::Cluster]),
            Place::Node(node) => NodeId(node),
            Place::Cluster => own,
        };
        let facts = self.member().coordination().node_facts(node).await?;
        let facts = facts.ok_or_else(|| match node == own {
            true => {
                let text = "this node isn't in its cluster any more: it was removed";
                Error::new(ErrorKind::NotFound, text)
            }
            false => no_node(node),
        })?;
        // The class that it is in now.
        let class = Place::Class(facts.value.class);
        Ok(vec![Place::Node(node.0), class, Place::Cluster])
    }

    async fn value_of(&self, setting: &Setting, places: &[Place]) -> Result<(String, String)> {
        let facts = self.member().coordination();
        if matches!(setting.kind, Kind::Ciphers) {
            return Ok(match self.cipher_list().await? {
                Some(wanted) => (wanted, Place::Cluster.text()),
                None => (DEFAULT.to_string(), "default".into()),
            });
        }
        for place in places {
            // What is the whole cluster's differs nowhere.
            if !setting.is_per_node && !matches!(place, Place::Cluster) {
                continue;
            }
            if let Some(found) = facts.fact::<String>(&place.key(setting.name)).await? {
                return Ok((found.value, place.text()));
            }
        }
        Ok((setting.default.into(), "default".into()))
    }

    /// How this node is to be connected to others, as far as it knows what the settings say.
    pub fn network(&self) -> Network {
        network(&self.member().roster(), self.member().run().node)
    }

    /// Bytes of a new client's page pool.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn page_pool_bytes(&self) -> Result<u64> {
        let setting = find(PAGE_POOL_BYTES)?;
        let places = self.places(None, None).await?;
        let (value, _) = self.value_of(setting, &places).await?;
        value.parse().map_err(|_| {
            let text = format!(
                "the setting {} is {value:?}, which is no number",
                setting.name
            );
            Error::new(ErrorKind::InvalidArgument, text)
        })
    }

    /// The same, as far as this node knows what the settings say, and so also while coordination doesn't answer.
    pub fn known_page_pool_bytes(&self) -> u64 {
        let member = self.member();
        number_of(&member.roster(), member.run().node, PAGE_POOL_BYTES)
    }
}

fn network(roster: &Roster, node: NodeId) -> Network {
    let number = |name| number_of(roster, node, name);
    let byte = |name| u8::try_from(number(name)).expect("its range is small");
    Network {
        connections: Connections {
            max: byte(CONNECTIONS),
            small_threshold_bytes: u32::try_from(number(SMALL_BYTES)).expect("its range is small"),
            small_percent: byte(SMALL_PERCENT),
        },
        bond_links: byte(BOND_LINKS),
    }
}

/// A setting that is a number, as the roster has it; the default if nobody has made it, or made it what it can't be.
fn number_of(roster: &Roster, node: NodeId, name: &str) -> u64 {
    let setting = find(name).expect("it is in the table");
    let class = roster.classes.get(&node).cloned().map(Place::Class);
    let places = [Some(Place::Node(node.0)), class, Some(Place::Cluster)];
    let mut places = places.iter().flatten();
    let made = places.find_map(|place| roster.settings.get(&place.key(name)));
    let made = made.filter(|value| check(setting, value).is_ok());
    let value = made.map_or(setting.default, String::as_str);
    value.parse().expect("it was checked, or is a default")
}

fn find(name: &str) -> Result<&'static Setting> {
    SETTINGS.iter().find(|it| it.name == name).ok_or_else(|| {
        let names: Vec<_> = SETTINGS.iter().map(|it| it.name).collect();
        let text = format!(
            "there is no setting {name:?}; there are: {}",
            names.join(", ")
        );
        Error::new(ErrorKind::NotFound, text)
    })
}

/// The place that is meant; the whole cluster if none is.
fn place_of(node: Option<u32>, class: Option<&str>) -> Result<Place> {
    match (node, class) {
        (None, None) => Ok(Place::Cluster),
        (Some(node), None) => Ok(Place::Node(node)),
        (None, Some(class)) => {
            // It becomes a part of a key.
            check_class(class)?;
            Ok(Place::Class(class.to_owned()))
        }
        _ => {
            let text = "a setting is for one node or for one class, not for both at once";
            Err(Error::new(ErrorKind::InvalidArgument, text))
        }
    }
}

fn no_node(node: NodeId) -> Error {
    let text = format!("the cluster has no node {node}; `shale node list` shows its nodes");
    Error::new(ErrorKind::NotFound, text)
}

fn check(setting: &Setting, value: &str) -> Result<()> {
    let (least, most) = match setting.kind {
        Kind::Number(least, most) => (least, most),
        Kind::Ciphers => return mode_of(value).map(drop),
    };
    match value.parse::<u64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(()),
        _ => {
            let text = format!(
                "{} is a number from {least} to {most} ({}), not {value:?}",
                setting.name, setting.help
            );
            Err(Error::new(ErrorKind::InvalidArgument, text))
        }
    }
}

async fn set(facts: &Coordination, key: &str, value: Option<&str>) -> Result<()> {
    for _ in 0..ATTEMPTS_MAX {
        let known = facts.fact::<String>(key).await?;
        let version = known.as_ref().map_or(0, |known| known.version);
        let changed = match (value, &known) {
            (None, None) => return Ok(()),
            (Some(value), Some(known)) if known.value == value => return Ok(()),
            (Some(value), _) => facts.set_fact(key, version, &value.to_owned()).await,
            (None, Some(_)) => facts.compare_and_set(key, version, None).await,
        };
        match changed {
            Err(error) if error.kind() == ErrorKind::Changed => {}
            other => return other.map(drop),
        }
    }
    let text = format!("{key} was changed by others {ATTEMPTS_MAX} times; try again");
    Err(Error::new(ErrorKind::Busy, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::ClientSettings;
    use node::Member;
    use std::collections::BTreeMap;

    #[test]
    fn a_setting_is_kept_where_a_node_or_a_class_can_be() {
        let key = |node, class| place_of(node, class).map(|place| place.key("x"));
        assert_eq!(key(None, None).unwrap(), "config/x");
        assert_eq!(key(None, Some("gpu")).unwrap(), "config_of/class/gpu/x");
        assert_eq!(key(Some(3), None).unwrap(), "config_of/node/0000000003/x");
        for (node, class) in [(Some(3), "gpu"), (None, ""), (None, "a/b")] {
            let refused = key(node, Some(class)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
    }

    /// Would be broken if somebody read that repair has no limit, or that nothing is scrubbed.
    #[test]
    fn what_is_shown_as_a_default_is_what_counts() {
        let shown = |name| find(name).unwrap().default.parse::<u64>().unwrap();
        assert_eq!(shown("repair_bytes_per_second"), Member::REPAIR_SPEED);
        let period = Member::SCRUB_PERIOD.as_secs();
        assert_eq!(shown("scrub_every_seconds"), period);
        let pool = ClientSettings::default().page_pool_bytes;
        assert_eq!(shown(PAGE_POOL_BYTES), pool);
    }

    #[test]
    fn values_have_ranges_and_names_are_known() {
        assert!(find("nothing").is_err());
        for setting in &SETTINGS {
            let Kind::Number(least, most) = setting.kind else {
                assert_eq!(setting.default, DEFAULT.to_string());
                for right in [
                    "authonly",
                    "EMPTY",
                    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384",
                ] {
                    assert!(check(setting, right).is_ok(), "{right}");
                }
                for wrong in ["", "none", "AUTHONLY also EMPTY", "AUTHONLY:EMPTY"] {
                    let refused = check(setting, wrong).unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{wrong}");
                }
                continue;
            };
            assert!(check(setting, &least.to_string()).is_ok());
            assert!(check(setting, &most.to_string()).is_ok());
            let below = least.checked_sub(1).map(|it| it.to_string());
            let others = [(most + 1).to_string(), "many".into(), "-1".into()];
            for wrong in others.into_iter().chain(below) {
                let refused = check(setting, &wrong).unwrap_err().to_string();
                assert!(refused.contains(setting.name), "{refused}");
            }
        }
    }

    #[test]
    fn a_node_is_connected_as_the_narrowest_setting_says_that_can_be() {
        let of = |made: &[(&str, &str)]| {
            let made = made.iter();
            let made = made.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let roster = Roster {
                settings: made.collect(),
                classes: BTreeMap::from([(NodeId(3), "gpu".into()), (NodeId(4), "cpu".into())]),
                ..Roster::default()
            };
            network(&roster, NodeId(3))
        };
        let default = Network {
            connections: Connections::default(),
            bond_links: 0,
        };
        assert_eq!(of(&[]), default);
        let cluster = ("config/max_tcp_conns_per_node_conn", "4");
        let class = ("config_of/class/gpu/max_tcp_conns_per_node_conn", "6");
        let node = ("config_of/node/0000000003/max_tcp_conns_per_node_conn", "8");
        let other = ("config_of/node/0000000004/max_tcp_conns_per_node_conn", "1");
        let max = |made: &[(&str, &str)]| of(made).connections.max;
        assert_eq!(max(&[cluster, other]), 4);
        assert_eq!(max(&[cluster, class, other]), 6);
        assert_eq!(max(&[cluster, class, node]), 8);
        // Written by a version that allows more.
        assert_eq!(max(&[(cluster.0, "9")]), default.connections.max);
        let all = of(&[
            ("config/tsc_small_msg_size_threshold_bytes", "0"),
            ("config/tsc_small_msg_tcp_conn_pct", "50"),
            ("config_of/class/gpu/bond_links", "2"),
        ]);
        let expected = Connections {
            small_threshold_bytes: 0,
            small_percent: 50,
            ..Connections::default()
        };
        assert_eq!((all.connections, all.bond_links), (expected, 2));
    }

    #[test]
    fn whatever_the_settings_of_connections_can_be_nodes_can_do() {
        let names = [CONNECTIONS, SMALL_BYTES, SMALL_PERCENT];
        let range = |name: &&str| match find(name).unwrap().kind {
            Kind::Number(least, most) => (least, most),
            Kind::Ciphers => unreachable!("it is a number"),
        };
        let ranges: Vec<_> = names.iter().map(range).collect();
        let with = |[max, small_bytes, small_percent]: [u64; 3]| Connections {
            max: max as u8,
            small_threshold_bytes: small_bytes as u32,
            small_percent: small_percent as u8,
        };
        let least = [0, 1, 2].map(|at| ranges[at].0);
        let most = [0, 1, 2].map(|at| ranges[at].1);
        with(least).check().unwrap();
        with(most).check().unwrap();
        for at in 0..3 {
            let mut more = most;
            more[at] += 1;
            with(more).check().unwrap_err();
        }
    }
}
