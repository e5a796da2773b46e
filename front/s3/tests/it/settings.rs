//! What is set on a bucket and cannot be read: that bucket is not served, and all others are.

use crate::asked::ask;
use crate::fuzz_body::open_to_all;
use crate::local::{Memory, directory, directory_on, opened, reopened, run};
use kura_object::{Batch, Put};
use kura_s3::{Desk, NewKey, Service};
use std::sync::Arc;

#[test]
fn a_setting_that_cannot_be_read_closes_its_bucket_and_no_other() {
    for (setting, line) in
        [("cors", "cors"), ("lifecycle", "lifecycle"), ("tags", "tagging"), ("versioning", "versioning")]
    {
        run(async {
            let (known, store) = directory().await;
            known.create_bucket("other").await.expect("a bucket");
            let service = Service::new(known);
            open_to_all(&service).await;
            assert_eq!(ask(&service, "PUT /demo/a", "", b"one").await.status, 200);
            let damaged = vec![(setting.to_owned(), Some(b"<Tor".to_vec()))];
            store.set_partition_attributes(b"demo", None, damaged).await.expect("a setting");

            let directory = reopened(&store).await;
            let service = Service::new(Arc::clone(&directory));
            for (what, body) in [("GET /demo/a", ""), ("PUT /demo/a", "two"), ("GET /demo", ""), ("DELETE /demo/a", "")]
            {
                let answer = ask(&service, what, "", body.as_bytes()).await;
                assert_eq!(answer.status, 500, "{what}: {answer:?}");
                let said = format!("bucket demo: what is set on it cannot be read ({setting})");
                assert!(answer.text().contains(&said), "{what}: {}", answer.text());
            }
            let desk = Desk::new(Arc::clone(&directory));
            assert!(desk.stat("demo", "a", None).await.expect_err("it is closed").to_string().contains(setting));
            assert_eq!(desk.check(None).await.len(), 1);
            desk.bucket("other").await.expect("others are served");

            // It is mended by setting it anew, and nothing was lost.
            let anew = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
            let (method, body) = if setting == "versioning" { ("PUT", anew) } else { ("DELETE", "") };
            let answer = ask(&service, &format!("{method} /demo?{line}"), "", body.as_bytes()).await;
            assert!(matches!(answer.status, 200 | 204), "{answer:?}");
            assert_eq!(ask(&service, "GET /demo/a", "", b"").await.body, b"one");
            assert_eq!(desk.check(None).await, Vec::<String>::new());
        });
    }
}

#[test]
fn a_policy_that_cannot_be_read_allows_nothing() {
    run(async {
        let (known, store) = directory().await;
        open_to_all(&Service::new(known)).await;
        let damaged = vec![("policy".to_owned(), Some(b"{".to_vec()))];
        store.set_partition_attributes(b"demo", None, damaged).await.expect("a setting");
        let service = Service::new(reopened(&store).await);
        for what in ["PUT /demo/a", "GET /demo", "DELETE /demo?policy", "DELETE /demo?cors"] {
            assert_eq!(ask(&service, what, "", b"").await.status, 403, "{what}");
        }
        // Its owner sets another one.
        open_to_all(&service).await;
        assert_eq!(ask(&service, "PUT /demo/a", "", b"one").await.status, 200);
    });
}

#[test]
fn an_access_key_that_cannot_be_read_is_closed_and_nothing_else_is() {
    run(async {
        let (known, store) = directory().await;
        open_to_all(&Service::new(Arc::clone(&known))).await;
        let keys = store.partition(b".keys").await.expect("the keys").id;
        let good = known.create_key(NewKey::default()).await.expect("a key");
        let mut batch = Batch::new();
        batch.put(keys, b"KURABROKEN", Put { attributes: [("name".to_owned(), vec![1])].into(), ..Put::default() });
        store.commit(batch).await.expect("a record without a secret");

        let known = reopened(&store).await;
        let service = Service::new(Arc::clone(&known));
        assert_eq!(ask(&service, "PUT /demo/a", "", b"one").await.status, 200);
        assert_eq!(known.known_key(&good.id).expect("the other key").secret, good.secret);
        assert!(known.key("KURABROKEN").is_none() && known.keys().iter().all(|key| key.id != "KURABROKEN"));
        let desk = Desk::new(Arc::clone(&known));
        let found = desk.check(None).await;
        assert!(matches!(&found[..], [one] if one.contains("access key KURABROKEN: closed")), "{found:?}");
        // It can be revoked, and that is the end of it.
        known.revoke_key("KURABROKEN").await.expect("it is revoked");
        assert!(known.revoke_key("KURABROKEN").await.is_err());
        assert_eq!(desk.check(None).await, Vec::<String>::new());
        assert_eq!(Desk::new(reopened(&store).await).check(None).await, Vec::<String>::new());
    });
}

#[test]
fn a_sector_that_cannot_be_read_closes_the_key_or_the_bucket_whose_record_it_has() {
    run(async {
        let device = Memory::new();
        let (known, store) = directory_on(&device).await;
        open_to_all(&Service::new(Arc::clone(&known))).await;
        known.create_bucket("other").await.expect("a bucket");
        let (lost, good) = (NewKey { name: "lost".into(), ..NewKey::default() }, NewKey::default());
        let (lost, good) = (known.create_key(lost).await.expect("a key"), known.create_key(good).await.expect("a key"));
        let other = store.partition(b"other").await.expect("the bucket").id;
        for at in 0..40_u8 {
            // So that a start need not read where the records lie.
            store
                .put(other, &[at], Put { content: vec![at; 4000].as_slice().into(), ..Put::default() })
                .await
                .expect("an object");
        }
        store.close().await.expect("it is closed");
        device.lose(lost.secret.as_bytes());
        device.lose(b"s3:::demo");

        let store = opened(&device).await;
        let known = reopened(&store).await;
        assert_eq!(known.known_key(&good.id).expect("the other key").secret, good.secret);
        assert!(known.known_key(&lost.id).expect_err("it is closed").to_string().contains("its record cannot be read"));
        let desk = Desk::new(Arc::clone(&known));
        desk.stat("other", "\u{5}", None).await.expect("others are served");
        let refused = desk.bucket("demo").await.expect_err("it is closed").to_string();
        assert!(refused.contains("bucket demo: its record cannot be read"), "{refused}");
        assert_eq!(ask(&Service::new(Arc::clone(&known)), "GET /demo/a", "", b"").await.status, 403, "nobody may");
        let found = desk.check(None).await;
        assert!(
            matches!(&found[..], [bucket, key] if bucket.contains("bucket demo") && key.contains(&lost.id)),
            "{found:?}"
        );
        // What can be done is done.
        known.revoke_key(&lost.id).await.expect("it is revoked");
        known.delete_bucket("demo").await.expect("it is empty");
        assert_eq!(desk.check(None).await, Vec::<String>::new());
    });
}
