//! The node's own file: where its NSDs are and where it mounts. Facts of the cluster are in
//! coordination, not here.

use crate::directory::{lock, private};
use crate::{cli::Up, options::Options};
use model::{Error, ErrorKind, NsdId, Result, Scheme, limits};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
};

const FILE: &str = "node.toml";
/// Where it is written before it gets its name.
const NEW_FILE: &str = "node.toml.new";
/// The directory of a node's keys, which a machine makes before it has joined a cluster.
const KEYS: &str = "keys";
/// Region size if none is given.
const NSD_BYTES_DEFAULT: u64 = 20 << 30;
/// Below this, the structures of an NSD leave too little for data.
const NSD_BYTES_MIN: u64 = 512 << 20;

/// The version of `node.toml` of a node that is alone.
const VERSION_ALONE: u32 = 1;
/// The newest version that this program knows: that of a node of a cluster.
const VERSION: u32 = 2;

/// The part that every version of `node.toml` has.
#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// `node.toml`.
#[derive(Serialize, Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Version of this file.
    pub version: u32,
    /// Where the file system is mounted.
    pub mount: PathBuf,
    /// Whether other users may use the mount.
    pub allow_other: bool,
    /// The other mount options, as given to `-o`.
    #[serde(default)]
    pub options: String,
    /// Set when the file system has been created; until then `create` says how.
    pub created: bool,
    /// How the file system is created at the first start.
    pub create: Creation,
    /// Where the regions of this node's NSDs are, by NSD number.
    pub nsds: BTreeMap<String, PathBuf>,
    /// The node's place in its cluster; none on a node that is alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterConfig>,
}

/// A node's place in its cluster: what its daemon must know before it reaches coordination.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// The cluster, as 32 hex digits.
    pub id: String,
    /// The node's number.
    pub node: u32,
    /// Its name.
    pub name: String,
    /// Where it listens for other nodes.
    pub address: SocketAddr,
    /// Where the cluster's etcd answers, as `https://host:port`.
    pub coordination: Vec<String>,
    /// The etcd that they are members of, as hex digits; none until it has answered for the first time. No other one is
    /// believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_id: Option<String>,
    /// What the cluster's keys in it begin with.
    pub prefix: String,
    /// The member of etcd that this daemon runs; none if it runs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdConfig>,
    /// With what an etcd that others run is reached with TLS; none if it is the cluster's own, or has no TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<OutsideConfig>,
    /// The node was alone, and its facts aren't all in the cluster's etcd yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub founding: bool,
}

/// A member of etcd that a daemon runs.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// Where it listens for clients.
    pub client: SocketAddr,
    /// Where it listens for other members.
    pub peer: SocketAddr,
    /// It joins an etcd that runs with these members, by name and `host:port`; none: it begins a new one.
    #[serde(default)]
    pub joins: Vec<(String, String)>,
    /// It has run: from then on it is never started without its data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub began: bool,
}

/// Files for TLS with an etcd that others run.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct OutsideConfig {
    /// Certificates of the authorities that are believed.
    pub authority: PathBuf,
    /// Certificate and private key, if that etcd asks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// How to create the file system.
#[derive(Serialize, Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Creation {
    /// The pool's scheme.
    pub scheme: String,
    /// Bytes of each region.
    pub nsd_bytes: u64,
    /// Bytes per block.
    pub block_bytes: u32,
}

/// The arguments of `shale up`, validated.
pub struct Plan {
    mount: Option<PathBuf>,
    options: Option<Options>,
    allow_other: bool,
    nsd_bytes: Option<u64>,
    nsds: Option<u32>,
    scheme: Option<Scheme>,
    block_bytes: Option<u32>,
}

