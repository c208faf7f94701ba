//! The object store's promises to SlateDB.

use super::CatalogStore;
use crate::rig::{machine, open, power_on};
use bytes::Bytes;
use futures::TryStreamExt;
use model::Scheme;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, UpdateVersion,
};
use slatedb_common::retry::NonRetryable;

fn with_store<F: Future<Output = ()>>(
    seed: u64,
    test: impl FnOnce(CatalogStore, world::World) -> F,
) {
    machine(seed, Scheme::Replicate(1), 1)
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            test(CatalogStore::new(opened.catalog.clone()), world).await;
        })
        .finished();
}

fn create() -> PutOptions {
    PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    }
}

#[test]
fn create_succeeds_once_and_its_refusal_means_that_get_finds_the_object() {
    with_store(21, |store, _| async move {
        let path = Path::from("a/1");
        let puts = (0..8).map(|n: u8| store.put_opts(&path, vec![n].into(), create()));
        let results = futures::future::join_all(puts).await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        for refused in results.into_iter().filter_map(Result::err) {
            assert!(matches!(refused, Error::AlreadyExists { .. }));
        }
        assert_eq!(
            store.get(&path).await.unwrap().bytes().await.unwrap().len(),
            1
        );
        assert!(matches!(
            store.get(&Path::from("a/2")).await,
            Err(Error::NotFound { .. })
        ));
        assert!(matches!(
            store.head(&Path::from("a")).await,
            Err(Error::NotFound { .. })
        ));
    });
}

#[test]
fn update_wants_the_e_tag_of_now() {
    with_store(22, |store, _| async move {
        let path = Path::from("a");
        let first = store.put(&path, "1".into()).await.unwrap();
        let update = |tag: &Option<String>| PutOptions {
            mode: PutMode::Update(UpdateVersion {
                e_tag: tag.clone(),
                version: None,
            }),
            ..PutOptions::default()
        };
        let second = store
            .put_opts(&path, "2".into(), update(&first.e_tag))
            .await
            .unwrap();
        let refused = store
            .put_opts(&path, "3".into(), update(&first.e_tag))
            .await
            .unwrap_err();
        assert!(matches!(refused, Error::Precondition { .. }));
        assert_ne!(first.e_tag, second.e_tag);
        assert_eq!(store.head(&path).await.unwrap().e_tag, second.e_tag);
        let unchanged = GetOptions {
            if_none_match: second.e_tag,
            ..GetOptions::default()
        };
        assert!(matches!(
            store.get_opts(&path, unchanged).await,
            Err(Error::NotModified { .. })
        ));
    });
}

#[test]
fn attributes_are_part_of_the_object() {
    with_store(23, |store, _| async move {
        let path = Path::from("fence");
        let attributes =
            Attributes::from_iter([(Attribute::Metadata("slatedbputid".into()), "01ABC")]);
        let options = PutOptions {
            attributes: attributes.clone(),
            ..create()
        };
        store
            .put_opts(&path, Bytes::new().into(), options)
            .await
            .unwrap();
        let head = store
            .get_opts(&path, GetOptions::new().with_head(true))
            .await
            .unwrap();
        assert_eq!(head.attributes, attributes);
        assert_eq!(head.meta.size, 0);
    });
}

#[test]
fn ranges_of_large_objects_are_the_bytes_that_were_put() {
    with_store(24, |store, _| async move {
        let path = Path::from("large");
        let bytes: Vec<u8> = (0..9_000_001u32).map(|at| (at / 7 % 251) as u8).collect();
        store.put(&path, bytes.clone().into()).await.unwrap();
        assert_eq!(store.head(&path).await.unwrap().size, bytes.len() as u64);
        assert!(store.get(&path).await.unwrap().bytes().await.unwrap() == bytes[..]);
        for range in [
            0..1u64,
            4_194_303..4_194_305,
            4_096..12_288,
            8_388_000..9_000_001,
            1..9_000_000,
        ] {
            let read = store.get_range(&path, range.clone()).await.unwrap();
            assert!(
                read == bytes[range.start as usize..range.end as usize],
                "{range:?}"
            );
        }
        let tail = GetOptions::new().with_range(Some(GetRange::Suffix(10)));
        assert!(
            store
                .get_opts(&path, tail)
                .await
                .unwrap()
                .bytes()
                .await
                .unwrap()
                == bytes[bytes.len() - 10..]
        );
        assert!(store.get_range(&path, 9_000_001..9_000_002).await.is_err());
    });
}

