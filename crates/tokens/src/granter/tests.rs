//! Tests of the rules of one owner.

mod contended;
mod known;
mod made;

use super::*;
use crate::needs;
use model::InodeId;
use model::TokenMode::{Exclusive, Shared, SharedWrite};
use model::token::{Ship, TOKEN_RANGES_MAX};

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const C: SessionId = SessionId(3);
const INODE: TokenObject = TokenObject::Inode(InodeId(7));
const BYTES: TokenObject = TokenObject::Bytes(InodeId(7));

fn at(millis: u64) -> Moment {
    Moment(Duration::from_millis(millis))
}

fn owner() -> Granter {
    let mut owner = Granter::new(Tenure(1), BTreeSet::new(), at(0));
    owner.renew(at(1_000_000), at(0));
    for session in [A, B, C] {
        owner.begin_session(session);
        owner.answer(session, at(0));
    }
    owner
}

/// One with a lease that ends, and two sessions that it hasn't answered.
fn owner_until(millis: u64) -> Granter {
    let mut owner = Granter::new(Tenure(1), BTreeSet::new(), at(0));
    owner.renew(at(millis), at(0));
    for session in [A, B] {
        owner.begin_session(session);
    }
    owner
}

fn range(start: u64, end: u64) -> TokenRange {
    TokenRange { start, end }
}

fn wants(object: TokenObject, mode: TokenMode, required: TokenRange) -> TokenRequest {
    TokenRequest {
        object,
        mode,
        required: vec![required],
        desired: TokenRange::ALL,
        ship: Ship::Never,
    }
}

fn back(object: TokenObject, range: TokenRange, keep: Option<TokenMode>) -> TokenReturn {
    let up_to = GrantNumber {
        tenure: Tenure(1),
        count: u64::MAX,
    };
    TokenReturn {
        object,
        ranges: vec![range],
        keep,
        up_to,
    }
}

impl Granter {
    fn returned(&mut self, session: SessionId, back: &TokenReturn, now: Moment) {
        self.take_back(session, back, now).expect("it is sound");
    }

    fn held(&mut self, session: SessionId, need: Need, now: Moment) -> Option<GrantNumber> {
        self.reclaim(session, need, now).expect("it is sound")
    }

    /// Asks and returns what the owner does.
    fn asked(
        &mut self,
        session: SessionId,
        number: u64,
        wants: TokenRequest,
        now: Moment,
    ) -> Vec<Action> {
        self.ask(session, number, wants, now).expect("it is sound");
        self.take_actions()
    }

    fn ticked(&mut self, now: Moment) -> Vec<Action> {
        self.tick(now);
        self.take_actions()
    }
}

/// What was granted, if that is all that happened.
fn granted(actions: &[Action]) -> Option<(SessionId, &[TokenRange])> {
    match actions {
        [
            Action::Answer {
                session,
                reply: TokenReply::Granted { ranges, .. },
                ..
            },
        ] => Some((*session, ranges)),
        _ => None,
    }
}

/// Who was asked to give back what, if that is all that happened.
fn recalled(actions: &[Action]) -> Vec<(SessionId, &[TokenRange], Option<TokenMode>)> {
    let recalls = actions.iter().map(|action| match action {
        Action::Recall { session, recall } => (*session, &recall.ranges[..], recall.keep),
        other => panic!("{other:?}"),
    });
    recalls.collect()
}

#[test]
fn a_writer_keeps_a_shared_token_beside_a_reader() {
    let mut owner = owner();
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    let actions = owner.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), at(1));
    assert_eq!(
        recalled(&actions),
        [(A, &[TokenRange::ALL][..], Some(Shared))]
    );
    owner.returned(A, &back(INODE, TokenRange::ALL, Some(Shared)), at(2));
    assert_eq!(
        granted(&owner.take_actions()),
        Some((B, &[TokenRange::ALL][..]))
    );
    // Both have it now: a writer needs it back from both.
    let actions = owner.asked(C, 1, wants(INODE, SharedWrite, TokenRange::ALL), at(3));
    let needed = |session| (session, &[TokenRange::ALL][..], Some(SharedWrite));
    assert_eq!(recalled(&actions), [needed(A), needed(B)]);
}

