//! Moves data to NSDs that hold less than their share, because they were away while it was written.
//!
//! Each shard's owner balances what is its own: if each shard's data is even, all of it is. Which
//! segments move is the rule of [`Uses`]; they are rewritten as cleaning does. Nothing of
//! it is remembered: after a crash another pass counts again.

use crate::background::allowance::Allowance;
use crate::background::rewrite::Rewriter;
use crate::background::segments::Segments;
use crate::background::width::{Width, width};
use crate::background::{Pace, Surveys};
use crate::host::Host;
use model::map::NsdState;
use model::{ErrorKind, Result, ShardEpoch};
use namespace::{Key, Segment};
use parking_lot::Mutex;
use pool::{EVEN_BELOW, Groups, MemberState, Uses};
use std::sync::Arc;
use std::time::Duration;
use world::Instant;

/// What each NSD holds is counted this often, and when NSDs or the map have changed. Counting reads the
/// records of all segments, some 0.5 s per TiB.
const EVERY: Duration = Duration::from_secs(300);
/// Pages of records examined by one gentle round.
const PAGES_MAX: usize = 8;
/// A pass that doesn't come nearer by this part was in vain; and moving begins again when it got worse by it.
const GAIN_PART: u64 = 8;
/// Moving ends with the pass after as many in a row that were in vain, if it is too: where data goes is up to the pick, so one alone
/// says little where segments are large beside what an NSD holds.
const IN_VAIN_MAX: u32 = 4;

/// Moves segments in passes over the shard's records.
pub(super) struct Balance {
    host: Arc<Host>,
    segments: Segments,
    surveys: Surveys,
    allowance: Allowance,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    pass: Option<Pass>,
    /// When the last pass found that nothing is to be moved, or that moving doesn't help.
    settled: Option<Settled>,
}

/// What a pass ended with.
#[derive(Clone, Copy)]
struct Settled {
    width: Width,
    at: Instant,
    /// In thousandths.
    uneven: u64,
}

/// A pass over all segments of the shard.
struct Pass {
    /// The owner's: what an earlier one counted may be wrong.
    epoch: ShardEpoch,
    width: Width,
    groups: Arc<Groups>,
    uses: Uses,
    /// All were counted; those worth it are now moved.
    moves: bool,
    /// How uneven the uses were at best when a pass before began to move, in thousandths.
    before: Option<u64>,
    /// How many passes in a row were in vain.
    in_vain: u32,
    /// Where it continues.
    from: Key,
    /// Extents that were replaced.
    replaced: u64,
}

impl Balance {
    pub(super) fn new(
        host: Arc<Host>,
        rewriter: Rewriter,
        surveys: Surveys,
        allowance: Allowance,
    ) -> Self {
        let segments = Segments::new(host.clone(), rewriter);
        Self {
            segments: segments.within(allowance.clone()),
            host,
            surveys,
            allowance,
            progress: Mutex::default(),
        }
    }

    /// Whether data is being moved.
    pub(super) fn is_moving(&self) -> bool {
        let progress = self.progress.lock();
        let running = progress.pass.as_ref();
        running.is_some_and(|pass| pass.moves || pass.before.is_some())
    }

    /// Counts some segments, or moves some. Returns how many extents were replaced; a gentle round also
    /// counts an unfinished move, unless that waits until what was moved before is paid.
    pub(super) async fn balance_some(&self, pace: Pace) -> Result<u64> {
        if !self.is_time() {
            self.progress.lock().pass = None;
            return Ok(0);
        }
        let Some(mut pass) = self.pass_due(pace) else {
            return Ok(0);
        };
        let pages = match pace {
            Pace::Drain => usize::MAX,
            Pace::Gentle => PAGES_MAX,
        };
        let mut replaced = 0;
        for _ in 0..pages {
            let ended = if pass.moves {
                let bytes_max = self.allowance.of_round(pace);
                if bytes_max == 0 {
                    self.progress.lock().pass = Some(pass);
                    return Ok(replaced);
                }
                let (moved, ended) = self.move_some(&mut pass, bytes_max).await?;
                replaced += moved;
                ended
            } else {
                self.count_some(&mut pass).await?
            };
            if ended && !self.go_on(&mut pass) {
                return Ok(replaced);
            }
            if replaced > 0 && pace == Pace::Gentle {
                break;
            }
        }
        let moves = u64::from(pass.moves);
        self.progress.lock().pass = Some(pass);
        Ok(replaced.max(moves))
    }

    /// Whether all NSDs that new segments can go to are there, and nothing more urgent is being moved.
    fn is_time(&self) -> bool {
        let pool = self.host.pool();
        let states = pool.nsd_states();
        let mut kept = states
            .iter()
            .filter(|state| state.entry.state != NsdState::Lost);
        let is_repaired = match &self.surveys {
            // Rounds do that first.
            Surveys::Own => true,
            Surveys::ByServers(servers) => servers.is_calm(),
        };
        let is_still = pool.map().closed().is_empty() && pool.groups().moving().is_empty();
        let is_quiet = is_repaired && is_still;
        is_quiet && kept.all(|state| state.member == MemberState::Online)
    }

