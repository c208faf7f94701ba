//! Groups of the caller of a request, as /proc tells them: the kernel sends only one of each caller.

use crate::signals::{line, tells};
use crate::verbs::Caller;
use client::Client;
use model::{InodeId, Result, SetAttributes};

const SETGID: u32 = 0o2000;

/// User and group for which a change is done that the kernel may have judged by an outdated owner and group
/// ([`SetAttributes::only_for`]). A new mode keeps setgid if the caller is in the file's group, whichever of the
/// caller's groups that is: so it is looked up for the rare mode with setgid.
pub(crate) async fn judged(
    client: &Client,
    caller: &Caller,
    inode: InodeId,
    set: &SetAttributes,
) -> Result<(u32, u32)> {
    let mut group = caller.gid;
    if set.mode.is_some_and(|mode| mode & SETGID != 0) {
        // Boxed because it is rare: otherwise every change's future would contain it.
        let of_file = Box::pin(client.get_attributes(inode)).await?.gid;
        if of_file != group && is_in(caller.pid, of_file) {
            group = of_file;
        }
    }
    Ok((caller.uid, group))
}

/// Whether a thread that waits for its request is in a group, besides its own one.
fn is_in(thread: u32, group: u32) -> bool {
    tells(thread, |status| lists(status, group))
}

fn lists(status: &str, group: u32) -> bool {
    let groups = line(status, "Groups:").unwrap_or_default();
    groups
        .split_whitespace()
        .any(|listed| listed.parse::<u32>() == Ok(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_of_the_line_of_groups_count() {
        let status = "Name:\tGroups: 7\nGid:\t5\t5\t5\t5\nGroups:\t4 27 4321 \nNStgid:\t6\n";
        assert!([4, 27, 4_321].iter().all(|group| lists(status, *group)));
        let others = [0, 2, 5, 6, 7, 21, 432];
        assert!(!others.iter().any(|group| lists(status, *group)));
        assert!(!lists("Groups:\t\n", 0) && !lists("", 0));
        assert!(!is_in(0, 0), "a thread that can't be seen");
    }
}