#[test]
fn as_much_is_granted_as_is_free_and_only_what_is_required_after_a_recall() {
    let mut owner = owner();
    let actions = owner.asked(A, 1, wants(BYTES, Exclusive, range(100, 200)), at(0));
    assert_eq!(granted(&actions), Some((A, &[TokenRange::ALL][..])));
    let actions = owner.asked(B, 1, wants(BYTES, Exclusive, range(500, 600)), at(0));
    assert_eq!(recalled(&actions), [(A, &[range(500, 600)][..], None)]);
    owner.returned(A, &back(BYTES, range(500, 600), None), at(0));
    assert_eq!(
        granted(&owner.take_actions()),
        Some((B, &[range(500, 600)][..]))
    );
    owner.returned(A, &back(BYTES, range(600, u64::MAX), None), at(0));
    let actions = owner.asked(B, 2, wants(BYTES, Exclusive, range(700, 800)), at(49));
    assert_eq!(granted(&actions), Some((B, &[range(700, 800)][..])));
    // A moment after the recall the object counts as quiet again.
    let actions = owner.asked(B, 3, wants(BYTES, Exclusive, range(800, 900)), at(50));
    assert_eq!(granted(&actions), Some((B, &[range(500, u64::MAX)][..])));
}

#[test]
fn a_writer_that_waits_is_not_passed_by_readers_for_ever() {
    let mut owner = owner();
    owner.asked(A, 1, wants(BYTES, Shared, range(0, 100)), at(0));
    let actions = owner.asked(B, 1, wants(BYTES, Exclusive, range(0, 100)), at(1));
    assert_eq!(recalled(&actions), [(A, &[range(0, 100)][..], None)]);
    assert!(
        owner
            .asked(C, 1, wants(BYTES, Shared, range(50, 60)), at(2))
            .is_empty()
    );
    owner.returned(A, &back(BYTES, TokenRange::ALL, None), at(3));
    let actions = owner.take_actions();
    // B first; C then waits for B.
    let (first, rest) = actions.split_first().expect("B is answered");
    assert_eq!(
        granted(std::slice::from_ref(first)),
        Some((B, &[range(0, 100)][..]))
    );
    assert_eq!(recalled(rest), [(B, &[range(50, 60)][..], Some(Shared))]);
}

#[test]
fn who_needs_something_else_waits_for_nobody() {
    let mut owner = owner();
    owner.asked(A, 1, wants(BYTES, Exclusive, range(0, 100)), at(0));
    owner.asked(B, 1, wants(BYTES, Exclusive, range(0, 100)), at(1));
    owner.returned(A, &back(BYTES, range(100, u64::MAX), None), at(1));
    let actions = owner.asked(C, 1, wants(BYTES, Exclusive, range(100, 200)), at(2));
    assert_eq!(granted(&actions), Some((C, &[range(100, 200)][..])));
}

#[test]
fn who_has_it_is_answered_while_it_is_recalled() {
    let mut owner = owner();
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    owner.asked(B, 1, wants(INODE, Exclusive, TokenRange::ALL), at(1));
    let actions = owner.asked(A, 2, wants(INODE, Exclusive, TokenRange::ALL), at(2));
    assert_eq!(granted(&actions), Some((A, &[TokenRange::ALL][..])));
    // The newest grant is given back as well, and a return of older ones alone isn't enough.
    let old = TokenReturn {
        up_to: GrantNumber {
            tenure: Tenure(1),
            count: 1,
        },
        ..back(INODE, TokenRange::ALL, None)
    };
    owner.returned(A, &old, at(3));
    assert!(owner.take_actions().is_empty());
    owner.returned(A, &back(INODE, TokenRange::ALL, None), at(3));
    assert_eq!(
        granted(&owner.take_actions()),
        Some((B, &[TokenRange::ALL][..]))
    );
}

#[test]
fn a_silent_session_ends_once_its_tokens_have_run_out() {
    let mut owner = owner();
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    owner.answer(A, at(1000));
    owner.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), at(1000));
    // Six seconds after its last answer, by a clock that is a twentieth slower.
    let said = owner.ticked(at(7315));
    assert_eq!(recalled(&said).len(), 1, "it is only asked again");
    assert!(owner.ticked(at(7316)).contains(&Action::End(A)));
    assert_eq!(owner.answer(A, at(7317)), None);
    assert!(
        !owner.ticked(at(7400)).contains(&Action::End(A)),
        "not so often"
    );
    assert!(owner.ticked(at(8316)).contains(&Action::End(A)));
    owner.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), at(8316));
    assert!(
        granted(&owner.take_actions()).is_none(),
        "its end isn't durable yet"
    );
    owner.end_session(A, at(8400));
    assert_eq!(
        granted(&owner.take_actions()),
        Some((B, &[TokenRange::ALL][..]))
    );
}

