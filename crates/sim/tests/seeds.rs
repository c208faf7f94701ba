//! Seeds of every kind; `make sim` runs other and more of them.

use sim::by_suite;
use sim::seeds::{Kind, run_all};
use sim::shrink::shrink;

fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok().filter(|text| !text.is_empty());
    given.map_or(otherwise, |text| {
        let number = text.parse();
        number.unwrap_or_else(|_| panic!("{name} is no number: {text}"))
    })
}

/// `SIM_SEEDS`, `SIM_START` and `SIM_KINDS` choose others; with `SIM_SHRINK` failing crowds are made smaller.
#[test]
fn seeds_of_every_kind() {
    let (seeds, start) = (
        number("SIM_SEEDS", by_suite(16, 1_000)),
        number("SIM_START", 2_000),
    );
    let kinds: Vec<Kind> = match std::env::var("SIM_KINDS") {
        Ok(names) if !names.is_empty() => {
            let kinds = names.split([',', ' ']).map(|name| name.parse().unwrap());
            kinds.collect()
        }
        // Several nodes have a test with seeds of their own.
        _ if std::env::var_os("SIM_SEEDS").is_none() => vec![Kind::Storm],
        _ => Kind::ALL.to_vec(),
    };
    let summary = run_all(&kinds, start..start + seeds);
    println!("{summary}");
    if std::env::var("SIM_SHRINK").is_ok_and(|it| !it.is_empty()) {
        for (seed, kind) in summary.failed() {
            let crowd = kind.crowd();
            if let Some(small) = crowd.and_then(|scenario| shrink(*seed, &scenario, None)) {
                println!("seed {seed} of {kind} fails also in {small:#?}");
            }
        }
    }
    let replays = summary.replays();
    assert!(replays.is_empty(), "failed; again:\n{}", replays.join("\n"));
}
