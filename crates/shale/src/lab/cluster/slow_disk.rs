//! The file through which a node's disks are made slow while its daemon runs.

use model::{Error, ErrorKind, Result};
use serde::Serialize;
use std::{io, path::Path};

/// How slow a node's disks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SlowDisk {
    /// Each disk reads at most so many megabits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_mbit: Option<u64>,
    /// Each disk writes at most so many megabits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_mbit: Option<u64>,
    /// Each request takes so many milliseconds longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
}

impl SlowDisk {
    fn fields(&self) -> [(&'static str, Option<u64>); 3] {
        [
            ("read_mbit", self.read_mbit),
            ("write_mbit", self.write_mbit),
            ("latency_ms", self.latency_ms),
        ]
    }

    /// Whether it says nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it is so slow, for people.
    pub fn sentence(&self) -> String {
        let said = [
            self.read_mbit.map(|it| format!("reads {it} Mbit/s")),
            self.write_mbit.map(|it| format!("writes {it} Mbit/s")),
            self.latency_ms.map(|it| format!("{it} ms more each")),
        ];
        said.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Writes the file; the daemon obeys from its next request to a disk on.
    ///
    /// # Errors
    /// The system's, as `Unavailable`.
    pub fn store(&self, file: &Path) -> Result<()> {
        let lines = self.fields().into_iter();
        let lines = lines.filter_map(|(key, it)| Some(format!("{key} = {}\n", it?)));
        let text: String = lines.collect();
        let written = match self.is_none() {
            true => world::host::remove_file(file),
            false => world::host::replace_file(file, text.as_bytes()),
        };
        written.map_err(|error| failed(&error, file))
    }

    /// Reads the file; a missing one means that disks aren't slowed.
    ///
    /// # Errors
    /// `Unavailable` if it can't be read; `InvalidArgument` if something else wrote it.
    pub fn load(file: &Path) -> Result<Self> {
        let bytes = match world::host::read_file(file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed(&error, file)),
        };
        let mut found = Self::default();
        for line in String::from_utf8_lossy(&bytes).lines() {
            let (key, number) = line.split_once('=').unwrap_or((line, ""));
            let number = number.trim().parse().ok();
            match key.trim() {
                "read_mbit" => found.read_mbit = number,
                "write_mbit" => found.write_mbit = number,
                "latency_ms" => found.latency_ms = number,
                _ => {
                    let text = format!("{}: {line:?} has no known key", file.display());
                    return Err(Error::new(ErrorKind::InvalidArgument, text));
                }
            }
        }
        Ok(found)
    }
}

fn failed(error: &io::Error, file: &Path) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string())
        .while_doing(format!("the faults of a node, {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_disks_read_back_and_quick_ones_leave_no_file() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("n1.faults");
        SlowDisk::default().store(&file).unwrap();
        assert!(SlowDisk::load(&file).unwrap().is_none());
        let slow = SlowDisk {
            read_mbit: Some(80),
            latency_ms: Some(20),
            ..SlowDisk::default()
        };
        slow.store(&file).unwrap();
        assert_eq!(SlowDisk::load(&file).unwrap(), slow);
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, "read_mbit = 80\nlatency_ms = 20\n");
        assert_eq!(slow.sentence(), "reads 80 Mbit/s, 20 ms more each");
        SlowDisk::default().store(&file).unwrap();
        assert!(!file.exists());
        std::fs::write(&file, "words").unwrap();
        assert!(SlowDisk::load(&file).is_err());
    }
}