/// Would be broken if sessions that had asked all the time ended because the owner couldn't answer them: its lease
/// was over for a moment, until there was another manager.
#[test]
fn an_owner_that_could_not_answer_ends_no_silent_session_for_four_seconds() {
    let mut owner = owner_until(5_000);
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    owner.answer(A, at(4_000));
    owner.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), at(4_500));
    assert_eq!(owner.answer(A, at(5_000)), None, "its lease is over");
    owner.renew(at(15_000), at(9_000));
    assert!(!owner.ticked(at(12_999)).contains(&Action::End(A)));
    assert!(owner.ticked(at(13_000)).contains(&Action::End(A)));
}

/// Would be broken if an owner that is cut off ended the sessions of all others: their tokens run out by its clock
/// before its own lease does, and what it decides then is carried out once it is back.
#[test]
fn an_owner_that_hears_nobody_ends_no_session() {
    let mut owner = owner_until(6_000);
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    owner.answer(A, at(100));
    owner.renew(at(6_600), at(600));
    owner.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), at(700));
    // From here on it is cut off. The tokens of the first have run out.
    assert!(!owner.ticked(at(6_500)).contains(&Action::End(A)));
    assert!(!owner.ticked(at(7_000)).contains(&Action::End(A)));
    owner.renew(at(14_000), at(8_000));
    assert!(!owner.ticked(at(11_999)).contains(&Action::End(A)));
    assert!(owner.answer(A, at(11_999)).is_some());
}

/// Would be broken if the time in which an owner could answer nobody, because coordination had no quorum, counted
/// against a session that was recalled in it.
#[test]
fn a_recall_has_its_whole_time_after_the_owner_could_answer_nobody() {
    let mut owner = owner_until(6_000);
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    owner.answer(A, at(5_000));
    for second in 7..40 {
        let wanted = wants(INODE, Shared, TokenRange::ALL);
        owner.asked(B, 1, wanted, at(second * 1_000));
        assert!(!owner.ticked(at(second * 1_000)).contains(&Action::End(A)));
    }
    owner.renew(at(1_000_000), at(40_000));
    for second in 40..59 {
        let now = at(second * 1_000);
        assert!(owner.answer(A, now).is_some());
        owner.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), now);
        assert!(!owner.ticked(now).contains(&Action::End(A)), "{second} s");
    }
    owner.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), at(60_000));
    owner.tick(at(60_000));
    assert_eq!(owner.answer(A, at(60_000)), None, "it gave nothing back");
}

/// As above, of a new owner that waits for what sessions had.
#[test]
fn a_new_owner_that_hears_nobody_ends_no_session() {
    let mut owner = Granter::new(Tenure(2), BTreeSet::from([A]), at(0));
    owner.renew(at(6_000), at(0));
    assert!(!owner.ticked(at(15_500)).contains(&Action::End(A)));
    owner.renew(at(22_000), at(16_000));
    assert!(!owner.ticked(at(19_999)).contains(&Action::End(A)));
    assert!(owner.ticked(at(20_000)).contains(&Action::End(A)));
}

#[test]
fn a_session_that_slept_has_two_seconds_to_answer() {
    let mut owner = owner();
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    owner.answer(B, at(60_000));
    owner.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), at(60_000));
    assert!(!owner.ticked(at(61_999)).contains(&Action::End(A)));
    assert!(owner.answer(A, at(61_999)).is_some());
    assert!(!owner.ticked(at(68_000)).contains(&Action::End(A)));
}

#[test]
fn a_session_that_answers_and_returns_nothing_loses_its_standing() {
    let mut owner = owner();
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    owner.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), at(0));
    for second in 1..20 {
        owner.asked(
            B,
            1,
            wants(INODE, Shared, TokenRange::ALL),
            at(second * 1000),
        );
        owner.tick(at(second * 1000));
        assert!(owner.answer(A, at(second * 1000)).is_some());
    }
    let actions = owner.ticked(at(20_000));
    assert!(
        !actions.contains(&Action::End(A)),
        "its tokens may still be in use"
    );
    assert_eq!(owner.answer(A, at(20_000)), None);
    assert!(!owner.ticked(at(25_315)).contains(&Action::End(A)));
    assert!(owner.ticked(at(25_316)).contains(&Action::End(A)));
}

