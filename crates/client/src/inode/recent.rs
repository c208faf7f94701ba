//! How much of a file's bytes goes back with what others want of them. Pure.
//!
//! An owner asks for exactly what somebody elsewhere requires, and as long as it has to ask it grants no more than that: a
//! program that reads at random what this client has written would wait for a recall in each of its reads, and both sides
//! would have a piece for each. So who is asked again and again gives more each time: twice as much around it, up to what
//! its own programs have used within the last second, or are using, and not what lies behind that, where they may be on their
//! way to. After some 20 recalls the other one has all that it may have.
//!
//! *What others want to read* stays here to be read: only what was written lately is spared. *What others want to write*
//! goes, with what is cached of it: what was read lately is spared as well.

use super::kernel_pages::Span;
use model::token::{GrantNumber, TokenRecall};
use model::{TokenMode, TokenRange};
use std::hash::{Hash, Hasher};
use std::time::Duration;
use tokens::widened;
use world::{FixedHasher, Instant};

/// A use counts for so long at least, and for less than twice as long. A recall comes again if it is within that of the last.
const LATELY: Duration = Duration::from_secs(1);
/// How much more goes back on both sides when a second recall comes. Less than a reader of a few pages would notice.
const MORE: u64 = 64 << 10;

/// The recalls of one file's bytes, and what its programs do with them.
#[derive(Default, Debug)]
pub(super) struct Recent {
    read: Lately,
    written: Lately,
    /// The last recall, which may be said again.
    last: Option<Last>,
    /// How many came before it, each soon after the other.
    before: u32,
}

/// What is remembered of a recall: little, because each file has one and no budget counts it.
#[derive(Debug)]
struct Last {
    /// A hash of its ranges and of what may be kept.
    wants: u64,
    up_to: GrantNumber,
    at: Instant,
    share: Share,
}

/// How much goes back beside what is required.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// So many bytes on both sides.
    more: u64,
    /// But none of these.
    spared: Option<TokenRange>,
}

impl Recent {
    /// A program reads these bytes.
    pub(super) fn note_read(&mut self, bytes: Span, now: Instant) {
        self.read.note(bytes, now);
    }

    /// A program writes these bytes.
    pub(super) fn note_write(&mut self, bytes: Span, now: Instant) {
        self.written.note(bytes, now);
    }

    /// Others want these bytes: what goes back. Not for what programs have `in_use`: the recall would wait for them, for
    /// instance until a disk has answered that has nothing to do with what is wanted.
    pub(super) fn widen(
        &mut self,
        recall: &TokenRecall,
        in_use: Option<TokenRange>,
        now: Instant,
    ) -> Vec<TokenRange> {
        let (wants, up_to) = (hash_of(recall), recall.up_to);
        let last = self.last.take().filter(|last| now - last.at < LATELY);
        let share = match last {
            // It is being given back already.
            Some(last) if (last.wants, last.up_to) == (wants, up_to) => last.share,
            None => {
                self.before = 0;
                Share::NOTHING
            }
            Some(last) => {
                self.before = self.before.saturating_add(u32::from(last.wants != wants));
                self.share(recall.keep, in_use, now)
            }
        };
        self.last = Some(Last {
            wants,
            up_to,
            at: now,
            share,
        });
        widened(&recall.ranges, share.more, share.spared)
    }

    fn share(
        &mut self,
        keep: Option<TokenMode>,
        in_use: Option<TokenRange>,
        now: Instant,
    ) -> Share {
        let Some(doubled) = self.before.checked_sub(1) else {
            return Share::NOTHING;
        };
        let more = MORE.checked_shl(doubled).filter(|more| *more >= MORE);
        let read = keep.is_none().then(|| self.read.hull(now)).flatten();
        Share {
            more: more.unwrap_or(u64::MAX),
            spared: joined(joined(self.written.hull(now), read), in_use),
        }
    }
}

impl Share {
    const NOTHING: Self = Self {
        more: 0,
        spared: None,
    };
}

/// What two recalls want that aren't the same has another hash, or one of them goes back as the other one would.
fn hash_of(recall: &TokenRecall) -> u64 {
    let mut hasher = FixedHasher::default();
    (&recall.ranges, recall.keep).hash(&mut hasher);
    hasher.finish()
}

/// Which bytes were used lately: everything between the first and the last.
#[derive(Default, Debug)]
struct Lately {
    now: Option<TokenRange>,
    before: Option<TokenRange>,
    turned: Option<Instant>,
}

impl Lately {
    fn note(&mut self, (start, end): Span, now: Instant) {
        self.turn(now);
        self.now = joined(self.now, TokenRange::new(start, end));
    }

    fn hull(&mut self, now: Instant) -> Option<TokenRange> {
        self.turn(now);
        joined(self.now, self.before)
    }

