//! Mounts of a node whose file systems can't be opened: what doesn't need a kernel.

use super::*;
use client::Losses;
use futures::FutureExt;
use futures::future::{BoxFuture, pending, ready};
use world::sim::Simulation;

/// The owner of the first file system doesn't answer, and there is no other one.
struct Unreachable;

impl FileSystems for Unreachable {
    fn open<'a>(
        self: Arc<Self>,
        name: Option<&'a FileSystemName>,
    ) -> BoxFuture<'a, Result<Arc<OpenFileSystem>>> {
        let refused = Err(Error::from(ErrorKind::NotFound));
        match name {
            None => Box::pin(pending::<Result<Arc<OpenFileSystem>>>()),
            Some(_) => Box::pin(ready(refused)),
        }
    }

    fn opened(&self) -> Vec<Arc<OpenFileSystem>> {
        Vec::new()
    }

    fn losses(&self) -> Losses {
        Losses::default()
    }
}

#[test]
fn a_file_system_whose_owner_does_not_answer_holds_up_no_other_mount() {
    let run = Simulation::new(1).run(async |world: World| {
        let mounts = Mounts::new(&world, Arc::new(Unreachable), PathBuf::from("node"), None);
        let (first, other) = (Options::default(), Options::parse("fs=other").unwrap());
        let place = Path::new("/nowhere");
        let mut waits = Box::pin(mounts.add(place, &first));
        assert!(waits.as_mut().now_or_never().is_none());
        let refused = mounts.add(place, &other).now_or_never();
        let refused = refused.expect("it doesn't wait for the first one");
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotFound);
        // A daemon on demand doesn't end while somebody tries to mount.
        assert!(!mounts.close_if_none().await);
        drop(waits);
        assert!(mounts.close_if_none().await);
        let refused = mounts.add(place, &other).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
    });
    run.finished();
}
