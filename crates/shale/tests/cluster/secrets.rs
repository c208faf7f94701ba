//! Nobody but a node's owner reads its secrets, whatever umask those had who started it.

use super::Cluster;
use crate::intruders::all_below;

/// From here on this process, and all that it starts, gives everybody all rights to new files. For tests in processes of their
/// own.
pub(super) fn without_umask() {
    rustix::process::umask(rustix::fs::Mode::empty());
}

/// All files of a node are its owner's alone, and these are among them.
#[track_caller]
pub(super) fn must_be_its_owners(cluster: &Cluster, number: usize, secrets: &[&str]) {
    let node = cluster.node(number);
    let all = all_below(&node.dir, &node.mnt);
    for name in secrets {
        let has = all.iter().any(|(path, _)| path.ends_with(name));
        assert!(has, "{name} of node {number}: {all:?}");
    }
    for (path, rights) in &all {
        // etcd's counts as a whole.
        let is_etcds = path
            .parent()
            .is_some_and(|it| it.starts_with(node.dir.join("etcd")));
        let is_owners = is_etcds || rights & 0o077 == 0;
        assert!(is_owners, "{rights:o} {}", path.display());
    }
}
