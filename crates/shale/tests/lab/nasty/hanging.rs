//! The disk of the owner's node answers nothing any more, and the node lives: its daemon, its lease, its links.

use super::{
    Lab, Told,
    faults::{under_load, until_whole},
    load::Load,
    roles::{Role, Roles},
};

/// As good as never: an hour.
const HANGS: [&str; 2] = ["--latency-ms", "3600000"];

/// All go on around it, programs on its own node too, and what the others wrote meanwhile is there when it answers again.
pub(super) fn all_go_on_around_an_owner_whose_disk_hangs(lab: &Lab) -> Told {
    let owner = Roles::of(lab).one_with(Role::Owner).to_string();
    let strike = |load: &mut Load| {
        load.mark();
        lab.must(&["slow-disk", &owner, HANGS[0], HANGS[1]]);
    };
    let mend = || {
        lab.must(&["slow-disk", &owner, "--off"]);
        until_whole(lab);
    };
    Told::of(under_load(lab, &[], strike, mend))
}
