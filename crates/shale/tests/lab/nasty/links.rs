//! Links that lose what one node sends to another, and nothing else: the other way packets pass, and to others as well.

use super::Lab;
use std::{fs, process::Command};

/// A hardware address that nobody has: what is sent there is lost, and nobody gets an error.
const NOBODY: &str = "02:53:68:61:6c:ff";

/// What one node sends to another is lost until this is dropped. Their daemons needn't run.
pub(super) struct Lost {
    /// The network of the node that sends.
    namespace: String,
    to: u32,
}

impl Lost {
    /// From now on.
    #[track_caller]
    pub(super) fn between(lab: &Lab, from: u32, to: u32) -> Self {
        let record = fs::read_to_string(lab.dir.join("lab.toml")).unwrap();
        let record: toml::Table = record.parse().unwrap();
        let id = record["id"].as_str().expect("a lab has an id");
        let lost = Self {
            namespace: format!("shale-lab-{id}-n{from}"),
            to,
        };
        assert!(lost.lead_to(NOBODY), "from n{from} to n{to}");
        lost
    }

    /// From now on, in both directions: neither hears the other.
    #[track_caller]
    pub(super) fn both_ways(lab: &Lab, one: u32, other: u32) -> [Self; 2] {
        [
            Self::between(lab, one, other),
            Self::between(lab, other, one),
        ]
    }

    /// Each node knows the others' hardware addresses in advance. Returns whether the kernel takes this one.
    fn lead_to(&self, hardware_address: &str) -> bool {
        let address = format!("10.83.0.{}", self.to);
        let mut command = Command::new("ip");
        command
            .args(["-netns", &self.namespace, "neighbour", "replace", &address])
            .args(["lladdr", hardware_address])
            .args(["dev", "eth0", "nud", "permanent"]);
        command.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        let is_back = self.lead_to(&format!("02:53:68:61:6c:{:02x}", self.to));
        // Of a test that fails, nobody looks at the lab any more.
        assert!(is_back || std::thread::panicking(), "n{} is lost", self.to);
    }
}
