//! What a choice costs: nanoseconds for a pick and its release, by method and number of servers, on one thread and on
//! two that share the group.
//!
//! `cargo run --release -p weir-net --example bench_pick`

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use net::upstream::{
    BalanceMethod, GroupOrigin, GroupSettings, IpHash, LeastConn, PeerOutcome, PeerSelection,
    RoundRobin, SelectionRequest, UpstreamGroup, UpstreamServer, UpstreamTimes,
};
use weir_net as net;

const ROUNDS: u32 = 300_000;

fn main() {
    for servers in [1, 3, 30] {
        let methods: [(&str, Arc<dyn BalanceMethod>); 3] = [
            ("round robin", Arc::new(RoundRobin)),
            ("least_conn", Arc::new(LeastConn)),
            ("ip_hash", Arc::new(IpHash)),
        ];
        for (name, balance) in methods {
            let group = Arc::new(group(servers, balance));
            let alone = run(&group);
            let both: Vec<_> = (0..2)
                .map(|_| {
                    let group = group.clone();
                    std::thread::spawn(move || run(&group))
                })
                .collect();
            let shared: f64 = both
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .sum::<f64>()
                / 2.0;
            println!(
                "{name:12} {servers:3} servers: {alone:6.0} ns alone, {shared:6.0} ns each of two threads"
            );
        }
    }
}

fn run(group: &Arc<UpstreamGroup>) -> f64 {
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        let mut selection = PeerSelection::new(group.clone(), &SelectionRequest::default());
        let Ok(lease) = selection.try_pick() else {
            panic!("all are alive")
        };
        selection.release_peer(lease, PeerOutcome::Ok(UpstreamTimes::default()));
    }
    begin.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
}

fn group(servers: u16, balance: Arc<dyn BalanceMethod>) -> UpstreamGroup {
    let mut settings = GroupSettings::new("u", GroupOrigin::Block);
    for port in 1..=servers {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        settings.add_server(UpstreamServer::new(
            address.to_string(),
            vec![address.into()],
        ));
    }
    settings.balance = Some(balance);
    UpstreamGroup::new(settings)
}
