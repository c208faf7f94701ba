//! `lab.toml` in a lab's directory: what the lab was made of. What runs and how the network is, is
//! never written down: the kernel is asked.

use super::super::machine::names::{NODES_MAX, Names};
use crate::output::bytes;
use model::{Error, ErrorKind, Result, Scheme};
use serde::{Deserialize, Serialize};
use std::{io, path::Path};

/// Its name.
pub const FILE: &str = "lab.toml";
/// The version that this program writes.
const VERSION: u32 = 1;
/// Bytes of an NSD if none are given.
const NSD_BYTES_DEFAULT: u64 = 1 << 30;

/// The part that every version has.
#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// `lab.toml`.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Record {
    version: u32,
    /// What its namespaces are named after.
    id: String,
    /// Whether all nodes have joined.
    pub complete: bool,
    /// How it was asked for.
    pub settings: Settings,
}

/// What a lab is made of.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Nodes.
    pub nodes: u32,
    /// NSDs of each.
    pub nsds_per_node: u32,
    /// Bytes of each NSD.
    pub nsd_bytes: u64,
    /// The pool's scheme.
    pub scheme: String,
    /// Megabits per second of each node's link, each way.
    pub link_mbit: Option<u32>,
}

/// What a command asks for; the rest is chosen here, or as it was.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// As in [`Settings`].
    pub nodes: Option<u32>,
    /// As in [`Settings`].
    pub nsds_per_node: Option<u32>,
    /// As in [`Settings`].
    pub nsd_bytes: Option<u64>,
    /// As in [`Settings`].
    pub scheme: Option<Scheme>,
    /// As in [`Settings`].
    pub link_mbit: Option<u32>,
}

impl Wanted {
    /// Those of a new lab.
    ///
    /// # Errors
    /// `InvalidArgument` if something is missing, or the scheme doesn't fit.
    pub fn settings(&self) -> Result<Settings> {
        let wrong = |text: String| Error::new(ErrorKind::InvalidArgument, text);
        let nodes = self.nodes.ok_or_else(|| {
            wrong(format!(
                "a new lab needs --nodes N, with N from 1 to {NODES_MAX}"
            ))
        })?;
        let nsds_per_node = self.nsds_per_node.unwrap_or(1);
        let scheme = self.scheme.unwrap_or_else(|| usual_scheme(nodes));
        let nsds = nodes * nsds_per_node;
        if scheme.width() > nsds as usize {
            let text = format!(
                "scheme {scheme} needs {} NSDs, and {nodes} nodes with {nsds_per_node} each have \
                 {nsds}; ask for more nodes or a narrower scheme",
                scheme.width()
            );
            return Err(wrong(text));
        }
        Ok(Settings {
            nodes,
            nsds_per_node,
            nsd_bytes: self.nsd_bytes.unwrap_or(NSD_BYTES_DEFAULT),
            scheme: scheme.to_string(),
            link_mbit: self.link_mbit,
        })
    }

    /// Refuses what an existing lab isn't: ignoring it silently would look like success.
    ///
    /// # Errors
    /// `Exists`, saying what it is.
    pub fn refuse_other(&self, settings: &Settings) -> Result<()> {
        let refuse = |what: &str, is: String| {
            let text = format!(
                "this lab has {what} {is}; leave the option out, use another --dir, or make the lab \
                 anew after `shale lab down --purge`"
            );
            Err(Error::new(ErrorKind::Exists, text))
        };
        if self.nodes.is_some_and(|it| it != settings.nodes) {
            return refuse("--nodes", settings.nodes.to_string());
        }
        if self
            .nsds_per_node
            .is_some_and(|it| it != settings.nsds_per_node)
        {
            return refuse("--nsds-per-node", settings.nsds_per_node.to_string());
        }
        if self.nsd_bytes.is_some_and(|it| it != settings.nsd_bytes) {
            return refuse("--nsd-size", bytes(settings.nsd_bytes));
        }
        if self
            .scheme
            .is_some_and(|it| it.to_string() != settings.scheme)
        {
            return refuse("--scheme", settings.scheme.clone());
        }
        if self.link_mbit.is_some() && self.link_mbit != settings.link_mbit {
            let is = settings.link_mbit.map(|mbit| mbit.to_string());
            return refuse("--link-mbit", is.unwrap_or_else(|| "unlimited".into()));
        }
        Ok(())
    }
}

/// One lost node is survived wherever that can be; from six nodes on, any two.
fn usual_scheme(nodes: u32) -> Scheme {
    match nodes {
        1 => Scheme::Replicate(1),
        2 => Scheme::Replicate(2),
        3..=5 => Scheme::Erasure { k: 2, m: 1 },
        _ => Scheme::Erasure { k: 4, m: 2 },
    }
}

impl Record {
    /// Of a lab that is being made.
    pub fn new(names: &Names, settings: Settings) -> Self {
        Self {
            version: VERSION,
            id: names.id().to_owned(),
            complete: false,
            settings,
        }
    }

    /// The names of its namespaces.
    pub fn names(&self) -> Names {
        Names::with_id(&self.id)
    }

