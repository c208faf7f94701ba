//! The name that a node has in its certificate: who it is, and of which cluster.

use model::NodeId;
use std::fmt;
use std::str::FromStr;

/// The last part of every node's name. No such domain exists; nobody asks a name server for it.
pub(crate) const DOMAIN: &str = "shale";

/// A node of a cluster, as `n3.000102030405060708090a0b0c0d0e0f.shale`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeName {
    /// The node.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: u128,
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}.{:032x}.{DOMAIN}", self.node, self.cluster)
    }
}

/// The text is no node's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotANodeName;

impl FromStr for NodeName {
    type Err = NotANodeName;

    fn from_str(text: &str) -> Result<Self, NotANodeName> {
        let parts: Vec<&str> = text.split('.').collect();
        let [node, cluster, DOMAIN] = parts[..] else {
            return Err(NotANodeName);
        };
        let number = node.strip_prefix('n').ok_or(NotANodeName)?;
        let node = number.parse().map(NodeId).map_err(|_| NotANodeName)?;
        let cluster = u128::from_str_radix(cluster, 16).map_err(|_| NotANodeName)?;
        let name = Self { node, cluster };
        // One spelling only, so that two certificates never mean one node in two ways.
        if name.to_string() == text {
            Ok(name)
        } else {
            Err(NotANodeName)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_is_read_as_it_was_written(node in any::<u32>(), cluster in any::<u128>()) {
            let name = NodeName { node: NodeId(node), cluster };
            prop_assert_eq!(name.to_string().parse(), Ok(name));
        }

        #[test]
        fn other_texts_are_no_names(text in "[n0-9a-f+.shale]{0,60}") {
            if let Ok(name) = text.parse::<NodeName>() {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }

    #[test]
    fn a_name_has_one_spelling() {
        let name = "n3.000102030405060708090a0b0c0d0e0f.shale";
        assert!(name.parse::<NodeName>().is_ok());
        for other in [
            "n03.000102030405060708090a0b0c0d0e0f.shale",
            "n+3.000102030405060708090a0b0c0d0e0f.shale",
            "n3.000102030405060708090A0B0C0D0E0F.shale",
            "n3.102030405060708090a0b0c0d0e0f.shale",
            "n3.000102030405060708090a0b0c0d0e0f.shale.",
            "m3.000102030405060708090a0b0c0d0e0f.shale",
            "n3.000102030405060708090a0b0c0d0e0f.example",
            "*.000102030405060708090a0b0c0d0e0f.shale",
        ] {
            assert_eq!(other.parse::<NodeName>(), Err(NotANodeName), "{other}");
        }
    }
}
