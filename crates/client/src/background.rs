//! The client's one task: looks now and then what is due.

use crate::atime::Accesses;
use crate::page_pool::PagePool;
use crate::session::Session;
use crate::write_behind::WriteBehind;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;
use world::{Instant, Task, World};

/// How often dirty inodes are checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Pause before failed batches are tried again; the page pool makes room as often.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often access times are recorded.
const ATIMES_EVERY: Duration = Duration::from_secs(30);
/// How often numbers for new files are given back that weren't used since the last time. Most of them are lost by that, and a
/// fileset has 2^39 to reserve: enough for a dozen years of a hundred clients that give 48 runs of them back each time.
const NUMBERS_EVERY: Duration = Duration::from_secs(3600);

/// Work that nobody asks for. Its task ends when it is dropped, or by `stop`.
pub(crate) struct Background {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    accesses: Arc<Accesses>,
    write_behind: Arc<WriteBehind>,
    task: Mutex<Option<Task<()>>>,
}

impl Background {
    /// Starts the task.
    pub(crate) fn start(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        accesses: Arc<Accesses>,
        write_behind: Arc<WriteBehind>,
    ) -> Arc<Self> {
        let world = session.world().clone();
        let background = Arc::new(Self {
            session,
            pages,
            accesses,
            write_behind,
            task: Mutex::default(),
        });
        let work = run(Arc::downgrade(&background), world.clone());
        *background.task.lock() = Some(world.spawn("background", work));
        background
    }

    pub(crate) async fn stop(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.stop().await;
        }
    }
}

/// What is done once in a while.
struct Every {
    pause: Duration,
    last: Instant,
}

impl Every {
    /// Due for the first time after a pause.
    fn new(pause: Duration, now: Instant) -> Self {
        Self { pause, last: now }
    }

    /// Whether it is due. If so, it is again after a pause.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now - self.last >= self.pause;
        if is_due {
            self.last = now;
        }
        is_due
    }
}

async fn run(background: Weak<Background>, world: World) {
    let begun = world.now();
    let mut retries = Every::new(RETRY_AFTER, begun);
    let mut giving_back = Every::new(world::GIVE_BACK_EVERY, begun);
    let mut atimes = Every::new(ATIMES_EVERY, begun);
    let mut numbers = Every::new(NUMBERS_EVERY, begun);
    loop {
        {
            let Some(it) = background.upgrade() else {
                return;
            };
            // Either time has passed or memory runs short.
            let _ = world.timeout(LOOK_EVERY, it.write_behind.pressed()).await;
        }
        let Some(it) = background.upgrade() else {
            return;
        };
        let now = world.now();
        let retry = retries.is_due(now);
        it.write_behind.write_due(now, retry);
        if retry {
            it.pages.tidy();
            it.session.report_low_water();
        }
        if giving_back.is_due(now) {
            it.pages.give_back_idle();
        }
        if atimes.is_due(now) {
            it.accesses.record_later();
        }
        if numbers.is_due(now) {
            let session = it.session.clone();
            let giving = async move { session.owner().give_numbers_back().await };
            it.session.spawn("gives unused numbers back", giving);
        }
    }
}
