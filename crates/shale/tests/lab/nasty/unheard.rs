//! A node that the owner doesn't hear while others want what it has loses its session there, and no more: it stays a member, its
//! programs get EIO on what is lost, and go on with all else.

use super::{
    Lab, Told,
    actors::Actor,
    expelled::{
        HAS, MAPPED, SYNCED, THEIRS, WRITTEN, asked, is_of, is_refused, take_over, write_over,
    },
    faults::{Daemons, Fault, others, under_load, until_whole},
    fresh,
    links::Lost,
    load::{Load, within},
    quorum::runs_of,
    roles::{self, Role},
};
use crate::{fixture::pattern, mapping::BYTES};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

/// What a program on the node has open that has changed nothing there.
const KEPT: &str = "kept";
/// What its people are told if it stays a member, and if it doesn't.
const LOSES: [&str; 2] = ["session-lost", "node-expelled"];

/// How often a node tells of an event.
fn told(lab: &Lab, node: u32, event: &str) -> usize {
    let events = lab.ask(node, &["events"]);
    let events = events.as_array().into_iter().flatten();
    events.filter(|it| it["event"] == event).count()
}

/// The link is mended as soon as the owner has given the node's session up. That is some seconds before the manager may expel the
/// node for the same link: if a slow machine takes longer, its programs and people are told what those of such a node are told.
pub(super) fn a_node_that_the_owner_does_not_hear_loses_its_session_and_no_more(lab: &Lab) -> Told {
    // One that doesn't reach the manager falls silent.
    let roles = roles::part(lab);
    let (owner, victim) = (roles.one_with(Role::Owner), roles.one_with(Role::Client));
    assert_ne!(owner, victim, "another one has fewer roles");
    let other = others(&lab.nodes(), &[owner, victim])[0];
    let directory = fresh();
    let at = |node: u32, name: &str| lab.path(node, &directory).join(name);
    fs::create_dir(at(other, "")).unwrap();
    for name in [WRITTEN, MAPPED, KEPT] {
        write_over(&at(other, name), SYNCED);
    }
    let mut has = Actor::start(lab, victim, HAS, &[at(victim, "").display().to_string()]);
    let kept = File::open(at(victim, KEPT)).unwrap();
    let (daemon, runs) = (Daemons::of(lab, &[victim]), runs_of(lab, &[victim]));
    let before = LOSES.map(|event| told(lab, victim, event));
    let strike = |load: &mut Load| {
        // What they make and haven't synced would be lost with the session, and with it all that is open: nobody knows which
        // files that was. And those that have lost nothing would go on while all files are looked at.
        load.end_whatever_happened(&[victim]);
        assert_eq!(asked(&mut has, "change"), "done");
        load.mark();
        let cut = Lost::both_ways(lab, owner, victim);
        // Once more: what it had written may have become durable before.
        has.tell("write");
        has.tell("sync");
        let wanted = at(other, WRITTEN);
        let read = within("others have what it had", move || fs::read(wanted));
        drop(cut);
        assert_eq!(read.unwrap().len(), BYTES);
        take_over([WRITTEN, MAPPED].map(|name| at(other, name)));
    };
    let mend = || {
        until_whole(lab);
        daemon.must_live(lab);
    };
    let pauses = under_load(lab, &[victim], strike, mend);

    let stays = runs_of(lab, &[victim]) == runs;
    let _written_or_not = has.hear();
    let synced = has.hear();
    assert!(
        is_refused(&synced),
        "its fsync: {synced}, a member: {stays}"
    );
    for what in ["write", "sync"] {
        let answer = asked(&mut has, what);
        assert!(is_refused(&answer), "{what}: {answer}, a member: {stays}");
    }
    let mut bytes = vec![0; BYTES];
    let read = kept.read_exact_at(&mut bytes, 0);
    assert_eq!(read.is_ok(), stays, "what nobody has changed: {read:?}");
    assert!(!stays || bytes == pattern(SYNCED, BYTES));
    // Once no program has them open, the files are as any other.
    has.end();
    for name in [WRITTEN, MAPPED] {
        let shown = lab.until("it is opened again", || {
            fs::read(at(victim, name)).map_err(|error| error.to_string())
        });
        assert!(shown == pattern(THEIRS, BYTES), "{name} on n{victim}");
        for node in lab.nodes() {
            assert!(is_of(&at(node, name), THEIRS), "{name} on n{node}");
        }
    }
    let which = usize::from(!stays);
    lab.until("its people are told", || {
        let now = told(lab, victim, LOSES[which]);
        let said = || format!("{now} times {}, as before", LOSES[which]);
        (now > before[which]).then_some(()).ok_or_else(said)
    });
    let became = match stays {
        true => "has lost its session only",
        false => "was expelled",
    };
    Told::of(pauses)
        .within(Fault::Partition.aim())
        .with(format!("the node {became}"))
}
