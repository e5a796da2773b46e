//! The lab's experiments on replication, as a user runs them.

use crate::harness::Home;
use crate::lab_report::every_figure_is_drawn;
use serde_json::Value;

#[test]
fn the_papers_numbers_follow_from_one_model_and_ours_is_at_the_bound() {
    let home = Home::new();
    let outcome = |name: &str, seed: &str| -> Value {
        let said = home.ok(&["lab", "run", name, "--quick", "--json", "--seed", seed, "--out", seed]);
        serde_json::from_str(&said).expect("one JSON object")
    };
    let contention = outcome("replicate-contention", "1");
    let model = &contention["configuration"]["table-1-contended"]["model"];
    let mut shown = Vec::new();
    for (name, told) in [
        ("replicate-contention", &["Table 1", "Fig. 4"][..]),
        (
            "replicate-balance",
            &[
                "Table 2",
                "Fig. 5",
                "Fig. 6",
                "Fig. 7",
                "ours: longest",
                "P(75,10,10,5,0)",
                "310",
                "without big files",
                "a fifth as fast",
            ],
        ),
    ] {
        for seed in ["1", "9"] {
            let outcome = outcome(name, seed);
            let criteria = outcome["criteria"].as_array().expect("criteria");
            // The median of the draws is above the paper's one draw.
            let holds = |criterion: &Value| {
                criterion["holds"] == true
                    || criterion["name"].as_str().is_some_and(|name| name.contains("median of draws"))
            };
            assert!(criteria.iter().all(holds), "{criteria:#?}");
            let text = outcome["criteria"].to_string();
            assert!(told.iter().all(|clause| text.contains(clause)), "{text}");
            for (point, configuration) in outcome["configuration"].as_object().expect("points") {
                assert_eq!(&configuration["model"], model, "{name} {point} has a model of its own");
            }
            let residuals = std::fs::read_to_string(home.path(seed).join(name).join("residuals.csv")).expect("a table");
            assert!(residuals.lines().count() >= 4, "{residuals}");
            if seed == "1" {
                shown.push(outcome);
            }
        }
    }
    every_figure_is_drawn(&home, "1", &shown);
}