/// A recall goes on for so many seconds, in which B asks all the time and A publishes at some of them.
/// Until when A was answered.
fn waits_for_publishes(seconds: u64, publishes: impl Fn(u64) -> bool) -> u64 {
    let mut owner = owner();
    owner.renew(at(1_000_000_000), at(0));
    owner.asked(A, 1, wants(BYTES, Exclusive, TokenRange::ALL), at(0));
    owner.asked(B, 1, wants(BYTES, Shared, TokenRange::ALL), at(0));
    for second in 1..=seconds {
        let now = at(second * 1000);
        owner.answer(B, now);
        owner.asked(B, 1, wants(BYTES, Shared, TokenRange::ALL), now);
        if publishes(second) {
            owner.note_published(A, InodeId(7), now);
        }
        owner.ticked(now);
        if owner.answer(A, now).is_none() {
            return second;
        }
    }
    seconds
}

#[test]
fn who_publishes_what_is_recalled_has_as_long_for_the_rest() {
    assert_eq!(waits_for_publishes(44, |second| second % 19 == 0), 44);
    assert_eq!(waits_for_publishes(44, |second| second == 19), 19 + 20);
    let most = RECALL_MAX.as_secs();
    assert_eq!(waits_for_publishes(2 * most, |_| true), most);
}

#[test]
fn a_publish_of_another_file_is_no_progress() {
    let mut owner = owner();
    owner.asked(A, 1, wants(BYTES, Exclusive, TokenRange::ALL), at(0));
    for second in 0..=20 {
        let now = at(second * 1000);
        owner.answer(B, now);
        owner.asked(B, 1, wants(BYTES, Shared, TokenRange::ALL), now);
        owner.note_published(A, InodeId(8), now);
        owner.note_published(B, InodeId(7), now);
        owner.ticked(now);
    }
    assert_eq!(owner.answer(A, at(20_000)), None);
}

/// Whose claims wait for A, each for a while, one after the other with pauses between: until when A was
/// answered.
fn waits_again_and_again(pause_ms: u64) -> Option<u64> {
    let mut owner = owner();
    owner.renew(at(1_000_000_000), at(0));
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    let mut now = 0;
    while now < 3_000_000 {
        let need = needs::inode_shared(InodeId(7));
        let claim = owner.claim(B, vec![need], at(now)).expect("few wait");
        for _ in 0..8 {
            now += 500;
            owner.answer(B, at(now));
            owner.ticked(at(now));
            if owner.answer(A, at(now)).is_none() {
                return Some(now);
            }
        }
        owner.end_claim(claim, at(now));
        let until = now + pause_ms;
        while now < until {
            now += 500;
            owner.ticked(at(now));
            assert!(owner.answer(A, at(now)).is_some(), "nobody waits");
        }
    }
    None
}

#[test]
fn who_asks_again_and_again_finds_the_clock_of_a_recall_where_it_stood() {
    assert_eq!(waits_again_and_again(0), Some(20_000));
    // Five times four seconds.
    assert_eq!(waits_again_and_again(1_000), Some(20_000 + 4_000));
    assert_eq!(waits_again_and_again(59_000), Some(20_000 + 4 * 59_000));
}

#[test]
fn a_recall_that_nobody_waits_for_is_forgotten() {
    assert_eq!(waits_again_and_again(60_000), None);
}

#[test]
fn operations_go_to_the_owner_where_others_want_the_object() {
    let mut owner = owner();
    let shippable = |mode| TokenRequest {
        ship: Ship::IfHeld,
        ..wants(TokenObject::Directory(InodeId(1)), mode, TokenRange::ALL)
    };
    let ship = |session, request| Action::Answer {
        session,
        request,
        reply: TokenReply::Ship,
    };
    owner.asked(A, 1, shippable(Exclusive), at(0));
    assert_eq!(owner.asked(B, 1, shippable(Exclusive), at(1)), [ship(B, 1)]);
    let need = Need {
        object: TokenObject::Directory(InodeId(1)),
        mode: Exclusive,
        ranges: vec![TokenRange::ALL],
    };
    let claim = owner.claim(B, vec![need], at(1)).expect("nothing waits");
    assert_eq!(recalled(&owner.take_actions()).len(), 1);
    owner.returned(
        A,
        &back(TokenObject::Directory(InodeId(1)), TokenRange::ALL, None),
        at(2),
    );
    assert_eq!(owner.take_actions(), [Action::Run(claim)]);
    owner.end_claim(claim, at(3));
    // The delegation isn't granted again for a while.
    assert_eq!(
        owner.asked(A, 2, shippable(Exclusive), at(50)),
        [ship(A, 2)]
    );
    let actions = owner.asked(A, 3, shippable(Exclusive), at(51));
    assert_eq!(granted(&actions), Some((A, &[TokenRange::ALL][..])));
}