impl Plan {
    /// Checks the arguments.
    ///
    /// # Errors
    /// `InvalidArgument`, saying what to write instead.
    pub fn from_arguments(up: &Up) -> Result<Self> {
        let wrong = |text: String| Error::new(ErrorKind::InvalidArgument, text);
        let scheme: Option<Scheme> = up.scheme.as_deref().map(str::parse).transpose()?;
        let options = up.options()?;
        let mount = match &up.mount {
            Some(mount) => Some(
                std::path::absolute(mount)
                    .map_err(|e| wrong(format!("--mount {}: {e}", mount.display())))?,
            ),
            None => None,
        };
        let block_bytes = match up.block_size {
            None => None,
            Some(bytes) => {
                let fits = bytes.is_power_of_two()
                    && (u64::from(limits::BLOCK_BYTES_MIN)..=u64::from(limits::SEGMENT_BYTES_MAX))
                        .contains(&bytes);
                if !fits {
                    return Err(wrong(
                        "--block-size must be a power of two from 64K to 16M, like 4M".into(),
                    ));
                }
                Some(u32::try_from(bytes).expect("16 MiB fits 32 bits"))
            }
        };
        if up.nsd_size.is_some_and(|bytes| bytes < NSD_BYTES_MIN) {
            return Err(wrong("--nsd-size must be at least 512M".into()));
        }
        Ok(Self {
            mount,
            options,
            allow_other: up.allow_other,
            nsd_bytes: up.nsd_size,
            nsds: up.nsds,
            scheme,
            block_bytes,
        })
    }
}

impl Plan {
    /// What a machine that joins a cluster says of itself.
    ///
    /// # Errors
    /// As [`Plan::from_arguments`].
    pub fn of_new_member(
        mount: Option<&Path>,
        allow_other: bool,
        nsd_bytes: Option<u64>,
    ) -> Result<Self> {
        let wrong = |text: String| Error::new(ErrorKind::InvalidArgument, text);
        let mount = mount.map(|mount| {
            std::path::absolute(mount)
                .map_err(|e| wrong(format!("--mount {}: {e}", mount.display())))
        });
        if nsd_bytes.is_some_and(|bytes| bytes < NSD_BYTES_MIN) {
            return Err(wrong("--nsd-size must be at least 512M".into()));
        }
        Ok(Self {
            mount: mount.transpose()?,
            options: None,
            allow_other,
            nsd_bytes,
            nsds: None,
            scheme: None,
            block_bytes: None,
        })
    }

    /// This plan, with gaps filled from `config`.
    fn or(&self, config: &NodeConfig) -> Result<Self> {
        let create = &config.create;
        // Another scheme needs another number of NSDs.
        let nsds = match self.scheme {
            Some(_) => self.nsds,
            None => self.nsds.or(u32::try_from(config.nsds.len()).ok()),
        };
        Ok(Self {
            mount: Some(self.mount.clone().unwrap_or_else(|| config.mount.clone())),
            options: Some(self.options.clone().map_or_else(|| config.options(), Ok)?),
            allow_other: self.allow_other || config.allow_other,
            nsd_bytes: Some(self.nsd_bytes.unwrap_or(create.nsd_bytes)),
            nsds,
            scheme: Some(self.scheme.map_or_else(|| create.scheme.parse(), Ok)?),
            block_bytes: Some(self.block_bytes.unwrap_or(create.block_bytes)),
        })
    }
}

