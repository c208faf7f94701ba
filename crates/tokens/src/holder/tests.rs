//! Tests of the rules of one client.

use super::*;
use crate::granter::{self, Granter, WAITING_OF_SESSION_MAX};
use model::TokenMode::{Exclusive, Shared};
use model::token::Ship;
use model::{InodeId, SessionId};

const INODE: TokenObject = TokenObject::Inode(InodeId(7));

fn at(millis: u64) -> Moment {
    Moment(Duration::from_millis(millis))
}

fn number(count: u64) -> GrantNumber {
    GrantNumber {
        tenure: Tenure(1),
        count,
    }
}

fn want(mode: TokenMode) -> Want {
    Want {
        object: INODE,
        mode,
        range: TokenRange::ALL,
        desired: TokenRange::ALL,
        ship: Ship::Never,
    }
}

fn holder() -> Holder {
    let mut holder = Holder::new(Tenure(1));
    holder.renewed(Tenure(1), at(0), Duration::from_secs(6), at(0));
    holder
}

fn granted(mode: TokenMode, count: u64) -> TokenReply {
    TokenReply::Granted {
        ranges: vec![TokenRange::ALL],
        mode,
        number: number(count),
    }
}

fn recall(keep: Option<TokenMode>, count: u64) -> TokenRecall {
    TokenRecall {
        object: INODE,
        ranges: vec![TokenRange::ALL],
        keep,
        up_to: number(count),
    }
}

fn returned(keep: Option<TokenMode>, count: u64) -> Action {
    Action::Return(TokenReturn {
        object: INODE,
        ranges: vec![TokenRange::ALL],
        keep,
        up_to: number(count),
    })
}

impl Holder {
    /// What is to be done, but for looking at what may be used.
    fn does(&mut self) -> Vec<Action> {
        let mut actions = self.take_actions();
        actions.retain(|action| !matches!(action, Action::Changed(_)));
        actions
    }

    fn hears(&mut self, recall: TokenRecall, now: Moment) {
        self.recalled(recall, now).expect("it is sound");
    }

    fn gets(&mut self, request: u64, reply: TokenReply, now: Moment) {
        self.answered(request, reply, now).expect("it is sound");
    }

    /// The number of the request, if one is all that is to be done.
    fn asks(&mut self) -> u64 {
        match &self.does()[..] {
            [Action::Ask { request, .. }] => *request,
            other => panic!("{other:?}"),
        }
    }

    /// The number of the flush, if one is all that is to be done.
    fn flushes(&mut self) -> FlushNumber {
        match &self.does()[..] {
            [Action::Flush { flush, .. }] => *flush,
            other => panic!("{other:?}"),
        }
    }

