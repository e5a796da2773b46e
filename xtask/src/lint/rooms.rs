//! Who may use whom. Dependencies point down only, and siblings in `front/` never see each other.

use serde_json::Value;

/// Every room and the rooms it may use. An edge that is not here is refused: to add one, argue for it in
/// `docs/decisions/` and write it here.
const ROOMS: &[(&str, &[&str])] = &[
    ("kura-block", &[]),
    ("kura-journal", &["kura-block"]),
    ("kura-array", &["kura-block"]),
    ("kura-snapshot", &["kura-block"]),
    ("kura-tier", &["kura-block"]),
    ("kura-volume", &["kura-tier", "kura-array", "kura-journal", "kura-snapshot", "kura-block"]),
    ("kura-controller", &["kura-volume", "kura-tier", "kura-array", "kura-journal", "kura-block"]),
    ("kura-object", &["kura-block"]),
    ("kura-disk", &["kura-block"]),
    ("kura-memory", &[]),
    ("kura-shared", &["kura-snapshot", "kura-block"]),
    ("kura-sim", &["kura-block"]),
    ("kura-stores", &["kura-object", "kura-disk", "kura-block"]),
    ("kura-trace", &[]),
    ("kura-load", &["kura-trace"]),
    ("kura-replay", &["kura-trace", "kura-sim", "kura-shared", "kura-controller", "kura-block"]),
    ("kura-replicate", &[]),
    (
        "kura-experiments",
        &[
            "kura-replicate",
            "kura-stores",
            "kura-replay",
            "kura-load",
            "kura-trace",
            "kura-sim",
            "kura-shared",
            "kura-snapshot",
            "kura-tier",
            "kura-block",
        ],
    ),
    ("kura-nbd", &["kura-block"]),
    ("kura-admin", &["kura-controller", "kura-block"]),
    // The object store's own door is its interface: the room runs on it through a way onto its thread.
    ("kura-s3", &["kura-object", "kura-block"]),
    (
        "kura",
        &[
            "kura-admin",
            "kura-s3",
            "kura-nbd",
            "kura-experiments",
            "kura-replicate",
            "kura-replay",
            "kura-load",
            "kura-trace",
            "kura-sim",
            "kura-shared",
            "kura-disk",
            "kura-memory",
            "kura-controller",
            "kura-tier",
            "kura-object",
            "kura-block",
        ],
    ),
    ("xtask", &[]),
];

/// What a room's tests may use besides.
const IN_TESTS: &[(&str, &[&str])] = &[
    ("kura-journal", &["kura-sim"]),
    ("kura-array", &["kura-sim"]),
    ("kura-volume", &["kura-sim"]),
    ("kura-object", &["kura-sim"]),
    ("kura-snapshot", &["kura-sim", "kura-shared"]),
    // In process, what controllers share is as deterministic as they are.
    ("kura-controller", &["kura-sim", "kura-shared", "kura-snapshot"]),
];

/// Where the table is, for the complaint.
const TABLE: &str = file!();

/// One line for each edge of `cargo metadata` that the table does not have.
pub fn complaints(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().flat_map(of_package).collect()
}

fn of_package(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let Some(allowed) = find(ROOMS, name) else {
        return vec![format!("{name} is a room that the table in {TABLE} does not have: say there whom it may use")];
    };
    let in_tests = find(IN_TESTS, name).unwrap_or_default();
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let refused = dependencies.iter().filter_map(|dependency| {
        let used = dependency["name"].as_str().unwrap_or_default();
        // Only the rooms have a path; whom we use from outside is deny.toml's concern.
        let is_room = dependency["path"].is_string();
        let only_tests = dependency["kind"] == "dev";
        let fits = allowed.contains(&used) || (only_tests && in_tests.contains(&used));
        let how = if only_tests { "may not use, even in its tests," } else { "may not use" };
        (is_room && !fits).then(|| format!("{name} {how} {used}: the table in {TABLE} does not allow it"))
    });
    refused.collect()
}

fn find(table: &'static [(&str, &[&str])], name: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|(room, _)| *room == name).map(|(_, used)| *used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(name: &str, used: &str, kind: Value) -> Vec<String> {
        let edge = json!({"name": used, "path": "/somewhere", "kind": kind});
        complaints(&json!({"packages": [{"name": name, "dependencies": [edge]}]}))
    }

    #[test]
    fn an_edge_down_is_allowed_and_an_edge_up_or_aside_is_not() {
        assert!(of("kura-journal", "kura-block", Value::Null).is_empty());
        for (name, used) in [("kura-block", "kura-journal"), ("kura-nbd", "kura-admin"), ("kura-volume", "kura-disk")] {
            let complaints = of(name, used, Value::Null);
            assert!(complaints.len() == 1 && complaints[0].contains("rooms.rs"), "{name} -> {used}: {complaints:?}");
        }
    }

    #[test]
    fn the_simulator_is_for_tests_only() {
        assert!(of("kura-volume", "kura-sim", json!("dev")).is_empty());
        assert_eq!(of("kura-volume", "kura-sim", Value::Null).len(), 1);
        assert_eq!(of("kura-nbd", "kura-disk", json!("dev")).len(), 1);
    }

    #[test]
    fn a_room_without_a_row_is_refused() {
        assert!(of("kura-attic", "kura-block", Value::Null)[0].contains("does not have"));
    }

    #[test]
    fn the_table_points_down_only() {
        for (index, (room, used)) in ROOMS.iter().enumerate() {
            for name in *used {
                let below = ROOMS[..index].iter().any(|(lower, _)| lower == name);
                assert!(below, "{room} uses {name}, which stands above it");
            }
        }
    }
}
