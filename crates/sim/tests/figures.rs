//! What tests have measured, counted or covered; `make test` shows it at its end.

use std::io::Write;

/// Says a figure: a line, or several.
#[allow(clippy::print_stdout, reason = "the figure is for the reader")]
#[allow(
    clippy::disallowed_methods,
    reason = "it is the judge's, not the simulated program's"
)]
pub(crate) fn figure(text: &str) {
    println!("{text}");
    let Some(list) = std::env::var_os("SHALE_FIGURES") else {
        return;
    };
    let mut file = std::fs::File::options()
        .append(true)
        .create(true)
        .open(&list)
        .unwrap_or_else(|error| panic!("{}: {error}", list.display()));
    // One write, so that lines of concurrent tests don't mix.
    file.write_all(format!("{text}\n").as_bytes())
        .unwrap_or_else(|error| panic!("{}: {error}", list.display()));
}
