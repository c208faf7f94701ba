//! Fuzz targets: texts and small binary forms that have rules of their own.

use fuzzing::{Memory, ROUNDS, Source, fuzz, within};
use model::{BlobName, Error, FileName, FileSystemName, Scheme};

/// As bytes of a message, and as a program gives it.
#[test]
fn any_name_in_a_message_is_one_that_a_directory_can_have() {
    fuzz!(2 * ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let name = source.bytes(300);
        let read = source.value::<FileName>();
        if let Some(read) = read {
            assert_eq!(FileName::new(read.as_bytes()).as_ref(), Ok(&read));
        }
        if let Ok(name) = FileName::new(&name) {
            assert!((1..=FileName::BYTES_MAX).contains(&name.as_bytes().len()));
            assert!(!name.as_bytes().iter().any(|byte| [0, b'/'].contains(byte)));
        }
    });
}

#[test]
fn any_text_is_a_scheme_and_a_file_systems_name_or_refused() {
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let text = match source.below(4) {
            0 => format!("erasure({}+{})", source.number(), source.text()),
            1 => format!("replicate({})", source.number()),
            2 => format!("erasure({}+{})", source.below(20), source.below(6)),
            _ => String::from_utf8_lossy(input).into_owned(),
        };
        // The errors repeat the text.
        let scheme: Result<Scheme, Error> = within(Memory::MESSAGE, text.len(), || text.parse());
        if let Ok(scheme) = scheme {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
            assert!((1..=Scheme::PIECES_MAX).contains(&scheme.width()));
        }
        let name: Result<FileSystemName, Error> =
            within(Memory::MESSAGE, text.len(), || text.parse());
        if let Ok(name) = name {
            assert_eq!(name.as_str(), text);
        }
    });
}

#[test]
fn any_name_of_a_blob_is_read_as_it_was_written() {
    fuzz!(ROUNDS, |input: &[u8]| {
        let bytes = Source::new(input).array();
        assert_eq!(BlobName::decode(&bytes).encode(), bytes);
    });
}
