//! Measures requests to a real etcd of one and of three members on this machine, which write durably:
//! `make bench-parts`, in SHALE_BENCH_DIR or else the temporary directory.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    dead_code,
    reason = "it measures the clock itself; tests use the rest"
)]

#[path = "../src/etcd/tests/servers.rs"]
mod servers;

use coordination::etcd::{
    Etcd, EtcdBegin, EtcdCertificates, EtcdEndpoint, EtcdServer, EtcdSettings, EtcdStatus,
};
use coordination::{Change, Coordination, News};
use servers::{Servers, in_real_time};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const REQUESTS: usize = 1_000;
const ROUNDS: usize = 3;
/// As large as a shard's record.
const VALUE_BYTES: usize = 200;

/// Microseconds of each request, sorted.
async fn measured(mut request: impl AsyncFnMut()) -> Vec<f64> {
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let begun = Instant::now();
        request().await;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    times
}

/// The median of the rounds.
fn median(rounds: &[Vec<f64>], of: impl Fn(&[f64]) -> f64) -> f64 {
    let mut each: Vec<f64> = rounds.iter().map(|times| of(times)).collect();
    each.sort_by(f64::total_cmp);
    each[each.len() / 2]
}

fn print(name: &str, rounds: &[Vec<f64>]) {
    let at = |part: f64| median(rounds, |times| times[(times.len() as f64 * part) as usize]);
    println!("  {name:34} {:8.0} {:8.0}", at(0.5), at(0.99));
}

async fn measure(store: &Coordination) {
    let value = vec![7; VALUE_BYTES];
    let lease = store.grant(Duration::from_secs(600)).await.unwrap().id;
    let put = async |key: &str, version| {
        let change = Change::put(key, version, value.clone());
        store.transaction(vec![change]).await.unwrap()
    };
    let mut version = put("key", 0).await;
    let mut other = put("other", 0).await;
    let [mut gets, mut puts, mut both, mut kept, mut heard] = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        gets.push(measured(async || drop(store.get("key").await.unwrap())).await);
        puts.push(measured(async || version = put("key", version).await).await);
        both.push(
            measured(async || {
                let changes = vec![
                    Change::put("key", version, value.clone()),
                    Change::put("other", other, value.clone()),
                ];
                version = store.transaction(changes).await.unwrap();
                other = version;
            })
            .await,
        );
        kept.push(measured(async || assert!(store.keep_alive(lease).await.is_ok())).await);
        let mut watch = store.watch("key", version);
        let _begun = watch.next(Duration::from_millis(500)).await;
        heard.push(
            measured(async || {
                version = put("key", version).await;
                let news = watch.next(Duration::from_secs(10)).await;
                assert!(matches!(news, News::Changed { .. }), "{news:?}");
            })
            .await,
        );
    }
    print("get", &gets);
    print("transaction, 1 key", &puts);
    print("transaction, 2 keys", &both);
    print("keep a lease alive", &kept);
    print("transaction and a watch hears it", &heard);
}

fn main() {
    let directory = std::env::var_os("SHALE_BENCH_DIR").map(PathBuf::from);
    let directory = directory.unwrap_or_else(std::env::temp_dir);
    for members in [1, 3] {
        let servers = Servers::start_durable(members, &directory);
        println!("etcd of {members} on one machine, microseconds:");
        println!("  {:34} {:>8} {:>8}", "", "median", "p99");
        in_real_time(async |world| {
            let settings = servers.settings("/shale/bench/");
            let store = Coordination::etcd(&world, &settings).unwrap();
            measure(&store).await;
        });
    }
}
