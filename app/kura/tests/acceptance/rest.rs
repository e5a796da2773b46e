//! The REST door, as programs meet it that are not `kura`.

use crate::harness::Home;
use crate::serving::json;
use crate::snapshots::rest;
use serde_json::Value;

/// Nothing is done of a request that says what its route does not know, in its query or in a body: who asks for a dry run gets no
/// deed.
#[test]
fn what_a_request_may_not_say_is_refused_by_every_route() {
    let home = Home::new();
    let _server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    home.ok(&["snapshot", "create", "v@a"]);
    home.ok(&["trace", "record", "v"]);
    let state = || [&["volume", "list"][..], &["trace", "list"], &["controller", "list"]].map(|list| json(&home, list));
    let before = state().map(|list| list.as_array().expect("a list").len());
    let (_, api) = rest(&home, "GET", "openapi.json", "").expect("an answer");
    let api: Value = serde_json::from_str(&api).expect("a description");
    let mut asked = 0;
    for (route, operations) in api["paths"].as_object().expect("routes") {
        let Some(path) = route.strip_prefix("/api/v1/") else { continue };
        let path = path.replace("{id}", "0").replace("snapshots/{name}", "snapshots/v%40a");
        let path = ["{name}", "{volume}"].iter().fold(path, |path, part| path.replace(part, "v"));
        let path = ["{bucket}", "{key}", "{prefix}"].iter().fold(path, |path, part| path.replace(part, "demo"));
        for (method, operation) in operations.as_object().expect("operations") {
            let names = operation["parameters"].as_array().into_iter().flatten();
            let tries = names.clone().any(|one| one["in"] == "query" && one["name"] == "dry_run");
            for query in ["dry_run=true", "dry_run=true&force_it", "dry-run=1"] {
                if tries && query == "dry_run=true" {
                    continue;
                }
                let (method, path) = (method.to_uppercase(), format!("{path}?{query}"));
                let (status, said) = rest(&home, &method, &path, r#"{"name": "made"}"#).expect("an answer");
                assert!(status == 400 && said.contains("the query says"), "{method} {path}: {status}: {said}");
                asked += 1;
            }
            if operation["requestBody"].is_null() {
                let (status, said) =
                    rest(&home, &method.to_uppercase(), &path, r#"{"dry_run": true}"#).expect("an answer");
                assert!(status == 400 && said.contains("there is a body"), "{method} {path}: {status}: {said}");
            }
        }
    }
    assert!(asked > 100, "{asked} requests");
    assert_eq!(state().map(|list| list.as_array().expect("a list").len()), before);
    assert_eq!(json(&home, &["key", "list"]).as_array().map(Vec::len), Some(1), "beside that of the demo");
}

#[test]
fn a_body_is_an_object_and_no_list_of_its_values() {
    let home = Home::new();
    let _server = home.serve();
    let bodies = [
        ("POST", "volumes", r#"["made", 67108864]"#),
        ("PATCH", "volumes/demo", "[2147483648]"),
        ("POST", "volumes/demo/recording", "[]"),
        ("POST", "snapshots", r#"[["demo@a"]]"#),
        ("POST", "snapshot-schedules", r#"["demo", "auto", 60, 3]"#),
        ("POST", "buckets", r#"["made"]"#),
        ("POST", "keys", r#"["made", {}]"#),
        ("POST", "check", "[true, true]"),
        ("PUT", "replicas/demo", "[]"),
    ];
    for (method, path, body) in bodies {
        let (status, said) = rest(&home, method, path, body).expect("an answer");
        assert!(status == 400 && said.contains("expected an object"), "{method} {path} {body}: {status}: {said}");
    }
    // Of an object every field is still looked at.
    for (body, why) in [
        (r#"{"name": "a", "name": "b", "size_bytes": 67108864}"#, "duplicate field"),
        (r#"{"name": "a", "size_bytes": 67108864, "colour": 1}"#, "unknown field"),
    ] {
        let (status, said) = rest(&home, "POST", "volumes", body).expect("an answer");
        assert!(status == 400 && said.contains(why), "{body}: {status}: {said}");
    }
}
