//! Tokens that a session asks for in one message, so that it can keep what it lists: what costs nobody anything, and what
//! another session has alone.

use super::*;

const FILE: InodeId = InodeId(7);

fn knows(owner: &Granter, session: SessionId) -> Option<bool> {
    owner.knows(session, INODE, TokenRange::ALL, Shared)
}

impl Granter {
    /// Asks for [`INODE`]. Nothing but the answer may come of it.
    fn gives(&mut self, session: SessionId, now: Moment) -> Option<GrantNumber> {
        let number = self.grant_if_free(session, FILE, now);
        assert!(self.take_actions().is_empty(), "nobody is asked for it");
        assert!(number.is_none() || knows(self, session) == Some(true));
        number
    }
}

#[test]
fn what_is_free_or_shared_is_granted_at_once_and_recalled_like_any_other() {
    let mut owner = owner();
    let first = owner.gives(A, at(0)).expect("nobody has it");
    let second = owner.gives(B, at(1)).expect("it goes with the other");
    assert!(second > first);
    // Its message came twice, or was lost.
    let again = owner.gives(A, at(2)).expect("it has it");
    assert!(again > second);
    let actions = owner.asked(C, 1, wants(INODE, Exclusive, TokenRange::ALL), at(3));
    let recalls = actions.iter().map(|action| match action {
        Action::Recall { session, recall } => (*session, recall.keep, recall.up_to),
        other => panic!("{other:?}"),
    });
    let recalls: Vec<_> = recalls.collect();
    assert_eq!(recalls, [(A, None, again), (B, None, second)]);
    for session in [A, B] {
        owner.returned(session, &back(INODE, TokenRange::ALL, None), at(4));
        assert_eq!(knows(&owner, session), Some(false));
    }
    assert_eq!(
        granted(&owner.take_actions()),
        Some((C, &[TokenRange::ALL][..]))
    );
}

#[test]
fn what_others_change_or_wait_for_is_not_granted_and_nobody_gives_it_back() {
    for mode in [Exclusive, SharedWrite] {
        let mut owner = owner();
        owner.asked(A, 1, wants(INODE, mode, TokenRange::ALL), at(0));
        assert_eq!(owner.gives(B, at(1)), None);
        assert!(owner.gives(A, at(1)).is_some(), "nobody else has it");
    }
    let mut owner = owner();
    assert!(owner.gives(A, at(0)).is_some());
    assert_eq!(
        owner
            .asked(B, 1, wants(INODE, Exclusive, TokenRange::ALL), at(1))
            .len(),
        1
    );
    assert_eq!(owner.gives(C, at(2)), None, "it would come before B");
    // Nor for a while after others wanted it.
    owner.returned(A, &back(INODE, TokenRange::ALL, None), at(2));
    assert!(granted(&owner.take_actions()).is_some());
    owner.returned(B, &back(INODE, TokenRange::ALL, None), at(3));
    assert_eq!(owner.gives(C, at(50)), None);
    assert!(owner.gives(C, at(51)).is_some());
}

#[test]
fn an_operation_that_runs_keeps_it_from_all_but_its_own_session() {
    let mut owner = owner();
    let need = Need {
        object: INODE,
        mode: Exclusive,
        ranges: vec![TokenRange::ALL],
    };
    let claim = owner.claim(B, vec![need], at(0)).expect("nothing waits");
    assert_eq!(owner.take_actions(), [Action::Run(claim)]);
    assert_eq!(owner.gives(A, at(1)), None);
    assert!(owner.gives(B, at(1)).is_some());
    owner.end_claim(claim, at(2));
    assert!(owner.gives(A, at(3)).is_some());
}

#[test]
fn nothing_is_granted_in_one_message_before_all_have_said_what_they_hold() {
    let mut owner = Granter::new(Tenure(2), BTreeSet::from([A]), at(0));
    owner.renew(at(1_000_000), at(0));
    owner.begin_session(B);
    assert_eq!(owner.grant_if_free(B, FILE, at(1)), None);
    assert!(owner.take_actions().is_empty());
    let held = Need {
        object: INODE,
        mode: Exclusive,
        ranges: vec![TokenRange::ALL],
    };
    assert!(owner.held(A, held, at(2)).is_some());
    owner.end_reclaim(A, at(3));
    owner.take_actions();
    assert_eq!(owner.gives(B, at(4)), None, "A has it");
    owner.returned(A, &back_to(2), at(5));
    assert!(owner.gives(B, at(6)).is_some());
}

/// A return of all of [`INODE`] to the owner of this tenure.
fn back_to(tenure: u64) -> TokenReturn {
    let up_to = GrantNumber {
        tenure: Tenure(tenure),
        count: u64::MAX,
    };
    TokenReturn {
        up_to,
        ..back(INODE, TokenRange::ALL, None)
    }
}

#[test]
fn a_session_that_is_not_open_or_about_to_end_gets_nothing() {
    let mut owner = owner();
    assert_eq!(owner.gives(SessionId(9), at(0)), None);
    owner.expel(A, at(0));
    owner.take_actions();
    assert_eq!(owner.gives(A, at(1)), None);
    assert!(owner.gives(B, at(1)).is_some());
}