fn needs_alone(object: TokenObject) -> Need {
    Need {
        object,
        mode: Exclusive,
        ranges: vec![TokenRange::ALL],
    }
}

#[test]
fn a_directory_that_another_has_alone_is_shared_with_who_looks_into_it() {
    const NAMES: TokenObject = TokenObject::Directory(InodeId(1));
    let mut owner = owner();
    let look = || TokenRequest {
        ship: Ship::IfContended,
        ..TokenRequest::to_look_at(NAMES)
    };
    owner.asked(A, 1, TokenRequest::to_have_alone(NAMES), at(0));
    let whole = &[TokenRange::ALL][..];
    let actions = owner.asked(B, 1, look(), at(1));
    assert_eq!(recalled(&actions), [(A, whole, Some(Shared))]);
    owner.returned(A, &back(NAMES, TokenRange::ALL, Some(Shared)), at(2));
    assert_eq!(granted(&owner.take_actions()), Some((B, whole)));
    // Those that change it in turn with who looks have theirs done by the owner for a while.
    let need = needs_alone(NAMES);
    let claim = owner.claim(A, vec![need], at(3)).expect("nothing waits");
    assert_eq!(recalled(&owner.take_actions()), [(B, whole, None)]);
    owner.returned(B, &back(NAMES, TokenRange::ALL, None), at(4));
    owner.end_claim(claim, at(5));
    owner.take_actions();
    let ship = Action::Answer {
        session: B,
        request: 2,
        reply: TokenReply::Ship,
    };
    assert_eq!(owner.asked(B, 2, look(), at(102)), [ship]);
    let actions = owner.asked(B, 3, look(), at(103));
    assert_eq!(granted(&actions), Some((B, whole)));
    // Others that wait have their turn first.
    let claim = owner
        .claim(A, vec![needs_alone(NAMES)], at(3_000))
        .expect("nothing waits");
    owner.take_actions();
    assert_eq!(
        owner.asked(C, 1, look(), at(3_001)).len(),
        1,
        "it is refused"
    );
    owner.end_claim(claim, at(3_002));
}

#[test]
fn operations_of_the_owner_wait_for_tokens_and_not_for_each_other() {
    let mut owner = owner();
    let need = |mode| Need {
        object: INODE,
        mode,
        ranges: vec![TokenRange::ALL],
    };
    let first = owner
        .claim(A, vec![need(Exclusive)], at(0))
        .expect("nothing waits");
    let second = owner
        .claim(B, vec![need(Exclusive)], at(0))
        .expect("nothing waits");
    assert_eq!(
        owner.take_actions(),
        [Action::Run(first), Action::Run(second)]
    );
    assert!(
        owner
            .asked(C, 1, wants(INODE, Shared, TokenRange::ALL), at(1))
            .is_empty()
    );
    owner.end_claim(first, at(2));
    assert!(owner.take_actions().is_empty());
    owner.end_claim(second, at(2));
    assert_eq!(
        granted(&owner.take_actions()),
        Some((C, &[TokenRange::ALL][..]))
    );
    // An operation for the holder itself takes nothing from it.
    let own = owner
        .claim(C, vec![need(Exclusive)], at(3))
        .expect("nothing waits");
    assert_eq!(owner.take_actions(), [Action::Run(own)]);
}