    /// Reads the file of a directory; `None` if it has none.
    ///
    /// # Errors
    /// `InvalidArgument`, `NotSupported` or `Unavailable`, saying what is wrong with it.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(FILE);
        let reading = |error: Error| error.while_doing(format!("reading {}", path.display()));
        let bytes = match world::host::read_file(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(reading(Error::new(
                    ErrorKind::Unavailable,
                    error.to_string(),
                )));
            }
        };
        Self::parse(&String::from_utf8_lossy(&bytes))
            .map(Some)
            .map_err(reading)
    }

    fn parse(text: &str) -> Result<Self> {
        let broken = |what: String| {
            let text = format!(
                "{what}; nothing was changed; remove the lab's directory by hand once `ip netns` \
                 shows none of its namespaces"
            );
            Error::new(ErrorKind::InvalidArgument, text)
        };
        // The version first: a newer file may have fields that this program doesn't know.
        let found: VersionOnly = toml::from_str(text).map_err(|it| broken(it.to_string()))?;
        if found.version != VERSION {
            let text = format!(
                "it is of version {}, and this program knows {VERSION}; use the Shale that made the \
                 lab",
                found.version
            );
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        let record: Self = toml::from_str(text).map_err(|it| broken(it.to_string()))?;
        let is_id = |id: &str| id.len() == 8 && id.bytes().all(|it| it.is_ascii_hexdigit());
        if !is_id(&record.id) || !(1..=NODES_MAX).contains(&record.settings.nodes) {
            return Err(broken("its id or number of nodes can't be right".into()));
        }
        Ok(record)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The system's, as `Unavailable`.
    pub fn store(&self, dir: &Path) -> Result<()> {
        let text = toml::to_string(self).expect("the record is plain structs");
        let path = dir.join(FILE);
        world::host::replace_file(&path, text.as_bytes()).map_err(|error| {
            Error::new(ErrorKind::Unavailable, error.to_string())
                .while_doing(format!("writing {}", path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};

    fn wanted(nodes: u32) -> Wanted {
        Wanted {
            nodes: Some(nodes),
            ..Wanted::default()
        }
    }

    #[test]
    fn a_record_reads_back_and_a_foreign_one_is_refused() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(Record::load(home.path()).unwrap(), None);
        let names = Names::of(home.path());
        let mut record = Record::new(&names, wanted(5).settings().unwrap());
        for link_mbit in [None, Some(1000)] {
            record.settings.link_mbit = link_mbit;
            record.store(home.path()).unwrap();
            assert_eq!(Record::load(home.path()).unwrap().as_ref(), Some(&record));
        }
        assert_eq!(record.names(), names);
        let text = toml::to_string(&record).unwrap();
        let with = |from: &str, to: &str| Record::parse(&text.replacen(from, to, 1)).unwrap_err();
        let newer = with("version = 1", "version = 2\nmore = 3").to_string();
        assert!(newer.contains("version 2"), "{newer}");
        for error in [
            with("nodes = 5", "nodes = 17"),
            with(names.id(), "../../etc"),
            with("complete", "finished"),
            Record::parse("\u{0}").unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }

    /// People may edit the file.
    #[test]
    fn any_text_is_a_labs_file_or_refused() {
        /// toml keeps a tree of the text beside what it reads of it.
        const TEXT: Memory = Memory {
            fixed: 256 << 10,
            per_byte: 512,
        };
        let read = Seen::default();
        let names = Names::with_id("0123abcd");
        let whole = Record::new(&names, wanted(5).settings().unwrap());
        let whole = toml::to_string(&whole).unwrap();
        fuzz!(ROUNDS, |input: &[u8]| {
            let changed = Source::new(input).changed(whole.as_bytes());
            for bytes in [input, &changed] {
                let text = String::from_utf8_lossy(bytes);
                let record = within(TEXT, text.len(), || Record::parse(&text));
                if let Ok(record) = record {
                    assert!((1..=NODES_MAX).contains(&record.settings.nodes));
                    assert_eq!(record.names().id().len(), 8);
                    let again = toml::to_string(&record).unwrap();
                    assert_eq!(Record::parse(&again).unwrap(), record);
                    read.note();
                }
            }
        });
        read.check(1, "changed files are read");
    }

    #[test]
    fn what_isnt_said_is_chosen_so_that_a_node_may_be_lost() {
        let schemes = [1, 2, 3, 5, 6, 16].map(|nodes| wanted(nodes).settings().unwrap().scheme);
        let usual = [
            "replicate(1)",
            "replicate(2)",
            "erasure(2+1)",
            "erasure(2+1)",
            "erasure(4+2)",
            "erasure(4+2)",
        ];
        assert_eq!(schemes, usual);
        let none = Wanted::default().settings().unwrap_err().to_string();
        assert!(none.contains("--nodes"), "{none}");
        let wide = Wanted {
            scheme: Some("erasure(4+2)".parse().unwrap()),
            ..wanted(5)
        };
        let said = wide.settings().unwrap_err().to_string();
        assert!(said.contains("needs 6 NSDs"), "{said}");
        let more = Wanted {
            nsds_per_node: Some(2),
            ..wide
        };
        assert_eq!(more.settings().unwrap().scheme, "erasure(4+2)");
    }

    #[test]
    fn an_existing_lab_refuses_to_become_another_one() {
        let settings = wanted(3).settings().unwrap();
        Wanted::default().refuse_other(&settings).unwrap();
        wanted(3).refuse_other(&settings).unwrap();
        let others = [
            wanted(4),
            Wanted {
                nsds_per_node: Some(2),
                ..Wanted::default()
            },
            Wanted {
                nsd_bytes: Some(2 << 30),
                ..Wanted::default()
            },
            Wanted {
                scheme: Some(Scheme::Replicate(2)),
                ..Wanted::default()
            },
            Wanted {
                link_mbit: Some(10),
                ..Wanted::default()
            },
        ];
        for other in others {
            let error = other.refuse_other(&settings).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Exists, "{other:?}");
        }
    }
}