    fn turn(&mut self, now: Instant) {
        let passed = self.turned.map_or(Duration::MAX, |turned| now - turned);
        if passed < LATELY {
            return;
        }
        self.before = self.now.take().filter(|_| passed < 2 * LATELY);
        self.turned = Some(now);
    }
}

fn joined(one: Option<TokenRange>, other: Option<TokenRange>) -> Option<TokenRange> {
    let (Some(a), Some(b)) = (one, other) else {
        return one.or(other);
    };
    TokenRange::new(a.start.min(b.start), a.end.max(b.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{InodeId, TokenObject};
    use world::sim::Simulation;

    const FILE: u64 = 1 << 30;
    const PAGE: u64 = 4096;

    fn at(milliseconds: u64) -> Instant {
        thread_local! {
            static BEGUN: Instant = Simulation::new(1).run(|world| async move { world.now() }).finished();
        }
        BEGUN.with(|begun| *begun + Duration::from_millis(10_000 + milliseconds))
    }

    fn recall(start: u64, keep: Option<TokenMode>) -> TokenRecall {
        TokenRecall {
            object: TokenObject::Bytes(InodeId(7)),
            ranges: vec![TokenRange {
                start,
                end: start + PAGE,
            }],
            keep,
            up_to: GrantNumber::default(),
        }
    }

    /// Where the other one reads or writes in turn `number`.
    fn place(number: u64) -> u64 {
        number * 7_919 % (FILE / PAGE) * PAGE
    }

    /// What goes back with that, if recalls come each millisecond.
    fn widen(recent: &mut Recent, number: u64, keep: Option<TokenMode>) -> Vec<TokenRange> {
        recent.widen(&recall(place(number), keep), None, at(number))
    }

    const READ: Option<TokenMode> = Some(TokenMode::Shared);

    #[test]
    fn who_is_asked_again_and_again_gives_twice_as_much_each_time() {
        for keep in [READ, None] {
            let mut recent = Recent::default();
            let once = widen(&mut recent, 1, keep);
            assert_eq!(once, recall(place(1), keep).ranges);
            let mut bytes = 0;
            for number in 2..40 {
                let more = widen(&mut recent, number, keep);
                let [one] = more[..] else {
                    panic!("{more:?}");
                };
                let given = one.end - one.start;
                assert!(given >= bytes);
                bytes = given;
            }
            assert!(bytes >= FILE, "{bytes}");
        }
    }

    #[test]
    fn a_recall_that_is_said_again_is_the_same_and_a_late_one_is_the_first() {
        let mut recent = Recent::default();
        widen(&mut recent, 1, READ);
        let second = widen(&mut recent, 2, READ);
        recent.note_write((place(2) + 2 * PAGE, FILE), at(501));
        let again = recent.widen(&recall(place(2), READ), None, at(502));
        assert_eq!(second, again);
        let late = recent.widen(&recall(0, READ), None, at(1_502));
        assert_eq!(late, recall(0, READ).ranges);
    }

    #[test]
    fn what_programs_here_use_stays_but_for_what_is_required() {
        let mut recent = Recent::default();
        let (tail, read) = ((FILE, FILE + PAGE), (FILE / 2, FILE / 2 + PAGE));
        for number in 1..=2_000 {
            recent.note_write(tail, at(number));
            recent.note_read(read, at(number));
            let has = |given: &[TokenRange], byte| {
                let mut given = given.iter();
                given.any(|it| it.start <= byte && byte < it.end)
            };
            let to_read = widen(&mut recent, number, READ);
            assert!(!has(&to_read, tail.0));
            let to_write = recent.widen(&recall(0, None), None, at(number));
            assert!(!has(&to_write, tail.0) && !has(&to_write, read.0));
            if number == 2_000 {
                assert!(has(&to_read, read.0) && has(&to_read, FILE - 1));
            }
        }
        let required = recent.widen(&recall(FILE, None), None, at(2_000));
        assert!(required.iter().any(|it| it.start == FILE));
        // It has been used no more for a while.
        for number in 4_000..4_060 {
            widen(&mut recent, number, None);
        }
        let all = widen(&mut recent, 4_060, None);
        assert_eq!(all, [TokenRange::ALL]);
    }

    /// Would be broken if who wants some bytes waited for a program that waits, for others or a disk, in quite another place.
    #[test]
    fn no_more_than_is_required_goes_of_what_a_program_has_in_use() {
        let mut recent = Recent::default();
        let read = TokenRange::new(FILE / 2, FILE / 2 + PAGE);
        for number in 1..=60 {
            let place = number % 8 * PAGE;
            let given = recent.widen(&recall(place, None), read, at(number));
            assert!(given.iter().all(|it| it.end <= FILE / 2), "{given:?}");
        }
        let required = recent.widen(&recall(FILE / 2, None), read, at(61));
        assert!(required.iter().any(|it| it.start <= FILE / 2));
        let free = recent.widen(&recall(0, None), None, at(62));
        assert_eq!(free, [TokenRange::ALL]);
    }
}
