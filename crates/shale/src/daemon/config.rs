//! The node's own file: where its NSDs are and where it mounts. Facts of the cluster are in
//! coordination, not here.

use crate::{cli::Up, options::Options};
use model::{Error, ErrorKind, Result, Scheme, limits};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const FILE: &str = "node.toml";
/// Region size when none is asked for.
const NSD_BYTES_DEFAULT: u64 = 20 << 30;
/// Below this, the structures of an NSD leave too little for data.
const NSD_BYTES_MIN: u64 = 512 << 20;

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
    /// The other mount options, as they stand behind `-o`.
    #[serde(default)]
    pub options: String,
    /// Set when the file system has been created; until then `create` says how.
    pub created: bool,
    /// How the file system is created at the first start.
    pub create: Creation,
    /// Where the regions of this node's NSDs are, by NSD number.
    pub nsds: BTreeMap<String, PathBuf>,
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

/// What `shale up` was asked for, checked.
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
    /// `InvalidArgument` with what to write instead.
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

impl NodeConfig {
    /// Reads the file; `None` if the directory has none.
    ///
    /// # Errors
    /// `InvalidArgument` if the directory holds something else, or the file can't be read.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(FILE);
        refuse_other_owner(dir, &path)?;
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                refuse_used_directory(dir)?;
                return Ok(None);
            }
            Err(error) => return Err(io(error, "reading", &path)),
        };
        let config: Self = toml::from_str(&text).map_err(|e| {
            Error::new(
                ErrorKind::InvalidArgument,
                e.to_string().trim().replace('\n', " "),
            )
            .while_doing(format!("reading {}", path.display()))
        })?;
        if config.version != 1 {
            let text = format!(
                "{} has version {}, this program knows 1; use the program that wrote it",
                path.display(),
                config.version
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(Some(config))
    }

    /// Writes the file for a new file system; the daemon creates the rest at its first start.
    ///
    /// # Errors
    /// `InvalidArgument`, `NoSpace`, or what the system says.
    pub fn create(dir: &Path, plan: &Plan) -> Result<()> {
        let scheme = plan.scheme.unwrap_or(Scheme::Replicate(1));
        let nsds = plan.nsds.unwrap_or(scheme.width() as u32);
        if (nsds as usize) < scheme.width() {
            let text = format!(
                "scheme {scheme} needs {} NSDs, --nsds says {nsds}; ask for --nsds {0} or a narrower scheme",
                scheme.width()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        std::fs::create_dir_all(dir).map_err(|e| io(e, "creating", dir))?;
        let paths = (1..=nsds)
            .map(|nsd| {
                (
                    nsd.to_string(),
                    dir.join("nsd").join(format!("{nsd}.region")),
                )
            })
            .collect();
        let config = Self {
            version: 1,
            mount: plan.mount.clone().unwrap_or_else(|| dir.join("mnt")),
            allow_other: plan.allow_other,
            options: plan.options.clone().unwrap_or_default().to_string(),
            created: false,
            create: Creation {
                scheme: scheme.to_string(),
                nsd_bytes: plan.nsd_bytes.unwrap_or(NSD_BYTES_DEFAULT),
                block_bytes: plan.block_bytes.unwrap_or(limits::BLOCK_BYTES_DEFAULT),
            },
            nsds: paths,
        };
        config.store(dir)
    }

    /// How the node's own mount is made.
    ///
    /// # Errors
    /// `InvalidArgument` if somebody wrote nonsense into the file.
    pub fn options(&self) -> Result<Options> {
        let mut options = Options::parse(&self.options)
            .map_err(|error| error.while_doing(format!("reading options in {FILE}")))?;
        options.allow_other |= self.allow_other;
        Ok(options)
    }

    /// Takes over what may change from start to start; refuses what can't.
    ///
    /// # Errors
    /// `Exists` if the plan asks for another scheme, size or number than the file system has.
    pub fn update(&mut self, dir: &Path, plan: &Plan) -> Result<()> {
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
        if let Some(mount) = &plan.mount {
            self.mount = mount.clone();
        }
        match &plan.options {
            // A whole new list, so that an option can also be taken back.
            Some(options) => {
                self.options = options.to_string();
                self.allow_other = plan.allow_other;
            }
            None => self.allow_other |= plan.allow_other,
        }
        self.store(dir)
    }

    /// Replaces the file atomically and durably.
    ///
    /// # Errors
    /// What the system says.
    pub fn store(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let new = dir.join("node.toml.new");
        let text = toml::to_string_pretty(self).expect("the configuration is plain data");
        let write = || -> std::io::Result<()> {
            let mut file = std::fs::File::create(&new)?;
            file.write_all(b"# Written by shale; edit only while the node is down.\n")?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            std::fs::File::open(dir)?.sync_all()
        };
        write().map_err(|e| io(e, "writing", &path))
    }
}

/// A node belongs to the user who made it; even root would leave files in it that its owner
/// can't use.
fn refuse_other_owner(dir: &Path, file: &Path) -> Result<()> {
    let found = match std::fs::metadata(file) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error, "looking at", file)),
    };
    // SAFETY: geteuid has no preconditions and can't fail.
    let me = unsafe { libc::geteuid() };
    if found.uid() == me {
        return Ok(());
    }
    let text = format!(
        "the node in {} belongs to user {}, and this is user {me}; run as its owner, or use another --dir",
        dir.display(),
        found.uid()
    );
    Err(Error::new(ErrorKind::NotPermitted, text))
}

/// A directory with other people's files is never made ours by a typing error.
fn refuse_used_directory(dir: &Path) -> Result<()> {
    let mut entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error, "looking into", dir)),
    };
    if entries.next().is_some() {
        let text = format!(
            "{} isn't empty and holds no Shale node; use an empty or new directory",
            dir.display()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok(())
}

fn io(error: std::io::Error, doing: &str, path: &Path) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::PermissionDenied => ErrorKind::AccessDenied,
        std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, error.to_string()).while_doing(format!("{doing} {}", path.display()))
}
