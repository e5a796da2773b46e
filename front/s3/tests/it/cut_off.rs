//! Clients that go away in the midst of a change: what is known of buckets and keys is what is stored.

use crate::asked::ask;
use crate::fuzz_body::{open_to_all, policy_request};
use crate::local::{directory, reopened, run};
use kura_s3::{Directory, NewKey, Service};
use s3s::S3;
use std::sync::Arc;
use std::time::Duration;

/// Begins a change, goes away, and lets what goes on come to its end.
async fn cut_off<T>(change: impl Future<Output = T>) {
    let mut change = Box::pin(change);
    assert!(futures::poll!(&mut change).is_pending(), "it is not done at once");
    drop(change);
    tokio::time::sleep(Duration::from_secs(1)).await;
}

fn known(directory: &Directory) -> (Vec<String>, Vec<String>) {
    let buckets = directory.buckets().iter().map(|bucket| bucket.name.clone()).collect();
    (buckets, directory.keys().iter().map(|key| key.id.clone()).collect())
}

#[test]
fn a_change_whose_client_goes_away_is_known_as_it_is_stored() {
    run(async {
        let (own, store) = directory().await;
        let stored = async || known(&*reopened(&store).await);
        cut_off(own.create_bucket("other")).await;
        assert_eq!(known(&own), stored().await);
        own.create_bucket("another").await.expect("a bucket");
        cut_off(own.delete_bucket("another")).await;
        assert_eq!(known(&own), stored().await);
        assert!(own.find("another").is_none() && own.find("other").is_some());

        cut_off(own.create_key(NewKey::default())).await;
        assert_eq!(known(&own), stored().await);
        let key = own.keys()[0].id.clone();
        cut_off(own.revoke_key(&key)).await;
        assert_eq!(known(&own), stored().await);
        assert!(own.keys().is_empty(), "nothing that it signs is done");
    });
}

#[test]
fn a_policy_whose_client_goes_away_is_followed() {
    run(async {
        let (own, store) = directory().await;
        let service = Service::new(Arc::clone(&own));
        open_to_all(&service).await;
        assert_eq!(ask(&service, "PUT /demo/a", "", b"").await.status, 200);
        let closed = r#"{"Statement": {"Effect": "Deny", "Principal": "*", "Action": "s3:*",
                         "Resource": ["arn:aws:s3:::demo", "arn:aws:s3:::demo/*"]}}"#;
        cut_off(service.put_bucket_policy(policy_request(closed))).await;
        assert_eq!(ask(&Service::new(reopened(&store).await), "GET /demo/a", "", b"").await.status, 403);
        assert_eq!(ask(&service, "GET /demo/a", "", b"").await.status, 403);
    });
}
