//! How long an object counts as contended, and that what sessions use in turn doesn't go round with each of their looks.

use super::*;

const FILE: InodeId = InodeId(7);
const NAMES: TokenObject = TokenObject::Directory(InodeId(7));

/// [`INODE`] goes from one session to another one at once.
fn passes(owner: &mut Granter, [from, to]: [SessionId; 2], now: Moment) {
    let actions = owner.asked(to, 1, wants(INODE, Exclusive, TokenRange::ALL), now);
    assert_eq!(recalled(&actions).len(), 1);
    owner.returned(from, &back(INODE, TokenRange::ALL, None), now);
    let answer = owner.take_actions();
    assert_eq!(granted(&answer), Some((to, &[TokenRange::ALL][..])));
}

/// For how long it is contended from then on, in milliseconds.
fn rest(owner: &Granter, now: u64) -> u64 {
    let known = &owner.objects[&INODE];
    let rest = (0..10_000).find(|rest: &u64| !known.is_contended(at(now + rest)));
    rest.expect("it ends")
}

/// It goes round so often, each time as soon as it isn't contended any more: for how long it was. Who has it then, and when
/// that is.
fn go_round(owner: &mut Granter, times: usize) -> (Vec<u64>, SessionId, u64) {
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    let (mut both, mut now, mut rests) = ([A, B], 0, Vec::new());
    for _ in 0..times {
        passes(owner, both, at(now));
        both.reverse();
        rests.push(rest(owner, now));
        now += rest(owner, now);
    }
    (rests, both[0], now)
}

#[test]
fn what_goes_round_is_contended_for_longer_each_time() {
    let mut owner = owner();
    let (rests, holder, now) = go_round(&mut owner, 8);
    assert_eq!(rests, [50, 100, 200, 400, 800, 1_000, 1_000, 1_000]);
    // Until nobody has wanted it for a while.
    let late = now + 1_000;
    passes(&mut owner, [holder, C], at(late));
    assert_eq!(rest(&owner, late), 50);
}

#[test]
fn nothing_is_remembered_of_what_nobody_holds_once_a_next_recall_would_be_a_first_one() {
    for (times, memory) in [(1, 50), (20, 1_000)] {
        let mut owner = owner();
        let (_, holder, now) = go_round(&mut owner, times);
        owner.returned(holder, &back(INODE, TokenRange::ALL, None), at(now));
        owner.tick(at(now + memory - 1));
        assert_eq!(owner.objects.len(), 1);
        owner.tick(at(now + memory));
        assert_eq!((owner.objects.len(), owner.fading.len()), (0, 0));
    }
}

/// Would be broken if a recall counted again each time that it is said.
#[test]
fn a_recall_that_takes_long_counts_once_and_the_next_one_follows_it() {
    let mut owner = owner();
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    owner.asked(B, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    for now in (0..4_000).step_by(500) {
        owner.ticked(at(now));
        assert!(owner.objects[&INODE].is_contended(at(now + 499)));
    }
    owner.returned(A, &back(INODE, TokenRange::ALL, None), at(4_000));
    owner.take_actions();
    assert_eq!(rest(&owner, 4_000), 25);
    passes(&mut owner, [B, A], at(4_000));
    assert_eq!(rest(&owner, 4_000), 100);
}

/// Would be broken if who lists what another one writes took it from that each time.
#[test]
fn what_one_session_changes_while_another_one_lists_it_goes_round_once_a_second() {
    let (mut owner, mut recalls) = (owner(), 0);
    for now in (0..10_000).step_by(10) {
        let now = at(now);
        if owner.knows(A, INODE, TokenRange::ALL, Exclusive) != Some(true) {
            let actions = owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), now);
            if granted(&actions).is_none() {
                recalls += recalled(&actions).len();
                owner.returned(B, &back(INODE, TokenRange::ALL, None), now);
                owner.take_actions();
            }
        }
        if let Listed::Waits(_) = owner.ask_to_list(B, FILE, now) {
            recalls += recalled(&owner.take_actions()).len();
            owner.returned(A, &back(INODE, TokenRange::ALL, Some(Shared)), now);
        }
        owner.take_actions();
    }
    assert!((20..30).contains(&recalls), "{recalls} in ten seconds");
}

/// The same of those who make names in a directory and look into it.
#[test]
fn a_directory_that_one_session_changes_while_another_one_looks_goes_round_once_a_second() {
    let (mut owner, mut recalls) = (owner(), 0);
    for now in (0..10_000).step_by(10) {
        let now = at(now);
        let claim = owner.claim(A, vec![needs_alone(NAMES)], now);
        let claim = claim.expect("nothing waits");
        let actions = owner.take_actions();
        if actions != [Action::Run(claim)] {
            recalls += recalled(&actions).len();
            owner.returned(B, &back(NAMES, TokenRange::ALL, None), now);
        }
        owner.end_claim(claim, now);
        let look = TokenRequest {
            ship: Ship::IfContended,
            ..TokenRequest::to_look_at(NAMES)
        };
        owner.asked(B, 1, look, now);
    }
    assert!((10..20).contains(&recalls), "{recalls} in ten seconds");
}

/// Would be broken if a look by name, which needs the attributes of a directory and so its names, kept the looks into it out.
#[test]
fn what_a_session_has_just_waited_for_it_may_have_for_something_else() {
    let mut owner = owner();
    owner.asked(A, 1, TokenRequest::to_have_alone(INODE), at(0));
    let claim = owner.claim(B, vec![needs::inode_shared(InodeId(7))], at(1));
    let claim = claim.expect("nothing waits");
    assert_eq!(recalled(&owner.take_actions()).len(), 1);
    owner.returned(A, &back(INODE, TokenRange::ALL, Some(Shared)), at(2));
    owner.end_claim(claim, at(3));
    owner.take_actions();
    let is_granted = |owner: &mut Granter, session, request, now| {
        let actions = owner.asked(session, request, TokenRequest::to_look_at(INODE), at(now));
        granted(&actions).is_some()
    };
    // Whoever it was taken from waits, and any other one.
    assert!(!is_granted(&mut owner, C, 1, 4));
    assert!(is_granted(&mut owner, B, 1, 4));
    // Once others have waited for it as well, it is nobody's.
    let claim = owner
        .claim(A, vec![needs_alone(INODE)], at(5))
        .expect("nothing waits");
    owner.returned(B, &back(INODE, TokenRange::ALL, None), at(6));
    owner.end_claim(claim, at(7));
    owner.take_actions();
    assert!(!is_granted(&mut owner, B, 2, 8));
    assert!(!is_granted(&mut owner, C, 2, 8));
}

/// Would be broken if who gives back at once what it lists took it from its writer each time: nothing is ever recalled from it,
/// so that nobody else seems to want it.
#[test]
fn who_lists_again_and_again_what_another_one_writes_and_keeps_nothing_slows_it_once_a_second() {
    let (mut owner, mut recalls) = (owner(), 0);
    for now in (0..10_000).step_by(10) {
        let now = at(now);
        owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), now);
        assert_eq!(
            owner.knows(A, INODE, TokenRange::ALL, Exclusive),
            Some(true)
        );
        if let Listed::Waits(_) = owner.ask_to_list(B, FILE, now) {
            recalls += recalled(&owner.take_actions()).len();
            owner.returned(A, &back(INODE, TokenRange::ALL, Some(Shared)), now);
            owner.returned(B, &back(INODE, TokenRange::ALL, None), now);
        }
        owner.take_actions();
    }
    assert!((10..20).contains(&recalls), "{recalls} in ten seconds");
}