#[test]
fn an_operation_takes_its_objects_one_after_the_other() {
    let mut owner = owner();
    let need = |object| Need {
        object,
        mode: Exclusive,
        ranges: vec![TokenRange::ALL],
    };
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    owner.asked(A, 2, wants(BYTES, Exclusive, TokenRange::ALL), at(0));
    let claim = owner
        .claim(B, vec![need(BYTES), need(INODE)], at(1))
        .expect("nothing waits");
    owner.returned(A, &back(BYTES, TokenRange::ALL, None), at(2));
    owner.take_actions();
    owner.returned(A, &back(INODE, TokenRange::ALL, None), at(3));
    assert_eq!(owner.take_actions(), [Action::Run(claim)]);
    // One that is given up frees what it had.
    let other = owner
        .claim(C, vec![need(INODE), need(BYTES)], at(4))
        .expect("nothing waits");
    assert_eq!(owner.take_actions(), [Action::Run(other)]);
    owner.end_claim(claim, at(5));
    owner.end_claim(other, at(5));
    let actions = owner.asked(A, 3, wants(INODE, Exclusive, TokenRange::ALL), at(2000));
    assert_eq!(granted(&actions), Some((A, &[TokenRange::ALL][..])));
}

#[test]
fn a_session_waits_for_a_limited_number_of_things() {
    let mut owner = owner();
    owner.asked(A, 0, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    for number in 0..WAITING_OF_SESSION_MAX as u64 {
        owner.asked(B, number, wants(INODE, Exclusive, TokenRange::ALL), at(1));
    }
    let more = WAITING_OF_SESSION_MAX as u64;
    let actions = owner.asked(B, more, wants(INODE, Exclusive, TokenRange::ALL), at(1));
    let reply = TokenReply::TooMany;
    let refused = Action::Answer {
        session: B,
        request: more,
        reply,
    };
    assert_eq!(actions, [refused]);
    let need = Need {
        object: BYTES,
        mode: Shared,
        ranges: vec![TokenRange::ALL],
    };
    assert_eq!(owner.claim(B, vec![need.clone()], at(1)), None);
    assert!(owner.claim(C, vec![need.clone()], at(1)).is_some());
    // Requests that nobody asks again are forgotten.
    owner.answer(A, at(11_000));
    owner.tick(at(11_001));
    assert!(owner.claim(B, vec![need], at(11_001)).is_some());
}

#[test]
fn a_recall_names_a_limited_number_of_ranges_and_the_rest_follows() {
    let mut owner = owner();
    let count = TOKEN_RANGES_MAX as u64 + 44;
    for number in 0..count {
        let mut wants = wants(BYTES, Exclusive, range(number * 10, number * 10 + 5));
        wants.desired = wants.required[0];
        owner.asked(A, number, wants, at(0));
    }
    let actions = owner.asked(B, 0, wants(BYTES, Exclusive, range(0, 10_000)), at(1));
    let [(A, first, None)] = recalled(&actions)[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(first.len(), TOKEN_RANGES_MAX);
    for range in first {
        owner.returned(A, &back(BYTES, *range, None), at(2));
    }
    let actions = owner.take_actions();
    let last = recalled(&actions)
        .pop()
        .map(|(_, ranges, _)| ranges.to_vec());
    let last = last.expect("the rest is recalled");
    assert_eq!(last.last(), Some(&range(count * 10 - 10, count * 10 - 5)));
    for range in last {
        owner.returned(A, &back(BYTES, range, None), at(3));
    }
    assert_eq!(
        granted(&owner.take_actions()),
        Some((B, &[range(0, 10_000)][..]))
    );
}

#[test]
fn an_owner_answers_only_while_its_own_lease_lasts() {
    let mut owner = Granter::new(Tenure(1), BTreeSet::new(), at(0));
    owner.begin_session(A);
    assert_eq!(owner.answer(A, at(0)), None);
    owner.renew(at(10_000), at(0));
    assert_eq!(owner.answer(A, at(1000)), Some(Duration::from_secs(6)));
    assert_eq!(owner.answer(A, at(8000)), Some(Duration::from_secs(2)));
    assert_eq!(owner.answer(A, at(10_000)), None);
    assert_eq!(owner.answer(B, at(1000)), None, "it isn't open");
}

#[test]
fn nothing_is_granted_before_all_have_said_what_they_hold() {
    let mut owner = Granter::new(Tenure(2), BTreeSet::from([A, B]), at(0));
    owner.renew(at(1_000_000), at(0));
    owner.begin_session(C);
    assert!(
        owner
            .asked(C, 1, wants(BYTES, Shared, TokenRange::ALL), at(1))
            .is_empty()
    );
    let held = |mode| Need {
        object: BYTES,
        mode,
        ranges: vec![TokenRange::ALL],
    };
    assert!(owner.held(A, held(Exclusive), at(2)).is_some());
    assert_eq!(owner.held(B, held(Shared), at(2)), None, "A has it");
    owner.end_reclaim(A, at(3));
    // What is there already may be asked for, and not a byte more.
    let actions = owner.asked(A, 1, wants(BYTES, Exclusive, range(3, 4)), at(4));
    assert_eq!(granted(&actions), Some((A, &[range(3, 4)][..])));
    owner.end_reclaim(B, at(5));
    assert_eq!(
        recalled(&owner.take_actions()).len(),
        1,
        "grace is over, C's turn"
    );
}

#[test]
fn who_has_not_said_yet_what_it_holds_may_be_changing_everything() {
    let mut owner = Granter::new(Tenure(2), BTreeSet::from([A, B]), at(0));
    let TokenObject::Inode(inode) = INODE else {
        unreachable!()
    };
    owner.end_reclaim(A, at(1));
    assert!(owner.is_changed_by_others(A, inode), "B may hold it");
    owner.end_reclaim(B, at(2));
    assert!(!owner.is_changed_by_others(A, inode));
}

#[test]
fn those_who_say_nothing_in_the_grace_time_end_before_others_get_anything() {
    let mut owner = Granter::new(Tenure(2), BTreeSet::from([A]), at(0));
    owner.renew(at(1_000_000), at(0));
    owner.begin_session(C);
    owner.asked(C, 1, wants(INODE, Exclusive, TokenRange::ALL), at(6000));
    assert!(owner.ticked(at(14_999)).is_empty());
    assert_eq!(owner.ticked(at(15_000)), [Action::End(A)]);
    // What it says now comes too late: C may have the token before A hears that.
    let held = Need {
        object: INODE,
        mode: Shared,
        ranges: vec![TokenRange::ALL],
    };
    assert_eq!(owner.held(A, held, at(15_001)), None);
    assert_eq!(owner.answer(A, at(15_001)), None);
    owner.asked(C, 1, wants(INODE, Exclusive, TokenRange::ALL), at(15_002));
    assert!(owner.take_actions().is_empty(), "its end isn't durable yet");
    owner.end_session(A, at(15_003));
    let actions = owner.take_actions();
    assert_eq!(granted(&actions), Some((C, &[TokenRange::ALL][..])));
}

#[test]
fn a_session_of_the_owner_before_is_waited_for_as_long_as_that_one_may_have_promised() {
    let mut owner = Granter::new(Tenure(2), BTreeSet::from([A]), at(0));
    owner.begin_session(B);
    let held = Need {
        object: INODE,
        mode: Exclusive,
        ranges: vec![TokenRange::ALL],
    };
    // Its own lease is nearly over: it gives A no time.
    owner.renew(at(1), at(0));
    assert!(owner.held(A, held, at(0)).is_some());
    owner.end_reclaim(A, at(0));
    owner.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), at(0));
    owner.renew(at(20_000), at(1));
    assert!(!owner.ticked(at(6315)).contains(&Action::End(A)));
    assert!(owner.ticked(at(6316)).contains(&Action::End(A)));
}