    fn pass_due(&self, pace: Pace) -> Option<Pass> {
        let (epoch, width) = (self.host.shard().epoch(), width(self.host.pool()));
        let mut progress = self.progress.lock();
        let is_current = |pass: &Pass| (pass.epoch, pass.width) == (epoch, width);
        if let Some(running) = progress.pass.take().filter(is_current) {
            return Some(running);
        }
        let now = self.host.world().now();
        let is_settled = |it: Settled| it.width == width && now - it.at < EVERY;
        if pace == Pace::Gentle && progress.settled.is_some_and(is_settled) {
            return None;
        }
        Some(self.begin(epoch, width, None))
    }

    fn begin(&self, epoch: ShardEpoch, width: Width, before: Option<u64>) -> Pass {
        let groups = self.host.pool().groups();
        let mut uses = Uses::new(groups.map());
        // Only a compaction moves tables; files' data makes up for where they are.
        for place in self.host.shard().catalog().live_segments() {
            uses.add(&groups, &place);
        }
        Pass {
            epoch,
            width,
            groups,
            uses,
            moves: false,
            before,
            in_vain: 0,
            from: Segments::first(),
            replaced: 0,
        }
    }

    /// Counts a page of segments. Returns whether it was the last.
    async fn count_some(&self, pass: &mut Pass) -> Result<bool> {
        let (uses, groups) = (&mut pass.uses, &pass.groups);
        let count = |segment: &Segment| uses.add(groups, &segment.place);
        self.segments.see_page(&mut pass.from, count).await
    }

    /// All segments were counted, or those worth it were moved. Returns whether the pass goes on.
    fn go_on(&self, pass: &mut Pass) -> bool {
        if pass.moves && pass.replaced > 0 {
            // Others wrote meanwhile, and data went to whole groups of the pick's choice: count again.
            tracing::info!(
                extents = pass.replaced,
                "moved data to NSDs that held less than others"
            );
            *pass = Pass {
                in_vain: pass.in_vain,
                ..self.begin(pass.epoch, pass.width, pass.before)
            };
            return true;
        }
        let uneven = pass.uses.unevenness();
        let mut progress = self.progress.lock();
        if !pass.moves && progress.is_worth_moving(pass, uneven) {
            let came_nearer = pass.before.is_none_or(|before| is_nearer(uneven, before));
            pass.in_vain = if came_nearer { 0 } else { pass.in_vain + 1 };
            pass.before = pass.before.filter(|_| !came_nearer).or(Some(uneven));
            pass.moves = true;
            pass.from = Segments::first();
            return true;
        }
        progress.settled = Some(Settled {
            width: pass.width,
            at: self.host.world().now(),
            // What should have moved and couldn't is where it was.
            uneven: pass.before.filter(|_| pass.moves).unwrap_or(uneven),
        });
        false
    }

    /// Moves some of the segments of a page, with about so many bytes. Returns how many extents were
    /// replaced, and whether no more is to be moved.
    async fn move_some(&self, pass: &mut Pass, bytes_max: u64) -> Result<(u64, bool)> {
        self.host.pool().fill_evenly(&pass.uses);
        let (uses, groups) = (&mut pass.uses, &pass.groups);
        let is_worth_it = |_, segment: &Segment| {
            let chance = self.host.world().random_u64();
            uses.unevenness() > EVEN_BELOW && uses.move_if_better(groups, &segment.place, chance)
        };
        let mut chosen = Vec::new();
        let page =
            self.segments
                .choose_from_page(&mut pass.from, &mut chosen, bytes_max, is_worth_it);
        let ended = page.await? || pass.uses.unevenness() <= EVEN_BELOW;
        // What files share stays where it is: rewriting would make copies.
        let rewritten = self.segments.rewrite(chosen, |_, live| live.unfound == 0);
        match rewritten.await {
            // Nothing can be moved without space; it is tried again after a while.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                pass.replaced = 0;
                pass.before = Some(0);
                Ok((0, true))
            }
            done => {
                let replaced = done?.replaced;
                pass.replaced += replaced;
                Ok((replaced, ended))
            }
        }
    }
}

impl Progress {
    /// Whether a pass that has counted all segments should move some. Once begun, moving goes on until
    /// all NSDs are even, as long as passes come nearer; where it ended without, it begins again only
    /// when it has become worse.
    fn is_worth_moving(&self, pass: &Pass, uneven: u64) -> bool {
        if let Some(before) = pass.before {
            let may_help = is_nearer(uneven, before) || pass.in_vain < IN_VAIN_MAX;
            return uneven > EVEN_BELOW && may_help;
        }
        let last = self.settled.filter(|it| it.width == pass.width);
        let is_worse = last.is_none_or(|it| uneven > it.uneven + it.uneven / GAIN_PART);
        pass.uses.is_uneven() && is_worse
    }
}

/// Whether the uses are more even than before by enough, both in thousandths.
const fn is_nearer(uneven: u64, before: u64) -> bool {
    uneven <= before - before / GAIN_PART
}
