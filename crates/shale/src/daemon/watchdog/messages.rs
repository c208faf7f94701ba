//! What a daemon and its watchdog say to each other, over pipes: one line of JSON each. Both are the same program, started
//! from the same file.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::time::Duration;

/// Longest line. A pipe takes one so short whole or not at all.
const LINE_BYTES_MAX: usize = 1_024;

/// A mount that the daemon serves, among all of its run. The kernel gives the id of one that it has unmounted to the next
/// one, while operations of the first may still run.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MountNumber(pub u64);

/// What the daemon says.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
pub enum Said {
    /// It serves this mount.
    Watch {
        /// By which it is meant from now on.
        number: MountNumber,
        /// The kernel's id of it.
        id: u64,
    },
    /// That mount has ended.
    Forget(MountNumber),
    /// It can run.
    Beat {
        /// Until when it may serve, since the machine's start.
        serves_until: Duration,
        /// For how long the machine had slept.
        asleep: Duration,
    },
}

/// What the watchdog says: it is about to abort a mount.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
pub struct Aborts {
    /// Which.
    pub mount: MountNumber,
    /// Why, in words.
    pub cause: String,
}

/// A message as it is sent.
pub fn line_of<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("a message is plain data");
    line.push(b'\n');
    assert!(line.len() <= LINE_BYTES_MAX, "messages are short");
    line
}

/// Bytes that have arrived, until a line is whole.
#[derive(Default)]
pub struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Bytes have arrived. Returns the messages that are whole now; what isn't one is left out.
    pub fn add<T: DeserializeOwned>(&mut self, bytes: &[u8]) -> Vec<T> {
        self.rest.extend_from_slice(bytes);
        let mut whole = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(message) => whole.push(message),
                Err(error) => {
                    tracing::warn!(%error, "a line between daemon and watchdog makes no sense")
                }
            }
        }
        if self.rest.len() > LINE_BYTES_MAX {
            self.rest.clear();
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};

    /// Whatever writes into the pipe: the bytes of one read, and the messages in them.
    #[test]
    fn any_bytes_are_messages_or_left_out() {
        const LINES: Memory = Memory {
            fixed: 16 << 10,
            per_byte: 64,
        };
        let heard = Seen::default();
        fuzz!(ROUNDS, |input: &[u8]| {
            let mut source = Source::new(input);
            let mut bytes = Vec::new();
            for _ in 0..source.below(6) {
                let line = source.value::<Said>().map(|said| line_of(&said));
                let line = line.unwrap_or_default();
                bytes.extend(match source.below(3) {
                    0 => source.changed(&line),
                    _ => line,
                });
            }
            let piece_bytes = 1 + source.below(600);
            bytes.extend(source.rest());
            let mut lines = Lines::default();
            for piece in bytes.chunks(piece_bytes) {
                let most = lines.rest.len() + piece.len();
                let said = within(LINES, most, || lines.add::<Said>(piece));
                heard.add(said.len() as u64);
                assert!(lines.rest.len() <= LINE_BYTES_MAX);
                // What is understood is said again.
                let again: Vec<u8> = said.iter().flat_map(line_of).collect();
                assert_eq!(Lines::default().add::<Said>(&again), said);
            }
        });
        heard.check(100, "messages are heard");
    }

    #[test]
    fn messages_arrive_whole_however_they_are_cut_and_garbage_is_left_out() {
        let beat = || Said::Beat {
            serves_until: Duration::from_millis(1_500),
            asleep: Duration::from_secs(3),
        };
        let watch = || Said::Watch {
            number: MountNumber(1),
            id: u64::MAX,
        };
        let forget = || Said::Forget(MountNumber(0));
        let mut bytes = line_of(&watch());
        bytes.extend(b"garbage\n{\"Forget\":-1}\n");
        bytes.extend(line_of(&beat()));
        bytes.extend(line_of(&forget()));
        for length in 1..bytes.len() {
            let mut lines = Lines::default();
            let pieces = bytes.chunks(length);
            let heard: Vec<Said> = pieces.flat_map(|piece| lines.add(piece)).collect();
            assert_eq!(heard, [watch(), beat(), forget()]);
        }
        let mut lines = Lines::default();
        for _ in 0..100 {
            assert_eq!(lines.add::<Said>(&[b'x'; LINE_BYTES_MAX]), []);
            assert!(lines.rest.len() <= LINE_BYTES_MAX);
        }
    }
}