#[test]
fn nothing_is_remembered_of_what_nobody_holds() {
    let mut owner = owner();
    for number in 0..100 {
        let object = TokenObject::Inode(InodeId(number));
        owner.asked(A, number, wants(object, Exclusive, TokenRange::ALL), at(0));
        owner.asked(B, number, wants(object, Exclusive, TokenRange::ALL), at(0));
        owner.returned(A, &back(object, TokenRange::ALL, None), at(1));
        owner.returned(B, &back(object, TokenRange::ALL, None), at(1));
    }
    owner.ticked(at(2000));
    let known = (
        owner.objects.len(),
        owner.waited_for.len(),
        owner.fading.len(),
    );
    assert_eq!(known, (0, 0, 0));
    assert!(
        owner
            .sessions
            .values()
            .all(|s| s.pieces == 0 && s.waiting == 0 && s.objects.is_empty())
    );
}

#[test]
fn what_no_sound_daemon_sends_changes_nothing() {
    let mut owner = owner();
    let before = owner.clone();
    let empty = range(5, 5);
    let refused = owner.ask(A, 1, wants(BYTES, Shared, empty), at(0));
    assert!(refused.is_err());
    assert!(
        owner
            .take_back(A, &back(INODE, range(0, 7), None), at(0))
            .is_err()
    );
    let need = Need {
        object: BYTES,
        mode: SharedWrite,
        ranges: vec![TokenRange::ALL],
    };
    assert!(owner.reclaim(A, need, at(0)).is_err());
    assert_eq!(owner, before);
}

