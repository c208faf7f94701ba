//! What a lab's nodes are called and where they are in its network. Everything follows from the
//! lab's id and the node's number, so that what a half-made lab left behind can be found again.

use std::{
    ffi::OsStr,
    fmt::{self, Display, Formatter},
    hash::Hasher,
    net::Ipv4Addr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Most nodes of a lab.
pub const NODES_MAX: u32 = 16;
/// Where iproute2 keeps namespaces that have names.
const NAMESPACES: &str = "/run/netns";
/// How the names of all labs' namespaces begin.
const PREFIX: &str = "shale-lab-";
/// The end of the hub's name.
const HUB: &str = "hub";

/// A node's number, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeNumber(pub u32);

impl NodeNumber {
    /// The nodes of a lab that has `count`.
    pub fn all(count: u32) -> impl Iterator<Item = Self> + Clone {
        (1..=count).map(Self)
    }

    /// Its address, the same in all labs: each lab has a network of its own, which nobody outside
    /// sees.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 83, 0, self.octet())
    }

    /// The hardware address of its link, as `ip` reads it. Locally administered.
    pub fn hardware_address(self) -> String {
        format!("02:53:68:61:6c:{:02x}", self.octet())
    }

    fn octet(self) -> u8 {
        u8::try_from(self.0).expect("a lab has at most 16 nodes")
    }
}

/// `n3`: the name for people, of its directory and of its port in the hub.
impl Display for NodeNumber {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// Reads `n3` or `3`.
impl FromStr for NodeNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix('n').unwrap_or(text);
        let number = digits
            .parse()
            .ok()
            .filter(|it| (1..=NODES_MAX).contains(it));
        number
            .map(Self)
            .ok_or_else(|| format!("{text:?} is no node; nodes are n1 to n{NODES_MAX}"))
    }
}

/// The names of one lab's namespaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    id: String,
}

impl Names {
    /// Of the lab in a directory, whose path is absolute and without symbolic links.
    pub fn of(dir: &Path) -> Self {
        let mut hasher = world::FixedHasher::default();
        hasher.write(dir.as_os_str().as_bytes());
        // Eight digits tell the labs of a machine apart.
        Self {
            id: format!("{:08x}", hasher.finish() as u32),
        }
    }

    /// Of the lab with an id that an earlier [`Names::of`] gave.
    pub fn with_id(id: &str) -> Self {
        Self { id: id.to_owned() }
    }

    /// What tells the lab from others on this machine.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The namespace that holds the bridges to which all nodes are linked.
    pub fn hub(&self) -> String {
        format!("{PREFIX}{}-{HUB}", self.id)
    }

    /// A node's namespace.
    pub fn node(&self, node: NodeNumber) -> String {
        format!("{PREFIX}{}-{node}", self.id)
    }

    /// Whether a namespace is one of this lab's.
    pub fn has(&self, namespace: &OsStr) -> bool {
        let own = format!("{PREFIX}{}-", self.id);
        namespace.as_bytes().starts_with(own.as_bytes())
    }
}

/// The folder of all named namespaces.
pub fn folder() -> &'static Path {
    Path::new(NAMESPACES)
}

/// The file that stands for a namespace.
pub fn file(namespace: &str) -> PathBuf {
    folder().join(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_named_by_number_with_or_without_the_letter() {
        assert_eq!("n3".parse(), Ok(NodeNumber(3)));
        assert_eq!("16".parse(), Ok(NodeNumber(16)));
        for wrong in ["", "n", "0", "n0", "n17", "node3", "-1", "3 ", "nn3"] {
            let said = wrong.parse::<NodeNumber>().unwrap_err();
            assert!(said.contains("n1 to n16"), "{said}");
        }
        assert_eq!(NodeNumber(3).to_string(), "n3");
        assert_eq!(NodeNumber(16).hardware_address(), "02:53:68:61:6c:10");
    }

    #[test]
    fn each_directory_has_a_lab_of_its_own_and_always_the_same() {
        let one = Names::of(Path::new("/srv/one"));
        assert_eq!(one, Names::of(Path::new("/srv/one")));
        assert_eq!(one, Names::with_id(one.id()));
        let two = Names::of(Path::new("/srv/two"));
        assert_ne!(one, two);
        assert_eq!(one.id().len(), 8);
        let node = one.node(NodeNumber(1));
        assert!(one.has(OsStr::new(&node)) && one.has(OsStr::new(&one.hub())));
        assert!(!two.has(OsStr::new(&node)) && !one.has(OsStr::new("eth0")));
    }
}
