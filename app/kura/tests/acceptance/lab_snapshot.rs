//! The lab's experiments on snapshots, as a user runs them.

use crate::harness::Home;
use crate::lab_report::every_figure_is_drawn;
use serde_json::Value;

#[test]
fn one_model_gives_the_papers_numbers_and_lease_is_as_fast_as_aggregate() {
    let home = Home::new();
    let run = |name: &str, seed: &str| -> Value {
        let said = home.ok(&["lab", "run", name, "--quick", "--json", "--seed", seed, "--out", seed]);
        serde_json::from_str(&said).expect("one JSON object")
    };
    let message = run("snapshot-message", "1");
    let costs = &message["configuration"]["message-10"]["load"]["costs"];
    assert!(costs["shared_us"].as_f64() > Some(0.0), "{costs}");
    let mut shown = Vec::new();
    for (name, told) in [
        ("snapshot-message", &["at 0 %", "at 10 %", "at 20 %", "at 100 %"][..]),
        (
            "snapshot-methods",
            &[
                "Fig. 9",
                "Table 1",
                "Table 2",
                "lease, normal operation",
                "lease at 100 %",
                "stranded",
                "messages a save copy",
                "8 controllers",
            ],
        ),
    ] {
        for seed in ["1", "9"] {
            let outcome = run(name, seed);
            let criteria = outcome["criteria"].as_array().expect("criteria");
            assert!(criteria.iter().all(|criterion| criterion["holds"] == true), "{criteria:#?}");
            let text = outcome["criteria"].to_string();
            assert!(told.iter().all(|clause| text.contains(clause)), "{text}");
            for (point, configuration) in outcome["configuration"].as_object().expect("points") {
                let work = [&configuration["load"], &configuration["work"]["load"], &configuration["work"]["fill"]];
                let its = work.iter().map(|work| &work["costs"]).find(|costs| !costs.is_null());
                assert_eq!(its, Some(costs), "{name} {point} has costs of its own");
            }
            let table = |file: &str| std::fs::read_to_string(home.path(seed).join(name).join(file)).expect("a table");
            assert!(table("residuals.csv").lines().count() > 5, "{}", table("residuals.csv"));
            if name == "snapshot-methods" {
                assert_eq!(table("redirect.csv").lines().count(), 1 + 9 * 4, "{}", table("redirect.csv"));
            }
            if seed == "1" {
                // Points that are saved are read as what they were.
                assert_eq!(run(name, seed)["criteria"], outcome["criteria"], "{name}");
                shown.push(outcome);
            }
        }
    }
    every_figure_is_drawn(&home, "1", &shown);
}