impl NodeConfig {
    /// Reads the file; `None` if the directory has none.
    ///
    /// # Errors
    /// `InvalidArgument` if the directory holds something else, or the file can't be read.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(FILE);
        private::check(dir)?;
        match private::check_file(&path) {
            Ok(ours) => ours?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error, "looking at", &path)),
        }
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                refuse_used_directory(dir, None)?;
                return Ok(None);
            }
            Err(error) => return Err(io(error, "reading", &path)),
        };
        // The version first: a newer file may have fields that this program doesn't know.
        let version: VersionOnly = parse(&text, &path)?;
        if version.version > VERSION {
            let text = format!(
                "{} was written by a newer Shale (version {}, this program knows {VERSION}); \
                 upgrade this node; the directory was left unchanged",
                path.display(),
                version.version
            );
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        let config: Self = parse(&text, &path)?;
        Ok(Some(config))
    }

    /// Takes a plan over for a directory whose daemon isn't running: writes the file of a new file system, of which the daemon
    /// creates the rest at its first start, or changes the file that is there. While it is written no daemon starts, and no
    /// other command writes it.
    ///
    /// # Errors
    /// `Busy`: a daemon has started meanwhile, or another command changes the node. `Exists` if the plan asks for another
    /// file system than there is. `InvalidArgument`, `NoSpace`, or the system's error.
    pub fn take_over(dir: &Path, plan: &Plan) -> Result<()> {
        match Self::load(dir)? {
            // Makes the directory, in which the lock is.
            None => drop(Self::planned(dir, plan)?),
            Some(mut config) if !config.is_written_for(plan) => return config.update(dir, plan),
            Some(_) => {}
        }
        let _lock = lock::take(dir)?;
        match Self::load(dir)? {
            None => Self::planned(dir, plan)?.store(dir),
            Some(mut config) => config.update(dir, plan),
        }
    }

    /// As [`NodeConfig::load`]; a directory that has only the keys of an attempt to join counts as empty.
    ///
    /// # Errors
    /// As [`NodeConfig::load`].
    pub fn load_to_join(dir: &Path) -> Result<Option<Self>> {
        if !dir.join(KEYS).exists() || dir.join(FILE).exists() {
            return Self::load(dir);
        }
        private::check(dir)?;
        refuse_used_directory(dir, Some(KEYS))?;
        Ok(None)
    }

    /// The configuration of a node that joins a cluster, without NSDs; nothing is written but the directory.
    ///
    /// # Errors
    /// The system's error.
    pub fn of_new_member(dir: &Path, plan: &Plan) -> Result<Self> {
        let mut config = Self::planned(dir, plan)?;
        config.nsds.clear();
        config.created = true;
        Ok(config)
    }

    fn planned(dir: &Path, plan: &Plan) -> Result<Self> {
        let scheme = plan.scheme.unwrap_or(Scheme::Replicate(1));
        let nsds = plan.nsds.unwrap_or(scheme.width() as u32);
        if (nsds as usize) < scheme.width() {
            let text = format!(
                "scheme {scheme} needs {} NSDs, --nsds says {nsds}; ask for --nsds {0} or a narrower scheme",
                scheme.width()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let mount = plan.mount.clone().unwrap_or_else(|| dir.join("mnt"));
        private::make_node_directory(dir, &mount).map_err(|e| io(e, "creating", dir))?;
        private::check(dir)?;
        let paths = (1..=nsds)
            .map(|nsd| {
                (
                    nsd.to_string(),
                    dir.join("nsd").join(format!("{nsd}.region")),
                )
            })
            .collect();
        Ok(Self {
            version: VERSION_ALONE,
            mount,
            allow_other: plan.allow_other,
            options: plan.options.clone().unwrap_or_default().to_string(),
            created: false,
            create: Creation {
                scheme: scheme.to_string(),
                nsd_bytes: plan.nsd_bytes.unwrap_or(NSD_BYTES_DEFAULT),
                block_bytes: plan.block_bytes.unwrap_or(limits::BLOCK_BYTES_DEFAULT),
            },
            nsds: paths,
            cluster: None,
        })
    }

    /// The regions of the node's NSDs.
    ///
    /// # Errors
    /// `InvalidArgument` if the file was edited badly.
    pub fn region_paths(&self) -> Result<BTreeMap<NsdId, PathBuf>> {
        let mut nsds = BTreeMap::new();
        for (number, path) in &self.nsds {
            let number = number.parse().map_err(|_| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!("node.toml: {number:?} under [nsds] is no NSD number"),
                )
            })?;
            nsds.insert(NsdId(number), path.clone());
        }
        Ok(nsds)
    }

    /// The options of the node's own mount.
    ///
    /// # Errors
    /// `InvalidArgument` if the file was edited badly.
    pub fn options(&self) -> Result<Options> {
        let mut options = Options::parse(&self.options)
            .map_err(|error| error.while_doing(format!("reading options in {FILE}")))?;
        options.allow_other |= self.allow_other;
        Ok(options)
    }

    /// Whether the file changes with this plan. If not, nothing is to be written: there may be no room for it.
    fn is_written_for(&self, plan: &Plan) -> bool {
        !self.created || plan.mount.is_some() || plan.options.is_some() || plan.allow_other
    }

    /// Takes over settings that may change from start to start; refuses the others.
    ///
    /// # Errors
    /// `Exists` if the plan asks for another scheme, size or number than the file system has.
    fn update(&mut self, dir: &Path, plan: &Plan) -> Result<()> {
        if !self.created {
            // The creation failed and left nothing; plan it anew.
            let planned = Self::planned(dir, &plan.or(self)?)?;
            return planned.store(dir);
        }
        self.refuse_other_file_system(dir, plan)?;
        if !self.is_written_for(plan) {
            return Ok(());
        }
        if let Some(mount) = &plan.mount {
            self.mount = mount.clone();
        }
        match &plan.options {
            // Replaces the whole list, so that an option can also be removed.
            Some(options) => {
                self.options = options.to_string();
                self.allow_other = plan.allow_other;
            }
            None => self.allow_other |= plan.allow_other,
        }
        self.store(dir)
    }

    /// Refuses a plan for another file system than the one that is there; ignoring its options
    /// silently would look like success.
    ///
    /// # Errors
    /// `Exists` if the plan asks for another scheme, size or number of NSDs, or block size.
    pub fn refuse_other_file_system(&self, dir: &Path, plan: &Plan) -> Result<()> {
        let differs = plan
            .scheme
            .is_some_and(|scheme| scheme.to_string() != self.create.scheme)
            || plan
                .nsd_bytes
                .is_some_and(|bytes| bytes != self.create.nsd_bytes)
            || plan
                .nsds
                .is_some_and(|nsds| nsds as usize != self.nsds.len())
            || plan
                .block_bytes
                .is_some_and(|bytes| bytes != self.create.block_bytes);
        if differs {
            let text = format!(
                "{} already holds a file system with {} on {} NSDs; leave these options out, or use another --dir (`shale nsd add` adds NSDs)",
                dir.display(),
                self.create.scheme,
                self.nsds.len()
            );
            return Err(Error::new(ErrorKind::Exists, text));
        }
        Ok(())
    }

    /// Replaces the file atomically and durably.
    ///
    /// # Errors
    /// The system's error.
    pub fn store(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let new = dir.join(NEW_FILE);
        let version = match self.cluster {
            Some(_) => VERSION,
            // Programs that know no clusters can go on with it.
            None => VERSION_ALONE,
        };
        let config = Self {
            version,
            ..self.clone()
        };
        let text = toml::to_string_pretty(&config).expect("the configuration is plain data");
        let write = || -> std::io::Result<()> {
            let how = &mut std::fs::File::options();
            let mut file = private::open(how.create(true).truncate(false).write(true), &new)?;
            file.set_len(0)?;
            file.write_all(b"# Written by shale; edit only while the node is down.\n")?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            std::fs::File::open(dir)?.sync_all()
        };
        write().map_err(|e| io(e, "writing", &path))
    }
}