    /// Gets the token and begins a use.
    fn has(&mut self, mode: TokenMode, count: u64) -> UseNumber {
        let Claimed::Waits(wait) = self.claim(want(mode), at(0)) else {
            panic!("it is held already");
        };
        let request = self.asks();
        self.gets(request, granted(mode, count), at(0));
        match self.does()[..] {
            [Action::Begin(waited, begun)] if waited == wait => begun,
            ref other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_held_is_used_without_a_message() {
    let mut holder = holder();
    let first = holder.has(Exclusive, 1);
    assert!(matches!(
        holder.claim(want(Shared), at(5999)),
        Claimed::Begun(_)
    ));
    assert!(holder.does().is_empty());
    assert!(holder.end_use(first, at(5999)));
}

#[test]
fn operations_that_want_the_same_ask_once() {
    let mut holder = holder();
    let Claimed::Waits(first) = holder.claim(want(Exclusive), at(0)) else {
        panic!("nothing is held");
    };
    let request = holder.asks();
    assert!(matches!(
        holder.claim(want(Shared), at(0)),
        Claimed::Waits(_)
    ));
    assert!(holder.does().is_empty());
    // One that gives up leaves the others waiting; with the last one the request ends.
    holder.give_up(first);
    assert!(holder.does().is_empty());
    holder.gets(request, granted(Exclusive, 1), at(0));
    assert!(matches!(holder.does()[..], [Action::Begin(..)]));
    let mut other = Holder::new(Tenure(1));
    let Claimed::Waits(only) = other.claim(want(Shared), at(0)) else {
        panic!("nothing is held");
    };
    let request = other.asks();
    other.give_up(only);
    assert_eq!(other.does(), [Action::Stop { request }]);
    assert!(other.objects.is_empty() && other.asked.is_empty());
}

#[test]
fn a_token_that_ran_out_is_not_used_and_what_was_begun_does_not_count() {
    let mut holder = holder();
    let begun = holder.has(Exclusive, 1);
    assert!(matches!(
        holder.claim(want(Shared), at(6000)),
        Claimed::Waits(_)
    ));
    let request = holder.asks();
    assert!(!holder.end_use(begun, at(6000)));
    // The owner still knows it, but that alone gives no time: nothing begins, nothing is asked.
    holder.gets(request, granted(Shared, 2), at(6100));
    assert!(holder.does().is_empty());
    let span = Duration::from_secs(6);
    holder.renewed(Tenure(2), at(6000), span, at(6100));
    assert!(holder.does().is_empty(), "of another owner");
    holder.renewed(Tenure(1), at(6000), span, at(6100));
    assert!(matches!(holder.does()[..], [Action::Begin(..)]));
}

/// Would be broken if who has an answer, and may not use what it has got, were listed as one who is asking.
#[test]
fn what_an_operation_waits_for_is_said_as_it_is_now() {
    let mut holder = holder();
    let begun = holder.has(Exclusive, 1);
    assert!(holder.waiting().is_empty());
    // Time is over: it is asked for again, and answered without more time.
    let Claimed::Waits(first) = holder.claim(want(Shared), at(6000)) else {
        panic!("it has run out");
    };
    let request = holder.asks();
    let waits_for = |what| [(first, INODE, what)];
    assert_eq!(holder.waiting(), waits_for(WaitsFor::Answer(request)));
    holder.gets(request, granted(Shared, 2), at(6100));
    assert_eq!(holder.waiting(), waits_for(WaitsFor::Renewal));
    // Another client wants it back, and has it once the use has ended.
    holder.hears(recall(None, 2), at(6200));
    assert_eq!(holder.waiting(), waits_for(WaitsFor::Return));
    holder.end_use(begun, at(6300));
    let flush = holder.flushes();
    assert_eq!(holder.waiting(), waits_for(WaitsFor::Return));
    holder.flushed(flush, at(6400));
    let asked = holder.does().into_iter().find_map(|action| match action {
        Action::Ask { request, .. } => Some(request),
        _ => None,
    });
    let request = asked.expect("it is asked for again");
    assert_eq!(holder.waiting(), waits_for(WaitsFor::Answer(request)));
    holder.give_up(first);
    assert!(holder.waiting().is_empty());
}

#[test]
fn a_recall_waits_for_those_who_use_it_and_lets_no_others_begin() {
    let mut holder = holder();
    let begun = holder.has(Exclusive, 1);
    holder.hears(recall(None, 1), at(1));
    assert!(holder.does().is_empty());
    let shippable = Want {
        ship: Ship::IfHeld,
        ..want(Exclusive)
    };
    assert_eq!(holder.claim(shippable, at(2)), Claimed::Ship);
    let Claimed::Waits(waiting) = holder.claim(want(Exclusive), at(2)) else {
        panic!("it is being given back");
    };
    // The owner would say that the session has it: it is asked once that is no longer so.
    assert!(holder.does().is_empty());
    assert!(holder.end_use(begun, at(3)), "it began before");
    let flush = holder.flushes();
    holder.hears(recall(None, 1), at(4));
    assert!(holder.does().is_empty(), "said again, and under way");
    holder.flushed(flush, at(5));
    let actions = holder.does();
    assert_eq!(actions[0], returned(None, 1));
    let Action::Ask { request, .. } = actions[1] else {
        panic!("{actions:?}");
    };
    holder.gets(request, granted(Exclusive, 2), at(6));
    assert!(matches!(holder.does()[..], [Action::Begin(number, _)] if number == waiting));
}

#[test]
fn what_a_recall_leaves_may_be_used_meanwhile() {
    let mut holder = holder();
    let begun = holder.has(Exclusive, 1);
    holder.end_use(begun, at(0));
    holder.hears(recall(Some(Shared), 1), at(1));
    let flush = holder.flushes();
    assert!(matches!(
        holder.claim(want(Shared), at(2)),
        Claimed::Begun(_)
    ));
    holder.flushed(flush, at(3));
    assert_eq!(holder.does(), [returned(Some(Shared), 1)]);
    assert!(holder.may_use(&want(Shared), at(4)));
    assert!(!holder.may_use(&want(Exclusive), at(4)));
}

#[test]
fn a_recall_that_overtakes_its_grant_waits_for_it_and_for_one_use() {
    let mut holder = holder();
    let Claimed::Waits(wait) = holder.claim(want(Exclusive), at(0)) else {
        panic!("nothing is held");
    };
    let request = holder.asks();
    holder.hears(recall(None, 1), at(1));
    assert!(holder.does().is_empty());
    holder.gets(request, granted(Exclusive, 1), at(2));
    let [Action::Begin(waited, begun)] = holder.does()[..] else {
        panic!("the use has begun");
    };
    assert_eq!(waited, wait);
    assert!(holder.end_use(begun, at(3)));
    let flush = holder.flushes();
    holder.flushed(flush, at(4));
    assert_eq!(holder.does(), [returned(None, 1)]);
}

#[test]
fn a_grant_that_comes_after_it_was_returned_is_not_used() {
    let mut holder = holder();
    assert!(matches!(
        holder.claim(want(Exclusive), at(0)),
        Claimed::Waits(_)
    ));
    let request = holder.asks();
    holder.hears(recall(None, 4), at(1));
    // Said again, it waits no longer.
    holder.hears(recall(None, 4), at(501));
    holder.tick(at(3_000));
    assert!(holder.does().is_empty());
    holder.tick(at(3_001));
    assert_eq!(holder.does(), [returned(None, 4)]);
    holder.gets(request, granted(Exclusive, 4), at(3_002));
    assert!(!holder.may_use(&want(Exclusive), at(3_003)));
    // It asks again, and uses what is granted later.
    let request = holder.asks();
    holder.gets(request, granted(Exclusive, 5), at(3_004));
    assert!(holder.may_use(&want(Exclusive), at(3_005)));
}

/// Would be broken if who wants what another one wants in turn never had it where disks are slow: the owner's answers leave
/// when what they show is durable, and the other one is let have it before.
#[test]
fn what_is_recalled_while_its_grant_becomes_durable_is_used_once() {
    let mut holder = holder();
    let Claimed::Waits(wait) = holder.claim(want(Exclusive), at(0)) else {
        panic!("nothing is held");
    };
    let request = holder.asks();
    holder.hears(recall(None, 4), at(1));
    for passed in [101, 600, 1_100] {
        holder.tick(at(passed));
        holder.hears(recall(None, 4), at(passed));
        assert!(holder.does().is_empty(), "it comes");
    }
    holder.gets(request, granted(Exclusive, 4), at(1_101));
    let [Action::Begin(waited, begun)] = holder.does()[..] else {
        panic!("the use has begun");
    };
    assert_eq!(waited, wait);
    assert!(holder.end_use(begun, at(1_102)));
    let flush = holder.flushes();
    holder.flushed(flush, at(1_103));
    assert_eq!(holder.does(), [returned(None, 4)]);
}

/// Would be broken if what is granted anew each time that it is asked for again, because its answer got lost, went back each time
/// only as it had been granted before: others would have it only once the session has lost everything.
#[test]
fn what_is_granted_again_and_again_while_it_is_recalled_goes_back() {
    let [own, other] = [1, 2].map(SessionId);
    let mut owner = Granter::new(Tenure(1), BTreeSet::new(), at(0));
    owner.renew(at(60_000), at(0));
    for session in [own, other] {
        owner.begin_session(session);
    }
    let mut holder = holder();
    let claimed = holder.claim(want(Exclusive), at(0));
    assert!(matches!(claimed, Claimed::Waits(_)));
    let actions = holder.does();
    let [Action::Ask { request, wants }] = &actions[..] else {
        panic!("{actions:?}");
    };
    let mut granted_to_other = None;
    for passed in (0..6_000).step_by(100) {
        let now = at(passed);
        // Each answer is lost.
        if passed % 1_500 == 0 {
            owner.ask(own, *request, wants.clone(), now).expect("sound");
        }
        if passed == 100 {
            owner.ask(other, 1, wants.clone(), now).expect("sound");
        }
        if passed % 500 == 0 {
            owner.tick(now);
        }
        holder.tick(now);
        for action in holder.does() {
            if let Action::Return(back) = action {
                owner.take_back(own, &back, now).expect("sound");
            }
        }
        for action in owner.take_actions() {
            match action {
                granter::Action::Recall { session, recall } if session == own => {
                    holder.hears(recall, now);
                }
                granter::Action::Answer { session, .. } if session == other => {
                    granted_to_other = granted_to_other.or(Some(passed));
                }
                _ => {}
            }
        }
    }
    assert_eq!(granted_to_other, Some(3_100));
}

/// Would be broken if others waited for an answer that was given up, since what is asked for meanwhile is granted after theirs.
#[test]
fn a_recall_of_what_was_granted_before_all_that_is_asked_for_waits_only_a_moment() {
    let mut holder = holder();
    // Its answer was given up, and others' have come since.
    let lost = asks_to_know(&mut holder);
    holder.unanswered(lost, at(1));
    holder.does();
    let elsewhere = Want {
        object: TokenObject::Inode(InodeId(8)),
        ..want(Exclusive)
    };
    assert!(matches!(holder.claim(elsewhere, at(2)), Claimed::Waits(_)));
    let request = holder.asks();
    holder.gets(request, granted(Exclusive, 5), at(3));
    holder.does();

    assert!(matches!(
        holder.claim(want(Exclusive), at(4)),
        Claimed::Waits(_)
    ));
    holder.asks();
    holder.hears(recall(None, 4), at(5));
    holder.tick(at(104));
    assert!(holder.does().is_empty());
    holder.tick(at(105));
    assert_eq!(holder.does(), [returned(None, 4)]);
}

#[test]
fn too_many_returns_to_remember_forbid_all_that_is_old() {
    let mut holder = holder();
    let bytes = TokenObject::Bytes(InodeId(7));
    let wanted = Want {
        object: bytes,
        ..want(Exclusive)
    };
    assert!(matches!(holder.claim(wanted, at(0)), Claimed::Waits(_)));
    let request = holder.asks();
    for start in 0..200 {
        let ranges = vec![TokenRange {
            start,
            end: start + 1,
        }];
        holder.hears(
            TokenRecall {
                object: bytes,
                ranges,
                ..recall(None, start)
            },
            at(0),
        );
        holder.tick(at(3_000));
    }
    let known = holder.objects.get(&bytes).expect("a request is under way");
    assert!(known.returned.len() <= 65, "{}", known.returned.len());
    holder.does();
    holder.gets(request, granted(Exclusive, 100), at(3_001));
    assert!(!holder.may_use(&wanted, at(3_001)));
}

#[test]
fn who_is_told_to_wait_asks_again_under_the_same_number() {
    let mut holder = holder();
    holder.claim(want(Shared), at(0));
    let request = holder.asks();
    holder.gets(request, TokenReply::Waits, at(5000));
    assert_eq!(holder.asks(), request);
}

#[test]
fn nothing_of_an_earlier_owner_counts() {
    let mut holder = holder();
    let begun = holder.has(Exclusive, 9);
    let held = holder.begin_tenure(Tenure(2));
    assert_eq!(held, [(INODE, TokenRange::ALL, Exclusive)]);
    holder.hears(recall(None, 9), at(1));
    assert!(holder.does().is_empty());
    // The new owner has given it to somebody else.
    holder.reclaimed(INODE, TokenRange::ALL, None);
    let ranges = vec![TokenRange::ALL];
    assert_eq!(
        holder.does(),
        [Action::Lose {
            object: INODE,
            ranges
        }]
    );
    assert!(!holder.end_use(begun, at(2)));
    assert!(!holder.may_use(&want(Shared), at(2)));
}

#[test]
fn a_session_that_ended_has_nothing() {
    let mut holder = holder();
    let begun = holder.has(Exclusive, 1);
    holder.lose_all();
    assert!(matches!(holder.does()[..], [Action::Lose { .. }]));
    assert!(!holder.end_use(begun, at(1)));
    assert!(!holder.may_use(&want(Shared), at(1)));
}

/// Would be broken if the client's next session used what the owner had granted to the one before.
#[test]
fn an_answer_that_comes_after_the_end_of_the_session_grants_nothing() {
    let bytes = TokenObject::Bytes(InodeId(7));
    let mut holder = holder();
    assert!(holder.may_be_born([INODE, bytes]));
    holder.born([INODE, bytes]);
    assert!(holder.may_use(&want(Exclusive), at(1)));
    holder.lose_all();
    holder.take_actions();
    for (object, count) in [(INODE, 1), (bytes, 2)] {
        holder.born_answered(object, Some(number(count)), at(2));
        assert!(holder.usable(object).is_empty());
    }
    assert!(holder.take_actions().is_empty());
}

/// Would be broken if what was written to it could be overtaken by who finds it.
#[test]
fn what_was_made_and_not_granted_is_kept_until_it_is_granted_or_published() {
    let bytes = TokenObject::Bytes(InodeId(7));
    let mut holder = holder();
    holder.born([INODE, bytes]);
    assert!(holder.does().is_empty() && !holder.has_ungranted());
    holder.born_answered(INODE, None, at(1));
    let request = holder.asks();
    assert!(holder.has_ungranted());
    // Who waited for it and gave up changes nothing.
    let Claimed::Begun(begun) = holder.claim(want(Exclusive), at(1)) else {
        panic!("it has it alone");
    };
    assert!(holder.end_use(begun, at(2)));
    let Claimed::Waits(waiting) = holder.claim(want(Exclusive), at(7_000)) else {
        panic!("its time is over");
    };
    holder.give_up(waiting);
    assert!(holder.does().is_empty());
    holder.gets(request, granted(Exclusive, 3), at(7_001));
    assert!(holder.does().is_empty() && !holder.has_ungranted());
    assert!(holder.usable(INODE).cover(TokenRange::ALL, Exclusive));
    // The session holds as much as it may.
    holder.born_answered(bytes, None, at(7_002));
    let request = holder.asks();
    holder.gets(request, TokenReply::TooMany, at(7_003));
    let flush = holder.flushes();
    assert!(holder.has_ungranted());
    holder.flushed(flush, at(7_004));
    assert!(!holder.has_ungranted() && holder.usable(bytes).is_empty());
    holder.take_actions();
    // A new owner is told of it as of all others.
    holder.born([TokenObject::Inode(InodeId(8)), bytes]);
    holder.born_answered(bytes, None, at(7_005));
    assert!(holder.has_ungranted());
    assert_eq!(holder.begin_tenure(Tenure(2)).len(), 3);
    assert!(!holder.has_ungranted());
}

/// An owner that grants nothing for a while knows of more and more files. Would be broken if the session asked it for so many
/// of them that it could ask for nothing else: programs would get errors.
#[test]
fn what_was_made_and_not_granted_leaves_room_for_what_programs_wait_for() {
    let mut holder = holder();
    let mut files = Vec::new();
    for file in 1.. {
        let inode = InodeId(file);
        let objects = [TokenObject::Inode(inode), TokenObject::Bytes(inode)];
        if !holder.may_be_born(objects) {
            break;
        }
        holder.born(objects);
        files.extend(objects);
    }
    for object in &files {
        holder.born_answered(*object, None, at(1));
    }
    let (mut asked, mut flushes) = (0, Vec::new());
    for action in holder.does() {
        match action {
            Action::Ask { .. } => asked += 1,
            Action::Flush { flush, .. } => flushes.push(flush),
            Action::Stop { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!((1..=WAITING_OF_SESSION_MAX / 4).contains(&asked), "{asked}");
    assert_eq!(asked + flushes.len(), files.len());
    let ungranted = |holder: &Holder| holder.ungranted.len();
    assert_eq!(ungranted(&holder), files.len(), "nothing is published yet");
    for flush in flushes {
        holder.flushed(flush, at(2));
    }
    assert_eq!(ungranted(&holder), asked);
}

#[test]
fn what_is_in_use_or_waited_for_is_known_by_what_a_recall_keeps() {
    let object = TokenObject::Bytes(InodeId(7));
    let range = |start, end| TokenRange { start, end };
    let wants = |mode, range| Want {
        object,
        mode,
        range,
        desired: range,
        ship: Ship::Never,
    };
    let mut holder = holder();
    assert_eq!(holder.in_use(object, None), None);
    let Claimed::Waits(_) = holder.claim(wants(Shared, range(100, 200)), at(0)) else {
        panic!("nothing is held");
    };
    assert_eq!(holder.in_use(object, None), Some(range(100, 200)));
    assert_eq!(holder.in_use(object, Some(Shared)), None);
    let Claimed::Waits(_) = holder.claim(wants(Exclusive, range(500, 600)), at(0)) else {
        panic!("nothing is held");
    };
    holder.take_actions();
    let reply = TokenReply::Granted {
        ranges: vec![range(500, 600)],
        mode: Exclusive,
        number: number(1),
    };
    let [_, (request, _)] = holder.asked.iter().collect::<Vec<_>>()[..] else {
        panic!("each is asked for");
    };
    holder.gets(request, reply, at(1));
    let Some(Action::Begin(_, begun)) = holder.does().pop() else {
        panic!("it is granted");
    };
    assert_eq!(holder.in_use(object, None), Some(range(100, 600)));
    assert_eq!(holder.in_use(object, Some(Shared)), Some(range(500, 600)));
    assert!(holder.end_use(begun, at(2)));
    assert_eq!(holder.in_use(object, Some(Shared)), None);
}

#[test]
fn what_is_released_is_flushed_and_returned() {
    let mut holder = holder();
    let begun = holder.has(Exclusive, 3);
    holder.end_use(begun, at(0));
    holder.release(INODE, TokenRange::ALL);
    let flush = holder.flushes();
    holder.flushed(flush, at(1));
    assert_eq!(holder.does(), [returned(None, 3)]);
    assert!(holder.objects.is_empty());
}

#[test]
fn what_no_sound_daemon_says_changes_nothing() {
    let mut holder = holder();
    holder.has(Exclusive, 1);
    let empty = vec![TokenRange { start: 7, end: 7 }];
    let ranges = empty.clone();
    let unsound = TokenRecall {
        ranges,
        ..recall(None, 1)
    };
    let wide = Want {
        object: TokenObject::Bytes(InodeId(7)),
        ..want(Shared)
    };
    holder.claim(wide, at(0));
    let request = holder.asks();
    let before = holder.clone();
    assert!(holder.recalled(unsound, at(1)).is_err());
    let reply = TokenReply::Granted {
        ranges: empty,
        mode: Shared,
        number: number(2),
    };
    assert!(holder.answered(request, reply, at(1)).is_err());
    assert_eq!(holder, before);
}

#[test]
fn what_may_be_used_without_a_claim_ends_with_the_recall_and_not_with_the_flush() {
    let mut holder = holder();
    let begun = holder.has(Exclusive, 1);
    assert!(holder.usable(INODE).cover(TokenRange::ALL, Exclusive));
    holder.hears(recall(Some(Shared), 1), at(1));
    // The use isn't over, so nothing is flushed yet.
    assert_eq!(holder.take_actions(), [Action::Changed(INODE)]);
    let usable = holder.usable(INODE);
    assert!(usable.cover(TokenRange::ALL, Shared) && !usable.cover(TokenRange::ALL, Exclusive));
    holder.end_use(begun, at(2));
    let flush = holder.flushes();
    holder.flushed(flush, at(3));
    assert!(holder.usable(INODE).cover(TokenRange::ALL, Shared));
    holder.lose_all();
    assert!(holder.usable(INODE).is_empty());
}

// Tokens that are asked for in one message, for nobody who waits.

/// Asks for the token of [`INODE`] so, and for that of another one; the number of the first request.
fn asks_to_know(holder: &mut Holder) -> u64 {
    let both = [InodeId(7), InodeId(8)];
    let asked = holder.ask_to_know(&both);
    let inodes = asked.iter().map(|(_, inode)| *inode);
    assert!(inodes.eq(both), "{asked:?}");
    assert!(holder.does().is_empty(), "the shell sends them");
    asked[0].0
}

#[test]
fn what_is_known_already_is_not_asked_for_in_one_message() {
    let mut holder = holder();
    let begun = holder.has(Shared, 1);
    holder.end_use(begun, at(0));
    assert!(holder.ask_to_know(&[InodeId(7)]).is_empty());
    let [(request, inode)] = holder.ask_to_know(&[InodeId(7), InodeId(8)])[..] else {
        panic!("one of them is asked for");
    };
    assert_eq!(inode, InodeId(8));
    holder.gets(request, granted(Shared, 2), at(1));
    assert!(holder.does().is_empty());
    let other = Want {
        object: TokenObject::Inode(InodeId(8)),
        ..want(Shared)
    };
    assert!(holder.may_use(&other, at(2)));
}

#[test]
fn a_recall_that_overtakes_what_was_asked_for_in_one_message_waits_for_it_and_takes_it() {
    let mut holder = holder();
    let request = asks_to_know(&mut holder);
    holder.hears(recall(None, 1), at(1));
    assert!(holder.does().is_empty());
    holder.gets(request, granted(Shared, 1), at(2));
    let flush = holder.flushes();
    assert!(!holder.may_use(&want(Shared), at(2)));
    holder.flushed(flush, at(3));
    assert_eq!(holder.does(), [returned(None, 1)]);
    assert!(holder.objects.is_empty());
}

/// Would be broken if who changes a file waited until what others list is durable, although no program of theirs waits for the
/// file's token.
#[test]
fn what_was_asked_for_in_one_message_and_comes_after_it_was_returned_is_not_used() {
    let mut holder = holder();
    let request = asks_to_know(&mut holder);
    holder.hears(recall(None, 4), at(1));
    holder.tick(at(100));
    assert!(holder.does().is_empty());
    holder.tick(at(101));
    assert_eq!(holder.does(), [returned(None, 4)]);
    holder.gets(request, granted(Shared, 4), at(102));
    assert!(!holder.may_use(&want(Shared), at(103)));
    assert!(holder.objects.is_empty(), "nothing need be remembered");
}

#[test]
fn who_waits_for_what_was_asked_for_in_one_message_uses_it_once() {
    let mut holder = holder();
    let request = asks_to_know(&mut holder);
    assert!(matches!(
        holder.claim(want(Shared), at(0)),
        Claimed::Waits(_)
    ));
    holder.take_actions();
    holder.hears(recall(None, 4), at(1));
    holder.tick(at(3_000));
    assert!(holder.does().is_empty(), "it comes");
    holder.gets(request, granted(Shared, 4), at(3_000));
    assert!(matches!(holder.does()[..], [Action::Begin(..)]));
}

#[test]
fn a_recall_of_what_gets_no_answer_is_answered_and_who_waits_asks_alone() {
    let mut holder = holder();
    let request = asks_to_know(&mut holder);
    holder.hears(recall(None, 3), at(1));
    holder.unanswered(request, at(2));
    assert_eq!(holder.does(), [Action::Stop { request }, returned(None, 3)]);
    holder.unanswered(request, at(3));
    holder.gets(request, granted(Shared, 2), at(3));
    assert!(holder.does().is_empty() && !holder.may_use(&want(Shared), at(3)));

    let asked = holder.ask_to_know(&[InodeId(7)]);
    let request = asked[0].0;
    let shippable = Want {
        ship: Ship::IfHeld,
        ..want(Shared)
    };
    let Claimed::Waits(waiting) = holder.claim(shippable, at(4)) else {
        panic!("nothing is held");
    };
    assert!(holder.does().is_empty(), "it waits for the same answer");
    holder.unanswered(request, at(5));
    let actions = holder.does();
    assert_eq!(actions[0], Action::Stop { request });
    let Action::Ask { request, .. } = actions[1] else {
        panic!("{actions:?}");
    };
    holder.gets(request, TokenReply::Ship, at(6));
    assert_eq!(holder.does(), [Action::Ship(waiting)]);
}

#[test]
fn a_new_owner_is_not_told_of_what_was_asked_for_in_one_message() {
    let mut holder = holder();
    let request = asks_to_know(&mut holder);
    holder.hears(recall(None, 1), at(1));
    holder.tick(at(3_001));
    assert_eq!(holder.does(), [returned(None, 1)]);
    assert!(holder.begin_tenure(Tenure(2)).is_empty());
    let actions = holder.does();
    assert!(actions.contains(&Action::Stop { request }) && actions.len() == 2);
    assert!(holder.objects.is_empty() && holder.asked.is_empty());
    assert!(holder.ask_to_know(&[InodeId(7)]).is_empty(), "not yet");
    // Of the owner before.
    holder.gets(request, granted(Shared, 1), at(3_002));
    holder.end_reclaim();
    assert!(holder.does().is_empty() && !holder.may_use(&want(Shared), at(3_002)));

    let asked = holder.ask_to_know(&[InodeId(7)]);
    holder.gets(asked[0].0, granted(Shared, 2), at(3_003));
    assert!(!holder.usable(INODE).cover(TokenRange::ALL, Shared));
    let asked = holder.ask_to_know(&[InodeId(7)]);
    let number = GrantNumber {
        tenure: Tenure(2),
        count: 1,
    };
    let reply = TokenReply::Granted {
        ranges: vec![TokenRange::ALL],
        mode: Shared,
        number,
    };
    holder.gets(asked[0].0, reply, at(3_004));
    assert!(holder.usable(INODE).cover(TokenRange::ALL, Shared));
}
