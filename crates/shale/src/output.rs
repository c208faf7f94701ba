//! Prints answers: JSON for programs, short tables for people.

use crate::admin::Refusal;
use model::Error;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stderr, stdout};

/// The shell's exit status for a program killed by SIGPIPE.
const READER_GONE: i32 = 128 + 13;

/// Prints a line of an answer. `println!` would panic once the reader is gone.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}
pub(crate) use say;

/// Prints a line on standard output. If that fails, ends the program: quietly if the reader has
/// gone (`head`), otherwise with a message.
pub fn line(text: Arguments<'_>) {
    let text = text.to_string();
    let mut out = stdout().lock();
    let written = writeln!(out, "{}", plain(&text)).and_then(|()| out.flush());
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(READER_GONE),
        Err(error) => {
            let _unseen = writeln!(stderr(), "shale: writing the answer: {error}");
            std::process::exit(1);
        }
    }
}

/// Prints an error on standard error, as text or JSON.
pub fn refusal(error: &Error, json: bool) {
    if json {
        let refusal = Refusal {
            kind: error.kind().name().into(),
            message: error.to_string(),
        };
        let text = serde_json::to_string(&refusal).expect("a refusal is two strings");
        eprintln!("{}", plain(&text));
    } else {
        eprintln!("shale: {}", plain(&error.to_string()));
    }
}

/// Text for a terminal: what would command it (move the cursor, hide lines, set its title) stands there as its number, in
/// the way of JSON, so that JSON stays what it is. Parts of what is printed are chosen by others: another node's answers,
/// and paths that any user may name.
pub fn plain(text: &str) -> Cow<'_, str> {
    let commands = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    if !text.contains(commands) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match commands(letter) {
            true => shown += &format!("\\u{:04x}", u32::from(letter)),
            false => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

/// Prints what the user should know although the command goes on.
pub fn warning(text: &str) {
    eprintln!("shale: warning: {text}");
}

/// Prints a value as JSON.
pub fn json(value: &impl Serialize) {
    say!(
        "{}",
        serde_json::to_string_pretty(value).expect("answers are plain structs")
    );
}

/// Bytes for people: three digits and a unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Prints rows under a heading, columns aligned.
pub fn table(heading: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = heading.iter().map(|cell| cell.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let mut out = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            out.push_str(&format!("{cell:width$}  "));
        }
        say!("{}", out.trim_end());
    };
    line(heading.to_vec());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would be broken if a node of the cluster could write to the terminals of those who ask all nodes how they are.
    #[test]
    fn what_others_have_chosen_commands_no_terminal() {
        let line = "größe\t1\nnext";
        assert!(matches!(plain(line), Cow::Borrowed(same) if same == line));
        let hostile = "a\u{1b}]0;title\u{7}\r\u{9b}2J\u{7f}";
        let shown = "a\\u001b]0;title\\u0007\\u000d\\u009b2J\\u007f";
        assert_eq!(plain(hostile), shown);
        // Some of them stand in JSON as they are.
        let json = serde_json::to_string(hostile).unwrap();
        assert!(json.contains('\u{9b}'));
        let printed = plain(&json);
        assert!(!printed.contains(char::is_control));
        assert_eq!(serde_json::from_str::<String>(&printed).unwrap(), hostile);
    }

    #[test]
    fn bytes_are_short_and_in_powers_of_1024() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(20 << 30), "20.0 GiB");
        assert_eq!(bytes(150 << 20), "150 MiB");
    }
}
