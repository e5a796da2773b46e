//! What is set on a bucket and cannot be read: that bucket is not served, and all others are.

use crate::asked::ask;
use crate::fuzz_body::open_to_all;
use crate::local::{directory, reopened, run};
use kura_s3::{Desk, Service};
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
            assert_eq!(desk.check(None).await.expect("a check").len(), 1);
            desk.bucket("other").await.expect("others are served");

            // It is mended by setting it anew, and nothing was lost.
            let anew = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
            let (method, body) = if setting == "versioning" { ("PUT", anew) } else { ("DELETE", "") };
            let answer = ask(&service, &format!("{method} /demo?{line}"), "", body.as_bytes()).await;
            assert!(matches!(answer.status, 200 | 204), "{answer:?}");
            assert_eq!(ask(&service, "GET /demo/a", "", b"").await.body, b"one");
            assert_eq!(desk.check(None).await.expect("a check"), Vec::<String>::new());
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
