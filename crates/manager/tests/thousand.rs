//! What a manager has to do for a thousand nodes: messages against written bounds, while a rack dies,
//! its NSDs are given up, and the manager changes. `make bench-parts` measures memory too.

use super::crowd::Crowd;
use super::story::{BOUNDS, story};

/// `make test-all` has all of them.
const NODES: u32 = 160;
const NODES_LONG: u32 = 1_000;

#[test]
fn what_a_manager_hears_and_says_grows_with_its_nodes_and_not_faster() {
    let nodes = match std::env::var_os("SHALE_LONG") {
        Some(_) => NODES_LONG,
        None => NODES,
    };
    let mut crowd = Crowd::new(nodes);
    for part in story(&mut crowd, |_| ()) {
        println!("{}: {:?}", part.name, part.counted);
        part.check(nodes, &BOUNDS)
            .unwrap_or_else(|why| panic!("{why}"));
    }
}