fn parse<T: serde::de::DeserializeOwned>(text: &str, path: &Path) -> Result<T> {
    toml::from_str(text).map_err(|error| {
        let why = error.to_string();
        let text = format!(
            "{}; fix this line, or restore the file from a backup (it only names the mount \
             point and the regions, your data is in the regions)",
            why.trim().replace('\n', " ")
        );
        Error::new(ErrorKind::InvalidArgument, text)
            .while_doing(format!("reading {}", path.display()))
    })
}

/// A mistyped path must not turn a directory with other files into a node. `own`: one more name that may be there.
fn refuse_used_directory(dir: &Path, own: Option<&str>) -> Result<()> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error, "looking into", dir)),
    };
    // A new ext4 counts as an empty directory, and so does what a command has left that only took the lock, or found no room
    // for the node's file.
    let names = ["lost+found", lock::FILE, NEW_FILE].into_iter().chain(own);
    let names: Vec<_> = names.collect();
    let mut others = entries
        .filter_map(std::result::Result::ok)
        .filter(|entry| names.iter().all(|name| entry.file_name() != *name));
    if others.next().is_some() {
        let was_ours = dir.join("coordination.region").exists();
        let hint = if was_ours {
            "lost its node.toml: restore that file from a backup, or write it again (see \
             docs/operations/troubleshooting.md); nothing was changed"
        } else {
            "isn't empty and holds no Shale node; use an empty or new directory"
        };
        let text = format!("{} {hint}", dir.display());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok(())
}

