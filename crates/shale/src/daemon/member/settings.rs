//! `shale config`: the cluster's settings. Each is kept in coordination, for the whole cluster, for a class of nodes or for
//! one node; the narrower place wins.

use super::{
    InCluster,
    nodes::check_class,
    protection::{DEFAULT, mode_of},
};
use crate::admin::{ChangeSetting, SettingLine};
use coordination::{Coordination, settings_of_node};
use model::{Error, ErrorKind, NodeId, Result};

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

/// All settings. Those of the mount and of NSDs are given where these are made.
const SETTINGS: [Setting; 4] = [
    Setting {
        name: "repair_bytes_per_second",
        default: "none",
        kind: Kind::Number(4_096, 1 << 40),
        is_per_node: false,
        help: "bytes/s that repair, sweep and scrub together may read or write at one node; live",
    },
    Setting {
        name: "scrub_every_seconds",
        default: "none",
        kind: Kind::Number(10, 366 * 86_400),
        is_per_node: false,
        help: "seconds between two scrubs of a placement group; live",
    },
    Setting {
        name: "pagepool_bytes",
        default: "268435456",
        kind: Kind::Number(16 << 20, 1 << 40),
        is_per_node: true,
        help: "bytes of the page pool of each file system that a node uses; from the daemon's next start",
    },
    Setting {
        name: "cipher_list",
        default: "AUTHONLY",
        kind: Kind::Ciphers,
        is_per_node: false,
        help: "how connections between nodes are protected: AUTHONLY (file data can be read on the way, nothing can be changed), \
               ciphers of TLS 1.3 joined by colons (nothing can be read), EMPTY (not at all; for laboratories); live",
    },
];

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
    /// `shale config list`, as this node has them.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn settings(&self) -> Result<Vec<SettingLine>> {
        self.read_soon(self.read_settings()).await
    }

    async fn read_settings(&self) -> Result<Vec<SettingLine>> {
        let mut lines = Vec::new();
        for setting in &SETTINGS {
            let (value, from) = self.value_of(setting).await?;
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
        let place = place_of(change)?;
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
            let text = format!("the cluster has no node {node}; `shale node list` shows its nodes");
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        set(facts, &place.key(setting.name), change.value.as_deref()).await
    }

    async fn value_of(&self, setting: &Setting) -> Result<(String, String)> {
        let facts = self.member().coordination();
        if matches!(setting.kind, Kind::Ciphers) {
            return Ok(match self.cipher_list().await? {
                Some(wanted) => (wanted, Place::Cluster.text()),
                None => (DEFAULT.to_string(), "default".into()),
            });
        }
        let mut places = vec![Place::Cluster];
        if setting.is_per_node {
            places = vec![
                Place::Node(self.member().run().node.0),
                Place::Class(self.facts().class.clone()),
                Place::Cluster,
            ];
        }
        for place in places {
            if let Some(found) = facts.fact::<String>(&place.key(setting.name)).await? {
                return Ok((found.value, place.text()));
            }
        }
        Ok((setting.default.into(), "default".into()))
    }

    /// Bytes of a new client's page pool.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn page_pool_bytes(&self) -> Result<u64> {
        let setting = find("pagepool_bytes")?;
        let (value, _) = self.value_of(setting).await?;
        value.parse().map_err(|_| {
            let text = format!(
                "the setting {} is {value:?}, which is no number",
                setting.name
            );
            Error::new(ErrorKind::InvalidArgument, text)
        })
    }
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

/// Where a change is made.
fn place_of(change: &ChangeSetting) -> Result<Place> {
    match (change.node, &change.class) {
        (None, None) => Ok(Place::Cluster),
        (Some(node), None) => Ok(Place::Node(node)),
        (None, Some(class)) => {
            // It becomes a part of a key.
            check_class(class)?;
            Ok(Place::Class(class.clone()))
        }
        _ => {
            let text = "a setting is changed for one node or for one class, not for both at once";
            Err(Error::new(ErrorKind::InvalidArgument, text))
        }
    }
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

    #[test]
    fn a_setting_is_kept_where_a_node_or_a_class_can_be() {
        let change = |node, class: Option<&str>| ChangeSetting {
            name: "pagepool_bytes".into(),
            value: None,
            node,
            class: class.map(str::to_owned),
        };
        let key = |change| place_of(&change).map(|place| place.key("x"));
        assert_eq!(key(change(None, None)).unwrap(), "config/x");
        assert_eq!(
            key(change(None, Some("gpu"))).unwrap(),
            "config_of/class/gpu/x"
        );
        assert_eq!(
            key(change(Some(3), None)).unwrap(),
            "config_of/node/0000000003/x"
        );
        for wrong in [
            change(Some(3), Some("gpu")),
            change(None, Some("")),
            change(None, Some("a/b")),
        ] {
            assert_eq!(key(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
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
            for wrong in [
                (least - 1).to_string(),
                (most + 1).to_string(),
                "many".into(),
            ] {
                let refused = check(setting, &wrong).unwrap_err().to_string();
                assert!(refused.contains(setting.name), "{refused}");
            }
        }
    }
}