#[test]
fn an_operation_of_a_holder_passes_those_who_wait_for_what_it_holds() {
    let mut owner = owner();
    owner.asked(A, 1, wants(INODE, Shared, TokenRange::ALL), at(0));
    let actions = owner.asked(C, 1, wants(INODE, Exclusive, TokenRange::ALL), at(1));
    assert_eq!(recalled(&actions), [(A, &[TokenRange::ALL][..], None)]);
    let need = Need {
        object: INODE,
        mode: Exclusive,
        ranges: vec![TokenRange::ALL],
    };
    let other = owner.claim(B, vec![need.clone()], at(1)).expect("few wait");
    assert!(!owner.take_actions().contains(&Action::Run(other)));
    let own = owner.claim(A, vec![need], at(2)).expect("few wait");
    assert_eq!(owner.take_actions(), [Action::Run(own)]);
}

#[test]
fn who_waits_already_is_recognised_when_no_more_may_wait() {
    let mut owner = owner();
    owner.asked(A, 0, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    for number in 0..WAITING_OF_SESSION_MAX as u64 {
        owner.asked(B, number, wants(INODE, Exclusive, TokenRange::ALL), at(1));
    }
    let again = owner.asked(B, 5, wants(INODE, Exclusive, TokenRange::ALL), at(2));
    assert!(again.is_empty(), "it waits as before: {again:?}");
}

#[test]
fn who_returns_what_was_needed_has_as_long_for_what_is_needed_next() {
    let mut owner = owner();
    let next = |second: u64| range(second * 10, second * 10 + 10);
    owner.asked(A, 1, wants(BYTES, Exclusive, TokenRange::ALL), at(0));
    // For two minutes there is always something that A has to return, and it does.
    for second in 0..120 {
        let now = at(second * 1000);
        owner.answer(B, now);
        owner.answer(C, now);
        let session = if second % 2 == 0 { B } else { C };
        owner.asked(session, second, wants(BYTES, Exclusive, next(second)), now);
        if second > 0 {
            owner.returned(A, &back(BYTES, next(second - 1), None), now);
        }
        owner.ticked(now);
        assert!(owner.answer(A, now).is_some(), "after {second} s");
    }
}

#[test]
fn whoever_waits_is_told_for_whom_and_until_when_their_tokens_last() {
    let mut owner = owner();
    owner.asked(A, 1, wants(INODE, Exclusive, TokenRange::ALL), at(0));
    owner.answer(A, at(1_000));
    assert_eq!(owner.waited_for(INODE, B), [], "nobody has asked");
    owner.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), at(2_000));
    let claim = owner.claim(C, vec![needs::inode_shared(InodeId(7))], at(3_000));
    let claim = claim.expect("there is room");
    assert_eq!(owner.claim_waits(claim), Some((C, INODE)));
    for by in [B, C] {
        let [holder] = owner.waited_for(INODE, by)[..] else {
            panic!("{:?}", owner.waited_for(INODE, by));
        };
        assert_eq!((holder.session, holder.since), (A, Some(at(2_000))));
        let lasts = holder.runs_out.since(at(1_000));
        assert!(lasts >= crate::TOKEN_TIME && lasts < crate::TOKEN_TIME * 2);
    }
    assert_eq!(owner.waited_for(INODE, A), [], "not for itself");
    owner.returned(A, &back(INODE, TokenRange::ALL, Some(Shared)), at(4_000));
    assert_eq!(owner.waited_for(INODE, C), []);
    assert_eq!(owner.claim_waits(claim), None, "it runs");
    // A new owner waits for what sessions have yet to say.
    let mut next = Granter::new(Tenure(2), BTreeSet::from([A, B]), at(5_000));
    next.renew(at(1_000_000), at(5_000));
    next.asked(B, 1, wants(INODE, Shared, TokenRange::ALL), at(5_000));
    let [unheard] = next.waited_for(INODE, B)[..] else {
        panic!("{:?}", next.waited_for(INODE, B));
    };
    assert_eq!((unheard.session, unheard.since), (A, None));
}
