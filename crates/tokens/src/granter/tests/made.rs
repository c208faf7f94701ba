//! Tokens of a file that a session has just made: both or none, and only what costs nobody anything.

use super::*;

const FILE: InodeId = InodeId(7);

fn holds(owner: &Granter, session: SessionId) -> [Option<bool>; 2] {
    [INODE, BYTES].map(|object| owner.knows(session, object, TokenRange::ALL, Exclusive))
}

impl Granter {
    /// Asks for both. Nothing but the answer may come of it.
    fn gives_made(&mut self, session: SessionId, now: Moment) -> Option<[GrantNumber; 2]> {
        let before = holds(self, session);
        let numbers = self.grant_made_if_free(session, FILE, now);
        assert!(self.take_actions().is_empty(), "nobody is asked for it");
        let expected = match numbers {
            Some(_) => [Some(true); 2],
            None => before,
        };
        assert_eq!(holds(self, session), expected);
        numbers
    }
}

#[test]
fn both_tokens_of_a_new_file_are_granted_at_once_and_recalled_like_any_other() {
    let mut owner = owner();
    let [inode, bytes] = owner.gives_made(A, at(0)).expect("nobody has it");
    assert!(inode < bytes);
    // Its message came twice, or was lost.
    let again = owner.gives_made(A, at(1)).expect("it has it");
    assert!(again[0] > bytes && again[1] > again[0]);
    for (object, number) in [(INODE, again[0]), (BYTES, again[1])] {
        let actions = owner.asked(B, 1, wants(object, Shared, TokenRange::ALL), at(2));
        let [Action::Recall { session, recall }] = &actions[..] else {
            panic!("{actions:?}");
        };
        assert_eq!((*session, recall.up_to), (A, number));
        owner.returned(A, &back(object, TokenRange::ALL, None), at(3));
        let given = owner.take_actions();
        assert_eq!(granted(&given), Some((B, &[TokenRange::ALL][..])));
    }
    assert_eq!(owner.gives_made(A, at(5_000)), None, "another one has it");
}

#[test]
fn what_others_have_or_want_of_a_new_file_keeps_both_tokens_from_its_maker() {
    for (object, mode, part) in [
        (INODE, Shared, TokenRange::ALL),
        (INODE, SharedWrite, TokenRange::ALL),
        (BYTES, Shared, range(5, 6)),
        (BYTES, Exclusive, range(1000, 2000)),
    ] {
        let mut owner = owner();
        let mut asks = wants(object, mode, part);
        asks.desired = part;
        owner.asked(B, 1, asks, at(0));
        assert_eq!(owner.gives_made(A, at(1)), None, "{object:?} {mode:?}");
        owner.returned(B, &back(object, part, None), at(2));
        assert!(owner.gives_made(A, at(3)).is_some());
    }
    let mut owner = owner();
    let need = Need {
        object: BYTES,
        mode: Shared,
        ranges: vec![range(0, 1)],
    };
    let claim = owner.claim(B, vec![need], at(0)).expect("nothing waits");
    assert_eq!(owner.take_actions(), [Action::Run(claim)]);
    assert_eq!(owner.gives_made(A, at(1)), None, "an operation reads it");
    owner.end_claim(claim, at(2));
    assert!(owner.gives_made(A, at(3)).is_some());
}

#[test]
fn a_session_without_room_for_both_tokens_of_a_new_file_gets_neither() {
    let mut owner = owner();
    for inode in 1..PIECES_OF_SESSION_MAX as u64 {
        let number = owner.grant_if_free(A, InodeId(1000 + inode), at(0));
        assert!(number.is_some(), "{inode}");
        owner.take_actions();
    }
    let objects = owner.objects.len();
    assert_eq!(owner.gives_made(A, at(1)), None);
    assert_eq!(owner.objects.len(), objects, "nothing is left of it");
    let other = TokenObject::Inode(InodeId(1001));
    owner.returned(A, &back(other, TokenRange::ALL, None), at(2));
    owner.take_actions();
    assert!(owner.gives_made(A, at(3)).is_some());
}

#[test]
fn nobody_gets_tokens_of_a_new_file_in_the_grace_time_or_without_a_session() {
    let mut new = Granter::new(Tenure(2), BTreeSet::from([A]), at(0));
    new.renew(at(1_000_000), at(0));
    new.begin_session(B);
    assert_eq!(new.grant_made_if_free(B, FILE, at(1)), None);
    new.end_reclaim(A, at(2));
    assert!(new.gives_made(B, at(3)).is_some());
    let mut owner = owner();
    owner.expel(A, at(0));
    owner.take_actions();
    owner.end_session(B, at(0));
    for session in [A, B, SessionId(9)] {
        assert_eq!(owner.gives_made(session, at(1)), None);
    }
    assert!(owner.gives_made(C, at(1)).is_some());
}
