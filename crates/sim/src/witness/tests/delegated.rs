//! Creates under delegations: where they stand, and which may be gone.

use super::*;

/// Made under a delegation.
const MADE: InodeId = InodeId(20);

/// Its client has answered it; the owner has applied it there.
fn delegate(
    script: &mut Script,
    client: ClientNumber,
    name: &str,
    inode: InodeId,
    rank: Option<Rank>,
) {
    script.add(client, create(name), made(inode), rank);
    let event = script.history.events.last_mut();
    event.expect("it was added").is_delegated = true;
}

fn list() -> Call {
    Call::List { directory: ROOT }
}

fn names(all: &[(&str, InodeId)]) -> Answer {
    let all = all.iter().map(|(name, inode)| (name.to_string(), *inode));
    Answer::Names(all.collect())
}

fn chmod() -> Call {
    Call::SetMode {
        inode: FILE,
        mode: tree::MODE,
    }
}

fn fsync(inode: InodeId) -> Call {
    Call::Fsync { inode }
}

/// Whatever else is applied between its answer and its place in the order.
#[test]
fn a_client_sees_what_it_has_made_before_its_owner_has_it() {
    let mut script = Script::new();
    delegate(&mut script, 1, "x", MADE, rank(9));
    script.add(2, chmod(), Answer::Done, rank(2));
    script.add(1, lookup("x"), made(MADE), None);
    script.add(1, create("x"), Answer::Refused(ErrorKind::Exists), None);
    script.add(1, list(), names(&[("f", FILE), ("x", MADE)]), None);
    script.add(2, chmod(), Answer::Done, rank(3));
    script.add(2, lookup("x"), made(MADE), rank(9));
    script.add(2, unlink("x"), Answer::Done, rank(10));
    script.explained();
    // It was answered, so it is there.
    let mut forgotten = Script { ..script };
    forgotten.history.events[3].answer = missing();
    assert!(forgotten.refused().contains("nothing"));
}

/// Another client's changes of the directory, from before the delegation, may be answered later.
#[test]
fn what_was_applied_before_a_delegation_comes_before_what_was_made_under_it() {
    let mut script = Script::new();
    let now = script.now;
    script.at((now, now + 90), 2, unlink("f"), Answer::Done, rank(2));
    delegate(&mut script, 1, "f", MADE, rank(5));
    script.add(1, lookup("f"), made(MADE), None);
    script.explained();
    // Such a look, at a place where the create stands too.
    let mut script = Script::new();
    let now = script.now;
    let before = names(&[("f", FILE)]);
    script.at((now, now + 90), 2, list(), before, rank(1));
    delegate(&mut script, 1, "x", MADE, rank(5));
    script.explained();
    // It began after the create was answered.
    script.history.events[1].begun = now + 7;
    script.refused();
}

#[test]
fn what_another_client_sees_of_a_create_its_owner_has() {
    for (seen, is_honest) in [(9, true), (12, true), (8, false), (2, false)] {
        let mut script = Script::new();
        delegate(&mut script, 1, "x", MADE, rank(9));
        script.add(2, lookup("x"), made(MADE), rank(seen));
        assert_eq!(explain(&script.history).is_ok(), is_honest, "at {seen}");
    }
}

#[test]
fn a_name_that_was_made_under_a_delegation_is_taken() {
    for begun in [0, 30] {
        let mut script = Script::new();
        delegate(&mut script, 1, "x", MADE, rank(9));
        let other = (begun, script.now + 50);
        script.at(other, 2, create("x"), made(OTHER), rank(5));
        assert!(
            script.refused().contains("can't have succeeded"),
            "begun at {begun}"
        );
    }
}

/// The answers of two clients come in another order than what they send.
#[test]
fn two_clients_send_what_they_made_in_any_order() {
    let mut script = Script::new();
    let now = script.now;
    // Applied between the two, and under way all the time.
    script.at((now, now + 900), 3, chmod(), Answer::Done, rank(6));
    delegate(&mut script, 1, "x", MADE, rank(9));
    script.add(1, lookup("x"), made(MADE), None);
    delegate(&mut script, 2, "y", OTHER, rank(5));
    script.add(2, lookup("y"), made(OTHER), None);
    script.explained();
}

#[test]
fn a_create_that_never_comes_to_its_owner_is_a_lie() {
    let mut script = Script::new();
    delegate(&mut script, 1, "x", MADE, None);
    assert!(script.refused().contains("never reached its owner"));
    script.history.lost.insert(1);
    script.explained();
}

/// What its client saw meanwhile says nothing.
#[test]
fn what_a_lost_client_made_may_be_gone_unless_it_was_synced() {
    for (syncs, is_honest) in [(false, true), (true, false)] {
        let mut script = Script::new();
        delegate(&mut script, 1, "x", MADE, None);
        script.add(1, lookup("x"), made(MADE), None);
        if syncs {
            script.add(1, fsync(MADE), Answer::Done, None);
        }
        script.history.lost.insert(1);
        let kept = script.history.clone();
        script.add(2, lookup("x"), missing(), None);
        script.add(2, create("x"), made(OTHER), rank(4));
        assert_eq!(explain(&script.history).is_ok(), is_honest, "gone {syncs}");
        script.history = kept;
        script.add(2, lookup("x"), made(MADE), rank(4));
        script.explained();
    }
    // One that was answered after the fsync began isn't a part of it.
    let mut script = Script::new();
    script.add(1, fsync(FILE), Answer::Done, None);
    delegate(&mut script, 1, "x", MADE, None);
    script.history.lost.insert(1);
    script.add(2, lookup("x"), missing(), None);
    script.explained();
}

/// Whatever the owner has said of one is true of those before it.
#[test]
fn of_what_a_lost_client_made_the_last_is_gone_first() {
    let (first, last) = ([("f", FILE), ("x", MADE)], [("f", FILE), ("y", OTHER)]);
    let both = [("f", FILE), ("x", MADE), ("y", OTHER)];
    let found = [
        (&both[..], true),
        (&first[..], true),
        (&both[..1], true),
        (&last[..], false),
    ];
    for (found, is_honest) in found {
        let mut script = Script::new();
        delegate(&mut script, 1, "x", MADE, None);
        delegate(&mut script, 1, "y", OTHER, None);
        script.history.lost.insert(1);
        script.add(2, list(), names(found), rank(4));
        assert_eq!(explain(&script.history).is_ok(), is_honest, "{found:?}");
    }
    // The owner has it, and so what was made before.
    let mut script = Script::new();
    delegate(&mut script, 1, "x", MADE, None);
    delegate(&mut script, 1, "y", OTHER, rank(3));
    script.history.lost.insert(1);
    script.add(2, lookup("x"), missing(), None);
    script.refused();
}

/// Of two that were under way at the same time nobody knows which was first.
#[test]
fn either_of_two_creates_at_the_same_time_may_be_gone() {
    let mut script = Script::new();
    delegate(&mut script, 1, "x", MADE, None);
    delegate(&mut script, 1, "y", OTHER, None);
    let begun = script.history.events[1].begun;
    script.history.events[2].begun = begun;
    script.history.lost.insert(1);
    script.add(2, list(), names(&[("f", FILE), ("y", OTHER)]), rank(4));
    script.explained();
}

#[test]
fn what_another_client_has_seen_of_a_lost_one_stays() {
    let mut script = Script::new();
    delegate(&mut script, 1, "x", MADE, None);
    script.history.lost.insert(1);
    script.add(2, lookup("x"), made(MADE), rank(4));
    script.explained();
    script.add(3, lookup("x"), missing(), None);
    script.refused();
}