#[test]
fn a_session_that_holds_as_much_as_it_may_gets_no_more_and_keeps_what_it_has() {
    let mut owner = owner();
    for inode in 0..PIECES_OF_SESSION_MAX as u64 {
        let number = owner.grant_if_free(A, InodeId(1000 + inode), at(0));
        assert!(number.is_some(), "{inode}");
        owner.take_actions();
    }
    let objects = owner.objects.len();
    assert_eq!(owner.gives(A, at(1)), None);
    assert_eq!(owner.objects.len(), objects, "nothing is left of it");
    assert!(owner.grant_if_free(A, InodeId(1000), at(1)).is_some());
    owner.take_actions();
    assert!(owner.gives(B, at(1)).is_some());
    let other = TokenObject::Inode(InodeId(1000));
    owner.returned(A, &back(other, TokenRange::ALL, None), at(2));
    assert!(owner.gives(A, at(2)).is_some());
}

/// Makes a session the only one that has [`INODE`], and its bytes.
fn made_by(owner: &mut Granter, session: SessionId) {
    assert!(owner.grant_made_if_free(session, FILE, at(0)).is_some());
    owner.take_actions();
}

fn waits(listed: Listed) -> u64 {
    match listed {
        Listed::Waits(number) => number,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_has_made_a_file_is_asked_to_share_it_with_who_lists_it() {
    let mut owner = owner();
    made_by(&mut owner, A);
    let number = waits(owner.ask_to_list(B, FILE, at(1)));
    let whole = &[TokenRange::ALL][..];
    assert_eq!(recalled(&owner.take_actions()), [(A, whole, Some(Shared))]);
    // Another one that lists it isn't before it, and costs the maker nothing more.
    assert_eq!(owner.ask_to_list(C, FILE, at(2)), Listed::Refused);
    assert_eq!(owner.take_actions(), []);
    let kept = back(INODE, TokenRange::ALL, Some(Shared));
    owner.returned(A, &kept, at(3));
    let answer = owner.take_actions();
    assert_eq!(granted(&answer), Some((B, whole)));
    assert!(matches!(answer[..], [Action::Answer { request, .. }] if request == number));
    assert_eq!(
        (knows(&owner, A), knows(&owner, B)),
        (Some(true), Some(true))
    );
    assert_eq!(owner.sessions[&B].waiting, 0);
}

#[test]
fn what_is_recalled_is_not_recalled_for_a_listing_again_at_once() {
    let mut owner = owner();
    made_by(&mut owner, A);
    waits(owner.ask_to_list(B, FILE, at(1)));
    owner.returned(A, &back(INODE, TokenRange::ALL, Some(Shared)), at(2));
    // Its maker goes on with it.
    owner.take_actions();
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(3));
    owner.returned(B, &back(INODE, TokenRange::ALL, None), at(4));
    assert!(granted(&owner.take_actions()).is_some());
    assert_eq!(owner.ask_to_list(B, FILE, at(5)), Listed::Refused);
    assert_eq!(owner.ask_to_list(B, FILE, at(102)), Listed::Refused);
    assert_eq!(owner.take_actions(), []);
    waits(owner.ask_to_list(B, FILE, at(103)));
}

#[test]
fn a_listing_that_waits_no_more_leaves_nothing_behind() {
    let mut owner = owner();
    made_by(&mut owner, A);
    let number = waits(owner.ask_to_list(B, FILE, at(1)));
    owner.withdraw(B, INODE, number, at(2));
    owner.withdraw(B, INODE, number, at(3));
    assert_eq!(owner.sessions[&B].waiting, 0);
    owner.take_actions();
    owner.returned(A, &back(INODE, TokenRange::ALL, None), at(4));
    assert_eq!(
        (owner.take_actions(), knows(&owner, B)),
        (vec![], Some(false))
    );
    // The same if nobody says so.
    owner.tick(at(5_000));
    made_by(&mut owner, A);
    waits(owner.ask_to_list(B, FILE, at(5_001)));
    owner.tick(at(5_002).plus(LISTED_WAIT_MAX));
    assert_eq!(owner.sessions[&B].waiting, 0);
    owner.take_actions();
    owner.returned(A, &back(INODE, TokenRange::ALL, None), at(6_000));
    assert_eq!(
        (owner.take_actions(), knows(&owner, B)),
        (vec![], Some(false))
    );
}

#[test]
fn listings_of_a_session_leave_room_for_its_other_requests() {
    let mut owner = owner();
    let files = (0..WAITING_OF_SESSION_MAX as u64).map(|inode| InodeId(1000 + inode));
    let files: Vec<_> = files.collect();
    for file in &files {
        assert!(owner.grant_made_if_free(A, *file, at(0)).is_some());
    }
    let listed = files.iter().map(|file| owner.ask_to_list(B, *file, at(1)));
    let waits = listed.filter(|listed| matches!(listed, Listed::Waits(_)));
    assert_eq!(waits.count(), WAITING_OF_SESSION_MAX / 2);
    owner.take_actions();
    let other = TokenObject::Inode(files[0]);
    assert!(
        owner
            .claim(B, vec![needs::inode_shared(files[0])], at(2))
            .is_some()
    );
    let actions = owner.asked(B, 1, wants(other, Exclusive, TokenRange::ALL), at(2));
    assert!(
        !actions.iter().any(|it| matches!(it, Action::Answer { .. })),
        "{actions:?}"
    );
}