#[test]
fn an_upload_in_parts_is_invisible_until_complete_and_gone_when_aborted() {
    with_store(25, |store, _| async move {
        let path = Path::from("parts");
        let mut upload = store.put_multipart(&path).await.unwrap();
        let second = upload.put_part(vec![1; 5 << 20].into());
        let third = upload.put_part(vec![2; 100].into());
        // In any order.
        third.await.unwrap();
        second.await.unwrap();
        assert!(store.head(&path).await.is_err());
        let put = upload.complete().await.unwrap();
        let read = store.get(&path).await.unwrap().bytes().await.unwrap();
        assert_eq!(
            (read.len(), read[0], read[5 << 20]),
            ((5 << 20) + 100, 1, 2)
        );
        assert_eq!(store.head(&path).await.unwrap().e_tag, put.e_tag);
        let mut aborted = store.put_multipart(&Path::from("never")).await.unwrap();
        aborted.put_part(vec![1; 100_000].into()).await.unwrap();
        aborted.abort().await.unwrap();
        assert!(store.head(&Path::from("never")).await.is_err());
    });
}

#[test]
fn lists_are_complete_in_order_and_end_between_path_segments() {
    with_store(26, |store, _| async move {
        for name in ["x/b/2", "x/b/1", "x/a", "xy/1", "x/c/d/e"] {
            store.put(&Path::from(name), name.into()).await.unwrap();
        }
        let prefix = Path::from("x");
        let all: Vec<String> = store
            .list(Some(&prefix))
            .map_ok(|meta| meta.location.to_string())
            .try_collect()
            .await
            .unwrap();
        assert_eq!(all, ["x/a", "x/b/1", "x/b/2", "x/c/d/e"]);
        let level = store.list_with_delimiter(Some(&prefix)).await.unwrap();
        assert_eq!(
            level.common_prefixes,
            [Path::from("x/b"), Path::from("x/c")]
        );
        assert_eq!(level.objects.len(), 1);
        store.delete(&Path::from("x/b/1")).await.unwrap();
        store.delete(&Path::from("x/b/1")).await.unwrap();
        store
            .copy(&Path::from("x/a"), &Path::from("y"))
            .await
            .unwrap();
        assert_eq!(
            store
                .get(&Path::from("y"))
                .await
                .unwrap()
                .bytes()
                .await
                .unwrap(),
            "x/a"
        );
        assert!(
            store
                .copy_if_not_exists(&Path::from("x/a"), &Path::from("y"))
                .await
                .is_err()
        );
    });
}

#[test]
fn deleted_and_replaced_objects_give_their_space_back() {
    with_store(27, |store, world| async move {
        let live = || store.catalog.live_segments().len();
        let before = live();
        for n in 0..3u8 {
            store
                .put(&Path::from("big"), vec![n; 6 << 20].into())
                .await
                .unwrap();
        }
        store
            .put(&Path::from("other"), vec![9; 6 << 20].into())
            .await
            .unwrap();
        store.delete(&Path::from("other")).await.unwrap();
        world.sleep(std::time::Duration::from_secs(5)).await;
        assert_eq!(live(), before + 2, "two segments of the last put");
        assert_eq!(store.catalog.usage().dead_segments, 0);
    });
}

#[test]
fn after_the_shard_is_given_up_errors_stop_all_retries() {
    with_store(28, |store, _| async move {
        store
            .catalog
            .log()
            .end(model::Error::new(model::ErrorKind::OldEpoch, "taken over"));
        let refused = store
            .put_opts(&Path::from("a"), "1".into(), create())
            .await
            .unwrap_err();
        assert!(NonRetryable::find(&refused).is_some(), "{refused}");
        assert!(
            store.delete(&Path::from("a")).await.is_ok(),
            "what doesn't exist needs no entry"
        );
    });
}