fn io(error: std::io::Error, doing: &str, path: &Path) -> Error {
    use std::io::ErrorKind as Io;
    let (kind, hint) = match error.kind() {
        Io::PermissionDenied => (
            ErrorKind::AccessDenied,
            "; run as the user that owns it (root?), or use another --dir",
        ),
        Io::ReadOnlyFilesystem => (
            ErrorKind::ReadOnly,
            "; use a --dir on a file system that can be written",
        ),
        Io::StorageFull => (
            ErrorKind::NoSpace,
            "; free space there, or use another --dir",
        ),
        Io::NotADirectory | Io::AlreadyExists => (
            ErrorKind::NotDirectory,
            "; --dir must be a directory, or not exist yet",
        ),
        _ => (ErrorKind::Unavailable, ""),
    };
    Error::new(kind, format!("{error}{hint}")).while_doing(format!("{doing} {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};

    /// toml keeps a tree of the text beside what it reads of it.
    const TEXT: Memory = Memory {
        fixed: 256 << 10,
        per_byte: 512,
    };

    /// Would be broken if a disk that was full for a moment made people choose another directory, or if a mistyped path cost
    /// what is below it.
    #[test]
    fn a_directory_is_used_if_it_has_more_than_an_attempt_leaves() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path();
        let is_free = |to_join: bool| {
            let loaded = match to_join {
                true => NodeConfig::load_to_join(dir),
                false => NodeConfig::load(dir),
            };
            match loaded {
                Ok(found) => found.is_none(),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                    false
                }
            }
        };
        for left in ["lost+found", lock::FILE, NEW_FILE] {
            std::fs::write(dir.join(left), "").unwrap();
            assert!(is_free(false) && is_free(true), "{left}");
        }
        std::fs::create_dir(dir.join(KEYS)).unwrap();
        assert!(is_free(true) && !is_free(false));
        // Of something else that has keys.
        std::fs::create_dir(dir.join("etcd")).unwrap();
        assert!(!is_free(true) && !is_free(false));
    }

    /// Would be broken if a node couldn't be started on a full disk.
    #[test]
    fn a_start_that_changes_nothing_writes_nothing() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("node");
        let same = Plan::of_new_member(None, false, None).unwrap();
        let mut config = NodeConfig::of_new_member(&dir, &same).unwrap();
        config.store(&dir).unwrap();
        // Nothing can be written there.
        std::fs::create_dir(dir.join(NEW_FILE)).unwrap();
        config.update(&dir, &same).unwrap();
        let other = Plan::of_new_member(Some(Path::new("/mnt")), false, None).unwrap();
        config.update(&dir, &other).unwrap_err();
        let more = Plan::of_new_member(None, true, None).unwrap();
        config.update(&dir, &more).unwrap_err();
    }

    /// Would be broken if two commands wrote the file at once, or one under a daemon that has just started: what the other
    /// one has noted, such as where its NSDs are, would be lost.
    #[test]
    fn a_plan_is_taken_over_while_nobody_else_has_the_directory() {
        let home = tempfile::tempdir().unwrap();
        let dir = &home.path().join("node");
        let plan = |mount: Option<&str>| {
            let mount = mount.map(Path::new);
            Plan::of_new_member(mount, false, None).unwrap()
        };
        NodeConfig::take_over(dir, &plan(None)).unwrap();
        let stored = || NodeConfig::load(dir).unwrap().unwrap();
        let held = lock::take(dir).unwrap();
        // Its file system isn't made yet: it would be planned anew.
        for mount in [None, Some("/mnt")] {
            let refused = NodeConfig::take_over(dir, &plan(mount)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        }
        let made = NodeConfig {
            created: true,
            ..stored()
        };
        made.store(dir).unwrap();
        NodeConfig::take_over(dir, &plan(None)).unwrap();
        let refused = NodeConfig::take_over(dir, &plan(Some("/mnt"))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        drop(held);
        NodeConfig::take_over(dir, &plan(Some("/mnt"))).unwrap();
        assert_eq!(stored().mount, Path::new("/mnt"));
        assert!(stored().created);
    }

    /// People edit the file.
    #[test]
    fn any_text_is_the_nodes_file_or_refused_with_a_reason() {
        let (made, read) = (Seen::default(), Seen::default());
        let path = Path::new("/srv/node/node.toml");
        fuzz!(ROUNDS, |input: &[u8]| {
            let mut source = Source::new(input);
            let mut texts = vec![String::from_utf8_lossy(input).into_owned()];
            let config = source.value::<NodeConfig>();
            // TOML has no numbers above 2^63.
            if let Some(text) = config.and_then(|config| toml::to_string_pretty(&config).ok()) {
                let config = parse::<NodeConfig>(&text, path).unwrap();
                assert_eq!(toml::to_string_pretty(&config).unwrap(), text);
                made.note();
                let changed = source.changed(text.as_bytes());
                texts.push(String::from_utf8_lossy(&changed).into_owned());
            }
            for text in texts {
                let version = within(TEXT, text.len(), || parse::<VersionOnly>(&text, path));
                match within(TEXT, text.len(), || parse::<NodeConfig>(&text, path)) {
                    Ok(config) => {
                        assert!(version.is_ok());
                        let _ = config.region_paths();
                        let _ = config.options();
                        read.note();
                    }
                    Err(error) => assert!(error.to_string().contains("node.toml"), "{error}"),
                }
            }
        });
        made.check(100, "files are made");
        read.check(1, "files are read");
    }
}
