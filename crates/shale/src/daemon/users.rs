//! Finds the users of a mount in /proc. Only links are read, so no file system gets a request.

use std::{fs, os::unix::ffi::OsStrExt, path::Path};

/// Most users named; the rest is counted.
const NAMED_MAX: usize = 5;

/// Names the programs that have files open, run or have their working directory below a directory,
/// as far as this process may see: `bash (process 17), cat (process 18)`. Empty if none is found.
pub fn who_uses(directory: &Path) -> String {
    let Ok(processes) = fs::read_dir("/proc") else {
        return String::new();
    };
    let numbers = processes.flatten().filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path()))
    });
    let users: Vec<_> = numbers
        .filter(|(_, process)| uses(process, directory))
        .map(|(number, process)| format!("{} (process {number})", name_of(&process)))
        .collect();
    let named = users[..users.len().min(NAMED_MAX)].join(", ");
    match users.len() - users.len().min(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// What a process is called, as one line of text: it may choose any bytes, and these end up on terminals and in logs.
fn name_of(process: &Path) -> String {
    let name = fs::read(process.join("comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    name.trim().replace(char::is_control, "?")
}

fn uses(process: &Path, directory: &Path) -> bool {
    let is_below = |link: &Path| fs::read_link(link).is_ok_and(|to| to.starts_with(directory));
    if ["cwd", "root", "exe"]
        .iter()
        .any(|link| is_below(&process.join(link)))
    {
        return true;
    }
    let descriptors = fs::read_dir(process.join("fd"));
    if descriptors
        .is_ok_and(|mut all| all.any(|link| link.is_ok_and(|link| is_below(&link.path()))))
    {
        return true;
    }
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let directory = directory.as_os_str().as_bytes();
    maps.split(|byte| *byte == b'\n').any(|line| {
        let path = line
            .iter()
            .position(|byte| *byte == b'/')
            .map(|at| &line[at..]);
        path.and_then(|path| path.strip_prefix(directory))
            .is_some_and(|rest| rest.first() == Some(&b'/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would be broken if whoever runs a program in a mount could write to the terminal of the one who ends it.
    #[test]
    fn a_process_is_named_in_one_line_of_text_whatever_it_calls_itself() {
        let process = tempfile::tempdir().unwrap();
        for (chosen, shown) in [
            (&b"bash\n"[..], "bash"),
            (b"a\x1b[2Jb\nshale:\n", "a?[2Jb?shale:"),
            (b"\xff\xc2\x9bm\n", "\u{fffd}?m"),
        ] {
            fs::write(process.path().join("comm"), chosen).unwrap();
            assert_eq!(name_of(process.path()), shown);
        }
        let nowhere = process.path().join("nowhere");
        assert_eq!(name_of(&nowhere), "");
    }
}
