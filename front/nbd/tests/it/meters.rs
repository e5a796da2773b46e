//! What a connection reports about itself.

use crate::client::{ENOSPC, FLUSH};
use crate::local::{SIZE, Setup, connect, run};
use kura_nbd::meters::{BYTES, CONNECTIONS, ERRORS, LATENCY, REQUESTS};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use std::collections::BTreeMap;

/// All values by name and command; of a histogram, how many samples. Counting begins anew afterwards.
fn values(snapshotter: &Snapshotter) -> BTreeMap<(String, String), u64> {
    let metrics = snapshotter.snapshot().into_vec().into_iter();
    let metrics = metrics.map(|(key, _, _, value)| {
        let command = key.key().labels().map(|label| label.value().to_owned()).collect();
        let value = match value {
            DebugValue::Counter(count) => count,
            DebugValue::Gauge(level) => level.into_inner() as u64,
            DebugValue::Histogram(samples) => samples.len() as u64,
        };
        ((key.key().name().to_owned(), command), value)
    });
    metrics.collect()
}

#[test]
fn requests_bytes_errors_and_connections_are_counted() {
    let recorder = DebuggingRecorder::new();
    let seen = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        run(async {
            let (mut client, served) = connect(Setup::default()).await;
            assert_eq!(client.write(0, 0, &[1; 5000]).await.unwrap(), 0);
            assert_eq!(client.write(0, SIZE, &[1; 7]).await.unwrap(), ENOSPC);
            assert_eq!(client.ask(FLUSH, 0, 0, 0).await.unwrap(), 0);
            assert_eq!(client.read(0, 300).await.unwrap().unwrap(), [1; 300]);
            let values_now = values(&seen);
            let value = |name: &str, command: &str| values_now[&(name.to_owned(), command.to_owned())];
            let counts = [("write", 2, 1, 5000), ("flush", 1, 0, 0), ("read", 1, 0, 300), ("trim", 0, 0, 0)];
            for (command, requests, errors, bytes) in counts {
                assert_eq!(value(REQUESTS, command), requests, "{command}");
                assert_eq!(value(LATENCY, command), requests, "{command}");
                assert_eq!(value(ERRORS, command), errors, "{command}");
                assert_eq!(value(BYTES, command), bytes, "{command}");
            }
            assert_eq!(value(CONNECTIONS, ""), 1);
            drop(client);
            served.server.await.unwrap().unwrap();
            assert_eq!(values(&seen)[&(CONNECTIONS.to_owned(), String::new())], 0);
        });
    });
}
