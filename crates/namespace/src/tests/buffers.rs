//! Records own their memory: no caller's buffer stays alive because a record uses part of it.

use super::*;
use model::operation::RangeChange;
use std::sync::Arc;

/// Bytes in the middle of a large buffer, and a handle that counts the buffer's users.
fn lent(length: usize) -> (Bytes, Arc<Vec<u8>>) {
    struct Buffer(Arc<Vec<u8>>);
    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let buffer = Arc::new(vec![7; 1 << 20]);
    let bytes = Bytes::from_owner(Buffer(buffer.clone()));
    (bytes.slice(1000..1000 + length), buffer)
}

fn lent_extent(offset: u64, length: usize) -> (Extent, Arc<Vec<u8>>) {
    let (bytes, buffer) = lent(length);
    let kind = ExtentKind::Inline(bytes);
    (
        Extent {
            kind,
            ..inline(offset, &vec![0; length])
        },
        buffer,
    )
}

#[test]
fn records_keep_no_buffer_of_their_writers_alive() {
    let mut store = Store::new();
    let file = store.file("small");
    for (offset, length) in [(0, 100), (50, 100)] {
        let (extent, buffer) = lent_extent(offset, length);
        let end = extent.end();
        store.publish(file, vec![extent], end).unwrap();
        assert_eq!(Arc::strong_count(&buffer), 1, "content at {offset}");
    }
    assert_eq!(store.content(file), [7; 150]);
    let file = store.file("synced");
    let (extent, buffer) = lent_extent(10_000, 100);
    store.publish(file, vec![extent], 10_100).unwrap();
    assert_eq!(Arc::strong_count(&buffer), 1, "an extent");
    store.audit();
}

#[test]
fn the_rest_of_cut_bytes_keeps_no_larger_buffer_alive() {
    let mut store = Store::new();
    let file = store.file("small");
    store.write_inline(file, 0, &[7; 100]).unwrap();
    let (content, buffer) = lent(100);
    let Some(Record::Inode(inode)) = store.records.get_mut(&Key::Inode(file)) else {
        panic!("the file is there");
    };
    Arc::make_mut(inode).content = content;
    store.truncate(file, 1).unwrap();
    assert_eq!(Arc::strong_count(&buffer), 1, "cut to a byte");

    let file = store.file("synced");
    store.write_inline(file, 10_000, &[7; 100]).unwrap();
    let (from, to) = Table::Extents.range();
    let Some((_, Record::Extent(extent))) = store.records.range_mut(from..to).next() else {
        panic!("the extent is there");
    };
    let (bytes, buffer) = lent(100);
    Arc::make_mut(extent).kind = ExtentKind::Inline(bytes);
    let punch = Operation::ChangeRange {
        inode: file,
        offset: 10_010,
        length: 80,
        change: RangeChange::Punch,
        keep_size: true,
    };
    store.run(&punch).unwrap();
    assert_eq!(Arc::strong_count(&buffer), 1, "punched but for both ends");
    assert_eq!(store.content(file)[10_000..10_010], [7; 10]);
    assert_eq!(store.content(file)[10_090..], [7; 10]);
}
