//! A node is drained, and the manager and the owner die before it is empty: others go on with both, and with the drain.

use super::{
    Lab, Told,
    faults::{Fault, others, under_load, until_given_up, until_whole},
    fresh,
    load::{Load, Pauses, within},
    roles::{Role, Roles},
};
use crate::fixture::pattern;
use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

/// Files that are on the node's NSD, among others, and their bytes.
const FILES: u64 = 4;
const BYTES: usize = 16 << 20;
/// The setting that keeps the drain from being over too early, and its value: a minute for what the node has.
const PACE: &str = "repair_bytes_per_second";
const SLOWLY: &str = "262144";

fn write(path: &Path, seed: u64) {
    let mut file = File::create_new(path).unwrap();
    file.write_all(&pattern(seed, BYTES)).unwrap();
    file.sync_all().unwrap();
}

/// What a node's NSD is in the pool's map, as another node tells.
fn state(lab: &Lab, asked: u32, node: u32) -> Result<String, String> {
    let nsds = lab.ask(asked, &["nsd", "list"]);
    let mut lines = nsds.as_array().into_iter().flatten();
    let own = lines.find(|nsd| nsd["node"] == node);
    let state = own.and_then(|nsd| nsd["state"].as_str());
    state
        .map(str::to_owned)
        .ok_or_else(|| format!("n{node} isn't in {nsds}"))
}

/// The node has no NSD any more after it, so this is a lab's last story.
pub(super) fn a_drain_ends_though_manager_and_owner_die_and_the_node_may_go(lab: &Lab) -> Told {
    let nodes = lab.nodes();
    let leaving = Roles::of(lab).one_with(Role::Client);
    let asked = others(&nodes, &[leaving])[0];
    let shale = env!("CARGO_BIN_EXE_shale");
    let directory = fresh();
    let at = |node: u32, number: u64| lab.path(node, &directory).join(number.to_string());
    fs::create_dir(lab.path(asked, &directory)).unwrap();
    for number in 0..FILES {
        write(&at(asked, number), number);
    }
    lab.exec(asked, &[shale, "config", "set", PACE, SLOWLY]);
    // Until then jobs may be as fast as before, and the drain over before anybody dies.
    lab.until("the manager knows the limit", || {
        let status = lab.ask(asked, &["repair", "status"]);
        let limit = status["cluster"]["limit_bytes_per_second"].to_string();
        (limit == SLOWLY)
            .then_some(())
            .ok_or_else(|| status.to_string())
    });
    let name = format!("n{leaving}");
    lab.exec(asked, &[shale, "node", "drain", &name]);
    let draining = state(lab, asked, leaving);
    assert_eq!(draining.as_deref(), Ok("draining"));

    let (mut pauses, mut under_way) = (Pauses::default(), 0);
    for role in [Role::Manager, Role::Owner] {
        let victim = Roles::of(lab).one_with(role);
        under_way += usize::from(state(lab, asked, leaving).as_deref() == Ok("draining"));
        let strike = |load: &mut Load| {
            load.mark();
            Fault::Kill.strike(lab, &[victim]);
            until_given_up(lab, &[victim]);
        };
        // Not all is repaired before the drain has ended.
        let mend = || Fault::Kill.mend(lab, &[victim]);
        pauses.add(&under_load(lab, &[victim], strike, mend));
    }
    assert!(under_way > 0, "the drain was over before anybody died");
    lab.exec(asked, &[shale, "config", "set", PACE]);
    lab.until("the node is empty", || match state(lab, asked, leaving)? {
        state if state == "lost" => Ok(()),
        state => Err(state),
    });
    until_whole(lab);

    // What the others have is all there is.
    let strike = |load: &mut Load| {
        load.mark();
        Fault::Kill.strike(lab, &[leaving]);
        until_given_up(lab, &[leaving]);
        for node in others(&nodes, &[leaving]) {
            let paths = (0..FILES).map(|number| (number, at(node, number)));
            let paths: Vec<_> = paths.collect();
            within("reading what was there before", move || {
                for (number, path) in paths {
                    assert!(
                        fs::read(&path).unwrap() == pattern(number, BYTES),
                        "{}",
                        path.display()
                    );
                }
            });
        }
    };
    let mend = || {
        Fault::Kill.mend(lab, &[leaving]);
        until_whole(lab);
    };
    pauses.add(&under_load(lab, &[leaving], strike, mend));
    Told::of(pauses)
        .within(Fault::Kill.aim())
        .with(format!("{under_way} of 2 died while it was drained"))
}
